"""Runs the student's file of exercise 03b in a rank: makes models, goes through steps."""

import contextlib
import itertools
import time

import torch
from asking import Asking
from torch import nn


class Drift(nn.Module):
    """Buffers that drift apart, as those of batch norm do. Keeps what they were when forward began."""

    def __init__(self, buffers):
        super().__init__()
        for name, value in buffers.items():
            # As an attention mask is: it is not saved, and so not in state_dict().
            self.register_buffer(name, torch.from_numpy(value).clone(), persistent=name != "unsaved")
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
        self.to(torch.from_numpy(next(iter(inputs["state"].values()))).dtype)
        for name, parameter in self.named_parameters():
            parameter.data.copy_(torch.from_numpy(inputs["state"][name]))
            parameter.requires_grad_(name not in inputs.get("frozen", []))
            if inputs.get("columns") and parameter.ndim > 1:  # in memory column by column, as channels_last
                parameter.data = parameter.data.mT.contiguous().mT
        self.order = inputs.get("order", range(len(self.layers)))
        self.drift = Drift(inputs.get("buffers", {}))
        self.passes = None

    def forward(self, images, skip=()):
        images = self.drift(images).to(self.layers[0].weight.dtype)
        for number in (one for one in self.order if one not in skip):
            images = torch.tanh(self.layers[number](images))
            if self.passes is not None:
                images = Asking.apply(images, 1.0, lambda _, number=number: self.passes(f"before {number}"))
        return images


def buckets(student, inputs, tools):
    """Buckets as lists of the parameters' numbers in model.parameters(), from 1 on, for several models."""
    answers = []
    for case in inputs:
        model = Model(case)
        numbers = {id(parameter): number for number, parameter in enumerate(model.parameters(), 1)}
        found = student.make_buckets(model.parameters(), case["bucket_bytes"])
        answers.append([[numbers.get(id(one), "none of them") for one in bucket] for bucket in found])
    return answers


def named_tensors(model):
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def wrap(student, inputs, tools):
    """What a model has after it was wrapped, and what forward gives."""
    model = Model(inputs)
    before = named_tensors(model)
    wrapped = student.Overlapped(model, inputs["bucket_bytes"])
    after, images = named_tensors(model), torch.from_numpy(inputs["images"])
    replaced = [name for name, tensor in before.items() if after.get(name) is not tensor]
    state = {name: tensor.detach().clone() for name, tensor in after.items()}
    outputs = [wrapped(images, skip=inputs["skip"]), wrapped(images, inputs["skip"])]
    return {"state": state, "outputs": outputs, "replaced": replaced}


def buffers(student, inputs, tools):
    """Forward again and again, in training or evaluation, with other buffers on each rank each time."""
    model = Model(inputs)
    wrapped = student.Overlapped(model, inputs["bucket_bytes"])
    for one in inputs["passes"]:
        for name, value in one["buffers"].items():
            getattr(model.drift, name).copy_(torch.from_numpy(value))
        wrapped.train(one["training"])
        with contextlib.nullcontext() if one["grad"] else torch.no_grad():
            wrapped(torch.from_numpy(inputs["images"]))
    return {"seen": model.drift.seen}


class Trouble(Exception):
    """What a student's code may not swallow, and must survive."""


def steps(student, inputs, tools):
    """Steps of training. Each has batches, the last of them outside of no_sync."""
    model = Model(inputs)
    wrapped = student.Overlapped(model, inputs["bucket_bytes"]).train(not inputs.get("evaluation"))
    parameters, found, given = dict(model.named_parameters()), [], []

    def ask(name, value=None):
        """1, unless the judge keeps a number back here, which the right gradients depend on."""
        name = f"{name} {len(found)}"
        if name not in inputs.get("gates", []):
            return 1.0
        tools.event(name)
        return tools.ask(name, value)

    for step in inputs["steps"]:
        tools.event("step")
        if step.get("fails"):
            with contextlib.suppress(Trouble), wrapped.no_sync():
                raise Trouble
        for name, parameter in parameters.items():
            if name in step.get("freeze", []):
                parameter.requires_grad_(False)
            if inputs.get("zeros") and parameter.grad is not None:
                parameter.grad.zero_()
            else:
                parameter.grad = None
        # What is there now proves that all that was sent before has come.
        factor = step["factor"] * ask("begin", found[-1]["gradients"] if found else dict(parameters))
        time.sleep(step.get("sleep", 0))
        losses = []
        for number, batch in enumerate(step["batches"]):
            alone = step.get("alone", True) and number < len(step["batches"]) - 1
            with wrapped.no_sync() if alone else contextlib.nullcontext():
                if alone and number % 2:
                    with wrapped.no_sync():  # the end of this block is not the end of the other
                        pass
                model.passes = None if alone else ask
                images = torch.from_numpy(batch["images"]).requires_grad_()
                outputs = wrapped(images, skip=batch.get("skip", []))
                loss = (outputs - torch.from_numpy(batch["targets"])).square().sum()
                (loss * factor).backward()
                losses.append(float(loss.detach()))
            factor *= ask(f"after {number}", images.grad)
        wrapped.finish()
        gradients = {name: p.grad if p.grad is None else p.grad.clone() for name, p in parameters.items()}
        given.append({name: p.grad for name, p in parameters.items()})
        with torch.no_grad():
            for name, gradient in gradients.items():
                if gradient is not None:
                    parameters[name] -= inputs.get("rate", 0) * gradient
        found.append({"gradients": gradients, "losses": losses, "changed": []})
    # Zeros were written into those of all steps but the last, if that is how gradients are cleared.
    for one, tensors in zip(found, [] if inputs.get("zeros") else given, strict=False):
        kept = {name: value for name, value in one["gradients"].items() if value is not None}
        one["changed"] = [name for name, value in kept.items() if not value.equal(tensors[name])]
    return {"steps": found, "weights": {name: tensor.detach() for name, tensor in parameters.items()}}
