"""Runs the student's file of exercise 11 in a rank: makes layers, goes forward and backward."""

import operator

import torch
from asking import leaf, tensor
from give_back import own_pages, settle
from torch import nn


def detached(value):
    """A copy of what is there now, if it is a tensor."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def gradient(parameter):
    return detached(getattr(parameter, "grad", None))


def cut(student, inputs, tools):
    """Shares of several matrices, for several ranks, before and after the whole is wiped."""
    found = []
    for case in inputs:
        weight, bias = tensor(case["weight"]), tensor(case["bias"])
        cut = student.cut_columns if case["columns"] else student.cut_rows
        share = list(cut(weight, bias, case["rank"], case["world_size"]))
        came = {"share": [detached(one) for one in share], "whole": weight.clone()}
        weight.zero_()
        if bias is not None:
            bias.zero_()
        found.append(came | {"share once wiped": [detached(one) for one in share]})
    return found


def functions(student, inputs, tools):
    """Copy or Sum alone, in a residual sum, behind a function that needs its output, without gradients."""
    apply, x, above = getattr(student, inputs["name"]).apply, leaf(inputs["x"]), tensor(inputs["above"])
    if inputs["columns"]:  # in memory column by column
        x, above = x.detach().mT.contiguous().mT.requires_grad_(), above.mT.contiguous().mT
    output = apply(x)
    found = {"output": detached(output), "x after forward": detached(x)}
    output.backward(above)
    found |= {"gradient": gradient(x), "x": detached(x), "above": detached(above)}
    x = leaf(inputs["x"])
    (x + apply(x)).backward(tensor(inputs["above"]))
    found["residual"] = gradient(x)
    x = leaf(inputs["x"])
    before = x.exp()
    output = apply(before)
    found["before"] = detached(before)
    output.backward(tensor(inputs["above"]))
    found["behind exp"] = gradient(x)
    with torch.no_grad():
        found["no_grad"] = detached(apply(tensor(inputs["x"])))
    return found


def layer(student, inputs, tools):
    """One layer, forward and backward. The whole is wiped before."""
    found = []
    for case in inputs["cases"]:
        weight, bias = tensor(case["weight"]), tensor(case["bias"])
        layer = getattr(student, inputs["name"])(weight, bias)
        weight.zero_()
        if bias is not None:
            bias.zero_()
        x = leaf(case["x"])
        output = layer(x)
        came = {"output": detached(output)}
        output.backward(tensor(case["above"]))
        came["names"] = sorted(name for name, p in layer.named_parameters() if p.requires_grad)
        for name in ("weight", "bias"):
            came[name] = detached(getattr(layer, name))
            came[f"{name}'s gradient"] = gradient(getattr(layer, name))
        found.append(came | {"x's gradient": gradient(x), "x": detached(x)})
    return found


NAMES = ("up.weight", "up.bias", "down.weight", "down.bias")


def block_of(student, weights):
    return student.FeedForward(*(tensor(weights[name]) for name in NAMES))


def held(module, get, names=NAMES):
    """Parameters or gradients, or None where there is none, by their names."""
    return {name: get(operator.attrgetter(name)(module)) for name in names}


def block(student, inputs, tools):
    """A feed-forward block, forward and backward; all but the first in evaluation mode."""
    found = []
    for case in inputs:
        block, x = block_of(student, case["weights"]).train(not found), leaf(case["x"])
        output = block(x)
        came = {"output": detached(output)}
        output.backward(tensor(case["above"]))
        came["gradients"] = held(block, gradient)
        found.append(came | {"x's gradient": gradient(x), "weights": held(block, detached)})
    return found


def large(student, inputs, tools):
    """Large matrices, made here of thin ones. What comes next depends on numbers for which the judge is
    asked; memory is looked at meanwhile, and what was sent."""
    own_pages()

    def ask(name, value=None):
        settle()
        tools.event(name)
        return tools.ask(name, detached(value))

    ask("before")
    wholes = [tensor(one) @ tensor(other) for one, other in inputs["thin"]]
    if inputs["block"]:
        block = student.FeedForward(wholes[0], None, wholes[1], None)
        up = block.up
    else:
        block = nn.Sequential(student.ColumnLinear(wholes[0], None), student.RowLinear(wholes[1], None))
        up = block[0]
    del wholes
    times = ask("made")
    # On each rank another number: what comes out depends on all of them, and no rank has those of the others.
    with torch.no_grad():
        up.weight.mul_(times)
    x = leaf(inputs["x"])
    output = block(x)
    output.backward(tensor(inputs["above"]) * ask("forward", output))
    ask("backward", x.grad)
    return {"output": detached(output), "x's gradient": gradient(x)}


class Model(nn.Module):
    """Ordinary layers, and blocks of the student's between them."""

    def __init__(self, student, inputs):
        super().__init__()
        self.first, self.norm, self.head = (ordinary(inputs[name]) for name in ("first", "norm", "head"))
        self.blocks = nn.ModuleList(block_of(student, weights) for weights in inputs["blocks"])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(self.norm(x))
        return self.head(x)


def ordinary(state):
    weight, bias = tensor(state["weight"]), tensor(state["bias"])
    made = nn.LayerNorm(len(bias)) if weight.ndim == 1 else nn.Linear(*reversed(weight.shape))
    made.to(weight.dtype).load_state_dict({"weight": weight, "bias": bias})
    return made


def all_of(model, get):
    found = held(model, get, ORDINARY)
    for number, block in enumerate(model.blocks):
        found |= {f"blocks.{number}.{name}": value for name, value in held(block, get).items()}
    return found


ORDINARY = ("first.weight", "first.bias", "norm.weight", "norm.bias", "head.weight", "head.bias")


def train(student, inputs, tools):
    """Some steps of training, with clipping if a largest norm is given."""
    model = Model(student, inputs["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=inputs["rate"], momentum=0.9)
    losses, norms = [], []
    for x, targets in inputs["batches"]:
        optimizer.zero_grad()
        loss = (model(tensor(x)) - tensor(targets)).square().mean()
        loss.backward()
        if inputs["largest"] is not None:
            norms.append(float(student.clip_gradients(model, inputs["largest"])))
        optimizer.step()
        losses.append(float(loss.detach()))
    return {"losses": losses, "norms": norms, "weights": all_of(model, detached)}


def by_itself(model):
    """The same layers, those of the blocks too, in a model that gives them other names."""
    blocks = (nn.Sequential(block.up, nn.GELU(), block.down) for block in model.blocks)
    return nn.Sequential(model.first, *blocks, model.norm, model.head)


def clip(student, inputs, tools):
    """Clip gradients that are given."""
    found = []
    for case in inputs["cases"]:
        model = Model(student, inputs["model"])
        for name, value in case["gradients"].items():
            model.get_parameter(name).grad = tensor(value)
        if case["kind"] == "shared":
            model.again = nn.Linear(*reversed(model.head.weight.shape), bias=False)
            model.again.weight = model.head.weight
        model.head.requires_grad_(case["kind"] != "frozen")
        whole = by_itself(model) if case["kind"] == "renamed" else model
        norm = student.clip_gradients(whole, case["largest"])
        came = {"norm": float(norm), "kind": type(norm).__name__}
        found.append(came | {"gradients": all_of(model, gradient)})
    return found
