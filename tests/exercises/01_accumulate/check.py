"""What exercise 01 is held against. Runs in the judge."""

import itertools

import numpy
import torch
from judge import Verdict, check, so_many
from optimizers import Optimizer
from torch import nn
from torch.nn.functional import cross_entropy

SHAPES = {"first.weight": (6, 5), "first.bias": (6,), "last.weight": (3, 6), "last.bias": (3,)}
NORM = {"norm.weight": (6,), "norm.bias": (6,)}
# In cases where gradients are there before: a parameter that no pass uses, and one that is frozen.
SPARE, FROZEN = {"spare": (4,)}, ["last.bias"]
BUFFERS = {"norm.running_mean": (6,), "norm.running_var": (6,)}
COUNTER = "norm.num_batches_tracked"
PART_BYTES = 10_000 * 6 * 6 * 4  # what a part of 6 images keeps for its backward pass, if the model is wide
WARM = 2 << 20  # how much a process may have grown until the first part: 0.1 MB were seen, beside the part
FILLER = PART_BYTES // (2 * 4)  # numbers behind each image that make a batch of two as large as that
SGD = ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})
# The large eps makes Adam's step depend on the size of a gradient, which it would hide.
ADAM = ("Adam", {"lr": 0.05, "eps": 0.02})


class Reference(nn.Module):
    """The model of the driver, in float64."""

    def __init__(self, state, norm):
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6, eps=0.1) if norm else nn.Identity()
        if "spare" in state:
            self.spare = nn.Parameter(torch.zeros(4))
            self.last.bias.requires_grad_(False)
        self.double()
        self.load_state_dict({name: tensor.double() for name, tensor in state.items()}, strict=False)
        self.gates, self.shown, self.calls, self.taken = {}, {}, 0, 0

    def forward(self, images):
        output = self.last(self.norm(self.first(images)).tanh())
        if not self.gates:
            return output
        forth, back, self.calls = f"forward {self.calls}", f"backward {self.calls}", self.calls + 1
        self.shown[forth] = images.detach()
        output = output * self.gates[forth]["value"]

        def hook(gradient):
            self.shown[back] = gradient
            return gradient * self.gates[back]["value"]

        output.register_hook(hook)
        return output

    def take(self, images):
        """A batch as it is given: with long images, times a number of its own."""
        name, self.taken = f"take {self.taken}", self.taken + 1
        if name not in self.gates:
            return images
        self.shown[name] = self.first.weight.detach().clone()
        return images.double() * self.gates[name]["value"]

    def gradients(self):
        """Zeros where a parameter has none."""
        return {
            name: (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).numpy()
            for name, parameter in self.named_parameters()
        }

    def tensors(self):
        state = self.state_dict()
        return {name: tensor.detach().numpy() for name, tensor in state.items() if name != COUNTER}


def drawn_state(trial, norm=False, spare=False):
    shapes = SHAPES | (NORM | BUFFERS if norm else {}) | (SPARE if spare else {})
    state = {name: trial.floats(*shape) for name, shape in shapes.items()}
    if norm:
        state["norm.running_var"] = state["norm.running_var"].abs() + 0.5
        state["norm.weight"] = state["norm.weight"].abs() + 0.5
        state[COUNTER] = trial.integers(1, 1000)
    return state


def drawn_parts(trial, sizes):
    """Parts whose losses differ a lot: a mean with wrong weights cannot be mistaken for the right one."""
    return [
        (trial.floats(size, 5) + 2 * place % 5, trial.integers(0, 3, size))
        for place, size in enumerate(sizes)
    ]


def whole(parts):
    return torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])


def backward(model, parts):
    """Gradients of the mean over all parts, in the reference. Returns the loss."""
    size = sum(len(labels) for _, labels in parts)
    mean = 0.0
    for images, labels in parts:
        loss = cross_entropy(model(images.double()), labels, reduction="sum") / size
        loss.backward()
        mean += loss.item()
    return mean


def steps_of(model, optimizer, groups):
    name, options = optimizer
    optimizer = Optimizer(name, model.parameters(), options)
    losses = []
    for parts in groups:
        optimizer.zero_grad()
        parts = [(model.take(images), labels) for images, labels in parts]
        losses.append(backward(model, parts))
        optimizer.step()
    return losses


def words(sizes):
    return ", ".join(map(str, sizes))


def is_float(trial, what, got, expected):
    kind = "a tensor" if hasattr(got, "shape") else f"{type(got).__name__} ({str(got)[:40]})"
    came = f"{what} is {'None' if got is None else kind}"
    trial.require(isinstance(got, float), came, "a float (`.item()` turns a tensor into one)")
    trial.close(what, got, expected, relative=1e-4)


def right_losses(trial, came, losses):
    """The mean loss of each step. What add_gradients returns is looked at in 01.1b: whoever hands that on
    loses no more points by it."""
    given = came["given"] if len(came["given"]) == len(losses) else [...] * len(losses)
    for number, (got, own, expected) in enumerate(zip(came["loss"], given, losses, strict=True), 1):
        if type(got) is not type(own) or not numpy.array_equal(got, own):
            is_float(trial, f"the mean loss of step {number}", got, expected)


def right_sizes(trial, came, sizes):
    called = f"with batches of {words(came['sizes'])}" if came["sizes"] else "without any batch"
    trial.require(came["sizes"] == sizes, f"the model was called {called}", f"batches of {words(sizes)}")


def mode_kept(trial, came):
    """A change of mode changes the next step, and not this one: it is named, not shown by weights."""
    wanted = "training mode, as the model was given to your code"
    trial.require(came["training"] is True, "afterwards, the model is in evaluation mode", wanted)


def right_state(trial, came, reference, state):
    if COUNTER in state:
        counted = int(reference.state_dict()[COUNTER])
        trial.same("the number of batches that batch norm has seen", came["state"].get(COUNTER), counted)
    for name, expected in reference.tensors().items():
        trial.close(f"{name} afterwards", came["state"].get(name), expected, relative=1e-4, scale=1.0)


def gates_of(trial, count, taken=0):
    """The numbers of each part, one for its forward pass and one for backward. A part goes in when the
    process holds no more than half of all parts would need, beyond what it held for the first. `taken` is
    how many are taken at a time, with a number for each, or 0."""
    gates = {}
    for place in range(count):
        if taken and place % taken == 0:
            gates |= {f"take {place + more}": {"value": trial.secret()} for more in range(taken)}
        gates |= {f"{way} {place}": {"value": trial.secret()} for way in ("forward", "backward")}
        if place == 0 and trial.counted:
            # Or something is held then that is let go of later, and seems to be less than it is.
            most = taken * PART_BYTES + WARM
            gates["forward 0"] |= {
                "memory": most,
                "words": f"when the first of {count} parts entered the model",
                "expected": f"at most {most / 1e6:.1f} MB more than before your code was loaded",
            }
        elif trial.counted:
            gates[f"forward {place}"] |= {
                "memory": int(count / 2 * PART_BYTES),
                "memory since": "forward 0",
                "words": f"when part {place + 1} of {count} entered the model",
                "expected": f"at most two or three parts at any time, {PART_BYTES / 1e6:.1f} MB each",
            }
    return gates


def one_after_the_other(trial, reference):
    """Each part went backward before the next went forward: the model has asked in this order."""
    names = [name for name in reference.gates if not name.startswith("take")]
    came = [name for name in trial.answer["ranks"][0]["asked"] if not name.startswith("take")]
    for number, (asked, name) in enumerate(itertools.zip_longest(came, names), 1):
        what = f"pass number {number} through the model is {in_words(asked) if asked else 'missing'}"
        wanted = f"{in_words(name) if name else 'no more'}: each part forward and backward before the next"
        trial.require(asked == name, what, wanted)
    for name in names:
        what, got = f"what the model gets as {in_words(name)}", trial.asked(0, name)["with"]
        right = reference.shown[name].double()
        if name.startswith("backward") and isinstance(got, numpy.ndarray) and got.any():
            # How the parts are weighted is free: before backward, in it, or afterwards.
            got, right = got / abs(got).sum(), right / right.abs().sum()
            what += ", apart from a factor"
        trial.close(what, got, right, relative=1e-4)


def in_words(name):
    """part 1 forward, for the gate that is called forward 0"""
    way, place = name.split()
    return f"part {int(place) + 1} {way}"


def taken_when_needed(trial, reference, count, parts_per_step):
    """No batch was asked for before the step before it was done: the weights at that moment show it."""
    order = list(trial.answer["ranks"][0]["asked"])
    for place in range(count):
        shown, before = trial.asked(0, f"take {place}")["with"], order[: order.index(f"take {place}")]
        done = sum(name.startswith("backward") for name in before)
        came = f"batch {place + 1} was taken from `batches` after {so_many(done, 'batch')}"
        came += " had gone backward"
        wanted = place // parts_per_step * parts_per_step
        trial.require(done >= wanted, came, f"after {so_many(wanted, 'batch')}, and after their step")
        what = f"first.weight when batch {place + 1} was taken"
        trial.close(what, shown, reference.shown[f"take {place}"], relative=1e-4, scale=1.0)


def is_near(got, expected):
    return numpy.shape(got) == expected.shape and numpy.allclose(got, expected, rtol=1e-3, atol=1e-7)


def old_gradients(trial, old):
    return {name: trial.floats(*shape) for name, shape in (SHAPES | SPARE).items()} if old else {}


def gradients(trial, sizes, norm=False, old=False, wide=False, double=False):
    """add_gradients once. Returns the loss that came, and the right one."""
    state, parts, relative = drawn_state(trial, norm, old), drawn_parts(trial, sizes), 1e-4
    before = old_gradients(trial, old)
    if double:  # a weight of a part may be float32 all the same
        state, before = ({name: one.double() for name, one in some.items()} for some in (state, before))
        parts, relative = [(images.double(), labels) for images, labels in parts], 1e-6
    reference, alone = Reference(state, norm), Reference(state, norm)
    reference.gates = gates_of(trial, len(sizes)) if wide else {}
    loss = backward(reference, parts)
    backward(alone, parts[-1:])
    inputs = {"state": state, "norm": norm, "wide": wide, "old": before, "parts": list(map(list, parts))}
    inputs["frozen"] = FROZEN if old else []
    (came,) = trial.run("gradients", [inputs], group=False, gates=[reference.gates])
    right_sizes(trial, came, sizes)
    one_after_the_other(trial, reference)
    last, share = alone.gradients(), sizes[-1] / sum(sizes)
    for name, expected in reference.gradients().items():
        expected, got = expected + before[name].numpy() if old else expected, came["gradients"].get(name)
        one_part = any(is_near(got, last[name] * factor) for factor in (1, share))
        what = f"the gradient of {name} is that of the last part alone"
        summed = is_near(got, expected) or not one_part
        trial.require(summed, what, "the sum of the gradients of all parts")
        if old or expected.any() or got is not None:
            trial.close(f"the gradient of {name}", got, expected, relative, scale=0.1)
    for name in SHAPES:
        trial.close(f"{name} afterwards", came["state"].get(name), state[name])
    mode_kept(trial, came)
    return came["loss"], loss


@check("01.1a")
def equal_to_the_whole(trial):
    trial.tried("3 parts of 4 images")
    gradients(trial, [4, 4, 4])
    trial.tried("parts of 5, 2 and 4 images")
    gradients(trial, [5, 2, 4])
    trial.tried("parts of 5, 4 and 3 images, a model with batch norm")
    try:
        gradients(trial, [5, 4, 3], norm=True)
    except Verdict as verdict:
        verdict.came += "; without batch norm, everything is correct"
        raise


OLD = (
    "the parameters already have gradients, the model does not use its parameter `spare`, and `last.bias` is"
)
OLD += " frozen"


@check("01.1b")
def added(trial):
    for double in (False, True):
        trial.tried(f"parts of 3, 1 and 6 images; {OLD}{' (float64, images stored by columns)' * double}")
        came, expected = gradients(trial, [3, 1, 6], old=True, double=double)
        is_float(trial, "the mean loss", came, expected)


@check("01.1c")
def one_at_a_time(trial):
    trial.tried("10 parts of 6 images, and a model that needs 1.4 MB per part")
    gradients(trial, [6] * 10, wide=True)


def steps(trial, driver, groups, optimizer, norm=False, old=False, wide=False, filler=0, **cut):
    """A step of the optimizer for each group of parts: large_step cuts a batch into parts itself (`step`),
    train_epoch is given them (`epoch`). `groups` has the sizes of the parts."""
    sizes = list(itertools.chain(*groups))
    state, parts = drawn_state(trial, norm, old), iter(drawn_parts(trial, sizes))
    groups = [[next(parts) for _ in group] for group in groups]
    reference = Reference(state, norm)
    taken = cut["parts_per_step"] if filler else 0
    reference.gates = gates_of(trial, len(sizes), taken) if wide or filler else {}
    losses = steps_of(reference, optimizer, groups)
    batches = map(whole, groups) if driver == "step" else itertools.chain(*groups)
    inputs = {
        "state": state,
        "norm": norm,
        "wide": wide,
        "filler": filler,
        "empty": False,
        "batches": list(map(list, batches)),
    }
    inputs |= {
        "old": old_gradients(trial, old),
        "frozen": FROZEN if old else [],
        "optimizer": optimizer[0],
        "options": optimizer[1],
    }
    (came,) = trial.run(driver, [inputs | cut], group=False, gates=[reference.gates])
    is_list = isinstance(came["loss"], list)
    trial.require(is_list, f"what train_epoch returns has the type {came['kind']}", "a list of floats")
    right_sizes(trial, came, sizes)
    one_after_the_other(trial, reference)
    if filler:
        taken_when_needed(trial, reference, len(sizes), taken)
    trial.same("the number of steps of the optimizer", came["steps"], len(groups))
    if driver == "epoch" or len(groups) > 1:
        mode_kept(trial, came)
    right_state(trial, came, reference, state)
    if cut.get("empty"):
        trial.same("what train_epoch returns for an epoch without any batch", came["empty"], [[]])
    trial.same("the length of the list of losses", len(came["loss"]), len(losses))
    right_losses(trial, came, losses)


def large_steps(trial, batch_sizes, part_size, optimizer, **more):
    cuts = [
        [part_size] * (size // part_size) + [size % part_size] * (size % part_size > 0)
        for size in batch_sizes
    ]
    steps(trial, "step", cuts, optimizer, part_size=part_size, **more)


@check("01.2a")
def one_step(trial):
    for size, part_size, optimizer in ((12, 4, SGD), (9, 4, ADAM), (7, 3, ADAM), (3, 1, SGD), (5, 8, SGD)):
        trial.tried(f"{size} images with part_size {part_size}, one step of {optimizer[0]}")
        large_steps(trial, [size], part_size, optimizer)
    trial.tried("11 images with part_size 4, one step of SGD, a model with batch norm")
    large_steps(trial, [11], 4, SGD, norm=True)


@check("01.2b")
def without_old_gradients(trial):
    trial.tried(f"5 images with part_size 2, one step of SGD; {OLD}")
    large_steps(trial, [5], 2, SGD, old=True)
    trial.tried("batches of 7, 5 and 6 images with part_size 3, three steps of Adam")
    large_steps(trial, [7, 5, 6], 3, ADAM)
    trial.tried("60 images with part_size 6, one step of SGD, a model that needs 1.4 MB per part")
    large_steps(trial, [60], 6, SGD, wide=True)


def epoch(trial, sizes, parts_per_step, optimizer, **more):
    groups = [sizes[place : place + parts_per_step] for place in range(0, len(sizes), parts_per_step)]
    steps(trial, "epoch", groups, optimizer, parts_per_step=parts_per_step, **more)


@check("01.3a")
def groups_of_batches(trial):
    trial.tried(f"6 batches of 4 images, parts_per_step 3, SGD; {OLD}")
    epoch(trial, [4] * 6, 3, SGD, old=True)
    trial.tried("batches of 4, 5, 3 and 3 images, parts_per_step 2, Adam, a model with batch norm")
    epoch(trial, [4, 5, 3, 3], 2, ADAM, norm=True)


@check("01.3b")
def last_group(trial):
    for sizes, parts_per_step in (([4, 4, 4, 4, 1], 2), ([3, 3, 2], 5), ([3, 2], 1)):
        then = "; then an epoch without any batch" * (parts_per_step == 1)
        trial.tried(f"batches of {words(sizes)} images, parts_per_step {parts_per_step}, SGD{then}")
        epoch(trial, sizes, parts_per_step, SGD, empty=bool(then))


@check("01.3c")
def as_needed(trial):
    trial.tried("12 batches of 2 images of 0.7 MB each, parts_per_step 2, SGD")
    epoch(trial, [2] * 12, 2, SGD, filler=FILLER)
    trial.tried("10 batches of 6 images, parts_per_step 10, a model that needs 1.4 MB per batch")
    epoch(trial, [6] * 10, 10, SGD, wide=True)
