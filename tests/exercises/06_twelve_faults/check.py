"""What exercise 06 is held against. Runs in the judge.

Weights and losses are held against one process in float64, files against what was handed to process 0.
"""

import math
from itertools import chain

import numpy
import torch
from classifier import answers, compare, environments, learnt, parameters, passes_begun, pictures
from judge import Verdict, check, look, so_many


def given(part):
    images, labels = part
    return {"images": images, "labels": labels}


def trained(trial, world_size, epochs, steps, size, orders_alike=True, fewer=0):
    """Run `train` with loaders of the judge's. The last batch has `fewer` images less. Returns what came,
    what is right, and the loss of each epoch. The learning rate falls along a cosine, once an epoch."""
    state, images, lr = parameters(trial), steps * size - fewer, 0.7
    parts = pictures(trial, *[images] * world_size)

    def order():
        return torch.from_numpy(trial.random.permutation(images))

    orders = [[order()] * epochs if orders_alike else [order() for _ in range(epochs)] for _ in parts]
    inputs, batches = [], []
    for part, order in zip(parts, orders, strict=True):
        inputs.append({"state": state, **given(part), "size": size, "orders": order, "lr": lr})
        mine = chain.from_iterable(one.split(size) for one in order)
        batches.append([(part[0][batch], part[1][batch]) for batch in mine])
    rates = [lr * (1 + math.cos(math.pi * (step // steps) / epochs)) / 2 for step in range(epochs * steps)]
    right = learnt(state, list(zip(*batches, strict=True)), rates)
    losses = [sum(right.losses[epoch * steps : (epoch + 1) * steps]) / steps for epoch in range(epochs)]
    try:
        return trial.run("train", inputs), right, losses
    except Verdict as verdict:
        verdict.came += passes_begun(trial) if verdict.status == "timeout" else ""
        raise


@check("06.1a")
def one_backward(trial):
    for world_size in (2, 3):
        trial.tried(f"{world_size} processes, one step")
        compare(trial, *trained(trial, world_size, 1, 1, 7)[:2])


@check("06.2a")
def learning_rate(trial):
    for world_size, epochs, steps in ((2, 3, 4), (3, 4, 2)):
        words = f"{world_size} processes, {epochs} epochs of {steps} steps"
        trial.tried(f"{words}; every epoch has the same order")
        compare(trial, *trained(trial, world_size, epochs, steps, 3)[:2])


@check("06.3a")
def losses_of_all(trial):
    for world_size, epochs, steps in ((2, 2, 3), (3, 2, 2)):
        trial.tried(f"{world_size} processes, {epochs} epochs of {steps} batches, the last one smaller")
        ranks, right, losses = trained(trial, world_size, epochs, steps, 3, fewer=2)
        compare(trial, ranks, right)
        for rank, came in enumerate(ranks):
            kind = f"the model that train returns on rank {rank} is {came.get('kind')!s:.40}"
            wanted = "the DDP model, whose .module is the plain model"
            trial.require(came.get("wrapped") is True, kind, wanted)
            got = came.get("losses")
            trial.require(isinstance(got, list) and len(got) == epochs, f"rank {rank} returns {got!r:.80}")
            for epoch, loss in enumerate(losses):
                trial.close(f"the loss of epoch {epoch} that rank {rank} returns", got[epoch], loss, 1e-4)


@check("06.4a")
def new_order(trial):
    for world_size, epochs, steps in ((2, 3, 3), (3, 2, 4)):
        trial.tried(f"{world_size} processes, {epochs} epochs of {steps} steps; each epoch has its own order")
        ranks, right, _ = trained(trial, world_size, epochs, steps, 3, orders_alike=False)
        try:
            compare(trial, ranks, right)
        except Verdict as verdict:
            told = look(ranks[0], "epochs")
            words = f"called with {', '.join(map(str, told))}" if told else "not called"
            verdict.came += f"; set_epoch was {words}" if isinstance(told, list) else ""
            raise


def loaded(trial, world_size, size, batch_size):
    """What each rank has in two epochs and with another seed, as numbers of images."""
    trial.tried(f"{world_size} processes, {size} images, a batch size of {batch_size}")
    (whole,), seed = pictures(trial, size), int(trial.integers(1, 10_000, 1)) if world_size == 2 else 0
    one = {**given(whole), "batch_size": batch_size, "seeds": [seed, seed + 20_000]}
    known = {row.tobytes(): number for number, row in enumerate(whole[0].numpy())}
    found = []
    for rank, came in enumerate(trial.run("loader", [one] * world_size)):
        trial.require(isinstance(came, list) and len(came) == 3, f"rank {rank} sent no batches")
        for batches in came:
            right = isinstance(batches, list) and all(isinstance(one, numpy.ndarray) for one in batches)
            trial.require(right, f"rank {rank} has no batches")
        found.append([[[known.get(row.tobytes()) for row in batch] for batch in one] for one in came])
        strange = f"rank {rank} has an image that is not in its data"
        trial.require(all(None not in batch for one in found[-1] for batch in one), strange)
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
            images = [image for mine in found for batch in mine[number] for image in batch]
            twice = {image for image in images if images.count(image) > 1}
            came = f"in {epoch}, {so_many(len(twice), 'image appears', 'images appear')} more than once"
            trial.require(not twice, came, "none")
            least = size // world_size * world_size - batch_size
            trial.require(
                len(images) > least, f"{epoch} has {len(images)} of {size} images", f"more than {least}"
            )
            orders.append(images)
        for other, came, wanted in (
            (sorted(orders[0]), "the images are in the order of the data set", "a shuffled order"),
            (orders[1], "epochs 0 and 1 have the same order", "a new order in each epoch"),
            (orders[2], "two seeds give the same order", "a different order for a different seed"),
        ):
            trial.require(orders[0] != other, came, wanted)


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
    written = f"a file was written by process {' and process '.join(others)}"
    trial.require(not others, written, "only by process 0")
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
        "lacks a weight": (["second.bias"], []),
        "has a weight that the model does not know": ([], ["third.weight"]),
        "has a weight under another name": (["second.bias"], ["third.bias"]),
    }
    files = [f"damaged-{number}.pt" for number in range(len(damages))]
    alone(trial, "change", file=file, to=dict(zip(files, damages.values(), strict=True)))
    came = alone(trial, "refuse", main=True, files=files, state=parameters(trial))
    for words, raised in zip(damages, came["raised"], strict=True):
        trial.tried(f"one process loads a file that {words}")
        trial.require(raised, "load returns as if nothing were wrong", "an error")


@check("06.10a")
def each_image_once(trial):
    for world_size, size in ((2, 9), (3, 19), (3, 2), (2, 8)):
        trial.tried(f"{world_size} processes, {size} test images")
        state, ((images, _),) = parameters(trial), pictures(trial, size)
        right = answers(state, images).argmax(1)
        # The first are right and the others wrong: what comes twice changes the number.
        count = int(trial.integers(1, size, 1)) if size > 2 else 1
        count -= (
            count % world_size == 0
        )  # or the share of rank 0 alone is the accuracy, divided by the processes
        labels = torch.where(torch.arange(size) < count, right, (right + 1) % 3)
        ranks = trial.run("accuracy", [{"state": state, **given((images, labels))}] * world_size)
        for rank, came in enumerate(ranks):
            got = came["accuracy"]
            try:
                trial.close(f"the accuracy on rank {rank}", got, count / size, 1e-6)
            except Verdict as verdict:
                if isinstance(got, float) and abs(got * world_size - count / size) < 1e-6:
                    verdict.came += f": that is the right accuracy, divided by {world_size} processes"
                elif got == len(range(rank, count, world_size)) / size:
                    verdict.came += ": these are the correct answers of this process alone"
                raise
        for rank, came in enumerate(ranks if size > world_size else ()):
            words = f"rank {rank} looked at all {size} images"
            trial.require(came.get("looked") != size, words, "each process evaluates a part of the test set")


@check("06.11a")
def own_device(trial):
    for machines in ((2, 2), (1, 2), (2, 1, 1)):
        words = ", ".join(map(str, machines))
        trial.tried(f"{len(machines)} machines with {words} devices, and one process per device")
        # The judge's ranks are no help: only what torchrun says counts.
        facts = environments(*machines)
        facts = [facts[place] for place in trial.random.permutation(len(facts)).tolist()]
        inputs = [{"environment": one} for one in facts]
        for one, came in zip(facts, trial.run("device", inputs), strict=True):
            where = f"rank {one['RANK']} (local rank {one['LOCAL_RANK']})"
            trial.same(f"the device of {where}", came["device"], int(one["LOCAL_RANK"]))


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
        mixed = "the file holds bytes that no single process downloaded: several processes wrote to it"
        trial.require(seen["bytes"] in data, mixed, "the bytes of one download")
        wanted = f"the {len(seen['bytes'])} bytes of one complete download"
        for rank, came in enumerate(ranks):
            trial.same(f"the type of what prepare returns on rank {rank}", came["kind"], "bytes")
            words = f"rank {rank} has read {len(came['data'])} bytes, but not the final content of the file"
            trial.require(came["data"] == seen["bytes"], words, wanted)
