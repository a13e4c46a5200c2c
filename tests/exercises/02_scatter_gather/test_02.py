"""Exercise 02: DataParallel by hand, in one process.

| axis | checked in |
| --- | --- |
| copies | 1a, 2a, 3a, 4a, 5a: 1 to 4, and more than images |
| sizes | 1a, 3a, 5a: one image, a smaller last part, fewer parts than copies; no images are excluded |
| dtype | 3b, 4c, 5b: float64; 1a: labels; 3a: images of int64 |
| memory layout | 1a: stored by columns |
| dimensions of the output | 3a: one and two |
| container | 3b: lists and tuples; scatter and replicate may return either |
| calls | 5b: two and three steps |
| modes | 2b: batch norm alone in evaluation mode; 3b, 4c, 5b: training and evaluation mode |
| missing gradients | 4b: in some copies, in all, zeros; in the model, or there from before |
| frozen, tied | 2b, 4b, 5b; frozen between two steps: 5b |
| buffers | 2a, 4c: integers, persistent=False |
| world size, seeds | one process; the functions have none |
"""

import pytest
import torch
from grader.testing import close, floats, integers, require, run, same, so_many, tried
from optimizers import Optimizer
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

SHAPES = {"first.weight": (4, 5), "first.bias": (4,), "norm.weight": (4,), "norm.bias": (4,)}
SHAPES |= {"second.weight": (4, 4), "second.bias": (4,)}
FIRST = ["first.weight", "first.bias"]
BUFFERS = {"norm.running_mean": (4,), "norm.running_var": (4,), "scale": (4,)}
COUNTER = "norm.num_batches_tracked"
CALLS = []  # (which weights, how many images) for each call of any Model, copies too


# ---- what runs in each rank: a body, and what it mentions of this file


class Model(nn.Module):
    """Two layers with a batch norm between, which makes the output depend on who else is in the part, and a
    buffer that state_dict() leaves out. `evaluation`: the modules in evaluation mode, "" is the model.
    `single`: one number for each image."""

    def __init__(self, state, tied=False, frozen=(), evaluation=(), old=None, single=False):
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.norm = nn.BatchNorm1d(4, eps=0.1)
        self.second = nn.Linear(4, 4)
        self.register_buffer("scale", torch.zeros(4), persistent=False)
        if tied:
            self.third = nn.Linear(4, 4, bias=False)
            self.third.weight = self.second.weight
        self.to(state["scale"].dtype)
        for name, tensor in tensors(self).items():
            tensor.data.copy_(state[name])
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in frozen)
            parameter.grad = (old or {}).get(name)
        for name in evaluation:
            self.get_submodule(name).eval()
        self.single = single

    def forward(self, images):
        CALLS.append((self.first.weight.data_ptr(), len(images)))
        images = images.to(self.first.weight.dtype)
        hidden = self.second(self.norm(self.first(images)).tanh())
        if self.single:
            hidden = hidden[:, 0]
        if hasattr(self, "third"):
            hidden = self.third(hidden)
        return hidden


def tensors(model):
    return dict(model.named_parameters()) | dict(model.named_buffers())


def values(model):
    return {name: tensor.detach().clone() for name, tensor in tensors(model).items()}


def gradients(model):
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def batch_sizes():
    """How many images each call of a Model got."""
    return [size for _, size in CALLS]


def called_models():
    """How many models have been called."""
    places = set()
    for place, _ in CALLS:
        places.add(place)
    return len(places)


def wrong_type(value, *kinds):
    return None if isinstance(value, kinds) else type(value).__name__


def cut(student, me, given):
    came = []
    for batch, count in given["batches"]:
        if given["columns"]:  # the same numbers in another order in memory
            batch = batch.transpose(0, -1).contiguous().transpose(0, -1)
        parts = student.scatter(batch, count)
        wrong = wrong_type(parts, list, tuple)
        if wrong:
            came.append({"wrong": wrong})
        else:
            came.append({"wrong": None, "parts": list(parts)})
    return came


def copies(student, me, given):
    """Read the copies; then add something else to the tensors of each, and read all once more."""
    model = Model(**given["model"])
    replicas = student.replicate(model, given["count"])
    wrong = wrong_type(replicas, list, tuple)
    if wrong:
        return {"wrong": wrong}
    came = {"wrong": None, "seen": [], "modes": [], "frozen": [], "parameters": [], "changed": []}
    for one in replicas:
        came["seen"].append(values(one))
        came["modes"].append(in_training_mode(one))
        came["frozen"].append(frozen_parameters(one))
        came["parameters"].append(list(dict(one.named_parameters())))

    for number, one in enumerate(replicas, start=1):
        for tensor in tensors(one).values():
            tensor.data.add_(number)
    # Not before all copies have been changed: what was added to one must not be seen in another.
    for one in replicas:
        came["changed"].append(values(one))
    came["model"] = values(model)
    return came


def in_training_mode(model):
    names = []
    for name, module in model.named_modules():
        if module.training:
            names.append(name)
    return names


def frozen_parameters(model):
    names = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            names.append(name)
    return names


def compute(student, me, given):
    """Models with weights that differ, in place of copies: each output says which of them it comes from."""
    replicas = [Model(**one) for one in given["models"]]
    parts = given["parts"]
    if given["tuples"]:
        replicas = tuple(replicas)
        parts = tuple(parts)
    outputs = student.compute_and_gather(replicas, parts)
    wrong = wrong_type(outputs, torch.Tensor)
    if wrong:
        return {"wrong": wrong}

    upstream = given["upstream"]
    if outputs.requires_grad and outputs.shape == upstream.shape:
        outputs.backward(upstream)
    came = {"wrong": None, "outputs": outputs, "reaches": outputs.requires_grad}
    came["sizes"] = batch_sizes()
    came["gradients"] = [gradients(one) for one in replicas]
    return came


def add_up(student, me, given):
    """Gradients that are given, since they could come from any backward pass."""
    model = Model(**given["model"])
    replicas = [Model(**one) for one in given["copies"]]
    held = {}  # references, as other code may have them
    for name, tensor in tensors(model).items():
        held[name] = tensor.detach()
    student.reduce(model, replicas)
    return {"gradients": gradients(model), "state": values(model), "held": held}


def train(student, me, given):
    """As many steps as there are batches."""
    model = Model(**given["model"])
    name, options = given["optimizer"]
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    steps = []
    optimizer.register_step_post_hook(lambda *_: steps.append(0))
    losses = []
    calls = []
    for number, (images, labels) in enumerate(given["batches"]):
        CALLS.clear()
        if given["freeze"] and number == len(given["batches"]) - 1:
            model.first.requires_grad_(False)
        losses.append(student.train_step(model, optimizer, images, labels, given["count"]))
        calls.append({"sizes": batch_sizes(), "copies": called_models()})
    mode = "training" if all(module.training for module in model.modules()) else "evaluation"
    return {"losses": losses, "steps": len(steps), "calls": calls, "state": values(model), "mode": mode}


# ---- what is drawn, and what is right


def drawn_state():
    state = {}
    for name, shape in (SHAPES | BUFFERS).items():
        state[name] = floats(*shape)
    for name in ("norm.weight", "norm.running_var"):
        state[name] = state[name].abs() + 0.5
    state[COUNTER] = integers(1, 1 << 20)
    return state


def all_but(*left_out):
    """The names of the other parameters."""
    return [name for name in SHAPES if name not in left_out]


def only(names, state):
    return {name: state[name] for name in names}


def drawn_gradients(factor=1, names=SHAPES):
    found = {}
    for name in names:
        found[name] = floats(*SHAPES[name]) * factor
    return found


def of_copies(count, names=SHAPES):
    """Gradients of very different size in each copy: a sum cannot be mistaken for one of them."""
    return [drawn_gradients(10**place, names) for place in range(count)]


def double(state):
    found = {}
    for name, one in state.items():
        found[name] = one.double() if one.is_floating_point() else one
    return found


def right_type(came, function):
    wrong = f"{function} returns something of the type {came['wrong']}"
    require(came["wrong"] is None, wrong, "what its docstring says")


def right_state(what, came, expected, relative=2e-5):
    for name, value in expected.items():
        if name == COUNTER:
            same(f"{name} {what}", came.get(name), int(value))
        else:
            close(f"{name} {what}", came.get(name), value, relative=relative, scale=1.0)


def part_sizes(size, count):
    """All parts have the same size, rounded up, except the last one, which gets what is left."""
    each = -(-size // count)
    sizes = []
    left = size
    while left > 0:
        sizes.append(min(each, left))
        left -= each
    return sizes


def words(sizes):
    return ", ".join(map(str, sizes)) or "no"


@pytest.mark.parametrize("stored_by_columns", [False, True])
def test_1a_parts(stored_by_columns):
    """Batches of 1 to 11 images"""
    batches = []
    for size, count in [(8, 2), (10, 4), (5, 1), (5, 4), (1, 3)]:
        batches.append((floats(size, 3, 2), count))
    batches.append((integers(0, 10, 11), 3))  # labels
    (came,) = run(cut, [{"batches": batches, "columns": stored_by_columns}], group=False)
    stored = ", stored by columns" if stored_by_columns else ""
    for (batch, count), one in zip(batches, came, strict=True):
        tried(f"a batch of {len(batch)} images, {count} copies{stored}")
        right_type(one, "scatter")
        sizes = [len(part) for part in one["parts"]]
        expected = part_sizes(len(batch), count)
        same("the list of the sizes of the parts", sizes, expected)
        for place, part in enumerate(batch.split(expected)):
            close(f"part {place + 1} of {len(expected)}", one["parts"][place], part)


def replicated(count, **more):
    state = drawn_state()
    (came,) = run(copies, [{"model": {"state": state, **more}, "count": count}], group=False)
    right_type(came, "replicate")
    same("the number of copies", len(came["seen"]), count)
    return came, state


@pytest.mark.parametrize("count", [3, 1])
def test_2a_equal_and_apart(count):
    tried(f"{so_many(count, 'copy', 'copies')} of a model with batch norm; each copy is then changed")
    came, state = replicated(count)
    for number, seen in enumerate(came["seen"], 1):
        right_state(f"in copy {number}", seen, state)
    right_state("in the model (after the copies were changed)", came["model"], state)
    for number, changed in enumerate(came["changed"], 1):
        expected = {}
        for name, tensor in state.items():
            expected[name] = tensor + number
        right_state(f"in copy {number} (after {number} was added to all its tensors)", changed, expected)


def test_2b_tied_and_frozen():
    """2 copies of a model; its first layer is frozen, two layers share a weight, and batch norm is in
    evaluation mode"""
    came, state = replicated(2, tied=True, frozen=FIRST, evaluation=["norm"])
    modes = ["", "first", "second", "third"]
    for place in range(2):
        copy = f"copy {place + 1}"
        same(f"the list of parameters of {copy}", came["parameters"][place], list(SHAPES))
        same(f"the list of frozen parameters of {copy}", came["frozen"][place], FIRST)
        same(f"the list of modules of {copy} that are in training mode", came["modes"][place], modes)
        right_state(f"in {copy}", came["seen"][place], state)


ALL = ["", "first", "norm", "second"]  # all modules


def check_computed(count, sizes, evaluation=False, single=False, whole=False):
    """Returns what came, and a reference after its backward pass for each copy that has a part. With
    `evaluation`, everything is float64."""
    models = []
    for _ in range(count):
        state = drawn_state()
        if evaluation:
            state = double(state)
        models.append({"state": state, "evaluation": ALL if evaluation else [], "single": single})
    parts = []
    for size in sizes:
        part = integers(-2, 3, size, 5) if whole else floats(size, 5)
        parts.append(part.double() if evaluation else part)
    upstream = floats(sum(sizes)) if single else floats(sum(sizes), 4)
    if evaluation:
        upstream = upstream.double()
    given = {"models": models, "parts": parts, "upstream": upstream, "tuples": evaluation}
    (came,) = run(compute, [given], group=False)
    right_type(came, "compute_and_gather")

    references = []
    outputs = []
    for place, of_part in enumerate(upstream.split(sizes)):
        reference = Model(**models[place]).double()
        output = reference(parts[place].double())
        output.backward(of_part.double())
        references.append(reference)
        outputs.append(output)
    called = f"the copies were called with batches of {words(came['sizes'])} images"
    wanted = f"{words(sizes)}, and nothing for a copy without a part"
    require(sorted(came["sizes"]) == sorted(sizes), called, wanted)
    close("the output", came["outputs"], torch.cat(outputs), relative=1e-4, dtype=upstream.dtype)
    return came, references


@pytest.mark.parametrize("count, sizes", [(3, [4, 4, 3]), (1, [4]), (2, [3, 3]), (4, [4, 4, 3])])
def test_3a_in_order(count, sizes):
    number = f"{count} copies with different weights" if count > 1 else "1 copy"
    tried(f"{number}, and {so_many(len(sizes), 'part')} with {words(sizes)} images")
    check_computed(count, sizes)


def test_3a_whole_numbers_in_and_one_number_out():
    """2 copies that turn their images, which are of int64, into float32, and whose output is one number for
    each image, in one dimension; parts with 4 and 3 images"""
    check_computed(2, [4, 3], single=True, whole=True)


@pytest.mark.parametrize("evaluation", [False, True])
def test_3b_backward_reaches_the_copies(evaluation):
    what = "3 copies with different weights, parts with 4 and 3 images, then backward()"
    if evaluation:
        what += "; in evaluation mode, copies and parts are tuples, and everything is float64"
    tried(what)
    came, references = check_computed(3, [4, 3], evaluation)
    require(came["reaches"], "the output is not connected to the copies, so backward() reaches nothing")
    for place, reference in enumerate(references):
        for name, expected in gradients(reference).items():
            got = came["gradients"][place].get(name)
            close(f"the gradient of {name} in copy {place + 1}", got, expected, relative=1e-4, scale=1.0)


def in_double(model):
    return model | {"state": double(model["state"]), "old": double(model["old"])}


def check_reduced(given, old, **more):
    """`given`: the gradients of each copy, `old`: those of the model."""
    model = {"state": drawn_state(), "old": old, **more}
    models = []
    for mine in given:
        models.append({"state": drawn_state(), "old": mine, **more})
    if more.get("evaluation"):  # float64 as well
        model = in_double(model)
        models = [in_double(one) for one in models]
    (came,) = run(add_up, [{"model": model, "copies": models}], group=False)
    for name in SHAPES:
        there = []
        for one in (*models, model):
            if name in one["old"]:
                there.append(one["old"][name].double())
        what = f"the gradient of {name}"
        if name in old:
            what += " (the model had one before)"
        got = came["gradients"].get(name)
        if there:
            close(what, got, sum(there))
        else:
            require(got is None, f"{what} is not None", "None")
    right_state("after reduce", came["state"], only(SHAPES, model["state"]))
    return came, models[0]["state"]


@pytest.mark.parametrize("count", [3, 1])
def test_4a_added_up(count):
    tried(f"{so_many(count, 'copy', 'copies')} with gradients; the model has none")
    check_reduced(of_copies(count), {})


def test_4a_added_to_old_gradients():
    """2 copies with gradients; the model has other gradients from before"""
    check_reduced(of_copies(2), drawn_gradients(3))


def test_4b_missing_gradients():
    """3 copies: the last got no part, norm.bias has a gradient only in copy 2, second.bias in none, and
    that of first.bias, only in copy 1, is zeros"""
    of_two = of_copies(2, all_but("second.bias"))
    del of_two[0]["norm.bias"], of_two[1]["first.bias"]
    of_two[0]["first.bias"] *= 0
    check_reduced([*of_two, {}], {})


def test_4b_old_gradients_stay():
    """2 copies without gradients for norm.bias and second.bias; the model has old gradients for both"""
    check_reduced(of_copies(2, all_but("norm.bias", "second.bias")), drawn_gradients(3))


def test_4b_frozen_and_tied():
    """2 copies; the first layer is frozen, and two layers share a weight"""
    check_reduced(of_copies(2, all_but(*FIRST)), {}, tied=True, frozen=FIRST)


@pytest.mark.parametrize("evaluation", [False, True])
def test_4c_buffers_of_the_first_copy(evaluation):
    what = "3 copies with different running means, variances and counters, and a buffer `scale` with "
    what += "persistent=False"
    if evaluation:
        what += "; in evaluation mode, and everything is float64"
    tried(what)
    came, first = check_reduced(of_copies(3), {}, evaluation=ALL if evaluation else [])
    expected = only([*BUFFERS, COUNTER], first)
    right_state("in the model after reduce", came["state"], expected)
    right_state("in the model (through a reference taken before)", came["held"], expected)


def learnt(model, batches, count, optimizer, freeze):
    """The tensors of a model after all steps, in float64, and the loss of each. With `freeze`, the first
    layer is frozen before the last step."""
    model = Model(**(model | {"old": None})).double()
    steps = Optimizer(optimizer[0], model.parameters(), optimizer[1])
    losses = []
    for number, (images, labels) in enumerate(batches):
        if freeze and number == len(batches) - 1:
            model.first.requires_grad_(False)
        # Each part begins with the buffers from before the step: what the first makes of them is what stays.
        outputs = []
        buffers = []
        for part in images.double().split(part_sizes(len(images), count)):
            copies_of_buffers = {name: tensor.clone() for name, tensor in model.named_buffers()}
            outputs.append(functional_call(model, copies_of_buffers, part))
            buffers.append(copies_of_buffers)
        loss = cross_entropy(torch.cat(outputs), labels)
        steps.zero_grad()
        loss.backward()
        steps.step()
        model.load_state_dict(buffers[0], strict=False)
        losses.append(loss.item())
    return values(model), losses


def check_trained(sizes, count, optimizer=("SGD", {"lr": 0.1}), freeze=False, **more):
    model = {"state": drawn_state(), **more}
    batches = []
    for size in sizes:
        images = floats(size, 5)
        labels = integers(0, 4, size)
        batches.append((images, labels))
    given = {"model": model, "batches": batches, "count": count, "optimizer": optimizer, "freeze": freeze}
    (came,) = run(train, [given], group=False)
    state, losses = learnt(model, batches, count, optimizer, freeze)

    same("the number of steps of the optimizer", came["steps"], len(sizes))
    for number, (size, calls) in enumerate(zip(sizes, came["calls"], strict=True), 1):
        expected = part_sizes(size, count)
        called = f"in step {number}, the copies were called with batches of {words(calls['sizes'])} images"
        require(sorted(calls["sizes"]) == sorted(expected), called, words(expected))
        called = f"in step {number}, {so_many(calls['copies'], 'model was', 'models were')} called"
        require(calls["copies"] == len(expected), called, f"{len(expected)}, one per part")
    if len(sizes) > 1:  # in 5b, which needs 5a: whoever changes the mode has one step right
        mode = "evaluation" if model.get("evaluation") else "training"
        same("the mode of the model afterwards", came["mode"], mode)
    right_state("after the last step", came["state"], state, relative=2e-4)
    for number, (got, expected) in enumerate(zip(came["losses"], losses, strict=True), 1):
        kind = "a tensor" if hasattr(got, "shape") else str(got)[:40]
        require(isinstance(got, float), f"the loss of step {number} is {kind}", "a float")
        close(f"the loss of step {number}", got, expected, relative=1e-4)


@pytest.mark.parametrize("size, count", [(11, 3), (6, 1), (9, 4)])
def test_5a_one_step(size, count):
    tried(f"one step of SGD with {size} images on {so_many(count, 'copy', 'copies')}")
    check_trained([size], count)


def test_5b_momentum():
    """3 steps of SGD with momentum on 2 copies, 8, 7 and 9 images; the model already has gradients, and its
    first layer is frozen before the last step"""
    check_trained([8, 7, 9], 2, ("SGD", {"lr": 0.1, "momentum": 0.9}), freeze=True, old=drawn_gradients())


def test_5b_adam():
    """2 steps of Adam on 3 copies, 9 and 11 images; two layers share a weight"""
    check_trained([9, 11], 3, ("Adam", {"lr": 0.05, "eps": 0.02}), tied=True)


def test_5b_one_copy():
    """2 steps of SGD with weight decay on 1 copy, 6 and 5 images; the model has gradients, and its first
    layer is frozen"""
    check_trained([6, 5], 1, ("SGD", {"lr": 0.1, "weight_decay": 0.1}), old=drawn_gradients(), frozen=FIRST)


def test_5b_in_evaluation_mode():
    """2 steps of SGD on 4 copies, 3 and 2 images, with a model in evaluation mode"""
    check_trained([3, 2], 4, evaluation=ALL)
