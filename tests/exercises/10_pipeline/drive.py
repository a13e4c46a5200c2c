"""Runs the student's file of exercise 10 in a rank: hands over schedules and a stage, and what came."""

import mmap
import sys
import weakref

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

# What the exercise is done without. Nothing else imports it.
sys.modules["torch.distributed.pipelining"] = None


def pairs(schedules):
    """JSON has no tuples, and an action is one."""
    return [[tuple(action) for action in schedule] for schedule in schedules]


def schedules(student, inputs, tools):
    """The schedules of all stages, for several numbers of stages and micro-batches."""
    function = getattr(student, inputs["function"])
    return [
        [function(stage, stages, microbatches) for stage in range(stages)]
        for stages, microbatches in inputs["cases"]
    ]


def timeline(student, inputs, tools):
    """timeline of several lists of schedules; a ValueError is an answer, too."""
    results = []
    for schedules, forward_times, backward_times in inputs["cases"]:
        lines, refused = None, False
        try:
            lines = student.timeline(pairs(schedules), list(forward_times), list(backward_times))
        except ValueError:
            refused = True
        results.append({"refused": refused, "lines": lines})
    return results


def idle_share(student, inputs, tools):
    return [student.idle_share(pairs(lines)) for lines in inputs["cases"]]


def activations_held(student, inputs, tools):
    return [student.activations_held(schedule) for schedule in pairs(inputs["cases"])]


class Noted(torch.autograd.Function):
    """Changes nothing. Notes that a forward or a backward of the stage has been reached."""

    @staticmethod
    def forward(context, value, note, place, large):
        context.note, context.place = note, place
        if not large:
            return value.view_as(value)
        # Four megabytes, which the system has back as soon as neither graph nor output is there any more.
        memory = torch.frombuffer(mmap.mmap(-1, 4 << 20), dtype=torch.float32).fill_(0)
        context.save_for_backward(memory)
        return memory[: value.numel()].view_as(value).copy_(value)

    @staticmethod
    def backward(context, gradient):
        context.note("backward", context.place)
        return gradient, None, None, None


class Stage(nn.Module):
    """A linear layer and tanh. Tells what it is made to do, and how many of its inputs and outputs are still
    there; at some of its forwards it waits until it has been looked at from outside."""

    def __init__(self, inputs, tools):
        super().__init__()
        self.weight = nn.Parameter(torch.from_numpy(inputs["weight"]))
        self.large, self.looks = inputs.get("large", False), inputs.get("looks", [])
        self.inputs, self.outputs, self.tools = [], [], tools

    def note(self, action, place):
        alive = sum(one() is not None for one in self.inputs)
        # By its memory: output.detach() is another tensor, and keeps the same numbers.
        kept = sum(not one.expired() for one in self.outputs)
        self.tools.event("stage", action=action, place=place, alive=alive, kept=kept)
        if action == "forward" and place in self.looks:
            self.tools.mark(f"look {self.looks.index(place)}")

    def forward(self, data):
        place = len(self.inputs)
        self.inputs.append(weakref.ref(data))
        self.note("forward", place)
        output = Noted.apply(torch.tanh(data @ self.weight), self.note, place, self.large)
        self.outputs.append(StorageWeakRef(output.untyped_storage()))
        return output


def run(student, inputs, tools):
    """One batch through the pipeline. The stage tells what it is made to do, when it is."""
    stage = Stage(inputs, tools)
    stage.weight.grad = torch.from_numpy(inputs["gradient"]) if "gradient" in inputs else None

    def tensors(name):
        return None if inputs[name] is None else [torch.from_numpy(value) for value in inputs[name]]

    images, targets = tensors("images"), tensors("targets")
    shape = inputs["shape"] and tuple(inputs["shape"])
    tools.mark("before")
    loss = student.run(
        [tuple(action) for action in inputs["schedule"]],
        stage,
        images,
        targets,
        nn.functional.mse_loss,
        shape,
    )
    tools.mark("after")
    return {"loss": loss, "gradient": stage.weight.grad}
