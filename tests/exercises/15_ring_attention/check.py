"""What exercise 15 is held against. Runs in the judge."""

import functools
import operator

import numpy
import torch
from judge import Verdict, check, look, several, so_many
from judge.several import megabytes

NAMES, PAIR = ("query", "key", "value"), ("output", "log_sum_exp")
MERGED = (*PAIR, "new_output", "new_log_sum_exp")
EVERY = (*NAMES, *PAIR, "gradient")

# ---- what is right ----------------------------------------------------------------------------


def places_of(length, rank, world_size):
    """The positions of a rank in zigzag order."""
    chunk = length // (2 * world_size)
    early, late = rank * chunk, (2 * world_size - 1 - rank) * chunk
    return [*range(early, early + chunk), *range(late, late + chunk)]


def joined(lists):
    return [one for some in lists for one in some]


def in_a_row(length, rank, world_size):
    return list(range(rank * length // world_size, (rank + 1) * length // world_size))


def spread(tensor, query):
    """Each head of keys or values as often as heads of queries share it."""
    return tensor.repeat_interleave(query.shape[1] // tensor.shape[1], 1)


def collected(tensor, key):
    """What all heads of queries give a head of keys that they share."""
    return tensor.unflatten(1, (key.shape[1], -1)).sum(2)


def attention(query, key, value, query_places, key_places, scale=None, later=operator.gt, spread=spread):
    """Output and log-sum-exp, in 64 bits."""
    query, key, value = (one.double() for one in (query, key, value))
    key, value = spread(key, query), spread(value, query)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    masked = later(torch.tensor(key_places), torch.tensor(query_places)[:, None])
    scores = scores.masked_fill(masked, -torch.inf)
    total = scores.logsumexp(-1, keepdim=True)
    return (scores - total.nan_to_num(neginf=0.0)).exp() @ value, total


def whole(given):
    """All of it on one process: output, log_sum_exp, and the gradients if there is one to begin from."""
    leaves = [given[name].double().clone().requires_grad_() for name in NAMES]
    every = range(given["query"].shape[-2])
    output, total = attention(*leaves, every, every)
    found = {"output": output.detach(), "log_sum_exp": total.detach()}
    if "gradient" in given:
        output.backward(given["gradient"].double())
        found |= {name: one.grad for name, one in zip(NAMES, leaves, strict=True)}
    return found


def shard(value, rank, world_size):
    return value[..., places_of(value.shape[-2], rank, world_size), :]


def apart(trial, what, got, expected, relative=2e-5, wrong=dict):
    """Like trial.close. -inf may be right, NaN has words of its own, and so have some known mistakes: `wrong`
    works out what they come to, by name. It is only asked if something is wrong."""
    expected = expected.detach().numpy()
    alike = isinstance(got, numpy.ndarray) and got.shape == expected.shape and got.dtype.kind == "f"
    if alike:
        bad, nothing = numpy.isnan(got), numpy.isneginf(expected)
        more = f" ({int(bad.sum())} of {bad.size} numbers are NaN)"
        none_wrong(trial, what, bad, got, expected, more)
        none_wrong(trial, what, nothing != numpy.isneginf(got), got, expected)
        got, expected = numpy.where(nothing, 0, got), numpy.where(nothing, 0, expected)
    try:
        trial.close(what, got, expected, relative)
    except Verdict as verdict:
        fitting = []
        for words, one in wrong().items() if alike else ():
            one = numpy.where(nothing, 0, one.detach().numpy())
            # By some mistakes, a query meets no key: then all of `got` would be near to -inf.
            if not numpy.isfinite(one).all():
                continue
            near = functools.partial(numpy.allclose, one, rtol=0, atol=1e-4 * max(0.05, abs(one).max()))
            # Some mistakes make no difference to some ranks, and some come to the same on a rank.
            if near(got) and not near(expected):
                fitting.append(words)
        several.as_if(verdict, fitting)
        raise


def none_wrong(trial, what, wrong, got, expected, more=""):
    """If any of these numbers is wrong, say the first of them, and where it is."""
    if wrong.any():
        place = tuple(numpy.argwhere(wrong)[0].tolist())
        came = f"{what} is {number(got[place])} at {list(place)}{more}"
        trial.require(False, came, number(expected[place]))


def compare_pair(trial, what, came, right, relative, wrong):
    """Output and log_sum_exp of attend or merge. `wrong` works out what they come to by a mistake: the output
    (place 0), or the log_sum_exp."""
    is_pair = isinstance(came, list) and len(came) == 2
    name = what.split()[0].rstrip(",")
    trial.require(is_pair, f"{name} does not return a pair", "a pair: (output, log_sum_exp)")
    # The output of a query that meets no key is zeros: the log-sum-exp is -inf there.
    alone = torch.isneginf(right[1]).expand(right[0].shape).numpy()
    if isinstance(came[0], numpy.ndarray) and came[0].shape == alone.shape:
        zeros, more = numpy.zeros(alone.shape), ", for a query without any key"
        none_wrong(trial, f"the output of {what}", alone & (came[0] != 0), came[0], zeros, more)
    for place, name in enumerate(PAIR):
        mistakes = functools.partial(wrong, place)
        apart(trial, f"the {name} of {what}", came[place], right[place], relative, mistakes)


def number(value):
    return f"{float(value):.6g}".replace("nan", "NaN")


# ---- 15.1 -------------------------------------------------------------------------------------


def order(trial):
    sizes = (1, 2, 3, 4, int(trial.integers(5, 9)))
    cases, pairs = [], []
    for world_size in sizes:
        length = 2 * world_size * (1 if world_size == 2 else int(trial.integers(2, 6)))
        cases += [[length, rank, world_size] for rank in range(world_size)]
        pairs += [[rank, owner] for rank in range(world_size) for owner in range(world_size)]
    # In a group of one process: what is asked for does not depend on this process's group.
    (found,) = trial.run("order", [{"positions": cases, "meetings": pairs}])
    return sizes, cases, pairs, found


@check("15.1a")
def zigzag(trial):
    trial.tried("positions for every rank, with 1, 2, 3, 4 and more processes")
    _, cases, _, found = order(trial)
    for number, (length, rank, world_size) in enumerate(cases):
        got, right = look(found, "positions", number), places_of(length, rank, world_size)
        what = f"positions({length}, {rank}, {world_size})"
        trial.require(isinstance(got, numpy.ndarray), f"{what} is not a tensor", "a tensor of integers")
        words = f"; these are plain blocks: {so_many(world_size, 'process')} with one continuous block each"
        came = f"{what} is {short(got.tolist())}"
        same = got.tolist() == right
        row = got.tolist() == in_a_row(length, rank, world_size)
        trial.require(same, came + words * row, short(right))
        trial.require(got.dtype.kind == "i", f"{what} has dtype {got.dtype}", "integers: int64")


def short(values):
    text = str(values)
    return text if len(text) < 120 else f"{text[:100]} ..."


def meet(rank, owner):
    """The pairs of halves that meet: the chunk of the keys is not later than that of the queries."""
    world_size = max(rank, owner) + 1
    mine, theirs = ([one, 2 * world_size - 1 - one] for one in (rank, owner))
    return [[own, its] for own in (0, 1) for its in (0, 1) if theirs[its] <= mine[own]]


@check("15.1b")
def halves(trial):
    trial.tried("meetings for all pairs of a rank and an owner, with 1, 2, 3, 4 and more processes")
    _, _, pairs, found = order(trial)
    for number, (rank, owner) in enumerate(pairs):
        got, right = look(found, "meetings", number), meet(rank, owner)
        what = f"meetings({rank}, {owner})"
        more = [pair for pair in got if pair not in right] if isinstance(got, list) else []
        less = [pair for pair in right if pair not in got] if isinstance(got, list) else []
        words = f"; in {more[0]} all keys are later" if more else f"; {less[0]} is missing" if less else ""
        trial.require(got == right, f"{what} is {got}{words}", f"{right}")


# ---- 15.2 -------------------------------------------------------------------------------------


def text(trial, positions, size=8, texts=2, heads=3, shared=1):
    """`shared`: how many heads of queries use each head of keys and values."""
    counts = {"query": heads, "key": heads // shared, "value": heads // shared, "gradient": heads}
    return {name: trial.floats(texts, count, positions, size) for name, count in counts.items()}


def attended(given):
    """Query, key and value of a text."""
    return [given[name] for name in NAMES]


def no_mask(key, query):
    return (key < 0) & (query < 0)


def some_keys(trial, cases, relative=2e-5):
    """attend on cases of (words, query, key, value, query's positions, key's positions)."""
    inputs = [[*case[1:4], *map(torch.tensor, case[4:])] for case in cases]
    (found,) = trial.run("some_keys", [{"cases": inputs}], group=False)
    for number, (words, *given) in enumerate(cases):
        for name, changed in zip(NAMES, look(found, number, "changed") or (), strict=False):
            trial.require(changed is False, f"attend{words} changed {name}", "an unchanged tensor")
        wrong = functools.partial(attend_mistakes, given)
        came = look(found, number, "came")
        its = relative if given[0].dtype == torch.float32 else 1e-10
        compare_pair(trial, f"attend{words}", came, attention(*given), its, wrong)


def attend_mistakes(given, place):
    wrong = {
        "scores were not divided by the square root of the size": {"scale": 1.0},
        "scores were divided by the size": {"scale": 1 / given[0].shape[-1]},
        "later keys were not masked": {"later": no_mask},
        "the key at a query's own position was masked": {"later": operator.ge},
        "the mask was reversed": {"later": operator.lt},
    }
    if given[0].shape[1] > given[1].shape[1] > 1:
        wrong["the heads of queries used the heads of keys and values in turn"] = {"spread": in_turn}
    return {words: attention(*given, **more)[place] for words, more in wrong.items()}


def in_turn(tensor, query):
    return tensor.repeat(1, query.shape[1] // tensor.shape[1], 1, 1)


def some(trial, queries, keys, among):
    """Tensors for attend, and positions among so many, those of the keys in any order."""
    places = [sorted(trial.random.choice(among, count, replace=False).tolist()) for count in (queries, keys)]
    query, *both = attended(text(trial, max(queries, keys)))
    tensors = [query[..., :queries, :], *(one[..., :keys, :] for one in both)]
    return [one.contiguous() for one in tensors], places


@check("15.2a")
def attend(trial):
    trial.tried("attend with 6 queries and 6 keys at positions 0 to 5, then with 5 queries and 9 keys, where")
    trial.words.append("each query has some keys; everything in 2 texts with 3 heads of size 8")
    first = attended(text(trial, 6))
    tensors, (_, keys) = some(trial, 5, 9, 30)
    queries = trial.integers(keys[0], 30, 5).tolist()
    queries[:2] = 29, keys[0]  # not ascending, whatever is drawn
    shuffled = trial.random.permutation(9).tolist()
    tensors[1:] = [one[..., shuffled, :].contiguous() for one in tensors[1:]]
    cases = [
        ("", *first, list(range(6)), list(range(6))),
        (" for 5 queries and 9 keys", *tensors, queries, [keys[one] for one in shuffled]),
    ]
    some_keys(trial, cases)


def shifted(tensors, by):
    """Tensors whose scores are larger by so much, all of them."""
    query, key, value = (one.clone() for one in tensors)
    query[..., 0] = (abs(by) * query.shape[-1] ** 0.5) ** 0.5
    key[..., 0] = query[..., 0].amax() * (1 if by > 0 else -1)
    return query, key, value


@check("15.2b")
def large_scores(trial):
    trial.tried("attend with scores near 300, then near -300")
    cases = []
    for by in (300, -300):
        tensors = shifted(attended(text(trial, 6)), by)
        cases.append((f" with scores near {by}", *tensors, list(range(6)), list(range(6))))
    some_keys(trial, cases, relative=1e-3)


@check("15.2c")
def no_keys(trial):
    trial.tried("attend with 6 queries at positions 4 to 9 and 5 keys at positions 7 to 11, then with")
    trial.words.append("queries at positions 0 to 3 and keys at 4 to 7")
    first, _ = some(trial, 6, 5, 20)
    second, _ = some(trial, 4, 4, 20)
    words = ", where some queries have no key,"
    cases = [
        (words, *first, list(range(4, 10)), list(range(7, 12))),
        (", where no query has any key,", *second, list(range(4)), list(range(4, 8))),
    ]
    some_keys(trial, cases)


@check("15.2d")
def shared_heads(trial):
    trial.tried("attend with 6 heads of queries and 2, 1 and 6 heads of keys and values, 5 positions each")
    cases = []
    for shared in (3, 6, 1):
        given = text(trial, 5, heads=6, shared=shared)
        words = f" for 6 heads of queries and {so_many(6 // shared, 'head')} of keys and values"
        cases.append((words, *attended(given), list(range(5)), list(range(5))))
    words = " for float64"
    cases.append((words, *(one.double() / 3 for one in attended(given)), list(range(5)), list(range(5))))
    some_keys(trial, cases)


# ---- 15.3 -------------------------------------------------------------------------------------


def merged(trial, cases, relative=2e-5):
    """merge on cases of (words, query, key, value, queries' positions, one side's keys, the other's)."""
    inputs, rights = [], []
    for _, query, key, value, places, *sides in cases:
        given = []
        for side in sides:
            given += attention(query, key[..., side, :], value[..., side, :], places, side)
        both = sorted(joined(sides))
        rights.append(attention(query, key[..., both, :], value[..., both, :], places, both))
        inputs.append([one.to(query.dtype) for one in given])
    (found,) = trial.run("merged", [{"cases": inputs}], group=False)
    for number, (words, *_) in enumerate(cases):
        wrong = functools.partial(merge_mistakes, inputs[number])
        its = relative if inputs[number][0].dtype == torch.float32 else 1e-10
        compare_pair(trial, f"merge{words}", look(found, number, "came"), rights[number], its, wrong)
        changes = look(found, number, "changed") or () if len(cases) > 1 else ()  # a check of its own: 15.3b
        for name, changed in zip(MERGED, changes, strict=False):
            trial.require(changed is False, f"merge{words} changed {name}", "an unchanged tensor")


def merge_mistakes(given, place):
    output, total, more, more_total = (one.double() for one in given)
    if place:
        found = {"the two log_sum_exp were added up": total + more_total}
        return found | {"the larger of the two was used": torch.maximum(total, more_total)}
    share, of_sums = (total - torch.logaddexp(total, more_total)).exp(), total / (total + more_total)
    return {
        "the outputs were added up": output + more,
        "the mean of the outputs was used": (output + more) / 2,
        "the shares were shares of log_sum_exp, not of its exp": of_sums * output + (1 - of_sums) * more,
        "the two shares were swapped": (1 - share) * output + share * more,
    }


@check("15.3a")
def merge(trial):
    trial.tried(
        "merge of the outputs over keys 0 to 3 and over keys 4 to 6, for queries at positions 7 to 11"
    )
    query, *tensors = attended(text(trial, 12))
    merged(trial, [("", query[..., 7:, :], *tensors, list(range(7, 12)), [0, 1, 2, 3], [4, 5, 6])])


@check("15.3b")
def merge_nothing(trial):
    trial.tried("merge where some queries have no key in the old result; in the new result; in neither;")
    trial.words.append("where log_sum_exp is near 300 and -300; and in float64")
    tensors, places = attended(text(trial, 12)), list(range(12))
    double = [one.double() / 3 for one in tensors]
    cases = [
        (" of float64", *double, places, [0, 1, 2], [3, 4, 5]),
        (", where some queries had no old key,", *tensors, places, [3, 4, 5], [0, 1, 2]),
        (", where some queries have no new key,", *tensors, places, [0, 1, 2], [9, 10]),
        (", where some queries have no key on either side,", *tensors, places, [6, 7], [4, 5]),
    ]
    for by in (300, -300):
        words = f" with log_sum_exp near {by}"
        cases.append((words, *shifted(tensors, by), places, [0, 2, 4], [1, 3, 5]))
    merged(trial, cases, relative=1e-3)


# ---- 15.4 and 15.5: around the ring -----------------------------------------------------------


def shards(given, world_size, names):
    """What each rank gets: its positions, as texts x positions x heads x size."""
    return [
        {name: shard(given[name], rank, world_size).transpose(1, 2).contiguous() for name in names}
        for rank in range(world_size)
    ]


def around(trial, given, world_size, relative, backward=False):
    """ring_forward or ring_backward on shards of this text."""
    what = "ring_backward" if backward else "ring_forward"
    right, names = whole(given), EVERY if backward else NAMES
    if backward:
        given = given | {name: right[name].to(given["query"].dtype) for name in PAIR}
    inputs = shards(given, world_size, names)
    for rank, came in enumerate(trial.run("backward" if backward else "forward", inputs)):
        # First: whoever divides the query in its place gets other numbers by that.
        for place, name in enumerate(names):
            same = several.same_bits(look(came, "after", place), inputs[rank][name].transpose(1, 2).numpy())
            trial.require(same, f"{what} changed {name} on rank {rank}", "an unchanged tensor")
        found, wanted = look(came, "found"), NAMES if backward else PAIR
        is_list = isinstance(found, list) and len(found) == len(wanted)
        trial.require(is_list, f"on rank {rank}, {what} does not return {so_many(len(wanted), 'tensor')}")
        mistakes = backward_mistakes if backward else forward_mistakes
        for place, name in enumerate(wanted):
            its = f"the {'gradient of the ' if backward else ''}{name} on rank {rank}"
            wrong = functools.partial(mistakes, given, right, name, rank, world_size)
            apart(trial, its, found[place], shard(right[name], rank, world_size), relative, wrong)


def forward_mistakes(given, right, name, rank, world_size):
    """Outputs that a rank comes to by a mistake, with words for it."""
    if world_size == 1 or name != "output":
        return {}
    length = given["query"].shape[-2]
    places = [places_of(length, other, world_size) for other in range(world_size)]
    rows = [in_a_row(length, other, world_size) for other in range(world_size)]
    query = given["query"][..., places[rank], :]

    def over(keys, at=None, own=places[rank], place=0, **more):
        """The output over the keys of these ranks, taken for those at the positions `at`."""
        there = joined(places[other] for other in keys)
        at = there if at is None else joined(at)
        tensors = (given[name][..., there, :] for name in ("key", "value"))
        return attention(query, *tensors, own, at, **more)[place]

    every, around = range(world_size), [(rank - step) % world_size for step in range(world_size)]
    half = len(places[rank]) // 2
    blocks = [
        attention(query, *(given[name][..., some, :] for name in ("key", "value")), places[rank], some)[0]
        for one in places
        for some in (one[:half], one[half:])
    ]
    each, theirs = [over([other]) for other in every], [places[one] for one in around]
    wrong = {
        "later keys were not masked": over(every, later=no_mask),
        "the positions were in plain order": over(every, rows, rows[rank]),
        "keys and values were always those of this rank": over([rank] * world_size, theirs),
        "they travelled the other way round": over(around, [theirs[0], *theirs[:0:-1]]),
        "all keys had the positions of this rank": over(every, [places[rank]] * world_size),
        "there was one more key, of score 0, whose value is zeros": begun_with_zero(over, every),
        "the outputs over the keys of each rank were added up": sum(each),
        "the outputs over the keys of each half were added up": sum(blocks),
        "the mean of the outputs over the keys of each rank was used": sum(each) / world_size,
    }
    for other in every:
        name = "this rank" if other == rank else f"rank {other}"
        wrong[f"only the keys of {name} counted"] = each[other]
        wrong[f"the keys of {name} were left out"] = over([one for one in every if one != other])
    return wrong


def begun_with_zero(over, every):
    """The log_sum_exp before any key is -inf. With 0 it is as if a key had been met."""
    return over(every) * torch.sigmoid(over(every, place=1))


@check("15.4a")
def ring_forward(trial):
    for world_size, given, scale in ring_cases(trial):
        around(trial, given, world_size, 2e-5 * scale)


def ring_cases(trial):
    """Processes, a text, and by how much more than usual rounding may matter."""
    for world_size, shared, kind in (
        (2, 2, ""),
        (3, 4, ", of float64"),
        (4, 2, ", with scores near 300"),
        (1, 1, ""),
    ):
        length = 6 * world_size if world_size > 1 else 2
        trial.tried(
            f"{so_many(world_size, 'process')}, 2 texts of {length} positions, 4 heads of queries and"
            f" {4 // shared} of keys and values, of size 8{kind}"
        )
        given, scale = text(trial, length, heads=4, shared=shared), 1
        if "float64" in kind:
            given, scale = {name: one.double() for name, one in given.items()}, 1e-5
        if "300" in kind:
            given |= dict(zip(NAMES, shifted(attended(given), 300), strict=True))
            scale = 50
        yield world_size, given, scale


def to_the_right(trial, world_size, least, most, unit, words):
    """What each rank has sent, as the kernel counts: all of it to the right. `unit`: a process's keys and
    values, of which there are `least` to `most`."""
    if not trial.counted:
        return
    for rank in range(world_size):
        right, allowed = (rank + 1) % world_size, 2000 * world_size
        for other in set(range(world_size)) - {rank, right}:
            sent = trial.sent(rank, other)
            came = f"rank {rank} sent {sent} bytes to rank {other}"
            trial.require(sent <= allowed, came, f"everything sent to the right, to rank {right}")
        sent = trial.sent(rank, right)
        came = f"{sent / unit:.2f} times the keys and values of a process, which are {unit} bytes"
        fine = least * unit * 0.99 <= sent <= most * unit * 1.01 + allowed
        trial.require(fine, f"rank {rank} sent {sent} bytes to rank {right}: {came}", words)


def counted_text(trial, world_size):
    given = text(trial, 16 * world_size, size=64, heads=4, shared=2)
    words = f"{world_size} processes, 2 texts of {16 * world_size} positions, 4 heads of queries and 2"
    trial.tried(f"{words} of keys and values, of size 64; bytes as measured by the kernel")
    return given, 2 * 4 * given["key"].numel() // world_size


@check("15.4b")
def bytes_forward(trial):
    for world_size in (4, 3):
        given, unit = counted_text(trial, world_size)
        around(trial, given, world_size, 2e-5)
        least = world_size - 1
        words = f"{least} times: after the last step, nothing more is needed"
        to_the_right(trial, world_size, least, least, unit, words)


check("15.4c")(lambda trial: memory(trial, backward=False))


# Positions, size of a head, and processes, where memory is looked at; and columns that are compared.
LENGTH, WIDE, RANKS, COLUMNS = 128, 1 << 15, 8, 500
WARM = 6 << 20  # bytes by which a process may have grown until the tensors are made


def memory(trial, backward):
    """One pass with a head so wide that nothing else than the shards needs memory. Afterwards the judge says
    which columns it wants to see."""
    what, unit = "ring_backward" if backward else "ring_forward", 8 * LENGTH // RANKS * WIDE
    trial.tried(
        f"{RANKS} processes, {what} with a text of {LENGTH} positions and one head of size {WIDE}; the keys"
        f" and values of a process are {megabytes(unit)}; peak memory as measured by the kernel"
    )
    names, secret = ((*NAMES, "gradient"), "gradient") if backward else (NAMES, "value")
    thin = {name: trial.floats(LENGTH, 2) for name in names}
    wide = {name: trial.floats(2, WIDE) for name in names}
    first = int(trial.unknown.integers(0, WIDE - COLUMNS))
    gates, inputs = several.gates_of(trial, RANKS, "before", "made", "after"), []
    for rank, gate in enumerate(gates):
        gate["after"]["value"] = first
        if trial.counted:
            gate["before"] |= {"memory": WARM, "words": "before any tensor was made"}
            gate["before"]["expected"] = f"at most {megabytes(WARM)} of memory"
        own = {name: [shard(thin[name], rank, RANKS), wide[name]] for name in names}
        inputs.append({"secret": secret, "columns": COLUMNS, "thin": own})
    if backward:
        right = thin_pass(thin, wide, slice(0, 0))
        for rank, one in enumerate(inputs):
            one["log_sum_exp"] = shard(right["log_sum_exp"].float(), rank, RANKS)
            one["thin"]["output"] = [shard(right["means"].float(), rank, RANKS), wide["value"]]
    ranks = trial.run("large", inputs, gates=gates)
    for rank in range(RANKS):
        thin[secret][places_of(LENGTH, rank, RANKS)] *= gates[rank]["made"]["value"]
    right = thin_pass(thin, wide, slice(first, first + COLUMNS))
    for rank, came in enumerate(ranks):
        for place, name in enumerate(NAMES if backward else PAIR):
            its = f"the gradient of the {name}" if backward else f"the {name}"
            expected = shard(right[name], rank, RANKS)[None, None]
            apart(trial, f"{its} on rank {rank}", look(came, place), expected, 1e-3)
    for rank in range(RANKS) if trial.counted else ():
        grown = trial.asked(rank, "after")["peak"] - trial.asked(rank, "made")["resident"]
        most = (9.75 if backward else 6.5) * unit
        came = f"rank {rank} needed {megabytes(grown)} in {what}, in addition to its inputs"
        every = f"the keys and values of all processes are {megabytes(RANKS * unit)}"
        trial.require(grown <= most, came, f"at most {megabytes(most)}: {every}")


def thin_pass(thin, wide, columns):
    """Some columns of what comes of tensors that are products of a thin and a wide matrix each."""
    thin, wide = ({name: one.double() for name, one in some.items()} for some in (thin, wide))
    seen = {name: one[:, columns] for name, one in wide.items()}
    scores = thin["query"] @ (wide["query"] @ wide["key"].T) @ thin["key"].T * WIDE**-0.5
    scores = scores.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -torch.inf)
    weights, total = scores.softmax(-1), scores.logsumexp(-1, keepdim=True)
    means = weights @ thin["value"]
    if "gradient" not in thin:
        return {"output": means @ seen["value"], "log_sum_exp": total}
    above = thin["gradient"] @ (wide["gradient"] @ wide["value"].T) @ thin["value"].T
    above = weights * (above - (above * weights).sum(-1, keepdim=True)) * WIDE**-0.5
    return {
        "means": means,
        "log_sum_exp": total,
        "query": above @ thin["key"] @ seen["key"],
        "key": above.T @ thin["query"] @ seen["query"],
        "value": weights.T @ thin["gradient"] @ seen["gradient"],
    }


check("15.4d")(lambda trial: left_out(trial, backward=False))


def left_out(trial, backward):
    """NaN in the values of one chunk, in each text of a different one: no query of an earlier chunk is to
    have anything of it. A product with 0 would be NaN, too."""
    world_size, what = 4, "ring_backward" if backward else "ring_forward"
    chunks = 2 * world_size
    given = text(trial, 3 * chunks, texts=chunks - 1, heads=1)
    right = whole(given)
    given |= {name: right[name].float() for name in PAIR}
    for number in range(chunks - 1):
        given["value"][number, :, 3 * (number + 1) : 3 * (number + 2)] = torch.nan
    trial.tried(
        f"{world_size} processes, {what} with {chunks - 1} texts of {chunks} chunks; in each text, the"
        " values of one chunk are NaN"
    )
    inputs = shards(given, world_size, EVERY if backward else NAMES)
    ranks = trial.run("backward" if backward else "forward", inputs)
    name, its = ("query", "gradient of the query") if backward else ("output", "output")
    for rank, came in enumerate(ranks):
        got = look(came, "found", 0)
        expected = shard(right[name], rank, world_size)
        alike = isinstance(got, numpy.ndarray) and got.shape == tuple(expected.shape)
        trial.require(alike, f"the {its} on rank {rank} does not have the shape of its queries")
        for number in range(chunks - 1):
            for half, chunk in enumerate((rank, chunks - 1 - rank)):
                if chunk > number:
                    continue
                what, some = f"the {its} on rank {rank}", slice(3 * half, 3 * half + 3)
                trial.require(
                    not numpy.isnan(got[number, :, some]).any(),
                    f"{what} is NaN for its chunk {chunk} of {chunks}: NaN was only in the values of chunk"
                    f" {number + 1}, which is later",
                    "numbers: leave out a block in which all keys are later",
                )
                apart(trial, f"{what} for its chunk {chunk}", got[number, :, some], expected[number, :, some])


# ---- 15.5 -------------------------------------------------------------------------------------


def backward_mistakes(given, right, name, rank, world_size):
    """Gradients that a rank comes to by a mistake, with words for it."""
    length = given["query"].shape[-2]
    query, key, value, gradient = (given[one].double() for one in (*NAMES, "gradient"))
    few, key, value = key, spread(key, query), spread(value, query)
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    weights = (scores - right["log_sum_exp"]).exp()
    above = gradient @ value.mT
    wrong, scale = {}, query.shape[-1] ** -0.5
    if name != "value":

        def its_gradient(at_scores):
            found = at_scores @ key if name == "query" else collected(at_scores.mT @ query, few)
            return shard(found * scale, rank, world_size)

        wrong["nothing was subtracted from the gradient of the scores"] = its_gradient(weights * above)
        apart = torch.zeros_like(weights)
        for some in torch.arange(length).chunk(2 * world_size):
            block = (weights * above)[..., some]
            apart[..., some] = block - weights[..., some] * block.sum(-1, keepdim=True)
        wrong["the subtracted sum were over the keys of each half alone"] = its_gradient(apart)
    if name == "query" or world_size == 1:
        return wrong
    at_scores = weights * (above - (gradient * right["output"]).sum(-1, keepdim=True)) * scale
    left, factor = (at_scores, query) if name == "key" else (weights, gradient)
    every, places = range(world_size), [places_of(length, one, world_size) for one in range(world_size)]
    counted = {"only the queries of this rank counted": [rank]} | {
        f"the queries of rank {other} were left out": [one for one in every if one != other]
        for other in every
    }
    for words, ranks in counted.items():
        some = joined(places[one] for one in ranks)
        found = collected(left[..., some, :].mT @ factor[..., some, :], few)
        wrong[words] = shard(found, rank, world_size)
    shares = query.shape[1] // few.shape[1]
    if shares > 1:
        first = (left.mT @ factor).unflatten(1, (few.shape[1], -1))[:, :, 0]
        wrong["only the first of the heads that share it counted"] = shard(first, rank, world_size)
        wrong["it were the mean over the heads that share it"] = shard(right[name], rank, world_size) / shares
    own = places[rank]
    kept = sum(left[..., own, :][..., some].mT @ factor[..., own, :] for some in places)
    wrong["nothing had been passed on"] = collected(kept, few)
    for other in every:
        if other != rank:
            wrong[f"it were that of rank {other}'s {name}"] = shard(right[name], other, world_size)
    its = {"key": "value", "value": "key"}[name]
    wrong[f"it were that of the {its}"] = shard(right[its], rank, world_size)
    return wrong


@check("15.5a")
def ring_backward(trial):
    for world_size, given, scale in ring_cases(trial):
        around(trial, given, world_size, 5e-5 * scale, backward=True)


@check("15.5b")
def traffic_backward(trial):
    world_size = 4
    given, unit = counted_text(trial, world_size)
    around(trial, given, world_size, 5e-5, backward=True)
    least, most = 2 * (world_size - 1), 2 * world_size - 1
    words = (
        f"{least} or {most} times: keys and values {least // 2} times, gradients equally often or once more"
    )
    to_the_right(trial, world_size, least, most, unit, words)
    memory(trial, backward=True)


check("15.5c")(lambda trial: left_out(trial, backward=True))
