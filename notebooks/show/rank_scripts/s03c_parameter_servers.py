"""Lesson 01's job for parameter servers and workers: which images are in a batch, and who does what.

The environment names the jobs. Each is one run of main(serve, work).
"""

import json
import math
import os

import torch
import torch.distributed as dist
from group import finish, rank
from sockets import count_bytes
from torch.nn.utils import parameters_to_vector

import workload

digits = workload.draw_digits(3000, seed=1)


def run(serve, work, servers, workers, needed, delay=0, epochs=3, steps=25):
    """Ranks 0 to servers - 1 are servers, the next ones workers; the others have nothing to do."""
    size = 120 // workers
    of_epoch = steps * workers

    def learning_rate(push):
        return 0.02 * (1 + math.cos(math.pi * (push // of_epoch) / epochs))

    def images_of(batch):
        epoch, number = divmod(batch, of_epoch)
        order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(epoch + 1))
        return digits[order[size * number : size * (number + 1)]]

    torch.manual_seed(0)
    model = workload.ConvNet((1, 28, 28))
    ranks = range(servers)
    of_workers = range(servers, servers + workers)
    ages = []
    log = []
    dist.barrier()
    before = count_bytes()
    if rank in ranks:
        shard = parameters_to_vector(model.parameters()).detach().tensor_split(servers)[rank].clone()
        ages = serve(shard, of_workers, epochs * of_epoch, needed, learning_rate)
    elif rank in of_workers:
        slow = delay if rank == of_workers[-1] else 0
        log = work(model, ranks, epochs * of_epoch, images_of, slow)
    dist.barrier()
    moved = None
    if before:
        sent, received = count_bytes()
        moved = [sent - before[0], received - before[1]]
    return {"ages": ages, "log": log, "moved": moved}


def main(serve, work):
    results = {}
    for name, job in json.loads(os.environ["JOBS"]).items():
        results[name] = run(serve, work, **job)
    finish(results)
