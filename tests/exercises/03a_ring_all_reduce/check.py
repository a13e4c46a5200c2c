"""What exercise 03a is held against. Runs in the judge."""

import numpy
from judge import HEADER, Verdict, check

MARGIN = 20  # numbers before and after a tensor, which the ring has nothing to do with


def run(trial, driver, inputs, **more):
    """Trial.run, with words for what gloo says by ending the process."""
    try:
        return trial.run(driver, inputs, **more)
    except Verdict as verdict:
        if "SIGABRT" in verdict.came:
            why = "a message is larger than the tensor that it is received into"
        elif "SIGSEGV" in verdict.came:
            why = "it is to talk to a rank that is not there"
        else:
            raise
        raise Verdict(
            verdict.status, f"{verdict.came}; gloo does this when {why}", verdict.expected
        ) from None


def part(trial, came, name, kind=numpy.ndarray):
    """One thing that a driver hands back. A forged answer may be anything."""
    value = came.get(name) if isinstance(came, dict) else None
    right = isinstance(value, kind) and (kind is list or value.ndim == 1)
    trial.require(right, f"what came back is no {'list' if kind is list else 'tensor of one dimension'}")
    return value


def sent(trial, world_size):
    """Bytes that went from each rank (row) to each other (column) during the call, as the kernel counts."""
    found = numpy.zeros((world_size, world_size), dtype="int64")
    for rank in range(world_size):
        try:
            before, after = trial.mark(rank, "before"), trial.mark(rank, "after")
        except KeyError:
            raise Verdict("failed", f"rank {rank} was not there when bytes were counted") from None
        if not after["sockets"]:
            if not trial.counted:
                return []
            raise Verdict("failed", f"rank {rank} had no connection left when bytes were counted")
        trial.require(
            before["sent"] < 1000,
            f"rank {rank} has sent {before['sent']} bytes before it was called",
            "nothing is sent earlier",
        )
        for other in range(world_size):
            found[rank, other] = after["to"].get(other, 0) - before["to"].get(other, 0)
    return found


def round_the_ring(trial, steps, data, words="", count=True):
    """One message to the right in each step, and nothing else. `data`: least and most bytes for each rank."""
    world_size = len(data)
    for rank, row in enumerate(sent(trial, world_size)):
        right, left = (rank + 1) % world_size, (rank - 1) % world_size
        (least, most), allowed = data[rank], 10 * HEADER * steps
        trial.require(
            least <= row.sum() <= most + allowed,
            f"rank {rank} sent {row.sum()} bytes, {row.sum() / max(1, most):.2f} times what it should",
            f"{most} bytes{words}, and up to {allowed} more for what the network adds",
        )
        for other in set(range(world_size)) - {rank, right, left}:
            trial.require(
                row[other] == 0,
                f"rank {rank} sent {row[other]} bytes to rank {other}",
                f"messages to the right only: rank {right}",
            )
        trial.require(
            world_size == 2 or row[left] <= 4 * HEADER * steps,
            f"rank {rank} sent {row[left]} bytes to the left, to rank {left}",
            f"messages to the right only: rank {right}",
        )
        if count:
            headers = (2 if world_size > 2 else 3) * HEADER
            trial.same(
                f"the number of messages from rank {rank} to rank {right}",
                round(float(row[right] - (least + most) / 2) / headers),
                steps,
            )
            if world_size > 2:
                trial.same(
                    f"the number of messages that rank {rank} received from rank {left}",
                    round(float(row[left]) / HEADER),
                    steps,
                )


# ---- chunks_of --------------------------------------------------------------------------------


def sizes_of(count, world_size):
    """Sizes that differ by one at most, the larger ones first."""
    return [count // world_size + (place < count % world_size) for place in range(world_size)]


def cut_cases(trial):
    given = [
        (int(trial.integers(5, 9)) * 4, 4),
        (int(trial.integers(5, 9)) * 3 + 2, 3),
        (11, 4),
        (2, 4),
        (7, 1),
    ]
    return [(trial.floats(count), world_size) for count, world_size in given]


def cut(trial, cases):
    """The cases with what came of each, after the chunks were found to have the right sizes."""
    found = run(trial, "cut", [{"cases": cases}], group=False)[0]
    trial.require(isinstance(found, list) and len(found) == len(cases), "what came back is no list")
    for (flat, world_size), came in zip(cases, found, strict=True):
        what = f"of {len(flat)} numbers for {world_size} processes"
        chunks = part(trial, came, "chunks", list)
        sizes = [list(chunk.shape) if isinstance(chunk, numpy.ndarray) else None for chunk in chunks]
        sizes = [size[0] if size is not None and len(size) == 1 else size for size in sizes]
        trial.same(f"the list of sizes of the chunks {what}", sizes, sizes_of(len(flat), world_size))
        yield what, flat, world_size, numpy.concatenate(chunks), part(trial, came, "written")


@check("03a.1a")
def chunk_sizes(trial):
    cases = cut_cases(trial)
    trial.tried(
        ", ".join(f"{len(flat)} numbers for {world_size}" for flat, world_size in cases) + " processes"
    )
    for what, flat, _, joined, _ in cut(trial, cases):
        trial.close(f"what the chunks {what} hold, one after another", joined, flat)


@check("03a.1b")
def chunk_views(trial):
    cases = cut_cases(trial)
    trial.tried("a number was written into each chunk")
    for what, flat, world_size, _, written in cut(trial, cases):
        expected = numpy.repeat(numpy.arange(world_size), sizes_of(len(flat), world_size))
        trial.close(f"the tensor {what} after that", written, expected)


# ---- pass_on ----------------------------------------------------------------------------------


def passed_on(trial, sizes, late=(), overwrite=False):
    outgoing = [trial.floats(size) for size in sizes]
    inputs = [
        {
            "outgoing": outgoing[rank],
            "incoming": trial.floats(sizes[rank - 1]),
            "late": 0.2 if rank in late else 0,
            "overwrite": overwrite,
        }
        for rank in range(len(sizes))
    ]
    for rank, came in enumerate(run(trial, "pass_on", inputs)):
        left = (rank - 1) % len(sizes)
        trial.close(
            f"what came to rank {rank} from rank {left}", part(trial, came, "incoming"), outgoing[left]
        )
        trial.close(f"what rank {rank} has sent, afterwards", part(trial, came, "outgoing"), outgoing[rank])


@check("03a.2a")
def neighbours(trial):
    for world_size in (2, 3, 4):
        sizes = trial.integers(200, 400, world_size).tolist()
        trial.tried(f"{world_size} processes, which send {', '.join(map(str, sizes))} numbers")
        passed_on(trial, sizes)
        round_the_ring(trial, 1, [(4 * size, 4 * size) for size in sizes])


@check("03a.2b")
def both_done(trial):
    trial.tried(
        "3 processes, rank 2 comes 0.2 s later; each overwrites what it has sent when pass_on returns"
    )
    passed_on(trial, [2000, 3000, 1000], late=[2], overwrite=True)


# ---- sum_chunks and ring_all_reduce -----------------------------------------------------------


@check("03a.3a")
def first_half(trial):
    for world_size in (2, 3, 4, 1):
        sizes = trial.integers(200, 400, world_size).tolist()
        trial.tried(f"{world_size} processes, chunks of {', '.join(map(str, sizes))} numbers")
        given = [trial.floats(sum(sizes)) for _ in range(world_size)]
        total = sum(one.double() for one in given)
        ranks = run(trial, "first_half", [{"flat": one, "sizes": sizes} for one in given])
        for rank, came in enumerate(ranks):
            mine = (rank + 1) % world_size
            inner = slice(sum(sizes[:mine]), sum(sizes[: mine + 1]))
            trial.close(f"chunk {mine} on rank {rank}", part(trial, came, "flat")[inner], total[inner])
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
            size = " x ".join(map(str, shape)) + " numbers" if shape else "one number without a dimension"
            words = f"a tensor of {size} ({parts.dtype}) on rank {rank}"
            inner, expected = slice(MARGIN, MARGIN + counts[place]), parts[rank].copy()
            expected[inner] = parts[:, inner].sum(0)
            for what, got, wanted in (
                (words, larger[inner], expected[inner]),
                (f"what stands around {words}", larger, expected),
            ):
                if parts.dtype.kind == "i":
                    trial.same(what, got.tolist(), wanted.tolist())
                else:
                    relative = 1e-12 if parts.dtype == "float64" else 2e-5
                    trial.close(what, got, wanted, relative, float(abs(parts).max()))


@check("03a.4a")
def sums(trial):
    for world_size in (2, 3, 4, 1):
        trial.tried(f"{world_size} processes, {world_size * 6} numbers each")
        whole(trial, world_size, trial.floats, (world_size * 6,))


@check("03a.4b")
def any_size(trial):
    trial.tried("4 processes, float32: 3 x 5 numbers, one without a dimension, 2, none, and 23")
    whole(trial, 4, trial.floats, (3, 5), (), (2,), (0,), (23,))
    trial.tried("3 processes, float64: 2 x 2 x 4 numbers")
    whole(trial, 3, trial.random.standard_normal, (2, 2, 4))
    trial.tried("2 processes, int64: 9 large numbers")
    whole(trial, 2, lambda count: trial.integers(1 << 58, 1 << 60, count), (9,))


@check("03a.4c")
def bytes_sent(trial):
    for world_size in (2, 3, 4):
        columns = int(trial.integers(20_000, 20_100))
        trial.tried(f"{world_size} processes, 2 x {columns} numbers of 4 bytes; bytes counted by the kernel")
        whole(trial, world_size, trial.floats, (2, columns))
        steps = 2 * (world_size - 1)
        least = steps * (2 * columns // world_size) * 4
        words = f" to the right, 2 (N - 1) / N = {steps / world_size:.3g} times the tensor"
        round_the_ring(trial, steps, [(least, least + 4 * steps)] * world_size, words, count=False)


@check("03a.4d")
def messages(trial):
    for world_size in (2, 4):
        count = 300 * world_size
        trial.tried(f"{world_size} processes, {count} numbers of 4 bytes; messages counted by the kernel")
        whole(trial, world_size, trial.floats, (count,))
        steps = 2 * (world_size - 1)
        round_the_ring(trial, steps, [(4 * 300 * steps, 4 * 300 * steps)] * world_size)
