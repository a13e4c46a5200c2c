"""What exercise 08 is held against. Runs in the judge."""

import copy

import numpy
import torch
from judge import check

SHAPES = [(3, 4), (5,), (2, 3), (7,), (4, 4), (1,), (3, 3), (6,)]


def drawn(trial, shapes=SHAPES, steps=3, **more):
    """Weights and gradients for a few steps; what an optimizer is to be made of comes in `more`."""
    weights = [trial.floats(*shape) for shape in shapes]
    gradients = [[trial.floats(*shape) for shape in shapes] for _ in range(steps)]
    return {"weights": weights, "gradients": gradients, **more}


def grouped(trial, **options):
    """Two groups, the parameters mixed: the first with these options, the second with those of the class."""
    count = len(SHAPES)
    order = trial.random.permutation(count).tolist()
    return [{"params": order[: count // 2], **options}, {"params": order[count // 2 :]}]


def one_optimizer(given):
    """The parameters and the one optimizer for all of them, in float64."""
    parameters = [torch.nn.Parameter(weight.double()) for weight in given["weights"]]
    for number in given.get("frozen", []):
        parameters[number].requires_grad_(False)
    groups = parameters
    if "groups" in given:
        groups = [{**group, "params": [parameters[n] for n in group["params"]]} for group in given["groups"]]
    optimizer = getattr(torch.optim, given["optimizer"])(groups, **given["options"])
    if "state" in given:
        optimizer.load_state_dict(copy.deepcopy(given["state"]))
    return parameters, optimizer


def unsharded(given):
    """The weights after each step, and the optimizer as it is then."""
    parameters, optimizer = one_optimizer(given)
    scheduler = None
    if "gamma" in given:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, given["gamma"])
    weights = []
    for number, gradients in enumerate(given["gradients"]):
        for step, group, name, value in given.get("changes", []):
            if step == number:
                optimizer.param_groups[group][name] = value
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.double()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        weights.append([parameter.detach().numpy().copy() for parameter in parameters])
    return weights, optimizer


def listed(value):
    return value if isinstance(value, list) else []


def as_dict(value):
    return value if isinstance(value, dict) else {}


def train(trial, given, world_size):
    """Let the ranks make the steps, and compare the weights of each with those of the one optimizer."""
    expected, optimizer = unsharded(given)
    ranks = [as_dict(came) for came in trial.run("train", [given] * world_size)]
    for step, weights in enumerate(expected):
        for rank, came in enumerate(ranks):
            steps = listed(came.get("weights"))
            got = listed(steps[step]) if step < len(steps) else []
            for number, weight in enumerate(weights):
                what = f"parameter {number} on rank {rank} after step {step + 1}"
                trial.close(what, got[number] if number < len(got) else None, weight)
    return ranks, optimizer


def most_of_a_rank(sizes, world_size):
    return sum(sizes) / world_size + max(sizes)


@check("08.1a")
def deal(trial):
    deals = [[trial.integers(1, 1000, 9).tolist(), world_size] for world_size in (1, 2, 3, 4)]
    deals += [[[5000, 1] * 6, 2], [[1, 1, 9000] * 5, 3], [sorted(trial.integers(1, 1000, 12).tolist()), 4]]
    deals += [[[1000] * 3 + [10] * 9, 4], [[50, 50, 50], 4], [[7], 3]]
    trial.tried(f"2 processes, {len(deals)} lists of sizes and 1 to 4 ranks to deal them to")
    ranks = trial.run("deal", [{"deals": deals}] * 2)
    for rank, came in enumerate(ranks):
        trial.require(
            isinstance(came, list) and len(came) == len(deals), f"rank {rank} sent no lists", "lists"
        )
        for (sizes, world_size), owners in zip(deals, came, strict=True):
            words = f"deal({sizes}, {world_size}) on rank {rank}"
            owners = owners.tolist() if isinstance(owners, numpy.ndarray) else owners
            good = isinstance(owners, list) and len(owners) == len(sizes)
            good = good and all(type(owner) is int and 0 <= owner < world_size for owner in owners)
            trial.require(good, f"{words} gives {owners}", f"{len(sizes)} ranks from 0 to {world_size - 1}")
            held = [
                sum(s for s, owner in zip(sizes, owners, strict=True) if owner == r)
                for r in range(world_size)
            ]
            most = most_of_a_rank(sizes, world_size)
            came_words = f"{words} gives {owners}: the ranks get {held} numbers"
            trial.require(
                max(held) <= most, came_words, f"no rank with more than {most:.1f} (average and largest)"
            )
    for place, (sizes, world_size) in enumerate(deals):
        one, other = ranks[0][place], ranks[1][place]
        words = f"deal({sizes}, {world_size}) gives {one} on rank 0 and {other} on rank 1"
        trial.require(one == other, words, "the same on all ranks")


@check("08.2a")
def groups(trial):
    for world_size, name in ((2, "Adam"), (3, "SGD")):
        trial.tried(f"{world_size} processes, {name} with two groups, one with options of its own")
        options = {"lr": float(trial.random.uniform(0.001, 0.1))}
        given = drawn(trial, steps=0, optimizer=name, options=options)
        given["groups"] = grouped(trial, lr=0.5, weight_decay=0.25)
        _, optimizer = one_optimizer(given)
        for rank, came in enumerate(trial.run("groups", [given] * world_size)):
            came = listed(came)
            trial.same(f"the number of groups in param_groups on rank {rank}", len(came), 2)
            for place, (group, expected) in enumerate(zip(came, optimizer.param_groups, strict=True)):
                numbers = given["groups"][place]["params"]
                what = f"of param_groups[{place}] on rank {rank}"
                trial.same(f'the numbers of the parameters in "params" {what}', group.get("params"), numbers)
                compare_options(trial, what, group, expected)


def compare_options(trial, what, group, expected):
    for name, value in expected.items():
        if name != "params":
            trial.require(name in group, f"the option {name} {what} is not there", repr(value))
            if isinstance(value, float):
                trial.close(f"the option {name} {what}", group[name], value)
            else:
                trial.same(f"the option {name} {what}", group[name], value)


@check("08.3a")
def weights(trial):
    for world_size, name, options in (
        (2, "SGD", {"lr": 0.1, "momentum": 0.9}),
        (3, "Adam", {"lr": 0.05}),
        (4, "AdamW", {"lr": 0.05, "weight_decay": 0.1}),
        (1, "Adam", {"lr": 0.05}),
    ):
        trial.tried(
            f"{world_size} processes, 3 steps of {name} with {options}, the same gradients on all ranks"
        )
        train(trial, drawn(trial, optimizer=name, options=options), world_size)
    by_their_owners(trial)


def by_their_owners(trial):
    """Other gradients on each rank: then the weights tell which rank has updated them."""
    world_size = 3
    trial.tried("3 processes, 2 steps of SGD; a parameter's gradient is right on the rank of its owner only")
    given = drawn(trial, steps=2, optimizer="SGD", options={"lr": 0.1, "momentum": 0.9})
    # So far apart that no parameter, however small, can seem to have another owner.
    each = [
        given | {"gradients": [[gradient + 10 * rank for gradient in step] for step in given["gradients"]]}
        for rank in range(world_size)
    ]
    expected = [unsharded(one)[0][-1] for one in each]
    ranks = [as_dict(came) for came in trial.run("train", each)]
    held = [0] * world_size
    for number, weight in enumerate(given["weights"]):
        got = []
        for rank, came in enumerate(ranks):
            steps = [listed(step) for step in listed(came.get("weights"))]
            good = len(steps) == 2 and len(steps[1]) == len(SHAPES)
            trial.require(good, f"rank {rank} sent no weights", "weights after each of 2 steps")
            got.append(steps[1][number])
            trial.close(f"parameter {number} on rank {rank} (owned by one rank, as all)", got[rank], got[0])
        owners = [
            rank for rank in range(world_size) if numpy.allclose(got[0], expected[rank][number], atol=1e-4)
        ]
        came = f"parameter {number} is not what any one rank would have made of its gradients"
        trial.require(len(owners) == 1, came, "the update that its owner makes, on all ranks")
        held[owners[0]] += weight.numel()
    most = most_of_a_rank([weight.numel() for weight in given["weights"]], world_size)
    came = f"ranks 0, 1 and 2 have updated {held} numbers"
    trial.require(max(held) <= most, came, f"no rank with more than {most:.1f} (average and largest)")


def large(trial, world_size, rows, columns):
    """Two steps of Adam with large parameters. Returns their bytes, after comparing the weights."""
    shapes = [(columns,)] * len(rows)
    given = drawn(trial, shapes, steps=2, optimizer="Adam", options={}, rows=rows)
    expected = unsharded(given)[0][-1]
    for rank, came in enumerate(trial.run("large", [given] * world_size)):
        for end in ("least", "most"):
            got = listed(as_dict(came).get(end))
            for number, row in enumerate(expected):
                what = f"parameter {number} on rank {rank} after 2 steps ({end} of each column)"
                trial.close(what, got[number] if number < len(got) else None, row)
    return [4 * columns * count for count in rows]


def megabytes(value):
    return f"{value / 1e6:.1f} MB"


@check("08.3b")
def state(trial):
    trial.tried("3 processes, 2 steps of Adam, and of Adagrad, which makes its state in the constructor")
    total = sum(int(numpy.prod(shape)) for shape in SHAPES)
    most = most_of_a_rank([int(numpy.prod(shape)) for shape in SHAPES], 3)
    for name, each in (("Adam", 2), ("Adagrad", 1)):
        given = drawn(trial, steps=2, optimizer=name, options={"lr": 0.1}, count=True)
        for rank, came in enumerate(train(trial, given, 3)[0]):
            # One number more for each parameter: Adam and Adagrad count their steps.
            allowed = each * int(most) + len(SHAPES)
            words = (
                f"rank {rank} keeps {came.get('kept')} numbers with {name}, beside parameters and gradients"
            )
            wanted = f"its share of {each * total + len(SHAPES)}: {allowed} at most"
            trial.require(type(came.get("kept")) is int and came["kept"] <= allowed, words, wanted)
    rows = trial.integers(200, 450, 12).tolist()
    trial.tried("4 processes, 2 steps of Adam with 12 large parameters; their memory as the kernel counts it")
    sizes = large(trial, 4, rows, 1024)
    if not trial.counted:
        return
    whole = 2 * sum(sizes)
    growth = [
        min(trial.mark(rank, f"step 1, look {look}")["memory"] for look in range(3))
        - trial.mark(rank, "before")["memory"]
        for rank in range(4)
    ]
    allowed = 2 * most_of_a_rank(sizes, 4) + whole / 8
    for rank, grown in enumerate(growth):
        words = (
            f"rank {rank} has grown by {megabytes(grown)}; the whole state of Adam is {megabytes(whole)} here"
        )
        trial.require(grown <= allowed, words, f"about {megabytes(whole / 4)}, {megabytes(allowed)} at most")
    # State that is nowhere has been put where this does not look: in a file, say.
    words = f"all ranks together have grown by {megabytes(sum(growth))}"
    trial.require(sum(growth) >= 0.7 * whole, words, f"about {megabytes(whole)}, the whole state of Adam")


@check("08.3c")
def traffic(trial):
    for world_size in (2, 4):
        trial.tried(f"{world_size} processes, 2 steps of Adam; bytes sent as the kernel counts them")
        sizes = large(trial, world_size, trial.integers(100, 140, 12).tolist(), 256)
        if not trial.counted:
            continue
        for step, one, other in ((1, "before", "step 0, look 0"), (2, "step 0, look 2", "step 1, look 0")):
            marks = [(trial.mark(rank, one), trial.mark(rank, other)) for rank in range(world_size)]
            sent = sum(after["sent"] - before["sent"] for before, after in marks)
            least = (world_size - 1) * sum(sizes)
            words = f"in step {step} all {world_size} processes together sent {megabytes(sent)}"
            wanted = f"about {megabytes(least)}: {megabytes(sum(sizes))} of parameters, to {world_size - 1}"
            trial.require(0.95 * least <= sent <= 1.5 * least, words, wanted)


@check("08.3d")
def classes(trial):
    for world_size, name, options, own in (
        (2, "AdamW", {"lr": 0.05}, {"lr": 0.01, "weight_decay": 0.3, "betas": [0.8, 0.9]}),
        (3, "SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, {"lr": 0.02, "momentum": 0.5}),
        (4, "RMSprop", {"lr": 0.01, "centered": True}, {"alpha": 0.9, "weight_decay": 0.2}),
        (2, "Adagrad", {"lr": 0.1}, {"lr": 0.3, "lr_decay": 0.1}),
    ):
        trial.tried(f"{world_size} processes, 3 steps of {name} with {options}; one of two groups with {own}")
        given = drawn(trial, optimizer=name, options=options, groups=grouped(trial, **own))
        train(trial, given, world_size)


@check("08.3e")
def without_gradient(trial):
    for world_size, name, options in ((2, "SGD", {"lr": 0.1, "momentum": 0.9}), (3, "AdamW", {"lr": 0.1})):
        trial.tried(
            f"{world_size} processes, 3 steps of {name} with weight decay; parameters 1 and 4 are frozen;"
        )
        trial.words.append(
            "parameter 0 has a gradient in step 1 only, parameter 3 never, parameter 2 not in step 1"
        )
        given = drawn(trial, optimizer=name, options=options | {"weight_decay": 0.2}, frozen=[1, 4])
        for step, gradients in enumerate(given["gradients"]):
            for number in (1, 3, 4, 0 if step else 2):
                gradients[number] = None
        for rank, came in enumerate(train(trial, given, world_size)[0]):
            what = f"the list of parameters that still have a gradient after zero_grad() on rank {rank}"
            trial.same(what, came.get("left"), [])


@check("08.3f")
def few(trial):
    for world_size, shapes in ((4, [(5,), (2, 3)]), (3, [(4,)])):
        trial.tried(f"{world_size} processes, 3 steps of Adam with {len(shapes)} parameters")
        train(trial, drawn(trial, shapes, optimizer="Adam", options={"lr": 0.1}), world_size)


@check("08.3g")
def changed(trial):
    own = {"lr": 0.2, "momentum": 0.5}
    options = {"lr": 0.1, "momentum": 0.9}
    changes = [[1, 0, "lr", 0.01], [1, 1, "weight_decay", 0.5], [2, 1, "lr", 0.3], [2, 0, "momentum", 0.1]]
    trial.tried(f"2 processes, 4 steps of SGD; [step, group, option, value] changed by hand: {changes}")
    given = drawn(trial, steps=4, optimizer="SGD", options=options, groups=grouped(trial, **own))
    train(trial, given | {"changes": changes}, 2)
    trial.tried("3 processes, 4 steps of Adam and of a learning-rate scheduler (ExponentialLR)")
    given = drawn(trial, steps=4, optimizer="Adam", options={}, gamma=float(trial.random.uniform(0.3, 0.6)))
    train(trial, given, 3)


@check("08.4a")
def state_out(trial):
    for world_size, name, options in (
        (3, "Adam", {"lr": 0.05}),
        (2, "SGD", {"lr": 0.1, "momentum": 0.9}),
    ):
        trial.tried(
            f"{world_size} processes, state_dict() after 2 steps of {name}; parameter 6 never has a gradient"
        )
        groups = grouped(trial, lr=0.03)
        given = drawn(trial, steps=2, optimizer=name, options=options, groups=groups, whole=True)
        for gradients in given["gradients"]:
            gradients[6] = None
        ranks, optimizer = train(trial, given, world_size)
        for rank, came in enumerate(ranks[1:], 1):
            trial.same(f"state_dict() on rank {rank}", came.get("whole"), None)
        compare_whole(trial, ranks[0].get("whole"), optimizer.state_dict())


def compare_whole(trial, whole, expected):
    trial.require(
        isinstance(whole, dict), f"state_dict() on rank 0 is {whole}", "a dict with state and param_groups"
    )
    state = {number: as_dict(one) for number, one in as_dict(whole.get("state")).items() if one}
    numbers = sorted(expected["state"])
    came = sorted(state, key=lambda name: (len(name), name))
    trial.same(
        "the numbers of the parameters that have a state on rank 0", came, [str(number) for number in numbers]
    )
    for number in numbers:
        for name, value in expected["state"][number].items():
            what = f"{name} in the state of parameter {number} on rank 0"
            trial.require(name in state[str(number)], f"{what} is not there", "as for the one optimizer")
            if value is not None:
                trial.close(what, state[str(number)][name], value, scale=1e-3)
    groups = listed(whole.get("param_groups"))
    trial.same("the number of param_groups in the state", len(groups), len(expected["param_groups"]))
    for place, (group, wanted) in enumerate(zip(groups, expected["param_groups"], strict=True)):
        what = f"of param_groups[{place}] in the state"
        trial.same(f'"params" {what}', group.get("params"), wanted["params"])
        compare_options(trial, what, group, wanted)


@check("08.4b")
def state_in(trial):
    for world_size, name, options in (
        (3, "Adam", {"lr": 0.05}),
        (2, "SGD", {"lr": 0.1, "momentum": 0.9}),
    ):
        trial.tried(
            f"{world_size} processes go on with {name} from the state of one optimizer, options changed in it"
        )
        groups = grouped(trial, lr=0.03)
        given = drawn(trial, steps=2, optimizer=name, options=options, groups=groups)
        given["gradients"][0][5] = given["gradients"][1][5] = None
        changes = [[1, 0, "lr", 0.2], [1, 1, "weight_decay", 0.4]]
        weights, optimizer = unsharded(given | {"changes": changes})
        state = optimizer.state_dict()
        later = drawn(
            trial, steps=2, optimizer=name, options=options, groups=groups, state=single(state), count=True
        )
        later["weights"] = [torch.from_numpy(weight).float() for weight in weights[-1]]
        ranks, _ = train(trial, later, world_size)
        sizes = [weight.numel() for weight in later["weights"]]
        each = 2 if name == "Adam" else 1
        allowed = each * int(most_of_a_rank(sizes, world_size)) + len(sizes)
        for rank, came in enumerate(ranks):
            words = f"rank {rank} keeps {came.get('kept')} numbers of state after load_state_dict and 2 steps"
            wanted = f"its share: {allowed} at most"
            trial.require(type(came.get("kept")) is int and came["kept"] <= allowed, words, wanted)


def single(value):
    """A state in float32, as a checkpoint of float32 parameters has it."""
    if isinstance(value, dict):
        return {name: single(item) for name, item in value.items()}
    return value.float() if torch.is_tensor(value) else value
