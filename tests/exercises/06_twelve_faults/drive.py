"""Runs the student's file of exercise 06 in a rank. Hands over what came of it: weights, losses, batches.

`student` is None in some runs: what is read from the folder then is what is there.
"""

import os
import time
from pathlib import Path

import torch
from asking import Orders
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    def __init__(self, state, event=None):
        super().__init__()
        self.event, self.before, self.looked = event, [], 0
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 3)
        self.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})

    def forward(self, images):
        self.looked += len(images)
        if self.event and torch.is_grad_enabled():
            self.event("forward")
            self.before.append(self.second.bias.detach().clone())
        return self.second(torch.tanh(self.first(images)))


def images_of(inputs):
    return TensorDataset(torch.from_numpy(inputs["images"]), torch.from_numpy(inputs["labels"]))


def train(student, inputs, tools):
    """Train with a loader of the judge's."""
    model = Model(inputs["state"], tools.event)
    orders = Orders(inputs["orders"])
    loader = DataLoader(images_of(inputs), inputs["size"], sampler=orders)
    parallel, losses = student.train(model, loader, len(inputs["orders"]), inputs["lr"])
    wrapped, kind = getattr(parallel, "module", None) is model, type(parallel).__name__
    facts = {"losses": losses, "wrapped": wrapped, "kind": kind, "epochs": orders.calls}
    return {"state": model.state_dict(), "before": model.before, **facts}


def loader(student, inputs, tools):
    """The batches of a loader of the student's in two epochs, and those of a loader with another seed."""
    found = []
    for seed, epochs in zip(inputs["seeds"], ((0, 1), (0,)), strict=True):
        loader = student.make_loader(images_of(inputs), inputs["batch_size"], seed)
        for epoch in epochs:
            loader.sampler.set_epoch(epoch)
            found.append([images.clone() for images, _ in loader])
    return found


def save(student, inputs, tools):
    """Save what each rank has. Each has a path of its own, as on machines that share no disk: whoever writes
    can be seen by it."""
    model = nn.parallel.DistributedDataParallel(Model(inputs["state"]))
    with torch.no_grad():  # DDP has given all ranks the weights of rank 0
        for name, weight in model.module.named_parameters():
            weight.copy_(torch.from_numpy(inputs["state"][name]))
    folder = os.path.join(tools.folder, str(tools.rank))
    os.makedirs(folder, exist_ok=True)
    student.save(model, inputs["epoch"], os.path.join(folder, inputs["file"]))
    return {}


def look(student, inputs, tools):
    """What is in the file, without the student's code."""
    folders = {name: Path(tools.folder, name) for name in inputs.get("folders", [])}
    writers = [name for name, folder in folders.items() if folder.is_dir() and any(folder.iterdir())]
    path, found = Path(tools.folder, inputs["file"]), {}
    if not path.is_file():
        return {"there": False, "writers": writers}
    if inputs.get("bytes"):
        return {"there": True, "bytes": list(path.read_bytes())}
    try:
        snapshot = torch.load(path, weights_only=True)
    except Exception as error:
        return {"there": True, "error": f"{type(error).__name__}: {error}"[:200], "writers": writers}
    for value in snapshot.values() if isinstance(snapshot, dict) else ():
        if isinstance(value, dict) and any(map(torch.is_tensor, value.values())):
            found = {name: item for name, item in value.items() if torch.is_tensor(item)}
    return {"there": True, "state": found, "writers": writers}


def change(student, inputs, tools):
    """Make copies of a snapshot, each with other names, without the student's code."""
    for to, (without, more) in inputs["to"].items():
        snapshot = torch.load(os.path.join(tools.folder, inputs["file"]), weights_only=True)
        for state in (value for value in snapshot.values() if isinstance(value, dict)):
            for name in without:
                state.pop(name, None)
            state |= {name: torch.ones(2) for name in more}
        torch.save(snapshot, os.path.join(tools.folder, to))
    return {}


def load(student, inputs, tools):
    """Load into a model that has other weights."""
    model = Model(inputs["state"])
    epoch = student.load(model, os.path.join(tools.folder, inputs["file"]))
    return {"epoch": epoch, "state": model.state_dict()}


def refuse(student, inputs, tools):
    """Load files that are damaged: what each raises."""
    raised = []
    for file in inputs["files"]:
        try:
            student.load(Model(inputs["state"]), os.path.join(tools.folder, file))
            raised.append("")
        except Exception as error:
            raised.append(type(error).__name__)
    return {"raised": raised}


def accuracy(student, inputs, tools):
    model = Model(inputs["state"])
    return {"accuracy": student.accuracy(model, images_of(inputs)), "looked": model.looked}


def device(student, inputs, tools):
    os.environ.update(inputs["environment"])
    return {"device": student.pick_device()}


def prepare(student, inputs, tools):
    """Each rank would download other bytes, in two halves; rank 0 takes the longest. How long a download
    takes nobody knows: whoever sleeps does not sleep long."""
    sleep, time.sleep = time.sleep, lambda seconds: sleep(min(seconds, 0.01))
    path = os.path.join(tools.folder, inputs["file"])

    def download(path):
        # From the judge, who knows by that which ranks have downloaded.
        data = bytes(tools.ask("download"))
        half = len(data) // 2
        with open(path, "wb") as file:
            file.write(data[:half])
            file.flush()
            sleep(0.3 if tools.rank == 0 else 0.1)
            file.write(data[half:])

    sleep(0.1 * tools.rank)
    data = student.prepare(path, download)
    return {"data": list(data), "kind": type(data).__name__}
