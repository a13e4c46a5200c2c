"""What exercise 05 is held against. Runs in the judge.

What lies in the folders is read by runs without the student's code. What was saved is known to no later run:
that `load` returns it proves that it came out of the folder.
"""

import re

import by_path
import numpy
import torch
from judge import check, explain
from torch.nn.functional import cross_entropy

KILLED, TOO_LARGE = -9, -25
MOST_EVENTS = 40
FOR_EVER = "for-ever"  # the folder of saves without a pause


def name_of(step):
    return f"step-{step:08}.snapshot"


def snapshots(names):
    """Those of the files that have a snapshot's name, the oldest first."""
    return sorted(name for name in names if re.fullmatch(r"step-\d{8}\.snapshot", name))


def words(names):
    return ", ".join(sorted(names)) or "nothing"


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


def saves(trial, folder, job, *steps, state=a_state):
    return [{"folder": folder, "job": job, "step": step, "state": state(trial)} for step in steps]


def equal(trial, what, got, expected):
    """The same nested values, and tensors that are equal in every bit."""
    if isinstance(expected, torch.Tensor | numpy.ndarray):
        expected = numpy.asarray(expected)
        trial.require(
            isinstance(got, numpy.ndarray), f"{what} is {type(got).__name__}", "the tensor that was saved"
        )
        trial.require(
            got.shape == expected.shape and got.dtype == expected.dtype,
            f"{what} is a tensor of {got.dtype} of the shape {list(got.shape)}",
            f"{expected.dtype}, {list(expected.shape)}",
        )
        wrong = numpy.argwhere(got != expected).tolist()
        if wrong:
            place = tuple(wrong[0])
            trial.require(False, f"{what} has {got[place]} at {list(place)}", f"{expected[place]}, as saved")
    elif isinstance(expected, dict):
        keys = list(got) if isinstance(got, dict) else got
        trial.require(
            isinstance(got, dict) and got.keys() == expected.keys(), f"{what} has {keys}", list(expected)
        )
        for key in expected:
            equal(trial, f"{what}[{key!r}]", got[key], expected[key])
    elif isinstance(expected, list):
        trial.require(
            isinstance(got, list) and len(got) == len(expected), f"{what} is {got!r:.80}", f"{expected!r:.80}"
        )
        for number, item in enumerate(expected):
            equal(trial, f"{what}[{number}]", got[number], item)
    else:
        trial.same(what, got, expected)


def loaded(trial, where, came, expected):
    """`came` is what load returned, `expected` a save or None."""
    if expected is None:
        trial.require(came is None, f"{where} load returns {came!r:.80}", "None")
        return
    trial.require(
        isinstance(came, list) and len(came) == 2,
        f"{where} load returns {came!r:.80}",
        f"(step, state) of {name_of(expected['step'])}",
    )
    trial.same(f"{where} the step that load returns", came[0], expected["step"])
    equal(trial, f"{where} the state of step {expected['step']}", came[1], expected["state"])


def one(trial, driver, folder, /, **inputs):
    """A run of one process with the student's code."""
    return trial.run(driver, [inputs], group=False, folder=folder)[0]


def ours(trial, driver, folder, /, **inputs):
    """A run of one process without the student's code."""
    return trial.run(driver, [inputs], group=False, folder=folder, main=None)[0]


def look(trial, folder, *names):
    return ours(trial, "look", folder, folders=list(names))


def one_killed(trial, driver, folder, /, after=None, **inputs):
    """A run that may be killed. Returns how it ended (a signal, negative), or None if it came to its end."""
    kill = {"rank": 0} if after is None else {"rank": 0, "after": after}
    (value,) = trial.run(driver, [inputs], group=False, folder=folder, kill=kill)
    ended = trial.answer["ranks"][0]["ended"]
    if value is None and ended not in (KILLED, TOO_LARGE):
        explain(trial.answer, list(trial.files))
    return None if value is not None else ended


def output_of(trial):
    """What the last run has printed."""
    return trial.answer["ranks"][0]["output"]


def said(trial, output, name):
    """The student's code has said what file it refuses."""
    trial.require(
        name in output, "nothing on stderr has its name", f"a line that says that {name} is refused"
    )


# ---- save -------------------------------------------------------------------------------------


@check("05.1a")
def two_newest(trial):
    trial.tried("saves after the steps 1, 9, 10 and 100, and once more of step 100")
    job, steps = a_job(trial), (1, 9, 10, 100, 100)
    given = [one for number in range(1, 6) for one in saves(trial, f"{number} saves", job, *steps[:number])]
    one(trial, "save", "a", saves=given)
    left = {"1 saves": [1], "2 saves": [1, 9], "3 saves": [9, 10], "4 saves": [10, 100], "5 saves": [10, 100]}
    for folder, files in look(trial, "a", *left).items():
        trial.tried(f"saves after the steps {', '.join(map(str, steps[: int(folder[0])]))}, in this order")
        trial.same("what lies in the folder", sorted(files), [name_of(step) for step in left[folder]])
        for name, facts in files.items():
            size = facts["size"]
            trial.require(size > 90, f"{name} has {size} bytes", "more than the tensors that were saved")


@check("05.1b")
def on_disk_first(trial):
    trial.tried("two saves; in the second, each fsync and each rename is noted")
    one(trial, "save", "b", saves=saves(trial, "snapshots", a_job(trial), 1, 2), events=True)
    events, name = trial.events(0), name_of(2)
    there = look(trial, "b", "snapshots")["snapshots"].get(name)
    trial.require(there is not None, f"{name} is not there", "it is")
    renames = [
        place
        for place, event in enumerate(events)
        if event.get("event") == "rename" and event.get("to") == name
    ]
    trial.require(renames, f"{name} was written under its own name", "another name first, then a rename")
    fsyncs = [(place, event) for place, event in enumerate(events) if event.get("event") == "fsync"]
    trial.require(fsyncs, "no os.fsync was called", "one on the file, before it gets its name")
    mine = [(place, event.get("size")) for place, event in fsyncs if event.get("inode") == there["inode"]]
    trial.require(
        mine,
        f"the file that is now {name} is another than that on which os.fsync was called",
        "the same: renamed, not copied",
    )
    before = [size for place, size in mine if place < renames[-1]]
    trial.require(before, f"os.fsync was called after the file had become {name}", "before")
    trial.require(
        there["size"] in before,
        f"at the os.fsync the file had {before[-1]} bytes, in the end {there['size']}",
        "all bytes: what is still in Python's own memory is not on the disk",
    )


# ---- load -------------------------------------------------------------------------------------


@check("05.2a")
def newest(trial):
    trial.tried(
        "load in an empty folder; after saves of the steps 99 and 100, of which 99 has the later date"
    )
    job = a_job(trial)
    given = saves(trial, "snapshots", job, 99, 100)
    one(trial, "save", "a", saves=given)
    other = {"notes.txt": b"step-00000500.snapshot", f"{name_of(400)}.refused": b"not for load"}
    age = {name_of(99): 2_000_000_000, name_of(100): 1_000_000_000}
    cases = [
        {"from": "snapshots", "to": "aged", "age": age, "write": other},
        {"from": "snapshots", "to": "one", "remove": [name_of(100)]},
        {"to": "empty"},
    ]
    ours(trial, "change", "a", cases=cases)
    came = one(trial, "load", "a", folders=["empty", "one", "aged"], job=job)
    loaded(trial, "in an empty folder,", came["empty"], None)
    loaded(trial, f"with {name_of(99)} alone,", came["one"], given[0])
    loaded(trial, f"with {name_of(99)} and {name_of(100)},", came["aged"], given[1])
    there = look(trial, "a", "aged")["aged"]
    trial.same("what lies in the folder afterwards", sorted(there), sorted([*age, *other]))


@check("05.1c")
def killed_in_a_save(trial):
    job, state = a_job(trial), a_state(trial)
    given, there = saved_in_peace(trial, job, state)
    before, whole = there["before"], there["whole"][name_of(3)]
    inputs = {"from": "before", "job": job, "step": 3, "state": state}
    folders = killed_at_every_file_event(trial, inputs) | ended_while_writing(trial, inputs, whole["size"])
    last = killed_from_outside(trial, job, state)

    there = look(trial, "c", FOR_EVER, *folders)
    what_was_saved_is_there(trial, there[FOR_EVER], last)
    for folder, what in folders.items():
        trial.tried(what)
        only_whole_snapshots_are_there(trial, there[folder], before, whole, cut=folder.startswith("of-"))
    trial.tried("load in each folder in which a save was killed")
    came = one(trial, "load", "c", folders=[FOR_EVER, *folders], job=job)
    for folder, what in folders.items():
        trial.tried(f"{what}; then load in another process")
        new = name_of(3) in there[folder]
        loaded(trial, "afterwards", came[folder], {"step": 3, "state": state} if new else given[1])
    trial.tried("saves without a pause, and SIGKILL from outside; then load in another process")
    names = snapshots(there[FOR_EVER])
    newest = {"step": int(names[-1][5:13]), "state": state} if names else None
    loaded(trial, "afterwards", came[FOR_EVER], newest)
    the_next_save_tidies_up(trial, job, folders)


def saved_in_peace(trial, job, state):
    """What a save leaves that nobody kills: steps 1 and 2 in "before", and step 3 after them in "whole"."""
    trial.tried("saves of steps 1, 2 and 3, none killed")
    given = saves(trial, "before", job, 1, 2)
    one(trial, "save", "c", saves=given)
    inputs = {"from": "before", "job": job, "step": 3, "state": state}
    one(trial, "save_and_die", "c", to="whole", at=0, **inputs)
    there = look(trial, "c", "before", "whole")
    trial.require(name_of(3) in there["whole"], f"{name_of(3)} is not there", "it is")
    return given, there


def killed_at_every_file_event(trial, inputs):
    """A save of step 3 for each time that it opens, renames or removes a file, killed at that time.
    Returns the folders in which they were killed, and words for each."""
    folders = {}
    for at in range(1, MOST_EVENTS):
        trial.tried(f"SIGKILL at the {at}. time that a save of step 3 opens, renames or removes a file")
        if one_killed(trial, "save_and_die", "c", to=f"at-{at}", at=at, **inputs) is None:
            break
        folders[f"at-{at}"] = f"SIGKILL at file event {at} of a save of step 3"
    trial.require(folders, "it was not ended: no file was opened, renamed or removed", "a save")
    return folders


def ended_while_writing(trial, inputs, size):
    """Saves of step 3 that end when a part of the bytes is written. Returns the folders, with words."""
    folders = {}
    for part in (0.03, 0.5, 0.97):
        largest = int(size * part)
        to, what = f"of-{largest}", f"an end after {largest} of {size} bytes of step 3 are written"
        trial.tried(what)
        ended = one_killed(trial, "save_and_die", "c", to=to, largest=largest, **inputs)
        trial.require(
            ended == TOO_LARGE,
            f"a file could not become larger than {largest} bytes, and save returned as if it had",
            "all bytes written (os.write may write less than it is given, and returns how much)",
        )
        folders[to] = what
    return folders


def killed_from_outside(trial, job, state):
    """Saves without a pause, killed at a moment that nobody chose. Returns the last step that was saved."""
    trial.tried("saves without a pause, and SIGKILL from outside")
    inputs = {"folder": FOR_EVER, "job": job, "state": state, "seconds": 3}
    ended = one_killed(trial, "save_for_ever", "c", after=0.2, **inputs)
    trial.require(ended == KILLED, "it was not ended by SIGKILL", "saves that go on")
    return max([0, *(event["step"] for event in trial.events(0, "saved"))])


def what_was_saved_is_there(trial, files, last):
    """Once save has returned for a step, no kill takes it away."""
    names = snapshots(files)
    trial.require(
        last < 2 or (len(names) >= 2 and names[-1] >= name_of(last)),
        f"after save had returned for step {last} there are {words(names)}",
        "at least that and the one before",
    )


def only_whole_snapshots_are_there(trial, files, before, whole, cut):
    """Under a snapshot's name there is a whole one: those from before as they were, and step 3 or nothing."""
    names = snapshots(files)
    trial.require(
        len(names) >= 2 and {*names} <= {*map(name_of, (1, 2, 3))},
        f"afterwards there are {words(names)}",
        f"{words(before)}, or {name_of(2)} with {name_of(3)}",
    )
    for name in before.keys() & {*names}:
        same = files[name]["digest"] == before[name]["digest"]
        trial.require(same, f"{name} has changed", "it is as it was")
    if name_of(3) in names:
        size = files[name_of(3)]["size"]
        trial.require(
            size >= 0.98 * whole["size"] and not cut,
            f"{name_of(3)} is there and has {size} bytes",
            f"{whole['size']} bytes, or no file of that name",
        )


def the_next_save_tidies_up(trial, job, folders):
    """What a killed save has left does not stay: after one more, there are two snapshots and nothing else."""
    trial.tried("one more save in each folder in which a save was killed")
    one(trial, "save", "c", saves=[one for folder in folders for one in saves(trial, folder, job, 4)])
    for folder, files in look(trial, "c", *folders).items():
        trial.require(
            name_of(4) in files and len(files) == 2 and name_of(1) not in files,
            f"after {folders[folder]} and one more save, of step 4, there lie {words(files)}",
            "the two newest snapshots",
        )


def prepare(trial, folder, *more):
    """Steps 1 and 2 in `snapshots`, by the student's save, and more saves elsewhere."""
    job = a_job(trial)
    given = saves(trial, "snapshots", job, 1, 2)
    others = [one for to, step, change in more for one in saves(trial, to, change(job), step)]
    one(trial, "save", folder, saves=[*given, *others])
    return job, given


@check("05.2b")
def damaged(trial):
    trial.tried("steps 1 and 2, and the snapshot of step 2 cut in the middle")
    job, given = prepare(trial, "b")
    size = look(trial, "b", "snapshots")["snapshots"].get(name_of(2), {}).get("size", 0)
    trial.require(size > 90, f"{name_of(2)} has {size} bytes", "a snapshot")
    cases, told = [{"from": "snapshots", "to": "cut", "cut": {name_of(2): size // 2}}], {}
    cuts = {0, 1, 2, 3, 4, 8, size - 1, size - 2, size - 4, size - 5, *trial.integers(0, size, 10).tolist()}
    for cut in sorted(cut for cut in cuts if 0 <= cut < size):
        to = f"cut-{cut}"
        told[to] = f"of {size} bytes only the first {cut} are left"
        cases.append({"from": "snapshots", "to": to, "cut": {name_of(2): cut}})
    for place in trial.integers(0, size, 30).tolist():
        to = f"flip-{place}"
        told[to] = f"byte {place} of {size} has another bit"
        bits = 1 << int(trial.integers(0, 8))
        cases.append({"from": "snapshots", "to": to, "flip": {name_of(2): [[place, bits]]}})
    for first in (0, size // 4, size // 2):
        to = f"zero-{first}"
        told[to] = f"bytes {first} to {first + size // 4} of {size} are zero"
        cases.append({"from": "snapshots", "to": to, "zero": {name_of(2): [first, size // 4]}})
    both = {name_of(1): size // 2, name_of(2): size // 3}
    cases.append({"from": "snapshots", "to": "both", "cut": both})
    cases = list({case["to"]: case for case in cases}.values())
    ours(trial, "change", "b", cases=cases)
    came = one(trial, "load", "b", folders=["cut"], job=job)
    loaded(trial, "with the newest cut in the middle,", came["cut"], given[0])
    said(trial, output_of(trial), name_of(2))
    trial.tried("steps 1 and 2, and the snapshot of step 2 cut short anywhere, or with damaged bytes")
    came = one(trial, "load", "b", folders=[*told, "both"], job=job)
    loaded(trial, "if both are cut,", came["both"], None)
    for to, what in told.items():
        # A byte may be damaged that means nothing: then it is no fault to take the file.
        got = came[to]
        harmless = not to.startswith("cut") and isinstance(got, list) and got[:1] == [2]
        loaded(trial, f"if of {name_of(2)} {what},", got, given[1] if harmless else given[0])


@check("05.2c")
def foreign(trial):
    others = (
        ("a snapshot of a job with another seed", 11, lambda job: job | {"seed": job["seed"] + 1}),
        ("a snapshot of a job with one more setting", 12, lambda job: job | {"epochs": 3}),
        ("a snapshot of a job with one setting less", 13, lambda job: {"name": job["name"]}),
    )
    contents = {
        "a text": b"step 7 of my other program\n" * 40,
        "a file of zeros": bytes(1000),
        "noise": trial.integers(0, 256, 3000).to(torch.uint8).numpy().tobytes(),
    }
    job, given = prepare(trial, "c", *((f"of-{step}", step, change) for _, step, change in others))
    files, cases = {}, []
    for what, step, _ in others:
        files[what] = name_of(step)
        copied = {name_of(step): f"of-{step}/{name_of(step)}"}
        cases.append({"from": "snapshots", "to": what, "copy": copied})
    for step, (what, data) in enumerate(contents.items(), 14):
        files[what] = name_of(step)
        cases.append({"from": "snapshots", "to": what, "write": {name_of(step): data}})
    files["a tensor in a file of torch.save"] = name_of(17)
    planted = {name_of(17): ["other", ""]}
    cases.append({"from": "snapshots", "to": "a tensor in a file of torch.save", "plant": planted})
    trial.tried("steps 1 and 2, and as a newer one what is none of this job's")
    ours(trial, "change", "c", cases=cases)
    came = one(trial, "load", "c", folders=list(files), job=job)
    for what, name in files.items():
        trial.tried(f"steps 1 and 2, and as {name} {what}")
        loaded(trial, f"beside {what},", came[what], given[1])
        said(trial, output_of(trial), name)


@check("05.2d")
def hostile(trial):
    job, given = prepare(trial, "d")
    trial.tried("your own save, of a state that has an object which runs code when it is loaded")
    one(trial, "save_hostile", "d", folder="own", step=21, job=job, ran="ran-own")
    kinds = {
        "own": "what your own save has written of an object that runs code when it is loaded",
        "pickle": "a pickle that runs code when it is loaded",
        "torch": "a file of torch.save that runs code when it is loaded",
    }
    names = {kind: name_of(step) for step, kind in enumerate(kinds, 21)}
    cases = [{"from": "snapshots", "to": "with-own", "copy": {names["own"]: f"own/{names['own']}"}}]
    for kind in ("pickle", "torch"):
        planted = {names[kind]: [kind, f"ran-{kind}"]}
        cases.append({"from": "snapshots", "to": f"with-{kind}", "plant": planted})
    ours(trial, "change", "d", cases=cases)
    trial.tried("steps 1 and 2, and as a newer one a file that runs code when it is loaded")
    there = look(trial, "d", "with-own")["with-own"]
    came = one(trial, "load", "d", folders=[case["to"] for case in cases], job=job)
    output, ran = output_of(trial), look(trial, "d", ".")["."]
    for kind, what in kinds.items():
        trial.tried(f"steps 1 and 2, and as {names[kind]} {what}")
        harmless = f"ran-{kind}" not in ran
        trial.require(harmless, f"loading {names[kind]} has run its code", "no code in a file is run")
        loaded(trial, "beside the hostile file,", came[f"with-{kind}"], given[1])
        if kind != "own" or names[kind] in there:
            said(trial, output, names[kind])


@check("05.2e")
def put_aside(trial):
    trial.tried("steps 1 and 2 and another job's step 7; load, saves of the steps 3 and 4, load")
    job, given = prepare(trial, "e", ("other", 7, lambda job: job | {"lr": 0.2}))
    copied, refused = {name_of(7): f"other/{name_of(7)}"}, f"{name_of(7)}.refused"
    ours(trial, "change", "e", cases=[{"from": "snapshots", "to": "both", "copy": copied}])
    loaded(trial, "first", one(trial, "load", "e", folders=["both"], job=job)["both"], given[1])
    there = look(trial, "e", "both", "other")
    trial.same(
        "what lies in the folder after the load", sorted(there["both"]), [name_of(1), name_of(2), refused]
    )
    precious = there["other"].get(name_of(7), {}).get("digest")
    more = saves(trial, "both", job, 3, 4)
    one(trial, "save", "e", saves=more)
    there = look(trial, "e", "both")["both"]
    trial.same("what lies there after two more saves", sorted(there), [name_of(3), name_of(4), refused])
    same = there[refused]["digest"] == precious
    trial.require(same, f"{refused} has another content", "the other job's snapshot")
    loaded(trial, "at last", one(trial, "load", "e", folders=["both"], job=job)["both"], more[1])


# ---- in the middle of an epoch ----------------------------------------------------------------


def batches_of(count, job):
    found = []
    for epoch in range(job["epochs"]):
        generator = torch.Generator().manual_seed(job["seed"] + epoch)
        found += torch.randperm(count, generator=generator).split(job["batch_size"])
    return found


@check("05.3a")
def rest_of_epoch(trial):
    cases = []
    for count, size, epochs in ((12, 4, 2), (17, 5, 3), (3, 8, 2)):
        job = {"epochs": epochs, "batch_size": size, "seed": int(trial.integers(0, 10**6)), "every": 2}
        steps = epochs * -(-count // size)
        inside = int(trial.integers(1, steps))
        cases += [
            {"step": step, "count": count, "job": job} for step in sorted({0, inside, steps - 1, steps})
        ]
    trial.tried(f"the batches that are left, {len(cases)} times")
    came = one(trial, "batches", "a", cases=cases)
    found = came.get("batches")
    for case, got in zip(cases, found, strict=True):
        job, step = case["job"], case["step"]
        expected = batches_of(case["count"], job)[step:]
        trial.tried(
            f"{case['count']} images by {job['batch_size']}, {job['epochs']} epochs, after {step} steps"
        )
        trial.same("the number of batches", len(got), len(expected))
        for number, batch in enumerate(expected):
            trial.same(f"the batch of step {step + number + 1}", got[number], batch)
    trial.same("whether torch's own random numbers were left alone", came["untouched"], True)


SHAPES = {
    "first.weight": (8, 6),
    "first.bias": (8,),
    "norm.weight": (8,),
    "norm.bias": (8,),
    "second.weight": (3, 8),
    "second.bias": (3,),
}


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
            model = by_path.driver("05_snapshot").Model(self.weights)
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
        return given | more

    def newest(self, folder):
        """The step of the newest snapshot, 0 if there is none."""
        names = look(self.trial, folder, "snapshots")["snapshots"]
        steps = [name_of(step) for step in range(1, len(self.batches) + 1)]
        return max([0, *(steps.index(name) + 1 for name in names if name in steps)])

    def ends_as_it_must(self, came, after):
        trial = self.trial
        losses = came.get("losses")
        expected = {step: loss for step, loss in self.losses.items() if step > after}
        steps = sorted(losses) if isinstance(losses, dict) else losses
        trial.same("the steps that were taken", steps, sorted(expected))
        for step, loss in expected.items():
            trial.close(f"the loss of step {step}", losses[step], loss, relative=2e-4, scale=1.0)
        for name, tensor in self.state.items():
            trial.close(f"{name} in the end", came["model"].get(name), tensor, relative=2e-4, scale=1.0)
        for name, tensor in self.momentum.items():
            what, got = f"the momentum of {name} in the end", came["momentum"].get(name)
            trial.close(what, got, tensor, relative=2e-4, scale=1.0)
        trial.close("the next random numbers", came["random"], self.next_random)


@check("05.3b")
def one_curve(trial):
    training = Training(trial)
    trial.tried("a training of 12 steps, two epochs, that is not killed")
    training.ends_as_it_must(one(trial, "train", "whole", **training.inputs()), 0)
    trial.tried("12 steps, two epochs, a snapshot every 2 steps; SIGKILL in step 10")
    ended = one_killed(trial, "train", "b", **training.inputs(die_in=10))
    trial.require(
        ended == KILLED, "the training came to its end, or was not killed in step 10", "10 forwards"
    )
    trial.same("the step of the newest snapshot", training.newest("b"), 8)
    trial.tried(
        "12 steps, two epochs; SIGKILL in step 10; another process goes on from step 8, with other weights "
        "and random numbers to begin with, and NaN in all images that the second epoch has seen before"
    )
    inputs = training.inputs(8)
    inputs["images"] = training.images.clone()
    inputs["images"][torch.cat(training.batches[6:8])] = float("nan")
    training.ends_as_it_must(one(trial, "train", "b", **inputs), 8)


@check("05.3c")
def killed_again_and_again(trial):
    training, after = Training(trial), 0
    for number, kind in enumerate(("file", "step", "file", "step"), 1):
        if kind == "file":
            at = int(trial.integers(2, 9))
            what = f"process {number} begins after step {after}; SIGKILL at its {at}. open, rename or remove"
            inputs = training.inputs(after, at=at)
        else:
            what = f"process {number} begins after step {after}; SIGKILL in its 4. step"
            inputs = training.inputs(after, die_in=4)
        trial.tried(f"12 steps, a snapshot every 2 steps, several kills; {what}")
        if one_killed(trial, "train", "c", **inputs) is None:
            break
        before, after = after, training.newest("c")
        least = before if kind == "file" else (before + 3) // 2 * 2
        trial.require(
            after >= least, f"the newest snapshot after that is of step {after}", f"of step {least}, or later"
        )
    after = training.newest("c")
    trial.tried(
        f"12 steps, a snapshot every 2 steps, {number} kills; the last process begins after step {after}"
    )
    training.ends_as_it_must(one(trial, "train", "c", **training.inputs(after)), after)


# ---- several processes ------------------------------------------------------------------------


MANY = 20_000


def large_state(trial):
    """So large that its bytes stand out from all others that processes send."""
    return a_state(trial) | {"large": trial.floats(MANY)}


def sent(trial, world_size):
    """Bytes that each rank has sent between the marks, as the kernel counts them; None if it does not."""
    marks = [[trial.mark(rank, name) for name in ("before", "after")] for rank in range(world_size)]
    if not any(mark["sockets"] for pair in marks for mark in pair):
        return None
    return [after["sent"] - before["sent"] for before, after in marks]


def save_all(trial, folder, disk, world_size, *steps):
    """Each rank saves, at each step, its own state. Returns the job and the saves by rank."""
    job = a_job(trial)
    given = [saves(trial, disk, job, *steps, state=large_state) for _ in range(world_size)]
    inputs = [{"job": job, "disk": disk, "saves": mine} for mine in given]
    for rank, came in enumerate(trial.run("together", inputs, folder=folder)):
        for step, there in zip(steps, came["there"], strict=True):
            trial.require(
                there,
                f"save_together returned on rank {rank} before {name_of(step)} was there",
                "no rank goes on before",
            )
    for rank, count in enumerate(sent(trial, world_size) or ()):
        trial.require(
            rank == 0 or count > 2 * MANY * len(steps),
            f"rank {rank} has sent {count} bytes in {len(steps)} saves",
            f"its state of {4 * MANY} bytes each time, for rank 0 to write",
        )
    return job, given


def all_loaded(trial, ranks, expected):
    for rank, came in enumerate(ranks):
        loaded(trial, f"on rank {rank}", came.get("came"), expected[rank] if expected else None)
    for rank, count in enumerate(sent(trial, len(ranks)) or ()):
        trial.require(
            rank or not expected or count >= 2 * MANY * (len(ranks) - 1),
            f"rank 0 has sent {count} bytes to the others",
            f"at least the state of each, of {4 * MANY} bytes: what rank 0 has found",
        )


@check("05.4a")
def together(trial):
    for world_size in (2, 3, 1):
        trial.tried(
            f"{world_size} processes, other states on each, each with a disk of its own; steps 1 and 2"
        )
        disk = f"disk-of-{world_size}"
        job, given = save_all(trial, "a", disk, world_size, 1, 2)
        disks = [f"{disk}-{rank}" for rank in range(world_size)]
        for rank, files in enumerate(look(trial, "a", *disks).values()):
            expected = [] if rank else [name_of(1), name_of(2)]
            trial.same(f"what lies on the disk of rank {rank}", sorted(files), expected)
        trial.tried(f"{world_size} processes load what {world_size} others have saved")
        ranks = trial.run("load_together", [{"job": job, "disk": disk}] * world_size, folder="a")
        all_loaded(trial, ranks, [mine[1] for mine in given])


@check("05.4b")
def the_same_everywhere(trial):
    trial.tried("4 processes save the steps 1 and 2")
    job, given = save_all(trial, "b", "disk", 4, 1, 2)
    files = look(trial, "b", "disk-0")["disk-0"]
    trial.require(name_of(2) in files, f"on the disk of rank 0 there are {words(files)}", name_of(2))
    cases = [
        {"from": "disk-0", "to": "torn-0", "cut": {name_of(2): files[name_of(2)]["size"] // 2}},
        {"from": "disk-0", "to": "torn-1"},
        {"to": "torn-2"},
        {"from": "disk-0", "to": "torn-3", "remove": [name_of(1)]},
        {"to": "none-0"},
        {"from": "disk-0", "to": "none-1"},
        {"from": "disk-0", "to": "none-2", "remove": [name_of(2)]},
        {"to": "none-3"},
    ]
    ours(trial, "change", "b", cases=cases)
    trial.tried(
        "4 processes; on rank 0 step 2 is cut, on ranks 1 and 3 it is whole, on rank 2 there is nothing"
    )
    ranks = trial.run("load_together", [{"job": job, "disk": "torn"}] * 4, folder="b")
    all_loaded(trial, ranks, [mine[0] for mine in given])
    trial.tried("4 processes; rank 0 has no snapshot, the others have one")
    all_loaded(trial, trial.run("load_together", [{"job": job, "disk": "none"}] * 4, folder="b"), None)
