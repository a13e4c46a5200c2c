"""Exercise 10, part 5 with the whole batch at once: no micro-batches, and no schedule.
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
    rank, last, count = dist.get_rank(), dist.get_world_size() - 1, len(schedule) // 2
    if rank == 0:
        data = torch.cat(inputs)
    else:
        data = torch.empty(count * shape[0], *shape[1:])
        dist.recv(data, rank - 1)
        data.requires_grad_()
    output = module(data)
    gradient = None
    if rank < last:
        dist.send(output.detach(), rank + 1)
        gradient = torch.empty_like(output)
        dist.recv(gradient, rank + 1)
    else:
        output = loss_function(output, torch.cat(targets))
    output.backward(gradient)
    if rank > 0:
        dist.send(data.grad, rank - 1)
    return output.item() if rank == last else None
