"""One rank: compares, counts and times three ways to all-reduce."""

import json
import os
import zlib
from time import perf_counter

import torch
import torch.distributed as dist
import wires
from kernel import bytes_from_each_rank, find_owners
from ring import ring_all_reduce
from server import server_all_reduce


def time_runs(all_reduce, gradient):
    seconds = []
    for _ in range(11):
        tensor = gradient.clone()
        dist.barrier()  # all ranks begin together
        start = perf_counter()
        all_reduce(tensor)
        dist.barrier()  # until the slowest rank is done
        seconds.append(perf_counter() - start)
    return seconds


wires.meet()
owner, report = find_owners(), {}
ways = {"server": server_all_reduce, "ring": ring_all_reduce, "dist.all_reduce": dist.all_reduce}
for length in (1, 3, 10, 1001, 1_200_000):  # some chunks are empty, or longer than others
    gradient = torch.randn(length, generator=torch.Generator().manual_seed(wires.rank))
    expected = gradient.clone()
    dist.all_reduce(expected)
    for name, all_reduce in ways.items():
        wires.sent[:], wires.received[:] = [0] * wires.world_size, [0] * wires.world_size
        result = gradient.clone()
        dist.barrier()  # no earlier bytes are still on the way
        before = owner and bytes_from_each_rank(owner)
        all_reduce(result)
        after = owner and bytes_from_each_rank(owner)
        torch.testing.assert_close(result, expected)
        report[name] = {
            "sent": list(wires.sent),
            "received": list(wires.received),
            "kernel": owner and [late - early for early, late in zip(before, after, strict=True)],
            "bytes": f"{zlib.crc32(result.numpy().tobytes()):08x}",
            "unlike": (result != expected).sum().item(),
            "seconds": time_runs(all_reduce, gradient),
        }
dist.destroy_process_group()
if wires.rank == 0:
    print("server and ring, all lengths: the sum is that of dist.all_reduce")
with open(os.environ["RESULT"], "w") as file:
    json.dump(report, file)
