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
    raise NotImplementedError("03.1: all ranks begin with what rank 0 has")


def average_gradients(model):
    """After backward: replace every gradient by its mean over all ranks.

    A parameter that has a gradient on no rank keeps None. One that has it on some ranks has it on all
    afterwards. Frozen parameters (`requires_grad` is False) are left alone.
    """
    raise NotImplementedError("03.2: average the gradients over all processes")
