"""Runs the student's file of exercise 03 in a rank. Builds the model, hands over what came of it."""

import torch
from torch import nn


class Model(nn.Module):
    """Two layers and a batch norm, which has buffers; on wish a third layer with the second's weight."""

    def __init__(self, inputs):
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 4)
        if inputs.get("tied"):
            self.third = nn.Linear(4, 4, bias=False)
            self.third.weight = self.second.weight
        with torch.no_grad():
            for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
                if name in inputs["state"]:
                    tensor.copy_(torch.from_numpy(inputs["state"][name]))
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in inputs.get("frozen", []))


def begin(student, inputs, tools):
    """broadcast_model on a model that an optimizer holds already."""
    model = Model(inputs)
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    before = {name: (id(tensor), tensor.data_ptr()) for name, tensor in held.items()}
    student.broadcast_model(model)
    now = dict(model.named_parameters()) | dict(model.named_buffers())
    return {
        "state": {name: tensor.detach() for name, tensor in now.items()},
        "held": {name: tensor.detach() for name, tensor in held.items()},
        "same": [name for name in now if (id(now[name]), now[name].data_ptr()) == before.get(name)],
        "requires": [name for name, tensor in now.items() if tensor.requires_grad],
    }


def average(student, inputs, tools):
    """average_gradients on gradients that are given, since they could come from any backward pass."""
    model = Model(inputs)
    for name, parameter in model.named_parameters():
        if name in inputs["gradients"]:
            parameter.grad = torch.from_numpy(inputs["gradients"][name])
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    student.average_gradients(model)
    return {
        "gradients": {name: parameter.grad for name, parameter in model.named_parameters()},
        "moved": [name for name, tensor in model.named_parameters() if not tensor.equal(weights[name])],
    }
