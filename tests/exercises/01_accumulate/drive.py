"""Runs the student's file of exercise 01 in a rank. Builds the model, hands over what came of it."""

import ctypes
import sys

import torch
from asking import Asking
from torch import nn

WIDE = 10_000  # times 6 numbers for each image that the backward pass needs: 240 kB


class Model(nn.Module):
    """Two layers; on wish a batch norm, which makes the output depend on who else is in the batch, and a lot
    of memory for each image, which changes no number. Such a one, and one whose images are long, asks the
    judge for two numbers for each part: none can go forward or backward in another order than it asks."""

    def __init__(self, inputs, tools):
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.norm = nn.BatchNorm1d(6, eps=0.1) if inputs.get("norm") else nn.Identity()
        self.last = nn.Linear(6, 3)
        if "spare" in inputs["state"]:
            self.spare = nn.Parameter(torch.zeros(4))  # in no pass
        self.to(torch.from_numpy(inputs["state"]["first.weight"]).dtype)
        self.wide, self.ask, self.sizes = inputs.get("wide"), tools.ask, []
        self.asks = self.wide or inputs.get("filler")
        with torch.no_grad():
            for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
                if name in inputs["state"]:
                    tensor.copy_(torch.from_numpy(inputs["state"][name]))
                if name in inputs.get("old", {}):
                    tensor.grad = torch.from_numpy(inputs["old"][name])
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in inputs.get("frozen", []))

    def forward(self, images):
        place = len(self.sizes)
        self.sizes.append(len(images))
        numbers = images[:, :5]
        number = self.ask(f"forward {place}", numbers) if self.asks else 1.0
        hidden = self.norm(self.first(numbers))
        if self.wide:
            hidden = hidden.repeat(1, WIDE).tanh().view(len(images), WIDE, 6).mean(1)
        else:
            hidden = hidden.tanh()
        output = self.last(hidden)
        if not self.asks:
            return output
        return Asking.apply(output, number, lambda gradient: self.ask(f"backward {place}", gradient))

    def seen(self):
        state = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return {
            "gradients": {name: parameter.grad for name, parameter in self.named_parameters()},
            "state": {name: tensor.detach() for name, tensor in state.items()},
            "sizes": self.sizes,
            "training": self.training,
        }


def warm_up():
    """Memory from outside is to show what is held. The first backward pass takes some of its own, and malloc
    would keep for later what tensors give back."""
    if sys.platform == "linux":
        ctypes.CDLL(None).mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD
    nn.Linear(2, 2)(torch.zeros(1, 2)).sum().backward()


def pairs(batches):
    """Images of float64 are stored by columns: the same numbers in another order in memory."""
    found = [(torch.from_numpy(images), torch.from_numpy(labels)) for images, labels in batches]
    double = any(images.dtype == torch.float64 for images, _ in found)
    return [(images.T.contiguous().T, labels) for images, labels in found] if double else found


def gradients(student, inputs, tools):
    warm_up()
    model = Model(inputs, tools)
    loss = student.add_gradients(model, pairs(inputs["parts"]))
    return model.seen() | {"loss": loss}


def noted(student):
    """From now on, note what the student's add_gradients returns."""
    given, add_gradients = [], student.add_gradients

    def noting(*words, **named):
        given.append(add_gradients(*words, **named))
        return given[-1]

    student.add_gradients = noting
    return given


class Batches:
    """Gives the batches one after another, and only once. On wish images are long: what is behind the first
    five numbers takes memory, and changes nothing. Such a batch is multiplied by a number, for which the
    judge is asked when the batch is taken, and is shown the weights as they are then."""

    def __init__(self, inputs, model):
        self.inputs, self.model, self.begun = inputs, model, False

    def __iter__(self):
        if self.begun:
            raise RuntimeError("`batches` can be read only once, and this is the second time")
        self.begun = True
        return self.each()

    def each(self):
        for place, (images, labels) in enumerate(pairs(self.inputs["batches"])):
            if not self.inputs["filler"]:
                yield [images, labels]  # a list, as a DataLoader gives it
                continue
            number = self.model.ask(f"take {place}", self.model.first.weight.detach())
            filler = torch.zeros(len(images), self.inputs["filler"])
            yield torch.cat([images * number, filler], 1), labels


def trained(student, inputs, tools, train):
    """What came of `train`, which gets the model and an optimizer."""
    warm_up()
    model, steps, given = Model(inputs, tools), [], noted(student)
    optimizer = getattr(torch.optim, inputs["optimizer"])(model.parameters(), **inputs["options"])
    optimizer.register_step_post_hook(lambda *_: steps.append(0))
    losses = train(model, optimizer)
    came = {"loss": losses if isinstance(losses, list) else None, "kind": type(losses).__name__}
    return model.seen() | came | {"given": given, "steps": len(steps)}


def step(student, inputs, tools):
    """One large step for each batch."""
    size, batches = inputs["part_size"], pairs(inputs["batches"])
    return trained(
        student, inputs, tools, lambda *both: [student.large_step(*both, *one, size) for one in batches]
    )


def epoch(student, inputs, tools):
    empty = []

    def train(model, optimizer):
        losses = student.train_epoch(model, optimizer, Batches(inputs, model), inputs["parts_per_step"])
        if inputs["empty"]:
            empty.append(student.train_epoch(model, optimizer, iter(()), inputs["parts_per_step"]))
        return losses

    return trained(student, inputs, tools, train) | {"empty": empty}
