"""Runs the student's file of exercise 10 in a rank: hands over schedules and a stage, and what came."""

import sys

import torch
from asking import Asking
from give_back import own_pages, settle
from torch import nn

# What the exercise is done without. Nothing else imports it.
sys.modules["torch.distributed.pipelining"] = None


def pairs(schedules):
    """JSON has no tuples, and an action is one."""
    return [[tuple(action) for action in schedule] for schedule in schedules]


def schedules(student, inputs, tools):
    """The schedules of all stages, for several numbers of stages and micro-batches."""
    function = getattr(student, inputs["function"])
    return [[function(stage, p, m) for stage in range(p)] for p, m in inputs["cases"]]


def timeline(student, inputs, tools):
    """timeline of several lists of schedules; a ValueError is an answer, too."""
    results = []
    for schedules, forward_times, backward_times in inputs["cases"]:
        given = pairs(schedules)
        try:
            lines = student.timeline(given, list(forward_times), list(backward_times))
            results.append({"refused": False, "lines": lines, "changed": given != pairs(schedules)})
        except ValueError:
            results.append({"refused": True, "lines": None})
    return results


def idle_share(student, inputs, tools):
    return [student.idle_share(pairs(lines)) for lines in inputs["cases"]]


def activations_held(student, inputs, tools):
    return [student.activations_held(schedule) for schedule in pairs(inputs["cases"])]


class Stage(nn.Module):
    """A linear layer and tanh. For each forward and each backward it asks the judge for a number, and shows
    with what it has been called. Nobody can go on with a micro-batch before, or in another order."""

    def __init__(self, inputs, tools):
        super().__init__()
        self.weight = nn.Parameter(torch.from_numpy(inputs["weight"]))
        self.tools, self.calls, self.settles = tools, 0, inputs.get("settles", [])
        self.most, self.transposes = len(inputs["schedule"]) // 2, inputs.get("transposes", False)

    def forward(self, data):
        place, self.calls = self.calls, self.calls + 1
        if place == self.most:
            raise RuntimeError(f"the stage is called once more, and the schedule has {place} forwards")

        def ask(way, value):
            if way == "forward" and place in self.settles:
                settle()
            return self.tools.ask(f"{way} {place}", value.detach()[:6])

        number = ask("forward", data)
        output = torch.tanh(data @ self.weight)
        if self.transposes:  # the same numbers, column after column in memory
            output = output.T.contiguous().T
        return Asking.apply(output, number, lambda gradient: ask("backward", gradient))


def run(student, inputs, tools):
    """One batch through the pipeline."""
    own_pages()
    stage = Stage(inputs, tools)
    stage.weight.grad = torch.from_numpy(inputs["gradient"]) if "gradient" in inputs else None

    def tensors(name):
        return None if inputs[name] is None else [torch.from_numpy(value) for value in inputs[name]]

    images, targets = tensors("images"), tensors("targets")
    shape = inputs["shape"] and tuple(inputs["shape"])
    schedule = [tuple(action) for action in inputs["schedule"]]
    loss = student.run(schedule, stage, images, targets, nn.functional.mse_loss, shape)
    return {
        "loss": loss,
        "gradient": stage.weight.grad,
        "weight": stage.weight.detach(),
        "schedule": schedule,
    }
