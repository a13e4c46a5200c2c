"""Lesson 09: how many bytes of weights a process has at most while it builds the model; RANK.held.json."""

import gc
import json
import os
from pathlib import Path

import torch
from torch.distributed import fsdp
from torch.distributed.tensor import DTensor

from meshes import become

shard, seen = fsdp.fully_shard, []


def look():
    """Every parameter that has memory. FSDP keeps its own as parameters too."""
    held = [value for value in gc.get_objects() if isinstance(value, torch.nn.Parameter)]
    held = [value.to_local() if isinstance(value, DTensor) else value for value in held]
    storages = [value.untyped_storage() for value in held if value.device.type != "meta"]
    seen.append(sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()))


def watched(module, **options):
    look()
    shard(module, **options)
    gc.collect()
    look()
    Path(f"{os.environ['RANK']}.held.json").write_text(json.dumps(seen))
    return module


if __name__ == "__main__":
    fsdp.fully_shard = watched
    become("09_fsdp")
