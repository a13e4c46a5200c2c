"""Lesson 12's model on a mesh: what each process holds, its gradients, what a step sends; RANK.json.

The words: how many processes there are in "tensor".
"""

import gc
import importlib
import json
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

import workload
from parts.transformer import ImageTransformer
from planner import dry_run

lesson = importlib.import_module("12_mesh")
dist.init_process_group("gloo")
rank, world_size, tensor_size = dist.get_rank(), dist.get_world_size(), int(sys.argv[1])
shape = (world_size // tensor_size, tensor_size)
mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
digits = workload.draw_digits(24, seed=1)

workload.set_seed(0)
whole = ImageTransformer((1, 28, 28))
cross_entropy(whole(digits.images), digits.labels).backward()
workload.set_seed(0)
model = ImageTransformer((1, 28, 28))
lesson.shard(model, mesh)
held, placements = {}, {}
for name, weight in model.named_parameters():
    held[name] = list(weight.to_local().shape)
    names = weight.device_mesh.mesh_dim_names
    kinds = [type(placement).__name__ for placement in weight.placements]
    placements[name] = dict(zip(names, kinds, strict=True))

mine = digits[mesh["data"].get_local_rank() :: shape[0]]
recorder = dry_run.Recorder(mesh)
with recorder:
    recorder.when = "forward"
    loss = cross_entropy(model(mine[0]), mine[1])
    recorder.when = "backward"
    loss.backward()
    recorder.when = "optimizer"
    torch.optim.SGD(model.parameters(), lr=0).step()
sent = Counter()
for one, times in recorder.counts.items():
    if one.ranks > 1:
        sent[one.when, one.kind, one.dimension] += times

largest = max(weight.grad.abs().max().item() for weight in whole.parameters())
off = 0.0
for expected, weight in zip(whole.parameters(), model.parameters(), strict=True):
    gradient = weight.grad.full_tensor() if isinstance(weight.grad, DTensor) else weight.grad
    off = max(off, (gradient - expected.grad).abs().max().item() / largest)
sizes = {name: list(weight.shape) for name, weight in whole.named_parameters()}
found = {
    "held": held,
    "placements": placements,
    "sizes": sizes,
    "sent": [[*key, times] for key, times in sent.items()],
    "off": off,
}
Path(f"{rank}.json").write_text(json.dumps(found))
gc.collect()
dist.destroy_process_group()
