"""What exercise 06b is held against. Runs in the judge.

What is in the folders is read by runs without the student's code. What was saved is known to no later run:
that `load` returns it proves that it came out of the folder.
"""

import hashlib
import re

import by_path
import numpy
import torch
from judge import Verdict, check, several, so_many
from judge import look as look_at
from judge.several import KILLED, TOO_LARGE, listed, look_into, ours
from torch.nn.functional import cross_entropy

MOST_EVENTS = 40
FOR_EVER = "for-ever"  # the folder of saves without a pause
KINDS = ("rename", "fsync")  # events of a save


def name_of(step):
    return f"step-{step:08}.snapshot"


def snapshots(names):
    """Those of the files that have a snapshot's name, the oldest first."""
    return sorted(name for name in names if re.fullmatch(r"step-\d{8}\.snapshot", name))


def a_job(trial):
    return {"name": f"job {int(trial.integers(0, 10**9))}", "lr": 0.1, "seed": int(trial.integers(0, 10**6))}


def a_state(trial):
    """Small: a file that is written at once and not flushed is still in Python's memory then."""
    return {
        "weights": trial.floats(3, 4),
        "counts": trial.integers(-(1 << 40), 1 << 40, 5),
        "more": [{"momentum": None, "bytes": trial.integers(0, 256, 6).to(torch.uint8)}, "word", 0.25],
        "number": int(trial.integers(0, 1 << 40)),
    }


def bytes_of(state):
    """What the tensors in a state have."""
    if isinstance(state, torch.Tensor):
        return state.nbytes
    items = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    return sum(map(bytes_of, items))


def holds(trial, name, size, *states):
    """A file may be packed, but what was drawn has to be in it: no state can be anywhere else."""
    least = 0.8 * sum(map(bytes_of, states))
    trial.require(size >= least, f"{name} has {size} bytes", f"at least {least:.0f} bytes for the tensors")


def other_kinds(trial):
    """Tensors of other kinds, and keys that are numbers: not all ways to write down a state keep them."""
    return {
        "bfloat16": {"bfloat16": trial.integers(0, 1 << 14, 4).to(torch.int16)},
        "double": trial.floats(2, 2).double() / 3,
        "yes or no": trial.integers(0, 2, 7).bool(),
        "one number": trial.floats(1)[0],
        "none": trial.floats(0, 3),
        "numbered": {0: 0.5, 7: None},
    }


def saves(trial, folder, job, *steps, state=a_state):
    return [{"folder": folder, "job": job, "step": step, "state": state(trial)} for step in steps]


def brief(value):
    """In one line, however large it is."""
    words = " ".join(f"{value!r:.300}".split())
    return words if len(words) < 80 else f"{words[:76]} ..."


def equal(trial, what, got, expected):
    """The same nested values, and tensors that are equal in every bit."""
    if isinstance(expected, torch.Tensor | numpy.ndarray):
        expected = numpy.asarray(expected)
        a_tensor = isinstance(got, numpy.ndarray)
        trial.require(a_tensor, f"{what} is {type(got).__name__}", "the tensor that was saved")
        came = f"{what} is a tensor of {got.dtype} with shape {list(got.shape)}"
        alike = got.shape == expected.shape and got.dtype == expected.dtype
        trial.require(alike, came, f"{expected.dtype}, {list(expected.shape)}")
        for place in map(tuple, numpy.argwhere(got != expected).tolist()):
            trial.require(False, f"{what} has {got[place]} at {list(place)}", f"{expected[place]}, as saved")
    elif isinstance(expected, dict) and expected.keys() == {"bfloat16"}:
        same = isinstance(got, dict) and got.keys() == {"bfloat16"}
        trial.require(same, f"{what} is not a tensor of bfloat16", "a tensor of bfloat16")
        equal(trial, f"{what}, viewed as int16,", got["bfloat16"], expected["bfloat16"])
    elif isinstance(expected, dict):
        trial.require(isinstance(got, dict), f"{what} is {brief(got)}", f"a dict with {list(expected)}")
        trial.require(got.keys() == expected.keys(), f"{what} has {brief(list(got))}", str(list(expected)))
        for key in expected:
            equal(trial, f"{what}[{key!r}]", got[key], expected[key])
    elif isinstance(expected, list):
        same = isinstance(got, list) and len(got) == len(expected)
        trial.require(same, f"{what} is {brief(got)}", brief(expected))
        for number, item in enumerate(expected):
            equal(trial, f"{what}[{number}]", got[number], item)
    else:
        trial.same(what, got, expected)


def loaded(trial, where, came, expected, load="load"):
    """`came` is what load returned, `expected` a save or None."""
    if expected is None:
        trial.require(came is None, f"{where} {load} returns {brief(came)}", "None")
        return
    pair, right = isinstance(came, list) and len(came) == 2, f"(step, state) of {name_of(expected['step'])}"
    trial.require(pair, f"{where} {load} returns {brief(came)}", right)
    trial.same(f"{where} the step that {load} returns", came[0], expected["step"])
    what = f"{where} the state of step {expected['step']} that {load} returns"
    equal(trial, what, came[1], expected["state"])


def one(trial, driver, folder, /, **inputs):
    """A run of one process with the student's code."""
    return trial.run(driver, [inputs], group=False, folder=folder)[0]


def change(trial, folder, cases):
    ours(trial, "change", folder, cases=cases)


def make_others(trial, folder, hows):
    """Make folders of these names out of `snapshots`, each with its changes."""
    change(trial, folder, [{"from": "snapshots", "to": to, **how} for to, how in hows.items()])


def look_in(trial, folder, name):
    return look_into(trial, folder, name)[name]


def one_killed(trial, driver, folder, /, after=None, **inputs):
    """A run that may be killed. Returns how it ended (a signal, negative), or None if it came to its end."""
    kill = {"rank": 0} if after is None else {"rank": 0, "after": after}
    (value,) = trial.run(driver, [inputs], group=False, folder=folder, kill=kill)
    return several.ended(trial, value)


def load_all(trial, folder, job, *names):
    """What load returns in each of these folders, and what it writes to stderr there."""
    try:
        answer = one(trial, "load", folder, folders=list(names), job=job)
    except Verdict as verdict:
        # Several lines, which say how to load the file all the same.
        words = r"Weights only load failed.*?(?= at line \d+ of |$)"
        verdict.came = re.sub(words, "torch refuses the file, as it must", verdict.came, flags=re.DOTALL)
        raise
    came, said = ((look_at(answer, part) or []) for part in ("came", "said"))
    trial.require(len(came) == len(said) == len(names), "not one result for each folder")
    return dict(zip(names, came, strict=True)), dict(zip(names, said, strict=True))


def refused_aloud(trial, said, *names):
    """In one line for each of these files, which has its name and a reason. Returns the reasons."""
    lines, reasons = [line for line in said.splitlines() if line.strip()], []
    says_nothing = {"refused", "refusing", "skipped", "skipping", "the", "is", "was", "file", "snapshot"}
    says_nothing |= {"and", "trying", "try", "tries", "using", "one", "before", "previous", "older", "next"}
    for name in names:
        mine = [line for line in lines if name in line]
        trial.require(mine, f"no line on stderr contains {name}", f"a line that says that {name} is refused")
        reasons.append(" ".join(word for word in mine[0].split() if name not in word))
        trial.require(
            {*re.findall(r"[^\W\d_]+", reasons[-1].lower())} - says_nothing,  # words of any language
            f"the line on stderr is {mine[0]!r:.100}",
            "the file's name and the reason",
        )
    shown = " / ".join(line.strip()[:60] for line in lines[:4])
    came = f"on stderr there {'is' if len(lines) == 1 else 'are'} {so_many(len(lines), 'line')}: {shown}"
    trial.require(len(lines) == len(names), came, "one line for each refused file, in your own words")
    return reasons


# ---- save -------------------------------------------------------------------------------------


@check("06b.1a")
def two_newest(trial):
    steps, left = (1, 9, 10, 12_345_678, 12_345_678, 5), [[1], [1, 9], [9, 10], *[[10, 12_345_678]] * 3]
    trial.tried(f"saves after the steps {', '.join(map(str, steps))}, in this order")
    job = a_job(trial)
    folders = [f"{number} saves" for number in range(1, 6)] + ["6 saves [some not mine]"]
    given = [saves(trial, name, job, *steps[:count]) for count, name in enumerate(folders, 1)]
    mine = ("notes.txt", "best.snapshot", "snapshot.tmp", "temporary", "tmp", "unfinished", "notes~", ".part")
    others = dict.fromkeys((*mine, f"{name_of(3)}.2.refused", f"old-{name_of(7)}"), b"mine")
    others[f"{name_of(3)}.refused"] = b"precious"
    old = {"step-old.snapshot": b"no snapshot of any step"}  # it may go or stay
    change(trial, "a", [{"to": folders[-1], "write": others | old}])
    one(trial, "save", "a", saves=[save for mine in given for save in mine])
    for count, files in enumerate(look_into(trial, "a", *folders).values(), 1):
        trial.tried(f"saves after the steps {', '.join(map(str, steps[:count]))}, in this order")
        what, new = "the list of files in the folder", files
        if count == 6:
            trial.words.append(f"in a folder with {listed(others | old)}")
            for name in sorted(others):
                trial.require(name in files, f"{name} is gone", "the file is left alone")
                same = files[name]["digest"] == hashlib.sha256(others[name]).hexdigest()
                trial.require(same, f"{name} was overwritten", "the file is left alone")
            # Without those that are there: where both lists are cut, they would look the same.
            what, new = (
                "the list of files beside notes.txt and the others",
                files.keys() - others - old.keys(),
            )
        trial.same(what, sorted(new), sorted(map(name_of, left[count - 1])))
        for save in given[count - 1]:
            name = name_of(save["step"])
            if name in files:
                holds(trial, name, files[name]["size"], save["state"])


@check("06b.1b")
def on_disk_first(trial):
    trial.tried("two saves; each fsync and each rename in the second save is recorded")
    one(trial, "save", "b", saves=saves(trial, "snapshots", a_job(trial), 1, 2), events=True)
    events, name = trial.events(0), name_of(2)
    there = look_in(trial, "b", "snapshots").get(name)
    trial.require(there is not None, f"{name} does not exist", "the snapshot of step 2")
    of_kind = {kind: [pair for pair in enumerate(events) if pair[1].get("event") == kind] for kind in KINDS}
    renames = [place for place, event in of_kind["rename"] if event.get("to") == name]
    trial.require(renames, f"{name} was written under its own name", "a different name first, then a rename")
    wanted = "a call on the file, before the file gets its name"
    trial.require(of_kind["fsync"], "os.fsync was not called", wanted)
    mine = [(place, e.get("size")) for place, e in of_kind["fsync"] if e.get("inode") == there["inode"]]
    came = f"the file that is now {name} is not the file on which os.fsync was called"
    trial.require(mine, came, "the same file: renamed, not copied")
    before = [size for place, size in mine if place < renames[-1]]
    trial.require(before, f"os.fsync was called after the file had become {name}", "a call before the rename")
    came = f"at the os.fsync the file had {before[-1]} bytes, and at the end {there['size']}"
    all_bytes = "all bytes: bytes that are still in Python's memory are not on the disk"
    trial.require(there["size"] in before, came, all_bytes)


# ---- load -------------------------------------------------------------------------------------


@check("06b.2a")
def newest(trial):
    trial.tried(
        "load in a folder without snapshots, and after saves of steps 99, 100, and 100 again with"
        " another state; the file of step 99 has the later date"
    )
    job = a_job(trial)
    given = saves(trial, "snapshots", job, 99, 100, 100)
    given[0]["state"] = [trial.floats(3, 4), {"more": [None, "word"]}, 0.5]  # a state need not be a dict
    given[1]["state"] |= other_kinds(trial)
    given[2]["state"] |= other_kinds(trial)
    one(trial, "save", "a", saves=given)
    there = sorted(look_in(trial, "a", "snapshots"))
    trial.same("the list of files after these saves", there, [name_of(99), name_of(100)])
    trial.same("the list of everything beside the folder", sorted(look_in(trial, "a", ".")), ["snapshots"])
    other = {"notes.txt": b"step-00000500.snapshot", f"{name_of(400)}.refused": b"not for load"}
    other |= {"best.snapshot": b"neither is this", f"old-{name_of(7)}": b"nor this"}
    age = {name_of(99): 2_000_000_000, name_of(100): 1_000_000_000}
    cases = [
        {"from": "snapshots", "to": "aged [old]", "age": age, "write": other},
        {"from": "snapshots", "to": "one", "remove": [name_of(100)]},
        {"to": "others", "write": other},
    ]
    change(trial, "a", cases)
    turned = dict(reversed(job.items()))
    came, _ = load_all(trial, "a", turned, "others", "one", "aged [old]")
    there = look_into(trial, "a", "others", "aged [old]")
    loaded(trial, f"in a folder with {listed(other)},", came["others"], None)
    trial.same("the list of files in that folder afterwards", sorted(there["others"]), sorted(other))
    loaded(trial, f"with only {name_of(99)},", came["one"], given[0])
    first = look_at(came["aged [old]"], 1, "number") == given[1]["state"]["number"]
    last = "the state that was saved for step 100 last"
    trial.require(not first, "load returns the first state of step 100", last)
    loaded(trial, f"with {name_of(99)} and {name_of(100)} in one folder,", came["aged [old]"], given[2])
    files = sorted(there["aged [old]"])
    trial.same("the list of files in the folder afterwards", files, sorted([*age, *other]))


@check("06b.1c")
def killed_in_a_save(trial):
    job, state = a_job(trial), a_state(trial)
    given, there = saved_in_peace(trial, job, state)
    before, whole = there["before"], there["whole"][name_of(3)]
    inputs = {"from": "before", "job": job, "step": 3, "state": state}
    folders = killed_at_every_file_event(trial, inputs) | ended_while_writing(trial, inputs, whole["size"])
    again = inputs | {"step": 2}
    replaced = killed_at_every_file_event(trial, again, "again")
    last = killed_from_outside(trial, job, state)

    there = look_into(trial, "c", FOR_EVER, *folders, *replaced)
    what_was_saved_is_there(trial, there[FOR_EVER], last)
    for folder, what in folders.items():
        trial.tried(what)
        only_whole_snapshots_are_there(trial, there[folder], before, whole, cut=folder.startswith("of-"))
    for folder, what in replaced.items():
        trial.tried(what)
        names = snapshots(there[folder])
        trial.require(names == [*before], f"afterwards the folder has {listed(names)}", listed(before))
    trial.tried("load in each folder in which a save was killed")
    came, _ = load_all(trial, "c", job, FOR_EVER, *folders, *replaced)
    for folder, what in (replaced | folders).items():
        trial.tried(f"{what}; then load in another process")
        step, new = 3, name_of(3) in there[folder]
        if folder in replaced:
            step, new = 2, there[folder][name_of(2)]["digest"] != before[name_of(2)]["digest"]
        loaded(trial, "afterwards", came[folder], {"step": step, "state": state} if new else given[1])
    trial.tried("saves without pause, and SIGKILL from outside; then load in another process")
    names = snapshots(there[FOR_EVER])
    newest = {"step": int(names[-1][5:13]), "state": state} if names else None
    loaded(trial, "afterwards", came[FOR_EVER], newest)
    the_next_save_tidies_up(trial, job, folders | replaced)


def saved_in_peace(trial, job, state):
    """What a save leaves that nobody kills: steps 1 and 2 in "before", and step 3 after them in "whole"."""
    trial.tried("saves of steps 1, 2 and 3, none killed")
    given = saves(trial, "before", job, 1, 2)
    one(trial, "save", "c", saves=given)
    inputs = {"from": "before", "job": job, "step": 3, "state": state}
    one(trial, "save_and_die", "c", to="whole", at=0, **inputs)
    there = look_into(trial, "c", "before", "whole")
    trial.require(name_of(3) in there["whole"], f"{name_of(3)} does not exist", "the snapshot of step 3")
    return given, there


def killed_at_every_file_event(trial, inputs, name="at"):
    """A save for each time that it opens, renames or removes a file, killed at that time.
    Returns the folders in which they were killed, and words for each."""
    folders, saved = {}, f"a save of step {inputs['step']}{' again' if name == 'again' else ''}"
    for at in range(1, MOST_EVENTS):
        trial.tried(
            f"SIGKILL at number {at} of the moments at which {saved} opens, renames or removes a file"
        )
        if one_killed(trial, "save_and_die", "c", to=f"{name}-{at}", at=at, **inputs) is None:
            break
        folders[f"{name}-{at}"] = f"SIGKILL just before {saved} {several.file_event(trial)}"
    came = "save has opened no file with open(), and renamed and removed none: there was no moment to kill it"
    trial.require(folders, came, "a temporary file that you open and write yourself, and then a rename")
    return folders


def ended_while_writing(trial, inputs, size):
    """Saves of step 3 that end when a part of the bytes is written. Returns the folders, with words."""
    folders = {}
    for part in (0.03, 0.5, 0.97):
        largest = int(size * part)
        to, what = f"of-{largest}", f"a save of step 3 that ends after writing {largest} of {size} bytes"
        trial.tried(what)
        ended = one_killed(trial, "save_and_die", "c", to=to, largest=largest, **inputs)
        came = f"no file could grow beyond {largest} bytes, but save returned as if it had written everything"
        wanted = "all bytes written (os.write may write less than it is given, and returns how much)"
        trial.require(ended == TOO_LARGE, came, wanted)
        folders[to] = what
    return folders


def killed_from_outside(trial, job, state):
    """Saves without a pause, killed at a moment that nobody chose. Returns the last step that was saved."""
    trial.tried("saves without pause, and SIGKILL from outside")
    inputs = {"folder": FOR_EVER, "job": job, "state": state, "seconds": 3}
    ended = one_killed(trial, "save_for_ever", "c", after=0.2, **inputs)
    trial.require(ended == KILLED, "it was not ended by SIGKILL", "saves that continue")
    return max([0, *(event["step"] for event in trial.events(0, "saved"))])


def what_was_saved_is_there(trial, files, last):
    """Once save has returned for a step, no kill takes it away."""
    names = snapshots(files)
    there = last < 2 or (len(names) >= 2 and names[-1] >= name_of(last))
    came = f"after save had returned for step {last}, the folder has {listed(names)}"
    trial.require(there, came, "at least that snapshot and the one before")


def only_whole_snapshots_are_there(trial, files, before, whole, cut):
    """Under a snapshot's name there is a whole one: those from before as they were, and step 3 or nothing."""
    names = snapshots(files)
    foreign = [name for name in files if not name.startswith("step-")]
    came = f"afterwards the folder has a file called {listed(foreign)}"
    may_be = "any other name may belong to somebody else's file"
    trial.require(not foreign, came, f"a temporary file whose name begins with step-: {may_be}")
    whole_ones = len(names) >= 2 and {*names} <= {*map(name_of, (1, 2, 3))}
    wanted = f"{listed(before)}, or {name_of(2)} with {name_of(3)}"
    trial.require(whole_ones, f"afterwards the folder has {listed(names)}", wanted)
    for name in before.keys() & {*names}:
        same = files[name]["digest"] == before[name]["digest"]
        trial.require(same, f"{name} has changed", "an unchanged file")
    if name_of(3) in names:
        size, most = files[name_of(3)]["size"], whole["size"]
        came, wanted = f"{name_of(3)} exists and has {size} bytes", f"{most} bytes, or no file of that name"
        trial.require(size >= 0.98 * most and not cut, came, wanted)


def the_next_save_tidies_up(trial, job, folders):
    """What a killed save has left does not stay: after one more, there are two snapshots and nothing else."""
    trial.tried("one more save in each folder in which a save was killed")
    one(trial, "save", "c", saves=[one for folder in folders for one in saves(trial, folder, job, 4)])
    for folder, files in look_into(trial, "c", *folders).items():
        tidy = name_of(4) in files and len(files) == 2 and name_of(1) not in files
        came = f"after {folders[folder]} and one more save, of step 4, the folder has {listed(files)}"
        trial.require(tidy, came, "the two newest snapshots")


def prepare(trial, folder, *more):
    """Steps 1 and 2 in `snapshots`, by the student's save, and more saves elsewhere."""
    job = a_job(trial)
    given = saves(trial, "snapshots", job, 1, 2)
    others = [one for to, step, change in more for one in saves(trial, to, change(job), step)]
    one(trial, "save", folder, saves=[*given, *others])
    return job, given


def bytes_of_numbers(trial, folder, file, state):
    """Where the file has a byte of a tensor: one for each tensor, if they are in it as they are in memory."""
    tensors = [state["weights"], state["counts"]]
    contents = [tensor.numpy().tobytes() for tensor in tensors]
    found = ours(trial, "find", folder, file=file, contents=contents)
    starts = zip(found, contents, strict=True)
    return {start + int(trial.integers(0, len(content))) for start, content in starts if start >= 0}


@check("06b.2b")
def damaged(trial):
    trial.tried("steps 1 and 2, with the snapshot of step 2 cut in the middle")
    job, given = prepare(trial, "b")
    size = look_in(trial, "b", "snapshots").get(name_of(2), {}).get("size", 0)
    holds(trial, name_of(2), size, given[1]["state"])
    told = {}  # how step 2 is damaged in which folder, and words for it

    def damage(kind, place, what, words):
        told[f"{kind}-{place}"] = {kind: {name_of(2): what}}, words

    cuts = {0, 1, 2, 3, 4, 8, size - 1, size - 2, size - 4, size - 5, *trial.integers(0, size, 10).tolist()}
    for cut in sorted(cut for cut in cuts if 0 <= cut < size):
        damage("cut", cut, cut, f"of which {cut or 'no'} of {size} bytes are left")
    places = {*range(16), *range(size - 16, size), *trial.integers(0, size, 30).tolist()}
    # Most other bytes of a small file are torch's own: without these, many draws would hit no number at all.
    places |= bytes_of_numbers(trial, "b", f"snapshots/{name_of(2)}", given[1]["state"])
    for place in sorted(places):
        bits = 1 << int(trial.integers(0, 8))
        damage("flip", place, [[place, bits]], f"of which byte {place + 1} of {size} has a different bit")
    for first in (0, size // 4, size // 2):
        words = f"of which bytes {first + 1} to {first + size // 4} of {size} are zero"
        damage("zero", first, [first, size // 4], words)
    cases = {"cut": {"cut": {name_of(2): size // 2}}} | {to: how for to, (how, _) in told.items()}
    cases["both"] = {"cut": {name_of(1): size // 2, name_of(2): size // 3}}
    make_others(trial, "b", cases)
    came, said = load_all(trial, "b", job, "cut")
    loaded(trial, "with the newest snapshot cut in the middle,", came["cut"], given[0])
    refused_aloud(trial, said["cut"], name_of(2))
    trial.tried("steps 1 and 2, with the snapshot of step 2 cut short anywhere, or with damaged bytes")
    came, said = load_all(trial, "b", job, *told, "both")
    loaded(trial, "if both snapshots are cut,", came["both"], None)
    refused_aloud(trial, said["both"], name_of(2), name_of(1))
    for to, (_, what) in told.items():
        # A byte may be damaged that means nothing: then it is no fault to take the file.
        got = came[to]
        harmless = not to.startswith("cut") and isinstance(got, list) and got[:1] == [2]
        loaded(trial, f"with {name_of(2)}, {what},", got, given[1] if harmless else given[0])


@check("06b.2c")
def foreign(trial):
    others = (
        ("a snapshot of a job with another seed", 11, lambda job: job | {"seed": job["seed"] + 1}),
        ("a snapshot of a job with one more setting", 12, lambda job: job | {"epochs": 3}),
        ("a snapshot of a job with one setting less", 13, lambda job: {"name": job["name"]}),
        ("a snapshot of a job with another name", 14, lambda job: job | {"name": "another"}),
        ("a snapshot of a job whose seed is a string", 15, lambda job: job | {"seed": str(job["seed"])}),
    )
    contents = {
        "a text": b"step 7 of my other program\n" * 40,
        "a file of zeros": bytes(1000),
        "noise": trial.integers(0, 256, 3000).to(torch.uint8).numpy().tobytes(),
    }
    job, given = prepare(trial, "c", *((f"of-{step}", step, change) for _, step, change in others))
    of_step = {step: {name_of(step): f"of-{step}/{name_of(step)}"} for _, step, _ in others}
    files = {what: name_of(step) for what, step, _ in others}
    hows = [{"copy": one} for one in of_step.values()]
    for step, (what, data) in enumerate(contents.items(), 16):
        files[what] = name_of(step)
        hows.append({"write": {name_of(step): data}})
    files["a tensor in a file of torch.save"] = name_of(19)
    hows.append({"plant": {name_of(19): ["other", ""]}})
    trial.tried("steps 1 and 2, and newer files that are not snapshots of this job")
    both = of_step[11] | of_step[12]
    hows = dict(zip(files.values(), hows, strict=True)) | {"both": {"copy": both}}
    make_others(trial, "c", hows)
    (came, said), reasons = load_all(trial, "c", job, *files.values(), "both"), {}
    for what, name in files.items():
        trial.tried(f"steps 1 and 2, and {name}: {what}")
        loaded(trial, f"beside {what},", came[name], given[1])
        (reasons[what],) = refused_aloud(trial, said[name], name)
    trial.tried("steps 1 and 2, and steps 11 and 12 of other jobs")
    loaded(trial, "beside two files that must be refused,", came["both"], given[1])
    refused_aloud(trial, said["both"], *both)
    one_for_all = reasons["noise"] == reasons[others[0][0]]
    came = f"for noise and for another job's snapshot, load prints the same: {reasons['noise'].strip()!r:.80}"
    trial.require(not one_for_all, came, "two different reasons")


@check("06b.2d")
def hostile(trial):
    job, given = prepare(trial, "d")
    trial.tried("your own save, with a state that contains an object which runs code when it is loaded")
    one(trial, "save_hostile", "d", folder="own", step=21, job=job, ran="ran/own")
    kinds = {
        "own": "a file by your own save, with an object that runs code when it is loaded",
        "pickle": "a pickle that runs code when it is loaded",
        "torch": "a file of torch.save that runs code when it is loaded",
    }
    names = {kind: name_of(step) for step, kind in enumerate(kinds, 21)}
    hows = {f"with-{kind}": {"plant": {names[kind]: [kind, f"ran/{kind}"]}} for kind in ("pickle", "torch")}
    make_others(trial, "d", {"with-own": {"copy": {names["own"]: f"own/{names['own']}"}}} | hows)
    change(trial, "d", [{"to": "ran"}])
    before = ours(trial, "changed", "d", folder="ran")
    trial.tried("steps 1 and 2, and a newer file that runs code when it is loaded")
    there = look_in(trial, "d", "with-own")
    came, said = load_all(trial, "d", job, *(f"with-{kind}" for kind in kinds))
    ran, changed = look_in(trial, "d", "ran"), ours(trial, "changed", "d", folder="ran")
    for kind, what in kinds.items():
        trial.tried(f"steps 1 and 2, and {names[kind]}: {what}")
        harmless = kind not in ran
        trial.require(harmless, f"loading {names[kind]} has run its code", "no code from a file is run")
        loaded(trial, "beside the hostile file,", came[f"with-{kind}"], given[1])
    for kind in kinds:
        trial.tried(f"steps 1 and 2, and {names[kind]}: {kinds[kind]}")
        if kind != "own" or names[kind] in there:
            try:
                refused_aloud(trial, said[f"with-{kind}"], names[kind])
            except Verdict as verdict:
                verdict.came = f"no code was run, but {verdict.came}"
                raise
    came = "loading a hostile file has run its code, which has removed its traces"
    trial.require(changed == before, came, "no code from a file is run")


@check("06b.2e")
def renamed(trial):
    trial.tried("steps 1 and 2, and another job's step 7; load, then saves of steps 3 and 4")
    refused, rates = f"{name_of(7)}.refused", {"other": 0.2, "third": 0.3, "fourth": 0.4}
    names = list(rates)
    others = ((name, 7, lambda job, lr=lr: job | {"lr": lr}) for name, lr in rates.items())
    job, given = prepare(trial, "e", *others)
    copied, *again = ({name_of(7): f"{name}/{name_of(7)}"} for name in names)
    taken = {refused: b"the first", f"{name_of(7)}.3.refused": b"the third"}
    cases = [{"from": "snapshots", "to": "both", "copy": copied}]
    old = {"step-old.snapshot": b"no snapshot of any step"}  # load may refuse it, too
    change(trial, "e", [*cases, cases[0] | {"to": "gap", "write": taken | old}])
    came, _ = load_all(trial, "e", job, "both", "gap")
    loaded(trial, "first", came["both"], given[1])
    loaded(trial, f"in a folder that also has {listed(taken | old)},", came["gap"], given[1])
    for name, facts in look_in(trial, "e", "gap").items():
        same = name not in taken or facts["digest"] == hashlib.sha256(taken[name]).hexdigest()
        came_words = f"{name} was overwritten, in a folder that had {listed(taken)}"
        trial.require(same, came_words, "a name that is free: a refused file may still matter to somebody")
    there = look_into(trial, "e", "both", *names)
    what, expected = "the list of files in the folder after the load", [name_of(1), name_of(2), refused]
    trial.same(what, sorted(there["both"]), expected)
    precious = [there[name].get(name_of(7), {}).get("digest") for name in names]
    more = saves(trial, "both", job, 3, 4)
    zero = saves(trial, "zero", job, 0, state=lambda _: {})
    one(trial, "save", "e", saves=more + zero)
    there = look_in(trial, "e", "both")
    trial.same("the list of files after two more saves", sorted(there), [name_of(3), name_of(4), refused])
    same = there[refused]["digest"] == precious[0]
    trial.require(same, f"the content of {refused} has changed", "the other job's snapshot")
    new_names = [refused, f"{name_of(7)}.2.refused", f"{name_of(7)}.3.refused"]
    for count, one_more in enumerate(again, 2):
        trial.tried(f"step 4, {listed(new_names[: count - 1])}, and another step 7 of another job; load")
        change(trial, "e", [{"to": "both", "copy": one_more}])
        came, _ = load_all(trial, "e", job, "both", "zero")
        loaded(trial, "then", came["both"], more[1])
        loaded(trial, f"in a folder with only {name_of(0)}, of an empty state,", came["zero"], zero[0])
        there = look_in(trial, "e", "both")
        kept = {name: facts["digest"] for name, facts in there.items() if name.endswith(".refused")}
        number = ("two", "three")[count - 2]
        came = f"of {number} files that were refused as {name_of(7)}, the folder still has {listed(kept)}"
        trial.require(sorted(kept.values()) == sorted(precious[:count]), came, "all of them, unchanged")
        expected = [name_of(3), name_of(4), *sorted(new_names[:count])]
        trial.same("the list of files afterwards", sorted(there), sorted(expected))


# ---- in the middle of an epoch ----------------------------------------------------------------


def batches_of(count, job):
    found = []
    for epoch in range(job["epochs"]):
        generator = torch.Generator().manual_seed(job["seed"] + epoch)
        found += torch.randperm(count, generator=generator).split(job["batch_size"])
    return found


@check("06b.3a")
def rest_of_epoch(trial):
    cases = []
    for count, size, epochs in ((12, 4, 2), (17, 5, 3), (3, 8, 2)):
        job = {"epochs": epochs, "batch_size": size, "seed": int(trial.integers(0, 10**6)), "every": 2}
        job["seed"] *= count != 12
        steps = epochs * -(-count // size)
        inside = int(trial.integers(1, steps))
        wanted = sorted({0, inside, steps - 1, steps})
        cases += [{"step": step, "count": count, "job": job} for step in wanted]
    trial.tried(f"the remaining batches, {len(cases)} times")
    came = one(trial, "batches", "a", cases=cases)
    for case, got in zip(cases, came.get("batches"), strict=True):
        job, step = case["job"], case["step"]
        expected = batches_of(case["count"], job)[step:]
        batches = f"{case['count']} images in batches of {job['batch_size']}"
        trial.tried(f"{batches}, {job['epochs']} epochs, after {step} steps")
        trial.same("the number of batches", len(got), len(expected))
        for number, batch in enumerate(expected):
            trial.same(f"the batch of step {step + number + 1}", got[number], batch)
    trial.same("the list of types of the batches", came["kinds"], ["Tensor"])
    trial.same("whether torch's own random numbers were left alone", came["untouched"], True)


SHAPES = {"first.weight": (8, 6), "first.bias": (8,), "norm.weight": (8,), "norm.bias": (8,)}
SHAPES |= {"second.weight": (3, 8), "second.bias": (3,)}


class Training:
    """A training on the judge's side: all its steps in one process, without a snapshot."""

    def __init__(self, trial):
        self.trial = trial
        # Twelve steps blow up a rounding error: the model has no kink, and a batch norm that never divides by
        # almost nothing, or one seed in some hundred would not come out close enough.
        count = 22  # 6 steps in an epoch, the last with 2 images
        self.job = {"epochs": 2, "batch_size": 4, "every": 2, "seed": int(trial.integers(0, 10**6))}
        self.images, self.labels = trial.floats(count, 6), trial.integers(0, 3, count)
        self.batches = batches_of(count, self.job)
        self.random, self.weights = int(trial.integers(0, 10**6)), self.some_weights()
        self.losses = {}
        with torch.random.fork_rng():
            torch.manual_seed(self.random)
            model = by_path.driver("06b_snapshot").Model(self.weights)
            parameters = dict(model.named_parameters())
            self.momentum = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
            for step, batch in enumerate(self.batches, 1):
                loss = cross_entropy(model(self.images[batch]), self.labels[batch])
                gradients = torch.autograd.grad(loss, list(parameters.values()))
                self.losses[step] = loss.item()
                for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
                    self.momentum[name] = 0.9 * self.momentum[name] + gradient
                    parameter.data -= 0.1 * self.momentum[name]
            self.next_random = torch.rand(8)
        self.state = {name: tensor.detach() for name, tensor in model.state_dict().items()}

    def some_weights(self):
        return {name: self.trial.floats(*shape) for name, shape in SHAPES.items()}

    def inputs(self, after=0, **more):
        """For a process that goes on after a step: it gets other weights, and other random numbers."""
        first = after == 0
        given = {"job": self.job, "images": self.images, "labels": self.labels}
        given["weights"] = self.weights if first else self.some_weights()
        given["random"] = self.random if first else self.random + after
        given |= {
            "lr": 0.1 if first else 0.5,
            "momentum": 0.9 if first else 0.2,
        }  # its state has the right ones
        return given | more

    def newest(self, folder):
        """The step of the newest snapshot, 0 if there is none."""
        names = look_in(self.trial, folder, "snapshots")
        steps = [name_of(step) for step in range(1, len(self.batches) + 1)]
        return max([0, *(steps.index(name) + 1 for name in names if name in steps)])

    def ends_as_it_must(self, came, after):
        trial, losses = self.trial, came.get("losses")
        expected = {step: loss for step, loss in self.losses.items() if step > after}
        steps = sorted(losses) if isinstance(losses, dict) else losses
        trial.same("the steps that were taken", steps, sorted(expected))
        pairs = {f"the loss of step {step}": (losses[step], loss) for step, loss in expected.items()}
        pairs |= {f"{name} in the end": (came["model"].get(name), one) for name, one in self.state.items()}
        for name, tensor in self.momentum.items():
            pairs[f"the momentum of {name} in the end"] = came["momentum"].get(name), tensor
        for what, (got, right) in pairs.items():
            trial.close(what, got, right, relative=2e-4, scale=1.0)
        trial.close("the next random numbers", came["random"], self.next_random)


@check("06b.3b")
def one_curve(trial):
    training = Training(trial)
    trial.tried("a run of 12 steps, two epochs, that is not killed")
    training.ends_as_it_must(one(trial, "train", "whole", **training.inputs()), 0)
    trial.tried("12 steps, two epochs, a snapshot every 2 steps; SIGKILL in step 10")
    ended = one_killed(trial, "train", "b", **training.inputs(die_in=10))
    came = "ran to its end" if ended is None else f"was ended by signal {-ended}"
    trial.require(ended == KILLED, f"the run {came}", "SIGKILL in the forward of step 10")
    trial.same("the step of the newest snapshot", training.newest("b"), 8)
    trial.tried(
        "12 steps, two epochs; SIGKILL in step 10; another process continues from step 8, with different "
        "initial weights and random numbers, and NaN in all images that the second epoch already used"
    )
    inputs = training.inputs(8)
    inputs["images"] = training.images.clone()
    inputs["images"][torch.cat(training.batches[6:8])] = float("nan")
    training.ends_as_it_must(one(trial, "train", "b", **inputs), 8)


@check("06b.3c")
def killed_again_and_again(trial):
    training, after = Training(trial), 0
    for number, kind in enumerate(("file", "step", "file", "step"), 1):
        end = {"at": int(trial.integers(2, 9))} if kind == "file" else {"die_in": 4}
        inputs = training.inputs(after, **end)
        when = f"at its file event {end['at']}" if kind == "file" else "in its fourth step"
        what = f"process {number} begins after step {after}; SIGKILL {when}"
        trial.tried(f"12 steps, a snapshot every 2 steps, several kills; {what}")
        if one_killed(trial, "train", "c", **inputs) is None:
            break
        before, after = after, training.newest("c")
        least = before if kind == "file" else (before + 3) // 2 * 2
        came = f"afterwards, the newest snapshot is of step {after}"
        trial.require(after >= least, came, f"step {least} or later")
    after = training.newest("c")
    last = f"{number} kills; the last process begins after step {after}"
    trial.tried(f"12 steps, a snapshot every 2 steps, {last}")
    training.ends_as_it_must(one(trial, "train", "c", **training.inputs(after)), after)


# ---- several processes ------------------------------------------------------------------------


MANY = 20_000


def large_state(trial):
    """So large that its bytes stand out from all others that processes send, and no two of one size."""
    return a_state(trial) | {"large": trial.floats(MANY + int(trial.integers(0, 1000)))}


def sent(trial, world_size):
    """Bytes that each rank has sent, as the kernel counts them; None if it does not."""
    found = [trial.sent(rank) for rank in range(world_size)]
    return None if None in found else found


def save_all(trial, folder, disk, world_size, *steps):
    """Each rank saves, at each step, its own state. Returns the job and the saves by rank."""
    job = a_job(trial)
    given = [saves(trial, disk, job, *steps, state=large_state) for _ in range(world_size)]
    inputs = [{"job": job, "disk": disk, "saves": mine} for mine in given]
    for rank, came in enumerate(trial.run("together", inputs, folder=folder)):
        for step, there in zip(steps, came["there"], strict=True):
            came = f"save_together returned on rank {rank} before {name_of(step)} was there"
            trial.require(there, came, "no rank returns before the snapshot exists")
    for rank, count in enumerate(sent(trial, world_size) or ()):
        came = f"rank {rank} has sent {count} bytes in {len(steps)} saves"
        wanted = f"its state of {4 * MANY} bytes in each save, for rank 0 to write"
        trial.require(rank == 0 or count > 2 * MANY * len(steps), came, wanted)
    return job, given


def all_loaded(trial, ranks, expected):
    for rank, came in enumerate(ranks):
        mine = expected[rank] if expected else None
        loaded(trial, f"on rank {rank},", came.get("came"), mine, "load_together")
    for count in (sent(trial, len(ranks)) or ())[:1] if expected else ():
        wanted = f"at least {4 * MANY} bytes for each rank: the rank's state, which rank 0 has found"
        came = f"rank 0 has sent {count} bytes to the others"
        trial.require(count >= 2 * MANY * (len(ranks) - 1), came, wanted)


@check("06b.4a")
def together(trial):
    for world_size in (2, 3, 1):
        processes = so_many(world_size, "process")
        steps = (1, 2) if world_size > 1 else (0,)
        trial.tried(f"{processes} with different states, each with its own disk; steps {steps}")
        disk, names = f"disk-of-{world_size}", list(map(name_of, steps))
        job, given = save_all(trial, "a", disk, world_size, *steps)
        disks = [f"{disk}-{rank}" for rank in range(world_size)]
        for rank, files in enumerate(look_into(trial, "a", *disks).values()):
            expected = [] if rank else names
            trial.same(f"the list of files on the disk of rank {rank}", sorted(files), expected)
        newest = look_into(trial, "a", disks[0])[disks[0]][names[-1]]
        states = [mine[-1]["state"] for mine in given]
        holds(trial, f"{names[-1]} of {so_many(world_size, 'rank')}", newest["size"], *states)
        trial.tried(f"{processes} load what the same number of other processes saved")
        ranks = trial.run("load_together", [{"job": job, "disk": disk}] * world_size, folder="a")
        all_loaded(trial, ranks, [mine[-1] for mine in given])


@check("06b.4b")
def the_same_everywhere(trial):
    trial.tried("4 processes save steps 1 and 2")
    job, given = save_all(trial, "b", "disk", 4, 1, 2)
    files = look_in(trial, "b", "disk-0")
    trial.require(name_of(2) in files, f"the disk of rank 0 has {listed(files)}", name_of(2))
    cases = [
        {"from": "disk-0", "to": "torn-0", "cut": {name_of(2): files[name_of(2)]["size"] // 2}},
        {"from": "disk-0", "to": "torn-1", "cut": {name_of(2): 9}},
        {"from": "disk-0", "to": "torn-3", "remove": [name_of(1)]},
        {"to": "none-0"},
        {"from": "disk-0", "to": "none-1"},
        {"from": "disk-0", "to": "none-2", "remove": [name_of(2)]},
    ]
    change(trial, "b", cases)
    trial.tried("4 processes; step 2 is cut on ranks 0 and 1, rank 2 has no folder, rank 3 has only step 2")
    ranks = trial.run("load_together", [{"job": job, "disk": "torn"}] * 4, folder="b")
    all_loaded(trial, ranks, [mine[0] for mine in given])
    there = look_in(trial, "b", "torn-1")
    trial.same("the list of files on the disk of rank 1 afterwards", sorted(there), [name_of(1), name_of(2)])
    trial.tried("4 processes; rank 0 has no snapshot, but the other ranks have one")
    all_loaded(trial, trial.run("load_together", [{"job": job, "disk": "none"}] * 4, folder="b"), None)
