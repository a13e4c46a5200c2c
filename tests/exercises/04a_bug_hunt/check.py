"""What exercise 04a is held against. Runs in the judge."""

import ast
from functools import partial
from itertools import chain, pairwise

import numpy
import torch
from classifier import answers, compare, environments, learnt, parameters, passes_begun, pictures
from judge import STARTERS, Verdict, check, look, so_many

KINDS = ["order", "seed", "collective", "sum", "clipping"]
KINDS += ["exchange", "mean of means", "resume", "device", "buffers"]
OTHERS = ("mode", "start", "writer", "zero_grad")


def joined(lists):
    return list(chain.from_iterable(lists))


def script(trial):
    (name,) = trial.files
    return name


def train(trial, states, parts, more=None, folder=None, **numbers):
    """Run the script on as many ranks as there are parts. Checks the form of what came."""
    inputs = []
    for rank, (images, labels) in enumerate(parts):
        own = more[rank] if more else {}
        tensors = {name: value for name, value in own.items() if torch.is_tensor(value)}
        one = {"state": states if isinstance(states, dict) else states[rank], "numbers": numbers}
        one |= {"tensors": {"images": images, "labels": labels} | tensors}
        inputs.append(one | {name: value for name, value in own.items() if name not in tensors})
    try:
        ranks = trial.run("train", inputs, main=script(trial), folder=folder)
    except Verdict as verdict:
        verdict.came += passes_begun(trial) if verdict.status == "timeout" else ""
        raise
    for rank, came in enumerate(ranks):
        form = isinstance(look(came, "state"), dict) and isinstance(look(came, "given"), list)
        trial.require(form, f"rank {rank} sent no result")
    return ranks


def numbers_of(trial, rank, came, images):
    """For each batch that the model was given: which images they are."""
    known = {row.tobytes(): number for number, row in enumerate(images.numpy())}
    batches = []
    for batch in came["given"]:
        right = isinstance(batch, numpy.ndarray) and batch.ndim == 2 and batch.dtype == numpy.float32
        trial.require(right, f"rank {rank} gave the model something that is not a batch of images")
        found = [known.get(row.tobytes()) for row in batch]
        trial.require(None not in found, f"rank {rank} gave the model an image that is not in its data")
        batches.append(found)
    return batches


def steps_of(parts, size):
    """Batches of `size` of each rank, step by step."""
    ranks = [zip(images.split(size), labels.split(size), strict=True) for images, labels in parts]
    return list(zip(*ranks, strict=True))


def named(number, right):
    @check(f"04a.{number}b")
    def kind(trial):
        trial.tried(f"KIND of {script(trial)}")
        (came,) = trial.run("kind", [None], group=False, main=script(trial))
        trial.require(isinstance(came, dict) and "KIND" in came, "there is no KIND", 'KIND = "..."')
        came = came["KIND"]
        known = isinstance(came, str) and came in (*KINDS, *OTHERS)
        wanted = "the name of another kind in KINDS.md" if known else "one of the names in KINDS.md"
        trial.require(known and came == right, f"KIND is {came!r}"[:200], wanted)


for number, right in enumerate(KINDS, start=1):
    named(number, right)


def bug(identity):
    """A check of a script. Of one that is as it was, it says no more than the user did: where it goes wrong
    would be half of the answer."""

    def mark(function):
        @check(identity)
        def held(trial):
            try:
                function(trial)
            except Verdict:
                starter = STARTERS / script(trial)
                handed_out = starter.read_text() if starter.exists() else ""
                if code_of(trial.files[script(trial)]) == code_of(handed_out):
                    came = "the code is unchanged and still does what the user saw"
                    raise Verdict("failed", came, "what the docstring asks for") from None
                raise

        return function

    return mark


def code_of(text):
    """A script without what it prints, its words, and its KIND: only what it does."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(getattr(node, "body", None), list):
            node.body = [line for line in node.body if not only_words(line)]
    return ast.dump(tree)


def only_words(line):
    if isinstance(line, ast.Assign):
        return ast.unparse(line.targets[0]) == "KIND"
    value = line.value if isinstance(line, ast.Expr) else None
    prints = isinstance(value, ast.Call) and ast.unparse(value.func) == "print"
    return prints or isinstance(value, ast.Constant)


def epochs_of(trial, ranks, images, epochs, size, share):
    """For each epoch, for each rank, the images in their order. All ranks must have `share` in each epoch."""
    batches = [numbers_of(trial, rank, came, images) for rank, came in enumerate(ranks)]
    sizes = [size] * (share // size) + [share % size] * (share % size > 0)
    count = len(sizes)
    for rank, mine in enumerate(batches):
        came, wanted = f"rank {rank} has {len(mine)} batches in {epochs} epochs", f"{count * epochs}"
        trial.require(len(mine) == count * epochs, came, f"{wanted}, which is {count} per epoch")
        for epoch in range(epochs):
            got = [len(batch) for batch in mine[epoch * count : (epoch + 1) * count]]
            came = f"in epoch {epoch}, the batches of rank {rank} have {got} images"
            trial.require(got == sizes, came, f"{sizes}")
    cuts = [slice(epoch * count, (epoch + 1) * count) for epoch in range(epochs)]
    return batches, [[joined(mine[one]) for mine in batches] for one in cuts]


def anew(trial, found):
    """Each epoch has an order of its own, is dealt anew, and is shuffled at all."""
    for epoch, shares in enumerate(found):
        for rank, share in enumerate(shares):
            steps = {after - before for before, after in pairwise(share)}
            came = f"in epoch {epoch}, rank {rank} has the images {share}"
            trial.require(len(steps) > 1 and min(steps) < 0, came, "a random order")
            for before in range(epoch):
                old = found[before][rank]
                came = f"rank {rank} has the same order in epochs {before} and {epoch}: {share}"
                trial.require(share != old, came, "a new order in each epoch")
                came = f"in epochs {before} and {epoch}, rank {rank} has the same images in a different order"
                again = "all images are distributed anew in each epoch"
                trial.require(sorted(share) != sorted(old), came, again)


def dealt(trial, world_size, size, epochs, share, complete, **more):
    """Training in which the script deals out the images. `complete` is given what all ranks have in an epoch.
    Returns what begins a further training, and what each rank had."""
    trial.tried(f"{world_size} processes, {size} images, {epochs} epochs, batches of 4")
    state, (both,) = parameters(trial), pictures(trial, size)
    ranks = train(trial, state, [both] * world_size, epochs=epochs, batch_size=4, lr=0.5, **more)
    batches, found = epochs_of(trial, ranks, both[0], epochs, 4, share)
    for epoch, shares in enumerate(found):
        complete(epoch, set(joined(shares)))
    anew(trial, found)
    steps = [[(both[0][batch], both[1][batch]) for batch in step] for step in zip(*batches, strict=True)]
    compare(trial, ranks, learnt(state, steps, 0.5))
    return state, both, found


@bug("04a.1a")
def order(trial):
    for world_size, size, epochs in ((2, 23, 4), (3, 25, 3)):

        def complete(epoch, images, size=size):
            missing = f"in epoch {epoch}, no rank has the images {sorted({*range(size)} - images)}"
            trial.require(len(images) == size, missing, "every image")

        dealt(trial, world_size, size, epochs, -(-size // world_size), complete)


@bug("04a.2a")
def seed(trial):
    for world_size, size, epochs in ((3, 25, 3), (2, 22, 4)):
        share = size // world_size

        def complete(epoch, images, wanted=share * world_size):
            came = f"in epoch {epoch}, all processes together have {len(images)} different images"
            trial.require(len(images) == wanted, came, f"{wanted}")

        begin = int(trial.integers(1, 10_000, 1)) if world_size == 3 else 0
        state, both, found = dealt(trial, world_size, size, epochs, share, complete, seed=begin)
    trial.tried(f"{world_size} processes, the same {size} images, with two different seeds")
    ranks = train(trial, state, [both] * world_size, epochs=1, batch_size=4, lr=0.5, seed=begin + 20_000)
    _, other = epochs_of(trial, ranks, both[0], 1, 4, share)
    same = f"each process has the same images with seed {begin} and with seed {begin + 20_000}"
    trial.require(other[0] != found[0], same, "a different order for a different seed")


@bug("04a.3a")
def collective(trial):
    for least in ((12, 4, 8), (10, 0), (12,)):
        more = trial.integers(0, 3, len(least)).tolist()
        sizes = [size and size + one for size, one in zip(least, more, strict=True)]
        words = f"{len(sizes)} processes with {', '.join(map(str, sizes))} test images"
        trial.tried(words if len(sizes) > 1 else f"one process with {sizes[0]} test images")
        state, parts = parameters(trial), pictures(trial, *[7] * len(sizes))
        expected = learnt(state, [parts] * 3, 0.7)
        tests, right = [], 0
        for rank, size in enumerate(sizes):
            # Labels that the trained model gives, but for some: each rank has another accuracy.
            images = trial.floats(200, 6)
            best = answers(expected.state, images).topk(2).values
            images = images[best[:, 0] - best[:, 1] > 0.05][:size]
            labels = answers(expected.state, images).argmax(1)
            wrong = (0, 3, 1)[rank] + int(trial.integers(0, 2, 1))
            labels[:wrong] = (labels[:wrong] + 1) % 3
            right += max(0, size - wrong)
            tests.append({"test_images": images, "test_labels": labels})
        ranks = train(trial, state, parts, tests, epochs=3, lr=0.7)
        compare(trial, ranks, expected)
        trial.close("the accuracy that process 0 returns", ranks[0].get("result"), right / sum(sizes))
        for rank, came in enumerate(ranks[1:], start=1):
            trial.same(f"what process {rank} returns", came.get("result"), None)


@bug("04a.4a")
def mean(trial):
    for world_size in (3, 4, 1):
        trial.tried(
            f"{so_many(world_size, 'process')} with 11 images each, batches of 4, momentum and weight decay"
        )
        states = [parameters(trial) for _ in range(world_size)]
        parts = pictures(trial, *[11] * world_size)
        ranks = train(trial, states, parts, batch_size=4, lr=0.4, momentum=0.8, weight_decay=0.1)
        compare(trial, ranks, learnt(states[0], steps_of(parts, 4), 0.4, 0.8, 0.1))


@bug("04a.5a")
def clipping(trial):
    for world_size in (2, 3):
        scale = 2.0**16 if world_size == 2 else 2.0 ** int(trial.integers(11, 16, 1))
        trial.tried(
            f"{world_size} processes, 6 steps, an initial scale of {scale:.0f}; "
            "one process has a broken image (inf) in the third step"
        )
        state, parts = parameters(trial), pictures(trial, *[18] * world_size)
        parts[-1][0][7, 2] = float("inf")
        # Some steps are to be clipped and some not: 0.5 is a usual size of a gradient here.
        settings, more = {"lr": 0.4, "momentum": 0.8}, [{"scale": scale}] * world_size
        ranks = train(trial, state, parts, more, batch_size=3, max_norm=0.5, **settings)
        compare(trial, ranks, learnt(state, steps_of(parts, 3), **settings, most=0.5))
        for rank, came in enumerate(ranks):
            what = f"the scale of the scaler on rank {rank} is {came.get('scale')} at the end"[:200]
            trial.require(came.get("scale") == scale / 2, what, f"{scale / 2}, halved after the skipped step")
            # In a batch of 3 images, no gradient of the loss itself by an answer is larger than 1/3.
            arrived = look(came, "arrived", 0)
            what = f"in the first step, the largest gradient of the loss on rank {rank} is {arrived}"[:200]
            scaled = isinstance(arrived, float) and arrived > 1
            trial.require(scaled, what, "a loss that is scaled before the backward pass")


@bug("04a.6a")
def exchange(trial):
    for world_size, accumulate in ((2, 4), (3, 2)):
        steps, width = 3, 4000
        trial.tried(f"{world_size} processes, {steps} steps of {accumulate} batches with 2 images each")
        state, parts = parameters(trial, width), pictures(trial, *[2 * steps * accumulate] * world_size)
        ranks = train(trial, state, parts, batch_size=2, accumulate=accumulate, lr=0.3)
        compare(trial, ranks, learnt(state, steps_of(parts, 2 * accumulate), 0.3), passes=accumulate)
        once = 4 * sum(value.numel() for value in state.values()) * 2 * (world_size - 1) / world_size
        sent = [trial.sent(rank) for rank in range(world_size)]
        for rank, came in enumerate(ranks):
            trial.same(f"the number of batches of rank {rank}", len(came["given"]), steps * accumulate)
            pairs = came.get("passes") == ["forward", "backward"] * (steps * accumulate)
            what = f"rank {rank} goes forward with another batch before the backward pass of the previous"
            each = "a forward and a backward pass for each small batch"
            trial.require(pairs, f"{what} batch", f"{each}, because the large batch is too large")
        # DDP sends the parameters once when it begins: half an exchange. Only Linux counts.
        if None not in sent:
            times = sum(sent) / once / world_size
            what = f"the processes send as much data as in about {max(0, round(times - 0.5))} exchanges"
            wanted = f"{steps}: one exchange of all gradients per step"
            trial.require(steps * 0.9 < times < steps + 1.8, what, wanted)


@bug("04a.7a")
def uneven(trial):
    for sizes, steps in (((13, 4), 3), ((5, 11, 1, 8), 2)):
        trial.tried(f"{len(sizes)} processes with {', '.join(map(str, sizes))} images, {steps} steps")
        state, parts = parameters(trial), pictures(trial, *sizes)
        ranks = train(trial, state, parts, steps=steps, lr=0.8)
        for rank, came in enumerate(ranks):
            seen = sorted(joined(numbers_of(trial, rank, came, parts[rank][0])))
            what = f"rank {rank} trained with {len(seen)} images, of which {len(set(seen))} are different"
            trial.require(seen == [*range(sizes[rank])], what, f"each of its {sizes[rank]} images once")
        cut = [zip(*(both.tensor_split(steps) for both in part), strict=True) for part in parts]
        compare(trial, ranks, learnt(state, list(zip(*cut, strict=True)), 0.8, alike=True))


@bug("04a.8a")
def resume(trial):
    world_size, size, settings = 2, 3, {"lr": 0.4, "momentum": 0.8}
    folder = f"job-{trial.nursery.number}"  # what another submission has saved is not there
    state, parts = parameters(trial), pictures(trial, *[8] * world_size)
    shuffles = [torch.Generator().manual_seed(epoch) for epoch in range(5)]
    batches = [torch.randperm(8, generator=one).split(size) for one in shuffles]
    steps = [
        [[(images[batch], labels[batch]) for images, labels in parts] for batch in epoch] for epoch in batches
    ]
    # Each line: epochs to reach, the forward pass in which all ranks are stopped, and the first epoch.
    for number, (epochs, stop, first) in enumerate(((5, 7, 0), (4, None, 2), (5, None, 4), (5, None, 5))):
        start = ("the first start", "the first restart", "the second restart", "the third restart")[number]
        until = "stopped in epoch 2" if stop else f"{epochs} epochs in total"
        trial.tried(f"{world_size} processes; {start}: {until}")
        inputs = [{"snapshot": "snapshot.pt", "stop": stop}] * world_size
        begin = state if number == 0 else parameters(trial)
        ranks = train(trial, begin, parts, inputs, folder, epochs=epochs, batch_size=size, **settings)
        for rank, came in enumerate(ranks if stop else ()):
            what = f"the number of batches of rank {rank} before it is stopped"
            trial.same(what, len(came["given"]), stop)
        if stop:
            continue
        wanted = [batch.tolist() for epoch in batches[first:epochs] for batch in epoch]
        until = f"{len(wanted)}: epochs {first} to {epochs - 1}" if wanted else "none: training is finished"
        for rank, came in enumerate(ranks):
            given = numbers_of(trial, rank, came, parts[rank][0])
            what = f"rank {rank} trains with {len(given)} batches after this start"
            trial.require(len(given) == len(wanted), what, until)
            what = f"rank {rank} trains with the images {given} after this start"[:200]
            order = f"{wanted}, the order of epochs {first} to {epochs - 1}"[:200]
            trial.require(given == wanted, what, order)
        compare(trial, ranks, learnt(state, joined(steps[:epochs]), **settings), len(joined(steps[:first])))

    def torn(begin, **inputs):
        inputs = [{"snapshot": "torn.pt", **inputs}]
        return train(trial, begin, parts[:1], inputs, folder, epochs=3, batch_size=size, **settings)[0]

    trial.tried("1 process; stopped at the end of epoch 1, while it writes the snapshot")
    if torn(state, stop_in_save=2).get("stopped"):
        trial.tried("1 process; restarted after it was stopped while writing the snapshot of epoch 1")
        given = numbers_of(trial, 0, torn(parameters(trial)), parts[0][0])
        words = "2 epochs: the epoch in which it was stopped, and the last epoch"
        wanted = [batch.tolist() for epoch in batches[1:3] for batch in epoch]
        trial.require(given == wanted, f"it trains with {len(given)} batches after this start", words)


@bug("04a.9a")
def device(trial):
    # For each machine how many processes it has, and how many devices.
    for machines in (((1, 2), (2, 3)), ((2, 4), (1, 1))):
        words = " and ".join(f"{count} on {so_many(devices, 'device')}" for count, devices in machines)
        trial.tried(f"two machines with these processes: {words}")
        of_each = environments(*(count for count, _ in machines))
        world_size = len(of_each)
        devices = [machines[int(one["GROUP_RANK"])][1] for one in of_each]
        more = [{"environment": one, "devices": many} for one, many in zip(of_each, devices, strict=True)]
        state, (both,) = parameters(trial), pictures(trial, 7 * world_size + 1)
        mine = [[value[7 * rank : 7 * rank + 7] for value in both] for rank in range(world_size)]
        ranks = train(trial, state, [both] * world_size, more, batch_size=4, lr=0.8)
        for rank, came in enumerate(ranks):
            local, machine = (
                of_each[rank]["LOCAL_RANK"],
                ("first", "second")[int(of_each[rank]["GROUP_RANK"])],
            )
            put = [one for one in look(came, "put") or [] if isinstance(one, list) and len(one) == 2]
            used = sorted({str(number) for number, _ in put})
            devices = f"device {' and '.join(used)}" if used else "no device"
            who = f"rank {rank} (local rank {local} on the {machine} machine)"
            trial.require(used == [local], f"{who} uses {devices}", f"only device {local}")
            what = [one for _, one in put if isinstance(one, str | int)]
            enough = "model" in what and sum(size for size in what if isinstance(size, int)) >= 7
            only = f"rank {rank} put only this on its device: {what}"[:200]
            trial.require(enough, only, "the model and its images")
        compare(trial, ranks, learnt(state, steps_of(mine, 4), 0.8))


@bug("04a.10a")
def buffers(trial):
    for world_size in (2, 3):
        trial.tried(f"{world_size} processes with 12 images each, batches of 4, and 5 test images")
        state = parameters(trial) | {
            "norm.weight": trial.floats(5) + 2,
            "norm.bias": trial.floats(5),
            "norm.running_mean": trial.floats(5),
            "norm.running_var": trial.floats(5) ** 2 + 0.5,
            "norm.num_batches_tracked": torch.tensor(0),
        }
        # Images of another brightness and contrast on each rank, as from another camera.
        parts = enumerate(pictures(trial, *[12] * world_size))
        parts = [(images * (1 + rank) + 2 * rank, labels) for rank, (images, labels) in parts]
        test = trial.floats(5, 6) + 1
        ranks = train(trial, state, parts, [{"test_images": test}] * world_size, batch_size=4, lr=0.3)
        learns = {name: value for name, value in state.items() if not name.startswith(("norm.r", "norm.num"))}
        expected = learnt(learns, steps_of(parts, 4), 0.3)
        compare(trial, ranks, expected)
        running = running_of(learns, state, parts, 4, 0.3)
        mean = [sum(kept) / world_size for kept in zip(*running, strict=True)]
        answered = answers(expected.state, test, mean)
        results = [came.get("result") for came in ranks]
        for rank, result in enumerate(results):
            form = isinstance(result, numpy.ndarray) and result.dtype.kind == "f"
            form = form and result.shape == (5, 3) and numpy.isfinite(result).all()
            trial.require(form, f"rank {rank} returns something other than answers", "5 x 3 numbers")
        allowed = 2e-4 * max(1, float(answered.abs().max()))
        near = partial(within, allowed)
        # A wrong mend is not to look like none at all.
        spread = zip(results, running_of(learns, state, parts, 4, 0.3, spread=True), strict=True)
        spread = all(near(result, answers(expected.state, test, kept)) for result, kept in spread)
        why = ": their buffers were made equal to those of rank 0 before each batch, but not after the last"
        for rank, result in enumerate(results):
            what = f"ranks 0 and {rank} give different answers for the same images{why * spread}"
            trial.require(near(result, results[0]), what, "the same answers on all ranks")
        of_rank_0 = near(results[0], answers(expected.state, test, running[0]))
        what = "all ranks agree, but running_mean and running_var are those of rank 0"
        trial.require(near(results[0], answered) or not of_rank_0, what, "the mean over all ranks")
        for rank, result in enumerate(results):
            trial.close(f"the answers of rank {rank}", result, answered, 1e-4, 1)
        for rank, came in enumerate(ranks):
            for name, value in zip(("norm.running_mean", "norm.running_var"), mean, strict=True):
                what = f"{name} of the model of rank {rank} at the end"
                trial.close(what, came["state"].get(name), value, 1e-4, 1)


def within(allowed, result, right):
    return abs(result - numpy.asarray(right)).max() <= allowed


def running_of(learns, state, parts, size, lr, spread=False):
    """Running mean and variance of each rank, as batch norm keeps them. Spread: before each batch, all ranks
    take over those of rank 0."""
    steps = steps_of(parts, size)
    ranks = [[state["norm.running_mean"].double(), state["norm.running_var"].double()] for _ in parts]
    for number, step in enumerate(steps):
        now = learnt(learns, steps[:number], lr).state
        if spread:
            ranks = [list(ranks[0]) for _ in parts]
        for kept, (images, _) in zip(ranks, step, strict=True):
            hidden = images.double() @ now["first.weight"].T + now["first.bias"]
            kept[0] = 0.9 * kept[0] + 0.1 * hidden.mean(0)
            kept[1] = 0.9 * kept[1] + 0.1 * hidden.var(0)
    return ranks
