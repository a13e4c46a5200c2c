"""How fast an all-reduce is, by size: gloo's own, four rings with one more improvement each, and a server.

A memory copy is measured too, which none of them can beat: all processes copy at once, as they would send.
"""

import runpy
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import rank, together, world_size

SIZES = [2**power for power in (10, 16, 20, 22, 24, 26)]  # 1 KiB to 64 MiB
PIECE = 2**19  # numbers: 2 MiB
SECONDS = 0.1  # for each way and size

solution = runpy.run_path(str(Path(__file__).resolve().parents[2] / "solutions/03a_ring_all_reduce.py"))


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

    one = [dist.group.WORLD] * 2  # with two processes, both directions share one connection
    two = [dist.new_group(), dist.new_group()]
    large, small = torch.zeros(2, SIZES[-1] // 4 // world_size + 1), torch.zeros(2, PIECE)
    return {
        "gloo": dist.all_reduce,
        "ring": solution["ring_all_reduce"],
        "memory kept": lambda tensor: ring_in_pieces(tensor, one, large),
        "two connections": lambda tensor: ring_in_pieces(tensor, two, large),
        "in pieces": lambda tensor: ring_in_pieces(tensor, two, small),
        "server": server,
        "copy": lambda tensor: tensor.clone(),
    }


def work():
    """The median seconds of one all-reduce, and its CPU seconds, for each way and size."""
    ways, seconds, cpu = all_ways(), {}, {}
    for size in SIZES:
        tensor, numbers = torch.zeros(size // 4), torch.arange(size // 4) % 97.0 + rank
        for name, way in ways.items():  # the first use opens connections
            result, expected = numbers.clone(), numbers.clone()
            way(result)
            dist.all_reduce(expected)
            assert name == "copy" or torch.equal(result, expected), f"{name} is wrong at {size} bytes"
        times, used = ({name: [] for name in ways} for _ in range(2))
        start = time.perf_counter()
        while proceed(time.perf_counter() - start < SECONDS * len(ways)):
            for name, way in ways.items():  # they take turns: a noisy moment affects all alike
                dist.barrier()
                begin, cpu_begin = time.perf_counter(), time.process_time()
                way(tensor)
                times[name].append(time.perf_counter() - begin)
                used[name].append(time.process_time() - cpu_begin)
        for name in ways:
            seconds.setdefault(name, {})[size] = statistics.median(times[name])
            cpu.setdefault(name, {})[size] = statistics.median(used[name])
    dist.barrier()
    return {"seconds": seconds, "cpu_seconds": cpu}


def proceed(wish):
    """Rank 0 decides whether all ranks go on or all stop."""
    flag = torch.tensor([int(wish)])
    dist.broadcast(flag, 0)
    return bool(flag)


if __name__ == "__main__":
    together(work)
