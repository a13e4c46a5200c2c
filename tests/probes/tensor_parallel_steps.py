"""Two steps of lesson 11: what its processes hold then, and what a step sends, in held.json."""

import importlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

import workload
from parts.transformer import ImageTransformer

lesson = importlib.import_module("11_tensor_parallel")
sent = []


class Sent(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        if any(kind is DTensor for kind in types):
            return NotImplemented
        kind = operator.name().split("::")[1]
        if kind.startswith(("all_", "reduce_")):
            sent.append((kind, arguments[0].nbytes))
        return operator(*arguments, **(options or {}))


dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
workload.set_seed(0)
digits = workload.draw_digits(24, seed=1)
mesh = init_device_mesh("cpu", (world_size,))
plan = lesson.make_plan("--sequence-parallel" in sys.argv)
model = parallelize_module(ImageTransformer((1, 28, 28)), mesh, plan)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(2):
    optimizer.zero_grad()
    with Sent():
        cross_entropy(model(digits.images), digits.labels).backward()
    optimizer.step()
held = {}
for name, value in model.named_parameters():
    local = (value.to_local() if isinstance(value, DTensor) else value).detach()
    kind = str(value.placements[0]) if isinstance(value, DTensor) else "plain"
    held[name] = kind, list(local.shape), local.numpy().tobytes().hex()
everyone = [None] * world_size
dist.all_gather_object(everyone, held)
if rank == 0:
    Path("held.json").write_text(json.dumps([everyone, sent]))
dist.destroy_process_group()
