"""What communication adds to a step on two processes: overlap.py MODEL IMAGES ROUNDS

    wide      a model with 8 million parameters: how much communication DDP hides behind backward
    lesson    lesson 04's model: what DDP adds to the step of a process that communicates with nobody

Kinds of steps take turns in the same two processes: see `steps`.
"""

import itertools
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from process_group import rank, together, world_size
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import workload

BUCKET = 4  # MiB


def wide():
    widths = [784, *[1152] * 6, 256]
    layers = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.GELU()]
    return nn.Sequential(*layers)


def lesson():
    return workload.ConvNet((1, 28, 28))


def work(make_model, images, rounds):
    def wrapped(**options):
        torch.manual_seed(0)
        model = DistributedDataParallel(make_model(), bucket_cap_mb=BUCKET, **options)
        return model, torch.optim.SGD(model.parameters(), lr=1e-4)

    ours = wrapped()
    viewed = wrapped(gradient_as_bucket_view=True)
    batch = torch.rand(images, 1, 28, 28, generator=torch.Generator().manual_seed(rank))
    count = sum(parameter.numel() for parameter in ours[0].parameters())
    pieces = torch.zeros(count).split(BUCKET * 2**18)  # numbers of 4 bytes, in buckets as large as DDP's
    number = torch.zeros(1)

    def backward(model, optimizer):
        optimizer.zero_grad()
        model(batch).square().mean().backward()

    def send():
        for flat in pieces:
            dist.all_reduce(flat)

    def step_of_ddp(model, optimizer):
        backward(model, optimizer)
        optimizer.step()

    def step_that_sends_after_backward(after_backward):
        model, optimizer = ours
        with model.no_sync():
            backward(model, optimizer)
        after_backward()
        optimizer.step()

    def divide_and_send():
        for flat in pieces:
            flat.div_(world_size)  # as DDP does
        send()

    steps = {
        "alone": lambda: step_that_sends_after_backward(lambda: None),
        # So that each process waits for the other.
        "wait": lambda: step_that_sends_after_backward(lambda: dist.all_reduce(number)),
        "after": lambda: step_that_sends_after_backward(divide_and_send),
        "overlap": lambda: step_of_ddp(*ours),  # DDP sends during backward
        "views": lambda: step_of_ddp(*viewed),  # the same with gradient_as_bucket_view
        "sent": send,  # nothing is computed
    }
    for _ in range(2):  # DDP arranges its buckets anew after the first step
        for step in steps.values():
            step()
    seconds = {way: [] for way in steps}
    cpu = dict.fromkeys(steps, 0.0)
    for _ in range(rounds):
        for way, step in steps.items():
            dist.barrier()
            begin = time.perf_counter()
            used = time.process_time()
            step()
            seconds[way].append(time.perf_counter() - begin)
            cpu[way] += (time.process_time() - used) / rounds
    middle = {way: statistics.median(times) for way, times in seconds.items()}
    return {"bytes": 4 * count, "seconds": middle, "cpu_seconds": cpu}


if __name__ == "__main__":
    if os.environ.get("BOUND"):
        if not hasattr(os, "sched_setaffinity"):
            sys.exit("error: this section binds each process to a core, which needs Linux")
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    make_model = {"wide": wide, "lesson": lesson}[sys.argv[1]]
    together(lambda: work(make_model, *map(int, sys.argv[2:])))
