"""What exercise 06 is held against. Runs in the judge.

Weights and losses are held against one process in float64, files against what was handed to process 0.
"""

import math

import numpy
import torch
from judge import Verdict, check, so_many
from torch.nn.functional import cross_entropy

# ---- inputs -----------------------------------------------------------------------------------


def parameters(trial):
    return {
        "first.weight": trial.floats(5, 6) / 2,
        "first.bias": trial.floats(5) / 2,
        "second.weight": trial.floats(3, 5) / 2,
        "second.bias": trial.floats(3),
    }


def pictures(trial, size):
    return {"images": trial.floats(size, 6), "labels": trial.integers(0, 3, size)}


def shuffled(trial, size):
    return torch.from_numpy(trial.random.permutation(size))


# ---- what is right ----------------------------------------------------------------------------


def answers(state, images):
    hidden = torch.tanh(images.double() @ state["first.weight"].T + state["first.bias"])
    return hidden @ state["second.weight"].T + state["second.bias"]


def learnt(state, epochs, lr, path=None):
    """Weights and losses of one process. An epoch is a list of steps, a step a batch of each rank. The
    learning rate falls along a cosine, once an epoch. `path` takes one of the weights after each step."""
    state = {name: value.double().requires_grad_() for name, value in state.items()}
    losses = []
    for number, steps in enumerate(epochs):
        rate = lr * (1 + math.cos(math.pi * number / len(epochs))) / 2
        total = 0.0
        for parts in steps:
            loss = sum(cross_entropy(answers(state, images), labels) for images, labels in parts) / len(parts)
            gradients = torch.autograd.grad(loss, list(state.values()))
            with torch.no_grad():
                for value, gradient in zip(state.values(), gradients, strict=True):
                    value -= rate * gradient
            if path is not None:
                path.append(state["second.bias"].detach().clone())
            total += loss.item()
        losses.append(total / len(steps))
    return {name: value.detach() for name, value in state.items()}, losses


def chosen(part, batches):
    """The batches of a rank, from the numbers of their images."""
    return [(part["images"][batch], part["labels"][batch]) for batch in batches]


def compare(trial, ranks, expected, path=()):
    """With the `path` of one weight, the first step that differs is named."""
    for step, value in enumerate(path, start=1):
        for rank, came in enumerate(ranks):
            before = came.get("before") if isinstance(came, dict) else None
            # What the model was before the next forward pass; after the last there is none.
            if isinstance(before, list) and step < len(before):
                what = f"second.bias on rank {rank} after step {step} of {len(path)}, the first that differs"
                trial.close(what, before[step], value, 1e-4, 0.1)
    for rank, came in enumerate(ranks):
        state = came.get("state") if isinstance(came, dict) else None
        trial.require(isinstance(state, dict), f"rank {rank} sent no weights")
        for name, value in expected.items():
            trial.close(f"{name} on rank {rank} after training", state.get(name), value, 1e-4, 0.1)


def trained(trial, world_size, epochs, steps, size, orders_alike=True, fewer=0):
    """Run `train` with loaders of the judge's. The last batch has `fewer` images less. Returns what came, and
    what weights and losses are right."""
    state, images = parameters(trial), steps * size - fewer
    parts = [pictures(trial, images) for _ in range(world_size)]
    orders = []
    for _ in range(world_size):
        first = shuffled(trial, images)
        orders.append([first if orders_alike else shuffled(trial, images) for _ in range(epochs)])
    lr = 0.7
    inputs = [
        {"state": state, **part, "size": size, "orders": order, "lr": lr}
        for part, order in zip(parts, orders, strict=True)
    ]
    by_epoch = []
    for epoch in range(epochs):
        ranks = [chosen(part, order[epoch].split(size)) for part, order in zip(parts, orders, strict=True)]
        by_epoch.append(list(zip(*ranks, strict=True)))
    path = []
    return run(trial, "train", inputs), *learnt(state, by_epoch, lr, path), path


def epochs_told(came):
    """What the sampler has been told, in words for a message."""
    calls = came.get("epochs") if isinstance(came, dict) else None
    if not isinstance(calls, list):
        return ""
    return (
        f"; set_epoch was called with {', '.join(map(str, calls))}" if calls else "; set_epoch was not called"
    )


def run(trial, driver, inputs):
    """Run it, and if nothing moves any more, say how far each rank came: inside DDP nobody can see who waits
    for whom."""
    try:
        return trial.run(driver, inputs)
    except Verdict as verdict:
        counts = [len(trial.events(rank, "forward")) for rank in range(len(inputs))]
        if verdict.status == "timeout" and len(set(counts)) > 1:
            words = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(counts))
            verdict.came += f"; number of training forward passes that each rank began: {words}"
        raise


# ---- training ---------------------------------------------------------------------------------


@check("06.1a")
def one_backward(trial):
    for world_size in (2, 3):
        trial.tried(f"{world_size} processes, one step")
        ranks, state, _, path = trained(trial, world_size, 1, 1, 7)
        compare(trial, ranks, state, path)


@check("06.2a")
def learning_rate(trial):
    for world_size, epochs, steps in ((2, 3, 4), (3, 4, 2)):
        trial.tried(
            f"{world_size} processes, {epochs} epochs of {steps} steps; every epoch has the same order"
        )
        ranks, state, _, path = trained(trial, world_size, epochs, steps, 3)
        compare(trial, ranks, state, path)


@check("06.3a")
def losses_of_all(trial):
    for world_size, epochs, steps in ((2, 2, 3), (3, 2, 2)):
        trial.tried(f"{world_size} processes, {epochs} epochs of {steps} batches, the last one smaller")
        ranks, state, losses, path = trained(trial, world_size, epochs, steps, 3, fewer=2)
        compare(trial, ranks, state, path)
        for rank, came in enumerate(ranks):
            kind = f"the model that train returns on rank {rank} is {came.get('kind')!s:.40}"
            trial.require(
                came.get("wrapped") is True, kind, "the DDP model, whose .module is the plain model"
            )
            got = came.get("losses")
            trial.require(isinstance(got, list) and len(got) == epochs, f"rank {rank} returns {got!r:.80}")
            for epoch, loss in enumerate(losses):
                trial.close(f"the loss of epoch {epoch} that rank {rank} returns", got[epoch], loss, 1e-4)


@check("06.4a")
def new_order(trial):
    for world_size, epochs, steps in ((2, 3, 3), (3, 2, 4)):
        trial.tried(f"{world_size} processes, {epochs} epochs of {steps} steps; each epoch has its own order")
        ranks, state, _, path = trained(trial, world_size, epochs, steps, 3, orders_alike=False)
        try:
            compare(trial, ranks, state, path)
        except Verdict as verdict:
            verdict.came += epochs_told(ranks[0])
            raise


# ---- the loader -------------------------------------------------------------------------------


def loaded(trial, world_size, size, batch_size):
    """What each rank has in two epochs and with another seed, as numbers of images."""
    trial.tried(f"{world_size} processes, {size} images, a batch size of {batch_size}")
    whole = pictures(trial, size)
    seed = int(trial.integers(1, 10_000, 1))
    one = {**whole, "batch_size": batch_size, "seed": seed, "other_seed": seed + 20_000}
    ranks = trial.run("loader", [one] * world_size)
    known = {row.tobytes(): number for number, row in enumerate(whole["images"].numpy())}
    found = []
    for rank, came in enumerate(ranks):
        trial.require(isinstance(came, dict), f"rank {rank} sent no batches")
        found.append([])
        for name in ("batches", "later", "other"):
            batches = came.get(name)
            right = isinstance(batches, list) and all(isinstance(one, numpy.ndarray) for one in batches)
            trial.require(right, f"rank {rank} has no batches")
            numbers = [[known.get(row.tobytes()) for row in batch] for batch in batches]
            trial.require(
                all(None not in batch for batch in numbers),
                f"rank {rank} has an image that is not in its data",
            )
            found[-1].append(numbers)
    return found


@check("06.5a")
def batch_size_of_all(trial):
    for world_size, size, batch_size in ((2, 26, 8), (3, 40, 12)):
        found = loaded(trial, world_size, size, batch_size)
        share = batch_size // world_size
        expected = [share] * (size // world_size // share)
        for rank, (batches, *_) in enumerate(found):
            sizes = [len(batch) for batch in batches]
            trial.same(f"the numbers of images in the batches of rank {rank}", sizes, expected)


@check("06.6a")
def no_image_twice(trial):
    for world_size, size, batch_size in ((2, 26, 4), (3, 40, 6)):
        found = loaded(trial, world_size, size, batch_size)
        orders = []
        for number, epoch in enumerate(("epoch 0", "epoch 1", "epoch 0 with another seed")):
            all_of_them = [image for mine in found for batch in mine[number] for image in batch]
            twice = {image for image in all_of_them if all_of_them.count(image) > 1}
            came = f"in {epoch}, {so_many(len(twice), 'image appears', 'images appear')} more than once"
            trial.require(not twice, came, "none")
            least = size // world_size * world_size - batch_size
            came = f"{epoch} has {len(all_of_them)} of {size} images"
            trial.require(len(all_of_them) > least, came, f"more than {least}")
            orders.append(all_of_them)
        trial.require(
            orders[0] != sorted(orders[0]), "the images are in the order of the data set", "a shuffled order"
        )
        trial.require(
            orders[0] != orders[1], "epochs 0 and 1 have the same order", "a new order in each epoch"
        )
        trial.require(
            orders[0] != orders[2], "two seeds give the same order", "a different order for a different seed"
        )


# ---- files ------------------------------------------------------------------------------------


def alone(trial, driver, main=None, **inputs):
    options = {} if main else {"main": None}
    return trial.run(driver, [inputs], group=False, folder="snapshots", **options)[0]


def saved(trial, world_size):
    """Snapshots by ranks whose weights differ. What is in the file is read without the student's code."""
    trial.tried(f"{world_size} processes, each with its own weights and path, call save")
    file, epoch = f"{world_size}.pt", int(trial.integers(1, 10_000, 1))
    states = [parameters(trial) for _ in range(world_size)]
    inputs = [{"state": state, "epoch": epoch, "file": file} for state in states]
    trial.run("save", inputs, folder="snapshots")
    came = alone(trial, "look", file=f"0/{file}", folders=[str(rank) for rank in range(world_size)])
    others = [rank for rank in came["writers"] if rank != "0"]
    trial.require(
        not others, f"a file was written by process {' and process '.join(others)}", "only by process 0"
    )
    trial.require(came["there"], "there is no file after save", "a snapshot")
    trial.require("error" not in came, f"the file cannot be loaded: {came.get('error')}", "a snapshot")
    trial.require(came["state"], "the file has no dictionary of weights", "the weights of process 0")
    return f"0/{file}", epoch, states[0], came["state"]


@check("06.7a")
def one_writer(trial):
    for world_size in (2, 3):
        _, _, state, found = saved(trial, world_size)
        for name, value in state.items():  # whatever is before the names: that is 06.8
            got = next((one for its, one in found.items() if its.endswith(name)), None)
            trial.close(f"{name} in the file", got, value, 1e-6)


@check("06.8a")
def plain_names(trial):
    _, _, state, found = saved(trial, 2)
    trial.same("the names in the file", sorted(found), sorted(state))


@check("06.9a")
def what_was_saved(trial):
    file, epoch, state, _ = saved(trial, 2)
    trial.tried("one process loads the snapshot into a model with different weights")
    came = alone(trial, "load", main=True, file=file, state=parameters(trial))
    for name, value in state.items():
        trial.close(f"{name} after load", came["state"].get(name), value, 1e-6)
    trial.same("the epoch that load returns", came["epoch"], epoch)
    damages = {
        "lacks a weight": {"without": ["second.bias"], "with": []},
        "has a weight that the model does not know": {"without": [], "with": ["third.weight"]},
        "has a weight under another name": {"without": ["second.bias"], "with": ["third.bias"]},
    }
    files = [f"damaged-{number}.pt" for number in range(len(damages))]
    alone(trial, "change", file=file, to=dict(zip(files, damages.values(), strict=True)))
    came = alone(trial, "refuse", main=True, files=files, state=parameters(trial))
    for words, raised in zip(damages, came["raised"], strict=True):
        trial.tried(f"one process loads a file that {words}")
        trial.require(raised, "load returns as if nothing were wrong", "an error")


# ---- the rest ---------------------------------------------------------------------------------


@check("06.10a")
def each_image_once(trial):
    for world_size, size in ((2, 9), (3, 19), (3, 2), (2, 8)):
        trial.tried(f"{world_size} processes, {size} test images")
        state, whole = parameters(trial), pictures(trial, size)
        right = answers({name: value.double() for name, value in state.items()}, whole["images"]).argmax(1)
        # The first are right and the others wrong: what comes twice changes the number.
        count = int(trial.integers(1, size, 1)) if size > 2 else 1
        whole["labels"] = torch.where(torch.arange(size) < count, right, (right + 1) % 3)
        ranks = trial.run("accuracy", [{"state": state, **whole}] * world_size)
        for rank, came in enumerate(ranks):
            try:
                trial.close(f"the accuracy on rank {rank}", came["accuracy"], count / size, 1e-6)
            except Verdict as verdict:
                part = came["accuracy"] * world_size if isinstance(came["accuracy"], float) else None
                if part is not None and world_size > 1 and abs(part - count / size) < 1e-6:
                    verdict.came += f": that is the right accuracy, divided by {world_size} processes"
                raise
        for rank, came in enumerate(ranks if size > world_size else ()):
            words = f"rank {rank} looked at all {size} images"
            trial.require(came.get("looked") != size, words, "each process evaluates a part of the test set")


@check("06.11a")
def own_device(trial):
    for machines in ((2, 2), (1, 2), (2, 1, 1)):
        words = ", ".join(map(str, machines))
        trial.tried(f"{len(machines)} machines with {words} devices, and one process per device")
        facts, size = [], sum(machines)
        for machine, count in enumerate(machines):
            for local in range(count):
                one = {"RANK": len(facts), "LOCAL_RANK": local, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": count}
                facts.append(one | {"GROUP_RANK": machine, "GROUP_WORLD_SIZE": len(machines)})
        # The judge's ranks are no help: only what torchrun says counts.
        facts = [facts[place] for place in trial.random.permutation(size).tolist()]
        environments = [{name: str(value) for name, value in one.items()} for one in facts]
        ranks = trial.run("device", [{"environment": one} for one in environments])
        for one, came in zip(facts, ranks, strict=True):
            where = f"rank {one['RANK']} (local rank {one['LOCAL_RANK']})"
            trial.same(f"the device of {where}", came["device"], one["LOCAL_RANK"])


@check("06.12a")
def one_download(trial):
    for world_size in (2, 3):
        trial.tried(f"{world_size} processes, each with different bytes to download")
        data = [trial.integers(0, 256, 40 + 10 * rank).tolist() for rank in range(world_size)]
        file = f"data-{world_size}"
        inputs, gates = [{"file": file}] * world_size, [{"download": {"value": mine}} for mine in data]
        ranks = trial.run("prepare", inputs, folder="data", gates=gates)
        downloads = sum("download" in one["asked"] for one in trial.answer["ranks"])
        trial.require(downloads, "no process called download", "one download")
        trial.same("the number of downloads", downloads, 1)
        (seen,) = trial.run("look", [{"file": file, "bytes": True}], group=False, folder="data", main=None)
        trial.require(seen["there"], "there is no file afterwards", "the downloaded file")
        trial.require(
            seen["bytes"] in data,
            "the file holds bytes that no single process downloaded: several processes wrote to it",
            "the bytes of one download",
        )
        for rank, came in enumerate(ranks):
            trial.same(f"the type of what prepare returns on rank {rank}", came["kind"], "bytes")
            trial.require(
                came["data"] == seen["bytes"],
                f"rank {rank} has read {len(came['data'])} bytes, but not the final content of the file",
                f"the {len(seen['bytes'])} bytes of one complete download",
            )
