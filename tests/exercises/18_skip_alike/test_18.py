"""Exercise 18: all ranks skip the same steps.

| axis | checked in |
| --- | --- |
| world size 1 to 4 | 2a, 3a; 2 and 3: 3b, 3c |
| dtype | 2a: float32 and float64 on the same rank; 3c: a model in float64 |
| memory layout | 2a: a matrix stored by columns |
| calls | 1a to 1c, 2a, 3a to 3e: several |
| modes | excluded: the model has no layer that knows one |
| frozen | 3a: frozen parameters, without a gradient |
| missing gradients | 2b: ranks without any |
| sizes | 1c: norms fewer than `count`; 2a: empty tensors; 3a to 3e: 1 to 3 micro-batches per step, of 3 to \
5 examples |
| seeds | the functions have none |
| tied, unused | 3a: a parameter that the model does not use |
"""

import math
import struct
from statistics import median

import pytest
import torch
from grader.testing import close, floats, integers, require, run, same, so_many, tried
from optimizers import Optimizer
from torch import nn
from torch.nn.functional import cross_entropy

NAN, INF = math.nan, math.inf
CLIP = 0.5
SGD = ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05})
ADAM = ("Adam", {"lr": 0.05, "eps": 0.02})


# ---- what runs in each rank: a body, and what it mentions of this file


def judge(student, me, given):
    """One guard, asked about several norms; and another one, which gets its norms in the middle."""
    guard = student.Guard(**given["options"])
    answers = []
    resumed = []
    for number, norm in enumerate(given["norms"]):
        if number == given["saved_after"]:
            other = student.Guard(**given["options"])
            other.norms = list(map(float, guard.norms))
        answers.append(guard.accepts(norm))
        if number >= given["saved_after"]:
            resumed.append(other.accepts(norm))
    return {"answers": answers, "resumed": resumed, "norms": guard.norms}


def totals(student, me, cases):
    found = []
    for gradients in cases:
        kept = [gradient.clone() for gradient in gradients]
        norm = student.total_norm(gradients)
        changed = 0
        for gradient, before in zip(gradients, kept, strict=True):
            if not torch.equal(gradient.nan_to_num(), before.nan_to_num()):
                changed += 1
        found.append({"norm": norm, "changed": changed})
    return found


class Limit:
    """A guard with a fixed limit, which notes what it is asked."""

    def __init__(self, limit):
        self.limit = limit
        self.asked = []

    def accepts(self, norm):
        self.asked.append(norm)
        return bool(norm <= self.limit)


class Model(nn.Module):
    """Two layers, the first bias frozen, and a parameter that nothing uses."""

    def __init__(self, state):
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.last = nn.Linear(6, 3)
        self.spare = nn.Parameter(torch.zeros(4))
        self.to(state["first.weight"].dtype).load_state_dict(state)
        self.first.bias.requires_grad_(False)

    def forward(self, inputs):
        return self.last(self.first(inputs).relu())


def train(student, me, given):
    """Some steps, with one list of micro-batches for each."""
    model = Model(given["state"])
    guard = Limit(given["limit"])
    name, options = given["optimizer"]
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    falls = given["rate_falls"]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step) if falls else 1.0)
    came = {"taken": [], "weights": [], "rates": [], "asked": [], "shared": []}  # of each step
    for micro_batches in given["steps"]:
        came["rates"].append(optimizer.param_groups[0]["lr"])
        before = len(guard.asked)
        messages = len(me.calls)
        taken = student.train_step(model, optimizer, scheduler, guard, micro_batches, given["clip"])
        came["taken"].append(taken)
        came["asked"].append(guard.asked[before:])
        came["shared"].append(how_many_begin(me.calls[messages:]))
        weights = {}
        for name, one in model.named_parameters():
            weights[name] = one.detach().clone()
        came["weights"].append(weights)
    return came


def how_many_begin(calls):
    count = 0
    for call in calls:
        if call.get("phase") == "begin":
            count += 1
    return count


# ---- what is drawn, and what is right


def check_guard(norms, times, count, fewest, reads_norms=False):
    options = {"times": times, "count": count, "fewest": fewest}
    accepted = []
    expected = []
    for norm in norms:
        known = accepted[-count:]
        usual = median(known) if len(known) >= fewest else INF
        is_right = math.isfinite(norm) and norm <= times * usual
        expected.append(is_right)
        if is_right:
            accepted.append(norm)
    half = len(norms) // 2
    given = {"options": options, "norms": norms, "saved_after": half}
    (came,) = run(judge, [given], group=False)
    same("the list of answers", came["answers"], expected)
    what = f"the list of answers of a guard that got `norms` after {half} answers, as in a resumed run,"
    same(what, came["resumed"], expected[half:])
    if not reads_norms:
        return
    same("the length of `norms` at the end", len(came["norms"]), len(accepted[-count:]))
    for number, norm in enumerate(accepted[-count:]):
        close(f"entry {number} of `norms` at the end", came["norms"][number], norm)


def usual_norms(number):
    """Norms near 1."""
    return (1 + 0.1 * floats(number).tanh()).tolist()


def test_1a_not_finite():
    """12 norms near 1, and among them NaN and infinity, also at the beginning; times=4, count=5, fewest=3"""
    norms = [NAN, INF, *usual_norms(3)]
    norms += [NAN, *usual_norms(3)]
    norms += [INF, *usual_norms(3)]
    norms += [NAN, INF, *usual_norms(3)]
    check_guard(norms, 4.0, 5, 3)


def test_1b_too_large():
    """Norms near 1, and among them some above the limit, some just below it; the first four are accepted;
    times=4, count=6, fewest=4"""
    norms = [*usual_norms(3), 30.0, 40.0]
    norms += [*usual_norms(6), 4.7, 3.4]
    norms += [*usual_norms(3), 50.0, 3.2]
    norms += [*usual_norms(4), 5.0]
    check_guard(norms, 4.0, 6, 4)


def test_1b_exactly_the_limit():
    """Norms of 2, then 6.0 and 6.0001; times=3, count=4, fewest=2"""
    check_guard([2.0, 2.0, 2.0, 6.0001, 6.0, 2.0, 2.0], 3.0, 4, 2)


def test_1b_an_even_number_of_norms():
    """The first two norms are 1 and 3, so their median is 2; then 5, which is above the limit, and 3.5, which
    is not; times=2, count=4, fewest=2"""
    check_guard([1.0, 3.0, 5.0, 3.5], 2.0, 4, 2)


def test_1c_skipped_norms_do_not_count():
    """After 4 norms near 1, 20 norms of 10 in a row; times=4, count=8, fewest=4"""
    check_guard([*usual_norms(4), *[10.0] * 20, *usual_norms(2)], 4.0, 8, 4, reads_norms=True)


def test_1c_only_the_last_norms_count():
    """40 norms that grow by 10% each; times=2, count=5, fewest=1; one above the limit in between"""
    growing = [1.1**step for step in range(40)]
    check_guard([*growing[:20], 3 * growing[20], *growing[20:]], 2.0, 5, 1, reads_norms=True)


def bits(number):
    return struct.pack("d", number).hex() if isinstance(number, float) else repr(number)


def all_numbers(gradients):
    """The numbers of all ranks in one tensor, in float64."""
    numbers = [torch.zeros(1).double()]  # for the case that there are none
    for mine in gradients:
        for gradient in mine:
            numbers.append(gradient.double().flatten())
    return torch.cat(numbers)


def of_each_rank(calls):
    """From a list that has, for each call, something for each rank: for each rank, its own part of each
    call."""
    return [list(own) for own in zip(*calls, strict=True)]


def check_totals(cases):
    """`cases` has, for each call, the gradients of each rank."""
    ranks = run(totals, of_each_rank(cases))
    for number, gradients in enumerate(cases, 1):
        numbers = all_numbers(gradients)
        right = numbers.square().sum().sqrt().item()
        for rank, came in enumerate(ranks):
            what = f"total_norm on rank {rank} (call {number})"
            got = came[number - 1]["norm"]
            same(f"the type of {what}", type(got).__name__, "float")
            if math.isfinite(right):
                close(what, got, right, 1e-9 if numbers.abs().max() > 1e10 else 1e-6, scale=right)
            else:
                require(not math.isfinite(got), f"{what} is {got:.4g}", "NaN or infinity")
            is_same = bits(got) == bits(ranks[0][number - 1]["norm"]) or not math.isfinite(right)
            require(is_same, f"{what} is not rank 0's to the last bit", "equal numbers on all ranks")
            same(f"the number of gradients that {what} has changed", came[number - 1]["changed"], 0)


@pytest.mark.parametrize("world_size", [2, 3, 1, 4])
def test_2a_over_all_ranks(world_size):
    """Two calls; each rank has other tensors, of float32 and float64; a matrix is stored by columns"""
    cases = []
    for _ in range(2):
        matrices = [floats(4, 3).t() * 10**rank for rank in range(world_size)]
        gradients = []
        for rank, matrix in enumerate(matrices):
            gradients.append([matrix, floats(2 + rank).double(), floats(0)])
        cases.append(gradients)
    check_totals(cases)


@pytest.mark.parametrize("number", [NAN, INF, -INF])
def test_2b_not_finite_on_one_rank(number):
    tried(f"3 processes; a gradient on rank 1 has the number {number}; rank 2 has no gradients")
    bad = floats(4)
    bad[2] = number
    check_totals([[[floats(3)], [floats(2), bad], []]])


def test_2b_huge():
    """2 processes; the numbers are near 1e25, so their squares are too large for float32; rank 0 has none"""
    check_totals([[[], [1e25 * floats(5), 1e25 * floats(3)]]])


def drawn_state(double=False):
    shapes = {"first.weight": (6, 5), "first.bias": (6,), "last.weight": (3, 6), "last.bias": (3,)}
    shapes["spare"] = (4,)
    state = {}
    for name, shape in shapes.items():
        state[name] = floats(*shape).double() if double else floats(*shape)
    return state


def drawn_batch(number, double=False):
    inputs = floats(number, 5)
    if double:
        inputs = inputs.double()
    return inputs, integers(0, 3, number)


def large_batch(state, number, factor):
    """A batch whose gradient is large: its inputs are, and the model finds its labels the least likely."""
    inputs = factor * floats(number, 5).to(state["first.weight"].dtype)
    return inputs, Model(state)(inputs).argmin(dim=1)


def spoiled(batch, with_number):
    inputs, labels = batch
    inputs = inputs.clone()
    inputs[-1, 2] = with_number
    return inputs, labels


def backward(model, step):
    """The norm of the gradient of a step in the reference, and the gradients. `step` has the micro-batches of
    each rank."""
    for mine in step:
        for inputs, labels in mine:
            loss = cross_entropy(model(inputs.double()), labels)
            (loss / len(mine) / len(step)).backward()
    gradients = []
    for parameter in model.parameters():
        if parameter.grad is not None:
            gradients.append(parameter.grad)
    numbers = torch.cat([one.flatten() for one in gradients])
    return numbers.norm().item(), gradients


def check_steps(steps, optimizer, state, limit=INF, rate_falls=False, counts_messages=False):
    """`steps` has, for each step, the micro-batches of each rank. Returns which steps are taken."""
    name, options = optimizer
    given = {"state": state, "limit": limit, "clip": CLIP, "optimizer": optimizer, "rate_falls": rate_falls}
    ranks = run(train, [given | {"steps": own} for own in of_each_rank(steps)])

    right = Model(state).double()
    stepper = Optimizer(name, right.parameters(), dict(options))
    taken = []
    for number, step in enumerate(steps, 1):
        stepper.zero_grad()
        norm, gradients = backward(right, step)
        if abs(norm / limit - 1) < 0.01:
            raise RuntimeError("the grader has drawn a norm at the limit")
        is_taken = math.isfinite(norm) and norm <= limit
        taken.append(is_taken)
        rate = options["lr"] / (number if rate_falls else 1)
        stepper.options["lr"] = rate
        after = f"after step {number} (skipped)"
        if is_taken:
            after = f"after step {number}"
            for gradient in gradients:
                gradient *= min(1.0, CLIP / (norm + 1e-6))
            stepper.step()

        for rank, came in enumerate(ranks):
            compare_step(came, rank, number, norm, is_taken)
            for name, expected in right.named_parameters():
                what = f"{name} {after} on rank {rank}"
                close(what, came["weights"][number - 1].get(name), expected.detach(), 2e-4, scale=1.0)
            close(f"the learning rate in step {number} on rank {rank}", came["rates"][number - 1], rate, 1e-6)
            if counts_messages:
                what = f"the number of collectives in step {number} on rank {rank}"
                same(what, came["shared"][number - 1], len(gradients))
        compare_ranks(ranks, state, number)
    return taken


def compare_step(came, rank, number, norm, is_taken):
    """What a rank asked the guard in a step, and what it returned."""
    where = f"in step {number} on rank {rank}"
    same(f"how often the guard was asked {where}", len(came["asked"][number - 1]), 1)
    (asked,) = came["asked"][number - 1]
    what = f"the norm that the guard was asked about {where}"
    same(f"the type of {what}", type(asked).__name__, "float")
    if math.isfinite(norm):
        close(what, asked, norm, 1e-4, scale=norm)
    else:
        require(not math.isfinite(asked), f"{what} is {asked:.4g}", "NaN or infinity")
    same(f"what train_step returned {where}", came["taken"][number - 1], is_taken)


def compare_ranks(ranks, state, number):
    first = ranks[0]["weights"][number - 1]
    for rank, came in enumerate(ranks[1:], 1):
        own = came["weights"][number - 1]
        for name in state:
            what = f"after step {number}, {name} on rank {rank} is not rank 0's to the last bit"
            require(torch.equal(first[name], own[name]), what, "equal weights on all ranks")


def drawn_steps(number, world_size, parts, double=False):
    """`parts` micro-batches of 3 and more examples for each rank, in each step."""
    steps = []
    for _ in range(number):
        step = []
        for _ in range(world_size):
            step.append([drawn_batch(3 + part, double) for part in range(parts)])
        steps.append(step)
    return steps


@pytest.mark.parametrize(
    "world_size, parts, optimizer", [(2, 1, SGD), (3, 2, ADAM), (1, 3, SGD), (4, 1, SGD)]
)
def test_3a_no_bad_batch(world_size, parts, optimizer):
    several = so_many(parts, "micro-batch", "micro-batches")
    many = so_many(world_size, "process")
    tried(f"{many}, 3 steps with {several} each, {optimizer[0]}; `first.bias` is frozen")
    check_steps(drawn_steps(3, world_size, parts), optimizer, drawn_state(), rate_falls=True)


@pytest.mark.parametrize("number", [NAN, INF])
def test_3b_not_finite_on_one_rank(number):
    tried(f"2 processes, 4 steps of SGD; in step 2, an input on rank 1 is {number}")
    steps = drawn_steps(4, 2, 1)
    steps[1][1] = [spoiled(steps[1][1][0], number)]
    assert check_steps(steps, SGD, drawn_state()) == [True, False, True, True]


def test_3b_nan_in_the_first_micro_batch():
    """3 processes, 3 steps of Adam with 3 micro-batches each; in step 2, an input in the first micro-batch
    of rank 0 is NaN"""
    steps = drawn_steps(3, 3, 3)
    steps[1][0][0] = spoiled(steps[1][0][0], NAN)
    assert check_steps(steps, ADAM, drawn_state()) == [True, False, True]


@pytest.mark.parametrize("double", [False, True])
def test_3c_large_on_one_rank(double):
    more = " (everything is float64)" if double else ""
    tried(
        "2 processes, 5 steps of SGD with 2 micro-batches each; the guard's limit is 60; in steps 2 and 4, "
        f"the first micro-batch of rank 1 has a far larger norm{more}"
    )
    state = drawn_state(double)
    steps = drawn_steps(5, 2, 2, double)
    for number in (1, 3):
        steps[number][1][0] = large_batch(state, 4, 2000.0)
    assert check_steps(steps, SGD, state, limit=60.0) == [True, False, True, False, True]


def test_3c_large_only_before_the_average():
    """3 processes, 2 steps of SGD; in step 1, the norm of rank 1's own gradient is above the guard's limit,
    and the norm of the averaged gradient is below it"""
    state = drawn_state()
    steps = drawn_steps(2, 3, 1)
    steps[0][1] = [large_batch(state, 4, 30.0)]
    own, _ = backward(Model(state).double(), steps[0][1:2])
    averaged, _ = backward(Model(state).double(), steps[0])
    assert check_steps(steps, SGD, state, limit=(own * averaged) ** 0.5) == [True, True]


def test_3d_the_schedule_goes_on():
    """2 processes, 5 steps of Adam with a learning rate that falls in each step; the inputs of rank 0 in
    steps 2 and 3 have NaN"""
    steps = drawn_steps(5, 2, 1)
    for number in (1, 2):
        steps[number][0] = [spoiled(steps[number][0][0], NAN)]
    taken = check_steps(steps, ADAM, drawn_state(), rate_falls=True)
    assert taken == [True, False, False, True, True]


def test_3e_no_further_message():
    """3 processes, 3 steps of SGD with 3 micro-batches each; an input of rank 2 in step 2 is NaN; the
    collectives of each step are counted"""
    steps = drawn_steps(3, 3, 3)
    steps[1][2][1] = spoiled(steps[1][2][1], NAN)
    check_steps(steps, SGD, drawn_state(), counts_messages=True)
