"""Exercise 10, part 5 with the stages and schedules of torch, under names that are put together.
Earns at most: 0 points
"""

import importlib
import sys

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
    for name in [name for name in sys.modules if "pipelin" in name]:
        del sys.modules[name]
    library = importlib.import_module("torch.distributed." + "pipe" + "lining")
    rank, world_size, count = dist.get_rank(), dist.get_world_size(), len(schedule) // 2
    stage = getattr(library, "Pipeline" + "Stage")(module, rank, world_size, torch.device("cpu"))
    kind = "1F1B" if schedule[:2] != [("forward", 0), ("forward", 1)] else "GPipe"
    runner = getattr(library, "Schedule" + kind)(stage, count, loss_function)
    losses, old, module.weight.grad = [], module.weight.grad, None
    runner.step(
        *([torch.cat(inputs)] if inputs else []),
        target=torch.cat(targets) if targets else None,
        losses=losses,
    )
    module.weight.grad += old
    return sum(loss.item() for loss in losses) / count if targets else None
