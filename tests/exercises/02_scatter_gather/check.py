"""What exercise 02 is held against. Runs in the judge."""

import numpy
import torch
from judge import Verdict, check, so_many
from optimizers import Optimizer
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

SHAPES = {"first.weight": (4, 5), "first.bias": (4,), "norm.weight": (4,), "norm.bias": (4,)}
SHAPES |= {"second.weight": (4, 4), "second.bias": (4,)}
BUFFERS = {"norm.running_mean": (4,), "norm.running_var": (4,), "scale": (4,)}
COUNTER = "norm.num_batches_tracked"


class Reference(nn.Module):
    """The model of the driver, in float64."""

    def __init__(self, state, tied=False):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(5, 4), nn.BatchNorm1d(4, eps=0.1), nn.Linear(4, 4)
        self.register_buffer("scale", torch.zeros(4))
        self.tied = tied
        self.double()
        self.load_state_dict(state)

    def forward(self, images):
        hidden = self.second(self.norm(self.first(images)).tanh())
        return hidden @ self.second.weight.T if self.tied else hidden


def drawn_state(trial):
    state = {name: trial.floats(*shape) for name, shape in (SHAPES | BUFFERS).items()}
    positive = {name: state[name].abs() + 0.5 for name in ("norm.weight", "norm.running_var")}
    return state | positive | {COUNTER: trial.integers(1, 1 << 20)}


def drawn_gradients(trial, factor=1, names=SHAPES):
    return {name: trial.floats(*SHAPES[name]) * factor for name in names}


def of_copies(trial, count, names=SHAPES):
    """Gradients of very different size in each copy: a sum cannot be mistaken for one of them."""
    return [drawn_gradients(trial, 10**place, names) for place in range(count)]


def right_type(trial, came, function):
    trial.require(came["wrong"] is None, f"{function} returns {came['wrong']}", "what its docstring says")


def right_state(trial, what, came, expected, relative=2e-5):
    for name, value in expected.items():
        if name == COUNTER:
            trial.same(f"{name} {what}", came.get(name), int(value))
        else:
            trial.close(f"{name} {what}", came.get(name), value, relative=relative, scale=1.0)


def part_sizes(size, count):
    each = -(-size // count)
    return [min(each, size - start) for start in range(0, size, each)]


def words(sizes):
    return ", ".join(map(str, sizes)) or "no"


@check("02.1a")
def parts(trial):
    drawn = [(int(trial.integers(20, 60, 1)), int(trial.integers(3, 8, 1))) for _ in range(3)]
    for cases in (((8, 2), (10, 4), (7, 3), (5, 1)), ((3, 4), (1, 3), (5, 4), (9, 6)), drawn):
        trial.tried(" and ".join(f"{size} images for {count}" for size, count in cases) + " copies")
        batches = [trial.floats(size, 3, 2) for size, _ in cases]
        batches[-1] = trial.integers(0, 10, cases[-1][0])  # labels
        counts = [count for _, count in cases]
        (came,) = trial.run("cut", [{"batches": batches, "counts": counts}], group=False)
        for (size, count), batch, one in zip(cases, batches, came, strict=True):
            trial.tried(f"a batch of {size} images, {count} copies")
            right_type(trial, one, "scatter")
            expected, parts = part_sizes(size, count), one["parts"]
            sizes = [len(part) if part.ndim else "no dimension" for part in parts]
            trial.require(sizes == expected, f"the sizes of the parts are {words(sizes)}", words(expected))
            for place, part in enumerate(batch.split(expected)):
                what, kind = f"part {place + 1} of {len(expected)}", part.numpy().dtype
                trial.same(f"the dtype of {what}", str(parts[place].dtype), str(kind))
                trial.close(what, parts[place], part)


def replicated(trial, count, **more):
    state = drawn_state(trial)
    (came,) = trial.run("copies", [{"state": state, "count": count, **more}], group=False)
    right_type(trial, came, "replicate")
    trial.same("the number of copies", len(came["seen"]), count)
    return came, state


@check("02.2a")
def equal_and_apart(trial):
    for count in (3, 1):
        trial.tried(f"{count} copies of a model with batch norm; each copy is then changed")
        came, state = replicated(trial, count)
        for number, seen in enumerate(came["seen"], 1):
            right_state(trial, f"in copy {number}", seen, state)
        right_state(trial, "in the model (after the copies were changed)", came["model"], state)
        for number, changed in enumerate(came["changed"], 1):
            expected = {name: tensor + number for name, tensor in state.items()}
            what = f"in copy {number} (after {number} was added to all its tensors)"
            right_state(trial, what, changed, expected)


@check("02.2b")
def tied_and_frozen(trial):
    trial.tried(
        "2 copies of a model; its first layer is frozen, two layers share a weight, and batch norm is in "
        "evaluation mode"
    )
    frozen, modes = ["first.weight", "first.bias"], ["", "first", "second", "third"]
    came, state = replicated(trial, 2, tied=True, frozen=frozen, evaluation=True)
    for place in range(2):
        copy = f"copy {place + 1}"
        trial.same(f"the list of parameters of {copy}", came["parameters"][place], list(SHAPES))
        trial.same(f"the list of frozen parameters of {copy}", came["frozen"][place], frozen)
        trial.same(f"the list of modules of {copy} that are in training mode", came["modes"][place], modes)
        right_state(trial, f"in {copy}", came["seen"][place], state)


def double(state):
    """In float64, with numbers that float32 does not have."""
    return {name: value.double() / 3 if value.is_floating_point() else value for name, value in state.items()}


def computed(trial, count, sizes, evaluation=False):
    """Returns what came, and a reference after its backward pass for each copy that has a part. In evaluation
    mode, everything is float64."""
    states = [drawn_state(trial) for _ in range(count)]
    given = [trial.floats(size, 5) for size in sizes]
    upstream = trial.floats(sum(sizes), 4)
    inputs = {"states": states, "parts": given, "upstream": upstream}
    if evaluation:
        inputs = {"states": list(map(double, states)), "evaluation": "all", "upstream": upstream.double()}
        inputs["parts"] = [part.double() for part in given]
    (came,) = trial.run("compute", [inputs], group=False)
    right_type(trial, came, "compute_and_gather")
    expected = []
    for state, part, above in zip(states, given, upstream.split(sizes), strict=False):
        reference = Reference(double(state) if evaluation else state).train(not evaluation)
        output = reference(part.double())
        output.backward(above.double())
        expected.append((reference, output.detach()))
    called = f"the copies were called with batches of {words(came['sizes'])} images"
    wanted = f"{words(sizes)}, and nothing for a copy without a part"
    trial.require(sorted(came["sizes"]) == sorted(sizes), called, wanted)
    outputs = torch.cat([output for _, output in expected])
    trial.close("the output", came["outputs"], outputs, relative=1e-10 if evaluation else 1e-4)
    return came, [reference for reference, _ in expected]


@check("02.3a")
def in_order(trial):
    for sizes in ([4, 4, 3], [4], [3, 3]):
        trial.tried(f"as many parts as copies, with {words(sizes)} images; the copies have different weights")
        computed(trial, len(sizes), sizes)
    trial.tried("4 copies with different weights, and 3 parts with 4, 4 and 3 images")
    computed(trial, 4, [4, 4, 3])


@check("02.3b")
def backward_reaches(trial):
    trial.tried(
        "3 copies with different weights, parts with 4 and 3 images, then backward(); in evaluation mode,"
    )
    trial.words.append("copies and parts are tuples, and everything is float64")
    came, references = computed(trial, 3, [4, 3], evaluation=True)
    trial.require(came["reaches"], "the output is not connected to the copies, so backward() reaches nothing")
    for place, reference in enumerate(references):
        for name, parameter in reference.named_parameters():
            what, got = f"the gradient of {name} in copy {place + 1}", came["gradients"][place].get(name)
            trial.close(what, got, parameter.grad, relative=1e-4, scale=1.0)


def reduced(trial, gradients, old, **more):
    state, states = drawn_state(trial), [drawn_state(trial) for _ in gradients]
    if more.get("evaluation"):  # float64 as well
        state, old, *states = map(double, (state, old, *states))
        gradients = list(map(double, gradients))
    inputs = {"state": state, "states": states, "gradients": gradients, "old": old, **more}
    (came,) = trial.run("add_up", [inputs], group=False)
    for name in SHAPES:
        copied = {place: given[name] for place, given in enumerate(gradients) if name in given}
        there = [*copied.values(), *([old[name]] if name in old else [])]
        what, got = f"the gradient of {name}", came["gradients"].get(name)
        if there:
            if len(there) > 1 and hasattr(got, "shape"):
                not_of_one(trial, what, got, copied, name in old)
            digits = 1e-12 if more.get("evaluation") else 2e-5
            trial.close(what, got, sum(one.double() for one in there), digits)
        else:
            trial.require(got is None, f"{what} is not None", "None")
    right_state(trial, "after reduce", came["state"], {name: state[name] for name in SHAPES})
    return came, states[0]


def not_of_one(trial, what, got, copied, had_one):
    """The mistakes that can be named by what has come."""

    def unlike(other, came, wanted):
        trial.require(not numpy.allclose(got, other, rtol=1e-4, atol=1e-4), f"{what} is {came}", wanted)

    for place, gradient in copied.items():
        unlike(gradient, f"that of copy {place + 1} alone", "the sum over all copies")
    if had_one:
        came = "the sum over the copies, without the gradient that the model had before"
        unlike(sum(copied.values()), came, "the sum of all copies, added to the gradient from before")


@check("02.4a")
def added_up(trial):
    for count in (3, 1):
        trial.tried(f"{count} copies with gradients; the model has none")
        reduced(trial, of_copies(trial, count), {})
    trial.tried("2 copies with gradients; the model has other gradients from before")
    reduced(trial, of_copies(trial, 2), drawn_gradients(trial, 3))


@check("02.4b")
def hard_models(trial):
    trial.tried(
        "3 copies: the last got no part, norm.bias has a gradient only in copy 2, second.bias in none, and "
        "that of first.bias, only in copy 1, is zeros"
    )
    names = [name for name in SHAPES if name not in ("norm.bias", "second.bias")]
    of_two = of_copies(trial, 2, [*names, "norm.bias"])
    del of_two[0]["norm.bias"], of_two[1]["first.bias"]
    of_two[0]["first.bias"] *= 0
    reduced(trial, [*of_two, {}], {})
    trial.tried(
        "2 copies without gradients for norm.bias and second.bias; the model has old gradients for both"
    )
    reduced(trial, of_copies(trial, 2, names), drawn_gradients(trial, 3))
    trial.tried("2 copies; the first layer is frozen, and two layers share a weight")
    names = [name for name in SHAPES if not name.startswith("first")]
    reduced(trial, of_copies(trial, 2, names), {}, tied=True, frozen=["first.weight", "first.bias"])


@check("02.4c")
def buffers(trial):
    trial.tried(
        "3 copies with different running means, variances and counters, and a buffer `scale` with "
        "persistent=False;"
    )
    trial.words.append("in evaluation mode, and everything is float64")
    came, first = reduced(trial, [drawn_gradients(trial) for _ in range(3)], {}, evaluation="all")
    expected = {name: first[name] for name in (*BUFFERS, COUNTER)}
    right_state(trial, "in the model after reduce", came["state"], expected)
    right_state(trial, "in the model (through a reference taken before)", came["held"], expected)


def loss_of_all(outputs, labels):
    return cross_entropy(torch.cat(outputs), labels)


def sum_of_losses(outputs, labels):
    parts = labels.split([len(output) for output in outputs])
    return sum(cross_entropy(output, part) for output, part in zip(outputs, parts, strict=True))


# What comes of mistakes that can be named.
OTHER_LOSSES = {
    "the mean of the losses of the parts": lambda *both: sum_of_losses(*both) / len(both[0]),
    "the sum of the losses of the parts": sum_of_losses,
}


def learnt(state, batches, count, optimizer, options, tied, evaluation, frozen, loss_of=loss_of_all):
    """The model after all steps, in float64, and the loss of each. With `frozen`, first.bias is."""
    model = Reference(state, tied).train(not evaluation)
    model.first.bias.requires_grad_(not frozen)
    steps = Optimizer(optimizer, model.parameters(), options)
    losses = []
    for images, labels in batches:
        # Each part begins with the buffers from before the step: what the first makes of them is what stays.
        outputs, buffers = [], []
        for part in images.double().split(part_sizes(len(images), count)):
            buffers.append({name: tensor.clone() for name, tensor in model.named_buffers()})
            outputs.append(functional_call(model, buffers[-1], part))
        loss = loss_of(outputs, labels)
        steps.zero_grad()
        loss.backward()
        steps.step()
        model.load_state_dict(buffers[0], strict=False)
        losses.append(loss.item())
    return model, losses


def is_state(trial, came, expected):
    try:
        right_state(trial, "", came, expected, relative=2e-4)
        return True
    except Verdict:
        return False


def trained(trial, sizes, count, optimizer, options, old=False, tied=False, evaluation=False):
    state = drawn_state(trial)
    batches = [(trial.floats(size, 5), trial.integers(0, 4, size)) for size in sizes]
    inputs = {"state": state, "batches": list(map(list, batches)), "count": count, "tied": tied}
    inputs |= {"evaluation": "all" if evaluation else "", "frozen": ["first.bias"] if old else []}
    inputs |= {"optimizer": optimizer, "options": options, "old": drawn_gradients(trial) if old else {}}
    (came,) = trial.run("train", [inputs], group=False)
    given = state, batches, count, optimizer, options, tied, evaluation, old
    model, losses = learnt(*given)
    trial.same("the number of steps of the optimizer", came["steps"], len(sizes))
    for number, (size, calls) in enumerate(zip(sizes, came["calls"], strict=True), 1):
        expected = part_sizes(size, count)
        called = f"in step {number}, the copies were called with batches of {words(calls['sizes'])} images"
        trial.require(sorted(calls["sizes"]) == sorted(expected), called, words(expected))
        called = f"in step {number}, {so_many(calls['copies'], 'model was', 'models were')} called"
        trial.require(calls["copies"] == len(expected), called, f"{len(expected)}, one per part")
    modes = ("evaluation", "training") if evaluation else ("training", "evaluation")
    wanted = f"{modes[0]} mode, as the model was given to your code"
    # With a check that needs the plain case: whoever misses it has one step right, and the next one wrong.
    kept = came["training"] is not evaluation or len(sizes) == 1
    trial.require(kept, f"afterwards, the model is in {modes[1]} mode", wanted)
    if not is_state(trial, came["state"], model.state_dict()):
        for named, loss in OTHER_LOSSES.items():
            other, _ = learnt(*given, loss)
            came_by = f"the weights after the last step are those that {named} leads to"
            wanted = "one mean over all images, computed from all outputs"
            trial.require(not is_state(trial, came["state"], other.state_dict()), came_by, wanted)
    right_state(trial, "after the last step", came["state"], model.state_dict(), relative=2e-4)
    for number, (got, expected) in enumerate(zip(came["loss"], losses, strict=True), 1):
        kind = "a tensor" if hasattr(got, "shape") else type(got).__name__
        trial.require(isinstance(got, float), f"the loss of step {number} is {kind}", "a float")
        trial.close(f"the loss of step {number}", got, expected, relative=1e-4)


@check("02.5a")
def step(trial):
    for size, count in ((11, 3), (6, 1), (9, 4)):
        trial.tried(f"one step of SGD with {size} images on {so_many(count, 'copy', 'copies')}")
        trained(trial, [size], count, "SGD", {"lr": 0.1})


@check("02.5b")
def steps(trial):
    trial.tried(
        "3 steps of SGD with momentum on 1 copy, 8, 7 and 9 images; the model already has gradients, and"
        " `first.bias` is frozen"
    )
    trained(trial, [8, 7, 9], 1, "SGD", {"lr": 0.1, "momentum": 0.9}, old=True)
    trial.tried("2 steps of Adam on 4 copies, 3 and 11 images, in evaluation mode; two layers share a weight")
    trained(trial, [3, 11], 4, "Adam", {"lr": 0.05, "eps": 0.02}, tied=True, evaluation=True)
