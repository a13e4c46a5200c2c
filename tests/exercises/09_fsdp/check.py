"""What exercise 09 is held against. Runs in the judge."""

import itertools

import numpy
import torch
from judge import Verdict, check, look, several, so_many
from judge.several import WARM, megabytes

# ---- units, and what is right -----------------------------------------------------------------


def unit_of(trial, widths, **more):
    """What a driver needs to build a module. Weights are such that tanh is neither a line nor saturated."""
    state = {}
    for layer, (inside, outside) in enumerate(itertools.pairwise(widths)):
        state[f"layers.{layer}.weight"] = trial.floats(outside, inside) / inside**0.5
        state[f"layers.{layer}.bias"] = trial.floats(outside) * 0.1
    return {"widths": list(widths), "state": state, **more}


def flat_of(tensors, world_size):
    """One after another in float64, with the fewest zeros that make it divisible."""
    flat = torch.cat([tensor.double().flatten() for tensor in tensors])
    return torch.cat([flat, torch.zeros(-len(flat) % world_size, dtype=torch.float64)])


def shards_of(unit, world_size):
    return flat_of(unit["state"].values(), world_size).chunk(world_size)


def drawn_like(trial, unit):
    """The same module with other weights: shards that no rank can have made from what it was given."""
    state = {name: trial.floats(*tensor.shape) * 0.4 for name, tensor in unit["state"].items()}
    return unit | {"state": state}


def compute(unit, state, images, skip=()):
    for layer in range(len(unit["widths"]) - 1):
        if layer not in skip:
            images = images @ state[f"layers.{layer}.weight"].T + state[f"layers.{layer}.bias"]
            images = images if unit.get("plain") else torch.tanh(images)
    return images


def doubled(unit):
    return {name: tensor.double().requires_grad_() for name, tensor in unit["state"].items()}


def through(units, states, images, skips):
    for unit, state, skip in zip(units, states, skips, strict=True):
        images = compute(unit, state, images, skip)
    return images


def right(units, batches):
    """Outputs and gradients of the images of each rank, and each unit's gradients: the mean over ranks."""
    states, outputs, slopes = [doubled(unit) for unit in units], [], []
    for batch in batches:
        images = batch["images"].double().requires_grad_()
        output = through(units, states, images, batch.get("skips", [()] * len(units)))
        (output * batch["slope"].double()).sum().backward()
        outputs.append(output.detach())
        slopes.append(images.grad)
    for one in (one for state in states for one in state.values() if one.grad is None):
        one.grad = torch.zeros_like(one)
    return outputs, slopes, [[tensor.grad / len(batches) for tensor in state.values()] for state in states]


# ---- what came --------------------------------------------------------------------------------


def tensor(trial, what, came, expected, dtype="float32", **more):
    """Compare what the driver's `seen` has made of a tensor."""
    kind = look(came, "kind")
    trial.require(kind == dtype, f"{what} is {kind or 'not there'}", f"a tensor of {dtype}")
    trial.close(what, look(came, "value"), expected, **more)


def weights(trial, what, came, unit, dtype="float32"):
    """Compare a dict of tensors by name."""
    trial.require(isinstance(came, dict), f"{what} is {came}", "a dict of tensors by name")
    trial.same(f"the sorted list of names in {what}", sorted(came), sorted(unit["state"]))
    for name, expected in unit["state"].items():
        expected = expected.bfloat16() if dtype == "bfloat16" else expected
        tensor(trial, f"{name} in {what}", came[name], expected.double(), dtype)


def numbered(units):
    return [(f"unit {number} of {len(units)}", unit) for number, unit in enumerate(units, 1)]


def shard_of(tensors, world_size, rank):
    return flat_of(tensors, world_size).chunk(world_size)[rank]


def sizes_in_words(units):
    return " and ".join(str(sum(t.numel() for t in unit["state"].values())) for unit in units)


# ---- 09.1 -------------------------------------------------------------------------------------


@check("09.1a")
def split(trial):
    shapes = [(3, 4), (5,), (2, 2, 2), (1,)]
    sizes = [(n, shapes) for n in (1, 2, 3, 4)]
    sizes += [(4, [(3,)]), (4, [(2, 4)]), (6, [(1,), (5, 2)]), (3, [(2, 3), (4,)])]
    cases = [
        {"tensors": [trial.floats(*one) for one in some], "world_size": n, "dtype": "float32"}
        for n, some in sizes
    ]
    low = [one.bfloat16().float() for one in cases[-1]["tensors"]]
    cases[-1] |= {"tensors": low, "dtype": "bfloat16"}
    some = [trial.floats(3, 4), trial.floats(2, 3, 2), trial.floats(1)[0]]
    cases.append({"tensors": some, "world_size": 2, "dtype": "float64", "columns": True})
    trial.tried(
        f"flatten and split of {len(cases)} lists of tensors, for 1 to 6 processes, the last in bfloat16"
        " and in float64 (there with matrices stored by columns, and with one number without dimensions)"
    )
    (came,) = trial.run("split", [{"cases": cases}], group=False)
    for number, case in enumerate(cases):
        n = case["world_size"]
        shapes = ", ".join("x".join(map(str, one.shape)) for one in case["tensors"])
        shapes += f" in {case['dtype']}" if case["dtype"] != "float32" else ""
        expected = flat_of(case["tensors"], n)
        what = f"flatten of [{shapes}] for {so_many(n, 'process')}"
        tensor(trial, what, look(came, number, "flat"), expected)
        for rank, shard in enumerate(expected.chunk(n)):
            what = f"split of [{shapes}] for rank {rank} of {n}"
            tensor(trial, what, look(came, number, "shards", rank), shard)


# ---- 09.2 -------------------------------------------------------------------------------------


@check("09.2a")
def shards(trial):
    for world_size in (1, 3):
        units = [unit_of(trial, [2, 3]), unit_of(trial, [3, 4, 2])]
        processes = so_many(world_size, "process")
        trial.tried(f"{processes}, two units of {sizes_in_words(units)} numbers; unit.shard")
        for rank, came in enumerate(trial.run("use", [{"units": units}] * world_size)):
            for number, (words, unit) in enumerate(numbered(units)):
                what = f"the shard of {words} on rank {rank}"
                shard = look(came, "shards", number)
                tensor(trial, what, shard, shards_of(unit, world_size)[rank])
                came_words = f"{what} is not a leaf that requires a gradient"
                trial.require(look(shard, "leaf") is True, came_words, "a tensor that an optimizer accepts")
        for rank in range(world_size if world_size > 1 and trial.counted else 0):
            sent = trial.sent(rank)
            came = f"rank {rank} sent {sent} bytes when the units were made"
            trial.require(sent == 0, came, "nothing sent")


WIDTH, INSIDE = 256, 1024  # of the large units


ONE = 4 * (2 * WIDTH * INSIDE + WIDTH + INSIDE)  # bytes of a unit's weights in float32


def in_words(name):
    """unit 1 in forward, for the gate that is called forward 0"""
    way, number = name.split()
    return f"unit {int(number) + 1} in {way}"


class Large:
    """A pass through large units. All numbers of a shard are alike, and others on each rank."""

    def __init__(self, trial, ranks, count, dtype="float32", passes=True):
        self.trial, self.ranks, self.count, self.dtype = trial, ranks, count, dtype
        self.images = [trial.floats(4, WIDTH) for _ in range(ranks)]
        self.fills = (0.5 + trial.random.random((ranks, count))) / WIDTH
        ways = [f"forward {number}" for number in range(count)]
        back = [f"backward {number}" for number in reversed(range(count))]
        names = ["before", "made", *ways, "between", *back, "after"] if passes else ["before", "made"]
        self.gates, self.passes = several.gates_of(trial, ranks, *names), passes
        if trial.counted:
            self.demand("before", "when the units were about to be made", WARM, "@start", "nothing yet")

    def demand(self, name, when, allowed, since, words):
        """At a gate, a rank may not hold more than so many bytes beside what it held at another."""
        for gates in self.gates:
            gates[name] |= {"memory": int(allowed), "memory since": since, "words": when}
            gates[name]["expected"] = f"at most {megabytes(allowed)}: {words}"

    def held(self, name, when, allowed, words):
        all_of = f"all weights are {megabytes(self.count * ONE)}"
        self.demand(name, when, allowed, "before", f"{words} ({all_of})")

    def run(self):
        common = {"width": WIDTH, "inside": INSIDE, "count": self.count, "dtype": self.dtype}
        common["passes"] = self.passes
        pairs = zip(self.images, self.fills.tolist(), strict=True)
        given = [common | {"images": images, "fills": fills} for images, fills in pairs]
        return self.trial.run("large", given, gates=self.gates)

    def grown(self, rank, name):
        return self.trial.asked(rank, name)["memory"] - self.trial.asked(rank, "before")["memory"]

    def weights(self, number):
        """What gathering the shards of a unit gives."""
        shard = (2 * WIDTH * INSIDE + WIDTH + INSIDE) // self.ranks
        flat = torch.from_numpy(self.fills[:, number]).float().double().repeat_interleave(shard)
        sizes = [(INSIDE, WIDTH), (INSIDE,), (WIDTH, INSIDE), (WIDTH,)]
        parts = flat.split([int(numpy.prod(size)) for size in sizes])
        return [part.view(size).requires_grad_() for part, size in zip(parts, sizes, strict=True)]

    def right(self, came, relative):
        """Outputs, gradients, and what came by in each unit, against the same in float64."""
        trial, states = self.trial, [self.weights(number) for number in range(self.count)]
        for rank, gates in enumerate(self.gates):
            value = self.images[rank].double()
            for number, (first, first_bias, second, second_bias) in enumerate(states):
                value = value @ first.T + first_bias
                self.shown(rank, f"forward {number}", value, relative)
                value = value * gates[f"forward {number}"]["value"]

                def hook(slope, rank=rank, name=f"backward {number}"):
                    self.shown(rank, name, slope * self.ranks, relative)
                    return slope * self.gates[rank][name]["value"]

                value.register_hook(hook)
                value = value @ second.T + second_bias
            what = f"the output of the units on rank {rank}"
            trial.close(what, look(came, rank, "output"), value.detach(), relative)
            (value.sum() * gates["between"]["value"] / self.ranks).backward()
        # The last numbers of the last rank's shard are the second layer's bias.
        for number, (*_, bias) in enumerate(states):
            what = f"the last numbers in the gradient of unit {number + 1}'s shard on rank {self.ranks - 1}"
            trial.close(what, look(came, self.ranks - 1, "ends", number), bias.grad, relative)

    def shown(self, rank, name, value, relative):
        what = f"the tensor in the middle of {in_words(name)} on rank {rank}"
        self.trial.close(what, self.trial.asked(rank, name)["with"], value.detach()[:, :8], relative)


@check("09.2b")
def memory(trial):
    ranks, count = 4, 16
    trial.tried(f"{ranks} processes, {count} units of {megabytes(ONE)}; memory as measured by the kernel")
    units, shard = Large(trial, ranks, count, passes=False), count * ONE / ranks
    if trial.counted:
        words = f"a shard of {megabytes(shard)}, and no whole weights"
        units.held("made", "when all units were made", shard + ONE, words)
    units.run()
    for rank in range(ranks):
        came = trial.asked(rank, "made")["with"]
        wanted = numpy.full((count, 4), 0.5 / WIDTH)
        trial.close(f"the first numbers of the shards on rank {rank}", came, wanted, scale=0.5 / WIDTH)
    if not trial.counted:
        return
    # Shards that are nowhere have been put where this does not look: in a file, say. Up to 2 MB of a rank's
    # shard may lie in memory that it had before: the C library gives it back in pages of this size only.
    total = sum(units.grown(rank, "made") for rank in range(ranks))
    came = f"all ranks together held {megabytes(total)}"
    trial.require(total >= 0.6 * count * ONE, came, f"about {megabytes(count * ONE)}: all weights once")


def other_shards(trial, units, world_size):
    """Units with other weights, and the shards of them that each rank is given."""
    others = [drawn_like(trial, unit) for unit in units]
    shards = [[shards_of(unit, world_size)[rank].float() for unit in others] for rank in range(world_size)]
    return others, shards


@check("09.2c")
def gather(trial):
    world_size, widths = 4, [4, 1, 2]
    units = [unit_of(trial, widths), unit_of(trial, [1, 1])]
    trial.tried(
        f"{world_size} processes, two units of {sizes_in_words(units)} numbers; then new numbers in the"
        " shards; unit.gather(torch.float32) and unit.gather(torch.bfloat16)"
    )
    others, shards = other_shards(trial, units, world_size)
    dtypes = ["float32", "bfloat16"]
    inputs = [{"units": units, "shards": one, "gather": dtypes} for one in shards]
    for rank, came in enumerate(trial.run("use", inputs)):
        for place, dtype in enumerate(dtypes):
            for number, (words, other) in enumerate(numbered(others)):
                what = f"gather(torch.{dtype}) of {words} on rank {rank}"
                weights(trial, what, look(came, "gathered", place, number), other, dtype)


# ---- 09.3 -------------------------------------------------------------------------------------


def batch_of(trial, units, images, leaf=False, more=()):
    inside, outside = units[0]["widths"][0], units[-1]["widths"][-1]
    shape = images, *more
    return {"images": trial.floats(*shape, inside), "slope": trial.floats(*shape, outside), "leaf": leaf}


@check("09.3a")
def forward(trial):
    world_size = 3
    units = [unit_of(trial, [3, 5]), unit_of(trial, [5, 2, 4])]
    others, shards = other_shards(trial, units, world_size)
    images = [trial.floats(rank + 2, 3) for rank in range(world_size)]
    trial.tried(
        f"{world_size} processes, two units one after the other under torch.no_grad();"
        f" {' and '.join(str(len(one)) for one in images)} images"
    )
    pairs = zip(shards, images, strict=True)
    inputs = [{"units": units, "shards": shard, "look": one} for shard, one in pairs]
    states = [doubled(unit) for unit in others]
    for rank, came in enumerate(trial.run("use", inputs)):
        expected = through(others, states, images[rank].double(), [(), ()]).detach()
        tensor(trial, f"the output of the units on rank {rank}", look(came, "looked"), expected)


def compare_pass(trial, units, came, number, expected, sums=None, leaf=False):
    """One pass on all ranks: outputs, gradients of images, and each rank's shard of the mean."""
    outputs, slopes, means = expected
    world_size = len(outputs)
    for rank, one in enumerate(came):
        where = f"on rank {rank} after pass {number + 1}"
        one = look(one, "passes", number)
        tensor(trial, f"the output of the units {where}", look(one, "output"), outputs[rank])
        right = ""
        for place, (words, _) in reversed(list(enumerate(numbered(units)))):  # as backward goes through them
            shard = shard_of((sums or means)[place], world_size, rank)
            what = f"the gradient of the shard of {words} {where}"
            try:
                tensor(trial, what, look(one, "shards", place), shard, relative=5e-5)
            except Verdict as verdict:
                verdict.came += right
                raise
            right = f"; that of {words}, through which backward goes first, is right"
        if leaf:
            what = f"the gradient of the images {where}"
            tensor(trial, what, look(one, "images"), slopes[rank], relative=5e-5)
        else:
            changed = look(one, "requires a gradient") is not False
            came_words = f"the caller's images {where} require a gradient"
            why = "your code has changed the caller's tensor"
            trial.require(not changed, f"{came_words}: {why}", "unchanged images")


@check("09.3b")
def gradients(trial):
    for world_size, leaf in ((2, False), (3, True)):
        units = [unit_of(trial, [3, 4]), unit_of(trial, [4, 3, 2])]
        others, shards = other_shards(trial, units, world_size)
        # In the second case, images have a dimension more, as texts have.
        batches = [batch_of(trial, units, rank + 2, leaf, (2,) * leaf) for rank in range(world_size)]
        images = f"{' and '.join(str(len(b['images'])) for b in batches)} images"
        trial.tried(
            f"{world_size} processes, two units, {images}"
            f" ({'of 2 rows each, with' if leaf else 'without'} a gradient);"
            " the loss is the sum of output times slope"
        )
        pairs = zip(shards, batches, strict=True)
        inputs = [{"units": units, "shards": shard, "passes": [batch]} for shard, batch in pairs]
        compare_pass(trial, units, trial.run("use", inputs), 0, right(others, batches), leaf=leaf)


@check("09.3c")
def adding_up(trial):
    world_size = 3
    trial.tried(
        "3 processes, two passes without clearing gradients; rank 0 does not use layers.1 in unit 1,"
        " and no rank uses layers.0 in unit 2; then two forward passes before two backward passes"
    )
    units = [unit_of(trial, [4, 4, 4, 4]), unit_of(trial, [4, 4, 3])]
    skips = [[[1] if rank == 0 else [], [0]] for rank in range(world_size)]
    more = (0, 1, 2, 2)  # images; the last two passes must be alike, or a mistake there is an error of shapes
    passes = [[batch_of(trial, units, rank + 1 + one) for rank in range(world_size)] for one in more]
    inputs = [
        {
            "units": [unit | {"skip": skip} for unit, skip in zip(units, skips[rank], strict=True)],
            "passes": [batches[rank] for batches in passes[:2]],
            "together": [batches[rank] for batches in passes[2:]],
        }
        for rank in range(world_size)
    ]
    came, sums = trial.run("use", inputs), None
    for number, batches in enumerate(passes):
        batches = [batch | {"skips": skip} for batch, skip in zip(batches, skips, strict=True)]
        expected = right(units, batches)
        if sums is None:
            sums = expected[2]
        else:
            sums = [list(map(torch.add, one, other)) for one, other in zip(sums, expected[2], strict=True)]
        if number < 2:
            compare_pass(trial, units, came, number, expected, sums)
    for rank, one in enumerate(came):
        for place, (words, _) in enumerate(numbered(units)):
            shard = shard_of(sums[place], world_size, rank)
            what = f"the gradient of the shard of {words} on rank {rank} after 2 forward, then 2 backward"
            tensor(trial, what, look(one, "together", place), shard, relative=5e-5)


def compare_traffic(units, again=True):
    """Demands what each rank must have sent at each gate, by the kernel's counters. Returns a function that
    looks after the run whether it was too much. With `again` False, weights that have not been sent again in
    backward are let pass: another check asks for that."""
    trial, ranks, count = units.trial, units.ranks, units.count
    part, size = (ranks - 1) / ranks, ONE / 2 if units.dtype == "bfloat16" else ONE
    once, slopes = part * size, part * ONE
    said = f"a unit has {megabytes(size)} of weights, and each of {ranks} processes sends {part:.3g} of them"
    least = [(f"forward {number}", "made", (number + 1) * once) for number in range(count)]
    least += [(f"backward {count - 1}", "between", once * again)]
    least += [("after", "between", count * (again * once + slopes))]
    for name, since, due in least if trial.counted else ():
        for gates in units.gates:
            gate, when = gates[name], f"when {in_words(name)} computed" if " " in name else "after backward"
            gate |= {"sent": int(0.97 * due), "sent since": since, "words": when}
            begin = "the units were made" if since == "made" else "forward had ended"
            gate.setdefault("expected", f"about {megabytes(due)} sent since {begin} ({said})")

    def too_much():
        for rank in range(ranks if trial.counted else 0):
            made, between = (trial.asked(rank, name)["sent"] for name in ("made", "between"))
            forth, forth_most = between - made, count * once
            back, back_most = trial.mark(rank, "@end")["sent"] - between, count * (once + 2 * slopes)
            wanted = f"{megabytes(count * once)} of weights and {megabytes(count * slopes)} of gradients in"
            wanted += " float32, or twice the gradients where gloo does reduce-scatter as an all-reduce"
            for way, got, most, words in (
                ("forward", forth, forth_most, f"about {megabytes(count * once)} ({said})"),
                ("backward", back, back_most, wanted),
            ):
                trial.require(got <= 1.05 * most, f"in {way}, rank {rank} sent {megabytes(got)}", words)

    return too_much


@check("09.3d")
def mechanism(trial):
    ranks, count = 4, 5
    trial.tried(
        f"{ranks} processes, one pass through {count} units of {megabytes(ONE)}; memory and bytes sent as"
        " measured by the kernel"
    )
    units, shard = Large(trial, ranks, count), count * ONE / ranks
    if trial.counted:
        for number in range(count):
            when, words = f"when unit {number + 1} computed", "the shards and the weights of this unit"
            units.held(f"forward {number}", f"{when} in forward", shard + 2.5 * ONE, words)
            slopes = (count - 1 - number) * ONE / ranks
            words += f", and gradients of {count - 1 - number} shards"
            units.held(f"backward {number}", f"{when} in backward", shard + slopes + 3 * ONE, words)
        units.held("between", "after forward", shard + ONE, "the shards, no weights")
        units.held("after", "after backward", 2 * shard + ONE, "the shards and their gradients")
    too_much = compare_traffic(units)
    came = units.run()
    for rank in range(ranks):
        for event in trial.events(rank, "all_reduce"):
            size = event.get("size")
            whole_unit = isinstance(size, int) and size >= ONE // 4
            words = f"rank {rank} called all_reduce with {size} numbers, a whole unit"
            wanted = "a reduce-scatter: a rank needs only the gradient of its shard"
            trial.require(not whole_unit, words, wanted)
    units.right(came, 5e-5)
    too_much()


# ---- 09.4 -------------------------------------------------------------------------------------


def whole_numbers(trial, low, high, *shape):
    """Whole numbers from low to high, each with a sign."""
    sign = 2 * trial.integers(0, 2, *shape) - 1
    return (trial.integers(low, high + 1, *shape) * sign).float()


def low_unit(trial, inside, outside):
    """A linear layer whose weights are whole numbers and a bit more, which bfloat16 does not hold. Sums
    and products are whole numbers that it does hold: whatever order they come in, they are exact."""
    weight, bias = whole_numbers(trial, 1, 7, outside, inside), whole_numbers(trial, 1, 7, outside)
    state = {"layers.0.weight": weight, "layers.0.bias": bias}
    finer = {name: value * (1 + 2.0**-10) for name, value in state.items()}
    unit = {"widths": [inside, outside], "plain": True}
    return unit | {"state": finer}, unit | {"state": state}


@check("09.4a")
def low_precision(trial):
    trial.tried("3 processes, a bfloat16 unit with weights that bfloat16 cannot hold exactly; one pass")
    unit, rounded = low_unit(trial, 3, 4)
    batches = [
        {"images": whole_numbers(trial, 1, 5, 1, 3), "slope": whole_numbers(trial, 1, 3, 1, 4), "leaf": True}
        for _ in range(3)
    ]
    inputs = [{"units": [unit], "dtype": "bfloat16", "passes": [batch]} for batch in batches]
    came = trial.run("use", inputs)
    for rank, one in enumerate(came):
        what = f"the shard on rank {rank}, of a unit in bfloat16"
        tensor(trial, what, look(one, "shards", 0), shards_of(unit, 3)[rank], relative=1e-6)
    compare_pass(trial, [rounded], came, 0, right([rounded], batches), leaf=True)
    for rank, one in enumerate(came):
        kinds = look(one, "computed", 0)
        words = f"on rank {rank}, the module computed with weights and images of {' and '.join(kinds or [])}"
        trial.require(kinds == ["bfloat16"], words, "bfloat16")
    ranks, count = 2, 2
    trial.tried(f"{ranks} processes, one pass through {count} units of {megabytes(ONE / 2)} in bfloat16")
    units = Large(trial, ranks, count, "bfloat16")
    too_much = compare_traffic(units, again=False)
    units.right(units.run(), 0.1)
    too_much()


@check("09.4b")
def high_precision(trial):
    trial.tried("2 processes, a unit in bfloat16; gradients of about 300 on rank 0 and of 1 on rank 1")
    unit, rounded = low_unit(trial, 2, 3)
    batches = []
    for rank in range(2):
        images, slope = whole_numbers(trial, 1, 1, 1, 2), whole_numbers(trial, 1, 1, 1, 3)
        if rank == 0:
            images, slope = images * 17, slope * 2 * trial.integers(8, 11, 1, 3)
        batches.append({"images": images, "slope": slope, "leaf": False})
    # The outputs of rank 0 may be too large to be exact in bfloat16; gradients of the weights are exact.
    _, _, (means,) = right([rounded], batches)
    inputs = [{"units": [unit], "dtype": "bfloat16", "passes": [batch]} for batch in batches]
    for rank, one in enumerate(trial.run("use", inputs)):
        shard = flat_of(means, 2).chunk(2)[rank]
        what = f"the gradient of the shard on rank {rank}"
        tensor(trial, what, look(one, "passes", 0, "shards", 0), shard, relative=1e-6)
    trial.tried("2 processes, 8 steps of SGD with a unit in bfloat16, each of about a thousandth")
    state = {"layers.0.weight": torch.ones(2, 3), "layers.0.bias": torch.ones(2)}
    unit = {"widths": [3, 2], "plain": True, "state": state}
    sign = whole_numbers(trial, 1, 1, 1, 2)
    batch = {"images": whole_numbers(trial, 1, 1, 1, 3), "slope": sign}
    given = {"units": [unit], "dtype": "bfloat16", "batches": [batch] * 8, "lr": 2.0**-10, "momentum": 0.0}
    steps = 8 * 2.0**-10
    expected = [1 - steps * sign.T @ batch["images"], 1 - steps * sign[0]]
    for rank, one in enumerate(trial.run("train", [given] * 2)):
        shard = flat_of(expected, 2).chunk(2)[rank]
        tensor(trial, f"the shard on rank {rank} after 8 steps", look(one, "shards", 0), shard, relative=1e-5)


# ---- 09.5 -------------------------------------------------------------------------------------


@check("09.5a")
def full_state(trial):
    world_size, dtype = 3, "bfloat16"
    trial.tried(f"{world_size} processes, two units in {dtype}; then new numbers in the shards; full_state()")
    units = [unit_of(trial, [3, 2]), unit_of(trial, [2, 1])]
    others, shards = other_shards(trial, units, world_size)
    inputs = [{"units": units, "shards": one, "dtype": dtype, "state": True} for one in shards]
    came = trial.run("use", inputs)
    for rank, one in enumerate(came):
        for number, (words, other) in enumerate(numbered(others)):
            what, state = f"full_state() of {words} on rank {rank}", look(one, "state", number)
            if rank == 0:
                weights(trial, what, state, other)
            else:
                trial.same(what, "tensors" if isinstance(state, dict) else state, None)


def one_process(units, batches, lr, momentum):
    """The same training in one process, on the whole batches, in float64: losses and weights."""
    states, losses = [doubled(unit) for unit in units], []
    tensors = [tensor for state in states for tensor in state.values()]
    optimizer = torch.optim.SGD(tensors, lr, momentum=momentum)
    for images, targets in batches:
        optimizer.zero_grad()
        output = through(units, states, images.double(), [()] * len(units))
        loss = (output - targets.double()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, states


@check("09.5b")
def curve(trial):
    units = [unit_of(trial, [5, 7]), unit_of(trial, [7, 6, 3])]
    batches = [(trial.floats(12, 5), trial.floats(12, 3)) for _ in range(4)]
    lr, momentum = float(trial.random.uniform(0.2, 0.4)), 0.9
    losses, states = one_process(units, batches, lr, momentum)
    states = [{name: value.detach() for name, value in state.items()} for state in states]
    wanted = [unit | {"state": state} for unit, state in zip(units, states, strict=True)]
    for world_size in (1, 2, 3, 4):
        steps = f"4 steps of SGD with momentum on 12 images, {12 // world_size} on each"
        trial.tried(f"{so_many(world_size, 'process')}, {steps}; then full_state()")
        inputs = []
        for rank in range(world_size):
            own = [
                {"images": images.chunk(world_size)[rank], "targets": targets.chunk(world_size)[rank]}
                for images, targets in batches
            ]
            inputs.append({"units": units, "batches": own, "lr": lr, "momentum": momentum})
        came = trial.run("train", inputs)
        for step, expected in enumerate(losses):
            got = [look(one, "losses", step) for one in came]
            good = all(isinstance(one, float) for one in got)
            trial.require(good, f"the losses of step {step + 1} are {got}", "numbers")
            trial.close(f"the mean loss of step {step + 1}", float(numpy.mean(got)), expected, relative=1e-4)
        for number, (words, unit) in enumerate(numbered(wanted)):
            weights(trial, f"full_state() of {words} on rank 0", look(came, 0, "state", number), unit)
