"""Bytes per second of an all-reduce by size: gloo's own, the ring of exercise 03a, and a server; and of a
memory copy, which none of them can beat. All processes copy at the same time, as they would send.
"""

import importlib.util
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ranks import rank, together, world_size

SIZES = [2**power for power in range(10, 27, 2)]  # 1 KB to 64 MB
SECONDS = 0.1  # for each variant and size

path = Path(__file__).resolve().parents[2] / "solutions" / "03a_ring_all_reduce.py"
spec = importlib.util.spec_from_file_location("ring", path)
ring = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ring)


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


def copy(tensor):
    tensor.clone()


def silent_ring(tensor):
    """What the ring does besides sending: it allocates receive buffers and adds."""
    for chunk in ring.chunks_of(tensor, world_size)[1:]:
        chunk += torch.zeros_like(chunk)


WAYS = {
    "gloo": dist.all_reduce,
    "ring": ring.ring_all_reduce,
    "server": server,
    "copy": copy,
    "ring without sending": silent_ring,
}


def work():
    """The median seconds of one all-reduce, for each variant and size."""
    tensors = {size: torch.zeros(size // 4) for size in SIZES}
    for way in WAYS.values():  # connections are made when they are first used
        for tensor in tensors.values():
            way(tensor)
    seconds = {name: {size: [] for size in SIZES} for name in WAYS}
    for size, tensor in tensors.items():
        start = time.perf_counter()
        while proceed(time.perf_counter() - start < SECONDS * len(WAYS)):
            for name, way in WAYS.items():  # they take turns: a noisy moment affects all alike
                dist.barrier()
                begin = time.perf_counter()
                way(tensor)
                seconds[name][size].append(time.perf_counter() - begin)
    return {
        name: {size: statistics.median(times) for size, times in sizes.items()}
        for name, sizes in seconds.items()
    }


def proceed(wish):
    """Rank 0 decides whether all ranks go on or all stop."""
    flag = torch.tensor([int(wish)])
    dist.broadcast(flag, 0)
    return bool(flag)


if __name__ == "__main__":
    together(work)
