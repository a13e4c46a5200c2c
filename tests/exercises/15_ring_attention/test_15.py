"""Exercise 15: attention around a ring, with shared heads.

| axis | checked in |
| --- | --- |
| world size 1 to 4 | 4a, 5a; 1a, 1b also more |
| dtype | 2d, 3b, 4a, 5a: float64 |
| memory layout | 2a to 3b: every second case, 4a to 5c: views of texts x positions x heads x size |
| container | results: tuples and lists |
| order | 2a: positions in any order |
| heads | 2d, 4a, 5a: 6 for 1, 2 and 6 heads of keys, 4 for 4, 2 and 1 |
| sizes | 1a, 4a, 5a: chunks of one position; 2a: more keys than queries |
| numbers | 2b, 3b, 4a, 5a: scores near 300; 2b, 3b: -300; 2b, 4a, 5a: both; 2b: -12000; 4d, 5c: NaN |
| queries without keys | 2c, 3b |
| arguments left alone | 2a to 2d, 3b, 4a, 5a |
| shards of different sizes, no keys at all | excluded by the docstring |
| calls, modes, seeds, missing gradients | the functions keep nothing, and have none |
"""

import functools
import random

import pytest
import torch
from give_back import free_memory, own_pages
from grader.testing import Verdict, close, floats, needs_memory, require, run, same, so_many, tried

NAMES, PAIR = ("query", "key", "value"), ("output", "log_sum_exp")
EVERY = (*NAMES, *PAIR, "gradient")
# Positions, size of a head, and processes, where memory is looked at.
LENGTH, WIDE, RANKS = 128, 1 << 15, 8


# ---- what runs in each rank: a body, and what it mentions of this file


def view(tensor):
    """The same with positions before heads in memory, as a model has it."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def order(student, me, given):
    """A function of numbers, for several cases."""
    function = getattr(student, given["function"])
    return [function(*case) for case in given["cases"]]


def call(student, me, given):
    """A function of tensors, for several cases: what came, which arguments changed, and what was sent."""
    found = []
    for number, case in enumerate(given["cases"]):
        mine = []
        for tensor in case:
            as_view = number % 2 == 0 and tensor.ndim == 4
            mine.append(view(tensor) if as_view else tensor.clone())
        with torch.no_grad():
            came = getattr(student, given["function"])(*mine)
        changed = []
        for name, tensor, before in zip(given["names"], mine, case, strict=True):
            if not tensor.equal(before):
                changed.append(name)
        found.append({"came": came, "changed": changed})
    return {"found": found, "sent": [me.sent(to=other) for other in range(me.world_size)]}


def large(student, me, given):
    """Forward or backward with large tensors: two columns of what comes, and how much more memory than before
    this has needed."""
    own_pages()
    with torch.no_grad():
        # The code of torch that attention needs would be counted as the student's.
        small = torch.randn(2, 1, 4, 8)
        scores = small @ small.mT
        torch.logaddexp(scores, scores).masked_fill(scores > 0, -torch.inf).softmax(-1)
        torch.stack([small, small]).logsumexp(-1).exp().sum()
        del small, scores
        tensors = []
        for one in given["tensors"]:
            is_log_sum_exp = one.shape[-1] == 1
            tensors.append(one if is_log_sum_exp else one @ given["wide"])
        # The least of three times: on a busy machine, gloo may let go of a message late.
        needed = []
        for _ in range(3):
            found = None
            free_memory()
            me.restart_peak()
            before = me.peak()
            found = getattr(student, given["function"])(*tensors)
            needed.append(me.peak() - before)
    return {"found": [one[..., -2:] for one in found], "needed": min(needed)}


# ---- what is right


def places_of(length, rank, world_size):
    """The positions of a rank in zigzag order."""
    chunk = length // (2 * world_size)
    early = rank * chunk
    late = (2 * world_size - 1 - rank) * chunk
    return [*range(early, early + chunk), *range(late, late + chunk)]


def spread(tensor, query):
    """Each head of keys or values as often as heads of queries share it."""
    return tensor.repeat_interleave(query.shape[1] // tensor.shape[1], 1)


def attention(query, key, value, query_places, key_places):
    """Output and log-sum-exp, in 64 bits."""
    query = query.double()
    key = spread(key.double(), query)
    value = spread(value.double(), query)
    scores = query @ key.mT * query.shape[-1] ** -0.5
    is_later = torch.as_tensor(key_places) > torch.as_tensor(query_places)[:, None]
    scores = scores.masked_fill(is_later, -torch.inf)
    total = scores.logsumexp(-1, keepdim=True)
    weights = (scores - total.nan_to_num(neginf=0.0)).exp()
    return weights @ value, total


def whole(given):
    """All of it on one process: output, log_sum_exp, and the gradients."""
    leaves = [given[name].double().requires_grad_() for name in NAMES]
    every = range(given["query"].shape[-2])
    output, total = attention(*leaves, every, every)
    gradients = torch.autograd.grad(output, leaves, given["gradient"].double())
    pair = {"output": output.detach(), "log_sum_exp": total.detach()}
    return pair | dict(zip(NAMES, gradients, strict=True))


def shard(value, rank, world_size):
    return value[..., places_of(value.shape[-2], rank, world_size), :]


def no_mistakes(*words):
    return {}


def check_numbers(what, got, expected, relative=2e-5, wrong=no_mistakes):
    """Like close, and -inf may be right. `wrong` works out what known mistakes come to, by name."""
    alike = isinstance(got, torch.Tensor) and got.shape == expected.shape
    if alike:
        nothing = expected.isneginf()
        words = f"{what} is not -inf for each query without any key"
        require(got[nothing].isneginf().all(), words, "the logarithm of 0: -inf")
        got = got.masked_fill(nothing, 0)
        expected = expected.masked_fill(nothing, 0)
    try:
        close(what, got, expected, relative)
    except Verdict as verdict:
        if alike:
            for words, one in wrong().items():
                if torch.allclose(got.double(), one.double(), rtol=0, atol=5 * relative):
                    verdict.came += f"; as if {words}"
        raise


def check_pairs(function, names, cases, rights, relative=2e-5, alone=True, mistakes=no_mistakes):
    """attend or merge of (words, arguments). `alone`: arguments must not change."""
    arguments = [case for _, case in cases]
    given = {"function": function, "names": names, "cases": arguments}
    (came,) = run(call, [given], group=False)
    for (words, case), right, one in zip(cases, rights, came["found"], strict=True):
        what = f"{function}{words}"
        pair = one["came"]
        if alone:
            changed = one["changed"][:1]
            require(not changed, f"{what} changed {''.join(changed)}", "an unchanged tensor")
        is_pair = isinstance(pair, list) and len(pair) == 2
        require(is_pair, f"{function} does not return a pair", "a pair: (output, log_sum_exp)")
        without = right[1].isneginf().squeeze(-1)
        if isinstance(pair[0], torch.Tensor) and pair[0].shape == right[0].shape:
            close(f"the output of queries without any key of {what}", pair[0][without], right[0][without])
        its = relative if case[0].dtype == torch.float32 else 1e-10
        for name, got, expected in zip(PAIR, pair, right, strict=True):
            wrong = no_mistakes
            if name == "output":
                wrong = functools.partial(mistakes, *case)
            check_numbers(f"the {name} of {what}", got, expected, its, wrong)


# ---- 15.1: order


def test_1a_the_zigzag_order():
    """positions for every rank, with 1, 2, 3, 4 and more processes"""
    cases = []
    for world_size in (1, 2, 3, 4, random.randint(5, 8)):
        length = 2 * world_size * (1 if world_size == 2 else random.randint(2, 5))
        for rank in range(world_size):
            cases.append([length, rank, world_size])
    # In a group of one process: what is asked for does not depend on this process's group.
    (found,) = run(order, [{"function": "positions", "cases": cases}])
    for (length, rank, world_size), got in zip(cases, found, strict=True):
        what = f"positions({length}, {rank}, {world_size})"
        require(isinstance(got, torch.Tensor), f"{what} is not a tensor", "a tensor of integers")
        same(what, got, places_of(length, rank, world_size))
        require(not got.is_floating_point(), f"{what} has dtype {got.dtype}", "integers: int64")


def meet(rank, owner):
    """The pairs of halves that meet: the chunk of the keys is not later than that of the queries."""
    world_size = max(rank, owner) + 1
    queries = [rank, 2 * world_size - 1 - rank]
    keys = [owner, 2 * world_size - 1 - owner]
    found = []
    for own in (0, 1):
        for its in (0, 1):
            if keys[its] <= queries[own]:
                found.append([own, its])
    return found


def test_1b_which_halves_meet():
    """meetings for all pairs of a rank and an owner, with 1, 2, 3, 4 and more processes"""
    cases = []
    for world_size in (1, 2, 3, 4, random.randint(5, 8)):
        for rank in range(world_size):
            for owner in range(world_size):
                cases.append([rank, owner])
    (found,) = run(order, [{"function": "meetings", "cases": cases}])
    for (rank, owner), got in zip(cases, found, strict=True):
        same(f"meetings({rank}, {owner})", got, meet(rank, owner))


# ---- 15.2: attend


def text(positions, size=8, texts=2, heads=3, shared=1):
    """`shared`: how many heads of queries use each head of keys and values."""
    counts = {"query": heads, "key": heads // shared, "value": heads // shared, "gradient": heads}
    return {name: floats(texts, count, positions, size) for name, count in counts.items()}


def attended(given):
    """Query, key and value of a text."""
    return [given[name] for name in NAMES]


def in_float64(tensors):
    """Tensors in float64, with digits that float32 has not."""
    return [one.double() / 3 for one in tensors]


def check_attend(*cases, relative=2e-5):
    """attend on cases of (words, (query, key, value), the queries' positions, the keys' positions)."""
    given = []
    rights = []
    for words, tensors, own, its in cases:
        given.append((words, [*tensors, torch.tensor(own), torch.tensor(its)]))
        rights.append(attention(*tensors, own, its))
    names = [*NAMES, "query_positions", "key_positions"]
    check_pairs("attend", names, given, rights, relative, mistakes=attend_mistakes)


def attend_mistakes(query, key, value, own, its):
    """Outputs that attend comes to by a mistake, with words for it."""
    scaled = query * query.shape[-1] ** 0.5
    return {
        "scores were not divided by the square root of the size": attention(scaled, key, value, own, its)[0],
        "later keys were not masked": attention(query, key, value, own, 0 * its)[0],
        "the mask was reversed": attention(query, key, value, -own, -its)[0],
    }


def some(queries, keys):
    """So many queries and keys of a text."""
    query, key, value = attended(text(max(queries, keys)))
    return [query[..., :queries, :], key[..., :keys, :], value[..., :keys, :]]


def test_2a_output_and_log_sum_exp():
    """attend with 6 queries and 6 keys at positions 0 to 5, then with 5 queries and 9 keys in any order,
    where each query has some keys; everything in 2 texts with 3 heads of size 8"""
    keys = random.sample(range(25), 9)
    queries = [29, min(keys)]
    while len(queries) < 5:
        queries.append(random.randint(min(keys), 29))
    every = list(range(6))
    first = "", attended(text(6)), every, every
    second = " for 5 queries and 9 keys", some(5, 9), queries, keys
    check_attend(first, second)


def shifted(tensors, by):
    """Tensors whose scores are larger by so much, all of them."""
    query, key, value = map(torch.clone, tensors)
    root = (abs(by) * query.shape[-1] ** 0.5) ** 0.5
    query[..., 0] = root
    key[..., 0] = root if by > 0 else -root
    return query, key, value


def test_2b_large_scores():
    """attend with scores near 300, near -300, near both, in two ways, and near -12000 in float64"""
    every = list(range(6))
    cases = []
    for by in (300, -300):
        cases.append((f" with scores near {by}", shifted(attended(text(6)), by), every, every))
    query, key, value = shifted(attended(text(6)), 300)
    signs = torch.tensor([1.0, -1.0] * 3)[:, None]
    cases.append((" with scores near 300 and near -300 in turn", (query * signs, key, value), every, every))
    # A later key does not count, but its score may be far above all others.
    largest = key * torch.tensor([-1.0] * 5 + [1.0])[:, None]
    cases.append((" with scores near -300, except for the last key", (query, largest, value), every, every))
    lowest = list(map(torch.Tensor.double, shifted(attended(text(6)), -12_000)))
    cases.append((" with scores near -12000 in float64", lowest, every, every))
    check_attend(*cases, relative=1e-3)


def test_2c_queries_without_any_key():
    """attend with 6 queries at positions 4 to 9 and 5 keys at positions 7 to 11, then with queries at
    positions 0 to 3 and keys at 4 to 7"""
    first = ", where some queries have no key", some(6, 5), list(range(4, 10)), list(range(7, 12))
    second = ", where no query has any key", some(4, 4), list(range(4)), list(range(4, 8))
    check_attend(first, second)


def test_2d_shared_heads():
    """attend with 6 heads of queries and 2, 1 and 6 heads of keys and values, 5 positions each; and in
    float64"""
    cases = []
    every = list(range(5))
    for shared in (3, 6, 1):
        words = f" for 6 heads of queries and {so_many(6 // shared, 'head')} of keys and values"
        cases.append((words, attended(text(5, heads=6, shared=shared)), every, every))
    cases.append((" for float64", in_float64(cases[0][1]), every, every))
    check_attend(*cases)


# ---- 15.3: merge


def over(side, tensors, places):
    """What attention gives over the keys of this side."""
    query, key, value = tensors
    return attention(query, key[..., side, :], value[..., side, :], places, side)


def check_merge(*cases, relative=2e-5, alone=True):
    """merge on cases of (words, (query, key, value), queries' positions, one side's keys, the other's)."""
    given = []
    rights = []
    for words, tensors, places, one_side, other_side in cases:
        results = [*over(one_side, tensors, places), *over(other_side, tensors, places)]
        arguments = [one.to(tensors[0].dtype) for one in results]
        given.append((words, arguments))
        rights.append(over(sorted([*one_side, *other_side]), tensors, places))
    check_pairs("merge", [*PAIR, "new_output", "new_log_sum_exp"], given, rights, relative, alone)


def test_3a_each_weighted_by_its_share():
    """merge of the outputs over keys 0 to 3 and over keys 4 to 6, for queries at positions 7 to 11"""
    query, key, value = attended(text(12))
    # That nothing is changed is asked for in 3b.
    case = "", (query[..., 7:, :], key, value), list(range(7, 12)), [0, 1, 2, 3], [4, 5, 6]
    check_merge(case, alone=False)


def test_3b_nothing_on_one_side_and_large_numbers():
    """merge where some queries have no key in the old result; in the new result; in neither; where
    log_sum_exp is near 300 and -300; and in float64"""
    tensors = attended(text(12))
    places = list(range(12))
    check_merge(
        (" of float64", in_float64(tensors), places, [0, 1, 2], [3, 4, 5]),
        (", where some queries had no old key", tensors, places, [3, 4, 5], [0, 1, 2]),
        (", where some queries have no new key", tensors, places, [0, 1, 2], [9, 10]),
        (", where some queries have no key on either side", tensors, places, [6, 7], [4, 5]),
        (" with log_sum_exp near 300", shifted(tensors, 300), places, [0, 2, 4], [1, 3, 5]),
        (" with log_sum_exp near -300", shifted(tensors, -300), places, [0, 2, 4], [1, 3, 5]),
        relative=1e-3,
    )


# ---- 15.4 and 15.5: around the ring

WAYS = {False: ("ring_forward", NAMES, PAIR), True: ("ring_backward", EVERY, NAMES)}


def shards_of(given, names, world_size):
    """For each rank its shards of the tensors with these names."""
    found = []
    for rank in range(world_size):
        found.append([shard(given[name], rank, world_size) for name in names])
    return found


def with_results(given, right):
    """A text together with its output and log_sum_exp, which ring_backward is given, too."""
    given = dict(given)
    for name in PAIR:
        given[name] = right[name].to(given["query"].dtype)
    return given


def run_around(given, world_size, backward):
    function, names, _ = WAYS[backward]
    inputs = []
    for mine in shards_of(given, names, world_size):
        inputs.append({"function": function, "names": names, "cases": [mine]})
    return run(call, inputs)


def check_around(given, world_size, relative, backward=False):
    """ring_forward or ring_backward on shards of this text. Returns what came."""
    function, _, wanted = WAYS[backward]
    right = whole(given)
    given = with_results(given, right)
    ranks = run_around(given, world_size, backward)
    for rank, one in enumerate(ranks):
        # First: whoever divides the query in its place gets other numbers by that.
        came = one["found"][0]["came"]
        changed = one["found"][0]["changed"][:1]
        require(not changed, f"{function} changed {''.join(changed)} on rank {rank}", "an unchanged tensor")
        is_list = isinstance(came, list) and len(came) == len(wanted)
        require(is_list, f"on rank {rank}, {function} does not return {so_many(len(wanted), 'tensor')}")
        mistakes = backward_mistakes if backward else forward_mistakes
        for name, got in zip(wanted, came, strict=True):
            its = result_named(name, rank, backward)
            wrong = functools.partial(mistakes, given, right, name, rank, world_size)
            check_numbers(its, got, shard(right[name], rank, world_size), relative, wrong)
    return ranks


def result_named(name, rank, backward):
    """Words for one of the tensors that come."""
    return f"the gradient of the {name} on rank {rank}" if backward else f"the {name} on rank {rank}"


def forward_mistakes(given, right, name, rank, world_size):
    """Outputs that a rank comes to by a mistake, with words for it."""
    if world_size == 1 or name != "output":
        return {}
    length = given["query"].shape[-2]
    every = range(world_size)
    around = [(rank - step) % world_size for step in every]

    def places(ranks):
        """The positions of these ranks, one rank after the other."""
        found = []
        for other in ranks:
            found += places_of(length, other, world_size)
        return found

    def over(keys, at):
        """Output and log-sum-exp over the keys of these ranks, taken for the keys of the ranks `at`."""
        query = given["query"][..., places([rank]), :]
        key = given["key"][..., places(keys), :]
        value = given["value"][..., places(keys), :]
        return attention(query, key, value, places([rank]), places(at))

    output, log_sum_exp = over(every, every)
    wrong = {
        "only the keys of this rank counted": over([rank], [rank])[0],
        "keys and values were always those of this rank": over([rank] * world_size, around)[0],
        "they travelled the other way round": over(around, [rank, *around[:0:-1]])[0],
        "all keys had the positions of this rank": over(every, [rank] * world_size)[0],
        # The log_sum_exp before any key is -inf. With 0 it is as if a key had been met.
        "there was one more key, of score 0, whose value is zeros": output * log_sum_exp.sigmoid(),
    }
    for other in every:
        rest = [one for one in every if one != other]
        wrong[f"the keys of rank {other} were left out"] = over(rest, rest)[0]
    return wrong


def backward_mistakes(given, right, name, rank, world_size):
    """Gradients that a rank comes to by a mistake, with words for it."""
    if world_size == 1 or name == "query":
        return {}
    wrong = {}
    gradient = given["gradient"]
    for other in range(world_size):
        places = places_of(gradient.shape[-2], other, world_size)
        its = torch.zeros_like(gradient)
        its[..., places, :] = gradient[..., places, :]
        rest = whole(given | {"gradient": gradient - its})[name]
        wrong[f"the queries of rank {other} were left out"] = shard(rest, rank, world_size)
        if other == rank:
            alone = whole(given | {"gradient": its})[name]
            wrong["only the queries of this rank counted"] = shard(alone, rank, world_size)
            all_shards = 0
            for one in range(world_size):
                all_shards = all_shards + shard(alone, one, world_size)
            wrong["nothing had been passed on"] = all_shards
        else:
            wrong[f"it were that of rank {other}'s {name}"] = shard(right[name], other, world_size)
    return wrong


RINGS = [(2, 2, ""), (3, 4, ", of float64"), (4, 2, ", with scores near 300 and -300"), (1, 1, "")]


def check_ring(world_size, shared, kind, relative, **more):
    length = 6 * world_size if world_size > 1 else 2
    tried(
        f"{so_many(world_size, 'process')}, 2 texts of {length} positions, 4 heads of queries and"
        f" {4 // shared} of keys and values, of size 8{kind}"
    )
    given = text(length, heads=4, shared=shared)
    if "float64" in kind:
        for name in given:
            given[name] = given[name].double()
        relative *= 1e-5
    if "300" in kind:
        given |= dict(zip(NAMES, shifted(attended(given), 300), strict=True))
        given["key"][..., 0:2, :] *= -1  # the first queries have later keys whose scores are far larger
        relative *= 100  # a score of 300 has the rounding of 300: with 50, a right answer came to 0.72 of it
    check_around(given, world_size, relative, **more)


@pytest.mark.parametrize(("world_size", "shared", "kind"), RINGS)
def test_4a_output_and_log_sum_exp_of_one_process(world_size, shared, kind):
    check_ring(world_size, shared, kind, 2e-5)


def check_sent(world_size, least, most, words, relative, **more):
    """All that a rank sends goes to the right: keys and values of a process, from `least` to `most` times."""
    tried(
        f"{world_size} processes, 2 texts of {16 * world_size} positions, 4 heads of queries and 2 of keys"
        " and values, of size 64; bytes of all calls of torch.distributed"
    )
    given = text(16 * world_size, size=64, heads=4, shared=2)
    unit = 2 * given["key"].nbytes // world_size
    few = 2000
    for rank, came in enumerate(check_around(given, world_size, relative, **more)):
        right = (rank + 1) % world_size
        for other, size in enumerate(came["sent"]):
            wanted = f"everything sent to the right, to rank {right}"
            is_right = other == right or size <= few
            require(is_right, f"rank {rank} sent {size:.0f} bytes to rank {other}", wanted)
        sent = came["sent"][right]
        times = f"{sent / unit:.2f} times the keys and values of a process, which are {unit} bytes"
        fine = least * unit <= sent <= most * unit + few
        require(fine, f"rank {rank} sent {sent:.0f} bytes to rank {right}: {times}", words)


def test_4b_keys_and_values_travel_to_the_right():
    check_sent(4, 3, 3, "3 times: after the last step, nothing more is needed", 2e-5)


def megabytes(value):
    return f"{value / 1e6:.2f} MB"


def check_memory(backward):
    """One pass with a head so wide that nothing else than the shards needs memory."""
    needs_memory()
    function, names, wanted = WAYS[backward]
    unit = 8 * LENGTH // RANKS * WIDE
    tried(
        f"{RANKS} processes, {function} with a text of {LENGTH} positions and one head of size {WIDE}; the"
        f" keys and values of a process are {megabytes(unit)}; peak memory as the kernel counts it"
    )
    # Heads of size 2, times this, have the same scores: its two rows are at a right angle, and equally long.
    wide = torch.linalg.qr(floats(WIDE, 2)).Q.T * (WIDE / 2) ** 0.25
    thin = text(LENGTH, size=2, texts=1, heads=1)
    right = whole(thin)
    given = with_results(thin, right)
    for name, one in right.items():
        if one.shape[-1] > 1:
            right[name] = one @ wide[:, -2:].double()
    inputs = []
    for mine in shards_of(given, names, RANKS):
        inputs.append({"function": function, "wide": wide, "tensors": mine})
    ranks = run(large, inputs)
    for rank, came in enumerate(ranks):
        for name, got in zip(wanted, came["found"], strict=True):
            check_numbers(result_named(name, rank, backward), got, shard(right[name], rank, RANKS), 1e-3)
    for rank, came in enumerate(ranks):
        most = (9.75 if backward else 6.5) * unit
        words = f"rank {rank} needed {megabytes(came['needed'])} in {function}, in addition to its inputs"
        every = f"the keys and values of all processes are {megabytes(RANKS * unit)}"
        require(came["needed"] <= most, words, f"at most {megabytes(most)}: {every}")


def test_4c_no_process_holds_all_keys_and_values():
    check_memory(backward=False)


def check_left_out(backward):
    """NaN in the values of one chunk, in each text of a different one: no query of an earlier chunk is to
    have anything of it. A product with 0 would be NaN, too."""
    chunks = 8
    function, _, _ = WAYS[backward]
    tried(
        f"4 processes, {function} with {chunks - 1} texts of {chunks} chunks; in each text, the values of one"
        " chunk are NaN"
    )
    given = text(3 * chunks, texts=chunks - 1, heads=1)
    right = whole(given)
    given = with_results(given, right)
    for number in range(chunks - 1):
        given["value"][number, :, 3 * (number + 1) : 3 * (number + 2)] = torch.nan
    name = "query" if backward else "output"
    for rank, came in enumerate(run_around(given, 4, backward)):
        got = came["found"][0]["came"][0]
        expected = shard(right[name], rank, 4)
        what = f"{result_named(name, rank, backward)}, for chunks before that of NaN"
        places = torch.tensor(places_of(3 * chunks, rank, 4))
        earlier = (places < 3 * torch.arange(1, chunks)[:, None])[:, None, :, None]
        if isinstance(got, torch.Tensor) and got.shape == expected.shape:
            got = got.where(earlier, 0)
            expected = expected.where(earlier, 0)
        close(what, got, expected)


def test_4d_halves_that_are_later_are_left_out():
    check_left_out(backward=False)


@pytest.mark.parametrize(("world_size", "shared", "kind"), RINGS)
def test_5a_the_gradients_of_one_process(world_size, shared, kind):
    check_ring(world_size, shared, kind, 5e-5, backward=True)


def test_5b_gradients_travel_with_their_keys():
    words = "6 or 7 times: keys and values 3 times, gradients equally often or once more"
    check_sent(4, 6, 7, words, 5e-5, backward=True)


def test_5b_and_no_process_holds_all_of_them():
    check_memory(backward=True)


def test_5c_halves_that_are_later_are_left_out():
    check_left_out(backward=True)
