"""Exercise 11: one feed-forward block, shared by several processes.

| axis | checked in |
| --- | --- |
| world size 1 to 4 | 1a, 1b, 2a, 2b, 3a, 3b, 4c |
| sizes | 1a, 1b, 3a, 3b, 4a: uneven shards; 1a, 1b, 5a: ranks without a shard; 3a, 3b: x of one dimension |
| dtype | 2a, 2b, 3a, 3b: float64 |
| memory layout | 2a, 2b, 3a, 3b: stored by columns |
| missing bias | 1a, 1b, 3a, 3b, 3c; calls are counted with biases: 4b |
| calls | 4c: four steps of training; 5a, 5b: several calls |
| missing gradients, zeros, frozen, tied | 5a, 5b |
| names of layers | 5a |
| modes, seeds, container | the functions have none |
"""

import pytest
import torch
from give_back import free_memory, own_pages
from grader.testing import Verdict, close, floats, integers, needs_memory, require, run, same, so_many, tried
from optimizers import Optimizer
from torch import nn
from torch.nn.functional import gelu, linear

NAMES = ("up.weight", "up.bias", "down.weight", "down.bias")
# The dimension that is cut, of what is cut.
CUTS = {"ColumnLinear": {"weight": 0, "bias": 0, "output": -1}, "RowLinear": {"weight": 1, "x": -1}}
CUTS["FeedForward"] = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
ORDINARY = ("first.weight", "first.bias", "norm.weight", "norm.bias", "head.weight", "head.bias")

# ---- what runs in each rank: a body, and what it mentions of this file


def leaf(value, columns=False):
    """A copy that gets a gradient; with `columns`, stored column by column."""
    value = value.detach().clone()
    if columns:
        value = value.mT.contiguous().mT
    return value.requires_grad_()


def cut(student, me, cases):
    """Shards of several matrices, for several ranks, before and after the whole is set to zero."""
    found = []
    for case in cases:
        wholes = [case["weight"], case["bias"]]
        cut = student.cut_columns if case["columns"] else student.cut_rows
        share = cut(*wholes, case["rank"], case["world_size"])
        came = [None if one is None else one.clone() for one in share]
        for one in wholes:
            if one is not None:
                one.zero_()
        found.append({"share": came, "later": list(share)})
    return found


def functions(student, me, given):
    """Copy or Sum, forward and backward, and what has changed of what they were given."""
    x = leaf(given["x"], given["columns"])
    above = leaf(given["above"], given["columns"]).detach()
    changed = []
    output = getattr(student, given["name"]).apply(x)
    if not x.equal(given["x"]):
        changed.append("forward has changed x")
    found = {"output": output.detach().clone()}
    output.backward(above)
    if not x.equal(given["x"]):
        changed.append("backward has changed x")
    if not above.equal(given["above"]):
        changed.append("backward has changed the gradient that it was given")
    return found | {"gradient": x.grad, "changed": changed}


def passes(student, me, given):
    """A layer or a block, forward and backward, for each case. The whole is set to zero before."""
    found = []
    for case in given["cases"]:
        layer = getattr(student, given["name"])(*case["whole"])
        for one in case["whole"]:
            if one is not None:
                one.zero_()
        x = leaf(case["x"], given["columns"])
        output = layer(x)
        came = {"output": output.detach().clone()}
        output.backward(leaf(case["above"], given["columns"]).detach())
        names = []
        for name, one in layer.named_parameters():
            if one.requires_grad:
                names.append(name)
            came |= {name: one, f"gradient of {name}": one.grad}
        found.append(came | {"names": sorted(names), "gradient of x": x.grad})
    return found


def large(student, me, given):
    """Large matrices, made here of thin ones. Memory is looked at meanwhile, and calls are counted."""
    own_pages()
    memory = []

    def look():
        free_memory()
        memory.append(me.memory())

    def begun(calls):
        found = []
        for call in calls:
            if call["phase"] == "begin":
                found.append([call["event"], call["size"]])
        return found

    look()
    wholes = [one @ other for one, other in given["thin"]]
    if given["block"]:
        layers = student.FeedForward(wholes[0], given["biases"][0], wholes[1], given["biases"][1])
    else:
        layers = nn.Sequential(student.ColumnLinear(wholes[0], None), student.RowLinear(wholes[1], None))
    del wholes
    look()
    x = leaf(given["x"])
    made = len(me.calls)
    output = layers(x)
    forth = len(me.calls)
    look()
    output.backward(given["above"])
    look()
    calls = {"forward": begun(me.calls[made:forth]), "backward": begun(me.calls[forth:])}
    return {"output": output, "gradient of x": x.grad, "calls": calls, "memory": memory}


class Model(nn.Module):
    """Ordinary layers, and blocks between them: `make` is the student's FeedForward, or Whole."""

    def __init__(self, make, weights):
        super().__init__()
        width, inputs = weights["first.weight"].shape
        self.first = nn.Linear(inputs, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)
        for name in ORDINARY:
            self.get_parameter(name).data.copy_(weights[name])
        self.blocks = nn.ModuleList()
        while f"blocks.{len(self.blocks)}.up.weight" in weights:
            number = len(self.blocks)
            of_block = [weights[f"blocks.{number}.{name}"] for name in NAMES]
            self.blocks.append(make(*of_block))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(self.norm(x))
        return self.head(x)


def train(student, me, given):
    """Some steps of training."""
    model = Model(student.FeedForward, given["weights"])
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=given["rate"], momentum=0.9)
    for x, targets in given["batches"]:
        optimizer.zero_grad()
        loss = (model(x) - targets).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "weights": dict(model.named_parameters())}


def clip(student, me, given):
    """Clip gradients that are given."""
    found = []
    for case in given["cases"]:
        model = Model(student.FeedForward, given["weights"])
        for name, value in case["gradients"].items():
            model.get_parameter(name).grad = value
        if case["kind"] == "shared":
            model.again = nn.Linear(*reversed(model.head.weight.shape), bias=False)
            model.again.weight = model.head.weight
        model.head.requires_grad_(case["kind"] != "frozen")
        whole = model
        if case["kind"] == "renamed":  # names of ordinary layers begin with those of layers that are cut
            one, other = model.blocks
            layers = {"a": one.up, "ab": model.first, "c": one.down, "cd": model.norm, "e": model.head}
            whole = nn.ModuleDict(layers | {"f": nn.Sequential(other.up, nn.GELU(), other.down)})
        norm = student.clip_gradients(whole, case["largest"])
        gradients = {}
        for name, parameter in model.named_parameters():
            gradients[name] = parameter.grad
        found.append({"norm": float(norm), "kind": type(norm).__name__, "gradients": gradients})
    sent = 0
    for call in me.calls:
        sent += call.get("bytes", 0) + call.get("inner", 0)
    return {"cases": found, "sent": sent}


# ---- what is drawn, and what is right


def share_of(value, rank, world_size, dim):
    """A rank's share, the first ones larger by one; all of what is not cut; None of None."""
    if value is None or dim is None:
        return value
    return value.tensor_split(world_size, dim)[rank].contiguous()


def own(name, value, rank, world_size):
    """What a rank has of a parameter of a model, known by the end of its name."""
    end = ".".join(name.split(".")[-2:])
    return share_of(value, rank, world_size, CUTS["FeedForward"].get(end))


def layer_of(inputs, outputs, bias=True):
    weight = floats(outputs, inputs) / inputs**0.5
    return weight, floats(outputs) if bias else None


def block_of(width, hidden):
    return *layer_of(width, hidden), *layer_of(hidden, width)


class WholeLinear(nn.Module):
    """What one process has."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.bias = None if bias is None else nn.Parameter(bias.clone())

    def forward(self, x):
        return linear(x, self.weight, self.bias)


class Whole(nn.Module):
    def __init__(self, *weights):
        super().__init__()
        self.up = WholeLinear(*weights[:2])
        self.down = WholeLinear(*weights[2:])

    def forward(self, x):
        return self.down(gelu(self.up(x)))


def compare(what, got, expected, **more):
    """Like close, where None may be right; a rank may have got nothing to hold, too."""
    if expected is None:
        same(what, got, None)
    else:
        close(what, got, expected, **more)


def check_cut(columns):
    which = "cut_columns" if columns else "cut_rows"
    dims = {"weight": 0, "bias": 0} if columns else {"weight": 1, "bias": None}
    cases = []
    for world_size, outputs, inputs in ((2, 6, 4), (3, 7, 8), (4, 3, 2), (1, 3, 5)):
        weight, bias = layer_of(inputs, outputs, bias=world_size < 4)
        case = {"weight": weight, "bias": bias, "world_size": world_size, "columns": columns}
        for rank in range(world_size):
            cases.append(case | {"rank": rank})
    tried(f"matrices of several sizes, cut by {which} for each rank of 1, 2, 3 and 4 processes")
    (came,) = run(cut, [cases])
    for got, case in zip(came, cases, strict=True):
        rank, world_size = case["rank"], case["world_size"]
        for place, (name, dim) in enumerate(dims.items()):
            what = f"the {name} of {which} for rank {rank} of {world_size}"
            value = case[name]
            compare(what, got["share"][place], share_of(value, rank, world_size, dim))
            words = f"{what} changed when the whole was set to zero: it is a view, not a copy"
            is_same = value is None or torch.equal(got["later"][place], got["share"][place])
            require(is_same, words, "a copy, which does not change")


def test_1a_columns():
    check_cut(columns=True)


def test_1b_rows():
    check_cut(columns=False)


def check_function(name, world_size, shape, columns):
    sizes = " x ".join(map(str, shape))
    dtype, relative = torch.float32, 2e-5
    if columns:
        sizes += " in float64, stored by columns"
        dtype, relative = torch.float64, 1e-12
    tried(f"{so_many(world_size, 'process')}, {name}.apply(x) with x of {sizes}")
    given = []
    sum_of_x = 0
    sum_above = 0
    for _ in range(world_size):
        x = torch.randn(shape, dtype=dtype)
        above = torch.randn(shape, dtype=dtype)
        given.append({"name": name, "columns": columns, "x": x, "above": above})
        sum_of_x = sum_of_x + x.double()
        sum_above = sum_above + above.double()

    for rank, came in enumerate(run(functions, given)):
        words = f"on rank {rank}, your {''.join(came['changed'][:1])}"
        require(not came["changed"], words, "an unchanged tensor: add up in a copy")
        if name == "Copy":
            output, below = given[rank]["x"], sum_above
        else:
            output, below = sum_of_x, given[rank]["above"]
        close(f"{name}.apply(x) on rank {rank}", came["output"], output, relative)
        close(f"the gradient of x on rank {rank}", came["gradient"], below, relative)


@pytest.mark.parametrize("world_size, shape, columns", [(2, (3, 4), False), (3, (2, 3, 5), True)])
def test_2a_copy(world_size, shape, columns):
    check_function("Copy", world_size, shape, columns)


@pytest.mark.parametrize("world_size, shape, columns", [(2, (3, 4), False), (4, (1, 3), True)])
def test_2b_sum(world_size, shape, columns):
    check_function("Sum", world_size, shape, columns)


def passed(case):
    """What one process comes to in float64: the names of the parameters, and all values and gradients."""
    kind = WholeLinear if len(case["whole"]) == 2 else Whole
    layer = kind(*case["whole"]).double()
    x = leaf(case["x"].double())
    output = layer(x)
    output.backward(case["above"].double())
    values = {"output": output, "gradient of x": x.grad}
    parameters = dict(layer.named_parameters())
    for name, one in parameters.items():
        values |= {name: one, f"gradient of {name}": one.grad}
    return sorted(parameters), values


def check_passes(name, world_size, wholes, shapes, columns=False):
    """Layers of these weights, with x of so many dimensions before the last; with `columns`, in float64."""
    cuts = CUTS[name]
    dtype, relative = torch.float32, 2e-5
    if columns:
        dtype, relative = torch.float64, 1e-12
    cases = []
    expected = []
    for whole, shape in zip(wholes, shapes, strict=True):
        whole = [None if one is None else one.to(dtype) for one in whole]
        x = floats(*shape, whole[0].shape[1]).to(dtype)
        above = floats(*shape, whole[-2].shape[0]).to(dtype)
        cases.append({"whole": whole, "x": x, "above": above})
        expected.append(passed(cases[-1]))
    sizes = " x ".join(map(str, wholes[0][0].shape))
    if columns:
        sizes += ", in float64, x stored by columns"
    dimensions = ", then ".join(str(len(shape) + 1) for shape in shapes)
    tried(f"{world_size} processes, {name}, weight of {sizes}; x has {dimensions} dimensions")

    given = []
    for rank in range(world_size):
        own_cases = []
        for one in cases:
            x = share_of(one["x"], rank, world_size, cuts.get("x"))
            above = share_of(one["above"], rank, world_size, cuts.get("output"))
            own_cases.append(one | {"x": x, "above": above})
        given.append({"name": name, "columns": columns, "cases": own_cases})
    for rank, found in enumerate(run(passes, given)):
        for came, case, (names, values) in zip(found, cases, expected, strict=True):
            on = f"on rank {rank}"
            if case["whole"][1] is None:
                on += " without bias"
            same(f"the list of the layer's parameters {on}", came["names"], names)
            for key, value in values.items():
                share = share_of(value, rank, world_size, cuts.get(key.removeprefix("gradient of ")))
                close(f"the {key} {on}", came.get(key), share, relative)


def check_layer(name, world_size, inputs, outputs, columns):
    shapes = [(2, 3), (3,)] if columns else [(3, 2), (4,), ()]
    wholes = [layer_of(inputs, outputs, bias=place != 1) for place in range(len(shapes))]
    check_passes(name, world_size, wholes, shapes, columns)


@pytest.mark.parametrize("world_size, inputs, outputs, columns", [(3, 7, 8, False), (2, 4, 5, True)])
def test_3a_column_linear(world_size, inputs, outputs, columns):
    check_layer("ColumnLinear", world_size, inputs, outputs, columns)


@pytest.mark.parametrize("world_size, inputs, outputs, columns", [(4, 3, 3, False), (2, 5, 4, True)])
def test_3b_row_linear(world_size, inputs, outputs, columns):
    check_layer("RowLinear", world_size, inputs, outputs, columns)


def megabytes(value):
    return f"{value / 1e6:.2f} MB"


def check_large(world_size, block):
    """One pass through two large matrices, of which the ranks have a share: memory and results."""
    needs_memory()
    width, hidden = 1024, 2048 + int(integers(0, 3))
    shapes = ((hidden, width), (width, hidden))
    thin = [[floats(outputs, 2), floats(2, inputs) / inputs**0.5] for outputs, inputs in shapes]
    biases = [None, None]
    if block:
        biases = [floats(hidden), floats(width)]
    x = floats(8, width)
    above = floats(8, width)
    layers = "FeedForward" if block else "ColumnLinear and a RowLinear"
    sizes = f"{hidden} x {width} and back{' and biases' if block else ''}, x of 8 x {width}"
    tried(f"{world_size} processes, a {layers} with matrices of {sizes}")
    given = {"thin": thin, "biases": biases, "x": x, "above": above, "block": block}
    ranks = run(large, [given] * world_size)

    up = WholeLinear(torch.matmul(*thin[0]), biases[0])
    down = WholeLinear(torch.matmul(*thin[1]), biases[1])
    between = nn.GELU() if block else nn.Identity()
    inside = leaf(x.double())
    output = nn.Sequential(up, between, down).double()(inside)
    output.backward(above.double())
    whole = 4 * 2 * hidden * width
    for rank, came in enumerate(ranks):
        close(f"the output on rank {rank}", came["output"], output, relative=1e-4)
        close(f"the gradient of x on rank {rank}", came["gradient of x"], inside.grad, relative=1e-4)
        before, *memory = came["memory"]
        moments = ("after both layers were made", "after forward", "after backward")
        for when, times, now in zip(moments, (1, 1, 2), memory, strict=True):
            share = times * whole / world_size
            most = share + whole / 5
            words = f"about {megabytes(share)} of memory, at most {megabytes(most)}"
            words += f" (the whole matrices are {megabytes(whole)})"
            what = f"rank {rank} holds {megabytes(now - before)} {when}"
            require(now - before <= most, what, words)
    return ranks, x


def test_3c_no_more_than_the_shard():
    check_large(4, block=False)


@pytest.mark.parametrize("world_size, width, hidden, columns", [(3, 5, 7, False), (2, 4, 6, True)])
def test_4a_as_one_process(world_size, width, hidden, columns):
    wholes = [block_of(width, hidden) for _ in range(2)]
    check_passes("FeedForward", world_size, wholes, [(2, 3), (4,)], columns)


def test_4b_one_all_reduce():
    ranks, x = check_large(3, block=True)
    for rank, came in enumerate(ranks):
        for which, calls in came["calls"].items():
            what = f"the list of calls of torch.distributed, with their sizes, in {which} on rank {rank}"
            same(what, calls, [["all_reduce", x.numel()]])


def drawn_model(width=5):
    """Ordinary layers, and blocks of 7 and 3 neurons."""
    norm = 1 + 0.2 * floats(width), 0.2 * floats(width)
    model = dict(zip(ORDINARY, (*layer_of(4, width), *norm, *layer_of(width, 3)), strict=True))
    for number, hidden in enumerate((7, 3)):
        for name, value in zip(NAMES, block_of(width, hidden), strict=True):
            model[f"blocks.{number}.{name}"] = value
    return model


def norm_of(gradients):
    squares = 0
    for one in gradients:
        if one is not None:
            squares = squares + one.double().square().sum()
    return float(squares**0.5)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_4c_one_curve(world_size):
    """4 steps of a model with two blocks of 7 and 3 neurons"""
    batches = [[floats(6, 4), floats(6, 3)] for _ in range(4)]
    # At a rate of 0.1 some runs fly apart, and no two ways of computing them agree.
    given = {"weights": drawn_model(), "batches": batches, "rate": 0.03}
    model = Model(Whole, given["weights"]).double()
    losses = []
    optimizer = Optimizer("SGD", model.parameters(), {"lr": given["rate"], "momentum": 0.9})
    for x, targets in batches:
        optimizer.zero_grad()
        loss = (model(x.double()) - targets).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for rank, came in enumerate(run(train, [given] * world_size)):
        for step, (loss, got) in enumerate(zip(losses, came["losses"], strict=True)):
            close(f"the loss of step {step + 1} on rank {rank}", got, loss, relative=1e-4)
        for name, value in model.named_parameters():
            its = own(name, value, rank, world_size)
            what = f"{name} on rank {rank} after {len(losses)} steps"
            close(what, came["weights"].get(name), its, relative=1e-4, scale=0.5)


NO_SECOND = *(name for name in ORDINARY if name != "head.bias"), "blocks.0."
CUT_OF_SECOND = "blocks.1.up", "blocks.1.down.weight"
TIMES = {"zeros": 0, "tiny": 1e-5}
GROUPS = {
    "the weight of ColumnLinear": ("up.weight",),
    "the bias of ColumnLinear": ("up.bias",),
    "the weight of RowLinear": ("down.weight",),
    "the bias of RowLinear": ("down.bias",),
    "the ordinary layers": ORDINARY,
    "the shards": ("up.weight", "up.bias", "down.weight"),
    "what is the same on all ranks": ("down.bias", *ORDINARY),
}


def drawn_gradients(weights, beginnings, factor):
    """A gradient for each parameter whose name begins like this (None: all), and None for the others."""
    gradients = dict.fromkeys(weights)
    for name, value in weights.items():
        if beginnings is None or name.startswith(beginnings):
            gradients[name] = floats(*value.shape) * factor
    return gradients


def own_of_each(gradients, rank, world_size):
    """What a rank has of these gradients, by name."""
    found = {}
    for name, value in gradients.items():
        found[name] = own(name, value, rank, world_size)
    return found


def check_clip(world_size, cases):
    """Call clip_gradients for each case: beginnings of the names that have gradients (None: all), the largest
    norm allowed, as a multiple of the norm (1 where that is 0), and the kind of model. Returns what came."""
    weights = drawn_model()
    wholes = []
    given = [{"weights": weights, "cases": []} for _ in range(world_size)]
    for beginnings, factor, kind in cases:
        whole = drawn_gradients(weights, beginnings, TIMES.get(kind, 1))
        wholes.append(whole)
        most = factor * norm_of(whole.values()) or 1.0
        for rank, one in enumerate(given):
            its = own_of_each(whole, rank, world_size)
            if kind == "empty":  # an empty shard without a gradient, as of a layer that this rank leaves out
                for name, value in its.items():
                    if value is not None and not value.numel():
                        its[name] = None
            one["cases"].append({"gradients": its, "largest": most, "kind": kind})
    ranks = run(clip, given)
    for rank, found in enumerate(ranks):
        for number, (came, case) in enumerate(zip(found["cases"], given[rank]["cases"], strict=True)):
            words = f"on rank {rank} in call {number + 1} of clip_gradients"
            check_norm(f"the norm {words}", came["norm"], wholes[number], rank, world_size)
            same(f"the type of the norm {words}", came["kind"], "float")
            for name, value in case["gradients"].items():
                expected = None if value is None else value.double() * min(1, cases[number][1])
                # Also tiny ones to their last digits: no sum has made them small.
                compare(f"the gradient of {name} {words}", came["gradients"].get(name), expected, scale=1e-9)
    return ranks


def check_norm(what, got, gradients, rank, world_size):
    whole = norm_of(gradients.values())
    try:
        close(what, got, whole)
    except Verdict as verdict:
        for layer, ends in GROUPS.items():
            some = {}
            for name, value in gradients.items():
                if name.endswith(ends):
                    some[name] = value
            mine = own_of_each(some, rank, world_size)
            square = norm_of(some.values()) ** 2
            mistakes = {
                "did not count": 0,
                "were the same on all ranks": norm_of(mine.values()) ** 2,
                "counted once for each rank": world_size * square,
            }
            for words, other in mistakes.items():
                norm = (whole**2 - square + other) ** 0.5
                if other != square and abs(got - norm) < 1e-5 * norm:
                    verdict.came += f"; as if {layer} {words}"
        raise


def test_5a_every_number_once():
    """4 processes, a model with two blocks of 7 and 3 neurons; the norm is small enough; call 2 has no
    gradients in the second block; in call 3, only what is cut of the second block has gradients, so rank 3
    has no number to add; in call 4 the layers have other names, some of which begin with those of layers
    that are cut; in call 5 two ordinary layers share a weight; then all gradients are zero or None; in call
    8 the head was frozen after backward; call 9 is as call 3, but no empty shard has a gradient"""
    cases = [(None, 3.0, ""), (NO_SECOND, 2.0, ""), (CUT_OF_SECOND, 2.0, ""), (None, 1.5, "renamed")]
    cases += [(None, 1.5, "shared"), (None, 1.5, "zeros"), ((), 1.5, ""), (None, 1.5, "frozen")]
    cases += [(CUT_OF_SECOND, 2.0, "empty")]
    most = 256 * len(cases)
    for rank, came in enumerate(check_clip(4, cases)):
        words = f"rank {rank} sent {came['sent']} bytes in {len(cases)} calls of clip_gradients"
        require(came["sent"] <= most, words, f"a sum or two in each call, at most {most} bytes")


def test_5b_clipped():
    """2 processes, a model with two blocks of 7 and 3 neurons; the norm is too large, then small enough,
    then too large while some gradients are None, or while all are tiny, or while the head was frozen
    after backward"""
    cases = [(None, 0.3, ""), (None, 1.5, ""), (NO_SECOND, 0.7, ""), (None, 0.3, "tiny")]
    check_clip(2, [*cases, (None, 0.3, "frozen")])
