"""Runs the student's file of exercise 15 in a rank: hands over tensors, and what became of them."""

import torch
from asking import tensor
from give_back import own_pages, settle

NAMES = ("query", "key", "value")


def view(value):
    """Given as texts x positions x heads x size, as a model has it; seen with heads before positions."""
    return tensor(value).transpose(1, 2)


def detached(value):
    """A copy of what is there now, if it is a tensor."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def several(value):
    """What came in a tuple or a list, for the judge to look at."""
    return [detached(one) for one in value] if isinstance(value, tuple | list) else detached(value)


def order(student, inputs, tools):
    """The positions of several ranks, and which halves meet."""
    found = [detached(student.positions(*case)) for case in inputs["positions"]]
    pairs = [student.meetings(*case) for case in inputs["meetings"]]
    return {"positions": found, "meetings": [[several(pair) for pair in one] for one in pairs]}


def some_keys(student, inputs, tools):
    """attend, for several cases."""
    found = []
    for case in inputs["cases"]:
        given = [tensor(one) for one in case]
        came = several(student.attend(*given))
        changed = [not one.equal(tensor(before)) for one, before in zip(given, case, strict=True)]
        found.append({"came": came, "changed": changed})
    return found


def merged(student, inputs, tools):
    """merge, for several cases."""
    found = []
    for case in inputs["cases"]:
        given = [tensor(one) for one in case]
        came = several(student.merge(*given))
        changed = [not one.equal(tensor(before)) for one, before in zip(given, case, strict=True)]
        found.append({"came": came, "changed": changed})
    return found


def around(function, inputs, names):
    """What a function returns, and what it has left of its inputs."""
    given = [view(inputs[name]) for name in names]
    with torch.no_grad():
        found = several(function(*given))
    return {"found": found, "after": [one.clone() for one in given]}


def forward(student, inputs, tools):
    return around(student.ring_forward, inputs, NAMES)


def backward(student, inputs, tools):
    """ring_backward, with the right output and log_sum_exp."""
    return around(student.ring_backward, inputs, (*NAMES, "output", "log_sum_exp", "gradient"))


def large(student, inputs, tools):
    """Forward or backward with large tensors, made here of thin ones. What is right depends on a
    number for which the judge is asked; it looks at memory and bytes when it is asked, before and after."""
    own_pages()
    warm_up()

    def ask(name):
        settle()
        tools.event(name)
        return tools.ask(name)

    ask("before")
    with torch.no_grad():
        wholes = {name: tensor(one) @ tensor(other) for name, (one, other) in inputs["thin"].items()}
        given = {name: one[None, None] for name, one in wholes.items()}
        # On each rank another number: what is right depends on all, and no rank has those of the others.
        given[inputs["secret"]].mul_(ask("made"))
        tensors = [given[name] for name in NAMES]
        if inputs["secret"] == "value":
            found = student.ring_forward(*tensors)
        else:
            log_sum_exp = tensor(inputs["log_sum_exp"])[None, None]
            found = student.ring_backward(*tensors, given["output"], log_sum_exp, given["gradient"])
        first = ask("after")
    # What is to be seen of it, nobody knew before.
    return [one[..., first : first + inputs["columns"]] if one.shape[-1] > 1 else one for one in found]


def warm_up():
    """Have the code of torch that attention needs in memory: it would be counted as the student's."""
    with torch.no_grad():
        small = torch.randn(2, 1, 4, 8)
        scores = small @ small.mT
        torch.logaddexp(scores, scores).masked_fill(scores > 0, -torch.inf).softmax(-1)
        torch.stack([small, small]).logsumexp(-1).exp().sum()
