"""What exercise 03 is held against. Runs in the judge."""

from judge import check

SHAPES = {
    "first.weight": (4, 5),
    "first.bias": (4,),
    "norm.weight": (4,),
    "norm.bias": (4,),
    "second.weight": (4, 4),
    "second.bias": (4,),
}
BUFFERS = {"norm.running_mean": (4,), "norm.running_var": (4,)}


def states(trial, world_size, buffers=False):
    """Other weights on each rank; with `buffers`, also other running means and a counter."""
    found = []
    for _ in range(world_size):
        state = {name: trial.floats(*shape) for name, shape in SHAPES.items()}
        if buffers:
            state |= {name: trial.floats(*shape) for name, shape in BUFFERS.items()}
            state["norm.num_batches_tracked"] = trial.integers(1, 1 << 40)
        found.append(state)
    return found


@check("03.1a")
def parameters(trial):
    for world_size in (2, 3, 1):
        trial.tried(f"{world_size} processes, a model with 6 parameters, other weights on each rank")
        given = states(trial, world_size)
        ranks = trial.run("begin", [{"state": state} for state in given])
        for rank, came in enumerate(ranks):
            for name in SHAPES:
                trial.close(f"{name} on rank {rank}", came["state"].get(name), given[0][name])
            trial.same(f"what needs a gradient on rank {rank}", came["requires"], list(SHAPES))


@check("03.1b")
def buffers(trial):
    trial.tried("3 processes, batch norm's running mean, running variance and counter, others on each rank")
    given = states(trial, 3, buffers=True)
    for rank, came in enumerate(trial.run("begin", [{"state": state} for state in given])):
        for name in BUFFERS:
            trial.close(f"{name} on rank {rank}", came["state"].get(name), given[0][name])
        counter = "norm.num_batches_tracked"
        trial.same(f"{counter} on rank {rank}", came["state"].get(counter), given[0][counter])


@check("03.1c")
def in_place(trial):
    trial.tried("2 processes, tensors of the model held elsewhere, as an optimizer does")
    given = states(trial, 2, buffers=True)
    for rank, came in enumerate(trial.run("begin", [{"state": state} for state in given])):
        for name in SHAPES:
            trial.close(
                f"{name} on rank {rank}, as the optimizer sees it", came["held"].get(name), given[0][name]
            )
            trial.require(
                name in came["same"], f"{name} is another tensor afterwards", "the same tensor, overwritten"
            )


def average(trial, world_size, gradients, expected, tied=False, frozen=()):
    state = states(trial, 1)[0]
    inputs = [
        {"state": state, "gradients": gradients[rank], "tied": tied, "frozen": list(frozen)}
        for rank in range(world_size)
    ]
    for rank, came in enumerate(trial.run("average", inputs)):
        for name in SHAPES:
            what, got = f"the gradient of {name} on rank {rank}", came["gradients"].get(name)
            if expected.get(name) is None:
                trial.require(got is None, f"{what} is there", "None")
            else:
                trial.close(what, got, expected[name])
        trial.same(f"the list of weights that have changed on rank {rank}", came["moved"], [])


def drawn(trial, world_size, names=SHAPES):
    """Gradients of very different size on each rank: a mean of them cannot be mistaken for one of them."""
    return [{name: trial.floats(*SHAPES[name]) * 10**rank for name in names} for rank in range(world_size)]


def mean(gradients, name):
    return sum(given[name] for given in gradients if name in given) / len(gradients)


@check("03.2a")
def averaged(trial):
    for world_size in (2, 3, 4, 1):
        trial.tried(f"{world_size} processes, other gradients on each rank")
        gradients = drawn(trial, world_size)
        average(trial, world_size, gradients, {name: mean(gradients, name) for name in SHAPES})


@check("03.2b")
def frozen(trial):
    trial.tried("2 processes, the first layer frozen")
    names = [name for name in SHAPES if not name.startswith("first")]
    gradients = drawn(trial, 2, names)
    expected = {name: mean(gradients, name) for name in names}
    average(trial, 2, gradients, expected, frozen=["first.weight", "first.bias"])


@check("03.2c")
def tied(trial):
    trial.tried("3 processes, two layers with one weight")
    gradients = drawn(trial, 3)
    average(trial, 3, gradients, {name: mean(gradients, name) for name in SHAPES}, tied=True)


@check("03.2d")
def on_some(trial):
    trial.tried("3 processes; second.weight has a gradient on ranks 0 and 1, norm.bias on rank 2 only")
    gradients = drawn(trial, 3)
    del gradients[2]["second.weight"], gradients[0]["norm.bias"], gradients[1]["norm.bias"]
    average(trial, 3, gradients, {name: mean(gradients, name) for name in SHAPES})


@check("03.2e")
def nowhere(trial):
    trial.tried("2 processes; second.bias has a gradient on no rank, first.bias on rank 1 only")
    gradients = drawn(trial, 2, [name for name in SHAPES if name != "second.bias"])
    del gradients[0]["first.bias"]
    average(trial, 2, gradients, {name: mean(gradients, name) for name in SHAPES if name != "second.bias"})
