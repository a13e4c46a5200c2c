"""A lesson on local rank 7 of some machine: the device it asks for, how long its groups wait; RANK.json.

The words: the lesson and its options. The machine has no GPU, so that any number of one will do. Its
optimizer updates parameters as it would on a GPU: all together (foreach), unless it was told otherwise.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
import torch.optim.optimizer as optimizer

import workload

asked, pick_device, destroy_process_group = [], workload.pick_device, dist.destroy_process_group
foreach_devices = optimizer._get_foreach_kernels_supported_devices


def pick(number=0):
    asked.append(number)
    return pick_device(number)


def write_and_destroy():
    backends = [group._get_backend(torch.device("cpu")) for group in c10d._world.pg_map]
    seconds = [backend.options._timeout.total_seconds() for backend in backends]
    Path(f"{os.environ['RANK']}.json").write_text(json.dumps({"asked": asked, "seconds": seconds}))
    destroy_process_group()


if __name__ == "__main__":
    workload.pick_device, dist.destroy_process_group = pick, write_and_destroy
    optimizer._get_foreach_kernels_supported_devices = lambda: [*foreach_devices(), "cpu"]
    assert optimizer._default_to_fused_or_foreach([torch.ones(1)], False) == (False, True)
    os.environ["LOCAL_RANK"] = "7"
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
