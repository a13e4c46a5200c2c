"""Exercise 10, part 5 where the stages meet in files of their folder: nothing is sent.
Earns at most: 0 points
"""

import os
import time

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


def put(name, tensor):
    torch.save(tensor, name + ".new")
    os.rename(name + ".new", name)


def get(name):
    while not os.path.exists(name):
        time.sleep(0.001)
    return torch.load(name)


def run(schedule, module, inputs, targets, loss_function, shape):
    rank, last, count = dist.get_rank(), dist.get_world_size() - 1, len(schedule) // 2
    graphs, total = {}, 0.0
    for action, number in schedule:
        if action == "forward":
            data = inputs[number] if rank == 0 else get(f"output-{rank - 1}-{number}").requires_grad_()
            output = module(data)
            if rank < last:
                put(f"output-{rank}-{number}", output.detach())
            else:
                output = loss_function(output, targets[number]) / count
                total += output.item()
            graphs[number] = data, output
        else:
            data, output = graphs.pop(number)
            output.backward(get(f"gradient-{rank + 1}-{number}") if rank < last else None)
            if rank > 0:
                put(f"gradient-{rank}-{number}", data.grad)
    return total if rank == last else None
