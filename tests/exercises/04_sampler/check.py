"""What exercise 04 is held against. Runs in the judge.

Which order a sampler gives is its own affair. What is checked is what must hold for any: shards of processes
that cannot talk to each other fit together, and an order that ought to be another is another.
"""

import collections
import itertools
import random

import numpy
import torch
from judge import check, look, so_many

PROCESSES = 4
MOST_SENT = 8192  # bytes of one rank: enough for sums as objects, nothing against 200,000 answers


def case(trial, size, world_size, drop_last=False, epochs=(None,), seed=None, breaks=0):
    """One sampler for each of `world_size` ranks. Seeds are 1000 apart: seed + epoch will do. `breaks`: how
    many numbers are taken in a first pass that is broken off."""
    seed = drawn(trial, 1, 1 << 20) * 1000 if seed is None else seed
    one = {"size": int(size), "world_size": world_size, "seed": seed, "drop_last": drop_last}
    return one | {"epochs": list(epochs), "breaks": breaks}


def drawn(trial, low, high):
    return int(trial.random.integers(low, high))


def listed(values):
    return ", ".join(map(str, values))


def words_for(one):
    return f"{sizes_of(one)}, seed {one['seed']}{', drop_last' if one['drop_last'] else ''}"


def sizes_of(one):
    return f"{so_many(one['size'], 'image')}, {so_many(one['world_size'], 'rank')}"


def dealt(trial, driver, cases, valid):
    """What each rank of each case got: a list of lists. No process can ask another: there is no group."""
    noise = [drawn(trial, 1, 1 << 30) for _ in range(PROCESSES)]
    sent = trial.run(driver, [{"cases": cases, "noise": one} for one in noise], group=False)
    found, places = [], [0] * PROCESSES
    for one in cases:
        trial.tried(words_for(one) if "seed" in one else sizes_of(one))
        found.append([])
        for rank in range(one["world_size"]):
            process = rank % PROCESSES
            shard = look(sent, process, places[process])
            valid(one, rank, shard)
            if isinstance(shard, dict):
                shard["noise"] = noise[process] + places[process]
            found[-1].append(shard)
            places[process] += 1
    return found


def valid_numbers(trial, who, size, numbers):
    whole = isinstance(numbers, list) and all(type(value) is int for value in numbers)
    trial.require(whole, f"{who} gives values that are not integers", "image numbers")
    for number in numbers:
        came = f"{who} gives the number {number!s:.40}"
        trial.require(0 <= number < size, came, f"numbers from 0 to {size - 1}")


def some(images):
    """image 3; images 1, 2 and 5; of many, eight and how many more."""
    words = [str(image) for image in sorted(images)]
    words = words if len(words) < 10 else [*words[:8], f"{len(words) - 8} more"]
    if len(words) < 2:
        return f"image {words[0]}" if words else "no image"
    return f"images {', '.join(words[:-1])} and {words[-1]}"


def come(images):
    return "appears" if len(images) == 1 else "appear"


def together(trial, one, shards):
    """The shards of all ranks, put together, hold each image as often as they should."""
    counts = collections.Counter(itertools.chain(*shards))
    if one["drop_last"]:
        low, high = 0, 1
    else:
        low, rest = divmod(len(shards[0]) * len(shards), max(one["size"], 1))
        high = low + (rest > 0)
    wanted = "each image once over all ranks" if high == 1 else f"each image {low} or {high} times"
    if one["drop_last"] and one["size"] % len(shards):
        wanted = "no image twice"
    often = [number for number, count in counts.items() if count > high]
    never = [number for number in range(one["size"]) if counts[number] == 0]
    seldom = [number for number in range(one["size"]) if counts[number] < low]
    if often:
        place = [rank for rank, shard in enumerate(shards) if often[0] in shard]
        ranks = (
            f"{'rank' if len(place) == 1 else 'ranks'} {listed(place[:4])}{' and others' * (len(place) > 4)}"
        )
        lost = f", and {some(never)} never" if never and low else ""
        came = f"{some([often[0]])} appears {counts[often[0]]} times (on {ranks}){lost}"
        trial.require(False, came, wanted)
    trial.require(not (never and low), f"{some(never)} never {come(never)}", wanted)
    trial.require(not seldom, f"{some(seldom)} {come(seldom)} less often than other images", wanted)


def deal(trial, cases):
    """Run samplers. Each rank's shard has the right length and consists of numbers of images, and the shards
    fit together. Returns for each case what each rank sent."""

    def valid(one, rank, shard):
        who, passes = f"the sampler of rank {rank}", look(shard, "passes")
        ok = isinstance(passes, list) and len(passes) == len(one["epochs"])
        trial.require(ok, f"{who} sent no valid result", "integers")
        more = 0 if one["drop_last"] else one["world_size"] - 1
        length = (one["size"] + more) // one["world_size"]
        for numbers in passes:
            valid_numbers(trial, who, one["size"], numbers)
            came = f"{who} gives {so_many(len(numbers), 'number')}"
            trial.require(len(numbers) == length, came, str(length))
        trial.same(f"len(sampler) of rank {rank}, before a pass,", shard.get("length"), length)

    found = dealt(trial, "passes", cases, valid)
    for one, ranks in zip(cases, found, strict=True):
        for number, epoch in enumerate(one["epochs"]):
            trial.tried(words_for(one) + ("" if epoch is None else f", epoch {epoch}"))
            together(trial, one, [rank["passes"][number] for rank in ranks])
    return found


def shuffled(trial, who, numbers, size):
    """A shard in an order that nobody would call an order. Chance would be off by 8 deviations at least."""
    pairs = list(itertools.pairwise(numbers))
    common, times = collections.Counter((after - before) % size for before, after in pairs).most_common(1)[0]
    rising = sum(after > before for before, after in pairs) / len(pairs)
    came = f"{who} begins with {listed(numbers[:6])}: "
    alike = f"{times} of {len(pairs)} steps have the size {common}"
    trial.require(times <= len(pairs) / 4, came + alike, "a shuffle")
    trial.require(0.25 < rising < 0.75, came + f"{rising:.0%} of the steps go up", "a shuffle")


def neighbours(numbers):
    return {frozenset(pair) for pair in itertools.pairwise(numbers)}


def differ(trial, first, second, what):
    """Two deals of the same images: other images for each rank, in another order. `what` names the two."""
    wanted = "different images: shuffle all images before you distribute them"
    for (rank, shard), (other, numbers) in itertools.product(enumerate(first), enumerate(second)):
        common = len(set(shard) & set(numbers)) / len(shard)
        came = f"rank {rank} has {common:.0%} of its images in common with rank {other} of {what[1]}"
        trial.require(common < 0.9 or len(first) == 1, f"with {what[0]}, {came}", wanted)
    pairs = [neighbours(numbers) for numbers in second]
    for rank, shard in enumerate(first):
        same = max(len(neighbours(shard) & other) for other in pairs) / len(shard)
        came = f"with {what[0]} and {what[1]}, {same:.0%} of rank {rank}'s images have the same neighbour"
        trial.require(same < 0.25, came, "a different order")


def chance(trial, size, deals, what, other):
    """What is left over, or comes again, is not the same for all seeds or epochs."""
    counts = [collections.Counter(itertools.chain(*shards)) for shards in deals]
    sets = [frozenset(number for number in range(size) if one[number] != 1) for one in counts]
    came = f"{what}: {some(sets[0])}, whatever the {other}"
    trial.require(len(set(sets)) > 1, came, f"different images for a different {other}")


def chance_of_seeds(trial, size, drop_last, what):
    cases = [case(trial, size, 4, drop_last) for _ in range(5)]
    deals = [[rank["passes"][0] for rank in ranks] for ranks in deal(trial, cases)]
    trial.tried(f"{size} images, 4 ranks, {len(cases)} different seeds")
    shards = [shards[0] for shards in deals]
    came = f"rank 0 has {listed(shards[0][:6])} ..., in the same order whatever the seed"
    trial.require(any(shard != shards[0] for shard in shards), came, "a different order for a different seed")
    chance(trial, size, deals, what, "seed")


@check("04.1a")
def disjoint(trial):
    trial.tried(
        "2, 3, 4 and 1 ranks that can share the images evenly; each rank is a process without a process group"
    )
    sizes = [drawn(trial, 5, 12) * world_size for world_size in (2, 3, 4, 1)]
    deal(trial, [case(trial, size, ranks) for size, ranks in zip(sizes, (2, 3, 4, 1), strict=True)])


@check("04.1b")
def by_the_seed(trial):
    trial.tried("400 or more images, 1, 2 and 4 ranks, two seeds")
    size, sizes = drawn(trial, 100, 120) * 4, (1, 2, 4)
    one_seed = case(trial, size, 1)["seed"]
    seeds = (one_seed, one_seed + 1000)
    cases = [case(trial, size, world_size, seed=seed) for world_size in sizes for seed in seeds]
    cases.append(case(trial, size, 4, drop_last=True, seed=one_seed))
    cases += [case(trial, size, 1, seed=seed) for seed in (0, 1)]
    found = [[rank["passes"][0] for rank in ranks] for ranks in deal(trial, cases)]
    for number in range(len(sizes)):
        first, second = found[2 * number : 2 * number + 2]
        trial.tried(f"{sizes_of(cases[2 * number])}, seeds {seeds[0]} and {seeds[1]}")
        for rank, numbers in enumerate(first):
            shuffled(trial, f"the shard of rank {rank}", numbers, size)
        differ(trial, first, second, [f"seed {seed}" for seed in seeds])
    *found, first, second = found
    trial.tried(f"{sizes_of(cases[0])}, seeds 0 and 1")
    differ(trial, first, second, ["seed 0", "seed 1"])
    # Whichever way they are dealt out, a shard goes through the one order from its beginning to its end.
    place = {number: place for place, number in enumerate(found[0][0])}
    for one, shards in zip(cases[2:-2:2], found[2::2], strict=True):
        trial.tried(f"{words_for(one)}, compared with 1 rank with the same images and seed")
        for rank, numbers in enumerate(shards):
            came = f"rank {rank} has {listed(numbers[:6])} ..., not in the order that 1 rank has"
            wanted = "an order that depends only on size, seed and epoch"
            trial.require(numbers == sorted(numbers, key=place.get), came, wanted)


@check("04.1c")
def filled_up(trial):
    trial.tried("2, 3 and 4 ranks, and a few images more than they can share evenly; padded")
    cases = [case(trial, drawn(trial, 5, 12) * 12 + 1, ranks) for ranks in (2, 3, 4)]
    cases.append(case(trial, drawn(trial, 5, 12) * 12 + 2, 3))
    deal(trial, cases)
    chance_of_seeds(trial, drawn(trial, 10, 20) * 4 + 1, False, "repeated")


@check("04.1d")
def dropped(trial):
    trial.tried("1, 2, 3 and 4 ranks, and a few images more than they can share evenly; drop_last")
    cases = [case(trial, drawn(trial, 5, 12) * 12 + 7, ranks, True) for ranks in (2, 3, 4, 1)]
    cases.append(case(trial, drawn(trial, 5, 12) * 12, 4, True))
    deal(trial, cases)
    chance_of_seeds(trial, drawn(trial, 10, 20) * 4 + 3, True, "left out")


@check("04.1e")
def few(trial):
    trial.tried("fewer images than ranks, or no images; with and without drop_last")
    sizes = [(3, 4), (2, 3), (2, 4), (1, 2), (1, 3), (1, 4), (0, 1), (0, 3)]
    many = drawn(trial, 9, 14)
    sizes += [(many // 3, many), (2, many)]
    deal(trial, [case(trial, *size, drop_last) for size in sizes for drop_last in (False, True)])


@check("04.1f")
def random_state(trial):
    words = "global random numbers, drawn between two sampler numbers and afterwards"
    trial.tried(f"13 images, 3 ranks; {words}")
    cases = [case(trial, 13, 3, drop_last, breaks=2) for drop_last in (False, True)]
    for one, ranks in zip(cases, deal(trial, cases), strict=True):
        trial.tried(f"{words_for(one)}: {words}")
        for rank, came in enumerate(ranks):
            noise = came["noise"]
            own, python = torch.Generator().manual_seed(noise), random.Random(noise)
            legacy = numpy.random.RandomState(noise)
            for moment, when in enumerate(("in a loop over the sampler", "after the sampler was used")):
                right = torch.rand((), generator=own).item(), python.random(), float(legacy.random_sample())
                for place, (name, value) in enumerate(zip(("torch", "random", "numpy"), right, strict=True)):
                    got = look(came, "drawn", moment, place)
                    what = f"on rank {rank}, {name} draws {got!r:.80} {when}"
                    wanted = f"{value}, as without the sampler: do not touch the global random state"
                    trial.require(type(got) is float and got == value, what, wanted)


@check("04.2a")
def other_epochs(trial):
    late = drawn(trial, 20, 200)
    epochs = (0, 1, 2, late)
    trial.tried(f"400 or more images, 3 ranks, seeds 0 and 1, epochs {listed(epochs)}")
    size = drawn(trial, 134, 150) * 3 + 1
    cases = [case(trial, size, 3, bool(seed), epochs, seed) for seed in (0, 1)]
    for one, ranks in zip(cases, deal(trial, cases), strict=True):
        trial.tried(words_for(one) + f", epochs {listed(epochs)}")
        shards = [[rank["passes"][number] for rank in ranks] for number in range(len(epochs))]
        for number, epoch in enumerate(epochs):
            shuffled(trial, f"the shard of rank 0 in epoch {epoch}", shards[number][0], size)
            for before in range(number):
                differ(trial, shards[before], shards[number], [f"epoch {epochs[before]}", f"epoch {epoch}"])
        chance(trial, size, shards, "left out" if one["drop_last"] else "repeated", "epoch")


@check("04.2b")
def same_epoch(trial):
    early, late = drawn(trial, 1, 10), drawn(trial, 11, 50)
    epochs = (None, early, late, None, early, 0)
    trial.tried(f"30 images, 2 ranks, set_epoch({late}) after other epochs and in a new sampler")
    first = case(trial, 30, 2, epochs=epochs, breaks=4)
    second = case(trial, 30, 2, epochs=(late,), seed=first["seed"])
    ways, at_once = deal(trial, [first, second])
    for rank, (long, short) in enumerate(zip(ways, at_once, strict=True)):
        passes, broken = long["passes"], long.get("broken")
        trial.tried("30 images, 2 ranks, a pass that stops after 4 numbers, and then a full pass")
        came = f"rank {rank} gets {broken!r:.60}, and then, in the same epoch, {passes[0][:6]} ..."
        trial.require(broken == passes[0][:4], came, "each pass begins at the start, in the same order")
        trial.tried(f"30 images, 2 ranks, set_epoch({early}), ({late}), ({early}), (0), a pass after each")
        for a, b, what in (
            (2, 3, f"a second pass in epoch {late}"),
            (1, 4, f"epoch {early} after epoch {late}"),
            (0, 5, "set_epoch(0) after other epochs, unlike a new sampler,"),
        ):
            came = f"{what} gives rank {rank} a different order: {passes[b][:6]} ..."
            trial.require(passes[a] == passes[b], came, f"{passes[a][:6]} ...")
        trial.tried(f"30 images, 2 ranks, set_epoch({late}) in a new sampler, as in a run that resumes")
        (again,) = short["passes"]
        came = f"epoch {late} gives rank {rank} a different order than after other epochs: {again[:6]}"
        trial.require(again == passes[2], came, f"{passes[2][:6]} ...")


@check("04.3a")
def each_once(trial):
    trial.tried("evaluation_shard: 2, 3, 4 and 1 ranks, and more")
    sizes = [(drawn(trial, 5, 12) * 12 + 5, ranks) for ranks in (2, 3, 4, 1)]
    sizes += [(drawn(trial, 5, 12) * 12, 4), (2, 4)]
    sizes.append((drawn(trial, 30, 50), drawn(trial, 7, 11)))
    cases = [{"size": size, "world_size": world_size} for size, world_size in sizes]

    def valid(one, rank, shard):
        valid_numbers(trial, f"evaluation_shard of rank {rank}", one["size"], shard)

    for one, shards in zip(cases, dealt(trial, "evaluation", cases, valid), strict=True):
        trial.tried(f"evaluation_shard: {sizes_of(one)}")
        counts = collections.Counter(itertools.chain(*shards))
        twice = [number for number, count in counts.items() if count > 1]
        never = [number for number in range(one["size"]) if not counts[number]]
        both = f"; not evaluated at all: {some(never)}" if never else ""
        came = f"more than once: {some(twice)}{both}"
        trial.require(not twice, came, "each image exactly once over all ranks")
        trial.require(not never, f"not evaluated at all: {some(never)}", "each image exactly once")
        lengths = [len(shard) for shard in shards]
        came = f"the numbers of images per rank are {listed(lengths)}"
        trial.require(max(lengths) - min(lengths) <= 1, came, "numbers that differ by at most one")


def answers(trial, count):
    """Random answers; the part that is right is another on every rank."""
    return torch.from_numpy(trial.random.random(count) < trial.random.uniform(0.2, 0.9))


def accuracy(trial, *evaluations, times=None):
    """One evaluation after the other, in the same processes: the answers of each rank. `times`: how often
    those of a rank are repeated."""
    ranks = list(zip(*evaluations, strict=True))
    times = times or [1] * len(ranks)
    inputs = [{"rights": list(rights), "times": often} for rights, often in zip(ranks, times, strict=True)]
    sent = trial.run("accuracy", inputs)
    for number, rights in enumerate(evaluations):
        good = [int(right.sum()) * often for right, often in zip(rights, times, strict=True)]
        sizes = [len(right) * often for right, often in zip(rights, times, strict=True)]
        expected = sum(good) / sum(sizes)
        for rank, came in enumerate(sent):
            got = look(came, "accuracies", number)
            what = f"the accuracy on rank {rank}{', in the second evaluation,' if number else ''}"
            kind = "a tensor or an array" if isinstance(got, numpy.ndarray) else f"{got!r:.80}"
            trial.require(type(got) is float, f"{what} is {kind}", f"a Python float, {expected!r}")
            few = ": only about 7 digits are correct" if abs(got - expected) < 1e-6 else ""
            why = few or as_if(got, good, sizes, rank) or ", although rank 0 has the right one" * (rank > 0)
            trial.require(abs(got - expected) <= 1e-12, f"{what} is {got!r}{why}", f"{expected!r}")


def as_if(got, good, sizes, rank):
    """Words for what an accuracy is, if it is one of these."""
    if not all(sizes) or len(sizes) == 1:
        return ""
    ways = {
        "the accuracy for this rank's images alone": good[rank] / sizes[rank],
        "all right answers, divided by the number of this rank's images": sum(good) / sizes[rank],
        "this rank's right answers, divided by the number of all images": good[rank] / sum(sizes),
    }
    return next((f": {words}" for words, value in ways.items() if abs(got - value) < 1e-6), "")


def shards_of(trial, world_size):
    """Uneven shards: rank 0 has many, the others a few."""
    few = [drawn(trial, 3, 9) for _ in range(world_size - 1)]
    return [answers(trial, count) for count in (drawn(trial, 50, 90), *few)]


@check("04.3b")
def uneven(trial):
    for world_size in (3, 4, 1, 2):
        first, second = shards_of(trial, world_size), shards_of(trial, world_size)
        lengths = [listed(map(len, rights)) for rights in (first, second)]
        # In the second, the last rank has only wrong answers; of 4, each has.
        for right in second[0 if world_size == 4 else -1 :]:
            right[:] = False
        trial.tried(f"{so_many(world_size, 'process')} with {lengths[0]} images, and then with {lengths[1]}")
        accuracy(trial, first, second)
    for rank in range(2):
        came = f"rank {rank} has sent nothing through the process group"
        trial.require(trial.sent(rank) != 0, came, "sums that are sent through torch.distributed")


@check("04.3c")
def empty(trial):
    trial.tried("3 processes, no images on rank 1")
    first, last = shards_of(trial, 2)
    accuracy(trial, [first, answers(trial, 0), last])
    trial.tried("4 processes, all images on rank 2")
    accuracy(trial, [answers(trial, 0), answers(trial, 0), first, answers(trial, 0)])


@check("04.3d")
def only_sums(trial):
    images = 200_000
    trial.tried(
        f"3 processes with {images} images each; the bytes that each process sends are counted from outside"
    )
    accuracy(trial, [answers(trial, images) for _ in range(3)])
    for rank in range(3):
        sent = trial.sent(rank) or 0
        came = f"rank {rank} sent {sent} bytes"
        trial.require(sent <= MOST_SENT, came, f"two numbers: at most {MOST_SENT} bytes")
    # float32 knows no odd number above 2**24. Rank 0 alone has more right answers than that.
    wrong = 2 * drawn(trial, 50, 100)
    right = torch.from_numpy(trial.random.permutation(4201) >= wrong)
    times = (2**24 // (4201 - wrong) + 1) | 1
    trial.tried(f"2 processes with {times * 4201} and {3 * 4196} images")
    accuracy(trial, [right, answers(trial, 4196)], times=[times, 3])
