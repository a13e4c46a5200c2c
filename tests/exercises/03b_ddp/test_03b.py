"""Exercise 03b: DDP that sends while it still computes.

| axis | checked in |
| --- | --- |
| world size 1 to 4 | 2a, 3a, 5c |
| dtype | 1a, 3a: float64; 3a: bfloat16 |
| memory layout | 5c: weights stored by columns |
| calls | 3a to 3c, 4b, 5b, 5c: several steps; 5b: after an exception |
| modes | 2b: training, evaluation, no_grad; 4c: a backward pass in evaluation mode |
| calls at unusual places | 4b: forward between backward and finish; 5b: only backward in no_sync |
| frozen | 1b, 2a, 4c: before; 2b: all; 3c: a parameter that is frozen later |
| missing gradients | 3b, 3c, 5b: on some ranks, on none, zeros, no backward pass, all in no_sync |
| tied, unused | 4c; 3b, 3c, 5b |
| sizes | 3a, 4b: other numbers of images on each rank; 1b: no numbers, larger than a bucket |
| buffers | 2a, 2b: whole numbers, float64, persistent=False; 2b: new tensors in each forward |
| layers used in another order | 3b, 4b |
| other dtypes in one model, sparse gradients, add_module later | excluded by the docstring |
"""

import contextlib
import functools
import itertools
import random
import re
import time

import pytest
import torch
import torch.distributed as dist
from grader.testing import Verdict, close, floats, integers, require, run, same, so_many, tried
from torch import nn

# ---- what runs in each rank: a body, and what it mentions of this file


class Drift(nn.Module):
    """Buffers that drift apart, as those of batch norm do. Keeps what they were when forward began."""

    def __init__(self, buffers):
        super().__init__()
        for name, value in buffers.items():
            self.register_buffer(name, value.clone(), persistent=name != "unsaved")
        self.seen = []

    def forward(self, images):
        buffers = dict(self.named_buffers())
        copies = {}
        for name, buffer in buffers.items():
            copies[name] = buffer.clone()
        self.seen.append(copies)

        for name, buffer in buffers.items():
            setattr(self, name, buffer + len(images))  # a new tensor
        return images


class Reached(torch.autograd.Function):
    """Its backward says that the backward pass has come to the layer before."""

    @staticmethod
    def forward(context, value, note):
        context.note = note
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        context.note()
        return gradient, None


class Model(nn.Module):
    """Linear layers in a row, some of which may be left out, frozen, or share a weight with one before."""

    def __init__(self, widths, state, tied=(), frozen=(), order=None, buffers=None, columns=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(widths))
        for layer, other in tied:
            self.layers[layer].weight = self.layers[other].weight
        self.to(next(iter(state.values())).dtype)
        for name, parameter in self.named_parameters():
            parameter.data.copy_(state[name])
            parameter.requires_grad_(name not in frozen)
            if columns and parameter.ndim > 1:  # in memory column by column, as channels_last
                parameter.data = parameter.data.mT.contiguous().mT
        self.order = order or range(len(self.layers))
        self.drift = Drift(buffers or {})
        self.note = None  # what is called when backward has reached a layer

    def forward(self, images, skip=()):
        images = self.drift(images).to(self.layers[0].weight.dtype)
        for number in self.order:
            if number in skip:
                continue
            images = torch.tanh(self.layers[number](images))
            if self.note:
                images = Reached.apply(images, functools.partial(self.note, f"reached layers.{number}"))
        return images


def buckets(student, me, cases):
    """Buckets as lists of the parameters' numbers in model.parameters(), from 1 on."""
    found = []
    for given, bucket_bytes in cases:
        model = Model(**given)
        numbers = {}
        for number, parameter in enumerate(model.parameters(), start=1):
            numbers[id(parameter)] = number

        in_numbers = []
        for bucket in student.make_buckets(model.parameters(), bucket_bytes):
            in_numbers.append([numbers.get(id(one), "none of them") for one in bucket])
        found.append(in_numbers)
    return found


def wrap(student, me, given):
    """What a model has after it was wrapped, and what forward gives."""
    model = Model(**given["model"])
    before = dict([*model.named_parameters(), *model.named_buffers()])
    wrapped = student.Overlapped(model, 60)
    after = dict([*model.named_parameters(), *model.named_buffers()])
    state = {}
    replaced = []
    for name, tensor in after.items():
        state[name] = tensor.detach().clone()
        if before[name] is not tensor:
            replaced.append(name)
    outputs = [wrapped(given["images"], skip=[1]), wrapped(given["images"], [1])]
    return {"state": state, "outputs": outputs, "replaced": replaced}


def drift(student, me, given):
    """Forward again and again, in training or evaluation, with other buffers on each rank each time."""
    model = Model(**given["model"])
    wrapped = student.Overlapped(model, 100)
    for one in given["passes"]:
        for name, value in one["buffers"].items():
            getattr(model.drift, name).copy_(value)
        wrapped.train(one["training"])
        with contextlib.nullcontext() if one["grad"] else torch.no_grad():
            wrapped(torch.ones(2, 3))
    return model.drift.seen


class Progress:
    """What happens in a step, in order: calls of the student's code, and how far backward has come."""

    def __init__(self, me, due):
        self.me = me
        self.due = due  # how many buckets are full when backward has come to a layer
        self.patience = 2.0  # seconds
        self.begin = 0  # where in me.calls the step begins

    def calls(self):
        """Each call of the student's code with its bytes, and each note with 0."""
        found = []
        for call in self.me.calls[self.begin :]:
            # Only calls have a phase and a line; it is no line of the student's if this file has called.
            is_begin = call.get("phase", "begin") == "begin"
            if is_begin and call.get("where", "here"):
                found.append([call["event"], call.get("bytes", 0)])
        return found

    def sent(self):
        names = [event for event, _ in self.calls()]
        return names.count("all_reduce")

    def note(self, name):
        # A thread of the student's may send what is due now: it gets some time for that, 2 s in all.
        while self.sent() < self.due.get(name, 0) and self.patience > 0:
            self.patience -= 0.002
            time.sleep(0.002)
        self.me.note(name)


def no_sync_if(alone, wrapped):
    return wrapped.no_sync() if alone else contextlib.nullcontext()


def run_passes(model, wrapped, step, progress):
    """All passes of a step but the last are in no_sync, and the last one is, too, if the step is `quiet`.
    With `outside`, only the backward pass is in no_sync."""
    last = len(step["passes"]) - 1
    for number, (images, targets, skip) in enumerate(step["passes"]):
        alone = number < last or bool(step.get("quiet"))
        with no_sync_if(alone and not step.get("outside"), wrapped):
            if alone and number % 2:
                with wrapped.no_sync():  # the end of this block is not the end of the other
                    pass
            model.note = None if alone else progress.note
            loss = (wrapped(images.requires_grad_(), skip=skip) - targets).square().sum()
            with no_sync_if(alone, wrapped):
                (loss * step["factor"]).backward()
        if alone:
            progress.me.note("left no_sync")
        else:
            progress.note("ended")


def clear_gradients(parameters, zeros):
    for parameter in parameters.values():
        if zeros and parameter.grad is not None:
            parameter.grad.zero_()
        else:
            parameter.grad = None


def steps(student, me, given):
    """Steps of training. Each has passes, the last of them outside of no_sync."""
    model = Model(**given["model"])
    wrapped = student.Overlapped(model, given["bucket_bytes"]).train(not given.get("evaluation"))
    parameters = dict(model.named_parameters())
    progress = Progress(me, given.get("due", {}))
    found = []
    kept = []  # each gradient that finish has left, with a copy of what it was then
    for step in given["steps"]:
        progress.begin = len(me.calls)
        if step.get("fails"):
            with contextlib.suppress(ZeroDivisionError), wrapped.no_sync():
                raise ZeroDivisionError
        for name in step.get("freeze", []):
            parameters[name].requires_grad_(False)
        clear_gradients(parameters, given.get("zeros"))

        for rank in step.get("waits_for", []):
            dist.recv(torch.zeros(1), rank)
        time.sleep(step.get("sleep", 0))
        run_passes(model, wrapped, step, progress)
        if "tells" in step:
            dist.send(torch.zeros(1), step["tells"])
        if step.get("looks"):
            images, _, _ = step["passes"][-1]
            with torch.no_grad():
                wrapped.eval()(images)
            wrapped.train()
        wrapped.finish()

        gradients = {}
        for name, parameter in parameters.items():
            gradients[name] = None
            if parameter.grad is not None:
                gradients[name] = parameter.grad.clone()
                kept.append((name, parameter.grad, gradients[name]))
        for name, gradient in gradients.items():
            if gradient is not None:
                parameters[name].data -= given.get("rate", 0) * gradient
        of_images = [images.grad for images, _, _ in step["passes"]]
        found.append({"gradients": gradients, "of_images": of_images, "calls": progress.calls()})

    changed = set()
    for name, gradient, copy in kept:
        if not gradient.equal(copy):
            changed.add(name)
    return {"steps": found, "weights": parameters, "changed": sorted(changed)}


# ---- what is drawn, and what is right

# How far a gradient may be off, as a part of the largest gradient that a rank has before the mean: where the
# gradients of the ranks cancel, their mean is small, but keeps their rounding.
TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-10, torch.bfloat16: 0.05}


def draw(widths, tied=(), dtype=torch.float32, **more):
    """A model. Weights are such that tanh is neither a line nor saturated."""
    state = {}
    for layer, (inside, outside) in enumerate(itertools.pairwise(widths)):
        if layer not in dict(tied):
            state[f"layers.{layer}.weight"] = torch.randn(outside, inside, dtype=dtype) / inside**0.5
        state[f"layers.{layer}.bias"] = torch.randn(outside, dtype=dtype) * 0.1
    return {"widths": list(widths), "tied": list(tied), "state": state, **more}


def other_weights(model):
    state = {}
    for name, value in model["state"].items():
        state[name] = torch.randn_like(value)
    return model | {"state": state}


def draw_step(model, *counts, skips=None, factor=1.0, **more):
    """A step with a batch of so many images for each pass."""
    first, *_, last = model["widths"]
    skips = skips or [[]] * len(counts)
    passes = []
    for count, skip in zip(counts, skips, strict=True):
        images = floats(count, first)
        targets = floats(count, last)
        passes.append([images, targets, skip])
    return {"passes": passes, "factor": factor, **more}


def one_step_each(world_size, model, *counts, **more):
    """Each rank makes one step like this, with other images."""
    return [[draw_step(model, *counts, **more)] for _ in range(world_size)]


def by_step(ranks):
    """For each step, what each rank does in it. `ranks` has the list of steps of each rank."""
    return list(zip(*ranks, strict=True))


def buckets_of(model, bucket_bytes):
    """Names in buckets."""
    found = []
    full = 0  # bytes of the last bucket
    for name, value in reversed(model["state"].items()):
        if name in model.get("frozen", ()):
            continue
        if not found or full + value.nbytes > bucket_bytes:
            found.append([])
            full = 0
        found[-1].append(name)
        full += value.nbytes
    return found


def in_float64(state):
    return {name: value.double() for name, value in state.items()}


def gradients(model, state, ranks):
    """The gradients in float64 of each of the `ranks`, a step each."""
    found = []
    for step in ranks:
        twin = Model(**model | {"state": in_float64(state)})
        for name in step.get("freeze", ()):
            twin.get_parameter(name).requires_grad_(False)
        for images, targets, skip in step["passes"]:
            ((twin(images, skip) - targets).square().sum() * step["factor"]).backward()
        found.append({name: parameter.grad for name, parameter in twin.named_parameters()})
    return found


def mean(found):
    """The mean of the gradients of all ranks; None where no rank has one."""
    means = {}
    for name in found[0]:
        there = []
        for of_rank in found:
            if of_rank[name] is not None:
                there.append(of_rank[name])
        means[name] = sum(there) / len(found) if there else None
    return means


def largest(found, name):
    """The largest number that a rank has in this gradient."""
    of_ranks = []
    for of_rank in found:
        if of_rank[name] is not None:
            of_ranks.append(float(of_rank[name].abs().max()))
    return max(of_ranks)


def run_steps(model, bucket_bytes, ranks, apart=False, **more):
    """`ranks` has the list of steps of each rank. `apart`: all but rank 0 begin with weights of their own."""
    inputs = []
    for rank, mine in enumerate(ranks):
        begins_apart = apart and rank > 0
        own = other_weights(model) if begins_apart else model
        inputs.append({"model": own, "steps": mine, **more, "bucket_bytes": bucket_bytes})
    return run(steps, inputs)


def check_steps(model, bucket_bytes, ranks, **more):
    found = run_steps(model, bucket_bytes, ranks, **more)
    check_gradients(model, found, ranks)
    return found


def check_gradients(model, found, ranks):
    """The gradients after each step on all ranks are their mean."""
    for number, step in enumerate(by_step(ranks)):
        of_ranks = gradients(model, model["state"], step)
        expected = mean(of_ranks)
        for rank, came in enumerate(found):
            for name, value in expected.items():
                got = came["steps"][number]["gradients"].get(name)
                dtype = model["state"][name].dtype
                what = f"the gradient of {name} on rank {rank} after finish in step {number + 1}"
                if value is None:
                    require(got is None, f"{what} is a tensor", "None")
                else:
                    scale = max(largest(of_ranks, name), 0.05)
                    close(what, got, value, TOLERANCE[dtype], scale=scale, dtype=dtype)


def sorted_within(some):
    """The same buckets, with the numbers of each in order."""
    return [sorted(bucket, key=str) for bucket in some]


def check_buckets(*cases):
    (found,) = run(buckets, [list(cases)], group=False)
    for (model, most), got in zip(cases, found, strict=True):
        numbers = {}
        sizes = []
        for number, (name, value) in enumerate(model["state"].items(), start=1):
            numbers[name] = number
            sizes.append(str(value.nbytes))
        frozen = [numbers[name] for name in model.get("frozen", ())]
        tried(
            f"parameters of {', '.join(sizes)} bytes (frozen: {frozen}), bucket_bytes={most};"
            " each bucket is a list of parameter numbers, counted from 1"
        )

        wanted = []
        for bucket in buckets_of(model, most):
            wanted.append([numbers[name] for name in bucket])
        order = ""
        if sorted_within(got) == sorted_within(wanted):
            order = ", which is right except for the order within each bucket"
        require(got == wanted, f"the list of buckets is {got}{order}", str(wanted))


def test_1a_buckets_by_size():
    """Models without a process group"""
    widths = [random.randint(6, 11) for _ in range(8)]
    check_buckets(
        (draw(widths), random.randint(600, 1200)),
        (draw([7] * 7), 2 * 4 * (7 * 7 + 7)),  # a bucket is filled to the last byte
        (draw(widths, dtype=torch.float64), random.randint(1200, 2400)),
    )


def test_1b_frozen_and_large_parameters():
    """Models without a process group"""
    frozen = ["layers.1.weight", "layers.5.bias", "layers.4.bias"]
    check_buckets(
        (draw([5, 6, 40, 50, 6, 5, 7], frozen=frozen), 500),
        (draw([40, 30, 50], frozen=["layers.0.bias"]), random.randint(20, 90)),
        (draw([3, 4], frozen=["layers.0.weight", "layers.0.bias"]), 500),
        (draw([40, 30, 0]), 100),  # no bytes, and then a parameter that is larger than a bucket
    )


def drawn_buffers():
    """In float32, `total` would lose digits, and `count` in float64, too."""
    return {"total": floats(4).double() / 3, "count": integers(1 << 58, 1 << 60), "unsaved": floats(3)}


@pytest.mark.parametrize("world_size", [3, 1])
def test_2a_all_ranks_begin_equal(world_size):
    """Different parameters (layers.0.weight is frozen) and buffers on each rank; forward(images, skip=[1])
    and forward(images, [1])"""
    model = draw([5, 4, 4, 3], frozen=["layers.0.weight"])
    models = []
    for _ in range(world_size):
        models.append(other_weights(model) | {"buffers": drawn_buffers()})
    given = []
    for rank, own in enumerate(models):
        given.append({"model": own, "images": floats(rank + 2, 5)})

    expected = dict(models[0]["state"])
    for name, value in models[0]["buffers"].items():
        expected[f"drift.{name}"] = value
    calls = ("forward(images, skip=[1])", "forward(images, [1])")
    for rank, came in enumerate(run(wrap, given)):
        for name, value in expected.items():
            close(f"{name} on rank {rank}", came["state"].get(name), value)
        words = f"after __init__, the model on rank {rank} has new tensors: {came['replaced']}"
        require(came["replaced"] == [], words, "the same tensors with new values")
        output = Model(**models[0])(given[rank]["images"], [1])
        for call, got in zip(calls, came["outputs"], strict=True):
            close(f"what {call} returns on rank {rank}", got, output)


def test_2b_buffers_are_kept_equal():
    """3 processes, different buffers on each rank before each forward; two passes in training mode, then two
    in evaluation mode on the last rank alone, then one in training mode under no_grad(); all parameters
    are frozen"""
    modes = [(True, True), (True, True), (True, False)]  # training, with gradients
    alone = [*modes[:2], (False, True), (False, False), modes[2]]
    passes = []
    for mine in (modes, modes, alone):
        passes.append([])
        for training, grad in mine:
            passes[-1].append({"training": training, "grad": grad, "buffers": drawn_buffers()})

    model = draw([3, 3], frozen=["layers.0.weight", "layers.0.bias"], buffers=drawn_buffers())
    inputs = [{"model": model, "passes": mine} for mine in passes]
    for rank, seen in enumerate(run(drift, inputs)):
        of_rank_0 = iter(passes[0])
        for number, (one, got) in enumerate(zip(passes[rank], seen, strict=True), start=1):
            # In training, all ranks have the buffers of rank 0, in evaluation mode each has its own.
            if one["training"]:
                mode = "training"
                source = next(of_rank_0)
            else:
                mode = "evaluation"
                source = one
            if not one["grad"]:
                mode += ", under no_grad()"
            for name, value in source["buffers"].items():
                what = f"in forward number {number} ({mode}) on rank {rank}, the buffer {name!r}"
                if name == "count":
                    same(what, got[name], value)
                else:
                    close(what, got[name], value, relative=0)


@pytest.mark.parametrize(
    ("world_size", "dtype"), [(2, "float32"), (3, "float64"), (4, "bfloat16"), (1, "float32")]
)
def test_3a_every_gradient_is_the_mean(world_size, dtype):
    """2 steps, different images (and numbers of images) on each rank; one rank begins 0.05 s later"""
    model = draw([6, 5, 7, 4, 3], dtype=getattr(torch, dtype))
    ranks = []
    for rank in range(world_size):
        ranks.append([draw_step(model, 2 + rank + step, factor=1.0 + rank) for step in range(2)])
    random.choice(ranks)[0]["sleep"] = 0.05
    check_steps(model, 200, ranks)


@pytest.mark.parametrize(
    ("skips", "order"),
    [([[], []], [3, 2, 1, 0]), ([[1], [3, 0], [2]], None), ([[], [3], None, [0, 2]], None)],
)
def test_3b_gradients_that_are_missing_on_some_ranks(skips, order):
    """4 layers; which layers each rank skips (None: it has no backward at all), and the order of the layers
    in forward if it is another one than in the model"""
    model = draw([5] * 5, order=order)
    ranks = []
    for skip in skips:
        step = draw_step(model) if skip is None else draw_step(model, 3, skips=[skip])
        ranks.append([step])
    check_steps(model, 150, ranks)


def test_3c_gradients_that_are_missing_on_all_ranks():
    """3 processes, 6 steps; in step 1, no rank uses layers.1 and only rank 2 uses layers.2; in step 3, all
    gradients are zero; in step 4, ranks 0 and 1 have opposite gradients, rank 2 has zeros, and
    layers.3.weight is now frozen; in step 5, no rank has a backward pass; in step 6, only rank 1 has one, and
    its gradients are zero"""
    model = draw([5] * 5)
    skipped = [[1, 2], [1, 2], [1]]
    factors = (1.0, -1.0, 0.0)
    fourth = draw_step(model, 2)
    frozen = ["layers.3.weight"]
    ranks = []
    for rank in range(3):
        mine = [
            draw_step(model, 3, skips=[skipped[rank]]),
            draw_step(model, 2),
            draw_step(model, 2, factor=0.0),
            fourth | {"factor": factors[rank], "freeze": frozen},
            draw_step(model),
        ]
        if rank == 1:
            mine.append(draw_step(model, 2, factor=0.0, freeze=frozen))
        else:
            mine.append(draw_step(model))
        ranks.append(mine)
    check_steps(model, 10_000, ranks)


def test_4a_nobody_waits_in_backward():
    model = draw([6, 5, 7, 4, 3])
    late = random.randrange(3)
    tried(f"3 processes; rank {late} begins its backward only after the others have finished")
    others = [rank for rank in range(3) if rank != late]
    ranks = one_step_each(3, model, 3, tells=late)
    ranks[late] = [draw_step(model, 3, waits_for=others)]
    try:
        found = check_steps(model, 200, ranks)
    except Verdict as verdict:
        if verdict.status != "timeout":
            raise
        call = re.search(r"all_\w+ number \d+ \(line [^)]*\)", verdict.came)
        words = f"rank {late} had not begun its backward when another waited for it"
        if call:
            words += f" in {call[0]}"
        wanted = "backward and its hooks wait for no other rank: only finish waits"
        raise Verdict("failed", words, wanted) from None

    for rank, came in enumerate(found):
        (step,) = came["steps"]
        called = set()
        for event, _ in step["calls"]:
            if not event.startswith(("ended", "reached")):
                called.add(event)
        unexpected = ", ".join(sorted(called - {"all_reduce"}))
        what = f"in a step of a model without buffers, rank {rank} called {unexpected}"
        require(not unexpected, what, "only all_reduce")

        images, targets, _ = ranks[rank][0]["passes"][0]
        (Model(**model)(images.requires_grad_()) - targets).square().sum().backward()
        close(f"the gradient of the images on rank {rank}", step["of_images"][0], images.grad)


def square(**more):
    """6 layers of one size, and bucket_bytes such that a bucket ends in the middle of a layer."""
    width = random.randint(32, 43)
    return draw([width] * 7, **more), 4 * (2 * width * width + 4 * width)


def kilobytes(sizes):
    words = [f"{size / 1000:.1f} kB" for size in sizes]
    return " and ".join(words) or "nothing"


def first_place(bucket, order):
    """Where in forward the first of the layers comes that have a parameter in this bucket."""
    places = []
    for name in bucket:
        layer = int(name.split(".")[1])
        places.append(order.index(layer))
    return min(places)


def due_at(plan, order):
    """How many buckets are full when backward reaches each layer, and when it has ended. A bucket is full
    when backward has left all its layers. The last of them was the first in forward."""
    first = [first_place(bucket, order) for bucket in plan]
    due = {"ended": len(plan)}
    for place, layer in enumerate(order):
        full = 0
        while full < len(plan) and first[full] > place:
            full += 1
        due[f"reached layers.{layer}"] = full
    return due


def are_sent(full, sent, extra):
    """Whether these buckets have been sent in this order, each with at most `extra` bytes more."""
    if len(sent) < len(full):
        return False
    return all(size <= came <= size + extra for size, came in zip(full, sent, strict=False))


def check_overlap(model, most, ranks, **more):
    """When backward reaches a layer, the buckets that are full by then have been sent, each in one call."""
    plan = buckets_of(model, most)
    sizes = []
    for bucket in plan:
        size = 0
        for name in bucket:
            size += model["state"][name].nbytes
        sizes.append(size)
    due = due_at(plan, list(model.get("order") or range(6)))
    found = check_steps(model, most, ranks, apart=True, due=due, **more)

    extra = 4 * len(model["state"])
    of_each = f"one all_reduce for each of the {len(sizes)} buckets"
    for rank, came in enumerate(found):
        for number, step in enumerate(came["steps"], start=1):
            calls = [call for call in step["calls"] if call[0] != "left no_sync"]
            made = 0
            for event, _ in calls:
                if event not in due:
                    made += 1
            words = f"rank {rank} made {so_many(made, 'call')} of torch.distributed in step {number}"
            require(made - len(sizes) in (0, 1), words, f"{of_each} and at most one extra call")

            sent = []
            for event, size in calls:
                if event not in due:
                    sent.append(size)
                    continue
                full = sizes[: due[event]]
                words = f"when backward had {event} in step {number}, rank {rank} had sent {kilobytes(sent)}"
                good = are_sent(full, sent, extra)
                require(good, words, f"{kilobytes(full)}: {of_each}, as soon as it is full")


@pytest.mark.parametrize("world_size", [2, 3])
def test_4b_a_bucket_is_sent_as_soon_as_it_is_full(world_size):
    """6 layers; before finish in step 1, rank 0 runs forward in evaluation mode; what has been sent when
    backward reaches each layer?"""
    model, most = square()
    ranks = []
    for rank in range(world_size):
        ranks.append([draw_step(model, 2 + rank) for _ in range(4 - world_size)])
    ranks[0][0]["looks"] = True
    check_overlap(model, most, ranks)


def test_4b_the_first_bucket_is_full_last():
    """2 processes, 6 layers of the same size; forward runs the last layer first, so all other buckets are
    full before the first one"""
    model, most = square(order=[5, 4, 3, 2, 1, 0])
    check_overlap(model, most, one_step_each(2, model, 2))


@pytest.mark.parametrize(("world_size", "evaluation"), [(2, False), (3, True)])
def test_4c_shared_and_frozen_parameters(world_size, evaluation):
    """6 layers; layers.4 shares the weight of layers.1; layers.2.weight is frozen, and in evaluation mode
    layers.5, too"""
    frozen = ["layers.2.weight"]
    if evaluation:
        frozen += ["layers.5.weight", "layers.5.bias"]
    model, most = square(tied=[[4, 1]], frozen=frozen)
    ranks = [[draw_step(model, 2 + rank)] for rank in range(world_size)]
    check_overlap(model, most, ranks, evaluation=evaluation)


def test_5a_nothing_is_sent_in_no_sync():
    """3 processes, a model with buffers: two passes in no_sync (a nested no_sync block comes before the
    second), one pass outside, then finish"""
    model = draw([20, 20, 20], buffers={"total": floats(1000), "count": integers(1, 9)})
    ranks = one_step_each(3, model, 2, 2, 2)
    found = run_steps(model, 2000, ranks)
    wanted = "no call of torch.distributed: no gradients, no buffers"
    for rank, came in enumerate(found):
        done = 0
        called = []
        for event, _ in came["steps"][0]["calls"]:
            if event == "left no_sync":
                done += 1
                words = f"after pass {done} in no_sync, rank {rank} had called {', '.join(called)}"
                require(not called, words, wanted)
            else:
                called.append(event)
    check_gradients(model, found, ranks)


def test_5b_gradients_of_several_passes():
    """3 processes, 2 steps of 3 passes, the first two in no_sync; the ranks have different numbers of images;
    rank 0 uses layers.1 only in its first pass, the other ranks skip layers.2 in theirs; in step 2, all
    passes of rank 1 are in no_sync, and of the other ranks' first two passes only the backward pass"""
    model = draw([5] * 4)
    ranks = []
    for rank in range(3):
        skips = [[], [1], [1]] if rank == 0 else [[2], [], []]
        ranks.append([draw_step(model, *range(1 + rank, 4 + rank), skips=skips) for _ in range(2)])
    ranks[0][1]["outside"] = True
    ranks[1][1]["quiet"] = True
    ranks[2][1]["outside"] = True
    check_steps(model, 150, ranks)


def test_5b_after_an_exception():
    """2 processes, 6 layers; an exception is raised in no_sync and caught; then a step with two passes, the
    first in no_sync"""
    model, most = square()
    check_overlap(model, most, one_step_each(2, model, 2, 2, fails=True))


@pytest.mark.parametrize(
    ("world_size", "zero_gradients", "weights_by_columns"),
    [(1, True, False), (2, False, False), (3, True, False), (4, False, True)],
)
def test_5c_the_same_curve_as_one_process(world_size, zero_gradients, weights_by_columns):
    """Different weights at first, 4 steps of gradient descent in 2 passes each, gradients set to None or to
    zero before each step; compared with one process that has all images"""
    model = draw([6, 5, 5, 3]) | {"columns": weights_by_columns}
    rate = 0.1
    ranks = []
    for rank in range(world_size):
        ranks.append([draw_step(model, 1 + rank % 3, 1 + (rank + 1) % 3) for _ in range(4)])
    for of_ranks in by_step(ranks):
        total = 0
        for step in of_ranks:
            for images, _, _ in step["passes"]:
                total += len(images)
        for step in of_ranks:
            step["factor"] = world_size / total
    found = run_steps(model, 150, ranks, apart=True, zeros=zero_gradients, rate=rate)

    state = in_float64(model["state"])
    for of_ranks in by_step(ranks):
        means = mean(gradients(model, state, of_ranks))
        for name in state:
            state[name] = state[name] - rate * means[name]
    for rank, came in enumerate(found):
        # Zeros were written into the gradients of all steps but the last, if they are cleared like this.
        words = f"the gradients that rank {rank} got had changed by the end: {came['changed']}"
        require(zero_gradients or not came["changed"], words, "gradients in their own memory")
    for rank, came in enumerate(found):
        for name, value in state.items():
            close(f"{name} on rank {rank} after 4 steps", came["weights"].get(name), value, 1e-4)
