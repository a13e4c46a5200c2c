"""Exercise 04: one's own DistributedSampler, and an exact evaluation.

Which order a sampler gives is its own affair. What is checked is what must hold for any: shards of processes
that cannot talk to each other fit together, and an order that ought to be another is another.

| axis | checked in |
| --- | --- |
| world size 1 to 4 | 1a to 1e, 3a, 3b; more in 1e and 3a |
| sizes | 1c, 1d: a remainder; 1e: 0, 1, fewer than ranks; 3c: empty shards, but never all; 3d: above 2**24 |
| seeds | 1b: two; 1c, 1d: five; 2a: 0 and 1 |
| epochs | 2a: 0, 1, 2 and a late one; 2b: again, backwards, after a resume |
| passes | 1f, 2b: after an unfinished one; 2b: two at the same time |
| calls | 3b: a second evaluation with other lengths |
| type of a number | 1a to 1f: ints, not tensors (of evaluation_shard: any) |
| container | 3a: evaluation_shard may return any iterable |
| global random state | 1f: torch, random and numpy; in all others it differs between the ranks |
| dtype, memory layout | `right` has bools, in one dimension |
| modes, gradients, tied | there is no model |
"""

import collections
import itertools
import random

import numpy
import pytest
import torch
from grader.testing import close, require, run, same, so_many, tried

PROCESSES = 4
MOST_SENT = 8192  # bytes of one rank: enough for sums as objects, nothing against 200,000 answers


# ---- what runs in each rank: a body, and what it mentions of this file


def numbers(found, most, kinds=(torch.Tensor, numpy.integer)):
    """What an iterable gives, but not more than `most` of it: it may be endless. What is of one of these
    kinds goes for a number."""
    values = []
    for one in itertools.islice(found, most):
        values.append(one.item() if isinstance(one, kinds) else one)
    return values


def ranks_of(case, me):
    """There may be more ranks than processes: then each process stands for several."""
    return range(me.rank, case["world_size"], me.world_size)


def draw():
    return [torch.rand(()).item(), random.random(), float(numpy.random.random())]


def passes_of(student, rank, case):
    """A sampler, and its numbers in each epoch. None means: no call of set_epoch. A pass before is
    broken off after `breaks` numbers."""
    noise = case["noise"] + rank
    torch.manual_seed(noise)
    random.seed(noise)
    numpy.random.seed(noise)
    options = {"seed": case["seed"], "drop_last": case["drop_last"]}
    sampler = student.ShareSampler(case["size"], rank, case["world_size"], **options)
    length = len(sampler)
    begun = iter(sampler) if case["breaks"] else ()  # stays, as in a loop that is in a function
    broken = numbers(begun, case["breaks"], numpy.integer)
    between = draw()
    passes = []
    for epoch in case["epochs"]:
        if epoch is not None:
            sampler.set_epoch(epoch)
        passes.append(numbers(sampler, 2 * case["size"] + 50, numpy.integer))
    drawn = [between, draw()]
    together = []
    for both in itertools.islice(zip(sampler, sampler, strict=False), 5):
        together.append(numbers(both, 2, numpy.integer))
    return {"length": length, "passes": passes, "drawn": drawn, "broken": broken, "together": together}


def samplers(student, me, cases):
    found = []
    for case in cases:
        of_ranks = []
        for rank in ranks_of(case, me):
            of_ranks.append(passes_of(student, rank, case))
        found.append(of_ranks)
    return found


def evaluation(student, me, cases):
    found = []
    for case in cases:
        shards = []
        for rank in ranks_of(case, me):
            shard = student.evaluation_shard(case["size"], rank, case["world_size"])
            shards.append(numbers(shard, 2 * case["size"] + 50))
        found.append(shards)
    return found


def accuracy(student, me, given):
    """exact_accuracy of answers that are given, in one evaluation after the other."""
    found = []
    for right in given["rights"]:
        found.append(student.exact_accuracy(right.repeat(given["times"])))
    sent = 0
    for call in me.calls:
        sent += call.get("bytes", 0) + call.get("inner", 0)
    return {"accuracies": found, "sent": sent}


# ---- what is drawn, and what is right


def case(size, world_size, drop_last=False, epochs=(None,), seed=None, breaks=0):
    """One sampler for each of `world_size` ranks. Seeds are 1000 apart: seed + epoch will do."""
    if seed is None:
        seed = random.randrange(1, 1 << 20) * 1000
    one = {"size": size, "world_size": world_size, "seed": seed, "drop_last": drop_last}
    return one | {"epochs": list(epochs), "breaks": breaks, "noise": random.randrange(1 << 30)}


def listed(values):
    return ", ".join(map(str, values))


def sizes_of_shards(shards):
    return [len(shard) for shard in shards]


def images_and_ranks(one):
    return f"{so_many(one['size'], 'image')}, {so_many(one['world_size'], 'rank')}"


def words_for(one):
    words = f"{images_and_ranks(one)}, seed {one['seed']}"
    if one["drop_last"]:
        words += ", drop_last"
    return words


def dealt(body, cases):
    """What each rank of each case got: a list of lists. No process can ask another: there is no group."""
    sent = run(body, [cases] * PROCESSES, group=False)
    found = []
    for place, one in enumerate(cases):
        of_ranks = []
        for rank in range(one["world_size"]):
            of_process = sent[rank % PROCESSES][place]
            of_ranks.append(of_process[rank // PROCESSES])  # see ranks_of
        found.append(of_ranks)
    return found


def valid_numbers(who, size, shard):
    for value in shard:
        is_int = type(value) is int
        require(is_int, f"{who} gives {value!r:.60}, which is not an int", "ints: image numbers")
    for number in shard:
        require(0 <= number < size, f"{who} gives the number {number!s:.40}", f"numbers from 0 to {size - 1}")


def together(shards, size, low, high):
    """The shards of all ranks, put together, hold each image as often as they should."""
    counts = collections.Counter(itertools.chain(*shards))
    often = []
    for number, count in counts.items():
        if count > high:
            often.append(number)
    seldom = []
    for number in range(size):
        if counts[number] < low:
            seldom.append(number)

    came = f"of {so_many(size, 'image')}, {len(often)} appear too often and {len(seldom)} not often enough"
    for some in (often, seldom):
        if some:
            came += f"; image {some[0]} appears {so_many(counts[some[0]], 'time')}"
    times = f"{low} or {high} times" if low < high else so_many(low, "time")
    require(not often and not seldom, came, f"each image {times} over all ranks")


def right_length(one):
    """How many numbers each rank's sampler gives."""
    size = one["size"]
    if not one["drop_last"]:
        size += one["world_size"] - 1
    return size // one["world_size"]


def shards_in_pass(number, ranks):
    """The shard of each rank in this one of its passes."""
    return [rank["passes"][number] for rank in ranks]


def deal(cases):
    """Run samplers. Each rank's shard has the right length and consists of numbers of images, and the shards
    fit together. Returns for each case what each rank sent."""
    found = dealt(samplers, cases)
    for one, ranks in zip(cases, found, strict=True):
        tried(words_for(one))
        length = right_length(one)
        for rank, came in enumerate(ranks):
            who = f"the sampler of rank {rank}"
            for shard in came["passes"]:
                valid_numbers(who, one["size"], shard)
                require(len(shard) == length, f"{who} gives {so_many(len(shard), 'number')}", str(length))
            same(f"len(sampler) of rank {rank}, before a pass,", came["length"], length)
        for number, epoch in enumerate(one["epochs"]):
            words = words_for(one)
            if epoch is not None:
                words += f", epoch {epoch}"
            tried(words)
            if one["drop_last"]:
                low, high = 0, 1
            else:
                low, rest = divmod(length * len(ranks), max(one["size"], 1))
                high = low + 1 if rest > 0 else low
            together(shards_in_pass(number, ranks), one["size"], low, high)
    return found


def first_passes(deals):
    """For each case, the shard of each rank in its first pass."""
    return [shards_in_pass(0, ranks) for ranks in deals]


def shuffled(who, shard, size):
    """A shard in an order that nobody would call an order. Chance would be off by 8 deviations at least."""
    steps = []
    upward = 0
    for before, after in itertools.pairwise(shard):
        steps.append((after - before) % size)
        if after > before:
            upward += 1
    common, times = collections.Counter(steps).most_common(1)[0]
    rising = upward / len(steps)

    came = f"{who} begins with {listed(shard[:6])}: "
    alike = f"{times} of {len(steps)} steps have the size {common}"
    require(times <= len(steps) / 4, came + alike, "a shuffle")
    require(0.25 < rising < 0.75, came + f"{rising:.0%} of the steps go up", "a shuffle")


def neighbours(shard):
    return {frozenset(pair) for pair in itertools.pairwise(shard)}


def differ(first, second, what):
    """Two deals of the same images: other images for each rank, in another order. `what` names the two."""
    for rank, shard in enumerate(first):
        for other, images in enumerate(second):
            common = len(set(shard) & set(images)) / len(shard)
            of = f"rank {rank} has {common:.0%} of its images in common with rank {other} of {what[1]}"
            wanted = "different images: shuffle all images before you distribute them"
            require(common < 0.9 or len(first) == 1, f"with {what[0]}, {of}", wanted)
            alike = len(neighbours(shard) & neighbours(images)) / len(shard)
            came = (
                f"with {what[0]} and {what[1]}, {alike:.0%} of rank {rank}'s images have the same neighbour"
            )
            require(alike < 0.25, came, "a different order")


def by_chance(size, deals, what, other):
    """What is left over, or comes again, is not the same for all seeds or epochs."""
    sets = set()
    for shards in deals:
        counts = collections.Counter(itertools.chain(*shards))
        not_once = []
        for number in range(size):
            if counts[number] != 1:
                not_once.append(number)
        sets.add(tuple(not_once))
    came = f"the same images are {what}, whatever the {other}"
    require(len(sets) > 1, came, f"different images for a different {other}")


def chance_of_seeds(size, drop_last, what):
    cases = [case(size, 4, drop_last) for _ in range(5)]
    deals = first_passes(deal(cases))
    tried(f"{size} images, 4 ranks, {len(cases)} different seeds")
    of_rank_0 = [shards[0] for shards in deals]
    first, *others = of_rank_0
    came = f"rank 0 has {listed(first[:6])} ..., in the same order whatever the seed"
    is_different = any(shard != first for shard in others)
    require(is_different, came, "a different order for a different seed")
    by_chance(size, deals, what, "seed")


def some_dozens():
    return random.randrange(5, 12) * 12


def test_1a_disjoint():
    """1 to 4 ranks that can share the images evenly; each rank is a process without a process group"""
    cases = []
    for world_size in (2, 3, 4, 1):
        size = random.randrange(5, 12) * world_size
        cases.append(case(size, world_size))
    deal(cases)


def test_1b_the_order_depends_on_the_seed():
    """400 or more images, 1, 2 and 4 ranks, two seeds"""
    size = random.randrange(100, 120) * 4
    seed = case(1, 1)["seed"]
    seeds = (seed, seed + 1000)
    cases = []
    for world_size in (1, 2, 4):
        for one in seeds:
            cases.append(case(size, world_size, seed=one))
    cases.append(case(size, 4, drop_last=True, seed=seed))
    found = first_passes(deal(cases))

    # The cases come in pairs: the same images and ranks with either seed.
    for number in range(0, 6, 2):
        first, second = found[number], found[number + 1]
        tried(f"{images_and_ranks(cases[number])}, seeds {seeds[0]} and {seeds[1]}")
        for rank, shard in enumerate(first):
            shuffled(f"the shard of rank {rank}", shard, size)
        differ(first, second, [f"seed {seeds[0]}", f"seed {seeds[1]}"])

    # Whichever way they are dealt out, a shard goes through the one order from its beginning to its end.
    order = found[0][0]
    place = {}
    for number in order:
        place[number] = len(place)
    for one, shards in zip(cases[2::2], found[2::2], strict=True):
        tried(f"{words_for(one)}, compared with 1 rank with the same images and seed")
        for rank, shard in enumerate(shards):
            came = f"rank {rank} has {listed(shard[:6])} ..., not in the order that 1 rank has"
            wanted = "an order that depends only on size, seed and epoch"
            require(shard == sorted(shard, key=place.get), came, wanted)


def test_1c_padded():
    """2, 3 and 4 ranks, and a few images more than they can share evenly"""
    cases = []
    for world_size in (2, 3, 4):
        cases.append(case(some_dozens() + 1, world_size))
    cases.append(case(some_dozens() + 2, 3))
    deal(cases)


def test_1c_by_chance():
    """1 image more than 4 ranks can share evenly, 5 seeds"""
    chance_of_seeds(random.randrange(10, 20) * 4 + 1, False, "repeated")


def test_1d_dropped():
    """1, 2, 3 and 4 ranks, and a few images more than they can share evenly; drop_last"""
    cases = []
    for world_size in (2, 3, 4, 1):
        cases.append(case(some_dozens() + 7, world_size, drop_last=True))
    cases.append(case(some_dozens(), 4, drop_last=True))
    deal(cases)


def test_1d_by_chance():
    """3 images more than 4 ranks can share evenly, 5 seeds; drop_last"""
    chance_of_seeds(random.randrange(10, 20) * 4 + 3, True, "left out")


def test_1e_few_images():
    """Fewer images than ranks, or no images; with and without drop_last"""
    cases = []
    for size, world_size in [(3, 4), (1, 4), (0, 1), (0, 3), (2, random.randrange(9, 14))]:
        for drop_last in (False, True):
            cases.append(case(size, world_size, drop_last))
    deal(cases)


def test_1f_the_global_random_state():
    """13 images, 3 ranks; global random numbers, drawn between two sampler numbers and afterwards"""
    cases = [case(13, 3, drop_last, breaks=2) for drop_last in (False, True)]
    for one, ranks in zip(cases, deal(cases), strict=True):
        tried(f"{words_for(one)}: global random numbers, drawn between two sampler numbers and afterwards")
        for rank, came in enumerate(ranks):
            noise = one["noise"] + rank
            own = torch.Generator().manual_seed(noise)
            python = random.Random(noise)
            legacy = numpy.random.RandomState(noise)
            for when, drawn in zip(("in a loop over the sampler", "afterwards"), came["drawn"], strict=True):
                of_torch = torch.rand((), generator=own).item()
                expected = [of_torch, python.random(), float(legacy.random_sample())]
                same(f"what torch, random and numpy draw on rank {rank} {when}", drawn, expected)


def test_2a_each_epoch_has_another_order():
    """400 or more images, 3 ranks, seeds 0 and 1, four epochs"""
    epochs = (0, 1, 2, random.randrange(20, 200))
    size = random.randrange(134, 150) * 3 + 1
    cases = [case(size, 3, bool(seed), epochs, seed) for seed in (0, 1)]
    for one, ranks in zip(cases, deal(cases), strict=True):
        tried(words_for(one) + f", epochs {listed(epochs)}")
        shards = []  # for each epoch, that of each rank
        for number, epoch in enumerate(epochs):
            shards.append(shards_in_pass(number, ranks))
            shuffled(f"the shard of rank 0 in epoch {epoch}", shards[number][0], size)
            for before in range(number):
                differ(shards[before], shards[number], [f"epoch {epochs[before]}", f"epoch {epoch}"])
        by_chance(size, shards, "left out" if one["drop_last"] else "repeated", "epoch")


def test_2b_an_epoch_has_one_order():
    """30 images, 2 ranks, an epoch after other epochs and in a new sampler"""
    early = random.randrange(1, 10)
    late = random.randrange(11, 50)
    first = case(30, 2, epochs=(None, early, late, None, early, 0), breaks=4)
    second = case(30, 2, epochs=(late,), seed=first["seed"])
    long_runs, short_runs = deal([first, second])
    for rank in range(2):
        long, short = long_runs[rank], short_runs[rank]
        passes = long["passes"]
        tried("30 images, 2 ranks, a pass that stops after 4 numbers, and then a full pass")
        same(f"the list of the 4 numbers on rank {rank}", long["broken"], passes[0][:4])
        tried(f"30 images, 2 ranks, set_epoch({early}), ({late}), ({early}), (0), a pass after each")
        same(f"the order of a second pass in epoch {late} on rank {rank}", passes[3], passes[2])
        same(f"the order of epoch {early} after epoch {late} on rank {rank}", passes[4], passes[1])
        same(f"the order of epoch 0 after other epochs on rank {rank}", passes[5], passes[0])
        tried("30 images, 2 ranks, two passes at the same time: zip(sampler, sampler)")
        pairs = [[number, number] for number in passes[-1][:5]]
        same(f"the list of pairs on rank {rank}", long["together"], pairs)
        tried(f"30 images, 2 ranks, set_epoch({late}) in a new sampler, as in a run that resumes")
        same(f"the order of epoch {late} on rank {rank}", short["passes"][0], passes[2])


def test_3a_each_image_is_evaluated_once():
    """evaluation_shard: 2, 3, 4 and 1 ranks, and more"""
    cases = []
    for world_size in (2, 3, 4, 1):
        cases.append({"size": some_dozens() + 5, "world_size": world_size})
    cases.append({"size": 2, "world_size": 4})
    cases.append({"size": 61, "world_size": 7})  # 61 / 7 * 7 is less than 61
    for one, shards in zip(cases, dealt(evaluation, cases), strict=True):
        tried(f"evaluation_shard: {images_and_ranks(one)}")
        for rank, shard in enumerate(shards):
            valid_numbers(f"evaluation_shard of rank {rank}", one["size"], shard)
        together(shards, one["size"], 1, 1)
        lengths = sizes_of_shards(shards)
        came = f"the numbers of images per rank are {listed(lengths)}"
        require(max(lengths) - min(lengths) <= 1, came, "numbers that differ by at most one")


def answers(count):
    """Random answers; the part that is right is another on every rank."""
    return torch.rand(count) < random.uniform(0.2, 0.9)


def check_accuracy(*evaluations, times=None):
    """One evaluation after the other, in the same processes: the answers of each rank. `times`: how often
    those of a rank are repeated."""
    times = times or [1] * len(evaluations[0])
    inputs = []
    for rank, often in enumerate(times):
        rights = [of_ranks[rank] for of_ranks in evaluations]
        inputs.append({"rights": rights, "times": often})
    sent = run(accuracy, inputs)

    for number, rights in enumerate(evaluations):
        good = 0
        size = 0
        for right, often in zip(rights, times, strict=True):
            good += int(right.sum()) * often
            size += len(right) * often
        expected = good / size
        for rank, came in enumerate(sent):
            got = came["accuracies"][number]
            what = f"the accuracy on rank {rank}"
            if number > 0:
                what += ", in the second evaluation,"
            kind = "a tensor or an array" if isinstance(got, torch.Tensor) else f"{got!r:.80}"
            require(type(got) is float, f"{what} is {kind}", f"a Python float, {expected!r}")
            close(what, got, expected, 1e-12)
    return sent


def shards_of(world_size):
    """Uneven shards: rank 0 has many, the others a few."""
    # The sizes of the others are drawn first, before the size of rank 0.
    few = [random.randrange(3, 9) for _ in range(world_size - 1)]
    counts = [random.randrange(50, 90), *few]
    return [answers(count) for count in counts]


@pytest.mark.parametrize("world_size", [3, 4, 1])
def test_3b_uneven_shards(world_size):
    first = shards_of(world_size)
    second = shards_of(world_size)
    # In the second, the last rank has only wrong answers; of 4, each has.
    all_wrong = second if world_size == 4 else second[-1:]
    for right in all_wrong:
        right[:] = False
    sizes = listed(sizes_of_shards(first))
    sizes_then = listed(sizes_of_shards(second))
    tried(f"{so_many(world_size, 'process')} with {sizes} images, and then with {sizes_then}")
    check_accuracy(first, second)


def test_3c_all_images_on_rank_2():
    """4 processes, all images on rank 2"""
    check_accuracy([answers(0), answers(0), answers(50), answers(0)])


def test_3d_only_sums_are_sent():
    """3 processes with 200,000 images each; the bytes that each process sends are counted"""
    rights = [answers(200_000) for _ in range(3)]
    for rank, came in enumerate(check_accuracy(rights)):
        wanted = f"two numbers: at most {MOST_SENT} bytes"
        require(came["sent"] <= MOST_SENT, f"rank {rank} sent {came['sent']} bytes", wanted)


def test_3d_more_than_float32_can_count():
    # float32 knows no odd number above 2**24. Rank 0 alone has more right answers than that.
    wrong = 2 * random.randrange(50, 100)
    right = torch.randperm(4201) >= wrong
    times = (2**24 // (4201 - wrong) + 1) | 1
    tried(f"2 processes with {times * 4201} and {3 * 4196} images")
    check_accuracy([right, answers(4196)], times=[times, 3])
