"""What exercise 01 is held against. Runs in the judge."""

import torch
from judge import check
from optimizers import Optimizer
from torch import nn
from torch.nn.functional import cross_entropy

SHAPES = {"first.weight": (6, 5), "first.bias": (6,), "last.weight": (3, 6), "last.bias": (3,)}
NORM = {"norm.weight": (6,), "norm.bias": (6,)}
BUFFERS = {"norm.running_mean": (6,), "norm.running_var": (6,)}
COUNTER = "norm.num_batches_tracked"
PART_BYTES = 10_000 * 6 * 6 * 4  # what a part of 6 images keeps for its backward pass, if the model is wide
SGD = ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})
# The large eps makes Adam's step depend on the size of a gradient, which it would hide.
ADAM = ("Adam", {"lr": 0.05, "eps": 0.02})


class Reference(nn.Module):
    """The model of the driver, in float64."""

    def __init__(self, state, norm):
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6, eps=0.1) if norm else nn.Identity()
        self.double()
        self.load_state_dict({name: tensor.double() for name, tensor in state.items()}, strict=False)

    def forward(self, images):
        return self.last(self.norm(self.first(images)).tanh())

    def gradients(self):
        return {name: parameter.grad.numpy() for name, parameter in self.named_parameters()}

    def tensors(self):
        return {
            name: tensor.detach().numpy() for name, tensor in self.state_dict().items() if name != COUNTER
        }


def drawn_state(trial, norm=False):
    shapes = SHAPES | (NORM | BUFFERS if norm else {})
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
        losses.append(backward(model, parts))
        optimizer.step()
    return losses


def words(sizes):
    return ", ".join(map(str, sizes))


def is_float(trial, what, got, expected):
    trial.require(isinstance(got, float), f"{what} is {kind(got)}", "a float (`.item()` of a tensor is one)")
    trial.close(what, got, expected, relative=1e-4)


def kind(value):
    if value is None:
        return "None"
    return "a tensor" if hasattr(value, "shape") else f"{type(value).__name__} ({str(value)[:40]})"


def right_sizes(trial, came, sizes):
    trial.require(
        came["sizes"] == sizes,
        f"the model was called with batches of {words(came['sizes']) or 'nothing'}",
        f"batches of {words(sizes)}",
    )


def right_state(trial, came, reference, state):
    for name, expected in reference.tensors().items():
        trial.close(f"{name} afterwards", came["state"].get(name), expected, relative=1e-4, scale=1.0)
    if COUNTER in state:
        counted = int(reference.state_dict()[COUNTER])
        trial.same("the number of batches that batch norm has seen", came["state"].get(COUNTER), counted)


def memory(trial, count):
    """Seen from outside: what the process held when a part went in, beyond what it held for the first."""
    seen = [trial.answer["ranks"][0]["marks"].get(f"forward {place}") for place in range(count)]
    trial.require(None not in seen, "the model was not called for each part", f"{count} calls")
    held = max(one["memory"] for one in seen) - seen[0]["memory"]
    trial.require(
        held < count / 2 * PART_BYTES,
        f"the process holds {held / 1e6:.1f} MB more than at the first part when another goes in, "
        f"with {PART_BYTES / 1e6:.1f} MB for each part",
        "no more than two or three parts at any time",
    )


# ---- 01.1


def gradients(trial, sizes, norm=False, old=False):
    state, parts = drawn_state(trial, norm), drawn_parts(trial, sizes)
    reference = Reference(state, norm)
    loss = backward(reference, parts)
    before = {name: trial.floats(*shape) for name, shape in SHAPES.items()} if old else {}
    inputs = {"state": state, "norm": norm, "old": before, "parts": [list(pair) for pair in parts]}
    (came,) = trial.run("gradients", [inputs], group=False)
    right_sizes(trial, came, sizes)
    for name, expected in reference.gradients().items():
        expected = expected + before[name].numpy() if old else expected
        trial.close(
            f"the gradient of {name}", came["gradients"].get(name), expected, relative=1e-4, scale=0.1
        )
    for name, expected in state.items():
        if name in SHAPES:
            trial.close(f"{name} afterwards", came["state"].get(name), expected)
    return came["loss"], loss


@check("01.1a")
def equal_to_the_whole(trial):
    trial.tried("3 parts of 4 images")
    gradients(trial, [4, 4, 4])
    trial.tried("parts of 5, 5 and 2 images")
    gradients(trial, [5, 5, 2])
    trial.tried("parts of 5, 4 and 3 images, a model with batch norm")
    gradients(trial, [5, 4, 3], norm=True)


@check("01.1b")
def added(trial):
    trial.tried("parts of 3, 1 and 6 images; the parameters have gradients before")
    came, expected = gradients(trial, [3, 1, 6], old=True)
    is_float(trial, "the mean loss", came, expected)


@check("01.1c")
def one_at_a_time(trial):
    trial.tried("10 parts of 6 images, a model that needs 1.4 MB for each part")
    state, parts = drawn_state(trial), drawn_parts(trial, [6] * 10)
    reference = Reference(state, False)
    backward(reference, parts)
    inputs = {"state": state, "wide": True, "parts": [list(pair) for pair in parts]}
    (came,) = trial.run("gradients", [inputs], group=False)
    right_sizes(trial, came, [6] * 10)
    memory(trial, 10)
    for name, expected in reference.gradients().items():
        trial.close(
            f"the gradient of {name}", came["gradients"].get(name), expected, relative=1e-4, scale=0.1
        )


# ---- 01.2


def large_steps(trial, batch_sizes, part_size, optimizer, norm=False, old=False, wide=False):
    state = drawn_state(trial, norm)
    groups, sizes = [], []
    for size in batch_sizes:
        those = [part_size] * (size // part_size) + [size % part_size] * (size % part_size > 0)
        groups.append(drawn_parts(trial, those))
        sizes += those
    reference = Reference(state, norm)
    losses = steps_of(reference, optimizer, groups)
    inputs = {
        "state": state,
        "norm": norm,
        "wide": wide,
        "old": {name: trial.floats(*shape) for name, shape in SHAPES.items()} if old else {},
        "batches": [list(whole(parts)) for parts in groups],
        "part_size": part_size,
        "optimizer": optimizer[0],
        "options": optimizer[1],
    }
    (came,) = trial.run("step", [inputs], group=False)
    right_sizes(trial, came, sizes)
    trial.same("the number of steps of the optimizer", came["steps"], len(groups))
    right_state(trial, came, reference, state)
    trial.require(isinstance(came["loss"], list), "no list of losses has come")
    for number, (got, expected) in enumerate(zip(came["loss"], losses, strict=True)):
        is_float(trial, f"the mean loss of step {number}", got, expected)


@check("01.2a")
def one_step(trial):
    for size, part_size, optimizer in ((12, 4, SGD), (7, 3, ADAM), (3, 1, SGD), (5, 8, SGD)):
        trial.tried(f"{size} images with part_size {part_size}, one step of {optimizer[0]}")
        large_steps(trial, [size], part_size, optimizer)
    trial.tried("11 images with part_size 4, one step of SGD, a model with batch norm")
    large_steps(trial, [11], 4, SGD, norm=True)


@check("01.2b")
def old_gradients(trial):
    trial.tried("5 images with part_size 2, one step of SGD; the parameters have gradients before")
    large_steps(trial, [5], 2, SGD, old=True)
    trial.tried("batches of 7, 5 and 6 images with part_size 3, three steps of Adam")
    large_steps(trial, [7, 5, 6], 3, ADAM)
    trial.tried("60 images with part_size 6, one step of SGD, a model that needs 1.4 MB for each part")
    large_steps(trial, [60], 6, SGD, wide=True)
    memory(trial, 10)


# ---- 01.3


def epoch(trial, sizes, parts_per_step, optimizer, norm=False, old=False, wide=False):
    state, batches = drawn_state(trial, norm), drawn_parts(trial, sizes)
    groups = [batches[place : place + parts_per_step] for place in range(0, len(batches), parts_per_step)]
    reference = Reference(state, norm)
    losses = steps_of(reference, optimizer, groups)
    inputs = {
        "state": state,
        "norm": norm,
        "wide": wide,
        "old": {name: trial.floats(*shape) for name, shape in SHAPES.items()} if old else {},
        "batches": [list(pair) for pair in batches],
        "parts_per_step": parts_per_step,
        "optimizer": optimizer[0],
        "options": optimizer[1],
    }
    (came,) = trial.run("epoch", [inputs], group=False)
    right_sizes(trial, came, sizes)
    trial.same("the number of steps of the optimizer", came["steps"], len(groups))
    right_state(trial, came, reference, state)
    got = came["loss"]
    trial.require(isinstance(got, list), f"what train_epoch returns is {kind(got)}", "a list of floats")
    trial.same("the length of the list of losses", len(got), len(losses))
    for number, (one, expected) in enumerate(zip(got, losses, strict=True)):
        is_float(trial, f"the mean loss of step {number}", one, expected)
    return came["taken"]


@check("01.3a")
def groups_of_batches(trial):
    trial.tried("6 batches of 4 images, parts_per_step 3, SGD; the parameters have gradients before")
    epoch(trial, [4] * 6, 3, SGD, old=True)
    trial.tried("batches of 4, 5, 3 and 3 images, parts_per_step 2, Adam, a model with batch norm")
    epoch(trial, [4, 5, 3, 3], 2, ADAM, norm=True)


@check("01.3b")
def last_group(trial):
    for sizes, parts_per_step in (([4, 4, 4, 4, 1], 2), ([3, 3, 2], 5), ([3, 2], 1)):
        trial.tried(f"batches of {words(sizes)} images, parts_per_step {parts_per_step}, SGD")
        epoch(trial, sizes, parts_per_step, SGD)


@check("01.3c")
def as_needed(trial):
    trial.tried("7 batches of 2 images, parts_per_step 3, SGD")
    for place, steps in enumerate(epoch(trial, [2] * 7, 3, SGD)):
        trial.require(
            steps == place // 3,
            f"batch {place} was taken from `batches` after {steps} steps",
            f"after {place // 3} steps",
        )
    trial.tried("10 batches of 6 images, parts_per_step 10, a model that needs 1.4 MB for each batch")
    epoch(trial, [6] * 10, 10, SGD, wide=True)
    memory(trial, 10)
