"""Exercise 03a: a ring all-reduce, from send and recv.

| axis | checked in |
| --- | --- |
| world size 1 to 4 | 3a, 4a |
| dtype | 4b: float32, float64, int64, int32, int16, uint8, float16 (NumPy may be used: no bfloat16) |
| memory layout | 4: a part of a larger tensor; what is not contiguous is excluded by the docstring |
| container | 3a: a list and a tuple of chunks |
| calls | 4b: other shapes and dtypes one after another |
| sizes | 1a, 1b, 3a, 4b: none, one, fewer than processes, uneven; 4b: no dimensions |
| late ranks | 2a, 2b, 4b |
| tensors overwritten as soon as a call returns | 2b, 4b |
| modes, gradients, tied, frozen, seeds | the functions have none |
"""

import itertools
import random
import sys
import time

import pytest
import torch
from grader.testing import Verdict, close, floats, integers, require, run, same, tried

MARGIN = 20  # numbers before and after a tensor, which the ring has nothing to do with
GLOO_ENDS = {
    "SIGABRT": "a message is larger than the tensor that it is received into",
    "SIGSEGV": "it should talk to a rank that does not exist",
    "DistStoreError": "it should talk to a rank that does not exist",
}
KINDS = {torch.float32: 2e-5, torch.float64: 1e-12}  # of other kinds, every number is exact
WHOLE = {torch.int64: 60, torch.int32: 29, torch.int16: 13, torch.uint8: 6, torch.float16: 9}  # bits


# ---- what runs in each rank: a body, and what it mentions of this file


def cut(student, me, cases):
    """chunks_of for several tensors; then a number is written into each chunk."""
    found = []
    for flat, world_size in cases:
        chunks = student.chunks_of(flat, world_size)
        if not isinstance(chunks, list | tuple):
            return type(chunks).__name__
        before = [chunk.clone() for chunk in chunks]
        for number, chunk in enumerate(chunks):
            chunk.fill_(number)
        found.append({"chunks": before, "written": flat})
    return found


def messages(me):
    """To whom each message went, and how many bytes it had."""
    calls = [call for call in me.calls if call.get("phase") == "begin"]
    many = [call["operations"] or [[call["event"], call["peer"], call["bytes"]]] for call in calls]
    return [[peer, size] for some in many for name, peer, size in some if "send" in name]


def pass_on(student, me, given):
    time.sleep(given["late"])
    student.pass_on(given["outgoing"], given["incoming"])
    outgoing = given["outgoing"].clone()
    if given["overwrite"]:
        given["outgoing"].fill_(0)
    return {"incoming": given["incoming"], "outgoing": outgoing, "messages": messages(me)}


def first_half(student, me, given):
    """sum_chunks on chunks that are parts of one tensor: on every second rank a tuple of them."""
    chunks = given["flat"].split(given["sizes"])
    student.sum_chunks(tuple(chunks) if me.rank % 2 else list(chunks))
    return {"flat": given["flat"], "messages": messages(me)}


def slowly(call):
    def later(*words, **named):
        time.sleep(0.02)
        return call(*words, **named)

    return later


def whole(student, me, given):
    """ring_all_reduce on tensors that are the middle of larger ones. On wish, the last rank receives slowly,
    and all write zeros into a tensor afterwards: a rank that does not wait for its sends is found out."""
    if given["slow"] and me.rank == me.world_size - 1:
        for name in ("recv", "irecv", "batch_isend_irecv"):
            setattr(torch.distributed, name, slowly(getattr(torch.distributed, name)))
    found = []
    for larger, shape in given["cases"]:
        count = torch.Size(shape).numel()
        start = (len(larger) - count) // 2
        tensor = larger[start : start + count].view(shape)
        student.ring_all_reduce(tensor)
        found.append(larger.clone())
        if given["slow"]:
            tensor.zero_()
    return {"larger": found, "messages": messages(me)}


# ---- what is drawn, and what is right


def ring(body, inputs):
    """run(), with words for what gloo says by ending the process."""
    try:
        return run(body, inputs)
    except Verdict as verdict:
        for signal, why in GLOO_ENDS.items():
            verdict.came += f"; gloo does this when {why}" * (signal in verdict.came)
        raise


def sizes_of(count, world_size):
    """Sizes that differ by one at most, the larger ones first."""
    return [count // world_size + (place < count % world_size) for place in range(world_size)]


def round_the_ring(ranks, steps, sizes, words="", count=True, more=0):
    """One message to the right in each step, and nothing else. `sizes`: bytes that each rank has to send, and
    `more` that it may. If messages do not count, some bytes more may be in others."""
    for rank, (came, size) in enumerate(zip(ranks, sizes, strict=True)):
        right, left = (rank + 1) % len(ranks), (rank - 1) % len(ranks)
        sent, allowed = [], size + (more if count else 100 * steps)
        for peer, one in came["messages"]:
            sent += [one] if peer == right else []
            to = "the left, to " if peer == left else ""
            only = f"messages only to the right, to rank {right}"
            require(peer == right or not one, f"rank {rank} sent {one} bytes to {to}rank {peer}", only)
        if count:
            same(f"the number of messages from rank {rank} to rank {right}", len(sent), steps)
        times = f"{sum(sent) / max(1, size):.2f} times as many as it should"
        came = f"rank {rank} sent {sum(sent)} bytes, {times}"
        require(size <= sum(sent) <= allowed, came, f"{size} bytes{words}")


def whose(got, given, number):
    """Whose numbers have been added up in a chunk, or None. `given` has all chunks of all ranks as they were;
    what is in chunk `number` may have come from another chunk of the same size."""
    alike = [place for place, chunk in enumerate(given[0]) if len(chunk) == len(got)]
    if not len(got) or number not in alike:
        return None
    ways = [(), (number,), *((place,) for place in alike if place != number), (number, number)]
    ways = itertools.product(ways, repeat=len(given))
    # There are more than a thousand ways: only a few come to all numbers.
    for some in (slice(4), slice(None)):
        ways = [way for way in ways if nearly(got[some], added_up(given, way, got)[some], given[0][number])]
    return ways[0] if ways else None


def added_up(given, way, like):
    some = [given[rank][place] for rank, places in enumerate(way) for place in places]
    return sum(some, start=torch.zeros_like(like))


def nearly(got, expected, given):
    return torch.allclose(got, expected, rtol=1e-4, atol=1e-4 * float(given.abs().max()))


def words(way, rank, number):
    """{0, 2}: the sum of the numbers of ranks 0 and 2."""
    if way is None:
        return "something else"
    if all(places == (number,) * (other == rank) for other, places in enumerate(way)):
        return f"{{{rank}}}, unchanged"
    found = {}
    for other, place in ((other, place) for other, places in enumerate(way) for place in places):
        found.setdefault(place, []).append(str(other))
    if not found:
        return "zeros"
    of = {
        place: f"chunk {place} of " * (place != number) + f"{{{', '.join(some)}}}"
        for place, some in found.items()
    }
    first = sorted(of, key=lambda place: (place != number, place))
    return " and ".join(of[place] for place in first) + " alone" * (sum(map(len, found.values())) == 1)


def in_chunks(rank, wanted, got, given, ranks, what="", rest=""):
    """The Verdict about a rank whose chunk `wanted` is not the sum, if what is there can be read. `got`: all
    chunks of that rank as they are now."""
    ways = [whose(chunk, given, number) for number, chunk in enumerate(got)]
    if ways[wanted] is None:
        return None
    said = {number: words(way, rank, number) for number, way in enumerate(ways) if len(got[number])}
    came = f"{what}chunk {wanted} on rank {rank} holds {said.pop(wanted)}"
    if all(one.endswith("unchanged") for one in [came, *said.values()]):
        left = (rank - 1) % len(given)
        arrived = sum(size for peer, size in ranks[left]["messages"] if peer == rank)
        came = f"{what}no chunk of rank {rank} has changed"
        came += f", though {arrived} bytes arrived from rank {left}" if arrived else ""
    elif said:
        came += f" (and {'; '.join(f'chunk {number} {one}' for number, one in said.items())})"
    everyone = ", ".join(map(str, range(len(given))))
    return Verdict(
        "failed", came, f"chunk {wanted} on rank {rank} holds {{{everyone}}}, the sum over these ranks{rest}"
    )


def cut_cases():
    drawn = [(random.randint(5, 8) * 4, 4), (random.randint(5, 8) * 3 + 2, 3)]
    return [(floats(count), parts) for count, parts in [*drawn, (10, 4), (11, 4), (2, 4), (0, 3), (7, 1)]]


def check_cut(cases):
    """The cases with what came of each, after the chunks were found to have the right sizes."""
    (found,) = run(cut, [cases], group=False)
    require(isinstance(found, list), f"what chunks_of returns has the type {found}", "a list or a tuple")
    for (flat, world_size), came in zip(cases, found, strict=True):
        what = f"of {len(flat)} numbers for {world_size} processes"
        sizes = [chunk.shape[0] if chunk.ndim == 1 else list(chunk.shape) for chunk in came["chunks"]]
        same(f"the list of sizes of the chunks {what}", sizes, sizes_of(len(flat), world_size))
        yield what, flat, sizes, came


def test_1a_sizes_of_chunks():
    cases = cut_cases()
    tried(", ".join(f"{len(flat)} numbers for {world_size}" for flat, world_size in cases) + " processes")
    for what, flat, _, came in check_cut(cases):
        close(f"the contents of the chunks {what}, joined together", torch.cat(came["chunks"]), flat)


def test_1b_chunks_are_views():
    """Write a number into each chunk"""
    for what, _, sizes, came in check_cut(cut_cases()):
        expected = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        close(f"afterwards, the tensor {what}", came["written"], expected)


def check_pass_on(sizes, late=(0, 0, 0, 0), overwrite=False):
    """`late`: how many seconds each rank is late."""
    given = [
        {"outgoing": floats(size), "late": one, "overwrite": overwrite}
        for size, one in zip(sizes, late, strict=False)
    ]
    for rank, one in enumerate(given):
        one["incoming"] = floats(sizes[rank - 1])
    ranks = ring(pass_on, given)
    for rank, came in enumerate(ranks):
        left, got = (rank - 1) % len(sizes), came["incoming"]
        wanted = f"what rank {left}, on its left, sent"
        # The mistakes that can be named by what has come.
        for other, one in enumerate(given):
            of = f"what rank {rank} received is what rank {other} sent"
            require(other == left or not torch.equal(got, one["outgoing"]), of, wanted)
        arrived = not torch.equal(got, given[rank]["incoming"])
        require(arrived, f"nothing had arrived at rank {rank} when pass_on returned", wanted)
        zeros = f"rank {rank} received the zeros that were written into rank {left}'s tensor after its"
        require(not overwrite or got.any(), f"{zeros} pass_on had returned", f"what rank {left} sent")
        close(f"what rank {rank} received from rank {left}", got, given[left]["outgoing"])
        close(f"the tensor that rank {rank} sent, afterwards", came["outgoing"], given[rank]["outgoing"])
    return ranks


@pytest.mark.parametrize("world_size", [3, 2, 4])
def test_2a_from_left_to_right(world_size):
    # Tensors of one size first: where they go to the wrong rank, it can be said to which.
    sizes = [300] * 3 if world_size == 3 else [random.randint(200, 399) for _ in range(world_size)]
    late = "; rank 2 starts 0.05 s later" if world_size == 3 else ""
    tried(f"{world_size} processes that send {', '.join(map(str, sizes))} numbers{late}")
    ranks = check_pass_on(sizes, (0, 0, 0.05 if late else 0, 0))
    round_the_ring(ranks, 1, [4 * size for size in sizes])


def test_2b_both_are_finished():
    """3 processes, rank 2 starts 0.2 s later; each rank overwrites its tensor when pass_on returns"""
    check_pass_on([2000, 3000, 1000], (0, 0, 0.2), overwrite=True)


@pytest.mark.parametrize("world_size", [3, 2, 4, 1])
def test_3a_the_first_half(world_size):
    # Chunks of one size first: where the wrong one was sent, what came can be read.
    sizes = [300] * 3 if world_size == 3 else [random.randint(200, 399) for _ in range(world_size)]
    tried(f"{world_size} processes, chunks of {', '.join(map(str, sizes))} numbers")
    given = [floats(sum(sizes)) for _ in range(world_size)]
    total = sum(one.double() for one in given).split(sizes)
    ranks = ring(first_half, [{"flat": one, "sizes": sizes} for one in given])
    for rank, came in enumerate(ranks):
        mine, got = (rank + 1) % world_size, came["flat"].split(sizes)
        try:
            close(f"chunk {mine} on rank {rank}", got[mine], total[mine])
        except Verdict:
            rest = "; the other chunks may hold anything"
            read = in_chunks(rank, mine, got, [one.split(sizes) for one in given], ranks, rest=rest)
            raise read or sys.exc_info()[1] from None
    if world_size > 1:
        sent = [4 * (sum(sizes) - sizes[(rank + 1) % world_size]) for rank in range(world_size)]
        round_the_ring(ranks, world_size - 1, sent)


def check_whole(world_size, *shapes, dtypes=(torch.float32,), slow=False):
    """ring_all_reduce on tensors of these shapes, one after another."""

    def draw(count, dtype):
        low = 1 << WHOLE.get(dtype, 2) - 2
        return torch.randn(count, dtype=dtype) if dtype in KINDS else integers(low, 4 * low, count).to(dtype)

    kinds = list(zip(shapes, itertools.cycle(dtypes), strict=False))
    counts = [torch.Size(shape).numel() for shape in shapes]
    given = [
        [draw(torch.Size(shape).numel() + 2 * MARGIN, dtype) for shape, dtype in kinds]
        for _ in range(world_size)
    ]
    cases = [list(zip(mine, map(list, shapes), strict=True)) for mine in given]
    ranks = ring(whole, [{"cases": mine, "slow": slow} for mine in cases])
    for rank, (place, (shape, dtype)) in itertools.product(range(world_size), enumerate(kinds)):
        larger, parts = ranks[rank]["larger"][place], torch.stack([mine[place] for mine in given])
        what = f"a tensor of {in_words(shape)} ({str(dtype).removeprefix('torch.')}) on rank {rank}"
        inner, expected = slice(MARGIN, MARGIN + counts[place]), parts[rank].clone()
        expected[inner] = parts[:, inner].sum(0)
        try:
            equal(what, larger[inner], expected[inner], parts)
        except Verdict:
            before = f"a tensor of {in_words(shape)}: " if len(shapes) > 1 else ""
            raise (
                read_whole(rank, larger[inner], parts[:, inner], ranks, before) or sys.exc_info()[1]
            ) from None
        equal(f"the memory around {what}", larger, expected, parts)
    return ranks


def in_words(shape):
    return " x ".join(map(str, shape)) + " numbers" if shape else "one number without dimensions"


def equal(what, got, wanted, parts):
    if parts.dtype in KINDS:
        close(what, got, wanted, KINDS[parts.dtype], float(parts.abs().max()))
    else:
        same(what, got, wanted)


def read_whole(rank, got, given, ranks, what):
    """As in_chunks, for the first chunk that is not the sum of all."""
    sizes = sizes_of(given.shape[1], len(given))
    chunks, total = [one.double().split(sizes) for one in given], given.double().sum(0).split(sizes)
    for number, chunk in enumerate(got.double().split(sizes)):
        if not nearly(chunk, total[number], given.double()):
            return in_chunks(rank, number, got.double().split(sizes), chunks, ranks, what)
    return None


@pytest.mark.parametrize("world_size", [3, 2, 4, 1])
def test_4a_the_sum(world_size):
    """6 numbers for each process"""
    check_whole(world_size, (world_size * 6,))


@pytest.mark.parametrize("shape", [(3, 5), (), (2,), (0,), (23,)], ids=str)
def test_4b_any_size(shape):
    # One at a time: a rank that is ahead by one tensor breaks the next, and that says nothing of the mistake.
    tried(f"4 processes, one tensor of {in_words(shape)} (float32)")
    check_whole(4, shape)


def test_4b_one_after_another():
    """4 processes, float32: 3 x 5 numbers, one number without dimensions, then 2, 0 and 23 numbers"""
    check_whole(4, (3, 5), (), (2,), (0,), (23,))


def test_4b_double_precision():
    """3 processes, float64: 2 x 2 x 4 numbers; rank 2 receives slowly, and each rank overwrites its tensor
    when ring_all_reduce returns"""
    check_whole(3, (2, 2, 4), dtypes=[torch.float64], slow=True)


def test_4b_whole_numbers():
    """2 processes: 9 large numbers of int64, then 9 of int32, 4 of int16, 9 of uint8, and 9 of float16"""
    check_whole(2, (9,), (9,), (4,), (9,), (9,), dtypes=WHOLE)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_4c_bytes(world_size):
    """2 x 6000 numbers of 4 bytes"""
    steps = 2 * (world_size - 1)
    ranks = check_whole(world_size, (2, 6000))
    share = f" to the right, 2 (N - 1) / N = {steps / world_size:.3g} times the tensor"
    round_the_ring(ranks, steps, [steps * 12_000 * 4 // world_size] * world_size, share, count=False)


@pytest.mark.parametrize("world_size", [4, 2])
def test_4d_messages(world_size):
    """300 numbers of 4 bytes for each process, and one number more"""
    steps = 2 * (world_size - 1)
    # Chunk 0 has one number more, and a rank sends it twice at most, once in each half.
    ranks = check_whole(world_size, (300 * world_size + 1,))
    round_the_ring(ranks, steps, [4 * 300 * steps] * world_size, more=2 * 4)
