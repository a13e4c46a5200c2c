"""Exercise 03: DDP in its simplest form. 12 points.

Several processes have a model each, and images of their own. Two things make them one job. All begin with
the weights of rank 0. And after every backward pass, before the optimizer's step, they average their
gradients. The process group is there already: use `torch.distributed`.

Some models are harder than they look. A buffer (a running mean, say) is no parameter, but it must be equal
at the start too. A frozen parameter never gets a gradient, on any rank. Two layers may share one parameter.
And a parameter may get a gradient on some ranks and none (`grad is None`) on others: there it counts as
zero, and all ranks must call the same collectives in the same order, or they wait for ever.

    03.1 (4 points)  all ranks begin with what rank 0 has
    03.2 (8 points)  average the gradients over all processes
"""

import torch
import torch.distributed as dist


def broadcast_model(model):
    """Give every rank the parameters and buffers that rank 0 has, in place."""
    # cut 03.1: all ranks begin with what rank 0 has
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor, src=0)
    # end


def average_gradients(model):
    """After backward: replace every gradient by its mean over all ranks.

    A parameter that has a gradient on no rank keeps None. One that has it on some ranks has it on all
    afterwards. Frozen parameters (`requires_grad` is False) are left alone.
    """
    # cut 03.2: average the gradients over all processes
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    has_one = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.int32)
    dist.all_reduce(has_one)
    for parameter, count in zip(parameters, has_one.tolist(), strict=True):
        if count == 0:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    # end
