"""Exercise 06: a script with twelve faults.

Weights and losses are compared with those of one process in float64, files with what process 0 was given.

| axis | checked in |
| --- | --- |
| world size | 2 and 3 everywhere but in 8a and 9a (2; load is for one process) |
| calls | 2a to 4a: several epochs and steps; 4a: a loader used before; 5a, 6a: two epochs, two seeds |
| gradients from before | 1a to 4a |
| sizes | 3a: a smaller last batch; 5a, 6a: images left over; 10a: uneven parts, fewer images than processes |
| images left over | 6a: other images in each epoch |
| buffers | 8a |
| seeds | 5a, 6a: 0 and others |
| names | 8a: plain names; 9a: a missing weight, an unknown one, one under another name |
| machines | 7a to 9a: a second one; 11a: as many devices on each, and other numbers |
| dtype, memory layout, container, train or eval, frozen, tied | nothing is promised |
"""

import math
import os
import time
from itertools import chain

import pytest
import torch
from grader.testing import Verdict, close, integers, require, run, same, so_many, tried
from learning import answers, compare, environments, learnt, parameters, pictures, run_and_count
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# ---- what runs in each rank


class Model(nn.Module):
    """Notes second.bias before each training forward pass, and how many images it has seen."""

    def __init__(self, state, tell=None):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.second = nn.Linear(5, 3)
        self.load_state_dict(state)
        self.tell = tell
        self.before = []
        self.looked = 0

    def forward(self, images):
        self.looked += len(images)
        if self.tell and torch.is_grad_enabled():
            self.tell({"event": "forward"})
            self.before.append(self.second.bias.detach().clone())
        return self.second(torch.tanh(self.first(images)))


class Orders(DistributedSampler):  # many people ask isinstance() before they call set_epoch
    """A sampler with an order of its own for each epoch. After the last they begin again: a wrong number of
    an epoch is to give a wrong order, and no exception from here. It stands at epoch 1, as after another
    training of two epochs."""

    def __init__(self, orders):
        super().__init__(range(len(orders[0])), num_replicas=1, rank=0)
        self.orders = orders
        self.epoch = 1
        self.calls = []

    def __iter__(self):
        return iter(self.orders[self.epoch % len(self.orders)].tolist())

    def __len__(self):
        return len(self.orders[0])

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.calls.append(epoch)


def train(student, me, given):
    model = Model(given["state"], me.tell)
    orders = Orders(given["orders"])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    loader = DataLoader(TensorDataset(*given["part"]), given["size"], sampler=orders)
    parallel, losses = student.train(model, loader, len(given["orders"]), given["lr"])
    return {
        "wrapped": getattr(parallel, "module", None) is model,
        "kind": type(parallel).__name__,
        "losses": losses,
        "epochs": orders.calls,
        "before": model.before,
        "state": dict(model.state_dict()),
    }


def loader(student, me, given):
    """The batches of a loader of the student's in two epochs, and those of a loader with another seed."""
    found = []
    first, second = given["seeds"]
    for seed, epochs in ((first, [0, 1]), (second, [0])):
        loader = student.make_loader(TensorDataset(*given["part"]), given["batch_size"], seed)
        for epoch in epochs:
            loader.sampler.set_epoch(epoch)
            found.append([images.clone() for images, _ in loader])
    return found


def save(student, me, given):
    """Each rank has its own weights, and its own path, as on machines that share no disk."""
    os.environ.update(given["environment"])
    model = Model(given["state"])
    for name in given["layers"]:
        model.add_module(name, nn.BatchNorm1d(2))
    model = nn.parallel.DistributedDataParallel(model)
    with torch.no_grad():  # DDP has given all ranks the weights of rank 0
        for name, weight in given["state"].items():
            model.module.get_parameter(name).copy_(weight)
    folder = me.disk / f"{me.rank}"
    folder.mkdir(exist_ok=True)
    student.save(model, given["epoch"], str(folder / "snapshot.pt"))


def tensors_in(value):
    """The tensors of a dict with their names; nothing else has any."""
    found = {}
    if isinstance(value, dict):
        for name, item in value.items():
            if torch.is_tensor(item):
                found[name] = item
    return found


def read_file(student, me, given):
    """Who has written, and what is in the file, without the student's code."""
    writers = []
    for folder in sorted(me.disk.iterdir()):
        if any(folder.iterdir()):
            writers.append(folder.name)
    found = {"writers": writers, "state": {}, "error": ""}
    try:
        snapshot = torch.load(me.disk / "0" / "snapshot.pt", weights_only=True)
    except Exception as error:
        return found | {"error": f"the file cannot be loaded: {type(error).__name__}: {error}"[:200]}
    if isinstance(snapshot, dict):
        for value in snapshot.values():
            tensors = tensors_in(value)
            if tensors:
                found["state"] = tensors
    return found


def change(student, me, files):
    """Copies of the snapshot, each without some names and with more, made without the student's code."""
    for to, (without, more) in files.items():
        snapshot = torch.load(me.disk / "0" / "snapshot.pt", weights_only=True)
        for state in snapshot.values():
            if not isinstance(state, dict):
                continue
            for name in without:
                state.pop(name, None)
            for name in more:
                state[name] = torch.ones(2)
        torch.save(snapshot, me.disk / to)


def load(student, me, given):
    """Load into a model that has other weights; and then files that are damaged: whether each raises."""
    model = Model(given["state"])
    epoch = student.load(model, str(me.disk / "0" / "snapshot.pt"))
    raised = []
    for file in given["damaged"]:
        try:
            student.load(Model(given["state"]), str(me.disk / file))
            raised.append(False)
        except Exception:
            raised.append(True)
    return {"epoch": epoch, "state": dict(model.state_dict()), "raised": raised}


def accuracy(student, me, given):
    model = Model(given["state"])
    return {"accuracy": student.accuracy(model, TensorDataset(*given["part"])), "looked": model.looked}


def device(student, me, environment):
    os.environ.update(environment)
    return student.pick_device()


def prepare(student, me, mine):
    """Each rank would download other bytes, in two halves; rank 0 takes the longest. How long a download
    takes nobody knows: whoever sleeps does not sleep long."""
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(min(seconds, 0.01))
    downloads = []

    def download(path):
        data = mine.numpy().tobytes()
        downloads.append(path)
        with open(path, "wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            sleep(0.3 if me.rank == 0 else 0.1)
            file.write(data[len(data) // 2 :])

    sleep(0.1 * me.rank)
    data = student.prepare(str(me.disk / "data"), download)
    content = bytes(data) if isinstance(data, bytes | bytearray) else b""
    return {"data": content, "kind": type(data).__name__, "downloads": len(downloads)}


# ---- what is drawn, and what is right


def batches_of(part, orders, size):
    """The batches of all epochs. `orders`: the numbers of the images of each epoch."""
    images, labels = part
    batches = []
    for order in orders:
        batches += [(images[batch], labels[batch]) for batch in order.split(size)]
    return batches


def trained(world_size, epochs, steps, size, orders_alike=True, fewer=0):
    """Run `train` with loaders of the grader's. The last batch has `fewer` images less. Returns what came,
    what is right, and the loss of each epoch. The learning rate falls along a cosine, once an epoch."""
    state = parameters()
    count = steps * size - fewer
    lr = 0.7
    inputs = []
    batches = []  # of each rank
    for part in pictures(*[count] * world_size):
        orders = [torch.randperm(count) for _ in range(epochs)]
        if orders_alike:
            orders = orders[:1] * epochs
        inputs.append({"state": state, "part": part, "size": size, "orders": orders, "lr": lr})
        batches.append(batches_of(part, orders, size))
    rates = []  # of each step
    for epoch in range(epochs):
        rate = lr * (1 + math.cos(math.pi * epoch / epochs)) / 2
        rates += [rate] * steps
    right = learnt(state, list(zip(*batches, strict=True)), rates)
    losses = []
    for epoch in range(epochs):
        of_epoch = right.losses[epoch * steps : (epoch + 1) * steps]
        losses.append(sum(of_epoch) / steps)
    return run_and_count(train, inputs), right, losses


@pytest.mark.parametrize("world_size", [2, 3])
def test_1a_one_backward_pass(world_size):
    """One step; the model has gradients from before"""
    ranks, right, _ = trained(world_size, 1, 1, 7)
    compare(ranks, right)


@pytest.mark.parametrize("world_size, epochs, steps", [(2, 3, 4), (3, 4, 2)])
def test_2a_the_learning_rate_falls_once_an_epoch(world_size, epochs, steps):
    """Every epoch has the same order"""
    ranks, right, _ = trained(world_size, epochs, steps, 3)
    compare(ranks, right)


@pytest.mark.parametrize("world_size, epochs, steps", [(2, 2, 3), (3, 2, 2)])
def test_3a_the_losses_of_all(world_size, epochs, steps):
    """The last batch of each epoch is smaller"""
    ranks, right, losses = trained(world_size, epochs, steps, 3, fewer=2)
    compare(ranks, right)
    for rank, came in enumerate(ranks):
        kind = f"the model that train returns on rank {rank} is {came['kind']:.40}"
        require(came["wrapped"], kind, "the DDP model, whose .module is the plain model")
        got = came["losses"]
        require(isinstance(got, list) and len(got) == epochs, f"rank {rank} returns {got!r:.80}")
        for epoch, loss in enumerate(losses):
            close(f"the loss of epoch {epoch} that rank {rank} returns", got[epoch], loss, 1e-4)


@pytest.mark.parametrize("world_size, epochs, steps", [(2, 3, 3), (3, 2, 4)])
def test_4a_a_new_order_for_each_epoch(world_size, epochs, steps):
    """Each epoch has its own order, and the loader was used in another training before"""
    ranks, right, _ = trained(world_size, epochs, steps, 3, orders_alike=False)
    try:
        compare(ranks, right)
    except Verdict as verdict:
        told = ", ".join(map(str, ranks[0]["epochs"]))
        verdict.came += f"; set_epoch was called with {told}" if told else "; set_epoch was not called"
        raise


def in_numbers(batches, known):
    """The batches with a number for each image."""
    found = []
    for batch in batches:
        found.append([known[row.numpy().tobytes()] for row in batch])
    return found


def loaded(world_size, size, batch_size):
    """What each rank has in two epochs and with another seed, as numbers of images."""
    (part,) = pictures(size)
    seed = int(integers(1, 10_000, 1)) if world_size == 2 else 0
    given = {"part": part, "batch_size": batch_size, "seeds": [seed, seed + 20_000]}
    known = {}
    for number, row in enumerate(part[0]):
        known[row.numpy().tobytes()] = number
    ranks = []
    for came in run(loader, [given] * world_size):
        ranks.append([in_numbers(batches, known) for batches in came])
    return ranks


@pytest.mark.parametrize("world_size, images, batch_size", [(2, 26, 8), (3, 40, 12)])
def test_5a_the_batch_size_of_all(world_size, images, batch_size):
    share = batch_size // world_size
    expected = [share] * (images // world_size // share)
    for rank, (batches, *_) in enumerate(loaded(world_size, images, batch_size)):
        sizes = [len(batch) for batch in batches]
        same(f"the numbers of images in the batches of rank {rank}", sizes, expected)


@pytest.mark.parametrize("world_size, images, batch_size", [(2, 26, 4), (3, 40, 6)])
def test_6a_no_image_twice(world_size, images, batch_size):
    found = loaded(world_size, images, batch_size)
    orders = []
    left_out = []
    for number, epoch in enumerate(("epoch 0", "epoch 1", "epoch 0 with another seed")):
        order = []
        for mine in found:
            order += chain.from_iterable(mine[number])
        twice = {image for image in order if order.count(image) > 1}
        came = f"in {epoch}, {so_many(len(twice), 'image appears', 'images appear')} more than once"
        require(not twice, came, "none")
        least = images // world_size * world_size - batch_size
        require(len(order) > least, f"{epoch} has {len(order)} of {images} images", f"more than {least}")
        orders.append(order)
        left_out.append(sorted(set(range(images)) - set(order)))

    first, second, other_seed = orders
    require(first != sorted(first), "the images are in the order of the data set", "a shuffled order")
    require(first != second, "epochs 0 and 1 have the same order", "a new order in each epoch")
    wanted = "a different order for a different seed"
    require(first != other_seed, "two seeds give the same order", wanted)

    same_left_out = left_out[0] == left_out[1] == left_out[2]
    came = f"epochs 0 and 1, and epoch 0 with another seed, all lack the images {left_out[0]}"
    require(not left_out[0] or not same_left_out, came, "other images left over in each epoch")


def alone(body, given, student=False):
    return run(body, [given], group=False, student=student, disk=True)[0]


def saved(world_size, layers=()):
    """Snapshots by ranks whose weights differ. What is in the file is read without the student's code."""
    words = f"{world_size} processes, the last one on a second machine, each with its own weights and path"
    words += ", call save"
    if layers:
        words += f" of a model that also has batch norms called {' and '.join(layers)}"
    tried(words)
    epoch = int(integers(1, 10_000, 1))
    inputs = []
    for environment in environments(world_size - 1, 1):
        own = {"state": parameters(), "environment": environment}
        inputs.append(own | {"epoch": epoch, "layers": layers})
    run(save, inputs, disk=True)
    came = alone(read_file, None)
    others = [rank for rank in came["writers"] if rank != "0"]
    written = f"a file was written by process {' and process '.join(others)}"
    require(not others, written, "only by process 0")
    wanted = "a snapshot, with a dict of the weights of process 0"
    require(came["state"], came["error"] or "the file has no dict of weights", wanted)
    return epoch, inputs[0]["state"], came["state"]


def with_end(name, found):
    """The first tensor whose name ends like this: whatever is before the names is a matter of 8a."""
    for of_file, tensor in found.items():
        if of_file.endswith(name):
            return tensor
    return None


@pytest.mark.parametrize("world_size", [2, 3])
def test_7a_one_writer(world_size):
    _, state, found = saved(world_size)
    for name, value in state.items():
        close(f"{name} in the file", with_end(name, found), value, 1e-6)


def test_8a_plain_names():
    layers = ["module", "lower"]
    _, state, found = saved(2, layers)
    wanted = list(state)
    for layer in layers:
        for kind in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            wanted.append(f"{layer}.{kind}")
    same("the names in the file", sorted(found), sorted(wanted))


def test_9a_what_was_saved_or_an_error():
    epoch, state, _ = saved(2)
    files = {  # without some names, and with more
        "damaged-0.pt": (["second.bias"], []),
        "damaged-1.pt": ([], ["third.weight"]),
        "damaged-2.pt": (["second.bias"], ["third.bias"]),
    }
    damages = [
        "lacks a weight",
        "has a weight that the model does not know",
        "has a weight under another name",
    ]
    alone(change, files)
    tried("one process loads the snapshot into a model with different weights")
    came = alone(load, {"damaged": list(files), "state": parameters()}, student=True)
    for name, value in state.items():
        close(f"{name} after load", came["state"].get(name), value, 1e-6)
    same("the epoch that load returns", came["epoch"], epoch)
    for words, raised in zip(damages, came["raised"], strict=True):
        tried(f"one process loads a file that {words}")
        require(raised, "load returns as if nothing were wrong", "an error")


@pytest.mark.parametrize("world_size, test_images", [(2, 9), (3, 19), (3, 2)])
def test_10a_each_image_once(world_size, test_images):
    state = parameters()
    ((images, _),) = pictures(test_images)
    right = answers(state, images).argmax(1)
    # The first are right and the others wrong: what comes twice changes the number.
    count = int(integers(1, test_images, 1))
    labels = torch.where(torch.arange(test_images) < count, right, (right + 1) % 3)
    ranks = run(accuracy, [{"state": state, "part": (images, labels)}] * world_size)
    for rank, came in enumerate(ranks):
        got = came["accuracy"]
        try:
            close(f"the accuracy on rank {rank}", got, count / test_images, 1e-6)
        except Verdict as verdict:
            if isinstance(got, float) and abs(got * world_size - count / test_images) < 1e-6:
                verdict.came += f": that is the right accuracy, divided by {world_size} processes"
            elif got == len(range(rank, count, world_size)) / test_images:
                verdict.came += ": these are the correct answers of this process alone"
            raise
    if test_images > world_size:
        for rank, came in enumerate(ranks):
            words = f"rank {rank} looked at all {test_images} images"
            require(came["looked"] != test_images, words, "each process evaluates a part of the test set")


@pytest.mark.parametrize("machines", [(2, 2), (1, 2)])
def test_11a_its_own_device(machines):
    """Two machines with these numbers of devices, and one process per device"""
    # The ranks of the run are no help: only what torchrun says counts.
    in_order = environments(*machines)
    facts = [in_order[place] for place in torch.randperm(len(in_order)).tolist()]
    for one, came in zip(facts, run(device, facts), strict=True):
        where = f"rank {one['RANK']} (local rank {one['LOCAL_RANK']})"
        same(f"the device of {where}", came, int(one["LOCAL_RANK"]))


@pytest.mark.parametrize("world_size", [2, 3])
def test_12a_one_download(world_size):
    """Each process has different bytes to download"""
    data = [integers(0, 256, 40 + 10 * rank).byte() for rank in range(world_size)]
    ranks = run(prepare, data, disk=True)
    downloads = [one["downloads"] for one in ranks]
    same("the number of downloads", sum(downloads), 1)
    whole = data[downloads.index(1)]
    for rank, came in enumerate(ranks):
        same(f"the type of what prepare returns on rank {rank}", came["kind"], "bytes")
        words = f"rank {rank} has read {len(came['data'])} bytes, but not the content of the whole file"
        is_whole = came["data"].tolist() == whole.tolist()
        require(is_whole, words, f"the {len(whole)} bytes of one complete download")
