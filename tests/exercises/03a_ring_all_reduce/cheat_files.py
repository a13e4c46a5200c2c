"""Exercise 03a, where the ranks meet in files of their common folder: no byte goes through the network.
Earns at most: 2 points
"""

import os
import time

import torch
import torch.distributed as dist

calls = [0]


def chunks_of(flat, world_size):
    return list(flat.tensor_split(world_size))


def exchange(tensor):
    calls[0] += 1
    name = f"part-{calls[0]}-"
    torch.save(tensor, f"{name}{dist.get_rank()}.new")
    os.rename(f"{name}{dist.get_rank()}.new", f"{name}{dist.get_rank()}")
    found = []
    for rank in range(dist.get_world_size()):
        while not os.path.exists(f"{name}{rank}"):
            time.sleep(0.001)
        found.append(torch.load(f"{name}{rank}"))
    return found


def pass_on(outgoing, incoming):
    incoming.copy_(exchange(outgoing)[dist.get_rank() - 1])


def sum_chunks(chunks):
    for chunk in chunks:
        chunk.copy_(sum(exchange(chunk)))


def ring_all_reduce(tensor):
    tensor.copy_(sum(exchange(tensor)))
