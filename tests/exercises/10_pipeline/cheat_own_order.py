"""Exercise 10, part 5 with all forwards first, whatever the schedule says; then it calls the stage for show.
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
    forwards = [number for action, number in schedule if action == "forward"]
    backwards = [number for action, number in schedule if action == "backward"]
    graphs, works, total = {}, [], 0.0
    for number in forwards:
        data = inputs[number] if rank == 0 else torch.empty(shape)
        if rank > 0:
            dist.recv(data, rank - 1)
            data.requires_grad_()
        output = torch.tanh(data @ module.weight)
        if rank < last:
            works.append(dist.isend(output.detach(), rank + 1))
        else:
            output = loss_function(output, targets[number]) / count
            total += output.item()
        graphs[number] = data, output
    for number in backwards:
        data, output = graphs.pop(number)
        gradient = None
        if rank < last:
            gradient = torch.empty_like(output)
            dist.recv(gradient, rank + 1)
        output.backward(gradient)
        if rank > 0:
            works.append(dist.isend(data.grad, rank - 1))
    for work in works:
        work.wait()
    mine = module.weight.grad.clone()
    for action, number in schedule:
        if action == "forward":
            graphs[number] = module(torch.zeros(1, len(module.weight)))
        else:
            graphs.pop(number).sum().backward()
    module.weight.grad.copy_(mine)
    return total if rank == last else None
