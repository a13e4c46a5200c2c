"""Exercise 04a: ten scripts with a bug in each.

Weights are compared with those of one process in float64, after each step. Which images a script uses is seen
by the model.

| axis | checked in |
| --- | --- |
| world size | 1a, 2a, 5a, 6a, 10a: 2 and 3; 3a: 1 to 3; 4a: 1, 3 and 4; 7a: 2 and 4; 8a: 1 and 2; 9a: 2, 3 |
| sizes | 1a, 2a: images left over; 4a, 8a: a smaller last batch; 3a, 7a: uneven, and none |
| calls | 1a, 2a: several epochs; 8a: three restarts, and one after a stop while a snapshot is written |
| seeds | 2a: 0 and others |
| initial weights | 4a: other ones on each rank |
| not finite | 5a: a broken image |
| train or eval, buffers | 10a: batch norm, and one with another name and persistent=False |
| machines | 9a: fewer processes than devices, other numbers on the second machine |
| dtype, memory layout, container, missing gradients, frozen, tied | the docstrings promise nothing |
"""

import contextlib
import functools
import os
import re
from itertools import chain, pairwise

import pytest
import torch
import torch.distributed as dist
from disks import file_events
from grader.ranks import CURRENT
from grader.settings import STARTERS
from grader.testing import Verdict, close, floats, integers, require, run, same, so_many, tried
from learning import answers, compare, environments, learnt, parameters, pictures, run_and_count
from torch import nn

KINDS = ["order", "seed", "collective", "sum", "clipping"]
KINDS += ["exchange", "mean of means", "resume", "device", "buffers"]


# ---- what runs in each rank


class Stopped(BaseException):
    """The cluster stops the job."""


class Model(nn.Module):
    """A layer, on wish a batch norm, and a layer. Notes the images that it is given in training, what
    second.bias was then, and the gradients of its answers. After `stop` passes it stops; after `last` passes
    it ends with the next save, when half of the file is written."""

    def __init__(self, state, stop, last, tell):
        super().__init__()
        width = len(state["first.bias"])
        self.first = nn.Linear(6, width)
        self.second = nn.Linear(width, 3)
        if "norm.weight" in state:
            self.norm = nn.BatchNorm1d(width)
            self.register_buffer("total", torch.zeros(6), persistent=False)
        else:
            self.norm = nn.Identity()
            self.register_buffer("total", None, persistent=False)
        self.load_state_dict(state)

        self.stop = stop
        self.last = last
        self.tell = tell
        self.given = []
        self.before = []
        self.arrived = []
        self.passes = []

    def forward(self, images):
        if self.training and torch.is_grad_enabled():
            if len(self.given) == self.stop:
                raise Stopped
            if len(self.given) == self.last:
                file_events(largest=600)
            self.tell({"event": "forward"})
            self.given.append(images.detach().clone())
            self.before.append(self.second.bias.detach().clone())
            self.passes.append("forward")
            if self.total is not None:
                self.total += images.detach().mean(0)
        answers = self.second(torch.tanh(self.norm(self.first(images))))
        if answers.requires_grad:
            answers.register_hook(self.back)
        return answers

    def back(self, gradient):
        self.arrived.append(gradient.abs().max().item() if gradient.numel() else 0.0)
        self.passes.append("backward")


class Device:
    """A device that is not there: notes what is put on it."""

    def __init__(self, number, notes):
        self.number, self.notes = number, notes

    def put(self, thing):
        what = len(thing) if isinstance(thing, torch.Tensor) else "model"
        self.notes.append([self.number, what])
        return thing


def exchange_in_sight(me):
    """DDP exchanges gradients where nobody sees it: have it call dist.all_reduce, which me.calls notes."""

    def exchange(state, bucket):
        work = dist.all_reduce(bucket.buffer().div_(me.world_size), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    def begin(self, *words, begin=nn.parallel.DistributedDataParallel.__init__, **named):
        begin(self, *words, **named)
        self.register_comm_hook(None, exchange)

    nn.parallel.DistributedDataParallel.__init__ = begin


def kind(student, me, given):
    """What the student calls the bug."""
    return getattr(student, "KIND", None)


def train(student, me, given):
    """Train with what is given: tensors, numbers, and what is special to one of the scripts."""
    more = dict(given["more"])
    notes = []
    scaler = None
    result = None
    model = Model(given["state"], given.get("stop"), given.get("last"), me.tell)
    if "accumulate" in more:
        exchange_in_sight(me)
    if "environment" in given:
        os.environ.update(given["environment"])
        more["devices"] = [Device(number, notes) for number in range(given["devices"])]
    if "snapshot" in given:
        more["path"] = str(me.disk / given["snapshot"])
    if "scale" in given:
        scaler = more["scaler"] = torch.amp.GradScaler("cpu", init_scale=given["scale"])
    with contextlib.suppress(Stopped):
        result = student.train(model, given["images"], given["labels"], **more)
    sent = 0
    for call in me.calls:
        if call.get("phase") == "begin":
            sent += call["bytes"]
    return {
        "given": model.given,
        "before": model.before,
        "arrived": model.arrived,
        "passes": model.passes,
        "total": model.total,
        "state": dict(model.state_dict()),
        "result": result,
        "put": notes,
        "sent": sent,
        "scale": scaler.get_scale() if scaler else None,
    }


# ---- what is drawn, and what is right


def joined(lists):
    return list(chain.from_iterable(lists))


def trained(state, parts, own=None, disk=False, dies=(), **more):
    """Run the script on as many ranks as there are parts. `own`: what is special to each rank, `more`: other
    arguments of train."""
    inputs = []
    for (images, labels), mine in zip(parts, own or [{}] * len(parts), strict=True):
        given = {"state": state, "images": images, "labels": labels} | mine
        inputs.append(given | {"more": more | mine.get("more", {})})
    return run_and_count(train, inputs, disk=disk, dies=dies)


def numbers_of(rank, came, images):
    """For each batch that the model was given: which images they are."""
    known = {}
    for number, row in enumerate(images):
        known[row.numpy().tobytes()] = number
    batches = []
    for batch in came["given"]:
        batches.append([known.get(row.numpy().tobytes()) for row in batch])
    strange = f"rank {rank} gave the model an image that is not in its data"
    require(None not in joined(batches), strange)
    return batches


def in_order(batches):
    return [batch.tolist() for batch in batches]


def steps_of(parts, size):
    """For each step, the batch of each rank, of `size` images."""
    ranks = []
    for images, labels in parts:
        ranks.append(zip(images.split(size), labels.split(size), strict=True))
    return by_step(ranks)


def by_step(ranks):
    """For each step, the batch of each rank. `ranks` has the batches of each rank."""
    return list(zip(*ranks, strict=True))


def script():
    return next(iter(CURRENT.get().files))


def named(right):
    def test():
        tried(f"KIND of {script()}")
        (came,) = run(kind, [None], group=False)
        require(came == right, f"KIND is {came!r}"[:200], "the kind of this bug, as KINDS.md names it")

    return test


for number, right in enumerate(KINDS, start=1):
    globals()[f"test_{number}b_its_name"] = named(right)


def bug(function):
    """A test of a script. Of one that is as it was, it says no more than the user did: where it goes wrong
    would be half of the answer."""

    @functools.wraps(function)
    def test(*words, **named):
        try:
            function(*words, **named)
        except Verdict:
            starter = STARTERS / script()
            if starter.exists() and code_of(CURRENT.get().files[script()]) == code_of(starter.read_text()):
                came = "the code is unchanged and still does what the user saw"
                raise Verdict("failed", came, "what the docstring asks for") from None
            raise

    return test


def code_of(text):
    """The lines of a script without its KIND, and without what it prints."""
    return [line for line in text.splitlines() if not re.match(r"\s*(KIND\b|print\(|#|$)", line)]


def epochs_of(ranks, images, epochs, share):
    """The batches of each rank; and for each epoch, for each rank, the images in their order. All ranks must
    have `share` in each epoch, in batches of 4."""
    batches = []
    for rank, came in enumerate(ranks):
        batches.append(numbers_of(rank, came, images))
    sizes = [4] * (share // 4)
    if share % 4 > 0:
        sizes.append(share % 4)
    for rank, mine in enumerate(batches):
        got = [len(batch) for batch in mine]
        same(f"the list of batch sizes of rank {rank} in {epochs} epochs", got, sizes * epochs)

    found = []
    for epoch in range(epochs):
        first = epoch * len(sizes)
        found.append([joined(mine[first : first + len(sizes)]) for mine in batches])
    return batches, found


def anew(found):
    """Each epoch has an order of its own, is dealt anew, and is shuffled at all."""
    for epoch, shares in enumerate(found):
        for rank, share in enumerate(shares):
            steps = {after - before for before, after in pairwise(share)}
            came = f"in epoch {epoch}, rank {rank} has the images {share}"
            require(len(steps) > 1 and min(steps) < 0, came, "a random order")
            for before in range(epoch):
                old = found[before][rank]
                came = f"rank {rank} has the same order in epochs {before} and {epoch}: {share}"
                require(share != old, came, "a new order in each epoch")
                came = f"in epochs {before} and {epoch}, rank {rank} has the same images in a different order"
                again = "all images are distributed anew in each epoch"
                require(sorted(share) != sorted(old), came, again)


def dealt(world_size, size, epochs, share, **more):
    """Training in which the script deals out the images. Returns the images, and what each rank had."""
    tried(f"{world_size} processes, {size} images, {epochs} epochs, batches of 4")
    state = parameters()
    (both,) = pictures(size)
    images, labels = both
    ranks = trained(state, [both] * world_size, epochs=epochs, batch_size=4, lr=0.5, **more)
    batches, found = epochs_of(ranks, images, epochs, share)
    for epoch, shares in enumerate(found):
        what = f"the number of different images that all processes together have in epoch {epoch}"
        different = set(joined(shares))
        same(what, len(different), min(size, share * world_size))
    anew(found)
    steps = []
    for step in by_step(batches):
        steps.append([(images[batch], labels[batch]) for batch in step])
    compare(ranks, learnt(state, steps, 0.5))
    return both, found


@pytest.mark.parametrize("world_size, size, epochs", [(2, 23, 4), (3, 25, 3)])
@bug
def test_1a_order(world_size, size, epochs):
    dealt(world_size, size, epochs, -(-size // world_size))


@pytest.mark.parametrize("world_size, size, epochs, seed", [(3, 25, 3, None), (2, 22, 4, 0)])
@bug
def test_2a_seed(world_size, size, epochs, seed):
    share = size // world_size
    if seed is None:
        seed = int(integers(1, 10_000, 1))
    both, found = dealt(world_size, size, epochs, share, seed=seed)
    tried(f"{world_size} processes, the same {size} images, with two different seeds")
    more = {"epochs": 1, "batch_size": 4, "lr": 0.5, "seed": seed + 20_000}
    ranks = trained(parameters(), [both] * world_size, **more)
    _, other = epochs_of(ranks, both[0], 1, share)
    came = f"each process has the same images with seed {seed} and with seed {seed + 20_000}"
    require(other[0] != found[0], came, "a different order for a different seed")


@pytest.mark.parametrize("least", [(12, 4, 8), (12,), (9, 0), (0, 9)])
@bug
def test_3a_collective(least):
    sizes = []
    for size in least:
        if size > 0:
            size += int(integers(0, 3, 1))
        sizes.append(size)
    if len(sizes) > 1:
        tried(f"{len(sizes)} processes with {', '.join(map(str, sizes))} test images")
    else:
        tried(f"one process with {sizes[0]} test images")
    state = parameters()
    parts = pictures(*[7] * len(sizes))
    expected = learnt(state, [parts] * 3, 0.7)
    tests = []
    right = 0
    for rank, size in enumerate(sizes):
        # Labels that the trained model gives, but for some: each rank has another accuracy.
        images = floats(200, 6)
        best = answers(expected.state, images).topk(2).values
        images = images[best[:, 0] - best[:, 1] > 0.05][:size]
        labels = answers(expected.state, images).argmax(1)
        wrong = min(size, (0, 3, 1)[rank] + int(integers(0, 2, 1)))
        labels[:wrong] = (labels[:wrong] + 1) % 3
        right += size - wrong
        tests.append({"more": {"test_images": images, "test_labels": labels}})
    ranks = trained(state, parts, tests, epochs=3, lr=0.7)
    compare(ranks, expected)
    close("the accuracy that process 0 returns", ranks[0]["result"], right / sum(sizes))
    for rank, came in enumerate(ranks[1:], start=1):
        same(f"what process {rank} returns", came["result"], None)


@pytest.mark.parametrize("world_size", [3, 4, 1])
@bug
def test_4a_sum(world_size):
    tried(f"{so_many(world_size, 'process')} with 11 images each, batches of 4, momentum and weight decay")
    own = [{"state": parameters()} for _ in range(world_size)]
    parts = pictures(*[11] * world_size)
    ranks = trained(None, parts, own, batch_size=4, lr=0.4, momentum=0.8, weight_decay=0.1)
    compare(ranks, learnt(own[0]["state"], steps_of(parts, 4), 0.4, 0.8, 0.1))


@pytest.mark.parametrize("world_size", [2, 3])
@bug
def test_5a_clipping(world_size):
    scale = 2.0**16 if world_size == 2 else 2.0 ** int(integers(11, 16, 1))
    words = "one process has a broken image (inf) in the third step"
    tried(f"{world_size} processes, 6 steps, an initial scale of {scale:.0f}; {words}")
    state = parameters()
    parts = pictures(*[18] * world_size)
    parts[-1][0][7, 2] = float("inf")
    # Some steps are to be clipped and some not: 0.5 is a usual size of a gradient here.
    settings = {"lr": 0.4, "momentum": 0.8}
    own = [{"scale": scale}] * world_size
    ranks = trained(state, parts, own, batch_size=3, max_norm=0.5, **settings)
    compare(ranks, learnt(state, steps_of(parts, 3), **settings, most=0.5))
    for rank, came in enumerate(ranks):
        what = f"the scale of the scaler on rank {rank} is {came['scale']} at the end"[:200]
        require(came["scale"] == scale / 2, what, f"{scale / 2}, halved after the skipped step")
        # In a batch of 3 images, no gradient of the loss itself by an answer is larger than 1/3.
        what = f"in the first step, the largest gradient of the loss on rank {rank} is {came['arrived'][0]}"
        require(came["arrived"][0] > 1, what, "a loss that is scaled before the backward pass")


@pytest.mark.parametrize("world_size, accumulate", [(2, 4), (3, 2)])
@bug
def test_6a_exchange(world_size, accumulate):
    tried(f"{world_size} processes, 3 steps of {accumulate} batches with 2 images each")
    state = parameters()
    parts = pictures(*[6 * accumulate] * world_size)
    ranks = trained(state, parts, batch_size=2, accumulate=accumulate, lr=0.3)
    compare(ranks, learnt(state, steps_of(parts, 2 * accumulate), 0.3), passes=accumulate)
    once = 4 * sum(value.numel() for value in state.values())
    for rank, came in enumerate(ranks):
        same(f"the number of batches of rank {rank}", len(came["given"]), 3 * accumulate)
        what = f"rank {rank} goes forward with another batch before the backward pass of the previous batch"
        each = "a forward and a backward pass for each small batch, because the large batch is too large"
        require(came["passes"] == ["forward", "backward"] * (3 * accumulate), what, each)
        times = came["sent"] / once
        what = f"the processes send as much data as in about {round(times)} exchanges"
        # Whoever also exchanges the parameters once, in the beginning, does no harm.
        require(2.7 < times < 4.3, what, "3: one exchange of all gradients per step")


@pytest.mark.parametrize("sizes, steps", [((13, 4), 3), ((5, 11, 1, 8), 2)])
@bug
def test_7a_mean_of_means(sizes, steps):
    tried(f"{len(sizes)} processes with {', '.join(map(str, sizes))} images, {steps} steps")
    state = parameters()
    parts = pictures(*sizes)
    ranks = trained(state, parts, steps=steps, lr=0.8)
    for rank, came in enumerate(ranks):
        seen = sorted(joined(numbers_of(rank, came, parts[rank][0])))
        what = f"rank {rank} trained with {len(seen)} images, of which {len(set(seen))} are different"
        require(seen == list(range(sizes[rank])), what, f"each of its {sizes[rank]} images once")
    batches = []
    for images, labels in parts:
        batches.append(zip(images.tensor_split(steps), labels.tensor_split(steps), strict=True))
    compare(ranks, learnt(state, by_step(batches), 0.8, alike=True))


@bug
def test_8a_resume():
    settings = {"lr": 0.4, "momentum": 0.8}
    state = parameters()
    parts = pictures(8, 8)
    batches = []  # for each epoch, as numbers of images
    steps = []  # for each epoch, as images and labels of each rank
    for epoch in range(5):
        shuffle = torch.Generator().manual_seed(epoch)
        batches.append(torch.randperm(8, generator=shuffle).split(3))
        of_epoch = []
        for batch in batches[epoch]:
            of_epoch.append([(images[batch], labels[batch]) for images, labels in parts])
        steps.append(of_epoch)

    starts = [  # epochs to reach, the forward pass in which all ranks are stopped, and the first epoch
        ("the first start", 5, 7, 0),
        ("the first restart", 4, None, 2),
        ("the second restart", 5, None, 4),
        ("the third restart", 5, None, 5),
    ]
    for start, epochs, stop, first in starts:
        until = "stopped in epoch 2" if stop else f"{epochs} epochs in total"
        tried(f"2 processes; {start}: {until}")
        begin = state if first == 0 else parameters()
        own = [{"snapshot": "snapshot.pt", "stop": stop}] * 2
        ranks = trained(begin, parts, own, disk=True, epochs=epochs, batch_size=3, **settings)
        wanted = in_order(joined(batches[first:epochs]))[:stop]
        for rank, came in enumerate(ranks):
            given = numbers_of(rank, came, parts[rank][0])
            same(f"the list of batches with which rank {rank} trains after this start", given, wanted)
        if not stop:
            compare(ranks, learnt(state, joined(steps[:epochs]), **settings), len(joined(steps[:first])))

    def torn(begin, **more):
        own = [{"snapshot": "torn.pt", **more}]
        return trained(begin, parts[:1], own, disk=True, dies=[0], epochs=3, batch_size=3, **settings)[0]

    tried("1 process; stopped at the end of epoch 1, while it writes the snapshot")
    if torn(state, last=5) is None:
        tried("1 process; restarted after it was stopped while writing the snapshot of epoch 1")
        given = numbers_of(0, torn(parameters()), parts[0][0])
        wanted = in_order(joined(batches[1:3]))
        same("the list of batches of epochs 1 and 2, with which it trains,", given, wanted)


# For each machine how many processes it has, and how many devices.
@pytest.mark.parametrize("machines", [((1, 2), (2, 3)), ((2, 4), (1, 1)), ((1, 1), (1, 2))])
@bug
def test_9a_device(machines):
    counts = []
    words = []
    for count, devices in machines:
        counts.append(count)
        words.append(f"{count} on {so_many(devices, 'device')}")
    tried(f"two machines with these processes: {' and '.join(words)}")
    of_each = environments(*counts)
    own = []
    for one in of_each:
        _, devices = machines[int(one["GROUP_RANK"])]
        own.append({"environment": one, "devices": devices})
    state = parameters()
    (both,) = pictures(7 * len(own) + 1)
    ranks = trained(state, [both] * len(own), own, batch_size=4, lr=0.8)
    for rank, (came, one) in enumerate(zip(ranks, of_each, strict=True)):
        local = one["LOCAL_RANK"]
        machine = ("first", "second")[int(one["GROUP_RANK"])]
        used = set()
        what = []  # "model", or the number of images or labels
        images_there = 0
        for number, thing in came["put"]:
            used.add(str(number))
            what.append(thing)
            if thing != "model":
                images_there += thing
        devices = f"device {' and '.join(sorted(used))}" if used else "no device"
        who = f"rank {rank} (local rank {local} on the {machine} machine)"
        require(used == {local}, f"{who} uses {devices}", f"only device {local}")
        enough = "model" in what and images_there >= 7
        only = f"rank {rank} put only this on its device: {what}"[:200]
        require(enough, only, "the model and its images")

    images, labels = both
    parts = []
    for rank in range(len(own)):
        share = slice(7 * rank, 7 * rank + 7)
        parts.append((images[share], labels[share]))
    compare(ranks, learnt(state, steps_of(parts, 4), 0.8))


@pytest.mark.parametrize("world_size", [2, 3])
@bug
def test_10a_buffers(world_size):
    words = "; the model has one more buffer, the sum of the mean images of its batches"
    tried(f"{world_size} processes with 12 images each, batches of 4, and 5 test images{words}")
    learns = parameters() | {"norm.weight": floats(5) + 2, "norm.bias": floats(5)}
    state = learns | {"norm.running_mean": floats(5), "norm.running_var": floats(5) ** 2 + 0.5}
    state["norm.num_batches_tracked"] = torch.tensor(0)
    # Images of another brightness and contrast on each rank, as from another camera.
    parts = []
    for rank, (images, labels) in enumerate(pictures(*[12] * world_size)):
        parts.append((images * (1 + rank) + 2 * rank, labels))
    test = floats(5, 6) + 1
    ranks = trained(state, parts, batch_size=4, lr=0.3, test_images=test)
    expected = learnt(learns, steps_of(parts, 4), 0.3)
    compare(ranks, expected)

    running = running_of(learns, state, parts)
    mean = []  # of the running means of all ranks, and of their running variances
    for of_ranks in zip(*running, strict=True):
        mean.append(sum(of_ranks) / world_size)
    results = [came["result"] for came in ranks]
    if all(torch.is_tensor(one) and one.shape == (5, 3) for one in results):
        words = f"ranks 0 and {world_size - 1} give different answers for the same images"
        is_same = torch.allclose(results[0], results[-1], rtol=0, atol=1e-4)
        require(is_same, words, "the same answers on all ranks")
        of_rank_0 = answers(expected.state, test, running[0])
        is_first = torch.allclose(results[0].double(), of_rank_0, rtol=0, atol=1e-4)
        words = "all ranks answer with running_mean and running_var of rank 0"
        require(not is_first, words, "with the means over all ranks")
    for rank, came in enumerate(ranks):
        what = f"the answers that rank {rank} returns"
        close(what, came["result"], answers(expected.state, test, mean), 1e-4, 1)
    total = 3 * torch.cat([images for images, _ in parts]).mean(0)
    for rank, came in enumerate(ranks):
        for name, value in zip(("norm.running_mean", "norm.running_var"), mean, strict=True):
            close(f"{name} of the model of rank {rank} at the end", came["state"].get(name), value, 1e-4, 1)
        what = f"total, a buffer with persistent=False, of the model of rank {rank} at the end"
        close(what, came["total"], total, 1e-4, 1)


def running_of(learns, state, parts):
    """Running mean and variance of each rank, as batch norm keeps them."""
    steps = steps_of(parts, 4)
    ranks = [[state["norm.running_mean"].double(), state["norm.running_var"].double()] for _ in parts]
    for number, step in enumerate(steps):
        now = learnt(learns, steps[:number], 0.3).state
        for kept, (images, _) in zip(ranks, step, strict=True):
            hidden = images.double() @ now["first.weight"].T + now["first.bias"]
            kept[0] = 0.9 * kept[0] + 0.1 * hidden.mean(0)
            kept[1] = 0.9 * kept[1] + 0.1 * hidden.var(0)
    return ranks
