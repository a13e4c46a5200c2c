"""How the processes meet, and a send and a receive that count bytes."""

import os
from datetime import timedelta

import torch.distributed as dist

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
sent, received = [0] * world_size, [0] * world_size  # bytes, to and from each rank


def meet():
    file, limit = f"file://{os.environ['STORE']}", timedelta(seconds=30)
    dist.init_process_group("gloo", init_method=file, rank=rank, world_size=world_size, timeout=limit)


def isend(tensor, target):
    sent[target] += tensor.nbytes
    return dist.isend(tensor, target)


def recv(tensor, source):
    dist.recv(tensor, source)
    received[source] += tensor.nbytes
