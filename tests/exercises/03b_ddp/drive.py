"""Runs the student's file of exercise 03b in a rank: makes models, goes through steps."""

import contextlib
import itertools
import time

import torch
from torch import nn


class Passing(torch.autograd.Function):
    """Gives on what comes; in backward it calls a function first."""

    @staticmethod
    def forward(context, images, call):
        context.call = call
        return images.view_as(images)

    @staticmethod
    def backward(context, gradient):
        context.call()
        return gradient, None


class Drift(nn.Module):
    """Buffers that drift apart, as those of batch norm do. Keeps what they were when forward began."""

    def __init__(self, buffers):
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, torch.from_numpy(value).clone())
        self.seen = []

    def forward(self, images):
        self.seen.append({name: buffer.clone() for name, buffer in self.named_buffers()})
        for buffer in self.buffers():
            buffer.add_(len(images))
        return images


class Model(nn.Module):
    """Linear layers in a row, some of which may be left out, frozen, or share a weight with one before."""

    def __init__(self, inputs):
        super().__init__()
        widths = inputs["widths"]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(widths))
        for layer, other in inputs.get("tied", {}).items():
            self.layers[layer].weight = self.layers[other].weight
        for name, parameter in self.named_parameters():
            parameter.data.copy_(torch.from_numpy(inputs["state"][name]))
            parameter.requires_grad_(name not in inputs.get("frozen", []))
        self.drift = Drift(inputs.get("buffers", {}))
        self.passes = None

    def forward(self, images, skip=()):
        images = self.drift(images)
        for number, layer in enumerate(self.layers):
            if number in skip:
                continue
            images = torch.tanh(layer(images))
            if self.passes is not None:
                images = Passing.apply(images, lambda number=number: self.passes(number))
        return images


def buckets(student, inputs, tools):
    """Buckets as lists of the parameters' places in model.parameters(), for several models."""
    answers = []
    for case in inputs:
        model = Model(case)
        places = {id(parameter): place for place, parameter in enumerate(model.parameters())}
        found = student.make_buckets(model.parameters(), case["bucket_bytes"])
        answers.append([[places.get(id(parameter), -1) for parameter in bucket] for bucket in found])
    return answers


def wrap(student, inputs, tools):
    """What a model has after it was wrapped, and what forward gives."""
    model = Model(inputs)
    wrapped = student.Overlapped(model, inputs["bucket_bytes"])
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    output = wrapped(torch.from_numpy(inputs["images"]), skip=inputs["skip"])
    return {"state": state, "output": output}


def buffers(student, inputs, tools):
    """Forward again and again, in training or evaluation, with other buffers on each rank each time."""
    model = Model(inputs)
    wrapped = student.Overlapped(model, inputs["bucket_bytes"])
    for one in inputs["passes"]:
        for name, value in one["buffers"].items():
            getattr(model.drift, name).copy_(torch.from_numpy(value))
        wrapped.train(one["training"])
        with contextlib.nullcontext() if one["training"] else torch.no_grad():
            wrapped(torch.from_numpy(inputs["images"]))
    return {"seen": model.drift.seen}


class Trouble(Exception):
    """What a student's code may not swallow, and must survive."""


def steps(student, inputs, tools):
    """Steps of training. Each has batches, the last of them outside of no_sync."""
    model = Model(inputs)
    wrapped = student.Overlapped(model, inputs["bucket_bytes"])
    parameters, found = dict(model.named_parameters()), []

    def mark(name):
        if inputs.get("pause") and name in inputs.get("marks", [name]):
            name = f"{name} {len(found)}"
            time.sleep(
                inputs.get("pauses", {}).get(name, inputs["pause"])
            )  # what is on its way now can leave
            tools.event(name)
            tools.mark(name)

    def passes(layer):
        mark(f"before {layer}")

    for step in inputs["steps"]:
        if step.get("fails"):
            with contextlib.suppress(Trouble), wrapped.no_sync():
                raise Trouble
        for parameter in parameters.values():
            if inputs.get("zeros") and parameter.grad is not None:
                parameter.grad.zero_()
            else:
                parameter.grad = None
        if step.get("late"):
            tools.mark("backward has ended")
        mark("begin")
        time.sleep(step.get("sleep", 0))
        losses = []
        for number, batch in enumerate(step["batches"]):
            alone = step.get("alone", True) and number < len(step["batches"]) - 1
            with wrapped.no_sync() if alone else contextlib.nullcontext():
                model.passes = None if alone else passes
                outputs = wrapped(torch.from_numpy(batch["images"]), skip=batch.get("skip", []))
                loss = (outputs - torch.from_numpy(batch["targets"])).square().sum()
                (loss * step["factor"]).backward()
                losses.append(float(loss.detach()))
            if alone:
                mark(f"after {number}")
        mark("backward")
        if step.get("late") is False:
            tools.mark("backward has ended")
        wrapped.finish()
        gradients = {name: p.grad if p.grad is None else p.grad.clone() for name, p in parameters.items()}
        mark("finish")
        with torch.no_grad():
            for name, gradient in gradients.items():
                if gradient is not None:
                    parameters[name] -= inputs.get("rate", 0) * gradient
        found.append({"gradients": gradients, "losses": losses})
    return {"steps": found, "weights": {name: tensor.detach() for name, tensor in parameters.items()}}
