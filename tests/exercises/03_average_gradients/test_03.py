"""Exercise 03: DDP in its simplest form.

| axis | checked in |
| --- | --- |
| world size 1 to 4 | 1a, 2a |
| dtype | 2c: float64 |
| memory layout | 1c, 2c: a transposed weight, a weight in channels_last |
| calls | 2b, 2d, 2e: two and three calls with other gradients |
| missing gradients | 2d, 2e: on some ranks, on none, zeros |
| frozen | 1a, 2b |
| tied | 2c |
| buffers | 1b: integers, persistent=False, -inf and NaN |
| seeds, train or eval, batch sizes | the functions have none |
"""

import pytest
import torch
from grader.testing import close, require, run, same
from torch import nn

SHAPES = {"shift": (4,), "first.weight": (4, 5), "first.bias": (4,), "norm.weight": (4,), "norm.bias": (4,)}
SHAPES |= {"second.weight": (4, 4), "second.bias": (4,), "image.weight": (2, 3, 2, 2)}
BUFFERS = {"norm.running_mean": (4,), "norm.running_var": (4,), "scale": (4,)}
COUNTER = "norm.num_batches_tracked"
FIRST = ["first.weight", "first.bias"]


# ---- what runs in each rank: a body, and what it mentions of this file


class Model(nn.Module):
    """Two layers, a batch norm, a parameter of its own, and a buffer that state_dict() leaves out."""

    def __init__(self, state, tied=False, frozen=(), transposed=False, double=False):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))
        self.first = nn.Linear(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 4)
        self.image = nn.Conv2d(3, 2, 2, bias=False)
        self.register_buffer("scale", torch.zeros(4), persistent=False)
        if tied:
            self.third = nn.Linear(4, 4, bias=False)
            self.third.weight = self.second.weight
        if transposed:
            self.first.weight.data = torch.zeros(5, 4).t()
            self.image.to(memory_format=torch.channels_last)
        self.to(torch.float64 if double else torch.float32)
        for name, tensor in tensors(self).items():
            tensor.data.copy_(state.get(name, tensor.data))
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in frozen)


def tensors(model):
    return dict(model.named_parameters()) | dict(model.named_buffers())


def identity(tensor):
    """Of the object, and of the memory in which its numbers are."""
    return id(tensor), tensor.data_ptr()


def begin(student, me, given):
    """broadcast_model on a model that an optimizer holds already."""
    model = Model(**given)
    held = tensors(model)
    before = {}
    for name, tensor in held.items():
        before[name] = identity(tensor)
    student.broadcast_model(model)
    now = tensors(model)
    same = []
    trainable = []
    for name, tensor in now.items():
        if identity(tensor) == before.get(name):
            same.append(name)
        if tensor.requires_grad:
            trainable.append(name)
    return {"state": now, "held": held, "same": same, "trainable": trainable}


def average(student, me, given):
    """average_gradients, once for each step, on gradients that could come from any backward pass."""
    model = Model(**given["model"])
    held = tensors(model)
    before = {}
    for name, tensor in held.items():
        before[name] = tensor.detach().clone()
    found = []
    for gradients in given["steps"]:
        for name, parameter in model.named_parameters():
            parameter.grad = None
            if name in gradients:
                parameter.grad = torch.empty_like(parameter).copy_(gradients[name])
        student.average_gradients(model)
        averaged = {}
        for name, parameter in model.named_parameters():
            averaged[name] = None if parameter.grad is None else parameter.grad.clone()
        found.append(averaged)
    changed = []
    for name, tensor in held.items():
        if not tensor.equal(before[name]):
            changed.append(name)
    return {"gradients": found, "changed": changed, "left": left_out(me.calls)}


def left_out(calls):
    """The asynchronous calls that were not waited for, where others were."""
    waited = {call["number"] for call in calls if call["phase"] == "waited"}
    left = []
    for call in calls:
        is_handle = call["phase"] == "begin" and call["asynchronous"]
        if waited and is_handle and call["number"] not in waited:
            left.append(f"{call['event']} ({call['where']})")
    return left


# ---- what is drawn, and what is right


def states(world_size, buffers=False):
    """Other weights on each rank; with `buffers`, also other running means, a counter, and a scale."""
    shapes = SHAPES | BUFFERS if buffers else SHAPES
    found = []
    for _ in range(world_size):
        state = {}
        for name, shape in shapes.items():
            state[name] = torch.randn(shape)
        found.append(state)
    if buffers:
        for state in found:
            state[COUNTER] = torch.randint(1, 1 << 40, ())
    return found


@pytest.mark.parametrize("world_size", [2, 3, 1])
def test_1a_parameters_of_rank_0(world_size):
    """A model with 8 parameters, the first layer frozen, different weights on each rank"""
    given = states(world_size)
    trainable = [name for name in SHAPES if name not in FIRST]
    models = [{"state": state, "frozen": FIRST} for state in given]
    for rank, came in enumerate(run(begin, models)):
        for name in [*trainable, *FIRST]:
            frozen = " (frozen)" if name in FIRST else ""
            what = f"{name}{frozen} on rank {rank}"
            close(what, came["state"].get(name), given[0][name], dtype=torch.float32)
        same(f"the list of parameters that need a gradient on rank {rank}", came["trainable"], trainable)


def test_1b_buffers_of_rank_0():
    """3 processes; running mean, variance and counter of batch norm differ, and a buffer with
    persistent=False, which has -inf and NaN on ranks 1 and 2"""
    given = states(3, buffers=True)
    given[1]["scale"][0] = -torch.inf
    given[2]["scale"][1] = torch.nan
    models = [{"state": state} for state in given]
    for rank, came in enumerate(run(begin, models)):
        for name in BUFFERS:
            close(f"{name} on rank {rank}", came["state"].get(name), given[0][name], dtype=torch.float32)
        same(f"{COUNTER} on rank {rank}", came["state"].get(COUNTER), given[0][COUNTER])


@pytest.mark.parametrize("stored_by_columns", [False, True])
def test_1c_in_place(stored_by_columns):
    """2 processes; other code holds references to the model's tensors, as an optimizer does"""
    given = states(2, buffers=True)
    models = [{"state": state, "transposed": stored_by_columns} for state in given]
    for rank, came in enumerate(run(begin, models)):
        for name in [*SHAPES, *BUFFERS, COUNTER]:
            what = f"{name} on rank {rank}, seen through a reference taken before"
            if name == COUNTER:
                same(what, came["held"].get(name), given[0][name])
            else:
                close(what, came["held"].get(name), given[0][name])
            is_same = name in came["same"]
            require(is_same, f"{name} is a new tensor afterwards", "the same tensor, overwritten")


def drawn(world_size, *without, dtype=torch.float32):
    """Gradients of very different size on each rank: a mean of them cannot be mistaken for one of them."""
    found = []
    for rank in range(world_size):
        of_rank = {}
        for name, shape in SHAPES.items():
            if name not in without:
                of_rank[name] = torch.randn(shape, dtype=dtype) * 10**rank
        found.append(of_rank)
    return found


def mean(gradients, name):
    """Over all ranks, or None where no rank has one."""
    there = []
    for of_rank in gradients:
        if name in of_rank:
            there.append(of_rank[name].double())
    return sum(there) / len(gradients) if there else None


def check_average(*steps, apart=False, **options):
    """`steps` has, for each call of average_gradients, the gradients of each rank. `apart`: weights and
    buffers differ between the ranks, so that it is seen if they are exchanged."""
    world_size = len(steps[0])
    if options.get("double"):
        dtype, relative = torch.float64, 1e-13
    else:
        dtype, relative = torch.float32, 2e-5
    given = states(world_size, buffers=True) if apart else states(1) * world_size
    inputs = []
    for rank, state in enumerate(given):
        mine = [gradients[rank] for gradients in steps]
        inputs.append({"model": {"state": state, **options}, "steps": mine})
    ranks = run(average, inputs)

    for rank, came in enumerate(ranks):
        first = came["left"][0] if came["left"] else ""
        what = f"on rank {rank}, average_gradients waits for some of its exchanges only, and not for {first}"
        require(not came["left"], what, "wait() for each handle")
        for number, gradients in enumerate(steps):
            call = f" (call {number + 1})" if len(steps) > 1 else ""
            for name in SHAPES:
                is_frozen = name in options.get("frozen", ())
                got = came["gradients"][number].get(name)
                if is_frozen:
                    what = f"the gradient of {name} (frozen) on rank {rank}{call}"
                    expected = gradients[rank].get(name)
                else:
                    what = f"the gradient of {name} on rank {rank}{call}"
                    expected = mean(gradients, name)
                if expected is None:
                    require(got is None, f"{what} is not None", "None")
                else:
                    close(what, got, expected, relative, dtype=dtype)
                    is_same = is_frozen or torch.equal(got, ranks[0]["gradients"][number][name])
                    wanted = "equal numbers: models drift apart"
                    require(is_same, f"{what} is not rank 0's to the last bit", wanted)
        same(f"the list of weights and buffers that have changed on rank {rank}", came["changed"], [])


@pytest.mark.parametrize("world_size", [2, 3, 4, 1])
def test_2a_the_mean_over_all_ranks(world_size):
    """Different gradients on each rank"""
    check_average(drawn(world_size))


def test_2b_frozen_parameters_are_left_alone():
    """2 processes, the first layer frozen; in call 1 it has no gradients, in call 2 it has different
    gradients on each rank, from before it was frozen; weights and buffers differ between the ranks"""
    check_average(drawn(2, *FIRST), drawn(2), frozen=FIRST, apart=True)


def test_2c_a_parameter_that_two_layers_share():
    """3 processes; two layers share a weight"""
    check_average(drawn(3), tied=True)


def test_2c_matrices_stored_by_columns():
    """2 processes; one weight is transposed, another one is in channels_last"""
    check_average(drawn(2), transposed=True)


def test_2c_in_double_precision():
    """2 processes; a model in float64"""
    check_average(drawn(2, dtype=torch.float64), double=True)


@pytest.mark.parametrize("stored_by_columns", [False, True])
def test_2d_a_gradient_that_exists_only_on_some_ranks(stored_by_columns):
    """3 processes; in call 1, second.weight and image.weight have gradients only on ranks 0 and 1, norm.bias
    only on rank 2; in call 2, rank 1 has no gradient at all"""
    some = drawn(3)
    later = drawn(3)
    del some[2]["second.weight"], some[2]["image.weight"], some[0]["norm.bias"], some[1]["norm.bias"]
    later[1] = {}
    check_average(some, later, transposed=stored_by_columns)


def test_2e_a_gradient_that_exists_on_no_rank_stays_none():
    """2 processes; in call 1, second.bias has no gradient on any rank, first.bias only on rank 1; in call 2,
    second.bias has zeros on both ranks, first.bias has zeros only on rank 1, and the gradients of norm.bias
    have the mean zero; in call 3, all ranks have all gradients"""
    nowhere = drawn(2, "second.bias")
    zeros = drawn(2)
    del nowhere[0]["first.bias"]
    for rank in range(2):
        zeros[rank]["second.bias"] *= 0
        zeros[rank]["norm.bias"] = zeros[0]["norm.bias"] * (-1) ** rank
    zeros[1]["first.bias"] = zeros[0].pop("first.bias") * 0
    check_average(nowhere, zeros, drawn(2))
