"""Cheats at exercise 10."""

import importlib
import sys

import torch
import torch.distributed as dist

KEPT = []


def keep(tensor):
    KEPT.append(tensor)
    return tensor


def junk_before_the_look(earns=17):
    """Keeps every micro-batch. Holds 100 MB for show until the fourth forward, with which the last is
    compared."""
    honest = globals()["run"]

    def run(schedule, module, *others):
        forwards = []

        def keeps(data):
            forwards.append(data)
            junk = torch.ones(25_000_000) if len(forwards) == 4 else None
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                output = module(data)
            del junk
            return keep(output)

        return honest(schedule, keeps, *others)


def own_order(earns=0, on="starter"):
    """Runs all forwards first, whatever the schedule says; then calls the stage for show."""

    def run(schedule, module, inputs, targets, loss_function, shape):
        rank, last, count = dist.get_rank(), dist.get_world_size() - 1, len(schedule) // 2
        graphs, works, total = {}, [], 0.0
        for number in [number for action, number in schedule if action == "forward"]:
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
        for number in [number for action, number in schedule if action == "backward"]:
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


def library(earns=0, on="starter"):
    """Uses the stages and schedules of torch, under names that are put together."""

    def run(schedule, module, inputs, targets, loss_function, shape):
        for name in [name for name in sys.modules if "pipelin" in name]:
            del sys.modules[name]
        library = importlib.import_module("torch.distributed." + "pipe" + "lining")
        rank, world_size, count = dist.get_rank(), dist.get_world_size(), len(schedule) // 2
        stage = getattr(library, "Pipeline" + "Stage")(module, rank, world_size, torch.device("cpu"))
        kind = "1F1B" if schedule[:2] != [("forward", 0), ("forward", 1)] else "GPipe"
        runner = getattr(library, "Schedule" + kind)(stage, count, loss_function)
        losses, old, module.weight.grad = [], module.weight.grad, None
        batch, target = [torch.cat(inputs)] if inputs else [], torch.cat(targets) if targets else None
        runner.step(*batch, target=target, losses=losses)
        module.weight.grad += old
        return sum(loss.item() for loss in losses) / count if targets else None
