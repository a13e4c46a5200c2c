"""Runs the student's file of exercise 04 in a rank."""

import itertools
import random

import numpy
import torch


def numbers(found, most):
    """What an iterable gives, but not more than `most` of it: it may be endless."""
    return [one.item() if hasattr(one, "item") else one for one in itertools.islice(found, most)]


def ranks_of(case, tools):
    """There may be more ranks than processes: then each process stands for several."""
    return range(tools.rank, case["world_size"], tools.world_size)


def draw():
    return [torch.rand(()).item(), random.random(), float(numpy.random.random())]


def passes(student, inputs, tools):
    """For each case and rank: a sampler, and its numbers in each epoch. None means: no call of set_epoch.
    With `breaks`, there is a pass before, which is broken off after so many numbers."""
    found = []
    for case in inputs["cases"]:
        for rank in ranks_of(case, tools):
            noise = inputs["noise"] + len(found)
            torch.manual_seed(noise)
            random.seed(noise)
            numpy.random.seed(noise)
            sampler = student.ShareSampler(
                case["size"], rank, case["world_size"], seed=case["seed"], drop_last=case["drop_last"]
            )
            length, came, most = len(sampler), [], 2 * case["size"] + 50
            begun = iter(sampler) if case["breaks"] else ()  # stays, as in a loop that is in a function
            broken, between = numbers(begun, case["breaks"]), draw()
            for epoch in case["epochs"]:
                if epoch is not None:
                    sampler.set_epoch(epoch)
                came.append(numbers(sampler, most))
            found.append({"length": length, "passes": came, "drawn": [between, draw()], "broken": broken})
    return found


def evaluation(student, inputs, tools):
    """For each case and rank: the numbers of the images to evaluate."""
    found = []
    for case in inputs["cases"]:
        for rank in ranks_of(case, tools):
            shard = student.evaluation_shard(case["size"], rank, case["world_size"])
            found.append(numbers(shard, 2 * case["size"] + 50))
    return found


def accuracy(student, inputs, tools):
    """exact_accuracy of answers that are given, in one evaluation after the other."""
    rights = [torch.from_numpy(right).repeat(inputs["times"]) for right in inputs["rights"]]
    return {"accuracies": [student.exact_accuracy(right) for right in rights]}
