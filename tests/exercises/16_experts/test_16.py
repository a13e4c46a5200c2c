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

import re
from functools import partial
from itertools import permutations, product
from types import SimpleNamespace

import pytest
import torch
from give_back import free_memory, own_pages
from grader.testing import close, floats, integers, needs_memory, require, run, same, so_many, tried
from torch import nn
from torch.nn.functional import gelu

WIDE, INSIDE = 512, 1024  # widths of the large experts


# ---- what runs in each rank: a body, and what it mentions of this file


def by_columns(value):
    """The same numbers; those of float64 are in memory column by column."""
    return value.T.contiguous().T if value.dtype == torch.float64 else value


def sent_to_each(me, since=0):
    """The bytes that this rank has sent to each rank, from this place in its calls on."""
    return [me.sent(since, other) for other in range(me.world_size)]


def route(student, me, cases):
    """Some routes, and the gradient of the logits where the weights are as many as they are to be."""
    found = []
    for case in cases:
        logits = by_columns(case["logits"]).requires_grad_()
        came = student.route(logits, case["top_k"], case["capacity"])
        weights = None
        if isinstance(came, list | tuple) and len(came) == 3:
            weights = came[2]
        if torch.is_tensor(weights) and weights.shape == case["above"].shape and weights.requires_grad:
            weights.backward(case["above"])
        found.append({"came": came, "gradient": logits.grad})
    return found


def balance(student, me, given):
    """A part of the balancing loss, and what has been sent for it."""
    logits = given["logits"].requires_grad_()
    part = student.balancing_loss(logits, given["chosen"])
    sent = sent_to_each(me)
    if torch.is_tensor(part) and part.requires_grad and part.numel() == 1:
        part.backward()
    return {"part": part, "gradient": logits.grad, "sent": sent}


def dispatch(student, me, cases):
    """Tokens to their experts."""
    found = []
    for case in cases:
        x = by_columns(case["x"]).requires_grad_()
        arrived, _ = student.dispatch(x, case["tokens"], case["experts"], case["number"])
        found.append(arrived)
    return found


class Expert(nn.Module):
    """A feed-forward layer, as the lesson's experts are. With `in_place`, it begins with
    nn.ReLU(inplace=True)."""

    def __init__(self, up, down, in_place=False):
        super().__init__()
        self.up = nn.Parameter(up)
        self.down = nn.Parameter(down)
        self.in_place = in_place

    def forward(self, x):
        if self.in_place:
            x = x.relu_()
        return gelu(x @ self.up) @ self.down


def experts_from(matrices):
    return [Expert(**one) for one in matrices]


def there_and_back(student, me, cases):
    """Tokens to their experts, and back; with `above`, their gradients too. And bytes that were sent."""
    found = []
    for case in cases:
        x = by_columns(case["x"]).requires_grad_()
        weights = case["weights"].requires_grad_()
        experts = experts_from(case["matrices"])

        marks = [len(me.calls)]
        arrived, plan = student.dispatch(x, case["tokens"], case["experts"], case["number"])
        marks.append(len(me.calls))
        answers = []
        for rows, expert in zip(arrived, experts, strict=True):
            answers.append(expert(rows))
        output = student.combine(answers, plan, weights)
        marks.append(len(me.calls))
        if "above" in case:
            output.backward(by_columns(case["above"]))
        marks.append(len(me.calls))

        sent = []  # from each mark on
        for mark in marks:
            sent.append(sent_to_each(me, mark))
        slopes = []
        for expert in experts:
            slopes.append([expert.up.grad, expert.down.grad])
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
    router = linear(*given["router"])
    return student.Mixture(router, experts_from(given["experts"]), given["top_k"], given["capacity"])


def layer(student, me, given):
    """One Mixture, forward."""
    mixture = mixture_of(student, given["layer"])
    mixture.train(not given["evaluation"])
    return mixture(given["x"].requires_grad_())


class Model(nn.Module):
    """Ordinary layers, two of which share a weight, and Mixtures of the student's between them."""

    def __init__(self, student, given):
        super().__init__()
        self.first = linear(given["first"])
        self.after_experts = linear(given["after_experts"])
        self.blocks = nn.ModuleDict()
        for name, one in given["blocks"].items():
            self.blocks[name] = mixture_of(student, one)
        self.last = linear(given["after_experts"])
        self.last.weight = self.after_experts.weight
        self.heads = nn.ModuleDict({"experts": linear(given["after_experts"])})

    def forward(self, x):
        x = self.first(x)
        balance = 0
        for block in self.blocks.values():
            more, part = block(x)
            x = x + more
            balance = balance + part
        output = self.after_experts(x) + self.last(x.tanh()) + self.heads["experts"](x.sin())
        return output, balance


def train(student, me, given):
    """Some steps of training: parts of losses, gradients after add_up_gradients, weights at the end."""
    model = Model(student, given["model"])
    losses = []
    gradients = {}
    for x, targets in given["batches"]:
        model.zero_grad()
        output, balance = model(x)
        loss = (output - targets).square().sum() / 72 + 0.3 * balance
        loss.backward()
        student.add_up_gradients(model)
        named = dict(model.named_parameters())
        if not gradients:
            for name, parameter in named.items():
                gradients[name] = None if parameter.grad is None else parameter.grad.clone()
        with torch.no_grad():  # torch.optim would take the grader's process seconds to import
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.2 * parameter.grad
        losses.append(loss)
    return {"losses": losses, "gradients": gradients, "weights": named}


def large(student, me, given):
    """A Mixture of two large experts. What the process holds after each pass, and what it has sent."""
    own_pages()
    free_memory()
    start = me.memory()
    held = []
    experts = []
    for _ in range(2):
        experts.append(Expert(torch.full((WIDE, INSIDE), 0.1), torch.full((INSIDE, WIDE), 0.1)))
    layer = student.Mixture(linear(*given["router"]), experts, 2, None)
    output, _ = layer(given["x"].requires_grad_())
    free_memory()
    held.append(me.memory() - start)
    output.sum().backward()
    free_memory()
    held.append(me.memory() - start)
    return {"held": held, "sent": sent_to_each(me)}


# ---- what is right


def softmax(logits):
    return torch.softmax(logits.double(), dim=1)


def ranking(row):
    """The experts of a token, best first; of equal ones the smallest number first."""
    return sorted(range(len(row)), key=lambda expert: (-row[expert], expert))


def choices_of(logits, top_k, capacity=None):
    """(token, expert) of each choice that is kept, in the order in which they travel."""
    ranked = [ranking(row) for row in logits.tolist()]
    queues = [[] for _ in range(logits.shape[1])]
    for choice in range(top_k):
        for token, experts in enumerate(ranked):
            queues[experts[choice]].append(token)

    kept = []
    for expert, queue in enumerate(queues):
        for token in queue[:capacity]:
            kept.append((token, expert))
    return kept


def two(pairs):
    """Tokens and experts as two tensors."""
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)


def distinct(count, number, bias=None):
    """Logits of which no two of a token are nearly equal: rounding cannot change their order."""
    logits = torch.rand(count, number).argsort(dim=1) * 0.4 + 0.15 * floats(count, number).clamp(-1, 1)
    return logits if bias is None else logits + torch.tensor(bias)


def choices_for(expert, pairs):
    """Which of these choices are for this expert: their places among all choices, and their tokens."""
    places = []
    tokens = []
    for place, (token, chosen) in enumerate(pairs):
        if chosen == expert:
            places.append(place)
            tokens.append(token)
    return places, torch.tensor(tokens, dtype=torch.int64)


def weighted(x, pairs, weights, experts):
    """Each token's answers times their weights, added up."""
    total = x.new_zeros(len(x), experts[0].down.shape[1])
    for number, expert in enumerate(experts):
        places, tokens = choices_for(number, pairs)
        answers = expert(x[tokens])
        total = total.index_add(0, tokens, weights[places][:, None] * answers)
    return total


def part_of(rank, logits, chosen):
    """What the balancing loss of a process is."""
    number = logits[rank].shape[1]
    choices = sum(map(len, chosen))
    tokens = sum(map(len, logits))
    load = torch.cat(chosen).bincount(minlength=number).double() / choices
    scores = softmax(logits[rank]).sum(dim=0)
    return number * (load * scores).sum() / tokens


class Whole(nn.Module):
    """A Mixture on one process, which has all experts."""

    def __init__(self, router, experts, top_k, capacity):
        super().__init__()
        self.router, self.experts = router, nn.ModuleList(experts)
        self.top_k, self.capacity = top_k, capacity

    def forward(self, x):
        logits = self.router(x)
        kept = choices_of(logits, self.top_k, self.capacity)
        output = weighted(x, kept, softmax(logits)[two(kept)], self.experts)
        _, chosen = two(choices_of(logits, self.top_k))
        return output, part_of(0, [logits], [chosen])


REFERENCE = SimpleNamespace(Mixture=Whole, add_up_gradients=lambda model: None)


def double(value):
    """A copy in which every tensor of floats is float64."""
    if isinstance(value, dict):
        return {name: double(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [double(one) for one in value]
    if torch.is_tensor(value):
        value = value.double().clone()
    return value


def leaves(values):
    return [value.requires_grad_() for value in double(values)]


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


# ---- 16.1


def check_routes(*cases):
    """Route some logits in one process, and compare choices, order, weights and gradients."""
    given = []
    for logits, top_k, capacity in cases:
        kept = len(choices_of(logits, top_k, capacity))
        above = floats(kept).to(logits.dtype)
        given.append({"logits": logits, "top_k": top_k, "capacity": capacity, "above": above})
    (found,) = run(route, [given])
    for one, came in zip(given, found, strict=True):
        compare_route(one, came["came"], came["gradient"])


def are_alike(things):
    """Whether these are three tensors of one dimension and of the same length."""
    if len(things) != 3:
        return False
    for one in things:
        if not torch.is_tensor(one) or one.ndim != 1 or one.shape != things[0].shape:
            return False
    return True


def shape_in_words(thing):
    return list(thing.shape) if torch.is_tensor(thing) else type(thing).__name__


def compare_route(given, came, gradient):
    """Compare, in this order: what each token has chosen, the order of the entries, the weights, and the
    gradient of the logits."""
    logits, top_k, capacity = given["logits"], given["top_k"], given["capacity"]
    where = f"for {so_many(len(logits), 'token')}, {so_many(logits.shape[1], 'expert')}, top_k {top_k}"
    if capacity is not None:
        where += f", capacity {capacity}"
    things = came if isinstance(came, list) else [came]
    shapes = [shape_in_words(one) for one in things]
    wanted = "three tensors of one dimension, all of the same length: tokens, experts, weights"
    require(are_alike(things), f"route {where} returns what has the shapes {shapes}", wanted)

    entries = torch.stack(came[:2], 1)
    pairs = entries.tolist()
    experts = entries[:, 1].tolist()
    if capacity is None:
        compare_experts_of_each_token(where, logits, top_k, pairs)
    wanted = "first all entries for expert 0, then all for expert 1, and so on"
    require(experts == sorted(experts), f"{where}: experts is {experts}", wanted)
    right = choices_of(logits, top_k, capacity)
    same(f"{where}: the list of all [token, expert]", pairs, right)

    tokens, experts = two(right)
    (leaf,) = leaves([logits])
    weights = softmax(leaf)[tokens, experts]
    close(f"the weights {where}", came[2], weights, dtype=logits.dtype)
    if len(tokens):
        weights.backward(given["above"].double())
        # Where the weights are near 1, the gradient is small, and keeps the rounding of what came from above.
        scale = max(float(given["above"].abs().max()), 0.05)
        close(f"the gradient of the logits {where}", gradient, leaf.grad, scale=scale)


def compare_experts_of_each_token(where, logits, top_k, pairs):
    for token, row in enumerate(logits.tolist()):
        went = []
        for its_token, expert in pairs:
            if its_token == token:
                went.append(expert)
        scores = ", ".join(f"{value:.3g}" for value in row)
        what = f"{where}: the sorted list of experts of token {token}, with the logits {scores},"
        same(what, sorted(went), sorted(ranking(row)[:top_k]))


def test_1a_choices():
    """No capacity, top_k 1 to 3: 6 to 9 tokens, 4 or 5 experts; none for expert 0; no tokens"""
    check_routes(
        (distinct(7, 4), 1, None),
        (distinct(9, 5), 2, None),
        (distinct(6, 5).double(), 3, None),
        (distinct(8, 4, [-9.0, 0.0, 0.0, 0.0]), 1, None),
        (torch.zeros(0, 3), 2, None),
    )


def test_1b_equal_logits():
    """12 tokens, 4 experts, top_k 1, and 20, 6, 2, where many logits are equal; all equal; far apart"""
    few, more = integers(0, 3, 12, 4).float(), integers(0, 2, 20, 6).float()
    far = distinct(5, 4) * 400  # only one expert's softmax is not 0 then, but no logits are equal
    # A sort that is not stable keeps the order of up to 16 equal numbers.
    check_routes((few, 1, None), (more, 2, None), (torch.zeros(3, 40), 2, None), (far, 2, None))


def test_1c_capacity():
    """9 tokens, 3 experts, top_k 1, capacity 2; then top_k 1 to 3, capacity 0 to 50; no tokens"""
    # Expert 1 is the first choice of late tokens and the second choice of early ones.
    early, late = distinct(4, 3, [9.0, 5.0, 0.0]), distinct(4, 3, [0.0, 9.0, 5.0])
    check_routes(
        (distinct(9, 3), 1, 2),
        (torch.cat([early, late]), 2, 5),
        (distinct(8, 4), 3, 4),
        (distinct(5, 4), 2, 50),
        (torch.zeros(0, 4), 1, 2),
        (distinct(5, 4), 2, 0),
    )


# ---- 16.2


def balances(counts, number, top_k):
    """Logits, which experts are chosen, and what came of them on each rank."""
    dtype = torch.float64 if top_k == 2 else torch.float32
    logits = [distinct(count, number).to(dtype) for count in counts]
    # Not those of the logits: what is asked for is what is done with them.
    chosen = [integers(0, number - 1, count * top_k) for count in counts]
    inputs = []
    for one, its in zip(logits, chosen, strict=True):
        inputs.append({"logits": one, "chosen": its})
    return logits, chosen, run(balance, inputs)


def wrong_parts(rank, logits, chosen):
    """Words for mistakes, and what the part of this process would be."""
    own, number = logits[rank].shape
    total = sum(map(len, logits))
    choices = sum(map(len, chosen))
    part = part_of(rank, logits, chosen)
    known = {
        "not multiplied by the number of experts": part / number,
        "as if the load were the choices per token": part * choices / total,
    }
    if len(logits) > 1 and own:
        of_all = 0
        for other in range(len(logits)):
            of_all = of_all + part_of(other, logits, chosen)
        known |= {
            "this is the loss of all processes, not this one's part": of_all,
            "as if divided by the number of this process's tokens": part * total / own,
            "as if there were no other processes": part_of(0, [logits[rank]], [chosen[rank]]),
        }
    return known


# In the last case, the logits or the choices of all tokens are far more than their counts.
BALANCES = [((5, 8, 3), 4, 1), ((6, 0), 3, 2), ((7,), 5, 2), ((12000, 11000), 8, 1)]


@pytest.mark.parametrize(("tokens_of_each_process", "experts", "top_k"), BALANCES)
def test_2a_parts_of_the_balancing_loss(tokens_of_each_process, experts, top_k):
    """With top_k 2 in float64"""
    logits, chosen, ranks = balances(tokens_of_each_process, experts, top_k)
    for rank, came in enumerate(ranks):
        what = f"the part of the balancing loss on rank {rank}"
        got = came["part"]
        part = part_of(rank, logits, chosen)
        for words, wrong in wrong_parts(rank, logits, chosen).items():
            is_this_mistake = near(got, wrong) and not near(got, part)
            require(not is_this_mistake, f"{what}: {words}", f"{part:.6g}")
        digits = 1e-10 if top_k == 2 else 2e-5
        close(what, got, part, digits, dtype=logits[0].dtype)

    # No process has told another one its logits, or which token has chosen what. A call for each expert's
    # count is enough for all, and which expert each token has chosen would be more, a byte each.
    most = (experts + 2) * 1000
    for rank, other in permutations(range(len(ranks)), 2):
        sent = ranks[rank]["sent"][other]
        came = f"rank {rank} sent {sent:.0f} bytes to rank {other}"
        require(sent <= most, came, f"at most {most}, however many tokens there are: only counts")


@pytest.mark.parametrize(("tokens_of_each_process", "experts", "top_k"), BALANCES[:2])
def test_2b_gradient_of_the_balancing_loss(tokens_of_each_process, experts, top_k):
    """With top_k 2 in float64"""
    logits, chosen, ranks = balances(tokens_of_each_process, experts, top_k)
    xs = leaves(logits)
    for rank, came in enumerate(ranks):
        part_of(rank, xs, chosen).backward()
        close(f"the gradient of the logits on rank {rank}", came["gradient"], xs[rank].grad)


# ---- 16.3


def experts_of(number, width, inside, out):
    """The matrices of some experts."""
    ups = [floats(width, inside) / width**0.5 for _ in range(number)]
    matrices = []
    for up in ups:
        matrices.append({"up": up, "down": floats(inside, out) / inside**0.5})
    return matrices


def own(experts, rank, world_size):
    """Of something for each expert, what is for those of a process."""
    local = len(experts) // world_size
    return experts[rank * local :][:local]


def due(pairs, number, source, target):
    """How many rows are to go from one process to the experts of another."""
    experts = own(range(number), target, len(pairs))
    rows = 0
    for _, expert in pairs[source]:
        rows += expert in experts
    return rows


def rows_of_each(counts, width, dtype):
    """Rows of random numbers: as many for each process as this list says."""
    return [floats(count, width).to(dtype) for count in counts]


class Journey:
    """Tokens of all ranks, and where they go."""

    def __init__(self, words, counts, number, top_k, width, bias=None, capacity=None, is_double=False, out=2):
        dtype = torch.float64 if is_double else torch.float32
        self.number = number
        self.world_size = len(counts)
        self.pairs = []  # (token, expert) of each choice of each process
        self.weights = []
        for count in counts:
            logits = distinct(count, number, bias)
            pairs = choices_of(logits, top_k, capacity)
            self.pairs.append(pairs)
            self.weights.append(softmax(logits)[two(pairs)].to(dtype))
        self.x = rows_of_each(counts, width, dtype)
        self.above = rows_of_each(counts, out, dtype)  # gradients of the outputs
        self.matrices = experts_of(number, width, 3, out)
        if is_double:
            self.matrices = double(self.matrices)

        stored = "float64, stored by columns" if is_double else "float32"
        choices = so_many(sum(map(len, self.pairs)), "choice")
        self.words = f"tokens of each process {counts}, each of {width} numbers in {stored}; "
        self.words += f"{number} experts, {choices}; {words}"

    def case(self, rank, backward):
        tokens, experts = two(self.pairs[rank])
        case = {"x": self.x[rank], "tokens": tokens, "experts": experts, "number": self.number}
        case["weights"] = self.weights[rank]
        case["matrices"] = own(self.matrices, rank, self.world_size)
        if backward:
            case["above"] = self.above[rank]
        return case

    def rows(self, expert):
        """What an expert gets from all processes."""
        found = []
        for x, pairs in zip(self.x, self.pairs, strict=True):
            _, tokens = choices_for(expert, pairs)
            found.append(x[tokens])
        return torch.cat(found)

    def token(self, row):
        """Which token this row is."""
        for rank, x in enumerate(self.x):
            for number, own in enumerate(x):
                if near(row, own):
                    return f"token {number} of rank {rank}"
        return "no token"

    def tokens(self, rows):
        return [self.token(row) for row in rows]

    def outputs(self, xs, weights, experts):
        """What combine must return on each process."""
        found = []
        for x, pairs, own_weights in zip(xs, self.pairs, weights, strict=True):
            found.append(weighted(x, pairs, own_weights, experts))
        return found


# In groups of as many processes: a plain one first, then what may be empty, full or dropped.
JOURNEYS = [
    [partial(Journey, "one expert on each process", (4, 6), 2, 1, 3)],
    [
        partial(Journey, "two experts on each process", (5, 3, 6), 6, 1, 4),
        # More than 16 rows: a sort that is not stable keeps the order of fewer.
        partial(Journey, "all tokens go to expert 0", (15, 4, 16), 3, 1, 3, bias=[9.0, 0.0, 0.0]),
        # It neither sends nor receives a row, and must still call what all call.
        partial(
            Journey, "process 1 and its expert have no tokens", (4, 0, 5), 3, 1, 3, bias=[0.0, -9.0, 0.0]
        ),
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


def made(group, body, backward=False):
    """All journeys of a group, made in one run: for each, the journey and what each rank returned."""
    journeys = [make() for make in group]
    tried("; then ".join(journey.words for journey in journeys))
    inputs = []
    for rank in range(journeys[0].world_size):
        inputs.append([journey.case(rank, backward) for journey in journeys])
    ranks = run(body, inputs)

    for number, journey in enumerate(journeys):
        tried(journey.words)
        yield journey, [came[number] for came in ranks]


@pytest.mark.parametrize("group", JOURNEYS)
def test_3a_each_row_arrives_at_its_expert(group):
    for journey, ranks in made(group, dispatch):
        for rank, arrived in enumerate(ranks):
            compare_arrived(journey, rank, arrived)


def compare_arrived(journey, rank, arrived):
    experts = own(range(journey.number), rank, journey.world_size)
    is_list = isinstance(arrived, list)
    kind = f"list of {so_many(len(arrived), 'thing')}" if is_list else type(arrived).__name__
    wanted = f"a list with {so_many(len(experts), 'tensor')}: one for each expert of this process"
    is_right = is_list and len(arrived) == len(experts)
    require(is_right, f"on rank {rank}, arrived is a {kind}", wanted)

    for place, expert in enumerate(experts):
        got = arrived[place]
        right = journey.rows(expert)
        what = f"for expert {expert} (arrived[{place}] on rank {rank})"
        is_rows = torch.is_tensor(got) and got.ndim == 2
        require(is_rows, f"what came {what} is no tensor of two dimensions", f"{so_many(len(right), 'row')}")
        same(f"the list of rows that came {what}", journey.tokens(got), journey.tokens(right))
        close(f"what came {what}", got, right, dtype=right.dtype)


@pytest.mark.parametrize("group", JOURNEYS)
def test_3b_answers_come_back_weighted(group):
    for journey, ranks in made(group, there_and_back):
        xs = double(journey.x)
        weights = double(journey.weights)
        experts = experts_from(double(journey.matrices))
        right = journey.outputs(xs, weights, experts)
        for rank, came in enumerate(ranks):
            what = f"the output of combine on rank {rank}"
            got = came["output"]
            pairs = journey.pairs[rank]
            weights_of_mistakes = {
                "as if all weights were 1": torch.ones(len(pairs)),
                "only the last answer to each token is in it": weights[rank] * are_last(pairs),
            }
            for words, wrong_weights in weights_of_mistakes.items():
                wrong = weighted(xs[rank], pairs, wrong_weights, experts)
                is_this_mistake = near(got, wrong) and not near(got, right[rank])
                wanted = "the sum of all answers to a token, each times its weight"
                require(not is_this_mistake, f"{what}: {words}", wanted)
            close(what, got, right[rank], dtype=journey.x[0].dtype)


def are_last(pairs):
    """Of each choice, whether its token has no later one."""
    last = []
    seen = set()
    for token, _ in reversed(pairs):
        last.insert(0, token not in seen)
        seen.add(token)
    return torch.tensor(last)


@pytest.mark.parametrize("group", JOURNEYS)
def test_3c_gradients_travel_the_same_path(group):
    for journey, ranks in made(group, there_and_back, backward=True):
        compare_gradients(journey, ranks)


def compare_gradients(journey, ranks):
    xs = leaves(journey.x)
    weights = leaves(journey.weights)
    experts = experts_from(double(journey.matrices))
    loss = 0
    for output, above in zip(journey.outputs(xs, weights, experts), journey.above, strict=True):
        loss = loss + (output * above).sum()
    loss.backward()

    digits = 1e-12 if journey.x[0].dtype == torch.float64 else 2e-5
    for rank, came in enumerate(ranks):
        slope(f"the gradient of x on rank {rank}", came["x"], xs[rank], relative=digits)
        slope(f"the gradient of weights on rank {rank}", came["weights"], weights[rank], relative=digits)
        numbers = own(range(journey.number), rank, journey.world_size)
        for number, (up, down) in zip(numbers, came["experts"], strict=True):
            what = f"the gradient of expert {number} (on rank {rank})"
            slope(what, up, experts[number].up, relative=digits)
            slope(what, down, experts[number].down, relative=digits)


COUNTS = 1500  # bytes from one process to another for the counts, in each trip
WAYS = ("dispatch", "combine", "the backward pass")
TRAFFIC = [
    partial(Journey, "bytes of all calls", (9, 4, 0), 6, 2, 2048, [0.0, 1.0, -9.0, -9.0, 2.0, 0.0], out=2048),
    partial(Journey, "bytes of all calls", (6, 7, 3, 5), 4, 2, 2048, [2.0, 0.0, 0.0, 0.0], out=2048),
]


@pytest.mark.parametrize("make", TRAFFIC)
def test_3d_only_necessary_rows_travel(make):
    ((journey, ranks),) = made([make], there_and_back, backward=True)
    compare_gradients(journey, ranks)
    for way, (source, target) in product(range(3), permutations(range(journey.world_size), 2)):
        since = ranks[source]["sent"]  # in bytes, since the beginning of each of the ways
        got = since[way][target] - since[way + 1][target]
        there = due(journey.pairs, journey.number, source, target)
        back = due(journey.pairs, journey.number, target, source)
        rows = (there, back, there + back)[way]  # gradients travel both ways in reverse
        more = (COUNTS, COUNTS, 2 * COUNTS)[way]
        what = f"in {WAYS[way]}, rank {source} sent {got / 1000:.1f} kB to rank {target}"
        expected = f"{so_many(rows, 'row')} of 8.2 kB, and at most {more / 1000:.1f} kB more"
        require(got <= rows * 4 * 2048 + more, what, expected)


# ---- 16.4


def layer_of(width, inside, number, top_k, capacity=None, out=None):
    router = [floats(number, width), floats(number) / 2]
    experts = experts_of(number, width, inside, out or width)
    return {"router": router, "experts": experts, "top_k": top_k, "capacity": capacity}


def own_layer(layer, rank, world_size):
    return layer | {"experts": own(layer["experts"], rank, world_size)}


def clear_rows(count, router, top_k):
    """Tokens whose choices no rounding can change."""
    weight, bias = router
    rows = floats(4 * count, weight.shape[1])  # nearly all are clear
    best = (rows @ weight.T + bias).topk(top_k + 1).values
    return rows[(best[:, :-1] - best[:, 1:] > 0.01).all(dim=1)][:count].clone()


# In the second case, some experts get no token, they change their rows in place, and answers are wider than
# tokens; in the third, answers are narrower.
LAYERS = [((5, 6), 4, 1, None, 4), ((2, 0, 3), 12, 2, None, 7), ((8, 9), 2, 1, 3, 3)]


NAMES = ("tokens_of_each_process", "experts", "top_k", "capacity", "width_of_answers")


@pytest.mark.parametrize(NAMES, LAYERS)
def test_4a_the_layer(tokens_of_each_process, experts, top_k, capacity, width_of_answers):
    """Tokens of 4 numbers; with a capacity in evaluation mode; 12 experts begin with nn.ReLU(inplace=True)"""
    given = layer_of(4, 6, experts, top_k, capacity, width_of_answers)
    for one in given["experts"]:
        one["in_place"] = experts == 12
    xs = [clear_rows(count, given["router"], top_k) for count in tokens_of_each_process]
    jobs = []
    for rank, x in enumerate(xs):
        mine = own_layer(given, rank, len(xs))
        jobs.append({"layer": mine, "x": x, "evaluation": capacity is not None})
    ranks = run(layer, jobs)

    limited = mixture_of(REFERENCE, double(given))
    unlimited = mixture_of(REFERENCE, double(given | {"capacity": None}))
    outputs = []
    with_all_choices = []
    logits = []
    chosen = []
    with torch.no_grad():
        for x in double(xs):
            outputs.append(limited(x)[0])
            with_all_choices.append(unlimited(x)[0])
            logits.append(limited.router(x))
            chosen.append(two(choices_of(logits[-1], top_k))[1])

    for rank, came in enumerate(ranks):
        things = so_many(len(came) if isinstance(came, list) else 1, "thing")
        is_pair = isinstance(came, list) and len(came) == 2
        require(is_pair, f"a Mixture returned {things}", "(output, balancing loss)")
        output, part = came
        is_unlimited = near(output, with_all_choices[rank]) and not near(output, outputs[rank])
        words = f"the output on rank {rank} is as if nothing had been dropped"
        require(not is_unlimited, words, "zeros for tokens whose choices were dropped")
        close(f"the output on rank {rank}", output, outputs[rank])
        close(f"the part of the balancing loss on rank {rank}", part, part_of(rank, logits, chosen))


def training():
    width, tokens = 5, 24
    first = floats(width, 4) / 2
    after = floats(3, width) / width**0.5
    blocks = {"one": layer_of(width, 4, 12, 1), "other": layer_of(width, 3, 12, 2)}
    batches = [[floats(tokens, 4), floats(tokens, 3)] for _ in range(3)]
    return double({"model": {"first": first, "after_experts": after, "blocks": blocks}, "batches": batches})


def own_training(given, rank, sizes):
    """What a rank gets: its experts, and its tokens, as many as the next rank had in the step before."""
    batches = []
    for step, (x, y) in enumerate(given["batches"]):
        shift = step % len(sizes)
        these = [*sizes[shift:], *sizes[:shift]]
        batches.append([x.split(these)[rank].clone(), y.split(these)[rank].clone()])
    blocks = {}
    for name, one in given["model"]["blocks"].items():
        blocks[name] = own_layer(one, rank, len(sizes))
    return {"model": given["model"] | {"blocks": blocks}, "batches": batches}


def whole_name(name, rank, local):
    """What a parameter of a rank is called in the model that has all experts."""
    found = re.search(r"blocks.*experts\.(\d+)", name)
    if not found:
        return name
    start, end = found.span(1)
    return f"{name[:start]}{int(found[1]) + rank * local}{name[end:]}"


@pytest.mark.parametrize("tokens_of_each_process", [(24,), (15, 9), (11, 0, 13), (6, 9, 2, 7)])
def test_4b_one_curve(tokens_of_each_process):
    """3 steps of a model with two Mixtures of 12 experts, top_k 1 and 2, in float64; in the next step, each
    process has as many tokens as the next process had before"""
    given = training()
    world_size = len(tokens_of_each_process)
    one = train(REFERENCE, None, double(given))
    gradients = {}
    for name, gradient in one["gradients"].items():
        gradients[name] = torch.zeros_like(one["weights"][name]) if gradient is None else gradient

    jobs = [own_training(given, rank, tokens_of_each_process) for rank in range(world_size)]
    ranks = run(train, jobs)
    names = []
    for rank, job in enumerate(jobs):
        for mine, _ in Model(REFERENCE, job["model"]).named_parameters():
            names.append((rank, mine, whole_name(mine, rank, 12 // world_size)))

    for rank, mine, name in names:
        got = ranks[rank]["gradients"][mine]
        right = gradients[name]
        # An expert to which nothing came may have no gradient at all.
        if got is not None or right.any():
            close(f"the gradient of {name} on rank {rank} in the first step", got, right, relative=1e-6)
    for rank, mine, name in names:
        what = f"{name} on rank {rank} after 3 steps"
        close(what, ranks[rank]["weights"][mine], one["weights"][name], relative=1e-6)
    for step, loss in enumerate(one["losses"]):
        got = sum(came["losses"][step] for came in ranks)
        close(f"the sum of all processes' losses in step {step + 1}", got, loss, relative=1e-6)


def megabytes(value):
    return f"{value / 1e6:.2f} MB"


def test_4c_own_experts_only():
    """4 processes with 13 and 24 and 0 and 30 tokens of 512 numbers, Mixture of 8 experts of 4.2 MB, top_k 2;
    memory as the kernel counts it, and bytes of all calls of torch.distributed"""
    needs_memory()
    router = [floats(8, WIDE) / 8, floats(8) / 8]
    xs = [clear_rows(count, router, 2) for count in (13, 24, 0, 30)]
    weight, bias = double(router)
    jobs = []
    pairs = []  # (token, expert) of each choice of each process
    for x in xs:
        jobs.append({"router": router, "x": x})
        pairs.append(choices_of(x.double() @ weight.T + bias, 2))
    ranks = run(large, jobs)

    size = 8 * 8 * WIDE * INSIDE
    share = size / 4
    for rank, came in enumerate(ranks):
        after_forward, after_backward = came["held"]
        compare_held("forward", rank, after_forward, share, size)
        compare_held("backward", rank, after_backward, 2 * share, size)  # the gradients, too
    for source, target in permutations(range(4), 2):
        got = ranks[source]["sent"][target]
        rows = 2 * (due(pairs, 8, source, target) + due(pairs, 8, target, source))
        most = rows * 4 * WIDE + 6 * COUNTS
        words = f"forward and backward, rank {source} sent {got / 1000:.1f} kB to rank {target}"
        each = f"{so_many(rows, 'row')} of {4 * WIDE} bytes, and the counts"
        require(got <= most, words, f"at most {most / 1000:.1f} kB: {each}")


def compare_held(when, rank, held, expected, size):
    """Compare the memory of a process with what it should be, and a quarter of all experts more."""
    most = expected + size / 4
    came = f"after {when}, rank {rank} held {megabytes(held)} more than before any expert was made"
    wanted = f"about {megabytes(expected)}, at most {megabytes(most)} (all experts are {megabytes(size)})"
    require(held <= most, came, wanted)
