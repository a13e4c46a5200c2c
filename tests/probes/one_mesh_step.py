"""One step of lesson 17 on the mesh that is named: how far its gradients are from one process's, and what
this process sends in each dimension, in calls and bytes; RANK.json."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import workload
from meshes import ROOT
from parts import one_mesh
from parts.ring_attention import positions_of

sys.path.append(str(ROOT / "notebooks/show/inside"))
lesson = importlib.import_module("17_one_mesh")
Sent = importlib.import_module("by_dimension").Sent  # the notebook counts with it
CHARACTERS, LENGTH, HIDDEN, TEXTS, MICROBATCHES = 11, 24, 8, 8, 2


def build_model():
    torch.manual_seed(0)
    return lesson.build_model(CHARACTERS, LENGTH, HIDDEN).double()


def largest_difference(own, expected):
    own = own.full_tensor() if isinstance(own, DTensor) else own
    return (own - expected).abs().max().item()


dist.init_process_group("gloo")
rank, cpu = dist.get_rank(), torch.device("cpu")
generator = torch.Generator().manual_seed(0)
texts, following = torch.randint(CHARACTERS, (2, TEXTS, LENGTH), generator=generator)
plain = build_model()
expected_loss = lesson.loss_of(plain(texts), following)
expected_loss.backward()
expected = {name: parameter.grad for name, parameter in plain.named_parameters()}
largest = max(gradient.abs().max().item() for gradient in expected.values())
with torch.no_grad():
    foreseen = plain(texts).argmax(dim=2)

arguments = SimpleNamespace(microbatches=MICROBATCHES)
sizes = dict(zip(one_mesh.NAMES, map(int, sys.argv[1].split("x")), strict=True))
mesh = workload.make_mesh(cpu, **sizes)
where = dict(zip(one_mesh.NAMES, mesh.get_coordinate(), strict=True))
positions = positions_of(where["context"], sizes["context"], "zigzag", LENGTH)
model = build_model()
lesson.shard(model, mesh)
schedule = lesson.make_schedule(model, mesh, cpu, arguments)
own, target = (tensor[where["data"] :: sizes["data"]][:, positions] for tensor in (texts, following))
places = positions.expand_as(own)
for _ in range(2):  # in the first one, stages tell each other the shapes
    model.zero_grad()
    losses = []
    with Sent() as sent:
        schedule.step(own, places, target=target, losses=losses, return_outputs=False)
        lesson.average_gradients(model, mesh)
own = dict(model.named_parameters())
off = max(largest_difference(value.grad, expected[name]) for name, value in own.items()) / largest
shards = [value.to_local() if isinstance(value, DTensor) else value for value in own.values()]
# This comes after the gradients have been looked at: a schedule divides them once more.
correct = lesson.count_correct(schedule, [(texts[:6], foreseen[:6])], positions, cpu)
found = {
    "where": where,
    "off": off,
    "expected": expected_loss.item(),
    "losses": [loss.item() for loss in losses],
    "held": sorted({name.split(".attention")[0].split(".feed")[0] for name in own}),
    "tensors": len(shards),
    "bytes": sum(shard.nbytes for shard in shards),
    "correct": correct.item(),
    "sent": sent.found,
}
Path(f"{rank}.json").write_text(json.dumps(found))
del model, schedule, mesh, own, shards
dist.destroy_process_group()
