"""A lesson on local rank 7 of some machine: the device it asks for, how long its groups wait; RANK.json.

The words: the lesson and its options. The machine has no GPU, so that any number of one will do.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

import workload

asked, pick_device, destroy_process_group = [], workload.pick_device, dist.destroy_process_group


def pick(number=0):
    assert not dist.is_initialized()
    asked.append(number)
    return pick_device(number)


def write_and_destroy():
    backends = [group._get_backend(torch.device("cpu")) for group in c10d._world.pg_map]
    seconds = [backend.options._timeout.total_seconds() for backend in backends]
    Path(f"{os.environ['RANK']}.json").write_text(json.dumps({"asked": asked, "seconds": seconds}))
    destroy_process_group()


if __name__ == "__main__":
    workload.pick_device, dist.destroy_process_group = pick, write_and_destroy
    os.environ["LOCAL_RANK"] = "7"
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
