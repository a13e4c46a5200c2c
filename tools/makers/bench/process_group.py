"""Form a process group from RANK, WORLD_SIZE and the file STORE, for the scripts of the bench."""

import gc
import json
import os
from datetime import timedelta

import torch.distributed as dist
import torch.distributed.nn  # noqa: F401, before there is a group: its functions would keep it and its threads

rank = int(os.environ.get("RANK", 0))
world_size = int(os.environ.get("WORLD_SIZE", 1))


def together(work):
    """Meet, do the work, and print what it returns on rank 0, as a line of JSON."""
    store = f"file://{os.environ['STORE']}"
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size, timeout=limit)
    found = work()
    if rank == 0:
        print(json.dumps(found), flush=True)
    gc.collect()  # nor may a DDP object: a thread of it that is left may abort the process at exit
    dist.destroy_process_group()
