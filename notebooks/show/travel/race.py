"""One rank: gloo's all-reduce and four versions of a ring, each with one more improvement, take turns."""

import json
import os
import time

import torch
import torch.distributed as dist
import wires
from pieces import ring_in_pieces

import workload  # noqa: F401 - it ends the threads of the group at exit

SIZES = [2**power for power in (16, 20, 22, 24, 26)]  # bytes: 64 KiB to 64 MiB
PIECE = 2**19  # numbers: 2 MiB
SECONDS = float(os.environ["SECONDS_EACH"])  # per way and size

torch.set_num_threads(1)
wires.meet()
one = [dist.group.WORLD] * 2  # with two processes, both directions share one connection
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
    """Rank 0 decides for all ranks whether to continue."""
    flag = torch.tensor([int(wish)])
    dist.broadcast(flag, 0)
    return bool(flag)


report = {way: {} for way in ways}
for size in SIZES:
    tensor, numbers = torch.zeros(size // 4), torch.arange(size // 4) % 97.0 + wires.rank
    for all_reduce in ways.values():  # the first use opens connections
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
    groups.clear()  # a group whose threads still run may abort the process at exit
dist.destroy_process_group()
with open(os.environ["RESULT"], "w") as file:
    json.dump(report, file)
