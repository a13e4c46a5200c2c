"""What exercise 06 is held against. Runs in the judge."""

import numpy
from judge import Verdict, check

# What gloo adds, seen from outside: for each message, two headers go to its receiver ("I want to send", and the
# one before the data) and one comes back ("I am ready").
HEADER = 48
MARGIN = 20  # numbers before and after the tensor, which are none of the ring's business


def sizes_of(count, world_size):
    """Sizes that differ by one at most, the larger ones first."""
    return [count // world_size + (place < count % world_size) for place in range(world_size)]


def cut_cases(trial):
    given = [(int(trial.integers(5, 9)) * 4, 4), (int(trial.integers(5, 9)) * 3 + 2, 3), (11, 4), (2, 4), (7, 1)]
    return [(trial.floats(count), world_size) for count, world_size in given]


def cut(trial, cases):
    """The cases with what came of each, after the chunks were found to have the right sizes."""
    found = trial.run("cut", [{"cases": cases}], group=False)[0]
    for (flat, world_size), came in zip(cases, found, strict=True):
        what = f"of {len(flat)} numbers for {world_size} processes"
        sizes = [None if chunk is None else list(chunk.shape) for chunk in came["chunks"]]
        sizes = [size[0] if size is not None and len(size) == 1 else size for size in sizes]
        trial.same(f"the list of sizes of the chunks {what}", sizes, sizes_of(len(flat), world_size))
        yield what, flat, world_size, came


@check("06.1a")
def chunk_sizes(trial):
    cases = cut_cases(trial)
    trial.tried(", ".join(f"{len(flat)} numbers for {world_size}" for flat, world_size in cases) + " processes")
    for what, flat, _, came in cut(trial, cases):
        trial.close(f"what the chunks {what} hold, one after another", numpy.concatenate(came["chunks"]), flat)


@check("06.1b")
def chunk_views(trial):
    cases = cut_cases(trial)
    trial.tried("a number was written into each chunk")
    for what, flat, world_size, came in cut(trial, cases):
        expected = numpy.repeat(numpy.arange(world_size), sizes_of(len(flat), world_size))
        trial.close(f"the tensor {what} after that", came["written"], expected)


def passed_on(trial, sizes, late):
    outgoing = [trial.floats(size) for size in sizes]
    inputs = [
        {"outgoing": outgoing[rank], "incoming": trial.floats(sizes[rank - 1]), "late": late[rank]}
        for rank in range(len(sizes))
    ]
    for rank, came in enumerate(trial.run("pass_on", inputs)):
        left = (rank - 1) % len(sizes)
        trial.close(f"what came to rank {rank} from rank {left}", came["incoming"], outgoing[left])
        trial.close(f"what rank {rank} has sent, afterwards", came["outgoing"], outgoing[rank])


@check("06.2a")
def neighbours(trial):
    for sizes in ([9, 9], [4, 7, 5], [6, 6, 6, 6]):
        trial.tried(f"{len(sizes)} processes, which send {', '.join(map(str, sizes))} numbers")
        passed_on(trial, sizes, [0] * len(sizes))


@check("06.2b")
def both_done(trial):
    trial.tried("3 processes, rank 2 comes 0.15 s later; each overwrites what it has sent as soon as it may")
    passed_on(trial, [2000, 3000, 1000], [0, 0, 0.15])


@check("06.3a")
def first_half(trial):
    for world_size in (2, 3, 4, 1):
        sizes = [int(size) for size in trial.integers(2, 9, world_size)]
        trial.tried(f"{world_size} processes, chunks of {', '.join(map(str, sizes))} numbers")
        given = [trial.floats(sum(sizes)) for _ in range(world_size)]
        total = sum(one.double() for one in given)
        ranks = trial.run("first_half", [{"flat": one, "sizes": sizes} for one in given])
        for rank, came in enumerate(ranks):
            mine = (rank + 1) % world_size
            part = slice(sum(sizes[:mine]), sum(sizes[: mine + 1]))
            trial.close(
                f"chunk {mine} on rank {rank}", came["flat"][part], total[part], scale=float(total.abs().max())
            )


def whole(trial, world_size, draw, *shapes):
    """ring_all_reduce on tensors of these shapes, one after another."""
    cases = [[], []]
    for shape in shapes:
        count = int(numpy.prod(shape))
        cases[0].append(numpy.stack([draw(count + 2 * MARGIN) for _ in range(world_size)]))
        cases[1].append(list(shape))
    inputs = [
        {"cases": [(given[rank], shape) for given, shape in zip(*cases, strict=True)]}
        for rank in range(world_size)
    ]
    for rank, came in enumerate(trial.run("whole", inputs)):
        for given, shape, larger in zip(*cases, came["larger"], strict=True):
            words = " x ".join(map(str, shape))
            inner = slice(MARGIN, given.shape[1] - MARGIN)
            expected = given[rank].copy()
            expected[inner] = given[:, inner].sum(0, dtype="int64" if given.dtype.kind == "i" else "float64")
            what = f"the tensor of {words} numbers ({given.dtype}) on rank {rank}"
            if given.dtype.kind == "i":
                trial.same(what, larger[inner], expected[inner])
                trial.same(f"what stands around {what}", larger.tolist(), expected.tolist())
            else:
                relative = 1e-12 if given.dtype == "float64" else 2e-5
                trial.close(what, larger[inner], expected[inner], relative, float(abs(given).max()))
                trial.close(f"what stands around {what}", larger, expected, relative, float(abs(given).max()))


def singles(trial):
    return lambda count: trial.floats(count).numpy()


@check("06.4a")
def sums(trial):
    for world_size in (2, 3, 4, 1):
        trial.tried(f"{world_size} processes, {world_size * 6} numbers each")
        whole(trial, world_size, singles(trial), (world_size * 6,))


@check("06.4b")
def any_size(trial):
    trial.tried("4 processes, tensors of 3 x 5, 1, 2, 0 and 23 numbers, float32")
    whole(trial, 4, singles(trial), (3, 5), (1,), (2,), (0,), (23,))
    trial.tried("3 processes, a tensor of 2 x 2 x 4 numbers, float64")
    whole(trial, 3, trial.random.standard_normal, (2, 2, 4))
    trial.tried("2 processes, a tensor of 9 large whole numbers, int64")
    whole(trial, 2, lambda count: trial.random.integers(1 << 58, 1 << 60, count), (9,))


def sent(trial, world_size):
    """Bytes that went from each rank (row) to each other (column) during the call, by the kernel's counters."""
    found = numpy.zeros((world_size, world_size), dtype="int64")
    for rank in range(world_size):
        before, after = trial.mark(rank, "before"), trial.mark(rank, "after")
        if not after["sockets"]:
            raise Verdict("infrastructure", "this machine does not count the bytes of a connection: Linux does")
        trial.require(
            before["sent"] < 1000 * world_size,
            f"rank {rank} has sent {before['sent']} bytes before it was called",
            "nothing that is not counted",
        )
        for other in range(world_size):
            found[rank, other] = after["to"].get(other, 0) - before["to"].get(other, 0)
    return found


@check("06.4c")
def bytes_sent(trial):
    for world_size in (2, 3, 4):
        count = 40_000 // world_size * world_size + int(trial.integers(1, world_size))
        trial.tried(f"{world_size} processes, {count} numbers of 4 bytes, counted in the kernel")
        whole(trial, world_size, singles(trial), (count,))
        steps = 2 * (world_size - 1)
        least = steps * (count // world_size) * 4
        most = least + steps * (4 + 10 * HEADER)
        for rank, row in enumerate(sent(trial, world_size)):
            times, wanted = row.sum() / (4 * count), steps / world_size
            trial.require(
                least <= row.sum() <= most,
                f"rank {rank} sent {row.sum()} bytes, {times:.2f} times the tensor",
                f"2 (N - 1) / N = {wanted:.2f} times the tensor: {least} to {most} bytes",
            )


@check("06.4d")
def messages(trial):
    for world_size in (4, 3):
        count = 600 * world_size
        trial.tried(f"{world_size} processes, {count} numbers of 4 bytes, counted in the kernel")
        whole(trial, world_size, singles(trial), (count,))
        steps = 2 * (world_size - 1)
        for rank, row in enumerate(sent(trial, world_size)):
            right, left = (rank + 1) % world_size, (rank - 1) % world_size
            for other in set(range(world_size)) - {right, left, rank}:
                trial.require(
                    row[other] == 0,
                    f"rank {rank} sent {row[other]} bytes to rank {other}",
                    f"nothing: its neighbours are {left} and {right}",
                )
            trial.require(
                row[left] < 600 * 4,
                f"rank {rank} sent {row[left]} bytes to the left, to rank {left}",
                f"data goes to the right only, to rank {right}",
            )
            trial.same(
                f"the number of messages that rank {rank} sent to rank {right}",
                round(float(row[right] - steps * 600 * 4) / (2 * HEADER)),
                steps,
            )
            trial.same(
                f"the number of messages that rank {rank} received from rank {left}",
                round(float(row[left]) / HEADER),
                steps,
            )
