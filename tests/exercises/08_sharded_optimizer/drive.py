"""Runs the student's file of exercise 08 in a rank: gives gradients, hands over weights."""

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
    for parameter in parameters if inputs.get("columns") else ():
        if parameter.ndim > 1:  # in memory column by column, as channels_last
            parameter.data = parameter.data.mT.contiguous().mT
    if "groups" not in inputs:
        return parameters, (parameter for parameter in parameters)  # as model.parameters() does
    groups = [{**group, "params": [parameters[n] for n in group["params"]]} for group in inputs["groups"]]
    return parameters, groups


def as_option(value):
    return tuple(value) if isinstance(value, list) else value


def make(student, inputs, groups):
    options = {name: as_option(value) for name, value in inputs["options"].items()}
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


def train(student, inputs, tools):
    """Some steps with given gradients. What is changed before which step is said in the inputs."""
    parameters, given = begin(inputs)
    changed = False
    optimizer = make(student, inputs, given)
    memory = [parameter.detach() for parameter in parameters]
    if "before" in inputs:
        for parameter, gradient in zip(parameters, inputs["before"], strict=True):
            parameter.grad = torch.from_numpy(gradient).clone()
        optimizer.step()
        for there, weight in zip(memory, inputs["weights"], strict=True):
            there.copy_(torch.from_numpy(weight))
    if "state" in inputs:
        whole = {**inputs["state"], "state": tensors(inputs["state"]["state"])}
        before = whole_state(whole)
        optimizer.load_state_dict(whole)
        after = whole_state(whole)
        changed = str(before) != str(after)
        del inputs["state"], whole, before, after
    scheduler = None
    if "gamma" in inputs:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, inputs["gamma"])
    weights, left = [], []
    for number, gradients in enumerate(inputs["gradients"]):
        for step, group, name, value in inputs.get("changes", []):
            if step == number:
                optimizer.param_groups[group][name] = as_option(value)
        optimizer.zero_grad()
        left += [n for n, p in enumerate(parameters) if p.grad is not None and p.grad.any()]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else torch.from_numpy(gradient).clone()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        weights.append([parameter.detach().numpy().copy() for parameter in parameters])
        if inputs.get("whole") and number == 0:
            optimizer.state_dict()  # what is asked for in the middle must not change what comes
    moved = [n for n, p in enumerate(parameters) if p.data_ptr() != memory[n].data_ptr()]
    whole = whole_state(optimizer.state_dict()) if inputs.get("whole") else None
    return {"weights": weights, "left": left, "whole": whole, "moved": moved, "changed": changed}


def whole_state(whole):
    """A state_dict as it can be sent; words if it is none."""
    if whole is None:
        return None
    if not isinstance(whole, dict) or not isinstance(whole.get("state"), dict) or "param_groups" not in whole:
        return f"no dict with state and param_groups, but {str(whole)[:80]}"
    strange = [number for number in whole["state"] if type(number) is not int]
    return {
        "keys": sorted(map(str, whole)),
        "strange": f"{type(strange[0]).__name__} {strange[0]!s:.40}" if strange else None,
        "state": {str(number): sendable(dict(one)) for number, one in whole["state"].items()},
        "param_groups": [sendable(group) for group in whole["param_groups"]],
    }


def wide(state, rows):
    """A state whose tensors are one row each, with as many rows as the parameters have."""

    def all_rows(value, count):
        return value.expand(count, -1).clone() if torch.is_tensor(value) and value.ndim else value

    return {
        number: {name: all_rows(value, rows[number]) for name, value in one.items()}
        for number, one in tensors(state).items()
    }


def large(student, inputs, tools):
    """Two steps with large parameters, all rows of each alike. The number by which a gradient is multiplied
    comes from the judge, who looks at memory and traffic before."""
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

    def ask(name):
        with torch.no_grad():
            ends = [[parameter.amin(0), parameter.amax(0)] for parameter in parameters]
        settle()
        return tools.ask(name, torch.stack([torch.stack(one) for one in zip(*ends, strict=True)]))

    number, between = ask("before"), inputs["between"]
    optimizer = make(student, inputs, parameters)
    for step, gradients in enumerate(inputs["gradients"]):
        if step == 1 and between == "state_dict":
            optimizer.state_dict()
            number = ask(between)
        if step == 1 and between == "load_state_dict":
            whole = inputs["state"]
            optimizer.load_state_dict({**whole, "state": wide(whole["state"], inputs["rows"])})
            number = ask(between)
        for place, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            if parameter.grad is None:
                raise RuntimeError(f"your code has removed the gradient of parameter {place}: keep gradients")
            parameter.grad.copy_(torch.from_numpy(gradient)).mul_(number)
        optimizer.step()
        number = ask(f"step {step}")
    return {}
