"""Train scripts one after the other in one process group. JOBS has a file and its options for each."""

import contextlib
import importlib.util
import io
import json
import os
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

import workload

DEFAULTS = {"precision": "bf16", "accumulate": 2, "clip_norm": 5.0, "first_scale": 2.0**16}


def train(rank, world_size, device, folder, path, options):
    """What the script printed."""
    folder.mkdir(exist_ok=True)
    arguments = workload.parser("07_mixed_precision.py", "").parse_args([])
    vars(arguments).update(DEFAULTS | options | {"world_size": world_size, "out": folder})
    spec = importlib.util.spec_from_file_location("lesson", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        module.train(rank, world_size, device, arguments)
    return printed.getvalue().splitlines()


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = workload.pick_device(rank)
    backend = dist.get_default_backend_for_device(device)
    store = f"file://{os.environ['STORE']}"
    limit = timedelta(seconds=60)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=world_size, timeout=limit)

    out = Path(os.environ["OUT"])
    printed = {}
    for name, (path, options) in json.loads(os.environ["JOBS"]).items():
        printed[name] = train(rank, world_size, device, out / name, path, options)
    Path(os.environ["RESULT"]).write_text(json.dumps(printed))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
