"""Runs the student's file of exercise 05 in a rank, and ends it in the middle. Says what came of it.

`main` is None in some runs: there is no code of a student then, and what is read from the folder is what lies
there.
"""

import os
import shutil
import signal
from pathlib import Path

import torch
from asking import Orders
from folders import end_in_the_next_save, look  # noqa: F401
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

LR, MOMENTUM = 0.1, 0.9
OTHERS = ["temporary", "tmp", "unfinished", "snapshot.tmp", "later.tmp", "later.temporary", "notes.txt"]
OTHERS += ["run.tmp", "run.temporary", "run"]  # our snapshot is run.v1.snapshot


class Model(nn.Module):
    """Two layers and a buffer. If asked to, it kills its process in one of its forward passes."""

    def __init__(self, state, die_in=None, tell=None):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.register_buffer("scale", torch.ones(8))
        self.load_state_dict({name: torch.as_tensor(value) for name, value in state.items()})
        self.calls, self.die_in, self.tell = 0, die_in, tell

    def forward(self, images):
        self.calls += 1
        if self.calls == self.die_in:
            self.tell("dies")
            os.kill(os.getpid(), signal.SIGKILL)
        return self.second(torch.tanh(self.first(images)) * self.scale)


class Counter:
    """A part that is none of the three that every run has: it counts steps."""

    def __init__(self):
        self.steps = 0

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def parts_of(model, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "counter": Counter()}


def step(parts, gradients):
    """One step of the optimizer, with gradients that are given."""
    for name, parameter in parts["model"].named_parameters():
        parameter.grad = torch.as_tensor(gradients[name]).clone()
    parts["optimizer"].step()
    parts["counter"].steps += 1


def rates(parts):
    return [group["lr"] for group in parts["optimizer"].param_groups]


def trained(inputs):
    """Parts that have a history: an epoch of one step for each set of gradients."""
    parts = parts_of(Model(inputs["state"]), inputs["epochs"])
    for gradients in inputs["history"]:
        step(parts, gradients)
        parts["scheduler"].step()
    return parts


def path_of(tools, name):
    folder = Path(tools.folder, name)
    folder.mkdir(exist_ok=True)
    return folder / "run.v1.snapshot"


def write_others(folder):
    """Files of other runs, with names that a temporary file might have."""
    for name in OTHERS:
        Path(folder, name).write_text(f"{name} is a file of another run")


def put_back(_, inputs, tools):
    """Snapshots as they were before a save that was killed; and in one folder a newer file beside it."""
    for disk, source in inputs["disks"].items():
        snapshot = path_of(tools, disk)
        if source is None:
            snapshot.unlink(missing_ok=True)
        else:
            shutil.copyfile(path_of(tools, source), snapshot)
    shutil.copyfile(path_of(tools, inputs["later"]), path_of(tools, "other").with_name("later.snapshot"))
    write_others(path_of(tools, "other").parent)
    return {}


def save(student, inputs, tools):
    """A rank may have a folder of its own, as on machines that share no disk: so it is seen who writes."""
    snapshot = path_of(tools, inputs["disk"])
    if inputs["others"]:
        write_others(snapshot.parent)
    student.save(snapshot, trained(inputs), inputs["epoch"], tools.rank)
    return {}


def save_and_die(student, inputs, tools):
    """Copies a folder, saves there, and is ended: at a file event, or by the kernel when a file becomes
    larger than it may."""
    parts = trained(inputs)
    student.save(path_of(tools, "to-import-all"), parts, 1, 0)
    if inputs["copy"]:
        shutil.copytree(Path(tools.folder, inputs["copy"]), Path(tools.folder, inputs["disk"]))
    snapshot = path_of(tools, inputs["disk"])
    end_in_the_next_save(inputs, tools)
    student.save(snapshot, parts, inputs["epoch"], 0)
    return {}


def load(student, inputs, tools):
    """What load makes of fresh parts, in each of these folders; and one more step with them."""
    found = []
    for disk in inputs["disks"]:
        parts = parts_of(Model(inputs["state"]), inputs["epochs"])
        came = {"first": student.load(path_of(tools, disk), parts), "rate": rates(parts)}
        came |= {"state": copy_of(parts["model"]), "counter": parts["counter"].steps}
        step(parts, inputs["gradients"])
        came["after"] = copy_of(parts["model"])
        parts["scheduler"].step()
        found.append(came | {"next rate": rates(parts)})
    return found


def copy_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def train(student, inputs, tools):
    """One process of a training: to its end, or to a kill."""
    parts = parts_of(Model(inputs["state"], inputs.get("die_in"), tools.event), inputs["epochs"])
    data = TensorDataset(torch.as_tensor(inputs["images"]), torch.as_tensor(inputs["labels"]))
    *before, last = inputs["orders"]
    loader = DataLoader(data, inputs["size"], sampler=Orders([last, *before]))  # epochs begin with 1
    model = nn.parallel.DistributedDataParallel(parts["model"])

    def train_epoch(epoch):
        loader.sampler.set_epoch(epoch)
        losses = []
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            parts["optimizer"].zero_grad()
            loss.backward()
            parts["optimizer"].step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    losses = student.train(path_of(tools, inputs["disk"]), parts, train_epoch, inputs["epochs"], tools.rank)
    return {"losses": losses, "state": parts["model"].state_dict()}
