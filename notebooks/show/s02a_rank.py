"""One of the processes of show.s02a_collectives: it runs the lines that it gets, and reports what it holds.

It imports nothing from show, so it starts as fast as torch does.
"""

import json
import os
import re
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from sockets import count_bytes

if not hasattr(dist, "all_gather_single"):  # older releases have other names
    dist.all_gather_single = dist.all_gather_into_tensor
    dist.reduce_scatter_single = dist.reduce_scatter_tensor


def make_tensors(rank, world_size, size):
    """The names that a line can use. Chunk c of rank r is (c + 1) * 10**r, so a sum shows its chunks."""
    full = []
    for number in range(world_size):
        full.append(torch.full((size,), float((number + 1) * 10**rank)))
    tensor = torch.cat(full)
    empty_tensor = torch.zeros(world_size * size)
    return {
        "rank": rank,
        "dist": dist,
        "tensor": tensor,
        "chunks": list(tensor.split(size)),
        "chunk": full[rank],
        "empty_tensor": empty_tensor,
        "empty_chunks": list(empty_tensor.split(size)),
        "empty_chunk": torch.zeros(size),
    }


def read_numbers(expression, names, size):
    """The first number of each chunk, or None if this rank has nothing to show."""
    value = eval(expression, names)
    if value is None:
        return None
    return [int(number) for number in value[::size]]


def answer(request, rank, world_size):
    size = request["size"]
    names = make_tensors(rank, world_size, size)
    before = read_numbers(request["before"], names, size)
    dist.barrier()  # all ranks begin together, and no earlier bytes are still on the way
    counted = count_bytes()
    if request["late"] == rank:
        time.sleep(request["seconds"])
    start = time.perf_counter()
    exec(request["line"], names)
    waited = time.perf_counter() - start
    dist.barrier()
    moved = None
    if counted:
        sent, received = count_bytes()
        moved = [sent - counted[0], received - counted[1]]
    after = read_numbers(request["after"], names, size)
    return {"before": before, "after": after, "waited": waited, "moved": moved}


def main():
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    print("ready", flush=True)  # importing torch may take longer than the limit below
    sys.stdin.readline()
    limit = timedelta(seconds=float(os.environ["LIMIT"]))
    store = f"file://{os.environ['STORE']}"
    dist.init_process_group("gloo", store, limit, rank=rank, world_size=world_size)
    for line in sys.stdin:
        try:
            report = answer(json.loads(line), rank, world_size)
        except Exception as error:
            line = (str(error).splitlines() or [""])[0]
            said = re.sub(r"^\[\S+:\d+\] ", "", line).split(". ")[0]  # without gloo's source line and advice
            report = {"error": f"{type(error).__name__}: {said}"}
        print(json.dumps(report), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
