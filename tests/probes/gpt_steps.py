"""What lesson 13 sends when it trains for one, two and three steps on 2 x 2; RANK.json."""

import gc
import importlib
import json
from pathlib import Path

import torch
import torch.distributed as dist

import workload
from parts import limericks
from planner import dry_run

gpt = importlib.import_module("13_gpt")


class Named(dict):
    """What is sent before and after training has kinds that no step has: each by its own name."""

    def __missing__(self, name):
        return name


dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
gpt.Snapshots.save = lambda *_: None  # it talks in a group that is not of the mesh
found = []
for steps in (1, 2, 3):
    parser = workload.parser("13_gpt.py", "")
    limericks.options(parser)
    parser.set_defaults(epochs=1, batch_size=8, train_size=8 * steps, test_size=2, characters=12)
    arguments = parser.parse_args(["--out", str(steps)])
    arguments.out.mkdir(exist_ok=True)
    recorder = dry_run.Recorder(mesh, kinds=Named(dry_run.KINDS))
    with recorder:
        gpt.train(dist.get_rank(), mesh, torch.device("cpu"), arguments)
    found.append([[*collective, times] for collective, times in recorder.counts.items()])
    dist.barrier()
Path(f"{dist.get_rank()}.json").write_text(json.dumps(found))
gc.collect()
dist.destroy_process_group()
