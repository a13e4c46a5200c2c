"""Runs a student's script of exercise 04a in a rank: what the model was given, and what became of it."""

import io
import os

import torch
from torch import nn


class Stopped(BaseException):
    """The cluster stops the job."""


class Model(nn.Module):
    """A layer, on wish a batch norm, and a layer. Notes the images that it is given in training."""

    def __init__(self, state, stop=None, event=None):
        super().__init__()
        width = len(state["first.bias"])
        self.first = nn.Linear(6, width)
        self.norm = nn.BatchNorm1d(width) if "norm.weight" in state else None
        self.second = nn.Linear(width, 3)
        self.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
        self.given, self.stop, self.arrived = [], stop, []
        self.passes, self.before, self.event = [], [], event

    def forward(self, images):
        if self.training and torch.is_grad_enabled():
            if len(self.given) == self.stop:
                raise Stopped
            self.given.append(images.detach().clone())
            self.before.append(self.second.bias.detach().clone())
            self.passes.append("forward")
            self.event("forward")
        hidden = self.first(images)
        answers = self.second(torch.tanh(hidden if self.norm is None else self.norm(hidden)))
        if answers.requires_grad:
            answers.register_hook(self.back)
        return answers

    def back(self, gradient):
        self.arrived.append(gradient.abs().max().item() if gradient.numel() else 0.0)
        self.passes.append("backward")


class Device:
    """A device that is not there: notes what is put on it."""

    def __init__(self, number, notes):
        self.number, self.notes = number, notes

    def put(self, thing):
        self.notes.append([self.number, len(thing) if isinstance(thing, torch.Tensor) else "model"])
        return thing


def stopped_in_save(number, save):
    """torch.save for a job that is stopped in its save of this number, when half the file is written."""
    calls = []

    def half(value, target, *words, **named):
        calls.append(target)
        if len(calls) != number:
            return save(value, target, *words, **named)
        whole = io.BytesIO()
        save(value, whole, *words, **named)
        data = whole.getvalue()[: whole.tell() // 2]
        if hasattr(target, "write"):
            target.write(data)
            target.flush()
        else:
            with open(target, "wb") as file:
                file.write(data)
        raise Stopped

    return half


def tensors(inputs):
    return {name: torch.from_numpy(value) for name, value in inputs["tensors"].items()}


def kind(student, inputs, tools):
    """What the student calls the bug."""
    return {"KIND": student.KIND} if hasattr(student, "KIND") else {}


def train(student, inputs, tools):
    """Train with what the judge gives: tensors, numbers, and what is special to one of the scripts."""
    model = Model(inputs["state"], inputs.get("stop"), tools.event)
    more, notes = dict(inputs["numbers"]), []
    if "environment" in inputs:
        os.environ.update(inputs["environment"])
        more["devices"] = [Device(number, notes) for number in range(inputs["devices"])]
    if "snapshot" in inputs:
        more["path"] = os.path.join(tools.folder, inputs["snapshot"])
    if "stop_in_save" in inputs:
        torch.save = stopped_in_save(inputs["stop_in_save"], torch.save)
    if "scale" in inputs:
        more["scaler"] = torch.amp.GradScaler("cpu", init_scale=inputs["scale"])
    result, stopped = None, False
    try:
        result = student.train(model, **tensors(inputs), **more)
    except Stopped:
        stopped = True
    return {
        "state": model.state_dict(),
        "given": model.given,
        "result": result,
        "put": notes,
        "stopped": stopped,
        "arrived": model.arrived,
        "passes": model.passes,
        "before": model.before,
        "scale": more["scaler"].get_scale() if "scaler" in more else None,
    }
