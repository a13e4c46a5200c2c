"""Exercise 09: FSDP by hand, a shard of every weight.

| axis | checked in |
| --- | --- |
| world size 1 to 4 | 1a (and 6), 5b |
| dtype | 1a: bfloat16 and float64; 2c, 4a, 4b, 5a: units in bfloat16 |
| memory layout | 1a: tensors stored by columns; 3b, 3c, 4a: images and slopes by columns |
| container | 1a: lists and tuples |
| calls | 2c, 3a, 5a: new numbers in the shards; 3c: two passes, and two passes at a time; 5b: four steps |
| sizes | 1a: one number, fewer numbers than ranks; 2c: shards of zeros only; 3a to 3c: uneven batches |
| a parameter without dimensions | 1a, 2c |
| images | 3b: with a dimension more, with and without a gradient, left alone |
| unused parameters | 3c: on one rank, on all ranks; all of the first unit on one rank |
| hooks of the shard | 3c |
| frozen, tied, buffers, train or eval, images of another dtype | excluded by the docstring |
| seeds | the functions have none |
"""

import itertools
import random
from functools import partial

import pytest
import torch
from give_back import free_memory, own_pages
from grader.testing import close, floats, integers, needs_memory, require, run, same, so_many
from torch import nn

LARGE = [256, 1024, 256]  # widths of the large units


# ---- what runs in each rank: a body, and what it mentions of this file


class Layers(nn.Module):
    """Linear layers, with tanh after each unless it is plain. Those in `skip` are left out on this rank.
    `look` is called with what comes out of the first."""

    def __init__(self, widths, state=None, plain=False, skip=(), look=lambda middle: None):
        super().__init__()
        if state and "unused" in state:
            self.unused = nn.Parameter(torch.tensor(0.0))
        self.layers = nn.ModuleList()
        for inside, outside in itertools.pairwise(widths):
            self.layers.append(nn.Linear(inside, outside))
        for name, parameter in self.named_parameters():
            parameter.data.copy_(state[name] if state else torch.tensor(0.01))
        self.plain = plain
        self.skip = skip
        self.look = look
        self.computed = set()  # the dtypes of images and weights

    def forward(self, images):
        self.computed |= {str(images.dtype)[6:], str(self.layers[0].weight.dtype)[6:]}
        for number, layer in enumerate(self.layers):
            if number not in self.skip:
                images = layer(images)
                if not self.plain:
                    images = torch.tanh(images)
            if number == 0:
                self.look(images)
        return images


def copied(value):
    """What is there now, if it is a tensor or a dict of them."""
    if isinstance(value, dict):
        return {str(name): copied(one) for name, one in value.items()}
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value


def by_columns(tensor):
    """In memory column by column, as the gradients of some layers come."""
    return tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor


def split(student, me, cases):
    """The flat tensor and all shards of some lists of tensors."""
    found = []
    for number, case in enumerate(cases):
        tensors = []
        for tensor in case["tensors"]:
            stored = by_columns(tensor) if case["columns"] else tensor
            tensors.append(stored.clone())
        if number % 2 == 0:
            tensors = tuple(tensors)
        world_size = case["world_size"]
        flat = student.flatten(tensors, world_size)
        shards = [student.split(tensors, rank, world_size) for rank in range(world_size)]
        for tensor in tensors:
            tensor.zero_()  # what is a view of it is zero now, too
        found.append({"flat": flat, "shards": shards})
    return found


def begin(student, given):
    """The student's units of this rank, and the modules inside them."""
    skips = given.get("skips", [()] * len(given["units"]))
    dtype = torch.bfloat16 if given.get("low") else torch.float32
    units = []
    modules = []
    for one, skip in zip(given["units"], skips, strict=True):
        module = Layers(**one, skip=skip)
        modules.append(module)
        units.append(student.Unit(module, dtype))
    return units, modules


def through(units, images):
    for unit in units:
        images = unit(images)
    return images


def use(student, me, given):
    """Make units; put other numbers into their shards; gather; compute without and with gradients."""
    units, modules = begin(student, given)
    answer = {"sent": me.sent(), "shards": [], "leaves": [], "gathered": [], "passes": [], "state": []}
    for unit in units:
        answer["shards"].append(copied(unit.shard))
        answer["leaves"].append(unit.shard.is_leaf and unit.shard.requires_grad)
    with torch.no_grad():
        for unit, shard in zip(units, given.get("shards", []), strict=False):
            unit.shard.copy_(shard)

    for name in given.get("gather", []):
        gathered = []
        for unit in units:
            gathered.append(copied(unit.gather(getattr(torch, name))))
        answer["gathered"].append(gathered)
    if "look" in given:
        with torch.no_grad():
            answer["looked"] = copied(through(units, given["look"]))
    for batch in given.get("passes", []):
        answer["passes"].append(one_pass(units, batch, me))
    if "together" in given:
        answer["hooked"] = both_together(units, given["together"])
    if "state" in given:
        for unit in units:
            answer["state"].append(copied(unit.full_state()))
    answer["computed"] = [sorted(module.computed) for module in modules]
    return answer


def one_pass(units, batch, me):
    """Forward and backward with one batch."""
    images = by_columns(batch["images"]).requires_grad_(batch["leaf"])
    calls = len(me.calls)
    output = through(units, images)
    sent = me.sent(calls)
    (output * by_columns(batch["slope"])).sum().backward()
    came = {"output": copied(output), "images": images.grad, "sent": sent, "shards": []}
    came["left alone"] = images.equal(batch["images"]) and images.requires_grad == batch["leaf"]
    for unit in units:
        came["shards"].append(copied(unit.shard.grad))
    return came


def both_together(units, batches):
    """Each unit is called twice before any backward. What a hook of each shard is given then."""
    outputs = [through(units, batch["images"]) for batch in batches]
    hooked = []
    for unit in units:
        hooked.append([])
        unit.shard.register_hook(hooked[-1].append)
    total = 0
    for output, batch in zip(outputs, batches, strict=True):
        total = total + (output * by_columns(batch["slope"])).sum()
    total.backward()
    return hooked


def train(student, me, given):
    """Some steps of SGD with momentum. The loss is the mean of output times slope."""
    units, _ = begin(student, given)
    optimizer = torch.optim.SGD([unit.shard for unit in units], given["lr"], momentum=given["momentum"])
    losses = []
    for batch in given["batches"]:
        optimizer.zero_grad()
        loss = (through(units, batch["images"]) * batch["slope"]).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    came = {"losses": losses, "shards": [], "state": []}
    for unit in units:
        came["shards"].append(unit.shard)
        came["state"].append(unit.full_state())
    return came


def large(student, me, given):
    """Make large units, and with `passes` let images pass. What this rank holds at many moments, and what it
    has sent."""
    own_pages()
    warm = student.Unit(Layers([4, 8, 4]))
    if given["passes"]:
        warm(torch.ones(2, 4)).sum().backward()
    del warm
    free_memory()
    start = me.memory()
    calls = len(me.calls)
    held = {}

    def note_memory(when):
        if when not in held:  # a module may compute again in backward: that is the same forward pass
            free_memory()
            held[when] = me.memory() - start

    def look(number, middle):
        note_memory(f"when unit {number} computed in forward")
        if middle.requires_grad:
            middle.register_hook(lambda slope: note_memory(f"when unit {number} computed in backward"))

    units = []
    for number in range(1, given["count"] + 1):
        units.append(student.Unit(Layers(LARGE, plain=True, look=partial(look, number))))
    note_memory("when all units were made")
    if not given["passes"]:
        return {"held": held}
    output = through(units, torch.ones(4, LARGE[0]))
    note_memory("after forward")
    forward = me.sent(calls)
    back = len(me.calls)
    output.sum().backward()
    note_memory("after backward")
    reduced = 0
    for call in me.calls:
        if call.get("phase") == "begin" and call["event"] == "all_reduce":
            reduced = max(reduced, call["size"])
    return {"held": held, "sent": {"forward": forward, "backward": me.sent(back)}, "reduced": reduced}


# ---- what is drawn, and what is right


def shapes_of(widths):
    return {name: one.shape for name, one in Layers(widths).named_parameters()}


def unit_of(*widths, unused=False):
    """What a body needs to build a module. Weights are such that tanh is neither a line nor saturated. With
    `unused`, it has one more parameter, which is a single number without dimensions and not used."""
    state = {}
    for name, shape in shapes_of(widths).items():
        is_bias = len(shape) == 1
        state[name] = floats(*shape) * (0.1 if is_bias else shape[1] ** -0.5)
    if unused:
        state = {"unused": floats(1)[0]} | state
    return {"widths": list(widths), "state": state}


def flat_of(tensors, world_size):
    """One after another in float64, with the fewest zeros that make it divisible."""
    flat = torch.cat([tensor.double().flatten() for tensor in tensors])
    return torch.cat([flat, torch.zeros(-len(flat) % world_size, dtype=torch.float64)])


def shards_of(tensors, world_size):
    return flat_of(tensors, world_size).chunk(world_size)


def with_other_weights(unit):
    state = {}
    for name, one in unit["state"].items():
        state[name] = torch.randn_like(one) * 0.4
    return unit | {"state": state}


def other_shards(units, world_size):
    """Units with other weights, and the shards of them that each rank is given: such as no rank can have made
    from what it was given first."""
    others = []
    of_ranks = [[] for _ in range(world_size)]
    for unit in units:
        other = with_other_weights(unit)
        others.append(other)
        for rank, shard in enumerate(shards_of(other["state"].values(), world_size)):
            of_ranks[rank].append(shard.float())
    return others, of_ranks


def doubled(units):
    return [Layers(**unit).double() for unit in units]


def mean_gradients(module, count):
    """The gradients of a module divided by the number of ranks; zeros where it has none."""
    means = []
    for parameter in module.parameters():
        if parameter.grad is None:
            means.append(torch.zeros_like(parameter))
        else:
            means.append(parameter.grad / count)
    return means


def right(units, batches):
    """Outputs and gradients of the images of each rank, and each unit's gradients: the mean over ranks."""
    modules = doubled(units)
    expected = {"outputs": [], "slopes": [], "means": []}
    for batch in batches:
        for module, skip in zip(modules, batch.get("skips", [()] * len(units)), strict=True):
            module.skip = skip
        images = batch["images"].double().requires_grad_()
        output = through(modules, images)
        (output * batch["slope"].double()).sum().backward()
        expected["outputs"].append(output.detach())
        expected["slopes"].append(images.grad if batch["leaf"] else None)
    for module in modules:
        expected["means"].append(mean_gradients(module, len(batches)))
    return expected


def added(means, others):
    """The sum of two lists of each unit's gradients."""
    found = []
    for some, more in zip(means, others, strict=True):
        found.append(list(map(torch.add, some, more)))
    return found


def check_tensor(what, came, expected, **more):
    close(what, came, expected, dtype=torch.float32, **more)


def check_weights(what, came, state, dtype=torch.float32):
    require(isinstance(came, dict), f"{what} is {came!r:.80}", "a dict of tensors by name")
    same(f"the sorted list of names in {what}", sorted(came), sorted(state))
    for name, expected in state.items():
        close(f"{name} in {what}", came[name], expected.to(dtype), dtype=dtype)


def numbered(units):
    return [(f"unit {number} of {len(units)}", unit) for number, unit in enumerate(units, 1)]


SHAPES = [(3, 4), (5,), (2, 2, 2), (1,)]
SIZES = [(1, SHAPES), (2, SHAPES), (3, SHAPES), (4, SHAPES), (4, [(3,)]), (4, [(2, 4)]), (6, [(1,), (5, 2)])]
SIZES += [(3, [(2, 3), (4,)]), (2, [(3, 4), (2, 3, 2), ()])]


def test_1a_one_flat_tensor_and_the_shards():
    """flatten and split of 9 lists of tensors, for 1 to 6 processes, the last in bfloat16 and in float64
    (there with matrices stored by columns, and with one number without dimensions)"""
    cases = []
    dtypes = ["float32"] * 7 + ["bfloat16", "float64"]
    for (world_size, shapes), dtype in zip(SIZES, dtypes, strict=True):
        tensors = [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]
        cases.append({"tensors": tensors, "world_size": world_size, "columns": dtype == "float64"})
    (found,) = run(split, [cases], group=False)
    for case, came, (world_size, shapes), dtype in zip(cases, found, SIZES, dtypes, strict=True):
        words = f"{shapes} in {dtype}"
        expected = flat_of(case["tensors"], world_size)
        check_tensor(f"flatten of {words} for {so_many(world_size, 'process')}", came["flat"], expected)
        for rank, shard in enumerate(expected.chunk(world_size)):
            check_tensor(f"split of {words} for rank {rank} of {world_size}", came["shards"][rank], shard)


def use_on_each(units, **each):
    """`use` with these units, and of each list what belongs to the rank."""
    world_size = len(next(iter(each.values())))
    inputs = []
    for rank in range(world_size):
        given = {"units": units}
        for name, of_ranks in each.items():
            given[name] = of_ranks[rank]
        inputs.append(given)
    return run(use, inputs)


@pytest.mark.parametrize("world_size", [1, 3])
def test_2a_the_shard_is_a_leaf(world_size):
    """Two units of 9 and 26 numbers; unit.shard"""
    units = [unit_of(2, 3), unit_of(3, 4, 2)]
    for rank, came in enumerate(run(use, [{"units": units}] * world_size)):
        for number, (words, unit) in enumerate(numbered(units)):
            what = f"the shard of {words} on rank {rank}"
            shard = shards_of(unit["state"].values(), world_size)[rank]
            check_tensor(what, came["shards"][number], shard)
            words = f"{what} is not a leaf that requires a gradient"
            require(came["leaves"][number], words, "a tensor that an optimizer accepts")
        words = f"rank {rank} sent {came['sent']:.0f} bytes when the units were made"
        require(came["sent"] == 0, words, "nothing sent")


ONE = 4 * sum(shape.numel() for shape in shapes_of(LARGE).values())  # bytes of a large unit


def megabytes(value):
    return f"{value / 1e6:.2f} MB"


def check_held(ranks, count, *moments):
    """At each moment, no rank may have held more than so much; words say what that is."""
    for when, most, words in moments:
        wanted = f"at most {megabytes(most)}: {words} (all weights are {megabytes(count * ONE)})"
        for rank, came in enumerate(ranks):
            held = came["held"].get(when)
            require(held is not None, f"{when}: this never came on rank {rank}", "a pass through all units")
            require(held <= most, f"{when}, rank {rank} held {megabytes(held)} more than before", wanted)


def test_2b_no_more_than_the_shard():
    """4 processes, 16 units of 2.1 MB; memory as the kernel counts it"""
    needs_memory()
    shard = 16 * ONE / 4
    words = f"a shard of {megabytes(shard)}, and no whole weights"
    ranks = run(large, [{"count": 16, "passes": False}] * 4)
    check_held(ranks, 16, ("when all units were made", shard + ONE, words))


def test_2c_the_whole_weights():
    """4 processes, two units of 10 and 2 numbers, of which one has no dimensions; then new numbers in the
    shards; unit.gather(torch.float32) and unit.gather(torch.bfloat16)"""
    units = [unit_of(4, 1, 2, unused=True), unit_of(1, 1)]
    dtypes = ["float32", "bfloat16"]
    others, shards = other_shards(units, 4)
    for rank, came in enumerate(use_on_each(units, shards=shards, gather=[dtypes] * 4)):
        for dtype, gathered in zip(dtypes, came["gathered"], strict=True):
            for (words, other), one in zip(numbered(others), gathered, strict=True):
                what = f"gather(torch.{dtype}) of {words} on rank {rank}"
                check_weights(what, one, other["state"], getattr(torch, dtype))


def test_3a_what_the_module_would_return():
    """3 processes, two units one after the other under torch.no_grad(); 2 and 3 and 4 images"""
    units = [unit_of(3, 5), unit_of(5, 2, 4)]
    others, shards = other_shards(units, 3)
    images = [floats(rank + 2, 3) for rank in range(3)]
    for rank, came in enumerate(use_on_each(units, shards=shards, look=images)):
        expected = through(doubled(others), images[rank].double())
        check_tensor(f"the output of the units on rank {rank}", came["looked"], expected)


def batch_of(units, images, leaf=False, more=()):
    inside = units[0]["widths"][0]
    outside = units[-1]["widths"][-1]
    return {"images": floats(images, *more, inside), "slope": floats(images, *more, outside), "leaf": leaf}


def one_pass_each(batches):
    """What each rank is given of these batches: a list of passes, with its own batch alone."""
    return [[batch] for batch in batches]


def check_pass(units, ranks, number, expected, sums=None):
    """One pass on all ranks: outputs, gradients of images, and each rank's shard of the mean gradients, or of
    `sums` where the gradients of earlier passes are still there."""
    gradients = sums or expected["means"]
    for rank, came in enumerate(ranks):
        where = f"on rank {rank} after pass {number + 1}"
        one = came["passes"][number]
        check_tensor(f"the output of the units {where}", one["output"], expected["outputs"][rank])
        for place, (words, _) in reversed(list(enumerate(numbered(units)))):  # as backward goes through them
            shard = shards_of(gradients[place], len(ranks))[rank]
            what = f"the gradient of the shard of {words} {where}"
            check_tensor(what, one["shards"][place], shard, relative=5e-5)
        slope = expected["slopes"][rank]
        if slope is not None:
            check_tensor(f"the gradient of the images {where}", one["images"], slope, relative=5e-5)
        words = f"the caller's images {where} have other numbers, or require a gradient"
        require(one["left alone"], f"{words}: your code has changed the caller's tensor", "unchanged images")


@pytest.mark.parametrize("world_size", [2, 3])
def test_3b_the_mean_gradient(world_size):
    """Two units; rank 0 has 2 images, rank 1 has 3, and so on; the loss is the sum of output times slope;
    with 3 processes, images are of 2 rows each and require a gradient"""
    units = [unit_of(3, 4), unit_of(4, 3, 2)]
    others, shards = other_shards(units, world_size)
    leaf, more = False, ()
    if world_size == 3:
        leaf, more = True, (2,)
    batches = [batch_of(units, rank + 2, leaf, more) for rank in range(world_size)]
    ranks = use_on_each(units, shards=shards, passes=one_pass_each(batches))
    check_pass(units, ranks, 0, right(others, batches))


def test_3c_gradients_add_up():
    """3 processes, two passes without clearing gradients; in unit 1, rank 0 uses no layer and rank 1 does not
    use layers.1, and no rank uses layers.0 in unit 2; then two forward passes before two backward passes,
    with a hook of each shard"""
    units = [unit_of(4, 4, 4, 4), unit_of(4, 4, 3)]
    # For each rank, which layers it leaves out of unit 1 and of unit 2.
    skips = [[[0, 1, 2], [0]], [[1], [0]], [[], [0]]]
    passes = []
    # The last two passes have equally many images: otherwise, a mistake there is an error about shapes.
    for more_images in (0, 1, 2, 2):
        batches = []
        for rank in range(3):
            batches.append(batch_of(units, rank + 1 + more_images) | {"skips": skips[rank]})
        passes.append(batches)
    one_by_one = []
    together = []
    for rank in range(3):
        one_by_one.append([passes[0][rank], passes[1][rank]])
        together.append([passes[2][rank], passes[3][rank]])
    ranks = use_on_each(units, skips=skips, passes=one_by_one, together=together)

    first, second, third, fourth = (right(units, batches) for batches in passes)
    check_pass(units, ranks, 0, first)
    check_pass(units, ranks, 1, second, added(first["means"], second["means"]))
    both = added(third["means"], fourth["means"])
    for rank, came in enumerate(ranks):
        for place, (words, _) in enumerate(numbered(units)):
            total = None
            for slope in came["hooked"][place]:
                if slope is not None:
                    total = slope if total is None else total + slope
            what = f"the gradient that a hook of the shard of {words} is given on rank {rank}"
            what += " after 2 forward, then 2 backward"
            check_tensor(what, total, shards_of(both[place], 3)[rank], relative=5e-5)


def test_3d_gathered_before_use_and_freed_after_it():
    """4 processes, one pass through 5 units of 2.1 MB; memory as the kernel counts it, and bytes of all calls
    of torch.distributed"""
    needs_memory()
    ranks, count = 4, 5
    found = run(large, [{"count": count, "passes": True}] * ranks)
    part = (ranks - 1) / ranks * ONE
    shard = count * ONE / ranks
    words = "the shards and the weights of this unit"
    forth = []
    back = []
    for number in range(1, count + 1):
        forth.append((f"when unit {number} computed in forward", shard + 2.5 * ONE, words))
        # Backward has come to this unit from the last one: each unit between has the gradient of its shard.
        slopes = (count - number) * ONE / ranks
        more = f"{words}, and gradients of {so_many(count - number, 'shard')}"
        back.insert(0, (f"when unit {number} computed in backward", shard + slopes + 3 * ONE, more))
    forth.append(("after forward", shard + ONE, "the shards, no weights"))
    back.append(("after backward", 2 * shard + ONE, "the shards and their gradients"))
    check_held(found, count, *forth, *back)

    for rank, came in enumerate(found):
        words = f"rank {rank} called all_reduce with {came['reduced']} numbers, a whole unit"
        wanted = "a reduce-scatter: a rank needs only the gradient of its shard"
        require(came["reduced"] < ONE // 4, words, wanted)
        for way, times, more in (("forward", 1, ""), ("backward", 2, ", and gradients in float32")):
            sent = came["sent"][way]
            due = count * times * part
            each = f"{megabytes(ONE)} of weights{more}, and each of {ranks} processes sends 3/4 of them"
            wanted = f"about {megabytes(due)} (a unit has {each})"
            require(0.95 * due <= sent <= 1.05 * due, f"in {way}, rank {rank} sent {megabytes(sent)}", wanted)


def whole_numbers(low, high, *shape):
    """Whole numbers from low to high, each with a sign."""
    return (integers(low, high + 1, *shape) * (2 * integers(0, 2, *shape) - 1)).float()


def low_unit(inside, outside):
    """A linear layer whose weights are whole numbers and a bit more, which bfloat16 does not hold. Sums and
    products are whole numbers that it does hold: whatever order they come in, they are exact."""
    state = {}
    finer = {}
    for name, shape in shapes_of([inside, outside]).items():
        state[name] = whole_numbers(1, 7, *shape)
        finer[name] = state[name] * (1 + 2.0**-10)
    unit = {"widths": [inside, outside], "plain": True}
    return unit | {"state": finer}, unit | {"state": state}


def test_4a_weights_travel_and_compute_in_bfloat16():
    """3 processes, a bfloat16 unit with weights that bfloat16 cannot hold exactly; one pass; bytes of all
    calls of torch.distributed"""
    unit, rounded = low_unit(3, 4)
    batches = []
    for _ in range(3):
        images = whole_numbers(1, 5, 1, 3)
        slope = whole_numbers(1, 3, 1, 4)
        batches.append({"images": images, "slope": slope, "leaf": True})
    ranks = use_on_each([unit], low=[True] * 3, passes=one_pass_each(batches))
    for rank, came in enumerate(ranks):
        what = f"the shard on rank {rank}, of a unit in bfloat16"
        check_tensor(what, came["shards"][0], shards_of(unit["state"].values(), 3)[rank], relative=1e-6)
    check_pass([rounded], ranks, 0, right([rounded], batches))
    for rank, came in enumerate(ranks):
        kinds = came["computed"][0]
        sent = came["passes"][0]["sent"]
        words = f"on rank {rank}, the module computed with weights and images of {' and '.join(kinds)}"
        require(kinds == ["bfloat16"], words, "bfloat16")
        wanted = "about 24: 18 numbers of 2 bytes, with zeros, and each of 3 processes sends 2/3 of them"
        require(sent <= 30, f"in forward, rank {rank} sent {sent:.0f} bytes", wanted)


def test_4b_sums_stay_in_float32():
    """2 processes, a unit in bfloat16; gradients of about 300 on rank 0 and of 1 on rank 1"""
    unit, rounded = low_unit(2, 3)
    batches = []
    for rank in range(2):
        images = whole_numbers(1, 1, 1, 2)
        slope = whole_numbers(1, 1, 1, 3)
        if rank == 0:
            images = images * 17
            slope = slope * 2 * integers(8, 11, 1, 3)
        batches.append({"images": images, "slope": slope, "leaf": False})
    # The outputs of rank 0 may be too large to be exact in bfloat16; gradients of the weights are exact.
    (means,) = right([rounded], batches)["means"]
    ranks = use_on_each([unit], low=[True] * 2, passes=one_pass_each(batches))
    for rank, came in enumerate(ranks):
        what = f"the gradient of the shard on rank {rank}"
        shard = shards_of(means, 2)[rank]
        check_tensor(what, came["passes"][0]["shards"][0], shard, relative=1e-6)


def test_4b_shards_stay_in_float32():
    """2 processes, 8 steps of SGD with a unit in bfloat16, each of about a thousandth"""
    state = {name: torch.ones(shape) for name, shape in shapes_of([3, 2]).items()}
    unit = {"widths": [3, 2], "plain": True, "state": state}
    images = whole_numbers(1, 1, 1, 3)
    slope = whole_numbers(1, 1, 1, 2)
    batch = {"images": images, "slope": 2 * slope}  # the loss is a mean of two numbers
    given = {"units": [unit], "low": True, "batches": [batch] * 8, "lr": 2.0**-10, "momentum": 0.0}
    steps = 8 * 2.0**-10
    expected = [1 - steps * slope.T @ images, 1 - steps * slope[0]]
    for rank, came in enumerate(run(train, [given] * 2)):
        what = f"the shard on rank {rank} after 8 steps"
        shard = shards_of(expected, 2)[rank]
        check_tensor(what, came["shards"][0], shard, relative=1e-5)


def test_5a_rank_0_gets_the_whole_weights():
    """3 processes, two units in bfloat16; then new numbers in the shards; full_state()"""
    units = [unit_of(3, 2), unit_of(2, 1)]
    others, shards = other_shards(units, 3)
    ranks = use_on_each(units, shards=shards, low=[True] * 3, state=[True] * 3)
    for rank, came in enumerate(ranks):
        for (words, other), state in zip(numbered(others), came["state"], strict=True):
            what = f"full_state() of {words} on rank {rank}"
            if rank == 0:
                check_weights(what, state, other["state"])
            else:
                same(what, "tensors" if isinstance(state, dict) else state, None)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_5b_the_same_training(world_size):
    """4 steps of SGD with momentum on 12 images, as many on each rank; then full_state()"""
    units = [unit_of(5, 7), unit_of(7, 6, 3)]
    lr = random.uniform(0.2, 0.4)
    momentum = 0.9
    batches = [{"images": floats(12, 5), "slope": floats(12, 3)} for _ in range(4)]

    # In one process, on the whole batches, in float64.
    modules = doubled(units)
    parameters = []
    for module in modules:
        parameters.extend(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr, momentum=momentum)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = (through(modules, batch["images"].double()) * batch["slope"].double()).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    inputs = []
    for rank in range(world_size):
        own = []
        for batch in batches:
            images = batch["images"].chunk(world_size)[rank]
            slope = batch["slope"].chunk(world_size)[rank]
            own.append({"images": images, "slope": slope})
        inputs.append({"units": units, "batches": own, "lr": lr, "momentum": momentum})
    ranks = run(train, inputs)
    for step, expected in enumerate(losses):
        mean = sum(came["losses"][step] for came in ranks) / world_size
        close(f"the mean loss of step {step + 1}", mean, expected, relative=1e-4)
    for (words, module), came in zip(numbered(modules), ranks[0]["state"], strict=True):
        check_weights(f"full_state() of {words} on rank 0", came, dict(module.named_parameters()))
