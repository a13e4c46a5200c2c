"""What the dry run measures, measured by real processes; RANK.json.

The words: a JSON file of cases, each a mesh and the options of dry_run.measure.
"""

import contextlib
import gc
import json
import sys
from pathlib import Path

import torch.distributed as dist

from planner import dry_run

dist.init_process_group("gloo")
found = []
for mesh, options in json.loads(Path(sys.argv[1]).read_text()):
    made = dist.init_device_mesh("cpu", tuple(mesh.values()), mesh_dim_names=tuple(mesh))
    found.append({"mesh": mesh} | dry_run.measure(made, contextlib.nullcontext(), **options))
Path(f"{dist.get_rank()}.json").write_text(json.dumps(found))
gc.collect()
dist.destroy_process_group()
