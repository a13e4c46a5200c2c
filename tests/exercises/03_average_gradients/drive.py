"""Runs the student's file of exercise 03 in a rank. Builds the model, hands over what came of it."""

import addresses
import torch
from torch import nn


class Model(nn.Module):
    """Two layers, a batch norm, which has buffers, a parameter of its own, and a buffer that state_dict()
    leaves out; on wish a third layer with the second's weight."""

    def __init__(self, inputs):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))
        self.first = nn.Linear(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 4)
        self.register_buffer("scale", torch.zeros(4), persistent=False)
        if inputs.get("tied"):
            self.third = nn.Linear(4, 4, bias=False)
            self.third.weight = self.second.weight
        self.to(torch.from_numpy(inputs["state"]["shift"]).dtype)
        with torch.no_grad():
            for name, tensor in tensors(self).items():
                if name in inputs["state"]:
                    tensor.copy_(torch.from_numpy(inputs["state"][name]))
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in inputs.get("frozen", []))
        if inputs.get("columns"):
            self.eval()
            for parameter in self.parameters():
                parameter.data = by_columns(parameter.data)


def by_columns(tensor):
    """The same numbers in another order in memory, as channels_last has them."""
    return tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor


def tensors(model):
    return dict(model.named_parameters()) | dict(model.named_buffers())


def begin(student, inputs, tools):
    """broadcast_model on a model that an optimizer holds already."""
    elsewhere, model = addresses.scatter(tools.rank), Model(inputs)
    held = tensors(model)
    before = {name: (id(tensor), tensor.data_ptr()) for name, tensor in held.items()}
    student.broadcast_model(model)
    now = tensors(model)
    return {
        "state": {name: tensor.detach() for name, tensor in now.items()},
        "held": {name: tensor.detach() for name, tensor in held.items()},
        "same": [name for name in now if (id(now[name]), now[name].data_ptr()) == before.get(name)],
        "requires": [name for name, tensor in now.items() if tensor.requires_grad],
        "elsewhere": len(elsewhere),
    }


def average(student, inputs, tools):
    """average_gradients, once for each step, on gradients that are given, since they could come from any
    backward pass."""
    elsewhere, model, came = addresses.scatter(tools.rank), Model(inputs), []
    others = tensors(model)
    weights = {name: tensor.detach().clone() for name, tensor in others.items()}
    for number, given in enumerate(inputs["gradients"]):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(number < inputs["freeze"] or name not in inputs["frozen"])
            gradient = torch.from_numpy(given[name]) if name in given else None
            parameter.grad = by_columns(gradient) if gradient is not None and inputs["columns"] else gradient
        student.average_gradients(model)
        grads = {name: parameter.grad for name, parameter in model.named_parameters()}
        came.append({name: None if grad is None else grad.clone() for name, grad in grads.items()})
    moved = [name for name, tensor in others.items() if not tensor.equal(weights[name])]
    return {"gradients": came, "moved": moved, "elsewhere": len(elsewhere)}
