"""Of a mesh of 2 x 2, rank 3 does not come. How long the others wait in each dimension; in files of its name.

The word: "collective" or "message".
"""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import workload

dist.init_process_group("gloo", timeout=timedelta(seconds=5))
mesh = workload.make_mesh(torch.device("cpu"), data=2, tensor=2)
dimension = {1: "data", 2: "tensor"}.get(dist.get_rank())
start = time.monotonic()
if dimension:
    try:
        if sys.argv[1] == "collective":
            dist.all_reduce(torch.zeros(1), group=mesh.get_group(dimension))
        else:
            dist.irecv(torch.zeros(1), group=mesh.get_group(dimension), group_src=1).wait()
        said = "nothing"
    except RuntimeError as error:
        said = str(error)
    Path(dimension).write_text(json.dumps([said, time.monotonic() - start]))
else:  # rank 3 stays alive: if it ended, the others would fail at once and wait for nothing
    while not (Path("data").exists() and Path("tensor").exists()) and time.monotonic() - start < 60:
        time.sleep(0.1)
dist.destroy_process_group()
