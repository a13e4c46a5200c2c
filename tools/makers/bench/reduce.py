"""How fast an all-reduce is, by size: gloo's own, four rings with one more improvement each, and a server.

A memory copy is measured too, which none of them can beat: all processes copy at once, as they would send.
"""

import runpy
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from process_group import rank, together, world_size

SIZES = [2**power for power in (10, 16, 20, 22, 24, 26)]  # 1 KiB to 64 MiB
PIECE = 2**19  # numbers: 2 MiB
SECONDS = 0.1  # for each way and size

solution = runpy.run_path(str(Path(__file__).resolve().parents[3] / "solutions/03a_ring_all_reduce.py"))


def server(tensor):
    """All ranks send to rank 0, which adds and sends the sum back."""
    if rank:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    incoming = torch.empty_like(tensor)
    for other in range(1, world_size):
        dist.recv(incoming, other)
        tensor += incoming
    for other in range(1, world_size):
        dist.send(tensor, other)


def all_ways():
    from pieces import ring_in_pieces  # notebook 03a's, which rows.PATH_OF_RINGS leads to

    one = [dist.group.WORLD, dist.group.WORLD]  # with two processes, both directions share one connection
    two = [dist.new_group(), dist.new_group()]
    large = torch.zeros(2, SIZES[-1] // 4 // world_size + 1)
    small = torch.zeros(2, PIECE)
    return {
        "gloo": dist.all_reduce,
        "ring": solution["ring_all_reduce"],
        "memory kept": lambda tensor: ring_in_pieces(tensor, one, large),
        "two connections": lambda tensor: ring_in_pieces(tensor, two, large),
        "in pieces": lambda tensor: ring_in_pieces(tensor, two, small),
        "server": server,
        "copy": lambda tensor: tensor.clone(),
    }


def check(ways, size):
    """Each way once: the first use opens connections."""
    numbers = torch.arange(size // 4) % 97.0 + rank
    expected = numbers.clone()
    dist.all_reduce(expected)
    for name, way in ways.items():
        result = numbers.clone()
        way(result)
        assert name == "copy" or torch.equal(result, expected), f"{name} is wrong at {size} bytes"


def work():
    """The median seconds of one all-reduce, for each way and size."""
    ways = all_ways()
    found = {name: {} for name in ways}
    for size in SIZES:
        check(ways, size)
        tensor = torch.zeros(size // 4)
        times = {name: [] for name in ways}
        start = time.perf_counter()
        while proceed(time.perf_counter() - start < SECONDS * len(ways)):
            for name, way in ways.items():  # they take turns: a noisy moment affects all alike
                dist.barrier()
                begin = time.perf_counter()
                way(tensor)
                times[name].append(time.perf_counter() - begin)
        for name in ways:
            found[name][size] = statistics.median(times[name])
    dist.barrier()
    return found


def proceed(wish):
    """Rank 0 decides whether all ranks go on or all stop."""
    flag = torch.tensor([int(wish)])
    dist.broadcast(flag, 0)
    return bool(flag)


if __name__ == "__main__":
    together(work)
