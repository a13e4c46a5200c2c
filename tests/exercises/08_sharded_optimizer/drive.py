"""Runs the student's file of exercise 08 in a rank: gives gradients, hands over weights."""

import gc
import time

import torch
import torch.distributed.optim
from give_back import own_pages, settle
from torch import nn


def deal(student, inputs, tools):
    return [student.deal(list(sizes), world_size) for sizes, world_size in inputs["deals"]]


def begin(inputs):
    """The parameters, and what a constructor is given: tensors, or groups of them."""
    parameters = [nn.Parameter(torch.from_numpy(weight).clone()) for weight in inputs["weights"]]
    for number in inputs.get("frozen", []):
        parameters[number].requires_grad_(False)
    if "groups" not in inputs:
        return parameters, list(parameters)
    groups = [{**group, "params": [parameters[n] for n in group["params"]]} for group in inputs["groups"]]
    return parameters, groups


def make(student, inputs, groups):
    options = {
        name: tuple(value) if isinstance(value, list) else value for name, value in inputs["options"].items()
    }
    return student.ShardedOptimizer(groups, getattr(torch.optim, inputs["optimizer"]), **options)


def groups_of(optimizer, parameters):
    """The groups with numbers for parameters; -1 is a tensor that is not one of them."""
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    found = []
    for group in optimizer.param_groups:
        params = [numbers.get(id(parameter), -1) for parameter in group["params"]]
        found.append({**sendable(group), "params": params})
    return found


def sendable(options):
    """Options or state without what cannot be sent."""
    kinds = str | float | int | tuple | list | torch.Tensor | None
    return {name: value for name, value in options.items() if isinstance(value, kinds)}


def groups(student, inputs, tools):
    parameters, given = begin(inputs)
    return groups_of(make(student, inputs, given), parameters)


def tensors(value):
    """A state that came as arrays, as tensors."""
    if isinstance(value, dict):
        return {name: tensors(item) for name, item in value.items()}
    return torch.from_numpy(value).clone() if hasattr(value, "dtype") else value


def kept(parameters):
    """How many numbers are in tensors that Python holds, beside parameters and gradients."""
    # A thread of gloo may hold the tensors of the last call for a moment longer.
    return min(kept_now(parameters) for _ in range(4))


def kept_now(parameters):
    gc.collect()
    time.sleep(0.005)
    known = {
        tensor.untyped_storage().data_ptr()
        for p in parameters
        for tensor in (p, p.grad)
        if tensor is not None
    }
    found = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes() // thing.element_size()
    return sum(size for place, size in found.items() if place not in known)


def train(student, inputs, tools):
    """Some steps with given gradients. What is changed before which step is said in the inputs."""
    parameters, given = begin(inputs)
    optimizer = make(student, inputs, given)
    if "state" in inputs:
        optimizer.load_state_dict({**inputs["state"], "state": tensors(inputs["state"]["state"])})
        del inputs["state"]
    scheduler = None
    if "gamma" in inputs:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, inputs["gamma"])
    weights, left = [], []
    for number, gradients in enumerate(inputs["gradients"]):
        for step, group, name, value in inputs.get("changes", []):
            if step == number:
                optimizer.param_groups[group][name] = value
        optimizer.zero_grad()
        left += [n for n, p in enumerate(parameters) if p.grad is not None and p.grad.any()]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else torch.from_numpy(gradient).clone()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        weights.append([parameter.detach().numpy().copy() for parameter in parameters])
    count = kept(parameters) if inputs.get("count") else 0
    whole = whole_state(optimizer.state_dict()) if inputs.get("whole") else None
    return {"weights": weights, "left": left, "kept": count, "whole": whole}


def whole_state(whole):
    """A state_dict as it can be sent; words if it is none."""
    if whole is None:
        return None
    if not isinstance(whole, dict) or not isinstance(whole.get("state"), dict) or "param_groups" not in whole:
        return f"no dict with state and param_groups, but {str(whole)[:80]}"
    return {
        "state": {str(number): sendable(dict(one)) for number, one in whole["state"].items()},
        "param_groups": [sendable(group) for group in whole["param_groups"]],
    }


def large(student, inputs, tools):
    """Two steps with large parameters, all rows of each alike, while others look at memory and traffic."""
    own_pages()
    warm = [nn.Parameter(torch.ones(2)) for _ in range(tools.world_size)]
    for parameter in warm:
        parameter.grad = torch.ones(2)
    make(student, {"optimizer": inputs["optimizer"], "options": {}}, warm).step()
    del warm, parameter
    parameters, columns = [], len(inputs["weights"][0])
    for weight, rows in zip(inputs["weights"], inputs["rows"], strict=True):
        parameter = nn.Parameter(torch.empty(rows, columns))
        parameter.data.copy_(torch.from_numpy(weight))
        parameter.grad = torch.zeros(rows, columns).fill_(1.0)
        parameters.append(parameter)
    settle()
    tools.mark("before")
    optimizer = make(student, inputs, parameters)
    for number, gradients in enumerate(inputs["gradients"]):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad.copy_(torch.from_numpy(gradient))
        optimizer.step()
        # Three looks: a thread of gloo may hold the tensors of the last call for a moment longer.
        for look in range(3):
            settle()
            tools.mark(f"step {number}, look {look}")
    with torch.no_grad():
        least = [parameter.amin(0) for parameter in parameters]
        most = [parameter.amax(0) for parameter in parameters]
    return {"least": least, "most": most}
