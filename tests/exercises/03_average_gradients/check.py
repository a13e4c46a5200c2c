"""What exercise 03 is held against. Runs in the judge."""

import numpy
from judge import check, so_many

SHAPES = {"shift": (4,), "first.weight": (4, 5), "first.bias": (4,), "norm.weight": (4,), "norm.bias": (4,)}
SHAPES |= {"second.weight": (4, 4), "second.bias": (4,)}
FIRST = ["first.weight", "first.bias"]
COUNTER = "norm.num_batches_tracked"
BUFFERS = {"norm.running_mean": (4,), "norm.running_var": (4,), "scale": (4,)}


def states(trial, world_size, buffers=False):
    """Other weights on each rank; with `buffers`, also other running means, a counter, and a scale."""
    shapes = SHAPES | (BUFFERS if buffers else {})
    found = [{name: trial.floats(*shape) for name, shape in shapes.items()} for _ in range(world_size)]
    return [one | ({COUNTER: trial.integers(1, 1 << 40)} if buffers else {}) for one in found]


def double(tensors):
    """In float64, with numbers that float32 does not have."""
    return {name: one.double() / 3 if one.is_floating_point() else one for name, one in tensors.items()}


COLUMNS = "float64, matrices stored by columns, and evaluation mode"


def that_of_rank_0(trial, name, rank, came, given, frozen=""):
    """`given`: what each rank had before. Where another's has come, that is said."""
    what, got = f"{name} {frozen}on rank {rank}", came["state"].get(name)
    for other, one in enumerate(given[1:], 1):
        of = f"{what} is that of rank {other}{', unchanged' if other == rank else ''}"
        trial.require(not numpy.array_equal(got, one[name]), of, "that of rank 0")
    trial.close(what, got, given[0][name])


@check("03.1a")
def parameters(trial):
    for world_size in (2, 3, 1):
        trial.tried(
            f"{so_many(world_size, 'process')}, a model with 7 parameters, "
            "the first layer frozen, different weights on each rank"
        )
        given = states(trial, world_size)
        ranks = trial.run("begin", [{"state": state, "frozen": FIRST} for state in given])
        for rank, came in enumerate(ranks):
            trainable = [name for name in SHAPES if name not in FIRST]
            for name in [*trainable, *FIRST]:
                that_of_rank_0(trial, name, rank, came, given, "(frozen) " if name in FIRST else "")
            what = f"the list of parameters that need a gradient on rank {rank}"
            trial.same(what, came["requires"], trainable)


@check("03.1b")
def buffers(trial):
    trial.tried(
        "3 processes; batch norm's running mean, variance and counter differ between the ranks, and so does "
        "a buffer `scale` with persistent=False"
    )
    given = states(trial, 3, buffers=True)
    for rank, came in enumerate(trial.run("begin", [{"state": state} for state in given])):
        for name in BUFFERS:
            that_of_rank_0(trial, name, rank, came, given)
        trial.same(f"{COUNTER} on rank {rank}", came["state"].get(COUNTER), given[0][COUNTER])


@check("03.1c")
def in_place(trial):
    trial.tried("2 processes; other code holds references to the model's tensors, as an optimizer does;")
    trial.words.append(COLUMNS)
    given = list(map(double, states(trial, 2, buffers=True)))
    for rank, came in enumerate(trial.run("begin", [{"state": one, "columns": True} for one in given])):
        for name in [*SHAPES, *BUFFERS, COUNTER]:
            what, got = f"{name} on rank {rank}, seen through a reference taken before", came["held"]
            if name == COUNTER:
                trial.same(what, got.get(name), given[0][name])
            else:
                trial.close(what, got.get(name), given[0][name], relative=1e-12)
            new = f"{name} is a new tensor afterwards"
            trial.require(name in came["same"], new, "the same tensor, overwritten")


def average(trial, world_size, steps, tied=False, frozen=(), freeze=0, apart=False, columns=False):
    """`steps` has, for each call of average_gradients, the gradients of each rank. `freeze`: the call before
    which parameters are frozen. `apart`: weights and buffers differ between the ranks, so that it is seen if
    they are exchanged."""
    given, relative = states(trial, world_size if apart else 1, buffers=apart), 2e-5
    if columns:
        given, relative = list(map(double, given)), 1e-12
        steps = [list(map(double, gradients)) for gradients in steps]
    options = {"tied": tied, "frozen": list(frozen), "freeze": freeze, "columns": columns}
    inputs = [{"state": one, **options} for one in given]
    inputs = inputs if apart else inputs * world_size
    ranks = [[gradients[rank] for gradients in steps] for rank in range(world_size)]
    inputs = [one | {"gradients": mine} for one, mine in zip(inputs, ranks, strict=True)]
    ranks = trial.run("average", inputs)
    for rank, came in enumerate(ranks):
        for number, gradients in enumerate(steps):
            call = f" (call {number + 1})" if len(steps) > 1 else ""
            for name in SHAPES:
                still = name in frozen and number >= freeze
                got, of = came["gradients"][number].get(name), "(frozen) " if still else ""
                what = f"the gradient of {name} {of}on rank {rank}{call}"
                expected = gradients[rank].get(name) if still else mean(gradients, name)
                if expected is None:
                    trial.require(got is None, f"{what} is not None", "None")
                else:
                    trial.close(what, got, expected, relative)
                if columns:
                    alike = numpy.array_equal(got, ranks[0]["gradients"][number][name])
                    words = f"{what} is not the same as on rank 0: their last digits differ"
                    trial.require(alike, words, "one mean for all ranks, or their models drift apart")
        trial.same(f"the list of weights and buffers that have changed on rank {rank}", came["moved"], [])


def drawn(trial, world_size, names=SHAPES):
    """Gradients of very different size on each rank: a mean of them cannot be mistaken for one of them."""
    return [{name: trial.floats(*SHAPES[name]) * 10**rank for name in names} for rank in range(world_size)]


def mean(gradients, name):
    """Over all ranks, or None where no rank has one."""
    there = [given[name] for given in gradients if name in given]
    return sum(there) / len(gradients) if there else None


@check("03.2a")
def averaged(trial):
    for world_size in (2, 3, 4, 1):
        trial.tried(f"{so_many(world_size, 'process')}, different gradients on each rank")
        average(trial, world_size, [drawn(trial, world_size)])
        numbers = sum(numpy.prod(shape) for shape in SHAPES.values())
        for rank in range(world_size if world_size > 1 else 0):
            sent = trial.sent(rank)
            came = f"rank {rank} has sent {sent} bytes through the process group"
            right = f"{4 * numbers} bytes or more, the size of its gradients"
            trial.require(sent is None or sent >= 4 * numbers, came, right)


@check("03.2b")
def frozen(trial):
    trial.tried(
        "2 processes; the first layer is frozen before call 2; in call 2 it has no gradients, in call 3 "
        "different ones on each rank, from before it was frozen; weights and buffers differ between the ranks"
    )
    others = [name for name in SHAPES if name not in FIRST]
    steps = [drawn(trial, 2, names) for names in (SHAPES, others, SHAPES)]
    average(trial, 2, steps, frozen=FIRST, freeze=1, apart=True)


@check("03.2c")
def tied(trial):
    trial.tried(f"3 processes; two layers share a weight; {COLUMNS}; rank 2 has no gradient of first.weight")
    gradients = drawn(trial, 3)
    del gradients[2]["first.weight"]
    average(trial, 3, [gradients], tied=True, columns=True)


@check("03.2d")
def on_some(trial):
    trial.tried(
        "3 processes; in call 1, second.weight has a gradient only on ranks 0 and 1, norm.bias only on rank "
        "2; in call 2, rank 1 has no gradient at all"
    )
    gradients, others = drawn(trial, 3), drawn(trial, 3)
    del gradients[2]["second.weight"], gradients[0]["norm.bias"], gradients[1]["norm.bias"]
    others[1] = {}
    average(trial, 3, [gradients, others])


@check("03.2e")
def nowhere(trial):
    trial.tried(
        "2 processes; in call 1, second.bias has no gradient on any rank, first.bias only on rank 1; in call "
        "2, second.bias has zeros on both ranks, first.bias has zeros only on rank 1, and the gradients of "
        "norm.bias have the mean zero; in call 3, all ranks have all gradients"
    )
    nowhere = drawn(trial, 2, [name for name in SHAPES if name != "second.bias"])
    del nowhere[0]["first.bias"]
    zeros = drawn(trial, 2)
    for rank in range(2):
        zeros[rank]["second.bias"] = zeros[0]["second.bias"] * 0
        zeros[rank]["norm.bias"] = zeros[0]["norm.bias"] * (-1) ** rank
    zeros[1]["first.bias"] = zeros[0].pop("first.bias") * 0
    average(trial, 2, [nowhere, zeros, drawn(trial, 2)])
