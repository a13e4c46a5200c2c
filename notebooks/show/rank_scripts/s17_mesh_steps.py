"""The model of lesson 17 on a mesh, and its steps, for the scripts of notebook 17."""

import importlib
from types import SimpleNamespace

import torch
import torch.distributed as dist
from group import rank
from s17_by_dimension import Sent
from torch.distributed.tensor import DTensor

import workload
from parts import one_mesh
from parts.ring_attention import positions_of

lesson = importlib.import_module("17_one_mesh")
numbers = torch.randint(61, (8, 49), generator=torch.Generator().manual_seed(0))
texts, following = numbers[:, :-1], numbers[:, 1:]
cpu, two = torch.device("cpu"), SimpleNamespace(microbatches=2)


def build():
    workload.set_seed(0)
    return lesson.build_model(61, 48, 16)


class Job:
    """The lesson's model on a mesh, and this process's part of the texts."""

    def __init__(self, *shape):
        sizes = dict(zip(one_mesh.NAMES, shape, strict=True))
        self.mesh = workload.make_mesh(cpu, **sizes)
        where = dict(zip(one_mesh.NAMES, self.mesh.get_coordinate(), strict=True))
        self.positions = positions_of(where["context"], sizes["context"], "zigzag", 48)
        rows = slice(where["data"], None, sizes["data"])
        self.texts = texts[rows][:, self.positions]
        self.following = following[rows][:, self.positions]
        self.model = build()
        lesson.shard(self.model, self.mesh)
        self.schedule = lesson.make_schedule(self.model, self.mesh, cpu, two)
        self.parts = sizes["data"] * sizes["context"]

    def gradients(self):
        """Run forward and backward of all micro-batches, and return the mean loss."""
        self.model.zero_grad()
        losses = []  # of the two micro-batches, on the last stage only
        places = self.positions.expand_as(self.texts)
        self.schedule.step(self.texts, places, target=self.following, losses=losses, return_outputs=False)
        total = torch.zeros(())
        for loss in losses:
            total += loss.detach()
        return total / 2

    def average(self, *names):
        for parameter in self.model.parameters():
            gradient = local(parameter.grad)
            for name in names:
                dist.all_reduce(gradient, group=self.mesh.get_group(name))
                gradient /= self.mesh[name].size()


def two_losses(shape, averaged=("data", "context"), places=None, added=("data", "pipeline", "context")):
    """The losses of two steps. Average gradients over `averaged`, and sum losses over `added`."""
    job = Job(*shape)
    losses = []
    if places is not None:
        job.positions = places
    optimizer = torch.optim.AdamW(job.model.parameters(), lr=0.01)
    for _ in range(2):
        loss = job.gradients()
        job.average(*averaged)
        optimizer.step()
        for name in added:
            dist.all_reduce(loss, group=job.mesh.get_group(name))
        losses.append(loss.item() / job.parts)
    return losses


def one_process():
    """The same two steps on the whole batch, with nothing sharded."""
    model = build()
    losses = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        loss = lesson.loss_of(model(texts), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sent_in_a_step(*shape):
    """What this process sends in each dimension, and the bytes of its weights."""
    job = Job(*shape)
    job.gradients()  # in the first step, stages also exchange shapes
    with Sent() as sent:
        job.gradients()
        lesson.average_gradients(job.model, job.mesh)
    weights = sum(local(value).nbytes for value in job.model.parameters())
    return {"sent": sent.found, "weights": weights}


def local(tensor):
    """What this process has of a tensor: all of it, unless it is sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


__all__ = ["one_process", "rank", "sent_in_a_step", "two_losses"]
