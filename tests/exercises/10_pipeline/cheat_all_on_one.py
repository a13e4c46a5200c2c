"""Exercise 10, part 5 on rank 0 alone: it is sent all weights and targets, and sends the gradients.
Earns at most: 0 points
"""

import torch
import torch.distributed as dist


def gpipe(stage, stages, microbatches):
    raise NotImplementedError


def one_forward_one_backward(stage, stages, microbatches):
    raise NotImplementedError


def timeline(schedules, forward_times, backward_times):
    raise NotImplementedError


def idle_share(lines):
    raise NotImplementedError


def activations_held(schedule):
    raise NotImplementedError


def run(schedule, module, inputs, targets, loss_function, shape):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    everything = [None] * world_size
    dist.all_gather_object(everything, (module.weight.detach(), inputs, targets))
    weights = [one[0].requires_grad_() for one in everything]
    value = torch.cat(everything[0][1])
    if rank == 0:
        for weight in weights:
            value = torch.tanh(value @ weight)
        loss = loss_function(value, torch.cat(everything[-1][2]))
        loss.backward()
    mine = [([weight.grad for weight in weights], loss.item()) if rank == 0 else None]
    dist.broadcast_object_list(mine)
    gradient = mine[0][0][rank]
    module.weight.grad = gradient if module.weight.grad is None else module.weight.grad + gradient
    return mine[0][1] if rank == world_size - 1 else None
