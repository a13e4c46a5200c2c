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

import random
import time

import pytest
import torch
from grader.testing import close, floats, integers, require, run, same, tried

MARGIN = 20  # numbers before and after a tensor, which the ring has nothing to do with
BITS = {torch.float32: 20, torch.float64: 50}  # of a number of each dtype: sums over the ranks are exact
WHOLE = {torch.int64: 60, torch.int32: 29, torch.int16: 13, torch.uint8: 6, torch.float16: 9}


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
    found = []
    for call in me.calls:
        if call.get("phase") != "begin":
            continue
        operations = call["operations"] or [[call["event"], call["peer"], call["bytes"]]]
        for name, peer, size in operations:
            if "send" in name:
                found.append([peer, size])
    return found


def pass_on(student, me, given):
    time.sleep(given["late"])
    student.pass_on(given["outgoing"], given["incoming"])
    outgoing = given["outgoing"].clone()
    if given["overwrite"]:
        given["outgoing"].fill_(0)
    return {"incoming": given["incoming"], "outgoing": outgoing, "messages": messages(me)}


def first_half(student, me, given):
    """sum_chunks on chunks that are parts of one tensor: on every second rank a tuple of them."""
    sizes = [len(chunk) for chunk in given]
    chunks = torch.cat(given).split(sizes)  # a tuple
    if me.rank % 2 == 0:
        chunks = list(chunks)
    student.sum_chunks(chunks)
    return {"chunks": list(chunks), "messages": messages(me)}


def whole(student, me, given):
    """ring_all_reduce on tensors that are the middle of larger ones. On wish, the last rank receives slowly,
    and all write zeros into a tensor afterwards: a rank that does not wait for its sends is found out."""
    if given["slow"] and me.rank == me.world_size - 1:
        me.delays = dict.fromkeys(("recv", "irecv", "batch_isend_irecv"), 0.02)
    found = []
    around = []
    for tensor in given["tensors"]:
        margin = torch.full((MARGIN,), 7, dtype=tensor.dtype)
        larger = torch.cat([margin, tensor.flatten(), margin])
        part = larger[MARGIN:-MARGIN].view(tensor.shape)
        student.ring_all_reduce(part)
        found.append(part.clone())
        around.append(torch.cat([larger[:MARGIN], larger[-MARGIN:]]))
        if given["slow"]:
            part.zero_()
    return {"tensors": found, "around": around, "messages": messages(me)}


# ---- what is drawn, and what is right


def sizes_of(count, world_size):
    """Sizes that differ by one at most, the larger ones first."""
    least, larger = divmod(count, world_size)
    return [least + 1] * larger + [least] * (world_size - larger)


def round_the_ring(ranks, sizes, messages=None, more=0):
    """Messages go to the right only. `sizes`: bytes that each rank has to send, and `more` that it may."""
    for rank, (came, size) in enumerate(zip(ranks, sizes, strict=True)):
        right = (rank + 1) % len(ranks)
        sent = []
        for peer, one in came["messages"]:
            if peer == right:
                sent.append(one)
            only = f"messages only to the right, to rank {right}"
            require(peer == right or not one, f"rank {rank} sent {one} bytes to rank {peer}", only)
        if messages:
            same(f"the number of messages from rank {rank} to rank {right}", len(sent), messages)
        times = f"{sum(sent) / max(1, size):.2f} times as many as it should"
        came = f"rank {rank} sent {sum(sent)} bytes, {times}"
        require(size <= sum(sent) <= size + more, came, f"{size} bytes")


CUTS = [(24, 4), (11, 4), (2, 4), (0, 3), (7, 1)]


def check_cut():
    """The cases with what came of each, after the chunks were found to have the right sizes."""
    cases = []
    for count, world_size in CUTS:
        cases.append((floats(count), world_size))
    (found,) = run(cut, [cases], group=False)
    require(isinstance(found, list), f"what chunks_of returns has the type {found}", "a list or a tuple")
    for (flat, world_size), came in zip(cases, found, strict=True):
        what = f"of {len(flat)} numbers for {world_size} processes"
        sizes = [len(chunk) for chunk in came["chunks"]]
        same(f"the list of sizes of the chunks {what}", sizes, sizes_of(len(flat), world_size))
        yield what, flat, sizes, came


def test_1a_sizes_of_chunks():
    words = [f"{count} numbers for {world_size}" for count, world_size in CUTS]
    tried(f"{', '.join(words)} processes")
    for what, flat, _, came in check_cut():
        close(f"the contents of the chunks {what}, joined together", torch.cat(came["chunks"]), flat)


def test_1b_chunks_are_views():
    """Write a number into each chunk"""
    for what, _, sizes, came in check_cut():
        expected = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        close(f"afterwards, the tensor {what}", came["written"], expected)


def check_pass_on(sizes, late=(0, 0, 0, 0), overwrite=False):
    """`late`: how many seconds each rank is late."""
    given = []
    for size, seconds in zip(sizes, late, strict=False):
        given.append({"outgoing": floats(size), "late": seconds, "overwrite": overwrite})
    for rank, one in enumerate(given):
        one["incoming"] = floats(sizes[rank - 1])
    ranks = run(pass_on, given)
    for rank, came in enumerate(ranks):
        left = (rank - 1) % len(sizes)
        close(f"what rank {rank} received from rank {left}", came["incoming"], given[left]["outgoing"])
        close(f"the tensor that rank {rank} sent, afterwards", came["outgoing"], given[rank]["outgoing"])
    return ranks


def drawn_sizes(world_size):
    """Of tensors for each rank; with 3 processes, which are tried first, they are alike."""
    if world_size == 3:
        return [300] * 3
    return [random.randint(200, 399) for _ in range(world_size)]


@pytest.mark.parametrize("world_size", [3, 2, 4])
def test_2a_from_left_to_right(world_size):
    # Tensors of one size first: where they go to the wrong rank, it can be said to which.
    sizes = drawn_sizes(world_size)
    words = f"{world_size} processes that send {', '.join(map(str, sizes))} numbers"
    late = [0, 0, 0, 0]
    if world_size == 3:
        words += "; rank 2 starts 0.05 s later"
        late[2] = 0.05
    tried(words)
    ranks = check_pass_on(sizes, late)
    round_the_ring(ranks, [4 * size for size in sizes], messages=1)


def test_2b_both_are_finished():
    """3 processes, rank 2 starts 0.2 s later; each rank overwrites its tensor when pass_on returns"""
    check_pass_on([2000, 3000, 1000], (0, 0, 0.2), overwrite=True)


def numbers_that_tell(rank):
    """3 chunks for one of 3 ranks: each digit of a wrong sum says what of which rank is in it."""
    return [torch.full((300,), (chunk + 1) * 10.0**rank) for chunk in range(3)]


@pytest.mark.parametrize("world_size", [3, 2, 4, 1])
def test_3a_the_first_half(world_size):
    sizes = drawn_sizes(world_size)
    given = []
    for _ in range(world_size):
        given.append([floats(size) for size in sizes])
    words = f"{world_size} processes, chunks of {', '.join(map(str, sizes))} numbers"
    if world_size == 3:
        words += "; each number in chunk c of rank r is (c + 1) * 10 ** r"
        given = [numbers_that_tell(rank) for rank in range(3)]
    tried(words)
    ranks = run(first_half, given)
    for rank, came in enumerate(ranks):
        mine = (rank + 1) % world_size
        total = 0
        for chunks in given:
            total = total + chunks[mine].double()
        close(f"chunk {mine} on rank {rank}", came["chunks"][mine], total)
    if world_size > 1:
        sent = []  # by each rank: all chunks but the one that is complete there in the end
        for rank in range(world_size):
            sent.append(4 * (sum(sizes) - sizes[(rank + 1) % world_size]))
        round_the_ring(ranks, sent, messages=world_size - 1)


def check_whole(world_size, *shapes, dtypes=(torch.float32,), slow=False, given=None):
    """ring_all_reduce on tensors of these shapes and dtypes, or on those `given`, one after another."""
    if given is None:
        given = []
        for _ in range(world_size):
            tensors = []
            for shape, dtype in zip(shapes, dtypes, strict=True):
                tensors.append(drawn(shape, dtype))
            given.append(tensors)
    inputs = [{"tensors": mine, "slow": slow} for mine in given]
    ranks = run(whole, inputs)
    for rank, came in enumerate(ranks):
        for place, parts in enumerate(zip(*given, strict=True)):
            dtype = str(parts[0].dtype).removeprefix("torch.")
            what = f"a tensor of {in_words(parts[0].shape)} ({dtype}) on rank {rank}"
            expected = torch.stack(parts).sum(0)
            close(what, came["tensors"][place], expected)
            same(what, came["tensors"][place], expected)  # to the last bit
            same(f"the memory around {what}", came["around"][place], [7] * 2 * MARGIN)
    return ranks


def drawn(shape, dtype):
    bits = (BITS | WHOLE)[dtype]
    low = 1 << (bits - 2)
    numbers = integers(low, 4 * low, *shape).to(dtype)
    return numbers / 8 if dtype.is_floating_point else numbers


def in_words(shape):
    return " x ".join(map(str, shape)) + " numbers" if shape else "one number without dimensions"


@pytest.mark.parametrize("world_size", [3, 2, 4, 1])
def test_4a_the_sum(world_size):
    """6 numbers for each process; each number in chunk c of rank r is (c + 1) * 10 ** r"""
    chunks = (torch.arange(world_size) + 1.0).repeat_interleave(6)
    given = [[chunks * 10**rank] for rank in range(world_size)]
    check_whole(world_size, (6 * world_size,), given=given)


@pytest.mark.parametrize("shape", [(3, 5), (2,), (), (0,)], ids=str)
def test_4b_any_size(shape):
    tried(f"4 processes, one tensor of {in_words(shape)} (float32)")
    check_whole(4, shape)


def test_4b_double_precision():
    """3 processes, float64: 2 x 2 x 4 numbers; rank 2 receives slowly, and each rank overwrites its tensor
    when ring_all_reduce returns"""
    check_whole(3, (2, 2, 4), dtypes=[torch.float64], slow=True)


def test_4b_whole_numbers():
    """2 processes: 9 large numbers of int64, then 9 of int32, 4 of int16, 9 of uint8, and 9 of float16"""
    check_whole(2, (9,), (9,), (4,), (9,), (9,), dtypes=WHOLE)


@pytest.mark.parametrize("world_size", [2, 4])
def test_4c_bytes(world_size):
    """2 x 6000 numbers of 4 bytes"""
    steps = 2 * (world_size - 1)
    ranks = check_whole(world_size, (2, 6000))
    round_the_ring(ranks, [steps * 12_000 * 4 // world_size] * world_size, more=100 * steps)


@pytest.mark.parametrize("world_size", [4, 2])
def test_4d_messages(world_size):
    """300 numbers of 4 bytes for each process, and one number more"""
    steps = 2 * (world_size - 1)
    # Chunk 0 has one number more, and a rank sends it twice at most, once in each half.
    ranks = check_whole(world_size, (300 * world_size + 1,))
    round_the_ring(ranks, [4 * 300 * steps] * world_size, messages=steps, more=2 * 4)
