"""One step of lesson 17 on the mesh that is named: how far its gradients are from one process's, and what
this process sends in each dimension, in calls and bytes; RANK.json."""

import importlib
import json
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

import workload
from parts import one_mesh
from parts.ring_attention import positions_of

lesson = importlib.import_module("17_one_mesh")
CHARACTERS, LENGTH, HIDDEN, TEXTS, MICROBATCHES = 11, 24, 8, 8, 2


class Sent(TorchDispatchMode):
    """For each dimension: how often this process calls what sends, and how many bytes it gives to it."""

    def __init__(self):
        super().__init__()
        self.found = {name: {} for name in one_mesh.NAMES}

    def add(self, group, kind, tensors):
        if dist.get_world_size(group) > 1:  # alone, there is nobody to send to
            counts = self.found[group.group_desc.removeprefix("mesh_")].setdefault(kind, [0, 0])
            counts[0] += 1
            counts[1] += sum(tensor.nbytes for tensor in tensors)

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        kind = operator.__name__.partition(".")[0].strip("_")
        if operator.namespace == "_c10d_functional" and isinstance(arguments[-1], str):  # else it waits
            group = dist.distributed_c10d._resolve_process_group(arguments[-1])
            self.add(group, kind.replace("_", ""), arguments[:1])
        elif operator.namespace == "c10d" and kind != "recv":
            self.add(dist.ProcessGroup.unbox(arguments[1]), kind, arguments[0])
        return operator(*arguments, **(options or {}))


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
mesh = one_mesh.make_mesh(sizes, cpu, timedelta(minutes=1))
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
workload.release_group()
dist.destroy_process_group()
