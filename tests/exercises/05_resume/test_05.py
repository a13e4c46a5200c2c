"""Exercise 05: save, load, resume.

| axis | checked in |
| --- | --- |
| world size | 1a: 3 processes; 1b, 2b: 1; 2a, 3a: 2 |
| calls | 1b: saves over a snapshot, and over what a killed save has left; 3a: a training that has ended |
| names of files | 1a, 1b, 2b: files of other runs, also those that differ only in the last suffix |
| parts | 2a: momentum, a buffer, a scheduler, a fourth part with the name `epoch` |
| no snapshot, half of one, an empty one, one of another model | 2b |
| losses that rise | 3a |
| dtype, memory layout, frozen, missing gradients, tied | what state_dict() has: torch.save keeps it |
| container, train or eval, sizes, seeds | the functions have none |
"""

import math
import os
import shutil
import signal

import torch
import torch.distributed as dist
from disks import file_events, read_folders
from grader.testing import close, floats, integers, require, run, same, tried
from optimizers import Optimizer
from torch import nn
from torch.nn.functional import cross_entropy

SNAPSHOT, OTHER_RUN = "run.v1.snapshot", "run.v2.snapshot"
# Files of other runs, with names that a temporary file might have.
OTHERS = ["temporary", "tmp", "unfinished", "snapshot.tmp", "later.tmp", "later.temporary", "notes.txt"]
OTHERS += ["run.tmp", "run.temporary", "run"]
SHAPES = {"first.weight": (8, 6), "first.bias": (8,), "second.weight": (3, 8), "second.bias": (3,)}
SHAPES |= {"scale": (8,)}
MOST_EVENTS = 20
USELESS = ["is cut short", "is an empty file", "is of another model", "is of a model with other layers"]
USELESS += ["lacks one of the parts"]


# ---- what runs in each rank


class Model(nn.Module):
    """Two layers and a buffer. If asked to, it kills its process in one of its forward passes."""

    def __init__(self, state, die_in=None):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 3)
        self.register_buffer("scale", torch.ones(8))
        self.load_state_dict(state)
        self.calls = 0
        self.die_in = die_in

    def forward(self, images):
        self.calls += 1
        if self.calls == self.die_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.second(torch.tanh(self.first(images)) * self.scale)


class Renamed(nn.Module):
    """The same layers, with other names."""

    def __init__(self):
        super().__init__()
        self.below = nn.Linear(6, 8)
        self.above = nn.Linear(8, 3)


class Counter:
    """A part that is none of the three that every run has: it counts steps."""

    def __init__(self):
        self.steps = 0

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def parts_of(model, epochs=6):
    """CosineAnnealingLR has another learning rate in each epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "epoch": Counter()}


def step(parts, gradients):
    """An epoch of one step."""
    for name, parameter in parts["model"].named_parameters():
        parameter.grad = gradients[name].clone()
    parts["optimizer"].step()
    parts["epoch"].steps += 1
    parts["scheduler"].step()


def trained(given):
    parts = parts_of(Model(given["state"]))
    for gradients in given["history"]:
        step(parts, gradients)
    return parts


def facts(parts):
    weights = {}
    for name, value in parts["model"].state_dict().items():
        weights[name] = value.clone()
    rate = parts["optimizer"].param_groups[0]["lr"]
    return {"weights": weights, "rate": rate, "steps": parts["epoch"].steps}


def path_of(me, disk, name=SNAPSHOT):
    (me.disk / disk).mkdir(exist_ok=True)
    return me.disk / disk / name


def save(student, me, given):
    for disk in given["disks"]:
        snapshot = path_of(me, disk)
        if given.get("others"):
            for name in OTHERS:
                (snapshot.parent / name).write_text(f"{name} is a file of another run")
        student.save(snapshot, trained(given), len(given["history"]), me.rank)


def save_and_die(student, me, given):
    """Copy a folder, and save there. Returns the file events of the save, if it comes to its end."""
    parts = trained(given)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    student.save(path_of(me, f"to-import-all-{me.rank}"), parts, 1, 0)
    if given["copy"]:
        shutil.copytree(me.disk / given["copy"], me.disk / given["disk"])
    snapshot = path_of(me, given["disk"], given.get("name", SNAPSHOT))
    events = file_events(given.get("at"), given.get("largest"))
    student.save(snapshot, parts, len(given["history"]), 0)
    return list(events)


def load(student, me, given):
    """What load makes of fresh parts, in each folder; and what one more epoch makes of them."""
    found = []
    for disk in given["disks"]:
        parts = parts_of(Model(given["state"]))
        first = student.load(path_of(me, disk), parts)
        loaded = facts(parts)
        step(parts, given["gradients"])
        found.append({"first": first, "loaded": loaded, "later": facts(parts)})
    return found


def put_back(student, me, given):
    """Snapshots as they were before a save that was killed, and files of other runs, one of them newer."""
    for disk, source in given.items():
        snapshot = path_of(me, disk)
        snapshot.unlink(missing_ok=True)
        if source:
            shutil.copyfile(path_of(me, source), snapshot)
        shutil.copyfile(path_of(me, "later"), snapshot.with_name("later.snapshot"))
        for name in OTHERS:
            (me.disk / disk / name).write_text(f"{name} is a file of another run")


def load_useless(student, me, given):
    """What load does with a snapshot that is cut short or empty, with one of another model, and with one that
    lacks a part."""
    snapshot = path_of(me, "useless")
    found = {}
    student.save(snapshot, trained(given), len(given["history"]), 0)
    whole = snapshot.read_bytes()
    cases = {
        "is cut short": (whole[:-200], parts_of(Model(given["state"]))),
        "is an empty file": (b"", parts_of(Model(given["state"]))),
        "is of another model": (whole, parts_of(nn.Linear(6, 3))),
        "is of a model with other layers": (whole, parts_of(Renamed())),
        "lacks one of the parts": (whole, parts_of(Model(given["state"])) | {"sampler": Counter()}),
    }
    for words, (content, parts) in cases.items():
        snapshot.write_bytes(content)
        try:
            found[words] = f"returns {student.load(snapshot, parts)!r}"
        except Exception:
            found[words] = "raises"
    return found


def train(student, me, given):
    """One process of a training: to its end, or to a kill."""
    parts = parts_of(Model(given["state"], given["die_in"]), 4)
    model = nn.parallel.DistributedDataParallel(parts["model"])

    def train_epoch(epoch):
        losses = []
        for batch in given["orders"][(epoch - 1) % 4].split(4):
            loss = cross_entropy(model(given["images"][batch]), given["labels"][batch])
            parts["optimizer"].zero_grad()
            loss.backward()
            parts["optimizer"].step()
            losses.append(loss)
        return sum(losses).item() / len(losses) + 10 * epoch  # rising: the best epoch is not the last

    try:
        losses = student.train(path_of(me, given["disk"]), parts, train_epoch, 4, me.rank)
    except RuntimeError as error:
        if given["other_dies"]:  # without its gradients, this rank cannot go on
            return str(error)
        raise
    # A dict that a rank sends has words for keys, and these are numbers.
    losses = [list(one) for one in losses.items()] if isinstance(losses, dict) else None
    return {"losses": losses, "weights": facts(parts)["weights"]}


# ---- what is drawn, and what is right


def a_state():
    state = {}
    for name, shape in SHAPES.items():
        state[name] = floats(*shape)
    return state


def a_history():
    """Weights, and gradients of four epochs. The last ones are for after load: no save gets them."""
    return {"state": a_state(), "history": [a_state() for _ in range(4)]}


def until(history, epoch, *disks, **more):
    return history | {"history": history["history"][:epoch], "disks": disks} | more


def rate_after(epoch, epochs):
    return 0.05 * (1 + math.cos(math.pi * epoch / epochs))


def right(state, history):
    """Weights, and the learning rate of the next epoch."""
    weights = {}
    learning = []
    for name in SHAPES:
        weights[name] = state[name].clone()
        if name != "scale":  # a buffer
            learning.append(weights[name])
    optimizer = Optimizer("SGD", learning, {"momentum": 0.9})
    for epoch, gradients in enumerate(history):
        for name, value in weights.items():
            value.grad = gradients[name]
        optimizer.options["lr"] = rate_after(epoch, 6)
        optimizer.step()
    return weights, rate_after(len(history), 6)


def listed(names):
    return ", ".join(sorted(names)) or "nothing"


def look_into(*disks):
    """By a run without the student's code. A content that is None is that of a folder."""
    found = run(read_folders, [disks], group=False, student=False, disk=True)[0]
    for files in found.values():
        for one in files.values():
            if one["bytes"] is not None:
                one["bytes"] = one["bytes"].numpy().tobytes()
    return found


def check_parts(on, now, state, history, after, which):
    """Weights and learning rate `now` are those of `state` after the gradients of `history`."""
    weights, rate = right(state, history)
    for name, value in weights.items():
        close(f"{on} {name} {after}", now["weights"][name], value)
    close(f"{on} the learning rate {which}", now["rate"], rate, scale=0.01)


def check_load(history, epochs, world_size=1):
    """`epochs`: for each disk the last epoch before load, 0 where there is no snapshot; and words."""
    last = history["history"][-1]
    jobs = []
    for _ in range(world_size):
        jobs.append({"gradients": last, "disks": list(epochs), "state": a_state()})
    for rank, came in enumerate(run(load, jobs, disk=True)):
        on = f"on rank {rank},"
        for (epoch, words), got in zip(epochs.values(), came, strict=True):
            tried(words)
            same(f"{on} what load returns", got["first"], epoch + 1)
            state = history["state"] if epoch else jobs[rank]["state"]
            past = history["history"][:epoch]
            counted = f"{on} what `epoch`, a fourth part, has counted after load"
            same(counted, got["loaded"]["steps"], len(past))
            check_parts(on, got["loaded"], state, past, "after load", "after load")
            after = "after load and one more step"
            check_parts(on, got["later"], state, [*past, last], after, "of the epoch after that")


def test_1a_rank_0_saves():
    """3 processes, each with its own disk, save after epoch 1"""
    history = a_history()
    names = ["disk-0", "disk-1", "disk-2"]
    inputs = [until(history, 1, name) for name in names]
    run(save, inputs, disk=True)
    first, *rest = look_into(*names).values()
    came = f"the disk of rank 0 has {listed(first)}"
    require(SNAPSHOT in first, came, f"{SNAPSHOT}, the path that save was given")
    for rank, files in enumerate(rest, 1):
        nothing = "nothing: on a shared disk, two processes would write to the same file"
        require(not files, f"the disk of rank {rank} has {listed(files)}", nothing)
    require(set(first) == {SNAPSHOT}, came, f"only {SNAPSHOT}")


def test_2a_every_process_restores_all_parts():
    """2 processes save after epoch 3; 2 others, with different weights, load and take one more step"""
    history = a_history()
    run(save, [until(history, 3, "disk-0"), until(history, 3, "disk-1")], disk=True)
    check_load(history, {"disk-0": (3, "")}, world_size=2)


def test_1b_a_kill_at_any_moment():
    """One process saves after epoch 1, another after epoch 2, to the same path, in a folder that has files of
    other runs"""
    history = a_history()
    files = []
    for epoch in (1, 2):
        run(save, [until(history, epoch, "disk", others=True)], disk=True)
        there = look_into("disk")["disk"]
        for name in OTHERS:
            is_same = name in there and there[name]["bytes"] == f"{name} is a file of another run".encode()
            came = f"save has changed or removed {name}, a file of another run"
            require(is_same, came, "the files of other runs, as they were")
        files.append(there[SNAPSHOT])
    old, new = files
    require(old["bytes"] != new["bytes"], f"{SNAPSHOT} has not changed", "the snapshot of epoch 2")
    came = f"the second save wrote into the file of the first: {SNAPSHOT} has the same inode as before"
    wanted = "a temporary file that is renamed: until then, the old file stays complete"
    require(old["inode"] != new["inode"], came, wanted)

    run(save, [until(history, 1, "before")], disk=True)
    killed = killed_at_each_moment(history, new["size"])
    before, *there = look_into("before", *killed).values()
    before = before[SNAPSHOT]
    epochs = {}
    complete = f"the {before['size']} bytes of epoch 1, until epoch 2 is completely written"
    for (disk, words), found in zip(killed.items(), there, strict=True):
        tried(words)
        require(SNAPSHOT in found, f"{SNAPSHOT} is gone", "the snapshot of epoch 1, until it is replaced")
        size = found[SNAPSHOT]["size"]
        is_old = found[SNAPSHOT]["bytes"] == before["bytes"]
        require(is_old or size >= 0.98 * new["size"], f"{SNAPSHOT} has {size} bytes", complete)
        epochs[disk] = (1 if is_old else 2, f"{words}; then load in another process")

    # A rename works only inside one file system, and the folder of a job is often on another one.
    outside = [name for name, one in look_into(".")["."].items() if one["bytes"] is not None]
    came = f"a save that was killed has left {listed(outside)} outside of the folder of `snapshot`"
    require(not outside, came, "a temporary file in the same folder")
    tried("load in each folder in which a save was killed")
    check_load(history, epochs)
    again = "one more save, after epoch 3"
    tried(f"{again}, in each folder in which a save was killed")
    run(save, [until(history, 3, *killed)], disk=True)
    for disk, found in look_into(*killed).items():
        tried(f"{killed[disk]}; then {again}")
        left = set(found) - {SNAPSHOT}
        require(not left, f"in the folder, there still is {listed(left)}", f"only {SNAPSHOT}")


def temporary_files(events):
    """What a save has written to before it was renamed."""
    found = set()
    for event in events:
        words = event.split()
        if words[0] == "renames" or words[-1] == "writing":
            found.add(words[1])
    return found


def killed_at_each_moment(history, size):
    """Saves after epoch 2 over the snapshot of epoch 1, each killed, before a file event or while bytes are
    written. Returns the folders, with words for each."""
    words = "a save after epoch 2, killed"
    given = until(history, 2, copy="before")
    other = given | {"disk": "other", "name": OTHER_RUN}
    events, of_other = run(save_and_die, [given | {"disk": "whole"}, other], group=False, disk=True)
    require(events, "it was not killed, since it renamed no file", "a temporary file that is renamed")
    both = temporary_files(events) & temporary_files(of_other)
    wanted = "temporary files with different names, or two runs in one folder disturb each other"
    require(not both, f"saves of {SNAPSHOT} and of {OTHER_RUN} both write to {listed(both)}", wanted)

    jobs = {}
    for at, event in enumerate(events[:MOST_EVENTS], 1):
        jobs[f"{words} just before it {event}"] = {"at": at}
    jobs[f"{words} after half of {size} bytes are written"] = {"largest": size // 2}
    tried(f"{words} when it opens, renames or removes a file, or while it writes")
    inputs = []
    for number, how in enumerate(jobs.values()):
        inputs.append(given | how | {"disk": f"killed-{number}"})
    ended = run(save_and_die, inputs, group=False, disk=True, dies=range(len(jobs)))
    killed = {}
    for what, one, came in zip(jobs, inputs, ended, strict=True):
        if came is None:
            killed[one["disk"]] = what
    return killed


def test_2b_no_snapshot_or_half_of_one():
    history = a_history()
    killed = "was killed when half of it was written; then load in another process"
    check_load(history, {"empty": (0, "load in an empty folder")})
    run(save, [until(history, 1, "before")], disk=True)
    run(save, [until(history, 3, "later")], disk=True)
    half = look_into("before")["before"].get(SNAPSHOT, {}).get("size", 0) // 2
    beside = "in a folder with the newer later.snapshot of another run"
    epochs = {
        "first": (0, f"the very first save {killed}, {beside}"),
        "second": (1, f"a save after epoch 2 {killed}, {beside}"),
    }
    tried("load in folders in which a save was killed when half of it was written")
    given = until(history, 2, largest=half)
    jobs = [given | {"disk": "first", "copy": None}, given | {"disk": "second", "copy": "before"}]
    run(save_and_die, jobs, group=False, disk=True, dies=[0, 1])
    # What a save does to the snapshot itself is a check of its own: here it is as if it had not touched it.
    run(put_back, [{"first": None, "second": "before"}], group=False, student=False, disk=True)
    there = look_into(*epochs)
    check_load(history, epochs)
    after = look_into(*epochs)
    for disk, (_, words) in epochs.items():
        tried(words)
        changed = [name for name, one in there[disk].items() if after[disk].get(name) != one]
        came = f"in the folder, load has changed or removed {listed(changed)}"
        require(not changed, came, "all files as they were: load only reads, and removes none")


def test_2b_a_snapshot_that_is_of_no_use():
    """The snapshot is cut short, or an empty file, or of another model, or lacks one of the parts"""
    found = run(load_useless, [until(a_history(), 2)], disk=True)[0]
    for words in USELESS:
        came = found[words]
        wanted = "an error: otherwise, train would overwrite the snapshot"
        require(came == "raises", f"if the snapshot {words}, load {came}", wanted)


class Training:
    """4 epochs of 3 steps in one process, without a snapshot: what two ranks must come to."""

    def __init__(self):
        self.state = a_state()
        self.images = floats(24, 6)
        self.labels = integers(0, 3, 24)
        self.orders = [[], []]  # of each rank, for each epoch
        for _ in range(4):
            order = torch.randperm(24)
            self.orders[0].append(order[0::2])
            self.orders[1].append(order[1::2])
        self.losses = [{}, {}]
        model = Model(self.state)
        optimizer = Optimizer("SGD", model.parameters(), {"momentum": 0.9})
        for epoch in range(1, 5):
            optimizer.options["lr"] = rate_after(epoch - 1, 4)
            sums = torch.zeros(2)
            for place in range(3):
                losses = []
                for own in self.orders:
                    batch = own[epoch - 1].split(4)[place]
                    losses.append(cross_entropy(model(self.images[batch]), self.labels[batch]))
                optimizer.zero_grad()
                (sum(losses) / 2).backward()
                optimizer.step()
                sums += torch.stack(losses).detach()
            for losses, total in zip(self.losses, sums, strict=True):
                losses[epoch] = total.item() / 3 + 10 * epoch
        self.end = model.state_dict()

    def jobs(self, disk, after=0, die_in=None):
        """For processes that begin after this epoch: those that go on have other weights at first, and NaN
        for the images of the epochs before."""
        images = torch.cat([self.images, torch.full((1, 6), float("nan"))])
        labels = torch.cat([self.labels, self.labels[:1]])
        jobs = []
        for rank, own in enumerate(self.orders):
            state = a_state() if after else self.state
            orders = [torch.full((12,), 24)] * after + own[after:]
            given = {"disk": disk, "images": images, "labels": labels, "state": state, "orders": orders}
            if rank == 1:
                jobs.append(given | {"die_in": die_in, "other_dies": False})
            else:
                jobs.append(given | {"die_in": None, "other_dies": die_in is not None})
        return jobs

    def goes_on_to_its_end(self, disk, after=0):
        expected = list(range(after + 1, 5))
        last = "" if expected else ", although the last one had ended,"
        for rank, came in enumerate(run(train, self.jobs(disk, after), disk=True)):
            on = f"on rank {rank},"
            wanted = "a dict: the number of each epoch, and its loss"
            require(came["losses"] is not None, f"{on} train returns no dict", wanted)
            losses = dict(came["losses"])
            same(f"{on} the list of epochs trained{last}", sorted(losses), expected)
            for epoch, loss in losses.items():
                close(f"{on} the loss of epoch {epoch}", loss, self.losses[rank][epoch], 2e-4, 1.0)
            for name, value in self.end.items():
                close(f"{on} {name} in the end", came["weights"][name], value, 2e-4, 1.0)


def test_3a_one_curve():
    training = Training()
    words = "2 processes train 4 epochs with rising losses"
    tried(f"{words}, and neither is killed")
    training.goes_on_to_its_end("whole")
    # Also in an epoch after one with an odd number: every second epoch is not every epoch.
    for disk, epoch, before in [("killed", 3, "epochs 1 and 2"), ("early", 2, "epoch 1")]:
        died = f"{words}; SIGKILL of rank 1 in the middle of epoch {epoch}"
        tried(died)
        ended = run(train, training.jobs(disk, die_in=epoch * 3 - 1), disk=True, dies=[1])
        require(ended[1] is None, "the training came to its end", f"SIGKILL in epoch {epoch}")
        other = f"different initial weights, and NaN instead of the images of {before}"
        tried(f"{died}; both are started again, with {other}")
        training.goes_on_to_its_end(disk, after=epoch - 1)
    tried("the same, and after the training has ended, both are started once more")
    training.goes_on_to_its_end("early", after=4)
