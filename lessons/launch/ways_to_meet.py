"""How processes find each other: four ways by hand, each with one all-reduce to prove it.

    python lessons/launch/ways_to_meet.py env

You will see two processes, spawned as in lesson 03, that count each other. The other ways are tcp, file and
store; README.md in this folder says when to use which. torchrun does the first way for you.
"""

import os
import socket
import sys
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

LIMIT = timedelta(seconds=60)


def by_environment(rank, world_size, port, folder):
    os.environ["MASTER_ADDR"] = "localhost"  # on several machines: the address of rank 0's machine
    os.environ["MASTER_PORT"] = str(port)
    os.environ["RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(world_size)
    dist.init_process_group("gloo", timeout=LIMIT)


def by_address(rank, world_size, port, folder):
    address = f"tcp://localhost:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size, timeout=LIMIT)


def by_file(rank, world_size, port, folder):
    file = f"file://{folder}/meet"  # on several machines: a file on a shared disk
    dist.init_process_group("gloo", init_method=file, rank=rank, world_size=world_size, timeout=LIMIT)


def by_store(rank, world_size, port, folder):
    store = dist.TCPStore("localhost", port, world_size, is_master=rank == 0, timeout=LIMIT)
    store.set(f"ready {rank}", "yes")  # it also holds anything else that the processes need to exchange
    store.wait([f"ready {other}" for other in range(world_size)])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=LIMIT)


WAYS = {"env": by_environment, "tcp": by_address, "file": by_file, "store": by_store}


def worker(rank, world_size, port, folder, way):
    WAYS[way](rank, world_size, port, folder)
    present = torch.ones(1)
    dist.all_reduce(present)
    if rank == 0:
        print(f"{way}: {int(present)} processes have met")
    dist.destroy_process_group()


def free_port():
    """A port that was free a moment ago: another program may take it before rank 0 does."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in WAYS:
        sys.exit(f"error: name one way to meet: {', '.join(WAYS)}")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (2, free_port(), folder, sys.argv[1]), nprocs=2)
