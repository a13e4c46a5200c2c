"""Of two stages of lesson 17, the first does not send. How long the other waits; in the file done."""

import json
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from parts import one_mesh

dist.init_process_group("gloo", timeout=timedelta(minutes=1))
rank, done = dist.get_rank(), Path("done")
sizes = {"data": 1, "pipeline": 2, "context": 1, "tensor": 1}
mesh = one_mesh.make_mesh(sizes, torch.device("cpu"), timedelta(seconds=5))
start = time.monotonic()
if rank == 1:
    try:
        dist.irecv(torch.zeros(1), group=mesh.get_group("pipeline"), group_src=0).wait()
        said = "nothing"
    except RuntimeError as error:
        said = str(error)
    done.write_text(json.dumps([said, time.monotonic() - start]))
else:
    while not done.exists() and time.monotonic() - start < 30:
        time.sleep(0.1)
dist.destroy_process_group()
