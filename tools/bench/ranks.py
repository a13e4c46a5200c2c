"""Form a process group from RANK, WORLD_SIZE and the file STORE, for the scripts of the bench.

GLOO_THREADS sets how many threads of gloo work on queued operations (two).
"""

import gc
import json
import os
from datetime import timedelta

import torch.distributed as dist
import torch.distributed.nn  # noqa: F401, before there is a group: its functions would keep it and its threads

rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def gloo_with_threads(store, rank, world_size, timeout):
    """init_process_group passes no options to gloo, so this registers a backend with its own."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_default_device()]
    options._threads, options._timeout = int(os.environ["GLOO_THREADS"]), timeout
    return dist.ProcessGroupGloo(store, rank, world_size, options)


def together(work):
    """Meet, do the work, and print what it returns on rank 0, as a line of JSON."""
    store, limit = f"file://{os.environ['STORE']}", timedelta(seconds=60)
    backend = "gloo"
    if "GLOO_THREADS" in os.environ:
        backend = "gloo_with_threads"
        dist.Backend.register_backend(backend, gloo_with_threads, devices=["cpu"])
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world_size, timeout=limit)
    found = work()
    if rank == 0:
        print(json.dumps(found), flush=True)
    gc.collect()  # nor may a DDP object: a thread of it that is left may abort the process at exit
    dist.destroy_process_group()
