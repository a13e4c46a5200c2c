"""Runs the student's file of exercise 16 in a rank: hands over tokens, and what became of them."""

import torch
from asking import leaf, tensor
from give_back import own_pages, settle
from torch import nn
from torch.nn.functional import gelu


def detached(value):
    """A copy of what is there now, if it is a tensor."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else None


def rows_of(case):
    """The tokens; those of float64 are in memory column by column."""
    x = leaf(case["x"])
    return x.detach().T.contiguous().T.requires_grad_() if x.dtype == torch.float64 else x


def kind(value):
    """What it is, in a word, where it is no tensor."""
    return None if isinstance(value, torch.Tensor) else type(value).__name__


def items(value):
    """What a function has given, if it is several things."""
    return list(value) if isinstance(value, list | tuple) else []


def gradient(value):
    return detached(getattr(value, "grad", None))


def route(student, inputs, tools):
    """Some routes, and the gradient of the logits where the weights are as many as they are to be."""
    found = []
    for case in inputs:
        logits, above = leaf(case["logits"]), tensor(case["above"])
        came = items(student.route(logits, case["top_k"], case["capacity"]))
        weights = came[2] if len(came) == 3 else None
        if isinstance(weights, torch.Tensor) and weights.shape == above.shape and weights.requires_grad:
            weights.backward(above)
        found.append({"came": [detached(one) for one in came], "gradient": gradient(logits)})
    return found


def balance(student, inputs, tools):
    """Parts of balancing losses."""
    found = []
    for case in inputs:
        logits = leaf(case["logits"])
        part = student.balancing_loss(logits, tensor(case["chosen"]))
        if isinstance(part, torch.Tensor) and part.requires_grad and part.numel() == 1:
            part.backward()
        found.append({"part": detached(part), "kind": kind(part), "gradient": gradient(logits)})
    return found


def dispatch(student, inputs, tools):
    """Tokens to their experts."""
    found = []
    for case in inputs:
        x = rows_of(case)
        came = items(student.dispatch(x, tensor(case["tokens"]), tensor(case["experts"]), case["number"]))
        arrived = came[0] if len(came) == 2 else None
        found.append({"arrived": [detached(one) for one in items(arrived)], "kind": type(arrived).__name__})
    return found


def there_and_back(student, inputs, tools):
    """Tokens to their experts, which are a matrix each, and back; with `backward`, their gradients too."""
    found = []
    for case in inputs["cases"]:
        x, weights = rows_of(case), leaf(case["weights"])
        experts = [leaf(one) for one in case["matrices"]]
        arrived, plan = student.dispatch(x, tensor(case["tokens"]), tensor(case["experts"]), case["number"])
        answers = [rows @ expert for rows, expert in zip(arrived, experts, strict=True)]
        output = student.combine(answers, plan, weights)
        came = {"output": detached(output), "kind": kind(output)}
        if inputs["backward"]:
            output.backward(tensor(case["above"]))
            came |= {"x": gradient(x), "weights": gradient(weights)}
            came["experts"] = [gradient(one) for one in experts]
        found.append(came)
    return found


def traffic(student, inputs, tools):
    """Wide rows there and back. What comes next depends on numbers for which the judge is asked."""
    x, weights, above = leaf(inputs["x"]), leaf(inputs["weights"]), tensor(inputs["above"])
    tools.event("begin")
    arrived, plan = student.dispatch(x, tensor(inputs["tokens"]), tensor(inputs["experts"]), inputs["number"])
    times = tools.ask("dispatched", [detached(one) for one in arrived])
    output = student.combine([one * times for one in arrived], plan, weights)
    back = tools.ask("combined", detached(output))
    output.backward(above * back)
    return {"x": gradient(x), "weights": gradient(weights)}


class Expert(nn.Module):
    """A feed-forward layer, as the lesson's experts are."""

    def __init__(self, up, down):
        super().__init__()
        self.up, self.down = nn.Parameter(up), nn.Parameter(down)

    def forward(self, x):
        return gelu(x @ self.up) @ self.down


def linear(weight):
    layer = nn.Linear(*reversed(weight.shape), bias=False)
    layer.weight = nn.Parameter(tensor(weight))
    return layer


def mixture_of(student, given):
    experts = [Expert(tensor(one["up"]), tensor(one["down"])) for one in given["experts"]]
    return student.Mixture(linear(given["router"]), experts, given["top_k"], given["capacity"])


def layer(student, inputs, tools):
    """One Mixture, forward."""
    came = []
    for case in inputs:
        mixture = mixture_of(student, case["layer"]).train(not case["evaluation"])
        came.append(items(mixture(leaf(case["x"]))))
    return [{"came": [detached(one) for one in some]} for some in came]


class Model(nn.Module):
    """Ordinary layers, and Mixtures of the student's between them."""

    def __init__(self, student, given):
        super().__init__()
        self.first, self.after_experts = linear(given["first"]), linear(given["after_experts"])
        self.blocks = nn.ModuleDict({name: mixture_of(student, one) for name, one in given["blocks"].items()})

    def forward(self, x):
        x, balance = self.first(x), 0
        for block in self.blocks.values():
            more, part = block(x)
            x, balance = x + more, balance + part
        return self.after_experts(x), balance


def named(model, get):
    """All parameters by name; those of experts with the numbers that they have on this process."""
    return {name: get(value) for name, value in model.named_parameters()}


def train(student, inputs, tools):
    """Some steps of training: parts of losses, gradients after add_up_gradients, weights at the end."""
    model = Model(student, inputs["model"])
    optimizer = torch.optim.SGD(model.parameters(), lr=inputs["rate"])
    losses, gradients = [], None
    for x, targets in inputs["batches"]:
        optimizer.zero_grad()
        output, balance = model(tensor(x))
        loss = (output - tensor(targets)).square().sum() / inputs["numbers"] + inputs["balance"] * balance
        loss.backward()
        student.add_up_gradients(model)
        gradients = gradients or named(model, gradient)
        optimizer.step()
        losses.append(float(loss.detach()))
    return {
        "losses": losses,
        "gradients": gradients,
        "weights": named(model, detached),
        "dtype": str(balance.dtype),
    }


def large(student, inputs, tools):
    """A Mixture of large experts, made here of thin matrices: those of this process only. What comes next
    depends on numbers for which the judge is asked; memory is looked at meanwhile, and what was sent."""
    own_pages()

    def ask(name, value=None):
        settle()
        return tools.ask(name, detached(value))

    ask("before")
    experts = [Expert(*(tensor(one) @ tensor(other) for one, other in thin)) for thin in inputs["thin"]]
    layer = student.Mixture(linear(inputs["router"]), experts, inputs["top_k"], None)
    # On each rank another number: what comes out depends on all of them, and no rank has those of the others.
    times = ask("made")
    with torch.no_grad():
        for expert in experts:
            expert.up.mul_(times)
    x = leaf(inputs["x"])
    output, _ = layer(x)
    output.backward(tensor(inputs["above"]) * ask("forward", output))
    ask("backward", x.grad)
    return {"output": detached(output), "x": gradient(x)}
