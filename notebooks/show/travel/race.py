"""One rank: gloo's all-reduce beside a ring that gets better by one thing at a time; they take turns."""

import json
import os
import time

import torch
import torch.distributed as dist
import wires
from pieces import ring_in_pieces

import workload  # noqa: F401 - at exit it ends the threads of the group

SIZES = [2**power for power in (16, 20, 22, 24, 26)]  # bytes: 64 KiB to 64 MiB
PIECE = 2**19  # numbers: 2 MiB
SECONDS = float(os.environ["SECONDS_EACH"])  # for a way and a size

torch.set_num_threads(1)
wires.meet()
one = [dist.group.WORLD] * 2  # what both send takes the same connection, if there are two processes
two = [dist.new_group(), dist.new_group()]
chunk = SIZES[-1] // 4 // wires.world_size + 1
large, small = torch.zeros(2, chunk), torch.zeros(2, PIECE)
ways = {
    "gloo": dist.all_reduce,
    "ring": lambda tensor: ring_in_pieces(tensor, one, torch.empty(2, tensor.numel())),
    "memory kept": lambda tensor: ring_in_pieces(tensor, one, large),
    "two connections": lambda tensor: ring_in_pieces(tensor, two, large),
    "in pieces": lambda tensor: ring_in_pieces(tensor, two, small),
}


def proceed(wish):
    """What rank 0 wishes: all must go on, or all stop."""
    flag = torch.tensor([int(wish)])
    dist.broadcast(flag, 0)
    return bool(flag)


report = {way: {} for way in ways}
for size in SIZES:
    tensor, numbers = torch.zeros(size // 4), torch.arange(size // 4) % 97.0 + wires.rank
    for all_reduce in ways.values():  # connections are made when they are first used
        result, expected = numbers.clone(), numbers.clone()
        all_reduce(result)
        dist.all_reduce(expected)
        assert torch.equal(result, expected)
    found = {way: {"seconds": [], "cpu_seconds": []} for way in ways}
    begin = time.perf_counter()
    while proceed(time.perf_counter() - begin < SECONDS * len(ways)):
        for way, all_reduce in ways.items():
            dist.barrier()
            start, used = time.perf_counter(), time.process_time()
            all_reduce(tensor)
            found[way]["seconds"].append(time.perf_counter() - start)
            found[way]["cpu_seconds"].append(time.process_time() - used)
    for way in ways:
        report[way][size] = found[way]
dist.barrier()
for groups in (one, two):
    groups.clear()  # a thread of a group that is still there may abort the process as it ends
dist.destroy_process_group()
with open(os.environ["RESULT"], "w") as file:
    json.dump(report, file)
