"""Runs the student's file of exercise 06b in a rank, and ends it in the middle. Says what came of it.

`main` is None in some runs: there is no code of a student then, and what is read from the folder is what lies
there.
"""

import contextlib
import io
import os
import pickle
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path

import numpy
import torch
from folders import end_in_the_next_save, look  # noqa: F401
from torch import nn

# ---- without the student's code ---------------------------------------------------------------


def find(_, inputs, tools):
    """Where these bytes begin in a file; -1 where they are not in it."""
    data = Path(tools.folder, inputs["file"]).read_bytes()
    return [data.find(bytes(content)) for content in inputs["contents"]]


def changed(_, inputs, tools):
    """Which folder this is, and when something was last made or removed in it: nobody can set that back."""
    facts = os.stat(Path(tools.folder, inputs["folder"]))
    return [facts.st_ino, facts.st_ctime_ns]


def change(_, inputs, tools):
    """Make new folders out of others, each with changes of its files."""
    for case in inputs["cases"]:
        to = Path(tools.folder, case["to"])
        if case.get("from"):
            shutil.copytree(Path(tools.folder, case["from"]), to)
        to.mkdir(exist_ok=True)
        for name in case.get("remove", []):
            (to / name).unlink()
        for kind in ("cut", "flip", "zero"):
            for name, how in case.get(kind, {}).items():
                damage(to / name, kind, how)
        for name, content in case.get("write", {}).items():
            (to / name).write_bytes(bytes(content))
        for name, source in case.get("copy", {}).items():
            if Path(tools.folder, source).is_file():
                shutil.copyfile(Path(tools.folder, source), to / name)
        for name, (kind, ran) in case.get("plant", {}).items():
            plant(to / name, kind, str(Path(tools.folder, ran)))
        for name, seconds in case.get("age", {}).items():
            os.utime(to / name, (seconds, seconds))
    return {}


def damage(path, kind, how):
    """This does not change the date of a file: nobody is to find it by that."""
    facts, data = path.stat(), bytearray(path.read_bytes())
    if kind == "cut":
        del data[how:]
    elif kind == "flip":
        for place, bits in how:
            data[place] ^= bits
    else:
        first, size = how
        data[first : first + size] = bytes(size)
    path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


class RunsCode:
    """What is unpickled as the result of a call: it makes a file."""

    def __init__(self, file, call):
        self.result = {
            "own": (eval, (f"open({file!r}, 'w').close()",)),
            "pickle": (os.open, (file, os.O_CREAT | os.O_WRONLY)),
            "torch": (io.open, (file, "w")),
        }[call]

    def __reduce__(self):
        return self.result


def plant(path, kind, file):
    if kind == "other":
        torch.save({"weights": torch.ones(3)}, path)
        return
    content = {"step": 9, "job": {}, "state": {"weights": RunsCode(file, kind)}}
    if kind == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path)


# ---- save and load ----------------------------------------------------------------------------


def tensors(value):
    """Arrays come as numpy's, which has no bfloat16; a state has tensors."""
    if isinstance(value, numpy.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, dict) and value.keys() == {"bfloat16"}:
        return torch.from_numpy(value["bfloat16"]).view(torch.bfloat16)
    if isinstance(value, dict):
        return {key: tensors(item) for key, item in value.items()}
    if isinstance(value, list):
        return [tensors(item) for item in value]
    return value


def arrays(value):
    """What load returns, as it can be sent: the other way round."""
    if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16:
        return {"bfloat16": value.view(torch.int16)}
    if isinstance(value, dict):
        return {key: arrays(item) for key, item in value.items()}
    return [arrays(item) for item in value] if isinstance(value, list | tuple) else value


@contextlib.contextmanager
def noted(tools, words):
    """What is written to stderr comes into the list `words`, and goes where it would have gone. Without what
    torch has to say of a pickle: no solution can help that."""
    path, before = Path(tools.folder, ".said"), os.dup(2)
    with path.open("w+b") as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\.")
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            words.append(file.read(20_000).decode(errors="replace"))
            sys.stderr.write(words[-1])
    path.unlink()


def place(tools, name):
    folder = os.path.join(tools.folder, name)
    os.makedirs(folder, exist_ok=True)
    return folder


def watch_the_disk(student, tools):
    """Tell of each fsync and each rename, in their order."""

    def watched(name):
        call = getattr(os, name)

        def flushed(descriptor):
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            facts = os.fstat(number)
            call(descriptor)
            tools.event("fsync", inode=facts.st_ino, size=facts.st_size)

        setattr(os, name, flushed)
        for key, value in list(vars(student).items()):
            if value is call:
                setattr(student, key, flushed)

    def hook(event, arguments):
        if event in ("os.rename", "os.link"):
            names = [os.path.basename(os.fsdecode(name)) for name in arguments[:2]]
            if names[0] != names[1]:
                tools.event("rename", to=names[1])

    for name in ("fsync", "fdatasync"):
        if hasattr(os, name):
            watched(name)
    sys.addaudithook(hook)


def save(student, inputs, tools):
    """Some saves, one after the other. `events` has the disk watched in the last."""
    for number, one in enumerate(inputs["saves"], 1):
        if inputs.get("events") and number == len(inputs["saves"]):
            watch_the_disk(student, tools)
        student.save(place(tools, one["folder"]), one["step"], one["job"], tensors(one["state"]))
    return {}


def save_hostile(student, inputs, tools):
    """The student's own save, given an object that runs code when it is unpickled."""
    folder = place(tools, inputs["folder"])
    state = {"weights": RunsCode(str(Path(tools.folder, inputs["ran"])), "own")}
    try:
        student.save(folder, inputs["step"], inputs["job"], state)
    except NotImplementedError:
        raise
    except Exception:
        return {"saved": False}
    return {"saved": True}


def save_and_die(student, inputs, tools):
    """Copies a folder, saves there once more, and is ended at a file event, or by the kernel when a file
    becomes larger than it may."""
    student.save(place(tools, "to-import-all"), 1, inputs["job"], tensors(inputs["state"]))
    folder = os.path.join(tools.folder, inputs["to"])
    shutil.copytree(os.path.join(tools.folder, inputs["from"]), folder)
    state = tensors(inputs["state"])
    end_in_the_next_save(inputs, tools)
    student.save(folder, inputs["step"], inputs["job"], state)
    return {}


def save_for_ever(student, inputs, tools):
    """Saves until it is killed from outside."""
    folder, state = place(tools, inputs["folder"]), tensors(inputs["state"])
    end, step = time.monotonic() + inputs["seconds"], 0
    while time.monotonic() < end:
        step += 1
        student.save(folder, step, inputs["job"], state)
        tools.event("saved", step=step)
    return {}


def load(student, inputs, tools):
    """What load returns for each folder, and what it says on stderr."""
    found, words = [], []
    for name in inputs["folders"]:
        with noted(tools, words):
            found.append(arrays(student.load(place(tools, name), inputs["job"])))
    return {"came": found, "said": words}


# ---- in the middle of an epoch ----------------------------------------------------------------


class Model(nn.Module):
    """Dropout draws random numbers, batch norm has buffers. On wish, a step that it does not survive."""

    def __init__(self, weights, die_in=None):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8, eps=0.1)
        self.dropout = nn.Dropout(0.4)
        self.second = nn.Linear(8, 3)
        self.step, self.die_in = 0, die_in
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(torch.as_tensor(weights[name]))

    def forward(self, images):
        self.step += 1
        if self.step == self.die_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.second(self.dropout(self.norm(self.first(images)).tanh()))


def optimizer_of(model, lr=0.1, momentum=0.9):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, nesterov=momentum < 0.9)


def batches(student, inputs, tools):
    before, found = torch.get_rng_state(), []
    for one in inputs["cases"]:
        found.append(list(student.batches_from(one["step"], one["count"], one["job"])))
    kinds = {type(batch).__name__ for some in found for batch in some}
    return {"batches": found, "kinds": sorted(kinds), "untouched": before.equal(torch.get_rng_state())}


def train(student, inputs, tools):
    """One process of a training: from its beginning, or going on, to its end, or to a kill."""
    torch.manual_seed(inputs["random"])
    model = Model(inputs["weights"], inputs.get("die_in"))
    optimizer = optimizer_of(model, inputs["lr"], inputs["momentum"])
    images, labels = tensors(inputs["images"]), tensors(inputs["labels"])
    folder = place(tools, "snapshots")
    if inputs.get("at"):
        # Or what torch imports at the first step and the first save would be counted as well.
        random = torch.get_rng_state()
        spare = Model(inputs["weights"])
        spare(images[:2]).sum().backward()
        optimizer_of(spare).step()
        student.save(place(tools, "to-import-all"), 1, inputs["job"], {})
        student.load(place(tools, "to-import-all"), inputs["job"])
        torch.set_rng_state(random)
        tools.count_file_events(kill_at=inputs["at"])
    losses = student.train(folder, inputs["job"], model, optimizer, images, labels)
    memory = {name: optimizer.state.get(p, {}).get("momentum_buffer") for name, p in model.named_parameters()}
    weights = dict(model.state_dict())
    return {"losses": losses, "model": weights, "momentum": memory, "random": torch.rand(8)}


# ---- several processes ------------------------------------------------------------------------


def together(student, inputs, tools):
    """Saves of all ranks, each with a disk of its own. The disk of rank 0 is slow, or a rank that does not
    wait for it would not be found out."""
    disk, disk_0 = (place(tools, f"{inputs['disk']}-{rank}") for rank in (tools.rank, 0))
    flush = os.fsync

    def slow(descriptor):
        time.sleep(0.05)
        return flush(descriptor)

    os.fsync = slow
    there = []
    for one in inputs["saves"]:
        student.save_together(disk, one["step"], inputs["job"], tensors(one["state"]))
        there.append(os.path.exists(os.path.join(disk_0, f"step-{one['step']:08}.snapshot")))
    return {"there": there}


def load_together(student, inputs, tools):
    disk = os.path.join(tools.folder, f"{inputs['disk']}-{tools.rank}")  # which need not exist
    return {"came": arrays(student.load_together(disk, inputs["job"]))}
