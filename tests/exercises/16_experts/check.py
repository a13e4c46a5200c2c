"""What exercise 16 is held against. Runs in the judge."""

from collections import Counter

import numpy
import torch
from judge import ONE_CALL, check, look, several, so_many
from judge.several import megabytes, pairs_of
from torch.nn.functional import gelu

# ---- what is right ----------------------------------------------------------------------------


def softmax(logits):
    return torch.softmax(logits.double(), dim=1)


def ranking(row):
    """The experts of a token, best first; of equal ones the smallest number first."""
    return sorted(range(len(row)), key=lambda expert: (-row[expert], expert))


def choices_of(logits, top_k, capacity=None):
    """(token, expert) of each choice that is kept, in the order in which they travel."""
    ranked, number = [ranking(row) for row in logits.tolist()], logits.shape[1]
    queues = [[] for _ in range(number)]
    for choice in range(top_k):
        for token, experts in enumerate(ranked):
            queues[experts[choice]].append(token)
    return [(token, expert) for expert, queue in enumerate(queues) for token in queue[:capacity]]


def two(pairs):
    """Tokens and experts as two tensors."""
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)


def distinct(trial, count, number, bias=None):
    """Logits of which no two of a token are nearly equal: rounding cannot change their order."""
    rows = [[float(value) for value in trial.random.permutation(number)] for _ in range(count)]
    logits = torch.tensor(rows).view(count, number) * 0.4 + 0.15 * trial.floats(count, number).clamp(-1, 1)
    return logits if bias is None else logits + torch.tensor(bias)


def stacked(rows, like, width):
    return torch.stack(rows) if rows else like.new_zeros(0, width)


def close(trial, what, got, expected, **more):
    trial.close(what, got, expected.detach().numpy(), **more)


def slope(trial, what, got, leaf, **more):
    """Compare a gradient. Where nothing depends on a tensor, or it is empty, there may be none."""
    right = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    if got is not None or right.any():
        close(trial, what, got, right, **more)


def run(trial, driver, inputs, **more):
    return several.run(trial, driver, inputs, "a process sends more than is expected from it", **more)


def in_turn(counts):
    return " and ".join(map(str, counts))


def listed(numbers):
    return ", ".join(map(str, numbers))


def named(experts):
    return f"expert{'s' * (len(experts) > 1)} {listed(experts)}" if experts else "no expert"


def close_or_named(trial, what, got, right, known, expected, **more):
    """Compare; if what came is wrong in a way that is known, say in which. `known`: words, and what it would
    be."""
    there = got if isinstance(got, numpy.ndarray) else numpy.asarray(got if isinstance(got, float) else 0.0)
    if there.shape == tuple(right.shape) and not near(there, right):
        for words, value in known.items():
            trial.require(not near(there, value), f"{what}: {words}", expected)
    close(trial, what, got, right, **more)


def near(got, value):
    value = value.detach().numpy()
    most = float(numpy.abs(value).max(initial=0))
    return got.shape == value.shape and numpy.allclose(got, value, rtol=0, atol=2e-5 * max(most, 0.05))


def same_row(row, other):
    return row.shape == other.shape and numpy.allclose(row, other.detach(), rtol=0, atol=1e-5)


# ---- 16.1 -------------------------------------------------------------------------------------


def routes(trial, cases, words):
    """Route some logits in one process, and compare choices, order, weights and gradients."""
    trial.tried(words)
    given = [
        {"logits": one, "top_k": k, "capacity": most, "above": trial.floats(len(choices_of(one, k, most)))}
        for one, k, most in cases
    ]
    (came,) = trial.run("route", [given])
    for number, one in enumerate(given):
        compare_route(trial, one, look(came, number))


def compare_route(trial, given, got):
    logits, top_k, capacity = given["logits"], given["top_k"], given["capacity"]
    count, number = logits.shape
    limit = "" if capacity is None else f", capacity {capacity}"
    where = f"for {so_many(count, 'token')}, {so_many(number, 'expert')}, top_k {top_k}{limit}"
    came = look(got, "came")
    shapes = [one.shape if isinstance(one, numpy.ndarray) else None for one in came or []]
    shown = (" x ".join(map(str, one)) or "no dimension" if one is not None else "?" for one in shapes)
    gave = f"tensors of {', '.join(shown)}" if shapes else "something other than three tensors"
    trial.require(
        len(shapes) == 3 and len(set(shapes)) == 1 and len(shapes[0] or ()) == 1,
        f"route {where} gave {gave}",
        "three tensors of one dimension, all of the same length: tokens, experts, weights",
    )
    pairs = list(zip(came[0].tolist(), came[1].tolist(), strict=True))
    wanted = choices_of(logits, top_k, capacity)
    if pairs != wanted:
        wrong_route(trial, given, pairs, wanted, where)
    tokens, experts = two(wanted)
    leaf = logits.double().requires_grad_()
    weights = softmax(leaf)[tokens, experts]
    sums = torch.zeros(count, dtype=torch.float64).index_add(0, tokens, weights)
    known = {
        "the weights of each token add up to 1": weights / sums[tokens],
        "the softmax is taken over the tokens": leaf.softmax(dim=0)[tokens, experts],
    }
    close_or_named(trial, f"the weights {where}", came[2], weights, known, "the softmax over all experts")
    kind = str(logits.dtype).removeprefix("torch.")
    trial.same(f"the dtype of the weights {where}", str(came[2].dtype), kind)
    if len(tokens):
        weights.backward(given["above"].double())
        close(trial, f"the gradient of the logits {where}", look(got, "gradient"), leaf.grad)


def wrong_route(trial, given, pairs, wanted, where):
    """Say what is wrong with the choices that came, the simplest thing first."""
    top_k, capacity, rows = given["top_k"], given["capacity"], given["logits"].tolist()
    for token, row in enumerate(rows):
        first, went = sorted(ranking(row)[:top_k]), sorted(expert for one, expert in pairs if one == token)
        fine = went == first if capacity is None else set(went) <= set(first)
        scores = ", ".join(f"{value:.3g}" for value in row)
        came = f"{where}: token {token}, with the logits {scores}, goes to {named(went)}"
        trial.require(fine, came, named(first) + ("" if capacity is None else ", or nowhere"))
    experts = [expert for _, expert in pairs]
    right = "first all entries for expert 0, then all for expert 1, and so on"
    trial.require(experts == sorted(experts), f"{where}: experts is {experts}", right)
    for expert in range(given["logits"].shape[1]):
        got, right = ([token for token, one in some if one == expert] for some in (pairs, wanted))
        if got == right:
            continue
        if capacity is not None:
            came = f"{where}: expert {expert} gets {so_many(len(got), 'token')}"
            trial.require(len(got) <= capacity, came, f"at most {capacity}")
        firsts = [token for token, row in enumerate(rows) if ranking(row)[0] == expert]
        more = f" (it is the first choice of {listed(firsts) or 'none'})" * (top_k > 1)
        got, right, order = listed(got), listed(right), ", in this order" * (sorted(got) == sorted(right))
        came = f"{where}: the tokens of expert {expert} are {got or 'none'}{order}"
        trial.require(False, came, f"{right or 'none'}{order}{more}")
    trial.same(f"{where}: the pairs (token, expert) of all entries", pairs, wanted)


@check("16.1a")
def choices(trial):
    routes(trial, [(distinct(trial, 7, 4), 1, None)], "7 tokens, 4 experts, top_k 1, no capacity")
    cases = [
        (distinct(trial, 9, 5), 2, None),
        (distinct(trial, 6, 5).double(), 3, None),
        (distinct(trial, 8, 4, [-9.0, 0.0, 0.0, 0.0]), 1, None),
        (distinct(trial, 6, 4, [0.0, 0.0, 9.0, 0.0]), 2, None),
        (torch.zeros(0, 3), 2, None),
    ]
    words = "9 and 6 tokens, 5 experts; none for expert 0; all for expert 2; no tokens"
    routes(trial, cases, f"top_k 1 to 3, no capacity: {words}")


@check("16.1b")
def ties(trial):
    few, more = trial.integers(0, 3, 12, 4).float(), trial.integers(0, 2, 20, 6).float()
    cases = [(few, 1, None), (more, 2, None), (torch.zeros(3, 5), 2, None)]
    words = "12 tokens, 4 experts, top_k 1, then 20, 6, 2, where many logits are equal; then all equal"
    routes(trial, cases, words)


@check("16.1c")
def capacity(trial):
    routes(trial, [(distinct(trial, 9, 3), 1, 2)], "9 tokens, 3 experts, top_k 1, capacity 2")
    # Expert 1 is the first choice of late tokens and the second choice of early ones.
    early, late = distinct(trial, 4, 3, [9.0, 5.0, 0.0]), distinct(trial, 4, 3, [0.0, 9.0, 5.0])
    cases = [
        (torch.cat([early, late]), 2, 5),
        (distinct(trial, 10, 4), 2, 1),
        (distinct(trial, 8, 4), 3, 4),
        (distinct(trial, 5, 4), 2, 50),
        (torch.zeros(0, 4), 1, 2),
        (distinct(trial, 5, 4), 2, 0),
    ]
    words = "8 tokens, 3 experts, capacity 5; 10, 4, 1; top_k 3: 8, 4, 4"
    routes(trial, cases, f"top_k 2: {words}; top_k 2: 5, 4, 50 (nothing is dropped) and 0; no tokens")


# ---- 16.2 -------------------------------------------------------------------------------------


def loads(chosen, number):
    counts = torch.cat(chosen).bincount(minlength=number).double()
    return counts / counts.sum()


def parts(logits, chosen):
    """What the balancing loss of each process is, and known mistakes with words for each."""
    number, total = logits[0].shape[1], sum(map(len, logits))
    choices = sum(map(len, chosen))
    load, scores = loads(chosen, number), [softmax(one).sum(dim=0) for one in logits]
    right, known = [number * (load * one).sum() / total for one in scores], []
    for rank, (mine, one) in enumerate(zip(right, logits, strict=True)):
        known.append(
            {
                "not multiplied by the number of experts": mine / number,
                "as if not divided by the number of tokens": mine * total,
                "as if the load were the choices per token": mine * choices / total,
            }
        )
        if len(logits) == 1 or not len(one):
            continue
        own = number * (loads([chosen[rank]], number) * scores[rank]).sum()
        known[rank] |= {
            "this is the loss of all processes, not this one's part": sum(right),
            "as if divided by the number of this process's tokens": mine * total / len(one),
            "as if the load counted only this process's choices": own / total,
            "as if there were no other processes": own / len(one),
            "as if also divided by the number of processes": mine / len(logits),
        }
    return right, known


def balance(trial, gradients):
    # In the last case, the logits or the choices of all tokens are far more than their counts.
    cases = (((5, 8, 3), 4, 1), ((6, 0), 3, 2), ((7,), 5, 2), ((12000, 11000), 8, 1))
    for counts, number, top_k in cases[: 2 if gradients else 4]:
        world_size = len(counts)
        logits = [distinct(trial, count, number) for count in counts]
        if top_k == 2:
            logits = [one.double() for one in logits]
        # Not those of the logits: what is asked for is what is done with them.
        chosen = [trial.integers(0, number - 1, count * top_k) for count in counts]
        processes = f"{so_many(world_size, 'process')} with {in_turn(counts)} tokens"
        trial.tried(f"{processes}, {number} experts, top_k {top_k}{' (float64)' * (top_k == 2)}")
        given = [[{"logits": one, "chosen": its}] for one, its in zip(logits, chosen, strict=True)]
        leaves = [one.double().requires_grad_() for one in logits]
        ranks, (right, known) = run(trial, "balance", given), parts(leaves, chosen)
        for rank, came in enumerate(ranks):
            what, word = f"the part of the balancing loss on rank {rank}", look(came, 0, "kind")
            came_words = f"{what} is not a tensor ({word})"
            trial.require(word in (None, "NoneType"), came_words, "a tensor of one number")
            if gradients:
                right[rank].backward()
                what = f"the gradient of the logits on rank {rank}"
                close(trial, what, look(came, 0, "gradient"), leaves[rank].grad)
            else:
                expected = f"{float(right[rank].detach()):.6g}"
                close_or_named(trial, what, look(came, 0, "part"), right[rank], known[rank], expected)
        # No process has told another one its logits, or which token has chosen what. A call for each expert's
        # count is enough for all, and which expert each token has chosen would be more, a byte each.
        for rank, other in pairs_of(world_size) if trial.counted else ():
            sent, most = trial.sent(rank, other), (number + 2) * ONE_CALL
            came = f"rank {rank} sent {sent} bytes to rank {other}"
            trial.require(sent <= most, came, f"at most {most}, however many tokens there are: only counts")


check("16.2a")(lambda trial: balance(trial, False))
check("16.2b")(lambda trial: balance(trial, True))


# ---- 16.3 -------------------------------------------------------------------------------------


class Plan:
    """Which tokens of all ranks go to which experts."""

    def __init__(self, counts, number, pairs):
        self.counts, self.number, self.world_size, self.pairs = counts, number, len(counts), pairs
        self.local = number // len(counts)

    def own(self, experts, rank):
        """Of something for each expert, what is for those of a process."""
        return experts[rank * self.local :][: self.local]

    def count(self, source, target):
        """How many rows one process has for experts of another."""
        return sum(expert // self.local == target for _, expert in self.pairs[source])

    def due(self, source, target, way=2):
        """How many rows are to go from one process to another: to the experts, back, and both ways."""
        there, back = self.count(source, target), self.count(target, source)
        return (there, back, there + back)[way]

    def due_to_all(self, rank, way=2):
        return sum(self.due(rank, other, way) for other in range(self.world_size) if other != rank)


class Journey(Plan):
    """Tokens of all ranks, and where they go."""

    def __init__(self, trial, counts, number, top_k, width, bias=None, capacity=None, double=False):
        kind = torch.float64 if double else torch.float32
        self.x = [trial.floats(count, width).to(kind) for count in counts]
        logits = [distinct(trial, count, number, bias) for count in counts]
        super().__init__(counts, number, [choices_of(one, top_k, capacity) for one in logits])
        each = zip(logits, self.pairs, strict=True)
        self.weights = [softmax(one)[tuple(two(pairs))].to(kind) for one, pairs in each]
        choices = so_many(sum(map(len, self.pairs)), "choice")
        self.words = (
            f"{so_many(self.world_size, 'process')} with {in_turn(counts)} tokens of {width} numbers"
            f" (float{'64, stored by columns' if double else 32}), {number} experts, {choices}"
        )

    def case(self, rank, **more):
        tokens, experts = two(self.pairs[rank])
        return {"x": self.x[rank], "tokens": tokens, "experts": experts, "number": self.number, **more}

    def for_expert(self, expert):
        """Rows that it gets: (rank, token), in the order in which they arrive."""
        return [
            (rank, token) for rank, pairs in enumerate(self.pairs) for token, one in pairs if one == expert
        ]

    def rows(self, expert):
        x = self.x[0]
        return stacked([self.x[rank][token] for rank, token in self.for_expert(expert)], x, x.shape[1])

    def outputs(self, xs, weights, compute, width):
        """On each rank, each token's answers times their weights, added up."""
        found = []
        for rank, count in enumerate(self.counts):
            total = [torch.zeros(width, dtype=torch.float64) for _ in range(count)]
            for entry, (token, expert) in enumerate(self.pairs[rank]):
                total[token] = total[token] + weights[rank][entry] * compute(expert, xs[rank][token])
            found.append(stacked(total, torch.zeros(0, dtype=torch.float64), width))
        return found


def journeys(trial):
    """In groups of as many processes: a plain one first, then what may be empty, full or dropped."""
    yield [(Journey(trial, (4, 6), 2, 1, 3), "one expert on each process")]
    yield [
        (Journey(trial, (5, 3, 6), 6, 1, 4), "two experts on each process"),
        (Journey(trial, (5, 4, 6), 3, 1, 3, bias=[9.0, 0.0, 0.0]), "all tokens go to expert 0"),
    ]
    yield [(Journey(trial, (6, 0, 5, 1), 4, 1, 3), "one process has no tokens")]
    yield [
        (Journey(trial, (7, 4), 4, 2, 3, capacity=1, double=True), "some choices were dropped"),
        (Journey(trial, (4, 5), 4, 1, 3, bias=[0.0, 0.0, -9.0, -9.0]), "no tokens go to experts 2 and 3"),
        (Journey(trial, (0, 0), 2, 1, 3), "no tokens at all"),
    ]
    yield [(Journey(trial, (6,), 3, 2, 3), "one process")]


def compare_arrived(trial, one, rank, came):
    kind, arrived = look(came, "kind"), look(came, "arrived")
    a_list = kind in ("list", "tuple")
    trial.require(
        a_list and len(arrived or []) == one.local,
        f"on rank {rank}, arrived is a {kind}" + (f" of {so_many(len(arrived), 'thing')}" if a_list else ""),
        f"a list with {so_many(one.local, 'tensor')}: one for each expert of this process",
    )
    everything = [one.rows(expert).double() for expert in range(one.number)]
    for place, got in enumerate(arrived):
        expert = rank * one.local + place
        what, right = f"for expert {expert} (arrived[{place}] on rank {rank})", everything[expert]
        trial.require(got is not None, f"what came {what} is not a tensor", "a tensor")
        shape = getattr(got, "shape", ())
        sources = sorted(Counter(source for source, _ in one.for_expert(expert)).items())
        words = ", ".join(f"{count} from rank {source}" for source, count in sources)
        expected = so_many(len(right), "row") + f": {words}" * bool(words)
        trial.require(len(shape) == 2, f"what came {what} has {len(shape)} dimensions", f"2: {expected}")
        for other, rows in enumerate(everything):
            mixed = other != expert and len(rows) and near(got, rows)
            trial.require(not mixed, f"what came {what} are the rows for expert {other}", expected)
        trial.require(len(got) == len(right), f"{so_many(len(got), 'row')} came {what}", expected)
        if not near(got, right):
            order = ", ".join(f"token {token} of rank {source}" for source, token in one.for_expert(expert))
            came = f"the rows that came {what} are right, but not their order"
            trial.require(not in_another_order(got, right.numpy()), came, order)
            strangers(trial, one, expert, f"what came {what}", got)
        close(trial, f"what came {what}", got, right)


def strangers(trial, one, expert, what, got):
    """If a row is of a token that goes somewhere else, say of which."""
    tokens = [(source, token, own) for source, x in enumerate(one.x) for token, own in enumerate(x.double())]
    for place, row in enumerate(got):
        for source, token, own in tokens:
            if same_row(row, own):
                goes = [its for other, its in one.pairs[source] if other == token]
                came = f"row {place} of {what} is token {token} of rank {source}"
                trial.require(expert in goes, came, f"this token goes to {named(goes)}")


def in_another_order(got, right):
    if got.shape != right.shape:
        return False
    got, right = (one[numpy.lexsort(one.T.astype("float32"))] for one in (got, right))
    return numpy.allclose(got, right, rtol=0, atol=1e-5)


@check("16.3a")
def arrivals(trial):
    for group in journeys(trial):
        trial.tried("; then ".join(f"{one.words}; {words}" for one, words in group))
        world_size = group[0][0].world_size
        ranks = run(trial, "dispatch", [[one.case(rank) for one, _ in group] for rank in range(world_size)])
        for number, (one, words) in enumerate(group):
            trial.tried(f"{one.words}; {words}")
            for rank, came in enumerate(ranks):
                compare_arrived(trial, one, rank, look(came, number))


def round_trips(trial, backward):
    for group in journeys(trial):
        trial.tried("; then ".join(f"{one.words}; {words}" for one, words in group))
        drawn, world_size = [], group[0][0].world_size
        given = [{"cases": [], "backward": backward} for _ in range(world_size)]
        for one, _ in group:
            kind, width = one.x[0].dtype, one.x[0].shape[1]
            matrices = [trial.floats(width, 2).to(kind) for _ in range(one.number)]
            aboves = [trial.floats(count, 2).to(kind) for count in one.counts]
            drawn.append((matrices, aboves))
            for rank, above in enumerate(aboves):
                more = {"matrices": one.own(matrices, rank), "weights": one.weights[rank], "above": above}
                given[rank]["cases"].append(one.case(rank, **more))
        ranks = run(trial, "there_and_back", given)
        for number, (one, words) in enumerate(group):
            trial.tried(f"{one.words}; {words}; each expert is a matrix of {one.x[0].shape[1]} x 2")
            came = [look(its, number) for its in ranks]
            (compare_gradients if backward else compare_outputs)(trial, one, came, *drawn[number])


def leaves_of(*lists):
    return ([value.double().requires_grad_() for value in some] for some in lists)


def compare_outputs(trial, one, ranks, matrices, aboves):
    xs, weights, experts = leaves_of(one.x, one.weights, matrices)

    def answer(expert, row):
        return row @ experts[expert]

    right = one.outputs(xs, weights, answer, 2)
    plain = one.outputs(xs, [torch.ones_like(value) for value in weights], answer, 2)
    for rank, came in enumerate(ranks):
        what, got = f"the output of combine on rank {rank}", look(came, "output")
        if isinstance(got, numpy.ndarray) and got.shape == right[rank].shape and not near(got, plain[rank]):
            wrong_rows(trial, one, rank, got, right[rank], weights, answer)
        known = {"as if all weights were 1": plain[rank]}
        wanted = "each answer times the weight of its choice"
        close_or_named(trial, what, got, right[rank], known, wanted)


def compare_gradients(trial, one, ranks, matrices, aboves):
    xs, weights, experts = leaves_of(one.x, one.weights, matrices)
    outputs = one.outputs(xs, weights, lambda expert, row: row @ experts[expert], 2)
    total = sum((out * above.double()).sum() for out, above in zip(outputs, aboves, strict=True))
    if total.requires_grad:  # it does not where there are no tokens at all
        total.backward()
    for rank, came in enumerate(ranks):
        digits = 1e-12 if one.x[0].dtype == torch.float64 else 2e-5
        slope(trial, f"the gradient of x on rank {rank}", look(came, "x"), xs[rank], relative=digits)
        slope(trial, f"the gradient of weights on rank {rank}", look(came, "weights"), weights[rank])
        for place, leaf in enumerate(one.own(experts, rank)):
            what = f"the gradient of expert {rank * one.local + place} (on rank {rank})"
            slope(trial, what, look(came, "experts", place), leaf)


def wrong_rows(trial, one, rank, got, right, weights, answer):
    """If one token's row is not right, say whose it is, or which of its choices is missing."""
    token = next((token for token, row in enumerate(got) if not same_row(row, right[token])), None)
    if token is None:
        return
    row, gives = got[token].astype("float64"), f"token {token} on rank {rank}: combine gives it"
    mine = [(entry, expert) for entry, (its, expert) in enumerate(one.pairs[rank]) if its == token]
    came = f"token {token} on rank {rank} has lost all its choices, but combine gives it {row.tolist()}"
    trial.require(mine, came, "zeros")
    x = one.x[rank][token].double()
    for entry, expert in mine if len(mine) > 1 else ():
        only = same_row(row, weights[rank][entry] * answer(expert, x))
        words = f"the sum of the answers of experts {listed(expert for _, expert in mine)}"
        trial.require(not only, f"{gives} the answer of expert {expert} alone", words)
    for other, its in enumerate(right):
        taken = other != token and its.any() and same_row(row, its)
        trial.require(not taken, f"{gives} the row of token {other}", "its own row")
    every = [(source, *pair) for source, pairs in enumerate(one.pairs) for pair in pairs]
    for source, other, expert in every if len(mine) == 1 else ():
        its = weights[rank][mine[0][0]] * answer(expert, one.x[source][other].double())
        came = f"{gives} the answer to token {other} of rank {source}"
        amiss = (source, other) != (rank, token) and same_row(row, its)
        trial.require(not amiss, came, f"the answer of expert {mine[0][1]} to the token itself")


check("16.3b")(lambda trial: round_trips(trial, False))
check("16.3c")(lambda trial: round_trips(trial, True))


COUNTS = 1500  # bytes between two processes for the counts, and for what gloo adds in each phase
A_ROW = 160  # what gloo adds to a message, if each row is one

WAYS = ("dispatch", "combine", "the backward pass")


def allowed(rows, width, phases=1):
    """The most that one process may send to another for so many rows."""
    return rows * (4 * width + A_ROW) + phases * COUNTS


def demands(trial, one, width):
    """The gates of each rank: a number that it gets only once its rows have left."""
    back, gates = trial.secret(), []
    for rank in range(one.world_size):
        gates.append({"dispatched": {"value": trial.secret()}, "combined": {"value": back}})
        for way, name in enumerate(("dispatched", "combined") if trial.counted else ()):
            rows = one.due_to_all(rank, way)
            gates[rank][name] |= {
                "sent": rows * 4 * width,
                "words": f"after {WAYS[way]}",
                "expected": f"{so_many(rows, 'row')} of {4 * width} bytes sent to other processes",
            }
        gates[rank]["combined"] |= {"sent since": "dispatched"}
    return gates, back


@check("16.3d")
def traffic(trial):
    width = 2048
    for counts, number, bias in (
        ((9, 4, 0), 6, [0.0, 1.0, -9.0, -9.0, 2.0, 0.0]),
        ((6, 7, 3, 5), 4, [2.0, 0.0, 0.0, 0.0]),
    ):
        one = Journey(trial, counts, number, 2, width, bias)
        trial.tried(f"{one.words}; bytes as measured by the kernel")
        gates, back = demands(trial, one, width)
        aboves = [trial.floats(count, width) for count in counts]
        each = enumerate(zip(one.weights, aboves, strict=True))
        given = [one.case(rank, weights=weights, above=above) for rank, (weights, above) in each]
        ranks = run(trial, "traffic", given, gates=gates)
        times = [gate["dispatched"]["value"] for gate in gates for _ in range(one.local)]
        xs, weights = leaves_of(one.x, one.weights)
        outputs = one.outputs(xs, weights, lambda expert, row, times=times: row * times[expert], width)
        sum((out * above * back).sum() for out, above in zip(outputs, aboves, strict=True)).backward()
        for rank, came in enumerate(ranks):
            arrived = {"kind": "list", "arrived": trial.asked(rank, "dispatched")["with"]}
            compare_arrived(trial, one, rank, arrived)
            what = f"the output of combine on rank {rank}"
            close(trial, what, trial.asked(rank, "combined")["with"], outputs[rank], relative=1e-4)
            for name, value in (("x", xs[rank]), ("weights", weights[rank])):
                what = f"the gradient of {name} on rank {rank}"
                slope(trial, what, look(came, name), value, relative=1e-4)
        for way in range(3 if trial.counted else 0):
            count_bytes(trial, one, width, way)


def count_bytes(trial, one, width, way):
    """Bytes from each rank to each other in dispatch, combine or backward, as the kernel counts them."""
    for source, target in pairs_of(one.world_size):
        seen = [trial.mark(source, "@start"), trial.asked(source, "dispatched")]
        seen += [trial.asked(source, "combined"), trial.mark(source, "@end")]
        got = seen[way + 1]["to"].get(target, 0) - seen[way]["to"].get(target, 0)
        rows = one.due(source, target, way)
        least, most = rows * 4 * width, allowed(rows, width, 2 if way == 2 else 1)
        what = f"in {WAYS[way]}, rank {source} sent {got / 1000:.1f} kB to rank {target}"
        many = f" ({got / 4 / width:.0f} rows)" if got > 4 * width else ""
        more = f"and at most {(most - least) / 1000:.1f} kB more"
        expected = f"{so_many(rows, 'row')} of {4 * width / 1000:.1f} kB, {more}"
        trial.require(least <= got <= most, what + many, expected)


# ---- 16.4 -------------------------------------------------------------------------------------


def clear_rows(trial, count, width, router, top_k):
    """Tokens whose choices no rounding can change."""
    rows = []
    while len(rows) < count:
        row = trial.floats(width)
        best = (row.double() @ router.double().T).sort(descending=True).values[: top_k + 1]
        if len(best) < 2 or float((best[:-1] - best[1:]).min()) > 0.01:
            rows.append(row)
    return stacked(rows, router, width)


def layer_of(trial, width, inside, number, top_k, capacity=None, out=None):
    out = out or width
    experts = [
        {"up": trial.floats(width, inside) / width**0.5, "down": trial.floats(inside, out) / inside**0.5}
        for _ in range(number)
    ]
    router = trial.floats(number, width)
    return {"router": router, "experts": experts, "top_k": top_k, "capacity": capacity}


def doubled(layer):
    experts = [{name: value.double() for name, value in one.items()} for one in layer["experts"]]
    return layer | {"router": layer["router"].double(), "experts": experts}


def own_layer(layer, rank, world_size):
    local = len(layer["experts"]) // world_size
    return layer | {"experts": layer["experts"][rank * local :][:local]}


def mixture(layer, xs):
    """Outputs of all processes and their parts of the balancing loss, of matrices in float64."""
    logits = [x @ layer["router"].T for x in xs]
    outputs = []
    for x, one in zip(xs, logits, strict=True):
        tokens, numbers = two(choices_of(one, layer["top_k"], layer["capacity"]))
        scores, output = softmax(one), x.new_zeros(len(x), layer["experts"][0]["down"].shape[1])
        for number, expert in enumerate(layer["experts"]):
            mine = tokens[numbers == number]
            answers = gelu(x[mine] @ expert["up"]) @ expert["down"]
            output = output.index_add(0, mine, scores[mine, number][:, None] * answers)
        outputs.append(output)
    return outputs, parts(logits, [two(choices_of(one, layer["top_k"]))[1] for one in logits])[0]


@check("16.4a")
def whole_layer(trial):
    # In the second case, some experts get no token, and their answers are wider than tokens.
    for counts, number, top_k, limit, out in (
        ((5, 6), 4, 1, None, 4),
        ((2, 0, 3), 12, 2, None, 7),
        ((8, 9), 2, 1, 3, 4),
    ):
        world_size, width = len(counts), 4
        layer = layer_of(trial, width, 6, number, top_k, limit, out)
        xs = [clear_rows(trial, count, width, layer["router"], top_k) for count in counts]
        trial.tried(
            f"{world_size} processes with {in_turn(counts)} tokens,"
            f" Mixture of {number} experts, top_k {top_k}, capacity {limit}, answers of {out} numbers"
            f"{' (in evaluation mode)' * (limit is not None)}"
        )
        more = {"evaluation": limit is not None}
        given = [[{"layer": own_layer(layer, rank, world_size), "x": x} | more] for rank, x in enumerate(xs)]
        ranks = run(trial, "layer", given)
        layer, xs = doubled(layer), [x.double() for x in xs]
        outputs, balances = mixture(layer, xs)
        unlimited, _ = mixture(layer | {"capacity": None}, xs)
        logits = [x @ layer["router"].T for x in xs]
        kept, _ = parts(logits, [two(choices_of(one, top_k, limit))[1] for one in logits])
        for rank, came in enumerate(ranks):
            got = look(came, 0, "came")
            count = len(got) if isinstance(got, list) else 0
            came = f"a Mixture returned {so_many(count, 'thing')}"
            trial.require(count == 2, came, "(output, balancing loss)")
            known = {} if limit is None else {"as if nothing had been dropped": unlimited[rank]}
            words = "zeros for tokens whose choices were dropped"
            close_or_named(trial, f"the output on rank {rank}", got[0], outputs[rank], known, words)
            what, words = f"the part of the balancing loss on rank {rank}", "as if of kept choices"
            expected = "the loss of all choices, dropped or not"
            close_or_named(trial, what, got[1], balances[rank], {words: kept[rank]}, expected)


# ---- training ---------------------------------------------------------------------------------


def training(trial, steps=3):
    width, tokens = 5, 24
    first, after = trial.floats(width, 4).double() / 2, trial.floats(3, width).double() / width**0.5
    blocks = {"one": layer_of(trial, width, 4, 12, 1), "other": layer_of(trial, width, 3, 12, 2)}
    blocks = {name: doubled(layer) for name, layer in blocks.items()}
    batches = [[trial.floats(tokens, 4).double(), trial.floats(tokens, 3).double()] for _ in range(steps)]
    model = {"first": first, "after_experts": after, "blocks": blocks}
    return {"model": model, "batches": batches, "rate": 0.2, "numbers": 3 * tokens, "balance": 0.3}


# A process may have few tokens, or none.
SPLITS = {1: (24,), 2: (15, 9), 3: (11, 0, 13), 4: (6, 9, 2, 7)}


def own_training(given, rank, sizes):
    first = sum(sizes[:rank])
    batches = [[x[first:][: sizes[rank]], y[first:][: sizes[rank]]] for x, y in given["batches"]]
    blocks = {name: own_layer(one, rank, len(sizes)) for name, one in given["model"]["blocks"].items()}
    return given | {"model": given["model"] | {"blocks": blocks}, "batches": batches}


def parameters_of(model):
    found = {"first.weight": model["first"], "after_experts.weight": model["after_experts"]}
    for name, layer in model["blocks"].items():
        found[f"blocks.{name}.router.weight"] = layer["router"]
        for number, one in enumerate(layer["experts"]):
            found |= {f"blocks.{name}.experts.{number}.{key}": value for key, value in one.items()}
    return {name: value.clone().requires_grad_() for name, value in found.items()}


def one_process(given):
    """The same training with all tokens: losses, gradients of the first step, weights at the end."""
    weights, losses, gradients = parameters_of(given["model"]), [], None
    for x, targets in given["batches"]:
        value, balance = x @ weights["first.weight"].T, 0
        for name, layer in given["model"]["blocks"].items():
            at = f"blocks.{name}."
            experts = [
                {key: weights[f"{at}experts.{number}.{key}"] for key in ("up", "down")}
                for number in range(len(layer["experts"]))
            ]
            its = layer | {"router": weights[f"{at}router.weight"], "experts": experts}
            (more,), (part,) = mixture(its, [value])
            value, balance = value + more, balance + part
        output = value @ weights["after_experts.weight"].T
        loss = (output - targets).square().sum() / given["numbers"] + given["balance"] * balance
        losses.append(float(loss.detach()))
        slopes = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
        gradients = gradients or dict(zip(weights, slopes, strict=True))
        with torch.no_grad():
            for one, its in zip(weights.values(), slopes, strict=True):
                one -= given["rate"] * its
    return losses, gradients, weights


def its_name(name, rank, local):
    """What a parameter is called on a rank; None if that rank does not have it."""
    before, _, after = name.partition(".experts.")
    if not after:
        return name
    number, _, key = after.partition(".")
    place = int(number) - rank * local
    return f"{before}.experts.{place}.{key}" if 0 <= place < local else None


def mistakes(ranks, gradients, name, rank, local):
    """What this gradient would be, were it added up where it is not to be, or the other way round; and words
    for what is expected."""
    right, count = gradients[name], len(ranks)
    if ".experts." not in name:
        came = [look(one, "gradients", name) for one in ranks]
        there = [torch.from_numpy(one) for one in came if isinstance(one, numpy.ndarray)]
        alike = len(there) == count > 1 and all(one.shape == right.shape for one in there)
        known = {"the mean of all processes, not the sum": right / count}
        if alike and near(sum(there).numpy(), right):
            known["this is this process's part"] = there[rank]
        return known, "the parts of all processes, added up"
    before, _, after = its_name(name, rank, local).partition(".experts.")
    place, _, key = after.partition(".")
    there = sum(gradients[f"{before}.experts.{one * local + int(place)}.{key}"] for one in range(count))
    return {
        "the gradients of a different expert on each process, added up": there,
        "the mean of the gradients of a different expert on each process": there / count,
        "as if divided by the number of processes": right / count,
    }, "the gradient of this expert, as backward left it"


@check("16.4b")
def one_curve(trial):
    given = training(trial)
    losses, gradients, weights = one_process(given)
    for world_size, sizes in SPLITS.items():
        local = 12 // world_size
        trial.tried(
            f"{so_many(world_size, 'process')} with {in_turn(sizes)} tokens, 3 steps of a"
            " model with two Mixtures of 12 experts, top_k 1 and 2 (float64)"
        )
        ranks = run(trial, "train", [own_training(given, rank, sizes) for rank in range(world_size)])
        every = [(name, rank, its_name(name, rank, local)) for name in weights for rank in range(world_size)]
        every = [(name, rank, mine) for name, rank, mine in every if mine]
        for name, rank, mine in every:
            got, right = look(ranks[rank], "gradients", mine), gradients[name]
            # An expert to which nothing came may have no gradient at all.
            if got is not None or right.any():
                what = f"the gradient of {name} on rank {rank} in the first step"
                known, expected = mistakes(ranks, gradients, name, rank, local)
                close_or_named(trial, what, got, right, known, expected, relative=1e-6)
        for name, rank, mine in every:
            what, got = f"{name} on rank {rank} after 3 steps", look(ranks[rank], "weights", mine)
            close(trial, what, got, weights[name], relative=1e-6)
        for step, loss in enumerate(losses):
            there = [look(came, "losses", step) for came in ranks]
            what = f"the sum of all processes' losses in step {step + 1}"
            numbers = all(isinstance(part, float) for part in there)
            trial.require(numbers, f"{what} has a part that is not a number", "numbers")
            trial.close(what, sum(there), loss, relative=1e-6)
        for rank, came in enumerate(ranks):
            what = f"the dtype of the part of the balancing loss on rank {rank}"
            trial.same(what, look(came, "dtype"), "torch.float64")


@check("16.4c")
def own_experts(trial):
    """Large experts: a process has to wait until it holds no more than its own, and has sent what is due."""
    counts, number, top_k, width, inside = (13, 24, 0, 30), 8, 2, 512, 1024
    one_expert = 8 * width * inside
    thin = [
        [[trial.floats(a, 2), trial.floats(2, b) / a**0.5] for a, b in ((width, inside), (inside, width))]
        for _ in range(number)
    ]
    router = trial.floats(number, width) / 8
    xs = [clear_rows(trial, count, width, router, top_k) for count in counts]
    aboves = [trial.floats(count, width) for count in counts]
    trial.tried(
        f"4 processes with {in_turn(counts)} tokens of {width} numbers, Mixture of {number}"
        f" experts of {megabytes(one_expert)}, top_k 2; memory and bytes sent as measured by the kernel"
    )
    one = Plan(counts, number, [choices_of(x.double() @ router.double().T, top_k) for x in xs])
    sent = [
        (rows * 4 * width, f", and {so_many(rows, 'row')} of {4 * width} bytes sent to other processes")
        for rows in map(one.due_to_all, range(one.world_size))
    ]
    about, first, whole = "all experts are", "before any expert was made", number * one_expert
    gates, back = several.pass_gates(trial, whole, whole / 4, about, sent, first)
    given = [
        {"thin": one.own(thin, rank), "router": router, "top_k": top_k, "x": x, "above": above}
        for rank, (x, above) in enumerate(zip(xs, aboves, strict=True))
    ]
    ranks = run(trial, "large", given, gates=gates)
    experts = []
    for expert, (ups, downs) in enumerate(thin):
        up, up_more, down, down_more = (one.double() for one in (*ups, *downs))
        times = gates[expert // one.local]["made"]["value"]
        experts.append({"up": up @ up_more * times, "down": down @ down_more})
    (leaves,) = leaves_of(xs)
    layer = {"router": router.double(), "experts": experts, "top_k": top_k, "capacity": None}
    outputs, _ = mixture(layer, leaves)
    sum((out * above).sum() * back for out, above in zip(outputs, aboves, strict=True)).backward()
    for rank, came in enumerate(ranks):
        for name, key, what, compare, right in (
            ("forward", "output", f"the output on rank {rank}", close, outputs[rank]),
            ("backward", "x", f"the gradient of x on rank {rank}", slope, leaves[rank]),
        ):
            compare(trial, what, look(came, key), right, relative=1e-4)
            had = trial.asked(rank, name)["with"]
            compare(trial, f"{what}, when it was asked for", had, right, relative=1e-4)
    for source, target in pairs_of(one.world_size) if trial.counted else ():
        rows = 2 * one.due(source, target)
        first, last = trial.asked(source, "made"), trial.mark(source, "@end")
        got = last["to"].get(target, 0) - first["to"].get(target, 0)
        most = allowed(rows, width, 6)
        trial.require(
            got <= most,
            f"forward and backward, rank {source} sent {got / 1000:.1f} kB to rank {target}",
            f"at most {most / 1000:.1f} kB: {so_many(rows, 'row')} of {4 * width} bytes, and the counts",
        )
