"""Exercise 16: experts on several processes, and tokens that travel to them.

| axis | checked in |
| --- | --- |
| world size 1 to 4 | 3a, 3b, 3c, 4b; 1 to 3: 2a, 4a |
| dtype | 1a, 2a, 2b, 3a to 3c, 4b: float64, too |
| memory layout | 1a, 3a to 3c: what is float64 is stored by columns |
| calls | 3a to 3c: several with other sizes; 4b: other numbers of tokens in each step |
| modes | 4a: evaluation |
| missing gradients | 4b: experts to which no token came |
| sizes | no tokens: 1a, 1c, 2a, 3a to 3c, 4a, 4b; no rows: 3a to 4b; uneven; capacity 0: 1c, 3a to 3c; \
answers wider or narrower than tokens: 3b, 3c, 4a |
| top_k | 1 to 3 in 1a, 1c; 1 and 2 elsewhere |
| equal logits | 1b |
| experts that change their rows in place | 4a |
| tied | 4b: a weight that two ordinary layers share |
| names | 4b: ordinary layers called after_experts and heads.experts, which are no experts |
| router with a bias | 4a to 4c |
| frozen parameters, parameters without a gradient | excluded by the docstring, except for experts |
| container, seeds | the functions take lists only, and know no seed |
"""

from collections import Counter
from functools import partial
from itertools import permutations, product
from types import SimpleNamespace

import pytest
import torch
from give_back import free_memory, own_pages
from grader.testing import close, floats, integers, require, run, same, so_many, tried
from torch import nn
from torch.nn.functional import gelu

# ---- what runs in each rank: a body, and what it mentions of this file


def by_columns(value):
    """The same numbers; those of float64 are in memory column by column."""
    return value.T.contiguous().T if value.dtype == torch.float64 else value


def route(student, me, cases):
    """Some routes, and the gradient of the logits where the weights are as many as they are to be."""
    found = []
    for case in cases:
        logits = by_columns(case["logits"]).requires_grad_()
        came = student.route(logits, case["top_k"], case["capacity"])
        weights = came[2] if isinstance(came, list | tuple) and len(came) == 3 else None
        if torch.is_tensor(weights) and weights.shape == case["above"].shape and weights.requires_grad:
            weights.backward(case["above"])
        found.append({"came": came, "gradient": logits.grad})
    return found


def balance(student, me, given):
    """A part of the balancing loss, and what has been sent for it."""
    logits = given["logits"].requires_grad_()
    part = student.balancing_loss(logits, given["chosen"])
    sent = [me.sent(to=other) for other in range(me.world_size)]
    if torch.is_tensor(part) and part.requires_grad and part.numel() == 1:
        part.backward()
    return {"part": part, "gradient": logits.grad, "sent": sent}


def dispatch(student, me, cases):
    """Tokens to their experts."""
    found = []
    for case in cases:
        words = by_columns(case["x"]).requires_grad_(), case["tokens"], case["experts"], case["number"]
        came = student.dispatch(*words)
        arrived = came[0] if isinstance(came, list | tuple) and len(came) == 2 else None
        found.append({"arrived": arrived, "kind": type(arrived).__name__})
    return found


class Expert(nn.Module):
    """A feed-forward layer, as the lesson's experts are. On wish, it begins with nn.ReLU(inplace=True)."""

    def __init__(self, up, down, in_place=False):
        super().__init__()
        self.up, self.down, self.in_place = nn.Parameter(up), nn.Parameter(down), in_place

    def forward(self, x):
        return gelu((x.relu_() if self.in_place else x) @ self.up) @ self.down


def there_and_back(student, me, cases):
    """Tokens to their experts, and back; with `above`, their gradients too. And bytes that were sent."""
    found = []
    for case in cases:
        x, weights = by_columns(case["x"]).requires_grad_(), case["weights"].requires_grad_()
        experts, marks = [Expert(**one) for one in case["matrices"]], [len(me.calls)]
        arrived, plan = student.dispatch(x, case["tokens"], case["experts"], case["number"])
        marks.append(len(me.calls))
        answers = [expert(rows) for rows, expert in zip(arrived, experts, strict=True)]
        output = student.combine(answers, plan, weights)
        marks.append(len(me.calls))
        if "above" in case:
            output.backward(by_columns(case["above"]))
        sent = [[me.sent(mark, other) for other in range(me.world_size)] for mark in [*marks, len(me.calls)]]
        slopes = [[one.up.grad, one.down.grad] for one in experts]
        came = {"output": output, "x": x.grad, "weights": weights.grad, "experts": slopes, "sent": sent}
        found.append(came)
    return found


def linear(weight, bias=None):
    layer = nn.Linear(*reversed(weight.shape), bias=bias is not None)
    layer.weight = nn.Parameter(weight)
    if bias is not None:
        layer.bias = nn.Parameter(bias)
    return layer


def mixture_of(student, given):
    experts = [Expert(**one) for one in given["experts"]]
    return student.Mixture(linear(*given["router"]), experts, given["top_k"], given["capacity"])


def layer(student, me, given):
    """One Mixture, forward."""
    return mixture_of(student, given["layer"]).train(not given["evaluation"])(given["x"].requires_grad_())


class Model(nn.Module):
    """Ordinary layers, two of which share a weight, and Mixtures of the student's between them."""

    def __init__(self, student, given):
        super().__init__()
        self.first, self.after_experts = linear(given["first"]), linear(given["after_experts"])
        self.blocks = nn.ModuleDict({name: mixture_of(student, one) for name, one in given["blocks"].items()})
        self.last = linear(given["after_experts"])
        self.last.weight = self.after_experts.weight
        self.heads = nn.ModuleDict({"experts": linear(given["after_experts"])})

    def forward(self, x):
        x, balance = self.first(x), 0
        for block in self.blocks.values():
            more, part = block(x)
            x, balance = x + more, balance + part
        return self.after_experts(x) + self.last(x.tanh()) + self.heads["experts"](x.sin()), balance


def train(student, me, given):
    """Some steps of training: parts of losses, gradients after add_up_gradients, weights at the end."""
    model, losses, gradients = Model(student, given["model"]), [], None
    for x, targets in given["batches"]:
        model.zero_grad()
        output, balance = model(x)
        loss = (output - targets).square().sum() / given["numbers"] + given["balance"] * balance
        loss.backward()
        student.add_up_gradients(model)
        named = dict(model.named_parameters())
        gradients = gradients or {n: p.grad if p.grad is None else p.grad.clone() for n, p in named.items()}
        with torch.no_grad():  # torch.optim would take the grader's process seconds to import
            for parameter in model.parameters():
                parameter -= 0 if parameter.grad is None else given["rate"] * parameter.grad
        losses.append(loss)
    return {"losses": losses, "gradients": gradients, "weights": named, "part": balance}


def large(student, me, given):
    """A Mixture of large experts, made here of thin matrices: those of this process only. What the process
    holds after each pass, and what it has sent."""
    own_pages()
    free_memory()
    start, held = me.memory(), []
    experts = [Expert(*(one @ other for one, other in thin)) for thin in given["thin"]]
    layer = student.Mixture(linear(*given["router"]), experts, given["top_k"], None)
    x = given["x"].requires_grad_()
    output, _ = layer(x)
    free_memory()
    held.append(me.memory() - start)
    output.backward(given["above"])
    free_memory()
    held.append(me.memory() - start)
    sent = [me.sent(to=other) for other in range(me.world_size)]
    return {"output": output, "x": x.grad, "held": held, "sent": sent}


# ---- what is right


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


def distinct(count, number, bias=None):
    """Logits of which no two of a token are nearly equal: rounding cannot change their order."""
    logits = torch.rand(count, number).argsort(dim=1) * 0.4 + 0.15 * floats(count, number).clamp(-1, 1)
    return logits if bias is None else logits + torch.tensor(bias)


def weighted(x, pairs, weights, experts):
    """Each token's answers times their weights, added up."""
    total = x.new_zeros(len(x), experts[0].down.shape[1])
    for number, expert in enumerate(experts):
        mine = [entry for entry, (_, one) in enumerate(pairs) if one == number]
        tokens = torch.tensor([pairs[entry][0] for entry in mine], dtype=torch.int64)
        total = total.index_add(0, tokens, weights[mine][:, None] * expert(x[tokens]))
    return total


class Whole(nn.Module):
    """A Mixture on one process, which has all experts."""

    def __init__(self, router, experts, top_k, capacity):
        super().__init__()
        self.router, self.experts = router, nn.ModuleList(experts)
        self.top_k, self.capacity = top_k, capacity

    def forward(self, x):
        logits = self.router(x)
        pairs = choices_of(logits, self.top_k, self.capacity)
        output = weighted(x, pairs, softmax(logits)[two(pairs)], self.experts)
        return output, parts([logits], [two(choices_of(logits, self.top_k))[1]])[0][0]


REFERENCE = SimpleNamespace(Mixture=Whole, add_up_gradients=lambda model: None)


def double(value):
    """A copy in which every tensor of floats is float64."""
    if isinstance(value, dict):
        return {name: double(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [double(one) for one in value]
    return value.double().clone() if torch.is_tensor(value) else value


def leaves(values):
    return [value.double().clone().requires_grad_() for value in values]


def slope(what, got, leaf, **more):
    """Compare a gradient. Where nothing depends on a tensor, or it is empty, there may be none."""
    right = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    if got is not None or right.any():
        close(what, got, right, **more)


def near(got, value):
    value = value.detach().double()
    most = float(value.abs().max()) if value.numel() else 0
    is_alike = torch.is_tensor(got) and got.shape == value.shape
    return is_alike and torch.allclose(got.double(), value, rtol=0, atol=2e-5 * max(most, 0.05))


def close_or_named(what, got, right, known, expected, **more):
    """Compare; if what came is wrong in a way that is known, say in which. `known`: words, and what it would
    be."""
    if not near(got, right):
        for words, value in known.items():
            require(not near(got, value), f"{what}: {words}", expected)
    close(what, got, right, **more)


def same_row(row, other):
    return row.shape == other.shape and torch.allclose(row.double(), other.double(), rtol=0, atol=1e-5)


def in_turn(counts):
    return " and ".join(map(str, counts))


def listed(numbers):
    return ", ".join(map(str, numbers))


def named(experts):
    return f"expert{'s' * (len(experts) > 1)} {listed(experts)}" if experts else "no expert"


# ---- 16.1


def check_routes(cases, words):
    """Route some logits in one process, and compare choices, order, weights and gradients."""
    tried(words)
    given = [
        {"logits": one, "top_k": k, "capacity": most}
        | {"above": floats(len(choices_of(one, k, most))).to(one.dtype)}
        for one, k, most in cases
    ]
    for one, came in zip(given, run(route, [given])[0], strict=True):
        compare_route(one, **came)


def compare_route(given, came, gradient):
    logits, top_k, capacity = given["logits"], given["top_k"], given["capacity"]
    count, number = logits.shape
    limit = "" if capacity is None else f", capacity {capacity}"
    where = f"for {so_many(count, 'token')}, {so_many(number, 'expert')}, top_k {top_k}{limit}"
    shapes = [one.shape if torch.is_tensor(one) else None for one in came] if isinstance(came, list) else []
    shown = (" x ".join(map(str, one)) or "no dimension" if one is not None else "?" for one in shapes)
    gave = f"tensors of {', '.join(shown)}" if shapes else "something other than three tensors"
    require(
        len(shapes) == 3 and len(set(shapes)) == 1 and len(shapes[0] or ()) == 1,
        f"route {where} gave {gave}",
        "three tensors of one dimension, all of the same length: tokens, experts, weights",
    )
    pairs = list(zip(came[0].tolist(), came[1].tolist(), strict=True))
    wanted = choices_of(logits, top_k, capacity)
    if pairs != wanted:
        wrong_route(given, pairs, wanted, where)
    tokens, experts = two(wanted)
    leaf = logits.double().clone().requires_grad_()
    weights = softmax(leaf)[tokens, experts]
    sums = torch.zeros(count, dtype=torch.float64).index_add(0, tokens, weights)
    known = {
        "the weights of each token add up to 1": weights / sums[tokens],
        "the softmax is taken over the tokens": leaf.softmax(dim=0)[tokens, experts],
    }
    close_or_named(f"the weights {where}", came[2], weights, known, "the softmax over all experts")
    close(f"the dtype of the weights {where}", came[2], weights, dtype=logits.dtype)
    if len(tokens):
        weights.backward(given["above"].double())
        close(f"the gradient of the logits {where}", gradient, leaf.grad)


def wrong_route(given, pairs, wanted, where):
    """Say what is wrong with the choices that came, the simplest thing first."""
    top_k, capacity, rows = given["top_k"], given["capacity"], given["logits"].tolist()
    for token, row in enumerate(rows):
        first, went = sorted(ranking(row)[:top_k]), sorted(expert for one, expert in pairs if one == token)
        fine = went == first if capacity is None else set(went) <= set(first)
        scores = ", ".join(f"{value:.3g}" for value in row)
        came = f"{where}: token {token}, with the logits {scores}, goes to {named(went)}"
        require(fine, came, named(first) + ("" if capacity is None else ", or nowhere"))
    experts = [expert for _, expert in pairs]
    right = "first all entries for expert 0, then all for expert 1, and so on"
    require(experts == sorted(experts), f"{where}: experts is {experts}", right)
    for expert in range(given["logits"].shape[1]):
        got, right = ([token for token, one in some if one == expert] for some in (pairs, wanted))
        if got == right:
            continue
        if capacity is not None:
            came = f"{where}: expert {expert} gets {so_many(len(got), 'token')}"
            require(len(got) <= capacity, came, f"at most {capacity}")
        firsts = [token for token, row in enumerate(rows) if ranking(row)[0] == expert]
        more = f" (it is the first choice of {listed(firsts) or 'none'})" * (top_k > 1)
        got, right, order = listed(got), listed(right), ", in this order" * (sorted(got) == sorted(right))
        came = f"{where}: the tokens of expert {expert} are {got or 'none'}{order}"
        require(False, came, f"{right or 'none'}{order}{more}")
    same(f"{where}: the pairs (token, expert) of all entries", pairs, wanted)


def test_1a_choices():
    check_routes([(distinct(7, 4), 1, None)], "7 tokens, 4 experts, top_k 1, no capacity")
    cases = [
        (distinct(9, 5), 2, None),
        (distinct(6, 5).double(), 3, None),
        (distinct(8, 4, [-9.0, 0.0, 0.0, 0.0]), 1, None),
        (distinct(6, 4, [0.0, 0.0, 9.0, 0.0]), 2, None),
        (torch.zeros(0, 3), 2, None),
    ]
    words = "9 and 6 tokens, 5 experts; none for expert 0; all for expert 2; no tokens"
    check_routes(cases, f"top_k 1 to 3, no capacity: {words}")


def test_1b_equal_logits():
    few, more = integers(0, 3, 12, 4).float(), integers(0, 2, 20, 6).float()
    far = distinct(5, 4) * 400  # only one expert's softmax is not 0 then, but no logits are equal
    # A sort that is not stable keeps the order of up to 16 equal numbers.
    cases = [(few, 1, None), (more, 2, None), (torch.zeros(3, 40), 2, None), (far, 2, None)]
    words = "12 tokens, 4 experts, top_k 1, and 20, 6, 2, where many logits are equal; all equal; far apart"
    check_routes(cases, words)


def test_1c_capacity():
    check_routes([(distinct(9, 3), 1, 2)], "9 tokens, 3 experts, top_k 1, capacity 2")
    # Expert 1 is the first choice of late tokens and the second choice of early ones.
    early, late = distinct(4, 3, [9.0, 5.0, 0.0]), distinct(4, 3, [0.0, 9.0, 5.0])
    cases = [
        (torch.cat([early, late]), 2, 5),
        (distinct(10, 4), 2, 1),
        (distinct(8, 4), 3, 4),
        (distinct(5, 4), 2, 50),
        (torch.zeros(0, 4), 1, 2),
        (distinct(5, 4), 2, 0),
    ]
    words = "8 tokens, 3 experts, capacity 5; 10, 4, 1; top_k 3: 8, 4, 4"
    check_routes(cases, f"top_k 2: {words}; top_k 2: 5, 4, 50 (nothing is dropped) and 0; no tokens")


# ---- 16.2


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


def check_balance(counts, number, top_k, gradients):
    world_size, dtype = len(counts), torch.float64 if top_k == 2 else torch.float32
    processes = f"{so_many(world_size, 'process')} with {in_turn(counts)} tokens"
    tried(f"{processes}, {number} experts, top_k {top_k}{' (float64)' * (top_k == 2)}")
    logits = [distinct(count, number).to(dtype) for count in counts]
    # Not those of the logits: what is asked for is what is done with them.
    chosen = [integers(0, number - 1, count * top_k) for count in counts]
    given = [{"logits": one, "chosen": its} for one, its in zip(logits, chosen, strict=True)]
    ranks, xs = run(balance, given), leaves(logits)
    right, known = parts(xs, chosen)
    for rank, came in enumerate(ranks):
        what, part = f"the part of the balancing loss on rank {rank}", came["part"]
        is_tensor = part is None or torch.is_tensor(part)
        require(is_tensor, f"{what} is not a tensor ({type(part).__name__})", "a tensor of one number")
        if gradients:
            right[rank].backward()
            close(f"the gradient of the logits on rank {rank}", came["gradient"], xs[rank].grad)
        else:
            expected, relative = f"{float(right[rank].detach()):.6g}", 1e-10 if top_k == 2 else 2e-5
            close_or_named(what, part, right[rank], known[rank], expected, relative=relative)
            close(f"the dtype of {what}", part, right[rank], dtype=dtype)
    # No process has told another one its logits, or which token has chosen what. A call for each expert's
    # count is enough for all, and which expert each token has chosen would be more, a byte each.
    for rank, other in permutations(range(world_size), 2):
        sent, most = ranks[rank]["sent"][other], (number + 2) * 1000
        came = f"rank {rank} sent {sent:.0f} bytes to rank {other}"
        require(sent <= most, came, f"at most {most}, however many tokens there are: only counts")


# In the last case, the logits or the choices of all tokens are far more than their counts.
BALANCES = [((5, 8, 3), 4, 1), ((6, 0), 3, 2), ((7,), 5, 2), ((12000, 11000), 8, 1)]


@pytest.mark.parametrize(("counts", "number", "top_k"), BALANCES)
def test_2a_parts_of_the_balancing_loss(counts, number, top_k):
    check_balance(counts, number, top_k, False)


@pytest.mark.parametrize(("counts", "number", "top_k"), BALANCES[:2])
def test_2b_gradient_of_the_balancing_loss(counts, number, top_k):
    check_balance(counts, number, top_k, True)


# ---- 16.3


def experts_of(number, width, inside, out):
    """The matrices of some experts."""
    ups = [floats(width, inside) / width**0.5 for _ in range(number)]
    return [{"up": up, "down": floats(inside, out) / inside**0.5} for up in ups]


class Plan:
    """Which tokens of all ranks go to which experts."""

    def __init__(self, counts, number, pairs):
        self.counts, self.number, self.world_size, self.pairs = counts, number, len(counts), pairs
        self.local = number // len(counts)

    def own(self, experts, rank):
        """Of something for each expert, what is for those of a process."""
        return experts[rank * self.local :][: self.local]

    def due(self, source, target, way=2):
        """How many rows are to go from one process to another: to the experts, back, and both ways."""
        there, back = (
            sum(expert // self.local == other for _, expert in self.pairs[one])
            for one, other in ((source, target), (target, source))
        )
        return (there, back, there + back)[way]


class Journey(Plan):
    """Tokens of all ranks, and where they go."""

    def __init__(self, words, counts, number, top_k, width, bias=None, capacity=None, is_double=False, out=2):
        kind = torch.float64 if is_double else torch.float32
        logits = [distinct(count, number, bias) for count in counts]
        super().__init__(counts, number, [choices_of(one, top_k, capacity) for one in logits])
        self.x, self.above = ([floats(count, some).to(kind) for count in counts] for some in (width, out))
        each = zip(logits, self.pairs, strict=True)
        self.weights = [softmax(one)[two(pairs)].to(kind) for one, pairs in each]
        self.matrices = [{k: v.to(kind) for k, v in one.items()} for one in experts_of(number, width, 3, out)]
        choices = so_many(sum(map(len, self.pairs)), "choice")
        self.words = (
            f"{so_many(self.world_size, 'process')} with {in_turn(counts)} tokens of {width} numbers"
            f" (float{'64, stored by columns' if is_double else 32}), {number} experts, {choices}; {words}"
        )

    def case(self, rank, *more):
        tokens, experts = two(self.pairs[rank])
        mine = {"weights": self.weights[rank], "matrices": self.own(self.matrices, rank)}
        mine |= {"above": self.above[rank]}
        case = {"x": self.x[rank], "tokens": tokens, "experts": experts, "number": self.number}
        return case | {name: mine[name] for name in more}

    def for_expert(self, expert):
        """Rows that it gets: (rank, token), in the order in which they arrive."""
        return [
            (rank, token) for rank, pairs in enumerate(self.pairs) for token, one in pairs if one == expert
        ]

    def rows(self, expert):
        mine = [two([pair for pair in pairs if pair[1] == expert])[0] for pairs in self.pairs]
        return torch.cat([x[tokens] for x, tokens in zip(self.x, mine, strict=True)]).double()

    def outputs(self, xs, weights, experts):
        each = zip(xs, self.pairs, weights, strict=True)
        return [weighted(x, pairs, own, experts) for x, pairs, own in each]


# In groups of as many processes: a plain one first, then what may be empty, full or dropped.
JOURNEYS = [
    [partial(Journey, "one expert on each process", (4, 6), 2, 1, 3)],
    [
        partial(Journey, "two experts on each process", (5, 3, 6), 6, 1, 4),
        # More than 16 rows: a sort that is not stable keeps the order of fewer.
        partial(Journey, "all tokens go to expert 0", (15, 4, 16), 3, 1, 3, bias=[9.0, 0.0, 0.0]),
    ],
    [partial(Journey, "one process has no tokens", (6, 0, 5, 1), 4, 1, 3)],
    [
        partial(Journey, "some choices were dropped", (7, 4), 4, 2, 3, capacity=1, is_double=True),
        partial(Journey, "no tokens go to experts 2 and 3", (4, 5), 4, 1, 3, bias=[0.0, 0.0, -9.0, -9.0]),
        partial(Journey, "no tokens at all", (0, 0), 2, 1, 3),
        partial(Journey, "all choices were dropped", (3, 2), 2, 1, 3, capacity=0),
    ],
    [partial(Journey, "one process", (6,), 3, 2, 3)],
]


def each_of(group, body, *more):
    """Each of some journeys of as many processes, made in one run, and what came of it on each rank."""
    drawn = [one() for one in group]
    tried("; then ".join(one.words for one in drawn))
    ranks = run(body, [[one.case(rank, *more) for one in drawn] for rank in range(drawn[0].world_size)])
    for number, one in enumerate(drawn):
        tried(one.words)
        yield one, [came[number] for came in ranks]


@pytest.mark.parametrize("group", JOURNEYS)
def test_3a_each_row_arrives_at_its_expert(group):
    for one, ranks in each_of(group, dispatch):
        for rank, came in enumerate(ranks):
            compare_arrived(one, rank, **came)


def compare_arrived(one, rank, arrived, kind):
    a_list = kind in ("list", "tuple")
    require(
        a_list and len(arrived) == one.local,
        f"on rank {rank}, arrived is a {kind}" + (f" of {so_many(len(arrived), 'thing')}" if a_list else ""),
        f"a list with {so_many(one.local, 'tensor')}: one for each expert of this process",
    )
    everything = [one.rows(expert) for expert in range(one.number)]
    for place, got in enumerate(arrived):
        expert = rank * one.local + place
        what, right = f"for expert {expert} (arrived[{place}] on rank {rank})", everything[expert]
        require(torch.is_tensor(got), f"what came {what} is not a tensor", "a tensor")
        sources = sorted(Counter(source for source, _ in one.for_expert(expert)).items())
        words = ", ".join(f"{count} from rank {source}" for source, count in sources)
        expected = so_many(len(right), "row") + f": {words}" * bool(words)
        require(got.ndim == 2, f"what came {what} has {got.ndim} dimensions", f"2: {expected}")
        for other, rows in enumerate(everything):
            mixed = other != expert and len(rows) and near(got, rows)
            require(not mixed, f"what came {what} are the rows for expert {other}", expected)
        require(len(got) == len(right), f"{so_many(len(got), 'row')} came {what}", expected)
        if not near(got, right):
            order = ", ".join(f"token {token} of rank {source}" for source, token in one.for_expert(expert))
            came = f"the rows that came {what} are right, but not their order"
            require(sorted(got.double().tolist()) != sorted(right.tolist()), came, order)
            strangers(one, expert, f"what came {what}", got)
        close(f"what came {what}", got, right, dtype=one.x[0].dtype)


def strangers(one, expert, what, got):
    """If a row is of a token that goes somewhere else, say of which."""
    tokens = [(source, token, own) for source, x in enumerate(one.x) for token, own in enumerate(x)]
    for place, row in enumerate(got):
        for source, token, own in tokens:
            if same_row(row, own):
                goes = [its for other, its in one.pairs[source] if other == token]
                came = f"row {place} of {what} is token {token} of rank {source}"
                require(expert in goes, came, f"this token goes to {named(goes)}")


@pytest.mark.parametrize("group", JOURNEYS)
def test_3b_answers_come_back_weighted(group):
    for one, ranks in each_of(group, there_and_back, "weights", "matrices"):
        compare_outputs(one, ranks)


@pytest.mark.parametrize("group", JOURNEYS)
def test_3c_gradients_travel_the_same_path(group):
    for one, ranks in each_of(group, there_and_back, "weights", "matrices", "above"):
        compare_gradients(one, ranks)


def compare_outputs(one, ranks):
    xs, weights = double(one.x), double(one.weights)
    experts = [Expert(**double(matrices)).requires_grad_(False) for matrices in one.matrices]
    right = one.outputs(xs, weights, experts)
    plain = one.outputs(xs, [torch.ones_like(value) for value in weights], experts)
    for rank, came in enumerate(ranks):
        what, got = f"the output of combine on rank {rank}", came["output"]
        if torch.is_tensor(got) and got.shape == right[rank].shape and not near(got, plain[rank]):
            wrong_rows(one, rank, got, right[rank], weights, experts)
        known = {"as if all weights were 1": plain[rank]}
        close_or_named(what, got, right[rank], known, "each answer times the weight of its choice")
        close(f"the dtype of {what}", got, right[rank], dtype=one.x[0].dtype)


def compare_gradients(one, ranks):
    xs, weights = leaves(one.x), leaves(one.weights)
    experts = [Expert(**double(matrices)) for matrices in one.matrices]
    outputs = one.outputs(xs, weights, experts)
    sum((out * above).sum() for out, above in zip(outputs, one.above, strict=True)).backward()
    digits = 1e-12 if one.x[0].dtype == torch.float64 else 2e-5
    for rank, came in enumerate(ranks):
        slope(f"the gradient of x on rank {rank}", came["x"], xs[rank], relative=digits)
        slope(f"the gradient of weights on rank {rank}", came["weights"], weights[rank], relative=digits)
        for place, expert in enumerate(one.own(experts, rank)):
            what = f"the gradient of expert {rank * one.local + place} (on rank {rank})"
            for got, leaf in zip(came["experts"][place], (expert.up, expert.down), strict=True):
                slope(what, got, leaf, relative=digits)


def wrong_rows(one, rank, got, right, weights, experts):
    """If one token's row is not right, say whose it is, or which of its choices is missing."""
    token = next((token for token, row in enumerate(got) if not same_row(row, right[token])), None)
    if token is None:
        return
    row, gives = got[token], f"token {token} on rank {rank}: combine gives it"
    mine = [(entry, expert) for entry, (its, expert) in enumerate(one.pairs[rank]) if its == token]
    came = f"token {token} on rank {rank} has lost all its choices, but combine gives it {row.tolist()}"
    require(mine, came, "zeros")
    x = one.x[rank][token].double()
    for entry, expert in mine if len(mine) > 1 else ():
        only = same_row(row, weights[rank][entry] * experts[expert](x))
        words = f"the sum of the answers of experts {listed(expert for _, expert in mine)}"
        require(not only, f"{gives} the answer of expert {expert} alone", words)
    for other, its in enumerate(right):
        taken = other != token and its.any() and same_row(row, its)
        require(not taken, f"{gives} the row of token {other}", "its own row")
    every = [(source, *pair) for source, pairs in enumerate(one.pairs) for pair in pairs]
    for source, other, expert in every if len(mine) == 1 else ():
        its = weights[rank][mine[0][0]] * experts[expert](one.x[source][other].double())
        came = f"{gives} the answer to token {other} of rank {source}"
        amiss = (source, other) != (rank, token) and same_row(row, its)
        require(not amiss, came, f"the answer of expert {mine[0][1]} to the token itself")


COUNTS = 1500  # bytes from one process to another for the counts, in each trip
WAYS = ("dispatch", "combine", "the backward pass")
TRAFFIC = [
    partial(Journey, "bytes of all calls", (9, 4, 0), 6, 2, 2048, [0.0, 1.0, -9.0, -9.0, 2.0, 0.0], out=2048),
    partial(Journey, "bytes of all calls", (6, 7, 3, 5), 4, 2, 2048, [2.0, 0.0, 0.0, 0.0], out=2048),
]


@pytest.mark.parametrize("journey", TRAFFIC)
def test_3d_only_necessary_rows_travel(journey):
    ((one, ranks),) = each_of([journey], there_and_back, "weights", "matrices", "above")
    compare_outputs(one, ranks)
    compare_gradients(one, ranks)
    for way, (source, target) in product(range(3), permutations(range(one.world_size), 2)):
        sent = [since[target] for since in ranks[source]["sent"]]
        got, rows = sent[way] - sent[way + 1], one.due(source, target, way)
        what = f"in {WAYS[way]}, rank {source} sent {got / 1000:.1f} kB to rank {target}"
        many = f" ({got / 4 / 2048:.0f} rows)" if got > 4 * 2048 else ""
        more = COUNTS * (2 if way == 2 else 1)
        expected = (
            f"{so_many(rows, 'row')} of {4 * 2048 / 1000:.1f} kB, and at most {more / 1000:.1f} kB more"
        )
        require(got <= rows * 4 * 2048 + more, what + many, expected)


# ---- 16.4


def layer_of(width, inside, number, top_k, capacity=None, out=None):
    more = {"top_k": top_k, "capacity": capacity}
    router = floats(number, width), floats(number) / 2
    return {"router": list(router), "experts": experts_of(number, width, inside, out or width), **more}


def own_layer(layer, rank, world_size):
    local = len(layer["experts"]) // world_size
    return layer | {"experts": layer["experts"][rank * local :][:local]}


def clear_rows(count, router, top_k):
    """Tokens whose choices no rounding can change."""
    rows, (weight, bias) = [], double(router)
    while len(rows) < count:
        row = floats(weight.shape[1])
        best = (weight @ row.double() + bias).sort(descending=True).values[: top_k + 1]
        if len(best) < 2 or float((best[:-1] - best[1:]).min()) > 0.01:
            rows.append(row)
    return torch.stack(rows) if rows else floats(0, weight.shape[1])


# In the second case, some experts get no token, they change their rows in place, and answers are wider than
# tokens; in the third, answers are narrower.
LAYERS = [((5, 6), 4, 1, None, 4), ((2, 0, 3), 12, 2, None, 7), ((8, 9), 2, 1, 3, 3)]


@pytest.mark.parametrize(("counts", "number", "top_k", "limit", "out"), LAYERS)
def test_4a_the_layer(counts, number, top_k, limit, out):
    given, in_place = layer_of(4, 6, number, top_k, limit, out), out > 4
    given["experts"] = [one | {"in_place": in_place} for one in given["experts"]]
    xs = [clear_rows(count, given["router"], top_k) for count in counts]
    tried(
        f"{len(counts)} processes with {in_turn(counts)} tokens of 4 numbers,"
        f" Mixture of {number} experts, top_k {top_k}, capacity {limit}, answers of {out} numbers"
        f"{' (in evaluation mode)' * (limit is not None)}"
        f"{'; the experts begin with nn.ReLU(inplace=True)' * in_place}"
    )
    jobs = [{"layer": own_layer(given, rank, len(counts)), "x": x} for rank, x in enumerate(xs)]
    ranks = run(layer, [job | {"evaluation": limit is not None} for job in jobs])
    with torch.no_grad():
        whole, xs = mixture_of(REFERENCE, double(given)), double(xs)
        outputs, logits = [whole(x)[0] for x in xs], [whole.router(x) for x in xs]
        whole.capacity = None
        unlimited = [whole(x)[0] for x in xs]
    balances, _ = parts(logits, [two(choices_of(one, top_k))[1] for one in logits])
    kept, _ = parts(logits, [two(choices_of(one, top_k, limit))[1] for one in logits])
    for rank, came in enumerate(ranks):
        things = so_many(len(came) if isinstance(came, list) else 1, "thing")
        is_pair = isinstance(came, list) and len(came) == 2
        require(is_pair, f"a Mixture returned {things}", "(output, balancing loss)")
        known = {} if limit is None else {"as if nothing had been dropped": unlimited[rank]}
        words = "zeros for tokens whose choices were dropped"
        close_or_named(f"the output on rank {rank}", came[0], outputs[rank], known, words)
        what, words = f"the part of the balancing loss on rank {rank}", "as if of kept choices"
        expected = "the loss of all choices, dropped or not"
        close_or_named(what, came[1], balances[rank], {words: kept[rank]}, expected)


# A process may have few tokens, or none.
SPLITS = {1: (24,), 2: (15, 9), 3: (11, 0, 13), 4: (6, 9, 2, 7)}


def training(steps=3):
    width, tokens = 5, 24
    first, after = floats(width, 4) / 2, floats(3, width) / width**0.5
    blocks = {"one": layer_of(width, 4, 12, 1), "other": layer_of(width, 3, 12, 2)}
    batches = [[floats(tokens, 4), floats(tokens, 3)] for _ in range(steps)]
    model = {"first": first, "after_experts": after, "blocks": blocks}
    return double({"model": model, "batches": batches, "rate": 0.2, "numbers": 3 * tokens, "balance": 0.3})


def own_training(given, rank, sizes):
    """What a rank gets: its experts, and its tokens, as many as the next rank had in the step before."""
    batches = []
    for step, (x, y) in enumerate(given["batches"]):
        these = [*sizes[step % len(sizes) :], *sizes[: step % len(sizes)]]
        batches.append([x.split(these)[rank].clone(), y.split(these)[rank].clone()])
    blocks = {name: own_layer(one, rank, len(sizes)) for name, one in given["model"]["blocks"].items()}
    return given | {"model": given["model"] | {"blocks": blocks}, "batches": batches}


def is_experts(name):
    return ".experts." in name and not name.startswith("heads.")


def its_name(name, rank, local):
    """What a parameter is called on a rank; None if that rank does not have it."""
    if not is_experts(name):
        return name
    before, _, after = name.partition(".experts.")
    number, _, key = after.partition(".")
    place = int(number) - rank * local
    return f"{before}.experts.{place}.{key}" if 0 <= place < local else None


def mistakes(ranks, gradients, name, rank, local):
    """What this gradient would be, were it added up where it is not to be, or the other way round; and words
    for what is expected."""
    right, count = gradients[name], len(ranks)
    if not is_experts(name):
        there = [one["gradients"][name] for one in ranks]
        there = [one for one in there if torch.is_tensor(one) and one.shape == right.shape]
        known = {"the mean of all processes, not the sum": right / count}
        if len(there) == count > 1 and near(sum(there), right):
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


@pytest.mark.parametrize("world_size", SPLITS)
def test_4b_one_curve(world_size):
    given, sizes, local = training(), SPLITS[world_size], 12 // world_size
    one = train(REFERENCE, None, double(given))
    gradients = {
        name: torch.zeros_like(one["weights"][name]) if its is None else its
        for name, its in one["gradients"].items()
    }
    tried(
        f"{so_many(world_size, 'process')} with {in_turn(sizes)} tokens (in the next step, those of the next"
        " process), 3 steps of a model with two Mixtures of 12 experts, top_k 1 and 2 (float64)"
    )
    ranks = run(train, [own_training(given, rank, sizes) for rank in range(world_size)])
    every = [(name, rank, its_name(name, rank, local)) for name in gradients for rank in range(world_size)]
    every = [(name, rank, mine) for name, rank, mine in every if mine]
    for name, rank, mine in every:
        got, right = ranks[rank]["gradients"][mine], gradients[name]
        # An expert to which nothing came may have no gradient at all.
        if got is not None or right.any():
            what = f"the gradient of {name} on rank {rank} in the first step"
            known, expected = mistakes(ranks, gradients, name, rank, local)
            close_or_named(what, got, right, known, expected, relative=1e-6)
    for name, rank, mine in every:
        what, got = f"{name} on rank {rank} after 3 steps", ranks[rank]["weights"][mine]
        close(what, got, one["weights"][name], relative=1e-6)
    for step, loss in enumerate(one["losses"]):
        what = f"the sum of all processes' losses in step {step + 1}"
        close(what, sum(came["losses"][step] for came in ranks), loss, relative=1e-6)
    for rank, came in enumerate(ranks):
        what = f"the dtype of the part of the balancing loss on rank {rank}"
        same(what, str(came["part"].dtype), "torch.float64")


def megabytes(value):
    return f"{value / 1e6:.1f} MB"


def test_4c_own_experts_only():
    """4 processes with 13 and 24 and 0 and 30 tokens of 512 numbers, Mixture of 8 experts of 4.2 MB, top_k 2;
    memory as the kernel counts it, and bytes of all calls of torch.distributed"""
    counts, number, top_k, width, inside = (13, 24, 0, 30), 8, 2, 512, 1024
    shapes = (width, inside), (inside, width)
    thin = [[[floats(a, 2), floats(2, b) / a**0.5] for a, b in shapes] for _ in range(number)]
    router = [floats(number, width) / 8, floats(number) / 8]
    xs, aboves = [clear_rows(count, router, top_k) for count in counts], [floats(c, width) for c in counts]
    experts = [Expert(*(one @ other for one, other in double(matrices))) for matrices in thin]
    whole, leaf = Whole(linear(*double(router)), experts, top_k, None), leaves(xs)
    plan = Plan(counts, number, [choices_of(whole.router(x), top_k) for x in leaf])
    given = [
        {"thin": plan.own(thin, rank), "router": router, "top_k": top_k, "x": x, "above": above}
        for rank, (x, above) in enumerate(zip(xs, aboves, strict=True))
    ]
    ranks = run(large, given)
    outputs = [whole(x)[0] for x in leaf]
    sum((out * above).sum() for out, above in zip(outputs, aboves, strict=True)).backward()
    for rank, came in enumerate(ranks):
        close(f"the output on rank {rank}", came["output"], outputs[rank], relative=1e-4)
        slope(f"the gradient of x on rank {rank}", came["x"], leaf[rank], relative=1e-4)
    size = number * 8 * width * inside
    for rank, came in enumerate(ranks):
        for times, when, held in zip((1, 2), ("forward", "backward"), came["held"], strict=True):
            share, most = times * size / 4, (times + 1) * size / 4
            words = f"after {when}, rank {rank} held {megabytes(held)} more than before any expert was made"
            expected = (
                f"about {megabytes(share)}, at most {megabytes(most)} (all experts are {megabytes(size)})"
            )
            require(held <= most, words, expected)
    for source, target in permutations(range(4), 2):
        got, rows = ranks[source]["sent"][target], 2 * plan.due(source, target)
        most = rows * 4 * width + 6 * COUNTS
        words = f"forward and backward, rank {source} sent {got / 1000:.1f} kB to rank {target}"
        each = f"{so_many(rows, 'row')} of {4 * width} bytes, and the counts"
        require(got <= most, words, f"at most {most / 1000:.1f} kB: {each}")
