"""Of a mesh of 2 x 2, rank 3 does not come. How long the others wait in each dimension; in files of its name.

The word: what they wait in, "collective" or lesson 15's "ring".
"""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import workload
from parts import ring_attention


def wait_in(what, group):
    if what == "collective":
        dist.all_reduce(torch.zeros(1), group=group)
    else:
        ring_attention.ring_attention(*torch.zeros(3, 1, 1, 4, 2), group, "zigzag")


dist.init_process_group("gloo", timeout=timedelta(seconds=5))
mesh = workload.make_mesh(torch.device("cpu"), first=2, second=2)
dimension = {1: "first", 2: "second"}.get(dist.get_rank())
start = time.monotonic()
if dimension:
    try:
        wait_in(sys.argv[1], mesh.get_group(dimension))
        said = "nothing"
    except RuntimeError as error:
        said = str(error)
    Path(dimension).write_text(json.dumps([said, time.monotonic() - start]))
else:  # rank 3 stays alive: if it ended, the others would fail at once and wait for nothing
    while not (Path("first").exists() and Path("second").exists()) and time.monotonic() - start < 60:
        time.sleep(0.1)
dist.destroy_process_group()
