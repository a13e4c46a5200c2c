"""What exercise 16 is held against. Runs in the judge."""

from collections import Counter

import numpy
import torch
from judge import ONE_CALL, Verdict, check, look, so_many
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
    return [torch.tensor([pair[place] for pair in pairs], dtype=torch.int64) for place in (0, 1)]


def distinct(trial, count, number, bias=None):
    """Logits of which no two of a token are nearly equal: rounding cannot change their order."""
    rows = [[float(value) for value in trial.random.permutation(number)] for _ in range(count)]
    logits = torch.tensor(rows).view(count, number) * 0.4 + 0.15 * trial.floats(count, number).clamp(-1, 1)
    return logits if bias is None else logits + torch.tensor(bias)


def close(trial, what, got, expected, **more):
    trial.close(what, got, expected.detach().numpy(), **more)


def slope(trial, what, got, leaf, **more):
    """Compare a gradient. Where nothing depends on a tensor, or it is empty, there may be none."""
    right = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    if got is not None or right.any():
        close(trial, what, got, right, **more)


def rows_in_words(count):
    return so_many(count, "row")


def run(trial, driver, inputs, **more):
    """Trial.run, with words for what gloo says by ending the process."""
    try:
        return trial.run(driver, inputs, **more)
    except Verdict as verdict:
        if "SIGABRT" not in verdict.came:
            raise
        came = f"{verdict.came}; gloo does this when a process sends more than is expected from it"
        raise Verdict(verdict.status, came, verdict.expected) from None


# ---- 16.1 -------------------------------------------------------------------------------------


def routes(trial, cases, words):
    """Route some logits in one process, and compare choices, order, weights and gradients."""
    trial.tried(words)
    given = []
    for logits, top_k, capacity in cases:
        above = trial.floats(len(choices_of(logits, top_k, capacity)))
        given.append({"logits": logits, "top_k": top_k, "capacity": capacity, "above": above})
    (came,) = trial.run("route", [given])
    for number, one in enumerate(given):
        compare_route(trial, one, look(came, number))


def compare_route(trial, given, got):
    logits, top_k, capacity = given["logits"], given["top_k"], given["capacity"]
    count, number = logits.shape
    limit = "" if capacity is None else f", capacity {capacity}"
    where = f"for {so_many(count, 'token')}, {so_many(number, 'expert')}, top_k {top_k}{limit}"
    came = look(got, "came")
    shapes = [tuple(one.shape) if isinstance(one, numpy.ndarray) else None for one in came or []]
    right = len(shapes) == 3 and len(set(shapes)) == 1 and len(shapes[0] or ()) == 1
    trial.require(
        right,
        f"route {where} gave "
        + (f"tensors of {in_words(shapes)}" if shapes else "something other than three tensors"),
        "three tensors of one dimension, all of the same length: tokens, experts, weights",
    )
    pairs = list(zip(came[0].tolist(), came[1].tolist(), strict=True))
    wanted = choices_of(logits, top_k, capacity)
    if pairs != wanted:
        wrong_route(trial, given, pairs, wanted, where)
    tokens, experts = two(wanted)
    leaf = logits.double().requires_grad_()
    weights = softmax(leaf)[tokens, experts]
    known = {
        "the weights of each token add up to 1": renormalised(weights, tokens, count),
        "the softmax is taken over the tokens": leaf.softmax(dim=0)[tokens, experts],
    }
    named_mistakes(trial, f"the weights {where}", came[2], weights, known, "the softmax over all experts")
    close(trial, f"the weights {where}", came[2], weights)
    kind = str(logits.dtype).removeprefix("torch.")
    trial.same(f"the dtype of the weights {where}", str(came[2].dtype), kind)
    if len(tokens):
        weights.backward(given["above"].double())
        close(trial, f"the gradient of the logits {where}", look(got, "gradient"), leaf.grad)


def in_words(shapes):
    return ", ".join(
        " x ".join(map(str, one)) or "no dimension" if one is not None else "?" for one in shapes
    )


def renormalised(weights, tokens, count):
    return weights / torch.zeros(count, dtype=torch.float64).index_add(0, tokens, weights)[tokens]


def wrong_route(trial, given, pairs, wanted, where):
    """Say what is wrong with the choices that came, the simplest thing first."""
    logits, top_k, capacity = given["logits"], given["top_k"], given["capacity"]
    experts = [expert for _, expert in pairs]
    of_token = {}
    for token, expert in pairs:
        of_token.setdefault(token, []).append(expert)
    for token, row in enumerate(logits.tolist()):
        first, went = sorted(ranking(row)[:top_k]), sorted(of_token.get(token, []))
        amiss = went != first if capacity is None else not set(went) <= set(first)
        scores = ", ".join(f"{value:.3g}" for value in row)
        trial.require(
            not amiss,
            f"{where}: token {token}, with the logits {scores}, goes to {named(went)}",
            named(first) + ("" if capacity is None else ", or nowhere"),
        )
    trial.require(
        experts == sorted(experts),
        f"{where}: experts is {experts}",
        "first all entries for expert 0, then all for expert 1, and so on",
    )
    for expert in range(logits.shape[1]):
        got, right = ([token for token, one in some if one == expert] for some in (pairs, wanted))
        if got == right:
            continue
        firsts = [token for token, row in enumerate(logits.tolist()) if ranking(row)[0] == expert]
        more = f" (it is the first choice of {listed(firsts) or 'none'})" if top_k > 1 else ""
        if capacity is not None and len(got) > capacity:
            came = f"{where}: expert {expert} gets {so_many(len(got), 'token')}"
            trial.require(False, came, f"at most {capacity}")
        same = sorted(got) == sorted(right)
        trial.require(
            False,
            f"{where}: the tokens of expert {expert} are {listed(got) or 'none'}"
            + (", in this order" if same else ""),
            (listed(right) or "none") + (", in this order" if same else "") + more,
        )
    trial.same(f"{where}: the pairs (token, expert) of all entries", pairs, wanted)


def named(experts):
    return f"expert{'s' * (len(experts) > 1)} {listed(experts)}" if experts else "no expert"


def listed(numbers):
    return ", ".join(map(str, numbers))


def named_mistakes(trial, what, got, right, known, expected):
    """If what came is wrong in a way that is known, say in which. `known`: words, and what it would be."""
    got = got if isinstance(got, numpy.ndarray) else numpy.asarray(got if isinstance(got, float) else 0.0)
    if got.shape != tuple(right.shape) or near(got, right):
        return
    for words, value in known.items():
        trial.require(not near(got, value), f"{what}: {words}", expected)


def near(got, value):
    value = value.detach().numpy()
    most = float(numpy.abs(value).max(initial=0))
    return got.shape == value.shape and numpy.allclose(got, value, rtol=0, atol=2e-5 * max(most, 0.05))


@check("16.1a")
def choices(trial):
    routes(trial, [(distinct(trial, 7, 4), 1, None)], "7 tokens, 4 experts, top_k 1, no capacity")
    words = (
        "top_k 1 to 3, no capacity: 9 and 6 tokens, 5 experts; none for expert 0; all for expert 2; no tokens"
    )
    cases = [
        (distinct(trial, 9, 5), 2, None),
        (distinct(trial, 6, 5).double(), 3, None),
        (distinct(trial, 8, 4, [-9.0, 0.0, 0.0, 0.0]), 1, None),
        (distinct(trial, 6, 4, [0.0, 0.0, 9.0, 0.0]), 2, None),
        (torch.zeros(0, 3), 2, None),
    ]
    routes(trial, cases, words)


@check("16.1b")
def ties(trial):
    trial_logits = [trial.integers(0, 3, 12, 4).float(), trial.integers(0, 2, 20, 6).float()]
    cases = [(trial_logits[0], 1, None), (trial_logits[1], 2, None), (torch.zeros(3, 5), 2, None)]
    routes(
        trial,
        cases,
        "12 tokens, 4 experts, top_k 1, then 20, 6, 2, where many logits are equal; then all equal",
    )


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
    words = (
        "top_k 2: 8 tokens, 3 experts, capacity 5; 10, 4, 1; top_k 3: 8, 4, 4; top_k 2: 5, 4, 50 (nothing is"
        " dropped) and 0; no tokens"
    )
    routes(trial, cases, words)


# ---- 16.2 -------------------------------------------------------------------------------------


def loads(chosen, number):
    counts = torch.cat(chosen).bincount(minlength=number).double()
    return counts / counts.sum()


def parts(logits, chosen):
    """What the balancing loss of each process is, and known mistakes with words for each."""
    number, total = logits[0].shape[1], sum(map(len, logits))
    choices = sum(map(len, chosen))
    load, scores = loads(chosen, number), [softmax(one).sum(dim=0) for one in logits]
    right = [number * (load * one).sum() / total for one in scores]
    known = [{} for _ in logits]
    for rank, one in enumerate(logits):
        known[rank]["not multiplied by the number of experts"] = right[rank] / number
        known[rank]["as if not divided by the number of tokens"] = right[rank] * total
        known[rank]["as if the load were the choices per token"] = right[rank] * choices / total
        if len(logits) == 1 or not len(one):
            continue
        own = number * (loads([chosen[rank]], number) * scores[rank]).sum()
        known[rank] |= {
            "this is the loss of all processes, not this one's part": sum(right),
            "as if divided by the number of this process's tokens": right[rank] * total / len(one),
            "as if the load counted only this process's choices": own / total,
            "as if there were no other processes": own / len(one),
            "as if also divided by the number of processes": right[rank] / len(logits),
        }
    return right, known


def balance(trial, gradients):
    # In the last case, the logits or the choices of all tokens are far more than their counts.
    cases = (((5, 8, 3), 4, 1), ((6, 0), 3, 2), ((7,), 5, 2), ((12000, 11000), 8, 1))
    for counts, number, top_k in cases[: 2 if gradients else 4]:
        world_size = len(counts)
        logits = [distinct(trial, count, number) for count in counts]
        # Not those of the logits: what is asked for is what is done with them.
        chosen = [trial.integers(0, number - 1, count * top_k) for count in counts]
        spread = " and ".join(map(str, counts))
        trial.tried(f"{so_many(world_size, 'process')} with {spread} tokens, {number} experts, top_k {top_k}")
        given = [[{"logits": one, "chosen": its}] for one, its in zip(logits, chosen, strict=True)]
        ranks, (right, known) = run(trial, "balance", given), parts(logits, chosen)
        for rank, came in enumerate(ranks):
            what = f"the part of the balancing loss on rank {rank}"
            got, word = look(came, 0, "part"), look(came, 0, "kind")
            trial.require(
                word in (None, "NoneType"), f"{what} is not a tensor ({word})", "a tensor of one number"
            )
            if not gradients:
                expected = f"{float(right[rank]):.6g}"
                named_mistakes(trial, what, got, right[rank], known[rank], expected)
                close(trial, what, got, right[rank])
                continue
            leaf = logits[rank].double().requires_grad_()
            (number * (loads(chosen, number) * softmax(leaf).sum(dim=0)).sum() / sum(counts)).backward()
            what = f"the gradient of the logits on rank {rank}"
            close(trial, what, look(came, 0, "gradient"), leaf.grad)
        only_counts(trial, world_size, number)


def only_counts(trial, world_size, number):
    """No process has told another one its logits, or which token has chosen what. A call for each expert's
    count is enough for all, and which expert each token has chosen would be more, a byte each."""
    for rank in range(world_size if trial.counted else 0):
        for other in set(range(world_size)) - {rank}:
            sent, most = trial.sent(rank, other), (number + 2) * ONE_CALL
            came = f"rank {rank} sent {sent} bytes to rank {other}"
            trial.require(sent <= most, came, f"at most {most}, however many tokens there are: only counts")


@check("16.2a")
def balancing(trial):
    balance(trial, False)


@check("16.2b")
def balancing_gradient(trial):
    balance(trial, True)


# ---- 16.3 -------------------------------------------------------------------------------------


class Journey:
    """Tokens of all ranks, and where they go."""

    def __init__(self, trial, counts, number, top_k, width, bias=None, capacity=None, double=False):
        self.counts, self.number, self.world_size = counts, number, len(counts)
        self.local = number // len(counts)
        self.x = [trial.floats(count, width) for count in counts]
        self.x = [one.double() for one in self.x] if double else self.x
        logits = [distinct(trial, count, number, bias) for count in counts]
        self.pairs = [choices_of(one, top_k, capacity) for one in logits]
        self.weights = [
            softmax(one)[tuple(two(pairs))].to(x.dtype)
            for one, pairs, x in zip(logits, self.pairs, self.x, strict=True)
        ]
        kind = "float64" if double else "float32"
        self.words = (
            f"{so_many(self.world_size, 'process')} with {' and '.join(map(str, counts))} tokens of {width}"
            f" numbers ({kind}), {number} experts, {so_many(sum(map(len, self.pairs)), 'choice')}"
        )

    def case(self, rank, **more):
        tokens, experts = two(self.pairs[rank])
        return {"x": self.x[rank], "tokens": tokens, "experts": experts, "number": self.number, **more}

    def owner(self, expert):
        return expert // self.local

    def for_expert(self, expert):
        """Rows that it gets: (rank, token), in the order in which they arrive."""
        return [
            (rank, token) for rank, pairs in enumerate(self.pairs) for token, one in pairs if one == expert
        ]

    def rows(self, expert):
        rows = [self.x[rank][token] for rank, token in self.for_expert(expert)]
        return torch.stack(rows) if rows else self.x[0].new_zeros(0, self.x[0].shape[1])

    def count(self, source, target):
        """How many rows one process has for experts of another."""
        return sum(self.owner(expert) == target for _, expert in self.pairs[source])

    def output(self, rank, xs, weights, compute, width):
        """Each token's answers times their weights, added up."""
        total = [torch.zeros(width, dtype=torch.float64) for _ in range(self.counts[rank])]
        for entry, (token, expert) in enumerate(self.pairs[rank]):
            total[token] = total[token] + weights[rank][entry] * compute(expert, xs[rank][token])
        return torch.stack(total) if total else torch.zeros(0, width, dtype=torch.float64)


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
    trial.require(
        kind in ("list", "tuple") and len(arrived or []) == one.local,
        f"on rank {rank}, arrived is a {kind}"
        + (f" of {so_many(len(arrived), 'thing')}" if kind in ("list", "tuple") else ""),
        f"a list with {so_many(one.local, 'tensor')}: one for each expert of this process",
    )
    everything = {expert: one.rows(expert).double().numpy() for expert in range(one.number)}
    for place, got in enumerate(arrived):
        expert = rank * one.local + place
        what, right = f"for expert {expert} (arrived[{place}] on rank {rank})", everything[expert]
        trial.require(got is not None, f"what came {what} is not a tensor", "a tensor")
        shape = getattr(got, "shape", ())
        sources = Counter(source for source, _ in one.for_expert(expert))
        words = ", ".join(f"{count} from rank {source}" for source, count in sorted(sources.items()))
        expected = rows_in_words(len(right)) + f": {words}" * bool(words)
        trial.require(len(shape) == 2, f"what came {what} has {len(shape)} dimensions", f"2: {expected}")
        for other, rows in everything.items():
            mixed = (
                other != expert and len(rows) and shape == rows.shape and near(got, torch.from_numpy(rows))
            )
            trial.require(not mixed, f"what came {what} are the rows for expert {other}", expected)
        trial.require(len(got) == len(right), f"{rows_in_words(len(got))} came {what}", expected)
        if len(right) and not near(got, torch.from_numpy(right)) and in_another_order(got, right):
            order = ", ".join(f"token {token} of rank {source}" for source, token in one.for_expert(expert))
            trial.require(False, f"the rows that came {what} are right, but not their order", order)
        strangers(trial, one, rank, expert, what, got, right)
        trial.close(f"what came {what}", got, right)


def strangers(trial, one, rank, expert, what, got, right):
    """If a row is of a token that goes somewhere else, say of which."""
    if near(got, torch.from_numpy(right)):
        return
    for place, row in enumerate(got):
        for source, x in enumerate(one.x):
            for token, own in enumerate(x.double().numpy()):
                if row.shape == own.shape and numpy.allclose(row, own, rtol=0, atol=1e-5):
                    goes = [its for other, its in one.pairs[source] if other == token]
                    came = f"row {place} of what came {what} is token {token} of rank {source}"
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
                own = matrices[rank * one.local :][: one.local]
                case = one.case(rank, matrices=own, weights=one.weights[rank], above=above)
                given[rank]["cases"].append(case)
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

    def outputs(factors):
        return [one.output(rank, xs, factors, answer, 2) for rank in range(one.world_size)]

    right, plain = outputs(weights), outputs([torch.ones_like(value) for value in weights])
    for rank, came in enumerate(ranks):
        what, got = f"the output of combine on rank {rank}", look(came, "output")
        known = {"as if all weights were 1": plain[rank]}
        shaped = isinstance(got, numpy.ndarray) and got.shape == tuple(right[rank].shape)
        if shaped and not near(got, plain[rank]):
            wrong_rows(trial, one, rank, got, right[rank], weights, experts)
        named_mistakes(trial, what, got, right[rank], known, "each answer times the weight of its choice")
        close(trial, what, got, right[rank])


def compare_gradients(trial, one, ranks, matrices, aboves):
    xs, weights, experts = leaves_of(one.x, one.weights, matrices)
    total = 0
    for rank, above in enumerate(aboves):
        output = one.output(rank, xs, weights, lambda expert, row: row @ experts[expert], 2)
        total = total + (output * above.double()).sum()
    if total.requires_grad:  # it does not where there are no tokens at all
        total.backward()
    for rank, came in enumerate(ranks):
        slope(trial, f"the gradient of x on rank {rank}", look(came, "x"), xs[rank])
        slope(trial, f"the gradient of weights on rank {rank}", look(came, "weights"), weights[rank])
        for place in range(one.local):
            expert = rank * one.local + place
            what = f"the gradient of expert {expert} (on rank {rank})"
            slope(trial, what, look(came, "experts", place), experts[expert])


def wrong_rows(trial, one, rank, got, right, weights, experts):
    """If one token's row is not right, say whose it is, or which of its choices is missing."""
    right = right.detach()
    for token in range(one.counts[rank]):
        mine = [(entry, expert) for entry, (its, expert) in enumerate(one.pairs[rank]) if its == token]
        row = torch.from_numpy(got[token]).double()
        if torch.allclose(row, right[token], rtol=0, atol=1e-5):
            continue
        which = f"token {token} on rank {rank}"
        trial.require(mine, f"{which} has lost all its choices, but combine gives it {row.tolist()}", "zeros")
        parts = {
            expert: (weights[rank][entry] * (one.x[rank][token].double() @ experts[expert])).detach()
            for entry, expert in mine
        }
        for expert, part in parts.items():
            only = len(parts) > 1 and torch.allclose(row, part, rtol=0, atol=1e-5)
            came = f"{which}: combine gives it the answer of expert {expert} alone"
            trial.require(not only, came, f"the sum of the answers of experts {listed(parts)}")
        for other in range(one.counts[rank]):
            taken = (
                other != token and right[other].any() and torch.allclose(row, right[other], atol=1e-5, rtol=0)
            )
            trial.require(not taken, f"{which}: combine gives it the row of token {other}", "its own row")
        if len(mine) == 1:
            weight, expert = weights[rank][mine[0][0]].detach(), mine[0][1]
            for source, pairs in enumerate(one.pairs):
                for other, which_expert in pairs:
                    answer = weight * (one.x[source][other].double() @ experts[which_expert]).detach()
                    came = f"{which}: combine gives it the answer to token {other} of rank {source}"
                    amiss = (source, other) != (rank, token) and torch.allclose(
                        row, answer, rtol=0, atol=1e-5
                    )
                    trial.require(not amiss, came, f"the answer of expert {expert} to the token itself")
        return


@check("16.3b")
def combined(trial):
    round_trips(trial, False)


@check("16.3c")
def gradients(trial):
    round_trips(trial, True)


COUNTS = 1500  # bytes between two processes for the counts, and for what gloo adds in each phase
A_ROW = 160  # what gloo adds to a message, if each row is one

WAYS = ("dispatch", "combine", "the backward pass")


def allowed(rows, width, phases=1):
    """The most that one process may send to another for so many rows."""
    return rows * (4 * width + A_ROW) + phases * COUNTS


def due(one, source, target, way):
    """How many rows are to go from one process to another: to the experts, back, and both ways backward."""
    there, back = one.count(source, target), one.count(target, source)
    return (there, back, there + back)[way]


def sent_in(trial, rank, target, way):
    """Bytes from one rank to another in dispatch, combine and backward, as the kernel counts them."""
    seen = [trial.mark(rank, "@start")]
    seen += [trial.asked(rank, "dispatched"), trial.asked(rank, "combined"), trial.mark(rank, "@end")]
    return seen[way + 1]["to"].get(target, 0) - seen[way]["to"].get(target, 0)


def demands(trial, one, width):
    """The gates of each rank: a number that it gets only once its rows have left."""
    back, gates = trial.secret(), []
    for rank in range(one.world_size):
        own = {"dispatched": {"value": trial.secret()}, "combined": {"value": back}}
        for way, name in enumerate(("dispatched", "combined")):
            rows = sum(due(one, rank, other, way) for other in range(one.world_size) if other != rank)
            if trial.counted:
                own[name] |= {"sent": rows * 4 * width, "words": f"after {WAYS[way]}"}
                own[name]["expected"] = f"{rows_in_words(rows)} of {4 * width} bytes sent to other processes"
        own["combined"] |= {"sent since": "dispatched"}
        gates.append(own)
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
        given = [
            one.case(rank, weights=one.weights[rank], above=aboves[rank]) for rank in range(one.world_size)
        ]
        ranks = run(trial, "traffic", given, gates=gates)
        times = [one_gate["dispatched"]["value"] for one_gate in gates]
        xs, weights = ([value.double().requires_grad_() for value in some] for some in (one.x, one.weights))

        def compute(expert, row, one=one, times=times):
            return row * times[one.owner(expert)]

        outputs = [one.output(rank, xs, weights, compute, width) for rank in range(one.world_size)]
        sum((out * above * back).sum() for out, above in zip(outputs, aboves, strict=True)).backward()
        for rank, came in enumerate(ranks):
            arrived = {"kind": "list", "arrived": trial.asked(rank, "dispatched")["with"]}
            compare_arrived(trial, one, rank, arrived)
            what = f"the output of combine on rank {rank}"
            close(trial, what, trial.asked(rank, "combined")["with"], outputs[rank], relative=1e-4)
            for name, value in (("x", xs[rank]), ("weights", weights[rank])):
                what = f"the gradient of {name} on rank {rank}"
                slope(trial, what, look(came, name), value, relative=1e-4)
        if trial.counted:
            count_bytes(trial, one, width)


def count_bytes(trial, one, width):
    for way, words in enumerate(WAYS):
        for source in range(one.world_size):
            for target in set(range(one.world_size)) - {source}:
                rows, got = due(one, source, target, way), sent_in(trial, source, target, way)
                most = allowed(rows, width, 2 if way == 2 else 1)
                what = f"in {words}, rank {source} sent {got / 1000:.1f} kB to rank {target}"
                many = f" ({got / 4 / width:.0f} rows)" if got > 4 * width else ""
                more = (most - rows * 4 * width) / 1000
                expected = (
                    f"{rows_in_words(rows)} of {4 * width / 1000:.1f} kB, and at most {more:.1f} kB more"
                )
                trial.require(rows * 4 * width <= got <= most, what + many, expected)


# ---- 16.4 -------------------------------------------------------------------------------------


def clear_rows(trial, count, width, router, top_k):
    """Tokens whose choices no rounding can change."""
    rows = []
    while len(rows) < count:
        row = trial.floats(width)
        best = (row.double() @ router.double().T).sort(descending=True).values[: top_k + 1]
        if len(best) < 2 or float((best[:-1] - best[1:]).min()) > 0.01:
            rows.append(row)
    return torch.stack(rows) if rows else torch.zeros(0, width)


def expert_of(trial, width, inside):
    return {"up": trial.floats(width, inside) / width**0.5, "down": trial.floats(inside, width) / inside**0.5}


def layer_of(trial, width, inside, number, top_k, capacity=None):
    experts = [expert_of(trial, width, inside) for _ in range(number)]
    return {
        "router": trial.floats(number, width),
        "experts": experts,
        "top_k": top_k,
        "capacity": capacity,
    }


def own_layer(layer, rank, world_size):
    local = len(layer["experts"]) // world_size
    return layer | {"experts": layer["experts"][rank * local :][:local]}


def through(expert, rows):
    return gelu(rows @ expert["up"]) @ expert["down"]


def mixture(layer, xs, router, experts):
    """Outputs of all processes and their parts of the balancing loss, of matrices in float64."""
    logits = [x @ router.T for x in xs]
    chosen = [two(choices_of(one, layer["top_k"]))[1] for one in logits]
    outputs = []
    for x, one in zip(xs, logits, strict=True):
        tokens, numbers = two(choices_of(one, layer["top_k"], layer["capacity"]))
        scores, output = softmax(one), torch.zeros_like(x)
        for number, expert in enumerate(experts):
            mine = tokens[numbers == number]
            output = output.index_add(0, mine, scores[mine, number][:, None] * through(expert, x[mine]))
        outputs.append(output)
    return outputs, parts(logits, chosen)[0]


@check("16.4a")
def whole_layer(trial):
    for counts, number, top_k, limit in (
        ((5, 6), 4, 1, None),
        ((4, 0, 7), 3, 2, None),
        ((8, 9), 2, 1, 3),
    ):
        world_size, width = len(counts), 4
        layer = layer_of(trial, width, 6, number, top_k, limit)
        xs = [clear_rows(trial, count, width, layer["router"], top_k) for count in counts]
        trial.tried(
            f"{world_size} processes with {' and '.join(map(str, counts))} tokens,"
            f" Mixture of {number} experts, top_k {top_k}, capacity {limit}"
        )
        given = [[{"layer": own_layer(layer, rank, world_size), "x": x}] for rank, x in enumerate(xs)]
        ranks = run(trial, "layer", given)
        experts = [{name: value.double() for name, value in one.items()} for one in layer["experts"]]
        doubled, router = [x.double() for x in xs], layer["router"].double()
        outputs, balances = mixture(layer, doubled, router, experts)
        unlimited, _ = mixture(layer | {"capacity": None}, doubled, router, experts)
        logits = [x @ router.T for x in doubled]
        kept, _ = parts(logits, [two(choices_of(one, top_k, limit))[1] for one in logits])
        for rank, came in enumerate(ranks):
            got = look(came, 0, "came")
            count = len(got) if isinstance(got, list) else 0
            trial.require(
                count == 2, f"a Mixture returned {so_many(count, 'thing')}", "(output, balancing loss)"
            )
            what, known = f"the output on rank {rank}", {}
            if limit is not None:
                known["as if nothing had been dropped"] = unlimited[rank]
            named_mistakes(
                trial, what, got[0], outputs[rank], known, "zeros for tokens whose choices were dropped"
            )
            close(trial, what, got[0], outputs[rank])
            what, known = (
                f"the part of the balancing loss on rank {rank}",
                {"as if of kept choices": kept[rank]},
            )
            named_mistakes(
                trial, what, got[1], balances[rank], known, "the loss of all choices, dropped or not"
            )
            close(trial, what, got[1], balances[rank])


# ---- training ---------------------------------------------------------------------------------


def training(trial, steps=3):
    width, tokens = 5, 24
    model = {
        "first": trial.floats(width, 4).double() / 2,
        "after_experts": trial.floats(3, width).double() / width**0.5,
        "blocks": {
            "one": layer_of(trial, width, 4, 12, 1),
            "other": layer_of(trial, width, 3, 12, 2),
        },
    }
    for layer in model["blocks"].values():
        layer["router"] = layer["router"].double()
        layer["experts"] = [{name: value.double() for name, value in one.items()} for one in layer["experts"]]
    batches = [[trial.floats(tokens, 4).double(), trial.floats(tokens, 3).double()] for _ in range(steps)]
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
            (more,), (part,) = mixture(layer, [value], weights[f"{at}router.weight"], experts)
            value, balance = value + more, balance + part
        output = value @ weights["after_experts.weight"].T
        loss = (output - targets).square().sum() / given["numbers"] + given["balance"] * balance
        loss.backward()
        losses.append(float(loss.detach()))
        now = {name: torch.zeros_like(one) if one.grad is None else one.grad for name, one in weights.items()}
        gradients = gradients or {name: value.clone() for name, value in now.items()}
        with torch.no_grad():
            for name, one in weights.items():
                one -= given["rate"] * now[name]
                one.grad = None
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
    """What this gradient would be, were it added up where it is not to be, or the other way round."""
    right, its = gradients[name], its_name(name, rank, local)
    if ".experts." not in name:
        came = [look(one, "gradients", name) for one in ranks]
        there = [torch.from_numpy(one) for one in came if isinstance(one, numpy.ndarray)]
        alike = len(there) == len(ranks) > 1 and all(one.shape == right.shape for one in there)
        known = {"the mean of all processes, not the sum": right / len(ranks)}
        if alike and near(sum(there).numpy(), right):
            known["this is this process's part"] = there[rank]
        return known
    before, _, after = name.partition(".experts.")
    key, place = after.partition(".")[2], int(its.rpartition(".experts.")[2].partition(".")[0])
    there = [gradients[f"{before}.experts.{one * local + place}.{key}"] for one in range(len(ranks))]
    return {
        "the gradients of a different expert on each process, added up": sum(there),
        "the mean of the gradients of a different expert on each process": sum(there) / len(ranks),
        "as if divided by the number of processes": right / len(ranks),
    }


def expected_sum(name):
    if ".experts." in name:
        return "the gradient of this expert, as backward left it"
    return "the parts of all processes, added up"


@check("16.4b")
def one_curve(trial):
    given = training(trial)
    losses, gradients, weights = one_process(given)
    for world_size in (1, 2, 3, 4):
        sizes, local = SPLITS[world_size], 12 // world_size
        trial.tried(
            f"{so_many(world_size, 'process')} with {' and '.join(map(str, sizes))} tokens, 3 steps of a"
            " model with two Mixtures of 12 experts, top_k 1 and 2 (float64)"
        )
        ranks = run(trial, "train", [own_training(given, rank, sizes) for rank in range(world_size)])
        for kind, right in (("gradients", gradients), ("weights", weights)):
            when = "in the first step" if kind == "gradients" else "after 3 steps"
            what = "the gradient of " if kind == "gradients" else ""
            for name, value in right.items():
                for rank, came in enumerate(ranks):
                    mine = its_name(name, rank, local)
                    if mine is None:
                        continue
                    got = look(came, kind, mine)
                    # An expert to which nothing came may have no gradient at all.
                    if got is None and kind == "gradients" and not value.any():
                        continue
                    words = f"{what}{name} on rank {rank} {when}"
                    if kind == "gradients":
                        known = mistakes(ranks, gradients, name, rank, local)
                        named_mistakes(trial, words, got, value, known, expected_sum(name))
                    close(trial, words, got, value, relative=1e-6)
        for step, loss in enumerate(losses):
            parts_of = [look(came, "losses", step) for came in ranks]
            there = [part for part in parts_of if isinstance(part, float)]
            what = f"the sum of all processes' losses in step {step + 1}"
            trial.require(len(there) == world_size, f"{what} has a part that is not a number", "numbers")
            trial.close(what, sum(there), loss, relative=1e-6)


# How much a process may have grown until the experts are made, since the look before the submission is
# loaded. If something is held there that is let go of later, too little is seen.
WARM = 4 << 20


def megabytes(value):
    return f"{value / 1e6:.1f} MB"


@check("16.4c")
def own_experts(trial):
    """Large experts: a process has to wait until it holds no more than its own, and has sent what is due."""
    counts, number, top_k, width, inside = (13, 24, 0, 30), 8, 2, 512, 1024
    world_size, local, one_expert = len(counts), 2, 8 * width * inside
    thin = [
        [[trial.floats(a, 2), trial.floats(2, b) / a**0.5] for a, b in ((width, inside), (inside, width))]
        for _ in range(number)
    ]
    router = trial.floats(number, width) / 8
    xs = [clear_rows(trial, count, width, router, top_k) for count in counts]
    aboves = [trial.floats(count, width) for count in counts]
    whole = number * one_expert
    trial.tried(
        f"4 processes with {' and '.join(map(str, counts))} tokens of {width} numbers, Mixture of {number}"
        f" experts of {megabytes(one_expert)}, top_k 2; memory and bytes sent as measured by the kernel"
    )
    one = Journey.__new__(Journey)
    one.world_size, one.local, one.counts, one.number = world_size, local, counts, number
    one.pairs = [choices_of(x.double() @ router.double().T, top_k) for x in xs]
    gates, back = own_demands(trial, one, width, whole)
    given = [
        {
            "thin": thin[rank * local :][:local],
            "router": router,
            "top_k": top_k,
            "x": xs[rank],
            "above": aboves[rank],
        }
        for rank in range(world_size)
    ]
    ranks = run(trial, "large", given, gates=gates)
    experts = []
    for expert, ((up, up_more), (down, down_more)) in enumerate(thin):
        times = gates[expert // local]["made"]["value"]
        experts.append(
            {"up": up.double() @ up_more.double() * times, "down": down.double() @ down_more.double()}
        )
    leaves = [x.double().requires_grad_() for x in xs]
    outputs, _ = mixture({"top_k": top_k, "capacity": None}, leaves, router.double(), experts)
    sum((out * above).sum() * back for out, above in zip(outputs, aboves, strict=True)).backward()
    for rank, came in enumerate(ranks):
        what = f"the output on rank {rank}"
        close(trial, what, look(came, "output"), outputs[rank], relative=1e-4)
        had = trial.asked(rank, "forward")["with"]
        close(trial, f"{what}, when it was asked for", had, outputs[rank], relative=1e-4)
        what = f"the gradient of x on rank {rank}"
        slope(trial, what, look(came, "x"), leaves[rank], relative=1e-4)
        had = trial.asked(rank, "backward")["with"]
        slope(trial, f"{what}, when it was asked for", had, leaves[rank], relative=1e-4)
    for source in range(world_size if trial.counted else 0):
        for target in set(range(world_size)) - {source}:
            rows = 2 * (one.count(source, target) + one.count(target, source))
            first, last = trial.asked(source, "made"), trial.mark(source, "@end")
            got = last["to"].get(target, 0) - first["to"].get(target, 0)
            most = allowed(rows, width, 6)
            trial.require(
                got <= most,
                f"forward and backward, rank {source} sent {got / 1000:.1f} kB to rank {target}",
                f"at most {most / 1000:.1f} kB: {rows_in_words(rows)} of {4 * width} bytes, and the counts",
            )


def own_demands(trial, one, width, whole):
    """The gates of each rank, and the number that all get between forward and backward."""
    names = ("before", "made", "forward", "backward")
    gates = [{name: {"value": trial.secret()} for name in names} for _ in range(one.world_size)]
    back = trial.secret()
    for rank, gate in enumerate(gates):
        gate["forward"]["value"] = back
        if not trial.counted:
            continue
        rows = sum(
            one.count(rank, other) + one.count(other, rank)
            for other in range(one.world_size)
            if other != rank
        )
        gate["before"] |= {"memory": WARM, "words": "before any expert was made"}
        for name, times, when in (
            ("forward", 1, "after forward"),
            ("backward", 2, "after backward"),
        ):
            most = times * whole / one.world_size + whole / 4
            share = f"about {megabytes(times * whole / one.world_size)} of memory, at most {megabytes(most)}"
            gate[name] |= {
                "memory": int(most),
                "memory since": "before",
                "sent": rows * 4 * width,
                "sent since": "made" if name == "forward" else "forward",
                "words": when,
                "expected": f"{share} (all experts are {megabytes(whole)}), and {rows_in_words(rows)} of"
                f" {4 * width} bytes sent to other processes",
            }
    return gates, back
