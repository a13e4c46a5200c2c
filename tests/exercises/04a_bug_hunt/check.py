"""What exercise 04a is held against. Runs in the judge.

Every script is held against one process in float64 that makes each step with the images of all ranks.
"""

import ast
from itertools import chain, pairwise

import numpy
import torch
from judge import STARTERS, Verdict, check, so_many
from torch.nn.functional import batch_norm, cross_entropy

KINDS = {
    "04a.1": "order",
    "04a.2": "seed",
    "04a.3": "collective",
    "04a.4": "sum",
    "04a.5": "clipping",
    "04a.6": "exchange",
    "04a.7": "mean of means",
    "04a.8": "resume",
    "04a.9": "device",
    "04a.10": "buffers",
}
OTHERS = ("mode", "start", "writer", "zero_grad")


# ---- inputs -----------------------------------------------------------------------------------


def parameters(trial, width=5):
    return {
        "first.weight": trial.floats(width, 6) / 2,
        "first.bias": trial.floats(width) / 2,
        "second.weight": trial.floats(3, width) / width**0.5,
        "second.bias": trial.floats(3),
    }


def pictures(trial, *sizes):
    """For each size, as many images and labels. No two images are alike."""
    return [(trial.floats(size, 6), trial.integers(0, 3, size)) for size in sizes]


def joined(lists):
    return list(chain.from_iterable(lists))


def script(trial):
    (name,) = trial.files
    return name


def train(trial, states, parts, more=None, folder=None, **numbers):
    """Run the script on as many ranks as there are parts. Checks the form of what came."""
    inputs = []
    for rank, (images, labels) in enumerate(parts):
        one = {"state": states if isinstance(states, dict) else states[rank], "numbers": numbers}
        one["tensors"] = {"images": images, "labels": labels}
        for name, value in (more[rank] if more else {}).items():
            (one["tensors"] if torch.is_tensor(value) else one)[name] = value
        inputs.append(one)
    try:
        ranks = trial.run("train", inputs, main=script(trial), folder=folder)
    except Verdict as verdict:
        verdict.came += passes_begun(trial) if verdict.status == "timeout" else ""
        raise
    for rank, came in enumerate(ranks):
        form = isinstance(came, dict) and isinstance(came.get("state"), dict)
        trial.require(form and isinstance(came.get("given"), list), f"rank {rank} sent no result")
        came["put"] = came.get("put") if isinstance(came.get("put"), list) else []
        came["arrived"] = came.get("arrived") if isinstance(came.get("arrived"), list) else []
        came["before"] = came.get("before") if isinstance(came.get("before"), list) else []
    return ranks


def passes_begun(trial):
    """How far each rank came, if not all came as far: inside DDP nobody can see who waits for whom."""
    counts = [len(trial.events(rank, "forward")) for rank in range(len(trial.answer["ranks"]))]
    words = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(counts))
    return (
        f"; number of training forward passes that each rank began: {words}" if len(set(counts)) > 1 else ""
    )


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


# ---- what is right ----------------------------------------------------------------------------


def answers(state, images, buffers=None):
    """The model, in float64. With buffers: in evaluation mode."""
    hidden = images.double() @ state["first.weight"].T + state["first.bias"]
    if "norm.weight" in state:
        hidden = batch_norm(
            hidden, *(buffers or (None, None)), state["norm.weight"], state["norm.bias"], buffers is None
        )
    return torch.tanh(hidden) @ state["second.weight"].T + state["second.bias"]


def learnt(state, steps, lr, momentum=0, decay=0, most=None, alike=False, path=None):
    """Parameters after steps of one process. A step has a batch of each rank; the ranks count alike, or the
    images do. A step whose gradients are not finite is left out. `path` takes one of them after each step."""
    state = {name: value.double().requires_grad_() for name, value in state.items()}
    optimizer = torch.optim.SGD(state.values(), lr, momentum, weight_decay=decay)
    for parts in steps:
        losses = [cross_entropy(answers(state, images), labels, reduction="sum") for images, labels in parts]
        sizes = [len(labels) for _, labels in parts]
        if alike:
            loss = sum(losses) / sum(sizes)
        else:
            loss = sum(loss / size for loss, size in zip(losses, sizes, strict=True)) / len(parts)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([value.grad for value in state.values()])
        if most is not None and norm > most:
            for value in state.values():
                value.grad *= most / norm
        if norm.isfinite():
            optimizer.step()
        if path is not None:
            path.append(state["second.bias"].detach().clone())
    return {name: value.detach() for name, value in state.items()}


def steps_of(parts, size):
    """Batches of `size` of each rank, step by step."""
    ranks = [zip(images.split(size), labels.split(size), strict=True) for images, labels in parts]
    return list(zip(*ranks, strict=True))


def chosen(batches, images, labels):
    """The same from the numbers of images that each rank has given to its model."""
    return [[(images[batch], labels[batch]) for batch in parts] for parts in zip(*batches, strict=True)]


def compare(trial, ranks, expected, path=(), passes=1):
    """With the `path` of one parameter, the first step that differs is named. A step has so many forward
    passes."""
    for step, value in enumerate(path, start=1):
        for rank, came in enumerate(ranks):
            # What the model was before the next forward pass; after the last there is none.
            if step * passes < len(came["before"]):
                what = f"second.bias on rank {rank} after step {step} of {len(path)}"
                after = ", the first that differs" if len(path) > 1 else ""
                trial.close(f"{what}{after}", came["before"][step * passes], value, 1e-4, 0.1)
    for rank, came in enumerate(ranks):
        for name, value in expected.items():
            trial.close(f"{name} on rank {rank} after training", came["state"].get(name), value, 1e-4, 0.1)


# ---- the kinds --------------------------------------------------------------------------------


def named(part):
    @check(f"{part}b")
    def kind(trial):
        trial.tried(f"KIND of {script(trial)}")
        (came,) = trial.run("kind", [None], group=False, main=script(trial))
        trial.require(isinstance(came, dict) and "KIND" in came, "there is no KIND", 'KIND = "..."')
        came = came["KIND"]
        known = isinstance(came, str) and came in (*KINDS.values(), *OTHERS)
        wanted = "the name of another kind in KINDS.md" if known else "one of the names in KINDS.md"
        trial.require(known and came == KINDS[part], f"KIND is {came!r}"[:200], wanted)


for part in KINDS:
    named(part)


# ---- the bugs ---------------------------------------------------------------------------------


def bug(identity):
    """A check of a script. Of one that is as it was, it says no more than the user did: where it goes wrong
    would be half of the answer."""

    def mark(function):
        @check(identity)
        def held(trial):
            try:
                function(trial)
            except Verdict:
                if code_of(trial.files[script(trial)]) == code_of(handed_out(trial)):
                    came = "the code is unchanged and still does what the user saw"
                    raise Verdict("failed", came, "what the docstring asks for") from None
                raise

        return function

    return mark


def handed_out(trial):
    path = STARTERS / script(trial)
    return path.read_text() if path.exists() else ""


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
        trial.require(
            len(mine) == count * epochs,
            f"rank {rank} has {len(mine)} batches in {epochs} epochs",
            f"{count * epochs}, which is {count} per epoch",
        )
        for epoch in range(epochs):
            came = [len(batch) for batch in mine[epoch * count : (epoch + 1) * count]]
            trial.require(
                came == sizes, f"in epoch {epoch}, the batches of rank {rank} have {came} images", f"{sizes}"
            )
    found = [
        [joined(mine[epoch * count : (epoch + 1) * count]) for mine in batches] for epoch in range(epochs)
    ]
    return batches, found


def anew(trial, found):
    """Each epoch has an order of its own, is dealt anew, and is shuffled at all."""
    for epoch, shares in enumerate(found):
        for rank, share in enumerate(shares):
            steps = {after - before for before, after in pairwise(share)}
            trial.require(
                len(steps) > 1 and min(steps) < 0,
                f"in epoch {epoch}, rank {rank} has the images {share}",
                "a random order",
            )
            for before in range(epoch):
                trial.require(
                    share != found[before][rank],
                    f"rank {rank} has the same order in epochs {before} and {epoch}: {share}",
                    "a new order in each epoch",
                )
                trial.require(
                    sorted(share) != sorted(found[before][rank]),
                    f"in epochs {before} and {epoch}, rank {rank} has the same images in a different order",
                    "all images are distributed anew in each epoch",
                )


@bug("04a.1a")
def order(trial):
    for world_size, size, epochs in ((2, 23, 4), (3, 25, 3)):
        trial.tried(f"{world_size} processes, {size} images, {epochs} epochs, batches of 4")
        state, (both,) = parameters(trial), pictures(trial, size)
        ranks = train(trial, state, [both] * world_size, epochs=epochs, batch_size=4, lr=0.5)
        share = -(-size // world_size)
        batches, found = epochs_of(trial, ranks, both[0], epochs, 4, share)
        for epoch, shares in enumerate(found):
            missing = set(range(size)) - set(joined(shares))
            trial.require(
                not missing, f"in epoch {epoch}, no rank has the images {sorted(missing)}", "every image"
            )
        anew(trial, found)
        path = []
        expected = learnt(state, chosen(batches, *both), 0.5, path=path)
        compare(trial, ranks, expected, path)


@bug("04a.2a")
def seed(trial):
    for world_size, size, epochs in ((3, 25, 3), (2, 22, 4)):
        trial.tried(f"{world_size} processes, {size} images, {epochs} epochs, batches of 4")
        state, (both,) = parameters(trial), pictures(trial, size)
        begin = int(trial.integers(1, 10_000, 1))
        ranks = train(trial, state, [both] * world_size, epochs=epochs, batch_size=4, lr=0.5, seed=begin)
        share = size // world_size
        batches, found = epochs_of(trial, ranks, both[0], epochs, 4, share)
        for epoch, shares in enumerate(found):
            different = len(set(joined(shares)))
            trial.require(
                different == share * world_size,
                f"in epoch {epoch}, all processes together have {different} different images",
                f"{share * world_size}",
            )
        anew(trial, found)
        path = []
        expected = learnt(state, chosen(batches, *both), 0.5, path=path)
        compare(trial, ranks, expected, path)
    trial.tried(f"{world_size} processes, the same {size} images, with two different seeds")
    ranks = train(trial, state, [both] * world_size, epochs=1, batch_size=4, lr=0.5, seed=begin + 20_000)
    _, other = epochs_of(trial, ranks, both[0], 1, 4, share)
    same = f"each process has the same images with seed {begin} and with seed {begin + 20_000}"
    trial.require(other[0] != found[0], same, "a different order for a different seed")


@bug("04a.3a")
def collective(trial):
    for least in ((12, 4, 8), (10, 6), (12,)):
        sizes = [size + int(more) for size, more in zip(least, trial.integers(0, 3, len(least)), strict=True)]
        alone = len(sizes) == 1
        trial.tried(
            f"one process with {sizes[0]} test images"
            if alone
            else f"{len(sizes)} processes with {', '.join(map(str, sizes))} test images"
        )
        state, parts = parameters(trial), pictures(trial, *[7] * len(sizes))
        steps = [parts] * 3
        expected = learnt(state, steps, 0.7)
        tests, right = [], 0
        for rank, size in enumerate(sizes):
            # Labels that the trained model gives, but for some: each rank has another accuracy.
            images = trial.floats(200, 6)
            best = answers(expected, images).topk(2).values
            images = images[best[:, 0] - best[:, 1] > 0.05][:size]
            labels = answers(expected, images).argmax(1)
            wrong = (0, 3, 1)[rank] + int(trial.integers(0, 2, 1))
            labels[:wrong] = (labels[:wrong] + 1) % 3
            right += size - wrong
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
        path = []
        expected = learnt(states[0], steps_of(parts, 4), 0.4, 0.8, 0.1, path=path)
        ranks = train(trial, states, parts, batch_size=4, lr=0.4, momentum=0.8, weight_decay=0.1)
        compare(trial, ranks, expected, path)


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
        settings, path = {"lr": 0.4, "momentum": 0.8}, []
        expected = learnt(state, steps_of(parts, 3), **settings, most=0.5, path=path)
        more = [{"scale": scale}] * world_size
        ranks = train(trial, state, parts, more, batch_size=3, max_norm=0.5, **settings)
        compare(trial, ranks, expected, path)
        for rank, came in enumerate(ranks):
            trial.require(
                came.get("scale") == scale / 2,
                f"the scale of the scaler on rank {rank} is {came.get('scale')} at the end"[:200],
                f"{scale / 2}, halved after the skipped step",
            )
            # In a batch of 3 images, no gradient of the loss itself by an answer is larger than 1/3.
            arrived = came["arrived"][0] if came["arrived"] else None
            trial.require(
                isinstance(arrived, float) and arrived > 1,
                f"in the first step, the largest gradient of the loss on rank {rank} is {arrived}"[:200],
                "a loss that is scaled before the backward pass",
            )


@bug("04a.6a")
def exchange(trial):
    for world_size, accumulate in ((2, 4), (3, 2)):
        steps, width = 3, 4000
        trial.tried(f"{world_size} processes, {steps} steps of {accumulate} batches with 2 images each")
        state, parts = (
            parameters(trial, width),
            pictures(trial, *[2 * steps * accumulate] * world_size),
        )
        large, path = steps_of(parts, 2 * accumulate), []
        expected = learnt(state, large, 0.3, path=path)
        ranks = train(trial, state, parts, batch_size=2, accumulate=accumulate, lr=0.3)
        compare(trial, ranks, expected, path, accumulate)
        once = 4 * sum(value.numel() for value in state.values()) * 2 * (world_size - 1) / world_size
        sent = [trial.sent(rank) for rank in range(world_size)]
        for rank, came in enumerate(ranks):
            trial.same(f"the number of batches of rank {rank}", len(came["given"]), steps * accumulate)
            pairs = came.get("passes") == ["forward", "backward"] * (steps * accumulate)
            trial.require(
                pairs,
                f"rank {rank} goes forward with another batch before the backward pass of the previous batch",
                "a forward and a backward pass for each small batch, because the large batch is too large",
            )
        # DDP sends the parameters once when it begins: half an exchange. Only Linux counts.
        if None not in sent:
            times = sum(sent) / once / world_size
            trial.require(
                steps * 0.9 < times < steps + 1.8,
                f"the processes send as much data as in about {max(0, round(times - 0.5))} exchanges",
                f"{steps}: one exchange of all gradients per step",
            )


@bug("04a.7a")
def uneven(trial):
    for sizes, steps in (((13, 4), 3), ((5, 11, 3, 8), 2)):
        trial.tried(f"{len(sizes)} processes with {', '.join(map(str, sizes))} images, {steps} steps")
        state, parts = parameters(trial), pictures(trial, *sizes)
        cut = [
            list(zip(images.tensor_split(steps), labels.tensor_split(steps), strict=True))
            for images, labels in parts
        ]
        path = []
        expected = learnt(state, list(zip(*cut, strict=True)), 0.8, alike=True, path=path)
        ranks = train(trial, state, parts, steps=steps, lr=0.8)
        for rank, came in enumerate(ranks):
            seen = sorted(joined(numbers_of(trial, rank, came, parts[rank][0])))
            trial.require(
                seen == list(range(sizes[rank])),
                f"rank {rank} trained with {len(seen)} images, of which {len(set(seen))} are different",
                f"each of its {sizes[rank]} images once",
            )
        compare(trial, ranks, expected, path)


@bug("04a.8a")
def resume(trial):
    world_size, size, settings = 2, 3, {"lr": 0.4, "momentum": 0.8}
    folder = f"job-{trial.nursery.number}"  # what another submission has saved is not there
    state, parts = parameters(trial), pictures(trial, *[8] * world_size)
    batches = [
        torch.randperm(8, generator=torch.Generator().manual_seed(epoch)).split(size) for epoch in range(5)
    ]
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
        if stop:
            for rank, came in enumerate(ranks):
                trial.same(
                    f"the number of batches of rank {rank} before it is stopped", len(came["given"]), stop
                )
            continue
        for rank, came in enumerate(ranks):
            given = numbers_of(trial, rank, came, parts[rank][0])
            wanted = [batch.tolist() for epoch in batches[first:epochs] for batch in epoch]
            trial.require(
                len(given) == len(wanted),
                f"rank {rank} trains with {len(given)} batches after this start",
                f"{len(wanted)}: epochs {first} to {epochs - 1}" if wanted else "none: training is finished",
            )
            trial.require(
                given == wanted,
                f"rank {rank} trains with the images {given} after this start"[:200],
                f"{wanted}, the order of epochs {first} to {epochs - 1}"[:200],
            )
        path = []
        expected = learnt(state, joined(steps[:epochs]), **settings, path=path)
        compare(trial, ranks, expected, path[len(joined(steps[:first])) :])

    trial.tried("1 process; stopped at the end of epoch 1, while it writes the snapshot")
    inputs = [{"snapshot": "torn.pt", "stop_in_save": 2}]
    (came,) = train(trial, state, parts[:1], inputs, folder, epochs=3, batch_size=size, **settings)
    if came.get("stopped"):
        trial.tried("1 process; restarted after it was stopped while writing the snapshot of epoch 1")
        inputs = [{"snapshot": "torn.pt"}]
        begin = parameters(trial)
        (came,) = train(trial, begin, parts[:1], inputs, folder, epochs=3, batch_size=size, **settings)
        wanted = [batch.tolist() for epoch in batches[1:3] for batch in epoch]
        given = numbers_of(trial, 0, came, parts[0][0])
        words = "2 epochs: the epoch in which it was stopped, and the last epoch"
        trial.require(given == wanted, f"it trains with {len(given)} batches after this start", words)


@bug("04a.9a")
def device(trial):
    # For each machine how many processes it has, and how many devices.
    for machines in (((1, 2), (2, 3)), ((2, 4), (1, 1))):
        words = " and ".join(f"{count} on {so_many(devices, 'device')}" for count, devices in machines)
        trial.tried(f"two machines with these processes: {words}")
        more = []
        world_size = sum(count for count, _ in machines)
        for machine, (count, devices) in enumerate(machines):
            for local in range(count):
                environment = {"RANK": len(more), "LOCAL_RANK": local, "WORLD_SIZE": world_size}
                environment |= {"LOCAL_WORLD_SIZE": count, "GROUP_RANK": machine, "GROUP_WORLD_SIZE": 2}
                environment = {name: str(value) for name, value in environment.items()}
                more.append({"environment": environment, "devices": devices})
        state, (both,) = parameters(trial), pictures(trial, 7 * world_size + 1)
        mine = [[value[7 * rank : 7 * rank + 7] for value in both] for rank in range(world_size)]
        path = []
        expected = learnt(state, steps_of(mine, 4), 0.8, path=path)
        ranks = train(trial, state, [both] * world_size, more, batch_size=4, lr=0.8)
        for rank, came in enumerate(ranks):
            local = int(more[rank]["environment"]["LOCAL_RANK"])
            machine = ("first", "second")[int(more[rank]["environment"]["GROUP_RANK"])]
            used = sorted({str(one[0]) for one in came["put"] if isinstance(one, list) and one})
            trial.require(
                used == [str(local)],
                f"rank {rank} (local rank {local} on the {machine} machine) uses {names_of(used)}",
                f"only device {local}",
            )
            what = [one[1] for one in came["put"] if isinstance(one, list) and len(one) == 2]
            what = [one for one in what if isinstance(one, str | int)]
            trial.require(
                "model" in what and sum(size for size in what if isinstance(size, int)) >= 7,
                f"rank {rank} put only this on its device: {what}"[:200],
                "the model and its images",
            )
        compare(trial, ranks, expected, path)


def names_of(devices):
    return f"device {' and '.join(devices)}" if devices else "no device"


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
        parts = [
            (images * (1 + rank) + 2 * rank, labels)
            for rank, (images, labels) in enumerate(pictures(trial, *[12] * world_size))
        ]
        test = trial.floats(5, 6) + 1
        ranks = train(trial, state, parts, [{"test_images": test}] * world_size, batch_size=4, lr=0.3)
        learns = {name: value for name, value in state.items() if not name.startswith(("norm.r", "norm.num"))}
        path = []
        expected = learnt(learns, steps_of(parts, 4), 0.3, path=path)
        compare(trial, ranks, expected, path)
        running = running_of(learns, state, parts, 4, 0.3)
        mean = [sum(kept) / world_size for kept in zip(*running, strict=True)]
        answered = answers(expected, test, mean)
        results = [came.get("result") for came in ranks]
        for rank, result in enumerate(results):
            form = isinstance(result, numpy.ndarray) and result.dtype.kind == "f"
            form = form and result.shape == (5, 3) and numpy.isfinite(result).all()
            trial.require(form, f"rank {rank} returns something other than answers", "5 x 3 numbers")
        allowed = 2e-4 * max(1, float(answered.abs().max()))

        # A wrong mend is not to look like none at all.
        spread = running_of(learns, state, parts, 4, 0.3, spread=True)
        spread = [
            near(result, answers(expected, test, kept), allowed)
            for result, kept in zip(results, spread, strict=True)
        ]
        why = ": their buffers were made equal to those of rank 0 before each batch, but not after the last"
        for rank, result in enumerate(results):
            trial.require(
                near(result, results[0], allowed),
                f"ranks 0 and {rank} give different answers for the same images{why if all(spread) else ''}",
                "the same answers on all ranks",
            )
        if not near(results[0], answered, allowed):
            trial.require(
                not near(results[0], answers(expected, test, running[0]), allowed),
                "all ranks agree, but running_mean and running_var are those of rank 0",
                "the mean over all ranks",
            )
        for rank, result in enumerate(results):
            trial.close(f"the answers of rank {rank}", result, answered, 1e-4, 1)
        for rank, came in enumerate(ranks):
            for name, value in zip(("norm.running_mean", "norm.running_var"), mean, strict=True):
                trial.close(
                    f"{name} of the model of rank {rank} at the end", came["state"].get(name), value, 1e-4, 1
                )


def near(result, right, allowed):
    return abs(result - numpy.asarray(right)).max() <= allowed


def running_of(learns, state, parts, size, lr, spread=False):
    """Running mean and variance of each rank, as batch norm keeps them. Spread: before each batch, all ranks
    take over those of rank 0."""
    steps = steps_of(parts, size)
    ranks = [[state["norm.running_mean"].double(), state["norm.running_var"].double()] for _ in parts]
    for number, step in enumerate(steps):
        now = learnt(learns, steps[:number], lr)
        if spread:
            ranks = [list(ranks[0]) for _ in parts]
        for kept, (images, _) in zip(ranks, step, strict=True):
            hidden = images.double() @ now["first.weight"].T + now["first.bias"]
            kept[0] = 0.9 * kept[0] + 0.1 * hidden.mean(0)
            kept[1] = 0.9 * kept[1] + 0.1 * hidden.var(0)
    return ranks
