"""Exercise 06b: snapshots that survive a kill at any moment.

| axis | checked in |
| --- | --- |
| world size | 4a: 1 to 3 processes; 4b: 4; the others: 1 |
| what a state is | 2a: a list, nested dicts, None, keys that are numbers; 4a: another size on each rank |
| dtype | 2a: float64, bfloat16, int16, bool, int64; 1b: uint8 |
| sizes | 2a: an empty tensor, a single number; 3a: a smaller last batch, a batch larger than the data |
| damages | 2b: cut, bits, zeros, bytes in another order |
| calls | 1a: six saves; 2a, 1c: one step twice; 2e: two saves after a load; 3c: several kills |
| names of files | 1a, 1c, 2a, 2e: others' files, step-old.snapshot, refused ones; a folder with a [ |
| dates of files | 2a to 2e: the newest step has the oldest date |
| seeds | 3a: 0; the epoch's number is added to it |
| options of the optimizer | 3b: others than the ones with which it was made |
| train or eval, memory layout, frozen, tied | what state_dict() has: torch.save keeps it |
"""

import contextlib
import io
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import warnings

import pytest
import torch
from disks import file_events, read_folders
from grader.testing import close, floats, integers, require, run, same, so_many, tried
from optimizers import Optimizer
from torch import nn
from torch.nn.functional import cross_entropy

NUMBERED = {0: 0.5, 7: None}  # keys that are numbers
MOST_EVENTS = 40


# ---- what runs in each rank


def write(student, me, folders):
    """Files of these contents; the first by name gets the newest date. None is a file that nobody may read.
    Runs without the student's code."""
    for folder, files in folders.items():
        (me.disk / folder).mkdir(exist_ok=True)
        for age, (name, content) in enumerate(sorted(files.items())):
            path = me.disk / folder / name
            path.write_bytes(b"unknown" if content is None else content.numpy().tobytes())
            path.chmod(0 if content is None else 0o644)
            os.utime(path, (2_000_000_000 - age, 2_000_000_000 - age))


def place(me, name):
    os.makedirs(me.disk / name, exist_ok=True)
    return str(me.disk / name)


def leaves(value, place=""):
    """Tensors, numbers, words and None in nested dicts and lists, each with its place: ['more'][0]."""
    if not isinstance(value, dict | list | tuple):
        return {place: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = {}
    for key, item in items:
        found |= leaves(item, f"{place}[{key!r}]")
    return found


def answer_of_load(came):
    """The step and the leaves of the state; words if load has returned anything else."""
    if isinstance(came, list | tuple) and len(came) == 2:
        return [came[0], leaves(came[1])]
    return " ".join(f"{came!r:.80}".split())


def watch_fsync(student, path):
    """What is flushed from now on: inode, size, and whether the snapshot has its name by then."""
    found = []
    for name in {"fsync", "fdatasync"} & {*dir(os)}:
        call = getattr(os, name)

        def flushed(descriptor, call=call):
            facts = os.fstat(descriptor if isinstance(descriptor, int) else descriptor.fileno())
            call(descriptor)
            found.append({"inode": facts.st_ino, "size": facts.st_size, "is_late": path.exists()})

        setattr(os, name, flushed)
        for key, value in list(vars(student).items()):
            if value is call:
                setattr(student, key, flushed)
    return found


def whole_state(one):
    """The state of a save. Keys that are numbers cannot be sent to a rank, so they are added here."""
    if one["numbered"]:
        return one["state"] | {"numbered": NUMBERED}
    return one["state"]


def save(student, me, saves):
    """Some saves, one after the other. Returns what the last one has flushed to the disk."""
    flushed = []
    for number, one in enumerate(saves, start=1):
        folder = place(me, one["folder"])
        path = me.disk / one["folder"] / f"step-{one['step']:08}.snapshot"
        if number == len(saves):
            flushed = watch_fsync(student, path)
        student.save(folder, one["step"], one["job"], whole_state(one))
    return list(flushed)


class RunsCode:
    """What is unpickled as the result of a call: it makes a file. The current folder is me.disk."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return io.open, (self.file, "w")


def save_hostile(student, me, given):
    """The student's own save, given an object that runs code when it is unpickled. It may refuse that."""
    with contextlib.suppress(Exception):
        student.save(place(me, "own"), 21, given, {"weights": RunsCode("ran/step-00000021.snapshot")})


def save_and_die(student, me, given):
    """Copy a folder and save there. Returns the file events of the save, if it comes to its end."""
    student.save(place(me, f"to-import-all-{me.rank}"), 1, given["job"], given["state"])
    folder = str(me.disk / given["to"])
    shutil.copytree(me.disk / "before", folder)
    events = file_events(given.get("at"), given.get("largest"))
    student.save(folder, given["step"], given["job"], given["state"])
    return [*events]


def load(student, me, given):
    """What load returns for each folder, and what it writes to stderr, but for torch's own warnings."""
    found = []
    before = os.dup(2)
    for name in given["folders"]:
        with tempfile.TemporaryFile(dir=me.disk) as file, warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\.")
            os.dup2(file.fileno(), 2)
            try:
                came = student.load(place(me, name), given["job"])
            finally:
                sys.stderr.flush()
                os.dup2(before, 2)
                file.seek(0)
                said = file.read(20_000).decode(errors="replace")
                sys.stderr.write(said)
        found.append([answer_of_load(came), said])
    return found


class Model(nn.Module):
    """Dropout draws random numbers, batch norm has buffers. On wish, a step that it does not survive."""

    def __init__(self, weights, die_in=None):
        super().__init__()
        # A batch norm that never divides by almost nothing: twelve steps blow up a rounding error.
        self.first = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8, eps=0.1)
        self.dropout = nn.Dropout(0.4)
        self.second = nn.Linear(8, 3)
        self.step = 0
        self.die_in = die_in
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(weights[name])

    def forward(self, images):
        self.step += 1
        if self.step == self.die_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.second(self.dropout(self.norm(self.first(images)).tanh()))


def batches(student, me, cases):
    before = torch.get_rng_state()
    found = []
    kinds = set()
    for one in cases:
        some = list(student.batches_from(one["step"], one["count"], one["job"]))
        found.append(some)
        for batch in some:
            kinds.add(type(batch).__name__)
    return {"batches": found, "kinds": sorted(kinds), "untouched": before.equal(torch.get_rng_state())}


def train(student, me, given):
    """One process of a training: from its beginning, or going on, to its end, or to a kill."""
    torch.manual_seed(given["random"])
    model = Model(given["weights"], given.get("die_in"))
    optimizer = torch.optim.SGD(model.parameters(), lr=given["lr"], momentum=given["momentum"])
    if given.get("at"):
        # Or what torch imports at the first save and the first load would be counted as well.
        random_state = torch.get_rng_state()
        student.save(place(me, "to-import-all"), 1, given["job"], {})
        student.load(place(me, "to-import-all"), given["job"])
        torch.set_rng_state(random_state)
        file_events(given["at"])
    folder = place(me, given["folder"])
    losses = student.train(folder, given["job"], model, optimizer, given["images"], given["labels"])
    memory = {}
    for name, parameter in model.named_parameters():
        memory[name] = optimizer.state.get(parameter, {}).get("momentum_buffer")
    # A dict that a rank sends has words for keys, and these are numbers.
    if isinstance(losses, dict):
        losses = [list(one) for one in losses.items()]
    return {"losses": losses, "model": dict(model.state_dict()), "momentum": memory, "random": torch.rand(8)}


def save_together(student, me, given):
    """Saves of all ranks, each with a disk of its own. The disk of rank 0 is slow, or a rank that does not
    wait for it would not be found out."""
    disk = place(me, f"{given['disk']}-{me.rank}")
    there = []
    flush = os.fsync

    def slow(descriptor):
        time.sleep(0.05)
        return flush(descriptor)

    os.fsync = slow
    for one in given["saves"]:
        student.save_together(disk, one["step"], one["job"], one["state"])
        there.append((me.disk / f"{given['disk']}-0" / f"step-{one['step']:08}.snapshot").exists())
    return there


def load_together(student, me, given):
    disk = str(me.disk / f"{given['disk']}-{me.rank}")  # which need not exist
    return answer_of_load(student.load_together(disk, given["job"]))


# ---- what is drawn, and what is right


def name_of(step):
    return f"step-{step:08}.snapshot"


def a_number(high=10**6):
    return int(integers(1, high, 1))


def a_job():
    return {"name": f"job {a_number()}", "lr": 0.1, "seed": a_number()}


def a_state():
    """Small: a file that is written at once and not flushed is still in Python's memory then."""
    return {
        "weights": floats(3, 4),
        "counts": integers(-(1 << 40), 1 << 40, 5),
        "more": [{"momentum": None, "bytes": integers(0, 256, 6).byte()}, "word", 0.25],
        "number": a_number(1 << 40),
    }


def other_kinds():
    """Tensors of other kinds: not all ways to write down a state keep them."""
    return {
        "bfloat16": floats(4).bfloat16(),
        "double": floats(2, 2).double() / 3,
        "int16": integers(0, 1 << 14, 4).short(),
        "yes or no": integers(0, 2, 7).bool(),
        "one number": floats(1)[0],
        "none": floats(0, 3),
    }


def saves(folder, job, *steps, numbered=False):
    found = []
    for step in steps:
        found.append({"folder": folder, "job": job, "numbered": numbered, "step": step, "state": a_state()})
    return found


def listed(names):
    return ", ".join(sorted(names)) or "nothing"


def look_into(*folders):
    """Name and content of each file, by a run without the student's code. A folder in it is None."""
    (found,) = run(read_folders, [folders], group=False, student=False, disk=True)
    contents = []
    for files in found.values():
        of_folder = {}
        for name, file in files.items():
            data = file["bytes"]
            of_folder[name] = None if data is None else data.numpy().tobytes()
        contents.append(of_folder)
    return contents


def put(folders):
    """Files into folders, new or old."""
    run(write, [folders], group=False, student=False, disk=True)


def one(body, given, **more):
    """A run of one process with the student's code, but without a process group."""
    return run(body, [given], group=False, disk=True, **more)[0]


def load_all(job, *folders):
    """For each folder, what load returns there, and what it writes to stderr."""
    return one(load, {"folders": folders, "job": job})


def loaded(where, came, expected, name="load"):
    """`came` is what load returned, `expected` a save or None."""
    words = came if isinstance(came, str) else f"step {came[0]!r:.30} and its state"
    if expected is None:
        require(came == "None", f"{where} {name} returns {words}", "None")
        return
    step = expected["step"]
    require(words != came, f"{where} {name} returns {words}", f"(step, state) of {name_of(step)}")
    same(f"{where} the step that {name} returns", came[0], step)
    parts = leaves(whole_state(expected))
    what = f"{where} the state of step {step} that {name} returns"
    same(f"{what}: the list of its parts", sorted(came[1]), sorted(parts))
    for at, right in parts.items():
        if isinstance(right, torch.Tensor):
            close(f"{what}: {at}", came[1][at], right, relative=0, dtype=right.dtype)
        else:
            same(f"{what}: {at}", came[1][at], right)


# Words that say nothing about why a file was refused.
SAY_NOTHING = {"refused", "refusing", "skipped", "skipping", "the", "is", "was", "file", "snapshot", "and"}
SAY_NOTHING |= {"trying", "try", "tries", "using", "one", "before", "previous", "older", "next"}


def refused_aloud(said, *names):
    """In one line for each of these files, which has its name and a reason. Returns the reasons."""
    lines = []
    for line in said.splitlines():
        if line.strip():
            lines.append(line)
    reasons = []
    for name in names:
        mine = [line for line in lines if name in line]
        require(mine, f"no line on stderr contains {name}", f"a line that says that {name} is refused")
        reason = " ".join(word for word in mine[0].split() if name not in word)
        words = set(re.findall(r"[^\W\d_]+", reason.lower()))  # of any language
        says_why = words - SAY_NOTHING
        require(says_why, f"the line on stderr is {mine[0]!r:.100}", "the file's name and the reason")
        reasons.append(reason)
    shown = " / ".join(line.strip()[:60] for line in lines[:4])
    are = "is" if len(lines) == 1 else "are"
    came = f"on stderr there {are} {so_many(len(lines), 'line')}: {shown}"
    require(len(lines) == len(names), came, "one line for each refused file, in your own words")
    return reasons


def check_refused(job, mine, files, expected):
    """load refuses each of these files beside `mine`, and returns what is expected. `files`: words for each
    file, its name and its content. Returns the reasons."""
    # Any other word on stderr counts as a reason: the folder's name is not to have one.
    folders = {}
    for _, name, content in files:
        folders[f"with-{name}"] = mine | {name: content}
    put(folders | {"ran": {}})
    found = load_all(job, *folders)
    (ran,) = look_into("ran")
    require(not ran, f"load has run the code in {listed(ran)}", "no code from a file is run")
    reasons = []
    for (words, name, _), (came, said) in zip(files, found, strict=True):
        tried(f"steps 1 and 2, and {name}: {words}")
        loaded(f"beside {words},", came, expected)
        reasons += refused_aloud(said, name)
    return reasons


# ---- save


def test_1a_two_newest_snapshots():
    last = 12_345_678
    steps = (1, 9, 10, last, last, 5)
    left = [[1], [1, 9], [9, 10], [10, last], [10, last], [10, last]]  # after each save
    folders = [f"{number} saves" for number in range(1, 6)] + ["6 saves [some not mine]"]
    others = ["notes.txt", "best.snapshot", "snapshot.tmp", "temporary", "tmp", "notes~", ".part"]
    others += ["best.temporary", f"{name_of(3)}.refused", f"{name_of(3)}.2.refused", f"old-{name_of(7)}"]
    old = "step-old.snapshot"  # a file that may go or stay
    put({folders[-1]: dict.fromkeys([*others, old], b"mine")})
    job = a_job()
    tried(f"saves after the steps {', '.join(map(str, steps))}, in this order")
    given = []
    for count, folder in enumerate(folders, 1):
        given += saves(folder, job, *steps[:count])
    one(save, given)
    for number, files in enumerate(look_into(*folders)):
        words = f"saves after the steps {', '.join(map(str, steps[: number + 1]))}"
        tried(f"{words}, in this order")
        what = "the list of files in the folder"
        new = set(files)
        if folders[number] == folders[-1]:
            tried(f"{words}, in a folder with {listed(others)}")
            for name in others:
                is_mine = files.get(name) == b"mine"
                require(is_mine, f"{name} is gone or was overwritten", "the file is left alone")
            what += " beside notes.txt and the others"
            new -= {*others, old}
        expected = sorted(map(name_of, left[number]))
        same(what, sorted(new), expected)


def test_1b_on_the_disk_before_it_gets_its_name():
    """Two saves; each fsync in the second save is recorded"""
    name = name_of(2)
    flushed = one(save, saves("snapshots", a_job(), 1, 2))
    (files,) = run(read_folders, [["snapshots"]], group=False, student=False, disk=True)
    there = files["snapshots"][name]
    require(flushed, "os.fsync was not called", "a call on the file, before the file gets its name")
    mine = [call for call in flushed if call["inode"] == there["inode"]]
    came = f"the file that is now {name} is not the file on which os.fsync was called"
    require(mine, came, "the same file: renamed, not copied")
    early = []  # how many bytes the file had each time, before it got its name
    for call in mine:
        if not call["is_late"]:
            early.append(call["size"])
    came = f"when os.fsync was called, there already was a file with the name {name}"
    require(early, came, "a different name first, then os.fsync, then a rename")
    came = f"at the os.fsync the file had {early[-1]} bytes, and at the end {there['size']}"
    all_bytes = "all bytes: bytes that are still in Python's memory are not on the disk"
    require(there["size"] in early, came, all_bytes)


# ---- load


def test_2a_the_newest_exactly():
    """load in a folder without snapshots, and after saves of steps 99, 100, and 100 again with another state;
    the file of step 99 has the later date"""
    job = a_job()
    given = [*saves("snapshots", job, 99), *saves("snapshots", job, 100, 100, numbered=True)]
    given[0]["state"] = [floats(3, 4), {"more": [None, "word"]}, 0.5]  # a state need not be a dict
    given[2]["state"] |= other_kinds()
    zero = saves("zero", job, 0)
    one(save, given + zero)
    (there,) = look_into("snapshots")
    same("the list of files after these saves", sorted(there), [name_of(99), name_of(100)])
    same("the list of everything beside the folder", sorted(look_into(".")[0]), ["snapshots", "zero"])
    other = {"notes.txt": b"step-00000500.snapshot", f"{name_of(400)}.refused": b"not for load"}
    other |= {"best.snapshot": b"neither is this", f"old-{name_of(7)}": b"nor this"}
    put({"others": other, "one": {name_of(99): there[name_of(99)]}, "both [old]": there | other})
    turned = dict(reversed(job.items()))
    found = load_all(turned, "others", "one", "both [old]", "zero")
    none, of_one, of_both, of_zero = [came for came, _ in found]
    loaded(f"in a folder with {listed(other)},", none, None)
    loaded(f"with only {name_of(99)},", of_one, given[0])
    loaded(f"with {name_of(99)} and {name_of(100)} in one folder,", of_both, given[2])
    loaded(f"with only {name_of(0)},", of_zero, zero[0])
    others, both = look_into("others", "both [old]")
    same("the list of files in the folder without snapshots afterwards", sorted(others), sorted(other))
    same("the list of files in the folder afterwards", sorted(both), sorted({*there, *other}))


def check_names(files, step):
    """After a kill in a save of this step, two snapshots or more are there, and perhaps a temporary file."""
    names = set()
    foreign = []
    for name in files:
        if re.fullmatch(r"step-\d{8}\.snapshot", name):
            names.add(name)
        if not name.startswith("step-"):
            foreign.append(name)
    came = f"afterwards the folder has a file called {listed(foreign)}"
    why = "any other name may belong to somebody else's file"
    require(not foreign, came, f"a temporary file whose name begins with step-: {why}")

    may_be = {name_of(1), name_of(2), name_of(step)}
    came = f"afterwards the folder has {listed(names)}"
    require(len(names) >= 2 and names <= may_be, came, f"two or more of {listed(may_be)}")


def test_1c_a_kill_at_any_moment():
    """Saves of steps 1, 2 and 3, none killed"""
    job = a_job()
    state = a_state()
    given = saves("before", job, 1, 2)
    one(save, given)
    common = {"job": job, "state": state}
    events = {}
    for step in (3, 2):
        whole = common | {"step": step, "to": f"whole-{step}"}
        events[step] = one(save_and_die, whole)[:MOST_EVENTS]
    before, whole = look_into("before", "whole-3")
    came = "save has opened no file with open(), and renamed and removed none: there was no moment to kill it"
    require(events[3], came, "a temporary file that you open and write yourself, and then a rename")

    size = len(whole[name_of(3)])
    jobs = {}  # words, and what differs between the saves
    for step, moments in events.items():
        saved = "step 2 again" if step == 2 else "step 3"
        for at, event in enumerate(moments, 1):
            jobs[f"SIGKILL just before a save of {saved} {event}"] = {"step": step, "at": at}
    cut = f"a save of step 3 that ends after writing {size // 2} of {size} bytes"
    jobs[cut] = {"step": 3, "largest": size // 2}
    folders = []
    inputs = []
    for number, how in enumerate(jobs.values()):
        folders.append(f"killed-{number}")
        inputs.append(common | how | {"to": f"killed-{number}"})
    tried("SIGKILL in saves of step 3, and of step 2 again")
    ended = run(save_and_die, inputs, group=False, disk=True, dies=range(len(inputs)))
    tried(cut)
    wanted = "all bytes written (os.write may write less than it is given, and returns how much)"
    require(ended[-1] is None, "save returned as if it had written everything", wanted)

    there = look_into(*folders)
    expected = []
    for (words, how), files in zip(jobs.items(), there, strict=True):
        tried(words)
        check_names(files, how["step"])
        is_old = name_of(3) not in files
        if how["step"] == 2:
            is_old = files[name_of(2)] == before[name_of(2)]
        newest = given[1] if is_old else given[1] | {"step": how["step"], "state": state}
        expected.append(newest)

    tried("load in each folder in which a save was killed")
    for words, (came, _), right in zip(jobs, load_all(job, *folders), expected, strict=True):
        tried(f"{words}; then load in another process")
        loaded("afterwards", came, right)
    tried("one more save in each folder in which a save was killed")
    more = []
    for folder in folders:
        more += saves(folder, job, 4)
    one(save, more)
    for words, files in zip(jobs, look_into(*folders), strict=True):
        is_tidy = name_of(4) in files and len(files) == 2 and name_of(1) not in files
        came = f"after {words} and one more save, of step 4, the folder has {listed(files)}"
        require(is_tidy, came, "the two newest snapshots")


def prepare(*others):
    """Steps 1 and 2 in `snapshots`, and other jobs' steps in folders of their names. Returns job, saves, and
    the files of all folders."""
    job = a_job()
    given = saves("snapshots", job, 1, 2)
    folders = ["snapshots"]
    more = []
    for folder, step, change in others:
        folders.append(folder)
        more += saves(folder, change(job), step)
    one(save, [*given, *more])
    return job, given, look_into(*folders)


def test_2b_cut_or_damaged():
    """Steps 1 and 2, with the snapshot of step 2 cut short anywhere, or with damaged bytes"""
    job, given, (files,) = prepare()
    first, data = files[name_of(1)], files[name_of(2)]
    size = len(data)
    damaged = {}  # words, and what is left of the file
    for cut in sorted({0, 1, 8, size - 1, *integers(0, size, 10).tolist()}):
        damaged[f"of which {cut or 'no'} of {size} bytes are left"] = data[:cut]
    # Most other bytes of a small file are torch's own: without this, many draws would hit no number at all.
    content = given[1]["state"]["weights"].numpy().tobytes()
    at = data.find(content)
    if at >= 0:
        turned = content[24:] + content[:24]
        damaged["of which two halves of a tensor are exchanged"] = data[:at] + turned + data[at + 48 :]
    places = {*range(16), *range(size - 16, size), *integers(0, size, 30).tolist(), at + a_number(48)}
    for at in sorted(places):
        flipped = bytes([data[at] ^ 1 << a_number(8)])
        words = f"of which byte {at + 1} of {size} has a different bit"
        damaged[words] = data[:at] + flipped + data[at + 1 :]
    damaged[f"of which the second half of {size} bytes is zero"] = data[: size // 2] + bytes(size - size // 2)

    cases = []
    for content in (data[: size // 2], *damaged.values()):
        cases.append({name_of(1): first, name_of(2): content})
    cases.append({name_of(1): first[: size // 2], name_of(2): data[: size // 3]})
    folders = {}
    for number, case in enumerate(cases):
        folders[str(number)] = case
    put(folders)
    of_half, *of_damaged, of_two_cut = load_all(job, *folders)

    came, said = of_half
    loaded("with the newest snapshot cut in the middle,", came, given[0])
    refused_aloud(said, name_of(2))
    came, said = of_two_cut
    loaded("if both snapshots are cut,", came, None)
    refused_aloud(said, name_of(2), name_of(1))
    for what, (came, _) in zip(damaged, of_damaged, strict=True):
        # A byte may be damaged that means nothing: then it is no fault to take the file.
        is_harmless = "left" not in what and isinstance(came, list) and came[:1] == [2]
        expected = given[1] if is_harmless else given[0]
        loaded(f"with {name_of(2)}, {what},", came, expected)


def test_2c_foreign_snapshots():
    others = (
        ("a snapshot of a job with another seed", 11, lambda job: job | {"seed": job["seed"] + 1}),
        ("a snapshot of a job with one more setting", 12, lambda job: job | {"epochs": 3}),
        ("a snapshot of a job with one setting less", 13, lambda job: {"name": job["name"]}),
        ("a snapshot of a job with another name", 14, lambda job: job | {"name": "another"}),
        ("a snapshot of a job whose seed is a string", 15, lambda job: job | {"seed": str(job["seed"])}),
    )
    buffer = io.BytesIO()
    torch.save({"weights": torch.ones(3)}, buffer)
    tried("steps 1 and 2, and newer files that are not snapshots of this job")
    job, given, (mine, *theirs) = prepare(*others)
    files = []
    for (words, step, _), there in zip(others, theirs, strict=True):
        files.append((words, name_of(step), there[name_of(step)]))
    files.append(("a text", name_of(21), b"step 7 of my other program\n" * 40))
    files.append(("a tensor in a file of torch.save", name_of(22), buffer.getvalue()))
    files.append(("a file that the system refuses to read", name_of(23), None))
    reasons = check_refused(job, mine, files, given[1])
    put({"both": mine | theirs[0] | theirs[1]})
    tried("steps 1 and 2, and steps 11 and 12 of other jobs")
    ((came, said),) = load_all(job, "both")
    loaded("beside two files that must be refused,", came, given[1])
    refused_aloud(said, name_of(11), name_of(12))
    came = f"load prints the same for a text and for another job's snapshot: {reasons[0].strip()!r:.80}"
    require(reasons[0] != reasons[len(others)], came, "two different reasons")


def test_2d_no_code_is_run():
    tried("your own save, with a state that contains an object which runs code when it is loaded")
    job, given, (mine,) = prepare()
    one(save_hostile, job)
    own = look_into("own")[0].get(name_of(21))
    buffer = io.BytesIO()
    torch.save({"step": 9, "job": {}, "state": {"weights": RunsCode(f"ran/{name_of(22)}")}}, buffer)
    files = [("a file of torch.save that runs code when it is loaded", name_of(22), buffer.getvalue())]
    if own is not None:
        files.append(("a file by your own save that runs code when it is loaded", name_of(21), own))
    tried("steps 1 and 2, and a newer file that runs code when it is loaded")
    check_refused(job, mine, files, given[1])


def without_old(files):
    """Names of files, but for step-old.snapshot and what load may have made of it."""
    return sorted(name for name in files if not name.startswith("step-old"))


def test_2e_another_name():
    job, given, (mine, theirs) = prepare(("another job", 7, lambda job: job | {"lr": 0.2}))
    seven = name_of(7)
    first, second, third = f"{seven}.refused", f"{seven}.2.refused", f"{seven}.3.refused"
    cases = {  # for each folder, names that are taken, and the one that the refused file should get
        "none": ([], first),
        "gap": ([first, third], second),
        "two": ([first, second], third),
    }
    old = {"step-old.snapshot": b"no snapshot of any step"}  # load may refuse it, too
    folders = {}
    for folder, (taken, _) in cases.items():
        folders[folder] = mine | theirs | old | dict.fromkeys(taken, b"old")
    put(folders)
    tried("steps 1 and 2, and another job's step 7; load")
    found = load_all(job, *cases)
    for (taken, new), (came, _), files in zip(cases.values(), found, look_into(*cases), strict=True):
        tried(f"steps 1 and 2, another job's step 7, and {listed(taken)}; load")
        loaded("then", came, given[1])
        changed = [name for name in taken if files.get(name) != b"old"]
        wanted = "a name that is free: a refused file may still matter to somebody"
        require(not changed, f"{listed(changed)} was overwritten", wanted)
        same("the list of files afterwards", without_old(files), sorted([*mine, *taken, new]))
        require(files[new] == theirs[seven], f"the content of {new} has changed", "the other job's snapshot")

    tried("steps 1 and 2, and another job's step 7; load, then saves of steps 3 and 4")
    one(save, saves("none", job, 3, 4))
    (files,) = look_into("none")
    same("the list of files", without_old(files), [name_of(3), name_of(4), first])


# ---- in the middle of an epoch


def batches_of(count, job):
    found = []
    for epoch in range(job["epochs"]):
        generator = torch.Generator().manual_seed(job["seed"] + epoch)
        found += torch.randperm(count, generator=generator).split(job["batch_size"])
    return found


def test_3a_the_batches_that_are_left():
    cases = []
    for count, size, epochs, seed in ((12, 4, 2, 0), (17, 5, 3, a_number()), (3, 8, 2, a_number())):
        job = {"epochs": epochs, "batch_size": size, "seed": seed, "every": 2}
        steps = epochs * -(-count // size)
        for step in sorted({0, a_number(steps), steps - 1, steps}):
            cases.append({"step": step, "count": count, "job": job})
    tried(f"the remaining batches, {len(cases)} times")
    came = one(batches, cases)
    for case, got in zip(cases, came["batches"], strict=True):
        job, step = case["job"], case["step"]
        expected = batches_of(case["count"], job)[step:]
        of = f"{case['count']} images in batches of {job['batch_size']}"
        tried(f"{of}, {job['epochs']} epochs, after {step} steps")
        same("the number of batches", len(got), len(expected))
        for number, batch in enumerate(expected):
            same(f"the batch of step {step + number + 1}", got[number], batch)
    same("the list of types of the batches", came["kinds"], ["Tensor"])
    same("whether torch's own random numbers were left alone", came["untouched"], True)


SHAPES = {"first.weight": (8, 6), "first.bias": (8,), "norm.weight": (8,), "norm.bias": (8,)}
SHAPES |= {"second.weight": (3, 8), "second.bias": (3,)}


def some_weights():
    weights = {}
    for name, shape in SHAPES.items():
        weights[name] = floats(*shape)
    return weights


class Training:
    """12 steps in one process, without a snapshot: what all others must come to."""

    def __init__(self):
        # 22 images: 6 steps in an epoch, the last with 2 images.
        self.job = {"epochs": 2, "batch_size": 4, "every": 2, "seed": a_number()}
        self.images = floats(22, 6)
        self.labels = integers(0, 3, 22)
        self.batches = batches_of(22, self.job)
        self.random = a_number()
        self.weights = some_weights()
        self.losses = {}
        with torch.random.fork_rng():
            torch.manual_seed(self.random)
            model = Model(self.weights)
            optimizer = Optimizer("SGD", model.parameters(), {"lr": 0.1, "momentum": 0.9})
            for step, batch in enumerate(self.batches, 1):
                loss = cross_entropy(model(self.images[batch]), self.labels[batch])
                self.losses[step] = loss.item()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            self.next_random = torch.rand(8)
        memory = [state["moving"] for state in optimizer.states]
        self.momentum = dict(zip(SHAPES, memory, strict=True))
        self.state = model.state_dict()

    def job_after(self, step, **more):
        """For a process that goes on after a step: it gets other weights, options, and random numbers."""
        given = {"job": self.job, "images": self.images, "labels": self.labels, "folder": "snapshots"}
        # Other weights are drawn also for step 0, or all that is drawn later would change.
        other = {"weights": some_weights(), "random": self.random + step, "lr": 0.5, "momentum": 0.2}
        if step == 0:
            other = {"weights": self.weights, "random": self.random, "lr": 0.1, "momentum": 0.9}
        return given | other | more

    def newest(self):
        """The step of the newest snapshot, 0 if there is none."""
        (there,) = look_into("snapshots")
        newest = 0
        for step in range(1, len(self.batches) + 1):
            if name_of(step) in there:
                newest = step
        return newest

    def ends_as_it_must(self, came, after):
        losses = dict(came["losses"])
        steps = list(range(after + 1, len(self.batches) + 1))
        same("the steps that were taken", sorted(losses), steps)
        for step in steps:
            close(f"the loss of step {step}", losses[step], self.losses[step], relative=2e-4, scale=1.0)
        for name, right in self.state.items():
            close(f"{name} in the end", came["model"].get(name), right, relative=2e-4, scale=1.0)
        for name, right in self.momentum.items():
            what = f"the momentum of {name} in the end"
            close(what, came["momentum"].get(name), right, relative=2e-4, scale=1.0)
        close("the next random numbers", came["random"], self.next_random)


def test_3b_one_curve():
    training = Training()
    tried("a run of 12 steps, two epochs, that is not killed")
    training.ends_as_it_must(one(train, training.job_after(0, folder="whole")), 0)
    tried("12 steps, two epochs, a snapshot every 2 steps; SIGKILL in step 10")
    ended = one(train, training.job_after(0, die_in=10), dies=[0])
    require(ended is None, "the run ran to its end", "SIGKILL in the forward of step 10")
    same("the step of the newest snapshot", training.newest(), 8)
    tried(
        "12 steps, two epochs; SIGKILL in step 10; another process continues from step 8, with different "
        "initial weights and random numbers, and NaN in all images that the second epoch already used"
    )
    images = training.images.clone()
    images[torch.cat(training.batches[6:8])] = float("nan")
    training.ends_as_it_must(one(train, training.job_after(8, images=images)), 8)


def test_3c_several_kills():
    training = Training()
    after = 0
    for number, kind in enumerate(("file", "step", "file", "step"), 1):
        at = 1 + a_number(8)
        when = f"at its file event {at}" if kind == "file" else "in its fourth step"
        words = f"process {number} begins after step {after}; SIGKILL {when}"
        tried(f"12 steps, a snapshot every 2 steps, several kills; {words}")
        end = {"at": at} if kind == "file" else {"die_in": 4}
        if one(train, training.job_after(after, **end), dies=[0]) is not None:
            break
        before = after
        after = training.newest()
        least = before if kind == "file" else (before + 3) // 2 * 2
        came = f"afterwards, the newest snapshot is of step {after}"
        require(after >= least, came, f"step {least} or later")
    after = training.newest()
    last = f"{number} kills; the last process begins after step {after}"
    tried(f"12 steps, a snapshot every 2 steps, {last}")
    training.ends_as_it_must(one(train, training.job_after(after)), after)


# ---- several processes


def save_all(disk, world_size):
    """Each rank saves its own state at steps 1 and 2, of another size than the others. Returns the job, and
    the saves by rank."""
    job = a_job()
    given = [saves(disk, job, 1, 2) for _ in range(world_size)]
    for rank, mine in enumerate(given):
        # Of another size even when torch has filled it up to 64 bytes.
        mine[0]["state"]["large"] = floats(2000 + 90 * rank)
        mine[1]["state"]["large"] = floats(3000 - 90 * rank)
    inputs = [{"disk": disk, "saves": mine} for mine in given]
    for rank, came in enumerate(run(save_together, inputs, disk=True)):
        for step, is_there in enumerate(came, 1):
            words = f"save_together returned on rank {rank} before {name_of(step)} was there"
            require(is_there, words, "no rank returns before the snapshot exists")
    return job, given


def all_loaded(job, disk, expected):
    ranks = run(load_together, [{"job": job, "disk": disk}] * len(expected), disk=True)
    for rank, (came, right) in enumerate(zip(ranks, expected, strict=True)):
        loaded(f"on rank {rank},", came, right, "load_together")


@pytest.mark.parametrize("world_size", [2, 3, 1])
def test_4a_rank_0_saves_all_states(world_size):
    processes = so_many(world_size, "process")
    tried(f"{processes} with different states, each with its own disk; steps 1 and 2")
    job, given = save_all("disk", world_size)
    disks = [f"disk-{rank}" for rank in range(world_size)]
    for rank, files in enumerate(look_into(*disks)):
        expected = [name_of(1), name_of(2)] if rank == 0 else []
        same(f"the list of files on the disk of rank {rank}", sorted(files), expected)
    tried(f"{processes} load what the same number of other processes saved")
    all_loaded(job, "disk", [mine[1] for mine in given])


def test_4b_all_go_on_from_what_rank_0_finds():
    """4 processes save steps 1 and 2"""
    job, given = save_all("disk", 4)
    first, second = name_of(1), name_of(2)
    (there,) = look_into("disk-0")
    require(second in there, f"the disk of rank 0 has {listed(there)}", second)
    half = there[second][: len(there[second]) // 2]
    head = there[second][:9]
    torn = {"torn-0": there | {second: half}, "torn-1": there | {second: head}}
    torn["torn-3"] = {second: there[second]}
    put(torn | {"none-0": {}, "none-1": there, "none-2": {first: there[first]}})
    tried("4 processes; step 2 is cut on ranks 0 and 1, rank 2 has no folder, rank 3 has only step 2")
    all_loaded(job, "torn", [mine[0] for mine in given])
    (files,) = look_into("torn-1")
    same("the list of files on the disk of rank 1 afterwards", sorted(files), [first, second])
    tried("4 processes; rank 0 has no snapshot, but the other ranks have one")
    all_loaded(job, "none", [None] * 4)
