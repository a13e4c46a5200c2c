"""What exercise 03a is held against. Runs in the judge."""

import itertools
import sys

import numpy
import torch
from judge import HEADER, Verdict, check

MARGIN = 20  # numbers before and after a tensor, which the ring has nothing to do with
GLOO_ENDS = {
    "SIGABRT": "a message is larger than the tensor that it is received into",
    "SIGSEGV": "it should talk to a rank that does not exist",
}


def run(trial, driver, inputs, **more):
    """Trial.run, with words for what gloo says by ending the process."""
    try:
        return trial.run(driver, inputs, **more)
    except Verdict as verdict:
        for signal, why in GLOO_ENDS.items():
            verdict.came += f"; gloo does this when {why}" * (signal in verdict.came)
        raise


def part(trial, came, name, kind=numpy.ndarray):
    """One thing that a driver hands back. A forged answer may be anything."""
    value = came.get(name) if isinstance(came, dict) else None
    right = isinstance(value, kind) and (kind is list or value.ndim == 1)
    trial.require(right, f"the result is not a {'list' if kind is list else 'tensor of one dimension'}")
    return value


def sent(trial, world_size):
    """Bytes that went from each rank (row) to each other (column), as the kernel counts."""
    found = [[trial.sent(rank, other) for other in range(world_size)] for rank in range(world_size)]
    return [] if None in found[0] else numpy.array(found)


def round_the_ring(trial, steps, data, words="", count=True):
    """One message to the right in each step, and nothing else. `data`: least and most bytes for each rank."""
    world_size, rows = len(data), sent(trial, len(data))
    for rank, row in enumerate(rows):
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        (least, most), allowed = data[rank], 10 * HEADER * steps
        gone, headers = int(row.sum()), (2 if world_size > 2 else 3) * HEADER
        messages = float(row[right] - (least + most) / 2) / headers
        sent_right = f"the number of messages from rank {rank} to rank {right}"
        # Many small messages are more bytes as well, but that says nothing to a student. Every message has
        # two headers, and is answered by a third: if both numbers agree, the messages are too many.
        if count and world_size > 2 and abs(messages - rows[right][rank] / HEADER) < 0.5:
            trial.same(sent_right, round(messages), steps)

        def only_right(good, words, rank=rank, right=right):
            trial.require(good, f"rank {rank} sent {words}", f"messages only to the right, to rank {right}")

        to_left = f"{row[left]} bytes to the left, to rank {left}"
        only_right(world_size == 2 or row[left] < least / steps / 2, to_left)
        trial.require(
            least <= gone <= most + allowed,
            f"rank {rank} sent {gone} bytes, {gone / max(1, most):.2f} times as many as it should",
            f"{most} bytes{words}, plus up to {allowed} bytes that the network adds",
        )
        for other in set(range(world_size)) - {rank, right, left}:
            only_right(row[other] == 0, f"{row[other]} bytes to rank {other}")
        only_right(world_size == 2 or row[left] <= 4 * HEADER * steps, to_left)
        if count:
            trial.same(sent_right, round(messages), steps)
        if count and world_size > 2:
            what = f"the number of messages that rank {rank} received from rank {left}"
            trial.same(what, round(float(row[left]) / HEADER), steps)


def whose(got, given, number):
    """Whose numbers have been added up in a chunk, or None. `given` has all chunks of all ranks as they were;
    what is in chunk `number` may have come from another chunk of the same size."""
    alike = [place for place, chunk in enumerate(given[0]) if len(chunk) == len(got)]
    if not len(got) or number not in alike:
        return None
    ways = [(), (number,), *((place,) for place in alike if place != number), (number, number)]
    allowed = 1e-4 * float(abs(given[0][number]).max())
    # There are more than a thousand ways: only a few come to all numbers.
    for some, tried in ((slice(4), itertools.product(ways, repeat=len(given))), (slice(None), None)):
        ways = [
            way
            for way in tried or ways
            if numpy.allclose(got[some], added_up(given, way, some), rtol=1e-4, atol=allowed)
        ]
    return ways[0] if ways else None


def added_up(given, way, some):
    return sum((given[rank][place][some] for rank, places in enumerate(way) for place in places), start=0.0)


def words(way, rank, number):
    """{0, 2}: the sum of the numbers of ranks 0 and 2."""
    if way is None:
        return "something else"
    if all(places == (number,) * (other == rank) for other, places in enumerate(way)):
        return f"{{{rank}}}, unchanged"
    found = {}
    for other, places in enumerate(way):
        for place in places:
            found.setdefault(place, []).append(other)
    if not found:
        return "zeros"
    alone = " alone" if sum(map(len, found.values())) == 1 else ""
    parts = [
        f"{'' if place == number else f'chunk {place} of '}{{{', '.join(map(str, ranks))}}}"
        for place, ranks in sorted(found.items(), key=lambda one: one[0] != number)
    ]
    return " and ".join(parts) + alone


def in_chunks(trial, rank, wanted, got, given, what="", rest=""):
    """The Verdict about a rank whose chunk `wanted` is not the sum, if what is there can be read. `got` has
    all chunks of that rank as they are now."""
    ways = [whose(chunk, given, number) for number, chunk in enumerate(got)]
    if ways[wanted] is None:
        return None
    said = {n: words(way, rank, n) for n, way in enumerate(ways) if len(got[n])}
    came = f"{what}chunk {wanted} on rank {rank} holds {said.pop(wanted)}"
    if all(one.endswith("unchanged") for one in [came, *said.values()]):
        came, rows = f"{what}no chunk of rank {rank} has changed", sent(trial, len(given))
        if len(rows) and rows[rank - 1][rank]:
            came += f", though {rows[rank - 1][rank]} bytes arrived from rank {(rank - 1) % len(given)}"
    elif said:
        came += f" (and {'; '.join(f'chunk {number} {one}' for number, one in said.items())})"
    everyone = ", ".join(map(str, range(len(given))))
    wanted = f"chunk {wanted} on rank {rank} holds {{{everyone}}}, the sum over these ranks{rest}"
    return Verdict("failed", came, wanted)


def cut_at(array, sizes):
    return numpy.split(numpy.asarray(array, dtype="float64"), numpy.cumsum(sizes)[:-1])


def sizes_of(count, world_size):
    """Sizes that differ by one at most, the larger ones first."""
    return [count // world_size + (place < count % world_size) for place in range(world_size)]


def cut_cases(trial):
    drawn = [(int(trial.integers(5, 9)) * 4, 4), (int(trial.integers(5, 9)) * 3 + 2, 3)]
    fixed = [(10, 4), (11, 4), (2, 4), (0, 3), (7, 1)]
    return [(trial.floats(count), world_size) for count, world_size in drawn + fixed]


def cut(trial, cases):
    """The cases with what came of each, after the chunks were found to have the right sizes."""
    found = run(trial, "cut", [{"cases": cases}], group=False)[0]
    kind = f"what chunks_of returns has the type {found}" if isinstance(found, str) else "there is no result"
    trial.require(isinstance(found, list) and len(found) == len(cases), kind, "a list or a tuple")
    for (flat, world_size), came in zip(cases, found, strict=True):
        what = f"of {len(flat)} numbers for {world_size} processes"
        chunks = part(trial, came, "chunks", list)
        shapes = [list(chunk.shape) if isinstance(chunk, numpy.ndarray) else None for chunk in chunks]
        sizes = [shape[0] if shape and len(shape) == 1 else shape for shape in shapes]
        trial.same(f"the list of sizes of the chunks {what}", sizes, sizes_of(len(flat), world_size))
        yield what, flat, world_size, numpy.concatenate(chunks), part(trial, came, "written")


@check("03a.1a")
def chunk_sizes(trial):
    cases = cut_cases(trial)
    words = ", ".join(f"{len(flat)} numbers for {world_size}" for flat, world_size in cases)
    trial.tried(f"{words} processes")
    for what, flat, _, joined, _ in cut(trial, cases):
        trial.close(f"the contents of the chunks {what}, joined together", joined, flat)


@check("03a.1b")
def chunk_views(trial):
    cases = cut_cases(trial)
    trial.tried("write a number into each chunk")
    for what, flat, world_size, _, written in cut(trial, cases):
        expected = numpy.repeat(numpy.arange(world_size), sizes_of(len(flat), world_size))
        trial.close(f"afterwards, the tensor {what}", written, expected)


def passed_on(trial, sizes, late=(), overwrite=False):
    """`late`: how many seconds each rank is late, where any is."""
    outgoing = [trial.floats(size) for size in sizes]
    inputs = [
        {"outgoing": one, "incoming": trial.floats(sizes[rank - 1]), "overwrite": overwrite}
        for rank, one in enumerate(outgoing)
    ]
    for one, seconds in itertools.zip_longest(inputs, late, fillvalue=0):
        one["late"] = seconds
    for rank, came in enumerate(run(trial, "pass_on", inputs)):
        left, got = (rank - 1) % len(sizes), part(trial, came, "incoming")
        wanted = f"what rank {left}, on its left, sent"
        # The mistakes that can be named by what has come.
        for other, gone in enumerate(outgoing):
            of = f"what rank {rank} received is what rank {other} sent"
            trial.require(other == left or not numpy.array_equal(got, gone), of, wanted)
        arrived = not len(got) or not numpy.array_equal(got, inputs[rank]["incoming"])
        trial.require(arrived, f"nothing had arrived at rank {rank} when pass_on returned", wanted)
        zeros = f"rank {rank} received the zeros that were written into rank {left}'s tensor after its "
        zeros += "pass_on had returned"
        trial.require(not overwrite or got.any(), zeros, f"what rank {left} sent")
        trial.close(f"what rank {rank} received from rank {left}", got, outgoing[left])
        kept = part(trial, came, "outgoing")
        trial.close(f"the tensor that rank {rank} sent, afterwards", kept, outgoing[rank])


@check("03a.2a")
def neighbours(trial):
    for world_size in (3, 2, 4):
        # Tensors of one size first: where they go to the wrong rank, it can be said to which.
        sizes = [300] * 3 if world_size == 3 else trial.integers(200, 400, world_size).tolist()
        late = (0, 0, 0.05) if world_size == 3 else ()
        words = f"{world_size} processes that send {', '.join(map(str, sizes))} numbers"
        trial.tried(words + "; rank 2 starts 0.05 s later" * (world_size == 3))
        passed_on(trial, sizes, late)
        round_the_ring(trial, 1, [(4 * size, 4 * size) for size in sizes])


@check("03a.2b")
def both_done(trial):
    trial.tried(
        "3 processes, rank 2 starts 0.2 s later; each rank overwrites its tensor when pass_on returns"
    )
    passed_on(trial, [2000, 3000, 1000], late=(0, 0, 0.2), overwrite=True)


@check("03a.3a")
def first_half(trial):
    for world_size in (3, 2, 4, 1):
        # Chunks of one size first: where the wrong one was sent, what came can be read.
        sizes = [300] * 3 if world_size == 3 else trial.integers(200, 400, world_size).tolist()
        trial.tried(f"{world_size} processes, chunks of {', '.join(map(str, sizes))} numbers")
        given = [trial.floats(sum(sizes)) for _ in range(world_size)]
        total = sum(one.double() for one in given)
        ranks = run(trial, "first_half", [{"flat": one, "sizes": sizes} for one in given])
        for rank, came in enumerate(ranks):
            mine = (rank + 1) % world_size
            inner, flat = slice(sum(sizes[:mine]), sum(sizes[: mine + 1])), part(trial, came, "flat")
            try:
                trial.close(f"chunk {mine} on rank {rank}", flat[inner], total[inner])
            except Verdict:
                chunks = [cut_at(one, sizes) for one in given]
                rest = "; the other chunks may hold anything"
                read = in_chunks(trial, rank, mine, cut_at(flat, sizes), chunks, rest=rest)
                raise read or sys.exc_info()[1] from None
        if world_size > 1:
            data = [4 * (sum(sizes) - sizes[(rank + 1) % world_size]) for rank in range(world_size)]
            round_the_ring(trial, world_size - 1, [(one, one) for one in data])


def whole(trial, world_size, draw, *shapes):
    """ring_all_reduce on tensors of these shapes, one after another."""
    counts = [int(numpy.prod(shape)) for shape in shapes]
    given = [[draw(count + 2 * MARGIN) for count in counts] for _ in range(world_size)]
    inputs = [{"cases": list(zip(mine, map(list, shapes), strict=True))} for mine in given]
    for rank, came in enumerate(run(trial, "whole", inputs)):
        tensors = part(trial, came, "larger", list)
        for place, shape in enumerate(shapes):
            larger = part(trial, dict(enumerate(tensors)), place)
            parts = numpy.stack([numpy.asarray(mine[place]) for mine in given])
            size = in_words(shape)
            what = f"a tensor of {size} ({parts.dtype}) on rank {rank}"
            inner, expected = slice(MARGIN, MARGIN + counts[place]), parts[rank].copy()
            expected[inner] = parts[:, inner].sum(0)
            try:
                equal(trial, what, larger[inner], expected[inner], parts)
            except Verdict:
                before = f"a tensor of {size}: " if len(shapes) > 1 else ""
                read = read_whole(trial, rank, larger[inner], parts[:, inner], before)
                raise read or sys.exc_info()[1] from None
            equal(trial, f"the memory around {what}", larger, expected, parts)


def in_words(shape):
    return " x ".join(map(str, shape)) + " numbers" if shape else "one number without dimensions"


def equal(trial, what, got, wanted, parts):
    if parts.dtype.kind in "iu":
        trial.same(what, got.tolist(), wanted.tolist())
    else:
        relative = 1e-12 if parts.dtype == "float64" else 2e-5
        trial.close(what, got, wanted, relative, float(abs(parts).max()))


def read_whole(trial, rank, got, given, what):
    """As in_chunks, for the first chunk that is not the sum of all."""
    sizes = sizes_of(given.shape[1], len(given))
    if len(got) != sum(sizes):
        return None
    chunks, total = [cut_at(one, sizes) for one in given], cut_at(given.astype("float64").sum(0), sizes)
    for number, chunk in enumerate(cut_at(got, sizes)):
        if not numpy.allclose(chunk, total[number], rtol=1e-4, atol=1e-4 * float(abs(given).max())):
            return in_chunks(trial, rank, number, cut_at(got, sizes), chunks, what)
    return None


@check("03a.4a")
def sums(trial):
    for world_size in (3, 2, 4, 1):
        trial.tried(f"{world_size} processes, {world_size * 6} numbers each")
        whole(trial, world_size, trial.floats, (world_size * 6,))


@check("03a.4b")
def any_size(trial):
    trial.tried(
        "4 processes, float32: 3 x 5 numbers, one number without dimensions, then 2, 0 and 23 numbers"
    )
    shapes, words = ((3, 5), (), (2,), (0,), (23,)), trial.words
    try:
        whole(trial, 4, trial.floats, *shapes)
    except Verdict:
        # A rank that is ahead by one tensor breaks the next one, and that says nothing of the mistake.
        for shape in shapes:
            trial.tried(f"4 processes, one tensor of {in_words(shape)} (float32)")
            whole(trial, 4, trial.floats, shape)
        trial.words = words
        raise
    trial.tried("3 processes, float64: 2 x 2 x 4 numbers")
    whole(trial, 3, trial.random.standard_normal, (2, 2, 4))
    trial.tried("2 processes: 9 large numbers of int64, then 9 of int32, 9 of uint8, and 4 of int16")
    kinds = itertools.cycle([(torch.int64, 60), (torch.int32, 29), (torch.uint8, 7), (torch.int16, 13)])

    def whole_numbers(count):
        kind, bits = next(kinds)
        return trial.integers(1 << (bits - 2), 1 << bits, count).to(kind)

    whole(trial, 2, whole_numbers, (9,), (9,), (9,), (4,))


@check("03a.4c")
def bytes_sent(trial):
    for world_size in (2, 3, 4):
        columns = int(trial.integers(20_000, 20_100))
        trial.tried(f"{world_size} processes, 2 x {columns} numbers of 4 bytes; the kernel counts the bytes")
        whole(trial, world_size, trial.floats, (2, columns))
        steps = 2 * (world_size - 1)
        least = steps * (2 * columns // world_size) * 4
        words = f" to the right, 2 (N - 1) / N = {steps / world_size:.3g} times the tensor"
        round_the_ring(trial, steps, [(least, least + 4 * steps)] * world_size, words, count=False)


@check("03a.4d")
def messages(trial):
    for world_size in (4, 2):
        count = 300 * world_size
        trial.tried(f"{world_size} processes, {count} numbers of 4 bytes; the kernel counts the messages")
        whole(trial, world_size, trial.floats, (count,))
        steps = 2 * (world_size - 1)
        round_the_ring(trial, steps, [(4 * 300 * steps, 4 * 300 * steps)] * world_size)
