"""Exercise 01: a large batch made of several small ones.

| axis | checked in |
| --- | --- |
| sizes | 1a, 1b, 2a: one image, uneven parts, fewer images than part_size; 3b: no batches |
| dtype | 1b: float64 |
| memory layout | 1a, 2a: transposed images |
| container | pairs: tuples in 1a to 1c, lists in 3a to 3c; batches that can be read only once in 3a to 3c |
| calls | 1b: existing gradients; 2b: three steps |
| modes | 1a, 2b, 3a: training mode, and it stays; evaluation mode is excluded by the docstring |
| frozen, unused, missing gradients | 1b, 2b, 3a: with gradients from before, and weight decay |
| used in some steps only | 3a |
| optimizers | SGD with momentum and weight decay, Adam; LBFGS is excluded by the docstring |
| global random state | 1a, 1b, 2b, 3a, 3b: each forward pass draws new numbers |
| world size, seeds, tied | the functions have none; autograd adds up what is tied |
"""

import pytest
import torch
from grader.testing import close, floats, integers, require, run, same, so_many, tried
from optimizers import Optimizer
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import cross_entropy

# The large eps makes Adam's step depend on the size of a gradient, which it would hide.
SGD = ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})
ADAM = ("Adam", {"lr": 0.05, "eps": 0.02})
OLD = "the parameters already have gradients, `spare` is a parameter that the model does not use, `early` is "
OLD += "used in its first forward pass only, and `last.bias` is frozen"


# ---- what runs in each rank: a body, and what it mentions of this file


class Model(nn.Module):
    """Two layers, perhaps with a batch norm between: then the output depends on who else is in the batch.
    It notes how many earlier parts are in memory when a part comes in."""

    def __init__(self, state, old, frozen):
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.last = nn.Linear(6, 3)
        self.norm = nn.BatchNorm1d(6, eps=0.1) if "norm.weight" in state else nn.Identity()
        if "spare" in state:
            self.spare = nn.Parameter(torch.zeros(4))  # in no pass
            self.early = nn.Parameter(torch.zeros(6))  # as of a layer that is skipped at random
        self.to(state["first.weight"].dtype).load_state_dict(state)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in frozen)
            parameter.grad = old.get(name)
        self.sizes = []
        self.parts = []
        self.in_memory = []
        self.random = []

    def forward(self, images):
        self.in_memory.append(still_there(self.parts))
        self.sizes.append(len(images))
        self.random.append(torch.rand(()).item())  # as dropout does
        hidden = self.norm(self.first(images)).tanh()
        if hasattr(self, "early") and len(self.sizes) == 1:
            hidden = hidden + self.early
        self.parts.append(StorageWeakRef(hidden.untyped_storage()))  # backward needs it
        return self.last(hidden)

    def seen(self):
        return {
            "sizes": self.sizes,
            "in_memory": self.in_memory,
            "training": self.training,
            "random": self.random,
            "gradients": {name: parameter.grad for name, parameter in self.named_parameters()},
            "state": self.state_dict(),
        }


def still_there(storages):
    count = 0
    for one in storages:
        if not one.expired():
            count += 1
    return count


class Batches:
    """Gives the batches one after another, and only once. Notes how many steps were done when it gave each,
    and how many of those before were in memory."""

    def __init__(self, batches, steps):
        self.batches = iter(batches)
        self.steps = steps
        self.taken = []
        self.done = []
        self.in_memory = []

    def __iter__(self):
        if self.taken:
            raise RuntimeError("`batches` can be read only once, and this is the second time")
        for images, labels in self.batches:
            self.in_memory.append(still_there(self.taken))
            self.done.append(len(self.steps))
            pair = [images.clone(), labels]  # a list, as a DataLoader gives it
            self.taken.append(StorageWeakRef(pair[0].untyped_storage()))
            yield pair
            del pair


def add(student, me, given):
    model = Model(**given["model"])
    parts = [(images, labels) for images, labels in given["parts"]]
    loss = student.add_gradients(model, parts)
    return model.seen() | {"loss": loss}


def train(student, me, given):
    """A large step for each batch, or an epoch over all."""
    model = Model(**given["model"])
    steps = []
    returned = []  # by add_gradients
    add_gradients = student.add_gradients

    def noting(*words, **named):
        returned.append(add_gradients(*words, **named))
        return returned[-1]

    student.add_gradients = noting
    name, options = given["optimizer"]
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    optimizer.register_step_post_hook(lambda *_: steps.append(0))
    batches = Batches(given["batches"], steps)
    if "part_size" in given:
        losses = []
        for images, labels in given["batches"]:
            losses.append(student.large_step(model, optimizer, images, labels, given["part_size"]))
    else:
        losses = student.train_epoch(model, optimizer, batches, given["parts_per_step"])
    came = model.seen()
    came |= {"kind": type(losses).__name__, "losses": losses, "steps": len(steps)}
    came["handed_on"] = are_among(losses, returned) if type(losses) is list else []
    came |= {"steps_done": batches.done, "batches_in_memory": batches.in_memory}
    return came


def are_among(losses, returned):
    """Of each loss, whether it is the very thing that one of the calls has returned."""
    found = []
    for loss in losses:
        found.append(any(loss is one for one in returned))
    return found


# ---- what is drawn, and what is right


def drawn_tensors(shapes):
    found = {}
    for name, shape in shapes.items():
        found[name] = floats(*shape)
    return found


def drawn_model(norm=False, old=False):
    shapes = {"first.weight": (6, 5), "first.bias": (6,), "last.weight": (3, 6), "last.bias": (3,)}
    if old:
        shapes |= {"spare": (4,), "early": (6,)}
    state = drawn_tensors(shapes)
    if norm:
        for name in ("bias", "running_mean"):
            state[f"norm.{name}"] = floats(6)
        for name in ("weight", "running_var"):
            state[f"norm.{name}"] = floats(6).abs() + 0.5
        state["norm.num_batches_tracked"] = integers(1, 1000)
    if old:
        return {"state": state, "old": drawn_tensors(shapes), "frozen": ["last.bias"]}
    return {"state": state, "old": {}, "frozen": []}


def drawn_parts(sizes, transposed=False):
    """Parts whose losses differ a lot: a mean with wrong weights cannot be mistaken for the right one."""
    # The images of all parts are drawn before the labels.
    images_of_parts = []
    for place, size in enumerate(sizes):
        images_of_parts.append(floats(size, 5) + 2 * place % 5)
    parts = []
    for images in images_of_parts:
        if transposed:  # in memory, by columns
            images = images.t().contiguous().t()
        parts.append((images, integers(0, 3, len(images))))
    return parts


def whole(parts):
    return [torch.cat(both) for both in zip(*parts, strict=True)]


def reference(model):
    return Model(model["state"], {}, model["frozen"]).double()


def backward(model, parts):
    """Gradients of the mean over all parts, in the reference. Returns the loss."""
    size = 0
    for _, labels in parts:
        size += len(labels)
    mean = 0.0
    for images, labels in parts:
        loss = cross_entropy(model(images.double()), labels, reduction="sum") / size
        loss.backward()
        mean += loss.item()
    return mean


def words(sizes):
    return ", ".join(map(str, sizes))


def right_sizes(came, sizes):
    same("the list of batch sizes that the model was called with", came["sizes"], sizes)


def mode_kept(came):
    """A change of mode changes the next step, and not this one: it is named, not shown by weights. So is a
    seed: with it, dropout would draw the same mask again."""
    wanted = "training mode, as the model was given to your code"
    require(came["training"] is True, "afterwards, the model is in evaluation mode", wanted)
    is_new = len(set(came["random"])) == len(came["random"])
    wanted = "new random numbers in each forward pass: set no seed"
    require(is_new, "two forward passes of the model drew the same random numbers", wanted)


def right_loss(what, got, expected):
    came = "a tensor" if hasattr(got, "shape") else str(got)[:40]
    require(isinstance(got, float), f"{what} is {came}", "a float (`.item()` turns a tensor into one)")
    close(what, got, expected, relative=1e-4)


def one_at_a_time(came):
    """Nothing of a part is left when the next goes forward, so each went backward before."""
    for number, kept in enumerate(came["in_memory"], 1):
        were = "was" if kept == 1 else "were"
        earlier = f"{so_many(kept, 'earlier part')} {were} still in memory"
        what = f"when part {number} of {len(came['sizes'])} entered the model, {earlier}"
        require(kept == 0, what, "none: backward() frees what the forward pass stored")


def right_state(came, right):
    for name, expected in right.state_dict().items():
        close(f"{name} afterwards", came["state"].get(name), expected, relative=1e-4, scale=1.0)


def near(got, expected):
    """Whether they differ by less than a mistake does. With batch norm, a gradient may be zero but for
    rounding: 1e-9 against 1e-9 says nothing, so numbers are held against 0.1 at least."""
    return float((got - expected).abs().max()) <= 1e-3 * max(float(expected.abs().max()), 0.1)


def in_double(tensors):
    return {name: one.double() for name, one in tensors.items()}


def check_gradients(sizes, *, double=False, transposed=False, **more):
    """add_gradients once. Returns what came, and the right loss."""
    model = drawn_model(**more)
    parts = drawn_parts(sizes, transposed)
    relative = 1e-4
    if double:  # a weight of a part may be float32 all the same
        relative = 1e-6
        parts = [(images.double(), labels) for images, labels in parts]
        model |= {"state": in_double(model["state"]), "old": in_double(model["old"])}
    (came,) = run(add, [{"model": model, "parts": parts}], group=False)

    right = reference(model)
    loss = backward(right, parts)
    last = reference(model)  # which gets the last part only
    backward(last, parts[-1:])
    right_sizes(came, sizes)
    norm = ", with batch norm" if "norm.weight" in model["state"] else ""
    for name, parameter in right.named_parameters():
        what = f"the gradient of {name}{norm}"
        got = came["gradients"].get(name)
        expected = model["old"].get(name)
        if parameter.grad is not None:
            expected = parameter.grad if expected is None else parameter.grad + expected
            share = last.get_parameter(name).grad * sizes[-1] / sum(sizes)
            if got is not None and got.shape == share.shape:
                is_last = near(got, share) and not near(got, expected)
                wanted = "the sum of the gradients of all parts"
                require(not is_last, f"{what} is that of the last part alone", wanted)
        close(what, got, expected, relative, scale=0.1)
    right_state(came, right)
    mode_kept(came)
    return came, loss


@pytest.mark.parametrize("sizes", [[4, 4, 4], [5, 2, 4]])
def test_1a_equal_to_the_whole(sizes):
    tried(f"parts of {words(sizes)} images")
    check_gradients(sizes)


def test_1a_with_batch_norm():
    """Parts of 5, 4 and 3 images, stored by columns, a model with batch norm"""
    check_gradients([5, 4, 3], norm=True, transposed=True)


@pytest.mark.parametrize("double", [False, True])
def test_1b_added_to_what_is_there(double):
    tried(f"parts of 3, 1 and 6 images; {OLD}{' (everything is float64)' if double else ''}")
    came, loss = check_gradients([3, 1, 6], old=True, double=double)
    right_loss("the mean loss", came["loss"], loss)


def test_1c_one_part_in_memory():
    """10 parts of 6 images"""
    came, _ = check_gradients([6] * 10)
    one_at_a_time(came)


def grouped(parts, groups):
    """The parts one after another, as many in each group as the group has sizes."""
    steps = []
    begin = 0
    for group in groups:
        end = begin + len(group)
        steps.append(parts[begin:end])
        begin = end
    return steps


def check_steps(groups, optimizer, *, norm=False, old=False, transposed=False, **cut):
    """A step of the optimizer for each group of parts: large_step cuts a batch into parts itself (part_size),
    train_epoch is given them (parts_per_step). `groups` has the sizes of the parts."""
    sizes = []
    for group in groups:
        sizes += group
    model = drawn_model(norm, old)
    parts = drawn_parts(sizes, transposed)
    steps = grouped(parts, groups)
    given = {"model": model, "optimizer": optimizer, "batches": parts, **cut}
    if "part_size" in cut:
        given["batches"] = [whole(some) for some in steps]
    (came,) = run(train, [given], group=False)

    right = reference(model)
    name, options = optimizer
    stepper = Optimizer(name, right.parameters(), options)
    losses = []
    for some in steps:
        stepper.zero_grad()
        losses.append(backward(right, some))
        stepper.step()
    same("the type of what train_epoch returns", came["kind"], "list")
    right_sizes(came, sizes)
    same("the number of steps of the optimizer", came["steps"], len(groups))
    if "parts_per_step" in cut or len(groups) > 1:
        mode_kept(came)
    right_state(came, right)
    same("the length of the list of losses", len(came["losses"]), len(losses))
    for number, (got, expected) in enumerate(zip(came["losses"], losses, strict=True), 1):
        # What add_gradients returns is looked at in 1b: whoever hands that on loses no more points by it.
        if not came["handed_on"][number - 1]:
            right_loss(f"the mean loss of step {number}", got, expected)
    return came


def large_steps(sizes, part_size, optimizer=SGD, **more):
    """large_step for batches of these sizes."""
    groups = []
    for size in sizes:
        group = []
        for start in range(0, size, part_size):
            group.append(min(part_size, size - start))
        groups.append(group)
    return check_steps(groups, optimizer, part_size=part_size, **more)


@pytest.mark.parametrize("size, part_size, optimizer", [(12, 4, SGD), (9, 4, ADAM), (5, 8, SGD)])
def test_2a_one_step(size, part_size, optimizer):
    tried(f"{size} images with part_size {part_size}, one step of {optimizer[0]}")
    large_steps([size], part_size, optimizer)


def test_2a_with_batch_norm():
    """11 images, stored by columns, with part_size 4, one step of SGD, a model with batch norm"""
    large_steps([11], 4, norm=True, transposed=True)


def test_2b_without_old_gradients():
    tried(f"5 images with part_size 2, one step of SGD; {OLD}")
    large_steps([5], 2, old=True)


def test_2b_three_steps():
    """Batches of 7, 5 and 6 images with part_size 3, three steps of Adam"""
    large_steps([7, 5, 6], 3, ADAM)


def test_2b_one_part_in_memory():
    """60 images with part_size 6, one step of SGD"""
    one_at_a_time(large_steps([60], 6))


def epoch(sizes, parts_per_step, optimizer=SGD, **more):
    groups = []
    for start in range(0, len(sizes), parts_per_step):
        groups.append(sizes[start : start + parts_per_step])
    return check_steps(groups, optimizer, parts_per_step=parts_per_step, **more)


def test_3a_a_step_for_each_group():
    tried(f"6 batches of 4 images, parts_per_step 3, SGD; {OLD}")
    epoch([4] * 6, 3, old=True)


def test_3a_with_batch_norm():
    """Batches of 4, 5, 3 and 3 images, parts_per_step 2, Adam, a model with batch norm"""
    epoch([4, 5, 3, 3], 2, ADAM, norm=True)


@pytest.mark.parametrize("sizes, parts_per_step", [([4, 4, 4, 4, 1], 2), ([3, 3, 2], 5), ([], 2)])
def test_3b_the_last_group(sizes, parts_per_step):
    batches = f"batches of {words(sizes)} images" if sizes else "no batches"
    tried(f"{batches}, parts_per_step {parts_per_step}, SGD")
    epoch(sizes, parts_per_step)


def test_3c_batches_when_they_are_needed():
    """12 batches of 2 images, parts_per_step 2, SGD"""
    came = epoch([2] * 12, 2)
    one_at_a_time(came)
    for number, done in enumerate(came["steps_done"]):
        wanted = number // 2
        what = f"batch {number + 1} was taken from `batches` after {so_many(done, 'step')}"
        require(done >= wanted, what, f"after {so_many(wanted, 'step')}")
    for number, kept in enumerate(came["batches_in_memory"], 1):
        what = f"when batch {number} of 12 was taken, {kept} earlier batches were still in memory"
        require(kept <= 4, what, "at most those of this step and of the step before")
