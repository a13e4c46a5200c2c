"""How much communication DDP hides behind backward, on a model with 8 million parameters.

Four kinds of steps take turns: DDP's; one that sends the same buckets after backward; one that sends nothing;
and one that computes nothing.
"""

import itertools
import statistics
import sys
import time

import torch
import torch.distributed as dist
from ranks import rank, together, world_size
from torch import nn
from torch.nn.parallel import DistributedDataParallel

IMAGES, ROUNDS = map(int, sys.argv[1:])
BUCKET = 4  # MiB


def work():
    torch.manual_seed(0)
    widths = [784, *[1152] * 6, 256]
    layers = [layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=BUCKET)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    images = torch.rand(IMAGES, 784, generator=torch.Generator().manual_seed(rank))

    def backward():
        optimizer.zero_grad()
        model(images).square().mean().backward()

    def send():
        """The bytes of all gradients, in buckets as large as DDP's."""
        for flat in pieces:
            dist.all_reduce(flat)

    def as_ddp_does():
        backward()
        optimizer.step()

    def sent_when_backward_is_over():
        with model.no_sync():
            backward()
        for flat in pieces:
            flat.div_(world_size)  # as DDP does
        send()
        optimizer.step()

    def nothing_sent():
        with model.no_sync():
            backward()
        optimizer.step()

    kinds = {"overlap": as_ddp_does, "after": sent_when_backward_is_over, "alone": nothing_sent, "sent": send}
    count = sum(parameter.numel() for parameter in model.parameters())
    pieces = torch.zeros(count).split(BUCKET * 2**18)  # numbers of 4 bytes
    for kind in (as_ddp_does, as_ddp_does, *kinds.values()):  # DDP rebuilds its buckets after the first step
        kind()
    seconds, cpu = {name: [] for name in kinds}, dict.fromkeys(kinds, 0.0)
    for _ in range(ROUNDS):
        for name, kind in kinds.items():
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            kind()
            seconds[name].append(time.perf_counter() - begin)
            cpu[name] += (time.process_time() - used) / ROUNDS
    middle = {name: statistics.median(times) for name, times in seconds.items()}
    return {"parameters": count, "bytes": 4 * count, "seconds": middle, "cpu_seconds": cpu}


together(work)
