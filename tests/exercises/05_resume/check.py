"""What exercise 05 is held against. Runs in the judge.

What is in the folders is read by runs without the student's code. What was saved is known to no later run:
that it trains on from there proves that it came out of the folder.
"""

import hashlib

import by_path
import torch
from judge import Verdict, check, several
from judge import look as look_at
from judge.several import listed, look_into, ours
from torch.nn.functional import cross_entropy

SNAPSHOT = "run.v1.snapshot"
EPOCHS = 6  # CosineAnnealingLR has another learning rate in each of them
MOST_EVENTS = 20
SHAPES = {"first.weight": (8, 6), "first.bias": (8,), "second.weight": (3, 8), "second.bias": (3,)}
SHAPES |= {"scale": (8,)}  # a buffer
WEIGHTS = [name for name in SHAPES if name != "scale"]


def driver():
    return by_path.driver("05_resume")


def some_state(trial):
    return {name: trial.floats(*shape) for name, shape in SHAPES.items()}


def a_history(trial):
    """What a process needs to have the parts of a run, whatever it has gone through: gradients of each epoch.
    The last ones are for a step after load, and no run that saves gets them."""
    gradients = [{name: trial.floats(*SHAPES[name]) for name in WEIGHTS} for _ in range(4)]
    return {"state": some_state(trial), "epochs": EPOCHS, "history": gradients}


def until(history, epoch):
    return history | {"history": history["history"][:epoch], "epoch": epoch}


def saved_by(trial, folder, disk, history, epoch, world_size=1, others=False):
    """Several ranks save each to a disk of its own. `others`: where files of other runs are."""
    disks = [disk] if world_size == 1 else [f"{disk}-{rank}" for rank in range(world_size)]
    inputs = until(history, epoch) | {"others": others}
    trial.run("save", [inputs | {"disk": one} for one in disks], folder=folder)


def without_others(trial, what, files):
    """The files of a folder without those of other runs, which must be as they were."""
    for name in driver().OTHERS:
        digest = hashlib.sha256(f"{name} is a file of another run".encode()).hexdigest()
        kept, there = "the files of other runs, as they were", files.get(name)
        trial.require(there, f"{what}, {name} is gone: a file of another run", kept)
        changed = f"{what}, {name} has changed: a file of another run"
        trial.require(there["digest"] == digest, changed, kept)
    return {name: facts for name, facts in files.items() if name not in driver().OTHERS}


def save_and_die(trial, folder, history, /, **inputs):
    """One process saves after epoch 2. Whether it was killed in that."""
    inputs = until(history, 2) | inputs
    (value,) = trial.run("save_and_die", [inputs], folder=folder, kill={"rank": 0})
    return several.ended(trial, value) is not None


def loaded_by(trial, folder, history, *disks, world_size=1):
    """What load makes of parts that have other weights: for each rank, and each disk."""
    inputs = {"disks": list(disks), "epochs": EPOCHS, "gradients": history["history"][-1]}
    given = [inputs | {"state": some_state(trial)} for _ in range(world_size)]
    came = trial.run("load", given, folder=folder)
    for found, one in zip(came, given, strict=True):
        good = isinstance(found, list) and [type(here) for here in found] == [dict] * len(disks)
        trial.require(good, "not one result for each folder")
        for here in found:
            here["fresh"] = one["state"]
    return came


def goes_on(trial, rank, came, history, epoch=None):
    """After load, everything is as this epoch left it, or as it was where there is none; also after one more
    step and at the next epoch's rate."""
    fresh = driver().parts_of(driver().Model(came["fresh"]), EPOCHS)
    parts = driver().trained(until(history, epoch)) if epoch else fresh
    who = f"on rank {rank},"

    def rate(key, when):
        right = driver().rates(parts)[0]
        trial.close(f"{who} the learning rate {when}", look_at(came, key, 0), right, scale=0.01)

    def weights(names, key, when):
        right = parts["model"].state_dict()
        for name in names:
            trial.close(f"{who} {name} {when}", look_at(came, key, name), right[name])

    trial.same(f"{who} what load returns", look_at(came, "first"), (epoch or 0) + 1)
    weights(SHAPES, "state", "after load")
    counted = f"{who} what `counter`, a fourth part, has counted after load"
    trial.same(counted, look_at(came, "counter"), parts["counter"].steps)
    rate("rate", "after load")
    driver().step(parts, history["history"][-1])
    weights(WEIGHTS, "after", "after load and one more step")
    parts["scheduler"].step()
    rate("next rate", "of the epoch after that")


@check("05.1a")
def rank_0_saves(trial):
    trial.tried("2 processes, each with its own disk, save after epoch 1")
    saved_by(trial, "a", "disk", a_history(trial), 1, world_size=2)
    disks = look_into(trial, "a", "disk-0", "disk-1")
    came = f"the disk of rank 0 has {listed(disks['disk-0'])}"
    trial.require(SNAPSHOT in disks["disk-0"], came, f"{SNAPSHOT}, the path that save was given")
    nothing = "nothing: on a shared disk, two processes would write to the same file"
    trial.require(not disks["disk-1"], f"the disk of rank 1 has {listed(disks['disk-1'])}", nothing)
    trial.require({*disks["disk-0"]} == {SNAPSHOT}, came, f"only {SNAPSHOT}")


@check("05.1b")
def killed_in_a_save(trial):
    history, files = a_history(trial), []
    trial.tried(
        "one process saves after epoch 1, and another after epoch 2, to the same path, in a folder that has "
        "files of other runs"
    )
    for epoch in (1, 2):
        saved_by(trial, "b", "disk", history, epoch, others=True)
        found = without_others(trial, "after save", look_into(trial, "b", "disk")["disk"])
        files.append(found.get(SNAPSHOT))
        trial.require(files[-1], f"there is no {SNAPSHOT}", "the snapshot of this epoch")
    old, new = files
    trial.require(old["digest"] != new["digest"], f"{SNAPSHOT} has not changed", "the snapshot of epoch 2")
    came = f"the second save wrote into the file of the first: {SNAPSHOT} has the same inode as before"
    wanted = "a temporary file that is renamed: until then, the old file stays complete"
    trial.require(old["inode"] != new["inode"], came, wanted)
    saved_by(trial, "b", "before", history, 1)
    tried = killed_at_each_moment(trial, history, new["size"])
    before = look_into(trial, "b", "before")["before"][SNAPSHOT]
    there = look_into(trial, "b", *tried)
    right = f"the {before['size']} bytes of epoch 1, until epoch 2 is completely written"
    for disk, what in tried.items():
        trial.tried(what)
        kept = "the snapshot of epoch 1, until it is replaced"
        trial.require(SNAPSHOT in there[disk], f"{SNAPSHOT} is gone", kept)
        found = there[disk][SNAPSHOT]
        complete = found["digest"] == before["digest"] or found["size"] >= 0.98 * new["size"]
        trial.require(complete, f"{SNAPSHOT} has {found['size']} bytes", right)
    # A rename works only inside one file system, and the folder of a job is often on another one.
    outside = [
        name for name, facts in look_into(trial, "b", ".")["."].items() if facts["digest"] != "no file"
    ]
    outside = [name for name in outside if not name.startswith(".meeting")]
    left = f"a save that was killed has left {listed(outside)} outside of the folder of `snapshot`"
    trial.require(not outside, left, "a temporary file in the same folder")
    trial.tried("load in each folder in which a save was killed")
    came = loaded_by(trial, "b", history, *tried)
    for (disk, what), found in zip(tried.items(), came[0], strict=True):
        trial.tried(f"{what}; then load in another process")
        epoch = 1 if there[disk][SNAPSHOT]["digest"] == before["digest"] else 2
        goes_on(trial, 0, found, history, epoch)
    again = "one more save, after epoch 3"
    trial.tried(f"{again}, in each folder in which a save was killed; then load")
    for disk in tried:
        saved_by(trial, "b", disk, history, 3)
    for disk, files in look_into(trial, "b", *tried).items():
        left = {*files} - {SNAPSHOT}
        trial.tried(f"{tried[disk]}; then {again}")
        trial.require(not left, f"in the folder, there still is {listed(left)}", f"only {SNAPSHOT}")
    trial.tried(f"{again}, in each folder in which a save was killed; then load")
    came = loaded_by(trial, "b", history, *tried)
    for found in came[0]:
        goes_on(trial, 0, found, history, 3)


def killed_at_each_moment(trial, history, size):
    """Saves after epoch 2 where there is the snapshot of epoch 1: killed before each rename, and while bytes
    are written. Returns the folders, with words for each."""
    tried, words = {}, "a save after epoch 2, killed"
    for at in range(1, MOST_EVENTS):
        disk = f"at-{at}"
        trial.tried(f"{words} at number {at} of the moments at which it opens, renames or removes a file")
        if not save_and_die(trial, "b", history, disk=disk, copy="before", at=at):
            break
        tried[disk] = f"{words} just before it {several.file_event(trial)}"
    trial.require(tried, "it was not killed, since it renamed no file", "a temporary file that is renamed")
    for part in (0.1, 0.5, 0.9):
        largest = int(size * part)
        disk, what = f"of-{largest}", f"{words} after {largest} of {size} bytes are written"
        trial.tried(what)
        killed = save_and_die(trial, "b", history, disk=disk, copy="before", largest=largest)
        came = f"no file could grow beyond {largest} bytes, but save returned as if it had written everything"
        trial.require(killed, came, "all bytes written")
        tried[disk] = what
    return tried


@check("05.2a")
def restored(trial):
    history = a_history(trial)
    saved_by(trial, "a", "disk", history, 3, world_size=2)
    trial.tried(
        "2 processes save after epoch 3; 2 others, with different weights, load and take one more step"
    )
    for rank, found in enumerate(loaded_by(trial, "a", history, "disk-0", world_size=2)):
        goes_on(trial, rank, found[0], history, 3)


@check("05.2b")
def nothing_or_half(trial):
    history = a_history(trial)
    trial.tried("load in an empty folder")
    goes_on(trial, 0, loaded_by(trial, "b", history, "empty")[0][0], history)
    saved_by(trial, "b", "before", history, 1)
    saved_by(trial, "b", "later", history, 3)
    size = look_into(trial, "b", "before")["before"].get(SNAPSHOT, {}).get("size", 0)
    tried = {
        "first": "the very first save was killed when half of it was written; then load in another process",
        "second": "a save after epoch 2 was killed when half of it was written; then load in another process",
        "other": "a snapshot after epoch 1, and the newer later.snapshot of another run; then load",
    }
    for disk, copy in (("first", None), ("second", "before")):
        trial.tried(tried[disk])
        save_and_die(trial, "b", history, disk=disk, copy=copy, largest=size // 2)
    # What a save does to the snapshot itself is a check of its own: here it is as if it had not touched it.
    ours(trial, "put_back", "b", disks={"first": None, "second": "before", "other": "before"}, later="later")
    there = look_into(trial, "b", *tried)
    came = loaded_by(trial, "b", history, *tried)
    after = look_into(trial, "b", *tried)
    without_others(trial, "after load", after["other"])
    for (disk, what), found in zip(tried.items(), came[0], strict=True):
        trial.tried(what)
        changed = {name for name, facts in there[disk].items() if after[disk].get(name) != facts}
        came = f"in the folder, load has changed or removed {listed(changed)}"
        trial.require(not changed, came, "all files as they were: load only reads, and removes none")
        goes_on(trial, 0, found, history, None if disk == "first" else 1)


class Training:
    """A training of 4 epochs on the judge's side: all its steps in one process, and no snapshot."""

    size, steps, epochs = 4, 3, 4

    def __init__(self, trial):
        self.trial, self.state = trial, some_state(trial)
        count = 2 * self.size * self.steps
        self.images, self.labels = trial.floats(count, 6), trial.integers(0, 3, count)
        order = [torch.from_numpy(trial.random.permutation(count)) for _ in range(self.epochs)]
        self.orders = [[one[rank::2] for one in order] for rank in range(2)]
        parts = driver().parts_of(driver().Model(self.state), self.epochs)
        model, self.losses = parts["model"], [{}, {}]
        for epoch in range(1, self.epochs + 1):
            sums = [0.0, 0.0]
            for step in range(self.steps):
                losses = []
                for rank in range(2):
                    batch = self.orders[rank][epoch - 1][step * self.size : (step + 1) * self.size]
                    losses.append(cross_entropy(model(self.images[batch]), self.labels[batch]))
                    sums[rank] += losses[rank].item()
                parts["optimizer"].zero_grad()
                (sum(losses) / 2).backward()
                parts["optimizer"].step()
            parts["scheduler"].step()
            for losses, total in zip(self.losses, sums, strict=True):
                losses[epoch] = total / self.steps
        self.end = {name: value.clone() for name, value in model.state_dict().items()}

    def inputs(self, disk, after=0):
        """For processes that begin after this epoch: those that go on have other weights at first, and the
        epochs before it have images that are NaN."""
        images, labels, orders = self.images, self.labels, self.orders
        if after:
            images = torch.cat([images, torch.full((1, 6), float("nan"))])
            labels = torch.cat([labels, labels[:1]])
            missing = torch.full((self.size * self.steps,), len(images) - 1)
            orders = [[missing] * after + one[after:] for one in orders]
        inputs = {"disk": disk, "images": images, "labels": labels, "size": self.size, "epochs": self.epochs}
        states = [some_state(self.trial) if after else self.state for _ in orders]
        return [inputs | {"state": one, "orders": own} for one, own in zip(states, orders, strict=True)]

    def goes_on_to_its_end(self, disk, after=0):
        trial = self.trial
        for rank, came in enumerate(trial.run("train", self.inputs(disk, after), folder="a")):
            who, losses = f"on rank {rank},", look_at(came, "losses")
            kind = "None" if losses is None else f"something of the type {type(losses).__name__}"
            wanted = "a dict: the number of each epoch, and its loss"
            trial.require(isinstance(losses, dict), f"{who} train returns {kind}", wanted)
            epochs, expected = sorted(losses), list(range(after + 1, self.epochs + 1))
            last = ", although the last one had ended," * (not expected)
            trial.same(f"{who} the list of epochs trained{last}", epochs, expected)
            for epoch in epochs:
                right = self.losses[rank][epoch]
                trial.close(f"{who} the loss of epoch {epoch}", losses[epoch], right, 2e-4, 1.0)
            for name, right in self.end.items():
                trial.close(f"{who} {name} in the end", look_at(came, "state", name), right, 2e-4, 1.0)

    def is_killed(self, disk, epoch):
        """Rank 1 kills itself. Rank 0 fails too, since it cannot go on without its gradients."""
        trial, inputs = self.trial, self.inputs(disk)
        inputs[1]["die_in"] = (epoch - 1) * self.steps + 2
        try:
            trial.run("train", inputs, folder="a", kill={"rank": 1})
        except Verdict:
            if not trial.events(1, "dies"):
                raise
        trial.require(trial.events(1, "dies"), "the training came to its end", f"SIGKILL in epoch {epoch}")


@check("05.3a")
def one_curve(trial):
    training, words = Training(trial), "2 processes train 4 epochs"
    trial.tried(f"{words}, and neither is killed")
    training.goes_on_to_its_end("whole")
    # Also in an epoch after one with an odd number: every second epoch is not every epoch.
    for disk, epoch, before in (("killed", 3, "epochs 1 and 2"), ("early", 2, "epoch 1")):
        died = f"{words}; SIGKILL of rank 1 in the middle of epoch {epoch}"
        trial.tried(died)
        training.is_killed(disk, epoch)
        other = f"different initial weights, and NaN instead of the images of {before}"
        trial.tried(f"{died}; both are started again, with {other}")
        training.goes_on_to_its_end(disk, after=epoch - 1)
    trial.tried("the same, and after the training has ended, both are started once more")
    training.goes_on_to_its_end("early", after=4)
