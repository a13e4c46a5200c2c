"""What exercise 08 is held against. Runs in the judge."""

import copy
import itertools

import numpy
import torch
from judge import Verdict, check, several
from judge.several import WARM, as_dict, megabytes

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
    parameters = [torch.nn.Parameter(weight.double().clone()) for weight in given["weights"]]
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


def train(trial, given, world_size, mistakes=()):
    """Let the ranks make the steps, and compare the weights of each with those of the one optimizer.
    `mistakes` are pairs of words and what the one optimizer is given then: if that gives what came, they are
    said."""
    expected, optimizer = unsharded(given)
    relative = 1e-10 if given["weights"][0].dtype == torch.float64 else 2e-5
    ranks = [as_dict(came) for came in trial.run("train", [given] * world_size)]
    for step, weights in enumerate(expected):
        for rank, came in enumerate(ranks):
            steps = listed(came.get("weights"))
            got = listed(steps[step]) if step < len(steps) else []
            for number, weight in enumerate(weights):
                what = f"parameter {number} on rank {rank} after step {step + 1}"
                try:
                    trial.close(what, got[number] if number < len(got) else None, weight, relative)
                except Verdict as verdict:
                    verdict.came += as_if(mistakes, step, got)
                    raise
    for rank, came in enumerate(ranks):
        words = f"on rank {rank}, the parameters {came.get('moved')} are in other memory after step()"
        trial.require(came.get("moved") == [], words, "parameters updated in place")
        words = f"on rank {rank}, load_state_dict has changed the dict that it was given"
        trial.require(came.get("changed") is False, words, "a dict that others may load, too")
    return ranks, optimizer


def as_if(mistakes, step, got):
    """Words for the mistake that gives these weights after this step, if it is one of these."""
    for words, given in mistakes:
        wrong = unsharded(given)[0][step]
        if len(wrong) == len(got) and all(map(nearly, got, wrong)):
            return f"; as if {words}"
    return ""


def nearly(got, wrong):
    return numpy.shape(got) == wrong.shape and numpy.allclose(got, wrong, rtol=1e-4, atol=1e-5)


def subsets(names):
    """The small ones first; those that have lr begin with it."""
    names = sorted(names, key=lambda name: (name != "lr", name))
    for count in range(1, len(names) + 1):
        yield from itertools.combinations(names, count)


def most_of_a_rank(sizes, world_size):
    return sum(sizes) / world_size + max(sizes)


@check("08.1a")
def deal(trial):
    deals = [[trial.integers(1, 1000, 9).tolist(), world_size] for world_size in (1, 2, 3, 4)]
    deals += [[[5000, 1] * 6, 2], [[1, 1, 9000] * 5, 3], [sorted(trial.integers(1, 1000, 12).tolist()), 4]]
    deals += [[[1000] * 3 + [10] * 9, 4], [[50, 50, 50], 4], [[7], 3], [[5, 0, 3], 2]]
    trial.tried(f"2 processes, {len(deals)} lists of sizes, for 1 to 4 ranks")
    ranks = trial.run("deal", [{"deals": deals}] * 2)
    for rank, came in enumerate(ranks):
        lists = isinstance(came, list) and len(came) == len(deals)
        trial.require(lists, f"rank {rank} sent no lists", "lists")
        for (sizes, world_size), owners in zip(deals, came, strict=True):
            words = f"deal({sizes}, {world_size}) on rank {rank}"
            owners = owners.tolist() if isinstance(owners, numpy.ndarray) else owners
            good = isinstance(owners, list) and len(owners) == len(sizes)
            good = good and all(type(owner) is int and 0 <= owner < world_size for owner in owners)
            trial.require(good, f"{words} returns {owners}", f"{len(sizes)} ranks from 0 to {world_size - 1}")
            held = [0] * world_size
            for size, owner in zip(sizes, owners, strict=True):
                held[owner] += size
            most = most_of_a_rank(sizes, world_size)
            came_words = f"{words} returns {owners}: the ranks get {held} numbers"
            expected = f"no rank with more than {most:.1f} (average plus largest)"
            trial.require(max(held) <= most, came_words, expected)
    for place, (sizes, world_size) in enumerate(deals):
        one, other = ranks[0][place], ranks[1][place]
        words = f"deal({sizes}, {world_size}) returns {one} on rank 0 and {other} on rank 1"
        trial.require(one == other, words, "the same on all ranks")


@check("08.2a")
def groups(trial):
    for world_size, name in ((2, "Adam"), (3, "SGD")):
        trial.tried(f"{world_size} processes, {name} with two groups, one with its own options")
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
        steps = f"3 steps of {name} with {options}"
        trial.tried(f"{world_size} processes, {steps}, the same gradients on all ranks")
        given = drawn(trial, optimizer=name, options=options)
        if name == "AdamW":
            trial.words.append("(everything is float64)")
            given["weights"] = [weight.double() / 3 for weight in given["weights"]]
            given["gradients"] = [[one.double() for one in step] for step in given["gradients"]]
        train(trial, given, world_size)
    by_their_owners(trial)


def by_their_owners(trial):
    """Other gradients on each rank: then the weights tell which rank has updated them."""
    world_size = 3
    trial.tried("3 processes, 2 steps of SGD; each rank has different gradients, and the owner's must count")
    given = drawn(trial, steps=2, optimizer="SGD", options={"lr": 0.1, "momentum": 0.9})

    def shifted(by):
        return given | {"gradients": [[gradient + by for gradient in step] for step in given["gradients"]]}

    # So far apart that no parameter, however small, can seem to have another owner.
    apart = [0, 10, 50]
    each = [shifted(by) for by in apart]
    expected = [unsharded(one)[0][-1] for one in each]
    of_mean = unsharded(shifted(sum(apart) / world_size))[0][-1]
    ranks = [as_dict(came) for came in trial.run("train", each)]
    held = [0] * world_size
    ends = []
    for rank, came in enumerate(ranks):
        steps = [listed(step) for step in listed(came.get("weights"))]
        good = len(steps) == 2 and len(steps[1]) == len(SHAPES)
        trial.require(good, f"rank {rank} sent no weights", "weights after each of 2 steps")
        ends.append(steps[1])
    for number, weight in enumerate(given["weights"]):
        got = ends[0][number]
        for rank, end in enumerate(ends):
            trial.close(f"parameter {number} on rank {rank} (one owner each)", end[number], got)
        owners = [rank for rank, one in enumerate(expected) if numpy.allclose(got, one[number], atol=1e-4)]
        came = f"parameter {number} is not the result of any single rank's gradients"
        if numpy.allclose(got, of_mean[number], atol=1e-4):
            came = f"parameter {number} was updated with the mean of all ranks' gradients: you sent gradients"
        wanted = "on all ranks, the update that the owner computes from its own gradient"
        trial.require(len(owners) == 1, came, wanted)
        held[owners[0]] += weight.numel()
    most = most_of_a_rank([weight.numel() for weight in given["weights"]], world_size)
    words = [f"{count} with the gradients of rank {rank}" for rank, count in enumerate(held) if count]
    came = f"of {sum(held)} numbers in all parameters, the ranks have updated {' and '.join(words)}"
    wanted = f"at most {int(most)} with the gradients of one rank, their owner (average plus largest)"
    trial.require(max(held) <= most, came, wanted)


STATES = {"Adam": 2, "Adagrad": 1}  # numbers that are kept for each number of a parameter


class Large:
    """Two steps with large parameters, all rows of each alike, on 4 processes or fewer. Every rank multiplies
    its gradients by a number that the judge keeps back until all ranks have come to the gate before, and the
    kernel has seen there what is demanded. Each rank has other numbers. So a parameter tells who updated it,
    and that the owner's part of every step has come from the owner."""

    def __init__(self, trial, world_size, rows, columns, optimizer="Adam", between=""):
        self.trial, self.world_size, self.rows, self.optimizer = trial, world_size, rows, optimizer
        # With so large an eps, the size of a gradient counts.
        options = {"lr": 0.1, "eps": 0.5}
        self.given = drawn(trial, [(columns,)] * len(rows), 2, optimizer=optimizer, options=options)
        self.sizes, self.between = [4 * columns * count for count in rows], between
        self.names = ["before", "step 0", *[between] * bool(between), "step 1"]
        self.gates = several.gates_of(trial, world_size, *self.names)
        for gates in self.gates:
            for name, gate in gates.items():
                gate |= {"asked": [[rank, name] for rank in range(world_size)], "words": self.words(name)}

    def words(self, name):
        known = {"before": "when the optimizer was about to be made", self.between: f"after {name}()"}
        return known.get(name, f"after step {1 if name == 'step 0' else 2} of {self.optimizer}")

    def whole(self):
        """Bytes of the state of one optimizer for all parameters."""
        return STATES[self.optimizer] * sum(self.sizes)

    def hold_no_more(self):
        """Demand at all gates that no rank holds more than its shard."""
        # Seen, as a part of all state: with 4 processes the solution and the other solutions held 0.21 to
        # 0.32, where 0.48 are allowed; with all state on every rank 1.00, with a copy of all weights 0.74,
        # with a second optimizer (Adagrad) 1.25. With 3 processes 0.32 to 0.37, where 0.64 are allowed;
        # with all that was loaded 1.00, with all that was gathered 1.33.
        own = STATES[self.optimizer] * most_of_a_rank(self.sizes, self.world_size)
        most = {name: own + self.whole() / 8 for name in self.names}
        most["before"] = 2 * sum(self.sizes) + WARM
        shard = f"its shard of {megabytes(self.whole())}, the whole state of {self.optimizer} here"
        expected = {name: f"at most {megabytes(most[name])}: {shard}" for name in self.names}
        expected["before"] = f"at most {megabytes(most['before'])}: parameters and gradients"
        for gates in self.gates if self.trial.counted else ():
            for name, gate in gates.items():
                since = "@start" if name == "before" else "before"
                gate |= {"memory": int(most[name]), "memory since": since, "expected": expected[name]}

    def run(self):
        given = self.given | {"rows": self.rows, "between": self.between}
        if self.between == "load_state_dict":
            given["state"] = self.given["state"] = self.state()
        self.trial.run("large", [given] * self.world_size, gates=self.gates)
        self.compare()

    def state(self):
        """Of one optimizer that has made steps with other gradients."""
        shapes, options = [tuple(weight.shape) for weight in self.given["weights"]], self.given["options"]
        other = drawn(self.trial, shapes, 2, optimizer=self.optimizer, options=options)
        return single(unsharded(other)[1].state_dict())

    def by(self, rank):
        """The parameters after each step, all updated with the numbers of this rank."""
        gates = self.gates[rank]
        numbers = [gates["before"]["value"], gates[self.between or "step 0"]["value"]]
        given = {name: value for name, value in self.given.items() if name != "state"}
        pairs = zip(given["gradients"], numbers, strict=True)
        given["gradients"] = [[gradient.double() * number for gradient in step] for step, number in pairs]
        weights = unsharded(given)[0]
        if "state" in self.given:
            later = {"weights": [torch.from_numpy(one) for one in weights[0]], "state": self.given["state"]}
            weights[1:] = unsharded(given | later | {"gradients": given["gradients"][1:]})[0]
        return numpy.array(weights)

    def compare(self):
        """Each parameter on each rank with what one rank makes of it, the same in both steps."""
        right = [self.by(rank) for rank in range(self.world_size)]
        owners = [self.nearest(right, number) for number in range(len(self.rows))]
        ends = ("least", "most")
        for step, rank in itertools.product(range(2), range(self.world_size)):
            came = self.shown(rank, f"step {step}")
            for (number, owner), (place, end) in itertools.product(enumerate(owners), enumerate(ends)):
                what = f"parameter {number} on rank {rank} after step {step + 1} ({end} of each column)"
                self.trial.close(what, came[place][number], right[owner][step, number])

    def shown(self, rank, name):
        came = self.trial.asked(rank, name)["with"]
        good = numpy.shape(came) == (2, len(self.rows), len(self.given["weights"][0]))
        self.trial.require(good, f"rank {rank} sent no parameters", "least and most of each column")
        return came

    def nearest(self, right, number):
        """The rank whose numbers rank 0 must have got in this parameter."""
        came = self.shown(0, "step 0")[0][number]
        away = [abs(one[0, number] - came).max() for one in right]
        return int(numpy.argmin(away))

    def grown(self, rank, name):
        return self.trial.asked(rank, name)["memory"] - self.trial.asked(rank, "before")["memory"]

    def sent_no_more(self):
        """By looks that no rank calls for. Before the steps, hardly anything is sent."""
        least = 2 * (self.world_size - 1) * sum(self.sizes)
        sent = sum(self.trial.sent(rank) for rank in range(self.world_size))
        words = f"in both steps, all {self.world_size} processes together sent {megabytes(sent)}"
        self.trial.require(sent <= 1.5 * least, words, f"about {megabytes(least)}")

    def sent(self, since, name):
        """Bytes that all ranks together have sent between two gates. They open when all have come."""
        asked = self.trial.asked
        return sum(asked(rank, name)["sent"] - asked(rank, since)["sent"] for rank in range(self.world_size))


@check("08.3b")
def state(trial):
    for name in ("Adam", "Adagrad"):
        steps = f"2 steps of {name} with 12 large parameters"
        trial.tried(f"4 processes, {steps}; memory as measured by the kernel")
        large = Large(trial, 4, trial.integers(200, 450, 12).tolist(), 1024, name)
        large.hold_no_more()
        large.run()
        if not trial.counted:
            continue
        # State that is nowhere has been put where this does not look: in a file, say.
        grown, whole = sum(large.grown(rank, "step 1") for rank in range(4)), large.whole()
        words = f"all ranks together have grown by {megabytes(grown)}"
        trial.require(grown >= 0.7 * whole, words, f"about {megabytes(whole)}, the whole state of {name}")


@check("08.3c")
def traffic(trial):
    for world_size in (2, 4):
        trial.tried(f"{world_size} processes, 2 steps of Adam; bytes sent as measured by the kernel")
        large = Large(trial, world_size, trial.integers(100, 140, 12).tolist(), 256)
        large.run()
        if not trial.counted:
            continue
        all_of = sum(large.sizes)
        least = (world_size - 1) * all_of
        for step, since in ((0, "before"), (1, "step 0")):
            sent = large.sent(since, f"step {step}")
            words = f"in step {step + 1}, all {world_size} processes together sent {megabytes(sent)}"
            wanted = f"about {megabytes(least)}: {megabytes(all_of)} of parameters to {world_size - 1} ranks"
            trial.require(0.95 * least <= sent <= 1.5 * least, words, wanted)
        large.sent_no_more()


@check("08.3d")
def classes(trial):
    for world_size, name, options, own in (
        (2, "AdamW", {"lr": 0.05}, {"lr": 0.01, "weight_decay": 0.3, "betas": [0.8, 0.9]}),
        (3, "SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}, {"lr": 0.02, "momentum": 0.5}),
        (4, "RMSprop", {"lr": 0.01, "centered": True}, {"alpha": 0.9, "weight_decay": 0.2}),
        (2, "Adagrad", {"lr": 0.1}, {"lr": 0.3, "lr_decay": 0.1}),
    ):
        columns = name == "RMSprop"
        trial.tried(f"{world_size} processes, 3 steps of {name} with {options}; one of two groups with {own}")
        trial.words += ["; matrices are stored by columns"] * columns
        given = drawn(trial, optimizer=name, options=options, groups=grouped(trial, **own), columns=columns)
        train(trial, given, world_size)


@check("08.3e")
def without_gradient(trial):
    for world_size, name, options in ((2, "SGD", {"lr": 0.1, "momentum": 0.9}), (3, "AdamW", {"lr": 0.1})):
        steps = (
            f"3 steps of {name} with weight decay; parameters 1 and 4 are frozen, 4 after a backward pass;"
        )
        trial.tried(f"{world_size} processes, {steps} parameter 0 has a gradient only in step 1,")
        trial.words.append("parameter 3 never, and parameter 2 not in step 1")
        given = drawn(trial, optimizer=name, options=options | {"weight_decay": 0.2}, frozen=[1, 4])
        for step, gradients in enumerate(given["gradients"]):
            for number in (1, 3, *([0, 4] if step else [2])):
                gradients[number] = None
        for rank, came in enumerate(train(trial, given, world_size)[0]):
            what = f"the list of parameters that still have a gradient after zero_grad() on rank {rank}"
            trial.same(what, came.get("left"), [])


@check("08.3f")
def few(trial):
    # Adagrad makes its state in the constructor, also where there is nothing to make it for.
    for world_size, name, shapes in ((4, "Adam", [(5,), (2, 3)]), (3, "Adagrad", [(4,)])):
        trial.tried(f"{world_size} processes, 3 steps of {name}, number of parameters: {len(shapes)}")
        train(trial, drawn(trial, shapes, optimizer=name, options={"lr": 0.1}), world_size)


@check("08.3g")
def changed(trial):
    own = {"lr": 0.2, "momentum": 0.5}
    options = {"lr": 0.1, "momentum": 0.9}
    changes = [[1, 0, "lr", 0.01], [1, 1, "weight_decay", 0.5], [2, 1, "lr", 0.3], [2, 0, "momentum", 0.1]]
    trial.tried(f"2 processes, 4 steps of SGD; {by_hand(changes)}")
    given = drawn(trial, steps=4, optimizer="SGD", options=options, groups=grouped(trial, **own))
    train(trial, given | {"changes": changes}, 2, unnoticed(given, changes))
    changes = [[2, 0, "betas", [0.3, 0.6]], [3, 0, "maximize", True]]
    trial.tried("3 processes, 4 steps of Adam with a learning-rate scheduler (ExponentialLR);")
    trial.words.append(by_hand(changes))
    given = drawn(trial, steps=4, optimizer="Adam", options={}, gamma=float(trial.random.uniform(0.3, 0.6)))
    train(trial, given | {"changes": changes}, 3, unnoticed(given, changes))


def by_hand(changes):
    return ", ".join(
        f"param_groups[{g}][{name!r}] = {v} before step {step + 1}" for step, g, name, v in changes
    )


def unnoticed(given, changes):
    """What a step makes that does not see that some of the options have changed."""
    scheduler = {"lr"} if "gamma" in given else set()
    for names in subsets({name for _, _, name, _ in changes} | scheduler):
        left = given | {"changes": [change for change in changes if change[2] not in names]}
        left |= {"gamma": 1.0} if scheduler & {*names} else {}
        yield f"{' and '.join(names)} in param_groups had not changed", left


BOTH = ((3, "Adam", {"lr": 0.05}), (2, "SGD", {"lr": 0.1, "momentum": 0.9}))


@check("08.4a")
def state_out(trial):
    for world_size, name, options in BOTH:
        trial.tried(
            f"{world_size} processes, state_dict() after step 1 and step 2 of {name} with a learning-rate"
            " scheduler; parameter 6 never has a gradient"
        )
        more = {"groups": grouped(trial, lr=0.03), "gamma": 0.6, "whole": True}
        given = drawn(trial, steps=2, optimizer=name, options=options, **more)
        for gradients in given["gradients"]:
            gradients[6] = None
        compare_state(trial, given, world_size)
    trial.tried("3 processes, state_dict() after step 1 and step 2 of Adam, with one parameter")
    compare_state(trial, drawn(trial, [(4,)], 2, optimizer="Adam", options={}, whole=True), 3)
    shard_after(trial, "state_dict")


def shard_after(trial, call):
    """A rank keeps its shard only, also of what it was handed in this call."""
    trial.tried(f"3 processes, {call}() between 2 steps of Adam with 6 large parameters; memory")
    large = Large(trial, 3, trial.integers(300, 500, 6).tolist(), 1024, between=call)
    large.hold_no_more()
    large.run()


def compare_state(trial, given, world_size):
    ranks, optimizer = train(trial, given, world_size)
    for rank, came in enumerate(ranks[1:], 1):
        trial.same(f"state_dict() on rank {rank}", came.get("whole"), None)
    compare_whole(trial, ranks[0].get("whole"), optimizer.state_dict())
    return ranks


def compare_whole(trial, whole, expected):
    a_dict, wanted = isinstance(whole, dict), ["param_groups", "state"]
    trial.require(a_dict, f"state_dict() on rank 0 is {whole}", "a dict with state and param_groups")
    trial.same("the sorted list of keys of state_dict() on rank 0", listed(whole.get("keys")), wanted)
    strange = whole.get("strange")
    trial.require(strange is None, f"a key of the state on rank 0 is a {strange}", "whole numbers: 0, 1, 2")
    state = {number: as_dict(one) for number, one in as_dict(whole.get("state")).items() if one}
    numbers, came = sorted(expected["state"]), sorted(state, key=lambda name: (len(name), name))
    what = "the list of numbers of the parameters that have a state on rank 0"
    trial.same(what, came, list(map(str, numbers)))
    for number in numbers:
        for name, value in expected["state"][number].items():
            what = f"{name} in the state of parameter {number} on rank 0"
            trial.require(name in state[str(number)], f"{what} is not there", "the same as for one optimizer")
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
    for world_size, name, options in BOTH:
        trial.tried(
            f"{world_size} processes take a step of {name}, then load the state of one optimizer whose"
            " options were changed"
        )
        groups = grouped(trial, lr=0.03)
        given = drawn(trial, steps=2, optimizer=name, options=options, groups=groups)
        given["gradients"][0][5] = given["gradients"][1][5] = None
        changes = [[1, 0, "lr", 0.2], [1, 1, "weight_decay", 0.4]]
        weights, optimizer = unsharded(given | {"changes": changes})
        state = optimizer.state_dict()
        later = drawn(trial, steps=2, optimizer=name, options=options, groups=groups, state=single(state))
        later["weights"] = [torch.from_numpy(weight).float() for weight in weights[-1]]
        before = [trial.floats(*shape) for shape in SHAPES]
        train(trial, later | {"before": before}, world_size, not_loaded(later, groups))
    trial.tried("3 processes load the state of one Adam, with one parameter")
    given = drawn(trial, [(4,)], 2, optimizer="Adam", options={"lr": 0.1})
    weights, optimizer = unsharded(given)
    given |= {"weights": [torch.from_numpy(one).float() for one in weights[-1]]}
    train(trial, given | {"state": single(optimizer.state_dict())}, 3)
    shard_after(trial, "load_state_dict")


def not_loaded(given, groups):
    """What comes of it if some of what is in the state is not taken over."""
    whole = given["state"]
    old = one_optimizer({name: value for name, value in given.items() if name != "state"})[1].param_groups
    for names in subsets(["lr", "weight_decay"]):
        pairs = zip(whole["param_groups"], old, strict=True)
        kept = [saved | {name: mine[name] for name in names} for saved, mine in pairs]
        words = f"{' and '.join(names)} of what was loaded did not count"
        yield words, given | {"state": whole | {"param_groups": kept}}
    yield "no state had been loaded, only the options", given | {"state": whole | {"state": {}}}


def single(value):
    """A state in float32, as a checkpoint of float32 parameters has it."""
    if isinstance(value, dict):
        return {name: single(item) for name, item in value.items()}
    return value.float() if torch.is_tensor(value) else value
