"""What a student or an instructor is promised of the grader: tests/exercises/grader."""

import contextlib
import ctypes
import errno
import json
import os
import platform
import pty
import random
import re
import signal
import struct
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import mutants
import pytest
import torch
from grader import (
    batch,
    causes,
    comparing,
    exercises,
    hints,
    plugin,
    printed,
    ranks,
    seccomp,
    submissions,
    waits,
    walls,
    wording,
)
from grader.results import Result, Verdict
from grader.settings import HERE, SANDBOX, SOLUTIONS, STARTERS

from tools.lessons import ROOT

NAME = "03_average_gradients.py"
SOLUTION, STARTER = (folder / NAME for folder in (SOLUTIONS, STARTERS))
NO_FILE = {"work.py": ""}
EXERCISES = [one["id"] for one in exercises.manifest()]


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    yield
    ranks.BOX.close()


@pytest.fixture
def another_sandbox(monkeypatch):
    """Put a sandbox of this level in the place of the one that all tests share."""
    started = []

    def another_sandbox(level=None):
        box = ranks.Sandbox()
        box.level = level
        started.append(box)
        monkeypatch.setattr(ranks, "BOX", box)
        return box

    yield another_sandbox
    for box in started:
        box.close()


@pytest.fixture
def fails(monkeypatch):
    """The Verdict on a file whose function `work` runs on so many ranks, and comes to nothing."""

    def fails(text, world_size=2, seconds=20):
        monkeypatch.setattr(ranks.Submission, "seconds", seconds)
        monkeypatch.setattr(ranks.Submission, "printed", [])
        with pytest.raises(Verdict) as error:
            ranks.run(work, list(range(world_size)), files={"work.py": text})
        return error.value

    return fails


def work(student, me, given):
    return student.work(given)


def bare_rank():
    """What is seen of a rank, without a process."""
    rank = ranks.Rank(0)
    for descriptor in (*rank.theirs, rank.given, *rank.pipes.values()):
        os.close(descriptor)
    return rank


@pytest.fixture
def grade(capfd, tmp_path):
    """The results by check of files, or of a text for exercise 03, as a class gets them; `said` is what was
    printed. A check is graded alone: what it needs counts as passed."""

    def grade(files, only, *more):
        folder = tmp_path / "submission"
        put({NAME: files} if isinstance(files, str) else files, folder)
        if re.fullmatch(r"\w+\.\d+[a-z]", only):
            more = ("-k", f"test_{only.partition('.')[2]}_", *more)
        with capfd.disabled():
            found, grade.said = batch.grade(folder, only, 0, more)
        return {one["id"]: SimpleNamespace(**one) for some in found.values() for one in some}

    return grade


def put(files, folder):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def entry_of(identity):
    one = exercises.exercise(identity.partition(".")[0])
    return next(entry for entry in one["check"] if entry["id"] == identity)


def check(*words):
    """Status and output of pytest as `make check` starts it."""
    command = [sys.executable, "-m", "pytest", "tests/exercises", "--confcutdir", HERE]
    command += ["-p", "no:cacheprovider", "-q", *words]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


def make(*words, **more):
    """`make` with these words. If `make test` runs this, the inner make must not know of it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    words = ["make", *words, f"PYTHON={sys.executable}"]
    return subprocess.run(words, cwd=ROOT, env=environment, text=True, **more)


# ---- what came of a run, in words -------------------------------------------------------------

# The body of `work`, and what is said of it. Line 4 is the first of the body.
WORK = """import os, threading, time
import torch, torch.distributed as dist
def work(rank):
{code}
    dist.all_reduce(torch.ones(3))
def helper(tensor):
    return tensor.shape
"""
BLAME = {
    "leaves early": (
        "if rank == 1: return",
        r"rank 1 returned before all_reduce number 1 \(line 5 of work.py\); rank 0 was waiting for it$",
    ),
    "three wait for one": (
        "if rank == 1: return",
        r"rank 1 returned before all_reduce number 1 .*; ranks 0 and 2 were waiting for it$",
        3,
    ),
    "another call": (
        "if rank: return dist.broadcast(torch.ones(3), 0)",
        r"^the ranks do not make the same calls: rank 0 called all_reduce number 1 .*, rank 1 called broad",
    ),
    "another size": (
        "dist.all_reduce(torch.ones(3 + rank))",
        "tensors of different size: rank 0 gives 3 numbers, rank 1 gives 4 numbers$",
    ),
    "raises": (
        "if rank == 1: raise ValueError('mine')",
        r"^rank 1 raised ValueError: mine at line 4 of work.py: `if .*`; rank 0 was waiting for it in all_re",
    ),
    "dies": ("if rank == 1: os.kill(os.getpid(), 9)", "^rank 1 was killed by SIGKILL"),
    "never ends": (
        "while rank == 1: pass",
        r"^rank 1 was at line 4 of work.py: `while rank == 1: pass` and had not returned after 2 s; "
        r"rank 0 was waiting for it in all_reduce number 1",
    ),
    "sleeps": (
        "if rank == 1: time.sleep(1000)",
        r"^rank 1 was at line 4 of work.py: `if .* time.sleep\(1000\)` and had not returned after 2 s; rank",
    ),
    "waits for nobody": (
        "if rank == 1: return\n    threading.Event().wait()",
        r"^the run was stuck: rank 1 returned, and rank 0 was at line 5 of work.py: `threading.Event",
    ),
    "asks the keyboard": (
        "breakpoint()",
        r"^rank [01] raised RuntimeError: breakpoint\(\) cannot work here: no process of the grader has a "
        r"keyboard; use print at line 4 of work.py: `breakpoint\(\)`",
    ),
    "a helper raises": (
        "helper(None)",
        r"raised AttributeError: .* at line 7 of work.py: `return tensor.shape`, called in line 4: `helper",
    ),
    "send without receive": (
        "dist.send(torch.zeros(1 << 20), 1 - rank)",
        r"^all ranks are waiting and none can go on: rank 0 in send number 1 to rank 1 .*; rank 1 in send "
        r"number 1 to rank 0 .*; messages that were not received: 1 from rank 0 to rank 1, 1 from rank 1",
    ),
    "no such function": ("pass\ndel work\ndef other():", "^there is no work in work.py"),
}


@pytest.mark.parametrize("fault", BLAME)
def test_the_earliest_cause_is_named(fault, fails):
    code, words, *world_size = BLAME[fault]
    text = WORK.replace("{code}", f"    {code}")
    came = fails(text, *world_size or [2], seconds=2 if fault in ("never ends", "sleeps") else 20).came
    assert re.search(words, came), came
    assert "after 20 s" not in came  # the grader sees that nothing moves, and does not wait for the limit


def test_a_bystander_is_not_the_cause_even_if_it_is_heard_first():
    closed = {"kind": "RuntimeError", "words": "Connection closed by peer [127.0.0.1]:1234", "time": 1.0}
    seen = [bare_rank().seen() for _ in range(3)]
    seen[0]["error"] = seen[2]["error"] = closed
    seen[1] |= {"ended": -9, "time": 1.1}
    with pytest.raises(Verdict, match=r"^rank 1 was killed by SIGKILL$"):
        causes.explain("done", 1.2, seen, {NAME: ""}, ())


@pytest.mark.parametrize("src", ["src=dist.get_rank()", "dist.get_rank()", "src=1"])
def test_broadcasts_from_different_ranks_say_so(src, grade):
    came = grade(SOLUTION.read_text().replace("src=0", src), "03.1a")["03.1a"].came
    line = 1 + SOLUTION.read_text().split("src=0")[0].count("\n")
    words = (
        f"; the ranks call broadcast number 1 (line {line} of 03_average_gradients.py) with different values "
    )
    words += "of src: rank 0 with src=0, rank 1 with src=1"
    words = "; these are numbers that rank 1 was given" if src == "src=1" else words
    assert came.endswith(words), came


def test_the_hint_follows_what_came():
    """The check's own `when` goes before a general kind, and that before the check's first hint."""
    entry = {"id": "03.1a", "hints": ["one", "two", "three"], "when": [["is 3", "own"], ["is 4", ""]]}
    entry["when"].append(["is 6", "of", "another", "fault"])

    def shown(came, count=1):
        result = Result("03.1a", "", 1, status="failed", came=came, hints=hints.fitting(entry, came))
        return wording.helpful(result, count)

    assert shown("it is 3") == ["own"] and shown("it is 4") == [] and shown("it is 5") == ["one"]
    assert shown("it is 3", 4) == ["own", "one", "two", "three"]
    assert shown("it is 6", 4) == ["of", "another", "fault"]
    assert shown("it is 4", 4) == shown("not written yet: 03.1: it is 5", 4) == ["one", "two", "three"]
    assert shown("not written yet: 03.1: it is 5") == []
    # Whoever has passed 03.2a divides by the number of ranks: in 03.2c something else is wrong.
    came = "it: 2 at [0]; every number is 3 times what it should be, and there are 3 processes"
    assert (hints.kind(entry_of("03.2a"), came), hints.kind(entry_of("03.2c"), came)) == ("a sum", "")
    # Of a loop without an end, the line comes first, and the check's own hint would mislead.
    stack = '(most recent call first):\n  File "a.py", line 2 in f\n  File "b.py", line 9 in g\n'
    one = bare_rank().seen() | {"ended": -24, "output": f"some words\n{stack}"}
    cause = causes.ended(0, one, "your code", {"a.py": "def f():\n    while True: pass\n"})
    assert cause.came.startswith(
        "your code was at line 2 of a.py: `while True: pass` when it had used up its"
    )
    assert cause.status == "timeout" and shown(cause.came) == []


# For each kind of hint a line of `work`, or what came and what was expected, each on 3 ranks.
THREE = torch.tensor([1.0, 2.0, 3.0])
KINDS = {
    "not begun": 'raise NotImplementedError("03.2: a")',
    "no keyboard": "input()",
    "no files": "open('log', 'w')",
    "an error in Python": "torch.ons(3)",
    "never ends": "while True: pass",
    "one goes home": "if rank == 1: return",
    "all wait": "dist.send(torch.zeros(1 << 20), (rank + 1) % 3)",
    "a tensor for a number": "it is a tensor",
    "another dtype": (THREE.bfloat16(), THREE),
    "a sum": (3 * THREE, THREE),
    "a mean": (THREE / 3, THREE),
    "rounding": (THREE * 1.00003, THREE),
    "no gradient": (None, THREE),
    "nothing": "it is None",
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_failure_has_its_hint(kind, fails):
    assert set(KINDS) == set(hints.ALWAYS | hints.PLAIN)
    came = KINDS[kind]
    if isinstance(came, tuple):
        with pytest.raises(Verdict) as error:
            what = "the gradient of a" if kind == "no gradient" else "it"
            comparing.close(what, *came, given=[{}] * 3, dtype=torch.float32)
        came = error.value.came
    elif not came.startswith("it is"):
        came = fails(WORK.replace("{code}", f"    {came}"), 3, seconds=2 if "ends" in kind else 20).came
    entry = entry_of("03.2a")
    assert hints.kind(entry, came) == kind, came
    assert hints.fitting(entry | {"when": []}, came) == [
        (hints.ALWAYS | hints.PLAIN)[kind][1],
        *entry["hints"],
    ]


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (None, "is None"),
        ("passed", "is 'passed'"),
        (True, "is True"),
        ([1.0, 2.0, 3.0], "is [1.0"),
        (THREE[:2], "has the shape 2"),
        (torch.tensor([1.0, 2.0, torch.nan]), "nan at [2]"),
        (torch.tensor([1.0, 2.0, torch.inf]), "inf at [2]"),
        (torch.tensor([1.0, 2.0, 3.001]), "3.001 at [2] (1 of 3 numbers is wrong)"),
        (2 * THREE, "every number is 2 times what it should be"),
        (-THREE, "every number has the wrong sign"),
        (THREE.flip(0), "these are numbers that rank 1 was given"),
        (torch.tensor([1.0, 2.0, 3.00001]), ""),
    ],
)
def test_what_is_close(got, words):
    given = [{"mine": THREE * 7}, {"mine": [THREE.flip(0)]}]
    if not words:
        comparing.close("it", got, THREE, given=given)
        comparing.close("it", got - 3, THREE - 3)
        comparing.close(
            "it", torch.tensor([5e-7]), torch.zeros(1)
        )  # what is small by chance keeps a rounding
        return
    with pytest.raises(Verdict) as verdict:
        comparing.close("it", got, THREE, given=given)
    assert verdict.value.status == "failed" and words in verdict.value.came, verdict.value.came


# ---- what stands in a file --------------------------------------------------------------------

DEEP = {
    "minus": "-" * 190_000 + "1",
    "calls": "f" + "()" * 90_000,
    "brackets": "[" * 190_000,
}


@pytest.mark.parametrize("kind", DEEP)
def test_no_text_makes_the_grader_fall_over(kind):
    assert submissions.no_python(NAME, DEEP[kind]).startswith(NAME)


# For each exercise, a line that uses what the exercise forbids.
FORBIDDEN = {
    "03": "torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))",
    "03b": "getattr(torch.nn.parallel, 'Distributed' + 'DataParallel')(torch.nn.Linear(1, 1))",
    "03a": "dist.distributed_c10d.reduce(torch.ones(1), 0)",
    "02": "from torch.nn.parallel.parallel_apply import parallel_apply as apply; apply([], [])",
}


@pytest.mark.parametrize("exercise", FORBIDDEN)
def test_what_is_forbidden_is_not_there(exercise, fails, monkeypatch):
    monkeypatch.setattr(ranks.Submission, "forbidden", exercises.exercise(exercise)["forbidden"])
    came = fails(WORK.replace("{code}", f"    {FORBIDDEN[exercise]}")).came
    assert "must not be used in this exercise at line 4 of work.py" in came, came


@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1"])
def test_a_mark_in_front_costs_nothing(encoding, tmp_path):
    """Some editors write one. Any other encoding is told in a line."""
    (tmp_path / NAME).write_bytes("# \u00e9\n".encode(encoding))
    words = f"^{NAME} is not encoded in UTF-8: save it as UTF-8 in your editor$"
    with contextlib.nullcontext() if "sig" in encoding else pytest.raises(Verdict, match=words):
        assert submissions.read_files(exercises.exercise("03"), tmp_path) == {NAME: "# \u00e9\n"}


def test_a_file_that_is_no_python_is_said_once(grade):
    """Also by checks that need no other."""
    name = exercises.exercise("03a")["files"][0]
    first, *others = grade({name: "def chunks_of(flat:\n"}, "03a").values()
    assert first.came == f"{name} has a syntax error in line 1: '(' was never closed"
    assert {one.status for one in others} == {"not reached"} and "hint" not in grade.said


# ---- what a rank sends, and what it can learn -------------------------------------------------

TENSOR = '{"value": {"dtype": "%s", "shape": %s, "bytes": "%s"}}'
NONSENSE = {
    "no JSON": "a result",
    "nothing": "",
    "a list": "[1]",
    "a number": "3",
    "a word": '"value"',
    "too deep": '{"value": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "a number of 400 digits": '{"value": 1' + "0" * 400 + "}",
    "a number of 5000 digits": '{"value": 1' + "0" * 5000 + "}",
    "too many values": '{"value": [' + "[]," * 2_000_000 + "[]]}",
    "an error that is none": '{"error": [1]}',
    "code for a dtype": TENSOR % ("os.system", "[1]", ""),
    "more than it says": TENSOR % ("float32", "[2]", "AAAA"),
    "half a number": TENSOR % ("float32", "[1]", "AAA="),
    "no base64": TENSOR % ("float32", "[1]", "###"),
    "from nothing": TENSOR % ("float32", "[1000000000]", ""),
    "from nothing, and too long": TENSOR % ("float32", "[1000000000000]", ""),
    "a shape of 30 digits": TENSOR % ("float32", "[1" + "0" * 30 + "]", "AAAAAA=="),
    "a shape of words": TENSOR % ("float32", '["a"]', "AAAAAA=="),
    "a call without numbers": '{"event": "all_reduce", "phase": "begin", "number": "1"}',
    "a call at a list": '{"event": "all_reduce", "phase": "begin", "where": []}',
    "a dict for a name": '{"event": {}}',
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_an_error_of_the_rank(kind):
    rank, began = bare_rank(), time.process_time()
    rank.hear(NONSENSE[kind].encode(), 0.0)
    assert rank.error["kind"] == "BadFrame" and rank.value is None and rank.events == []
    with pytest.raises(Verdict, match=r"^your code sent something that is not a valid result \("):
        causes.explain("done", 1.0, [rank.seen() | {"time": 1.0}], {NAME: ""}, ())
    assert time.process_time() - began < 5


def test_a_rank_says_so_much_and_no_more(monkeypatch):
    rank = bare_rank()
    for _ in range(20_002):
        rank.hear(b'{"event": "all_reduce", "phase": "begin"}', 0.0)
    assert rank.error["kind"] == "BadFrame"
    rank = bare_rank()
    rank.hear(b'{"value": 1}', 0.0)
    rank.hear(b'{"value": 2}', 0.0)
    assert rank.error["words"] == "ValueError: something after the result" and rank.value is None


@pytest.mark.parametrize("why", ["done", "stuck", "timeout"])
def test_no_call_makes_the_words_fall_over(why):
    """What a call has not said of itself is filled in: name, number, size."""
    seen = []
    for _ in range(2):
        rank = bare_rank()
        rank.hear(b'{"phase": "begin", "peer": {}, "root": [], "operations": 3}', 0.0)
        seen.append(rank.seen())
    if why == "done":
        seen[0]["error"] = {"kind": "RuntimeError", "words": "gloo/transport", "time": 1.0}
    with pytest.raises(Verdict):
        causes.explain(why, 1.2, seen, {NAME: ""}, ())
    assert waits.different_roots(dict(enumerate(seen))) == ""


@pytest.mark.parametrize(
    "got, expected, words",
    [
        ([*range(90), 91], [*range(91)], "; missing: 90; not expected: 91"),
        ({"a": 1, "b": 2}, {"a": 1}, "; not expected: 'b': 2"),
        ({1, 2}, {1, 2, 3}, "; missing: 3"),
        ([2, 1, 1], [1, 2, 1], "; the items are right, but in a different order"),
        ([], [1, 2], "it is []"),
    ],
)
def test_what_two_lists_do_not_share(got, expected, words):
    with pytest.raises(Verdict) as verdict:
        comparing.same("it", got, expected)
    assert verdict.value.came.endswith(words)


def test_what_is_much_too_long_costs_the_grader_no_time():
    began = time.process_time()
    with pytest.raises(Verdict, match="the list has 60000000 numbers"):
        comparing.same("the list", [torch.zeros(30_000_000, dtype=torch.uint8)] * 2, [1, 2])
    verdict = Verdict("failed", "gradient " * 100_000, "gradient " * 100_000)
    assert hints.kind(entry_of("06b.1a"), verdict.came, verdict.expected) == ""
    assert time.process_time() - began < 5


def look_around(student, me, note):
    """What a rank finds in its memory, and what it can open of others."""
    found, opened = set(), []
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            first, last = (int(word, 16) for word in line.split()[0].split("-"))
            if "rw" in line:
                with contextlib.suppress(OSError, ValueError):
                    memory.seek(first)
                    found |= set(re.findall(rb"for rank \d+!", memory.read(last - first)))
    others = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
    places = [
        f"/proc/{pid}/{name}" for pid in others for name in ("mem", "environ", "maps", "fd/100", "fd/101")
    ]
    for place in [*places, f"{me.folder.parent}/{1 - me.rank}/.", f"/proc/{os.getppid()}/root/."]:
        with contextlib.suppress(OSError):
            os.close(os.open(place, os.O_RDONLY))
            opened.append(place)
    return {"found": sorted(word.decode() for word in found), "opened": opened}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_rank_learns_nothing_that_others_were_given():
    """Not in this run, and not of the run before. What it was given itself is found."""
    for notes in (["for rank 10!", "for rank 11!"], ["for rank 20!", "for rank 21!"]):
        for note, came in zip(notes, ranks.run(look_around, notes, files=NO_FILE), strict=True):
            assert came["found"] == [note]
            # At level 1, Landlock keeps others' memory shut, but not their environments (no answers there).
            names = () if walls.machine()["level"] > 1 else ("/environ", "/maps")
            opened = [place for place in came["opened"] if not place.endswith(names)]
            assert opened == [] or not walls.machine()["landlock"]


def numbers(student, me, given):
    return [torch.initial_seed(), random.random(), student.word, os.getpid()]


def test_a_rank_knows_nothing_from_which_the_grader_draws():
    plugin.seed_all("0/any")
    files = {"work.py": "word = hash('word')\n"}
    one, other = ranks.run(numbers, [{}, {}], files=files)
    assert not set(one) & {*other, torch.initial_seed(), random.getstate()[1][0]}


@pytest.mark.long("spawned")
@pytest.mark.quick("forked")
@pytest.mark.parametrize("way", ["forked", "spawned"])
def test_numbers_come_back_as_they_were(way, another_sandbox, monkeypatch):
    """Also where each rank is started anew, as on macOS: a process that has imported torch must not fork
    there."""
    if way == "spawned":
        monkeypatch.setenv("RUNGS_SPAWN", "1")
        another_sandbox()
    given = {
        "a": [1, -2.5, "x", None, True, float("inf")],
        "b": {"c": torch.arange(6.0).reshape(2, 3).t(), "d": torch.zeros(0, 4, dtype=torch.int64)},
        "e": torch.tensor([1.5], dtype=torch.bfloat16),
    }
    (came,) = ranks.run(echo, [given], files=NO_FILE)
    assert came["a"] == given["a"] and came["e"].equal(given["e"]) and came["b"]["c"].equal(given["b"]["c"])
    assert came["b"]["d"].shape == (0, 4) and came["b"]["d"].dtype == torch.int64


def echo(student, me, given):
    return given


# ---- nobody's zero ----------------------------------------------------------------------------


def test_a_check_that_is_broken_is_nobodys_zero(grade, monkeypatch):
    monkeypatch.setattr("grader.testing.same", lambda *words: 1 / 0)
    result = grade(SOLUTION.read_text(), "03.1a")["03.1a"]
    assert (result.status, result.score) == ("infrastructure", 0) and "division by zero" in result.came


def test_a_check_that_the_solution_fails_too_is_nobodys_zero(grade, monkeypatch):
    def refuse(what, *words, **named):
        raise Verdict("failed", f"{what} is wrong", "another number")

    monkeypatch.setattr("grader.testing.close", refuse)
    result = grade(SOLUTION.read_text(), "03.2a")["03.2a"]
    assert (result.status, result.score) == ("infrastructure", 0)
    assert (
        "the recorded solution does not pass it either (the gradient of shift on rank 0 is wrong"
        in result.came
    )


# What replaces the body of a test, and makes the test fail in a way of its own.
STRANGE = {
    "a word": "'passed'",
    "no tensor": "{'state': {'first.weight': 'passed'}, 'trainable': []}",
    "another shape": "{'state': dict.fromkeys(given['state'], __import__('torch').zeros(2, 0, 7))}",
    "a deep list": "eval('[' * 150 + ']' * 150)",
    "400 digits": "{'state': dict.fromkeys(given['state'], 10 ** 400)}",
}


@pytest.mark.parametrize("kind", [*STRANGE, "a word, with solutions", "an error of torch"])
def test_no_submission_can_make_a_check_nobodys_zero(kind, grade, monkeypatch, tmp_path):
    """A check that fails does so with the recorded solution, too, or it is the submission's fault. Where
    there are no solutions, as in Gradescope's bundle, the kind of the failure has to say it."""
    kind, _, with_solutions = kind.partition(", ")
    text = ""
    if kind in STRANGE:
        text = f"import sys\nsys.modules['the_check'].begin = lambda student, me, given: {STRANGE[kind]}\n"
    else:
        monkeypatch.setattr("grader.testing.same", lambda *words: torch.zeros(2) + torch.zeros(3))
    if not with_solutions:
        monkeypatch.setattr(plugin, "SOLUTIONS", tmp_path / "none")
    result = grade(text + SOLUTION.read_text(), "03.1a")["03.1a"]
    assert result.status in ("failed", "error") and result.score == 0, result.came
    if kind in ("a word", "an error of torch"):
        assert re.match(r"your code sent something that the check cannot read \(\w+Error: ", result.came)


@pytest.mark.filterwarnings("ignore")  # the sandbox that has ended is the parent's, and closed there
def test_a_machine_that_fails_for_a_moment_costs_nothing(grade, monkeypatch):
    """The process from which ranks are forked ends; it is started again, and the check repeated."""
    real, calls = ranks.Sandbox.ask, []

    def ends_once(box, *words, **order):
        calls.append(order)
        if len(calls) == 5:
            os.kill(box.process.pid, signal.SIGKILL)
        return real(box, *words, **order)

    monkeypatch.setattr(ranks.Sandbox, "ask", ends_once)
    result = grade(SOLUTION.read_text(), "03.1a")["03.1a"]
    assert (result.status, result.score) == ("passed", 2), result.came


# ---- as people meet it ------------------------------------------------------------------------


def test_a_student_checks_a_starter():
    status, text = check("--only", "03")
    assert status == 1 and "03 DDP in its simplest form: 0 of 12 points" in text, text
    assert "not written yet: 03.1: all ranks begin with what rank 0 has" in text
    assert text.count("(not reached: 03.") == 6 and "hint:" not in text
    assert "Traceback" not in text and "contained at level" in text


@pytest.mark.long
def test_a_check_that_is_not_reached_fails_everywhere(tmp_path):
    """03.2b needs 03.2a, which is wrong. A skip would leave the status 0, and a course that goes by it would
    give the points."""
    put({NAME: SOLUTION.read_text().replace("parameter.grad /= dist.get_world_size()", "pass")}, tmp_path)
    junit = f"ARGUMENTS=--junitxml={tmp_path}/junit.xml"
    run = make("check", "EX=03.2b", f"SUBMISSION={tmp_path}", "HINTS=1", f"OUT={tmp_path}", junit)
    assert run.returncode == 2 and "hint 3:" in run.stdout, run.stdout + run.stderr
    assert "0 of 1 points of 1 check" in run.stdout
    assert "(not reached: 03.2a must pass first)" in run.stdout
    cases = list(ElementTree.parse(tmp_path / "junit.xml").getroot().iter("testcase"))
    (last,) = (case for case in cases if case.get("name").startswith("test_2b_"))
    assert last.find("failure") is not None and last.find("skipped") is None


@pytest.mark.long
def test_it_is_ordinary_pytest(tmp_path):
    """-k, --lf, -x, -v, -r, a JUnit file and a test's own name, in the folder of an exercise too."""
    text = SOLUTION.read_text().replace("parameter.grad /= dist.get_world_size()", "print('summed')")
    put({NAME: text}, tmp_path)
    words = ["--submission", tmp_path, "--out", tmp_path, "-o", f"cache_dir={tmp_path}/cache"]
    folder, junit = HERE / "03_average_gradients", tmp_path / "junit.xml"

    def pytest_in(cwd, *more):
        run = [sys.executable, "-m", "pytest", *map(str, [*more, *words])]
        run = subprocess.run(run, cwd=cwd, capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr

    status, said = pytest_in(folder, ".", "-k", "1a or 2a", "-rA", "-v", f"--junitxml={junit}")
    assert status == 1 and "3 passed" in said and "2 of 5 points of 2 checks" in said, said
    assert "::test_1a_parameters_of_rank_0[3] PASSED" in said
    assert re.search(r"\nFAILED \S+::test_2a_the_mean_over_all_ranks\[2\]", said)
    assert "\n    rank 1 | summed\n" in said
    failed = [
        case
        for case in ElementTree.parse(junit).getroot().iter("testcase")
        if case.find("failure") is not None
    ]
    (failed,) = failed
    properties = {one.get("name"): one.get("value") for one in failed.iter("property")}
    assert properties["points"] == "3" and properties["score"] == "0"
    assert "every number is 2 times what it should be" in ElementTree.tostring(failed, "unicode")
    # Only what has failed, again; and no further than to the first failure.
    status, said = pytest_in(folder, ".", "--lf", "-x")
    assert status == 1 and "1 failed" in said and "passed" not in said, said
    name = "tests/exercises/03_average_gradients/test_03.py::test_1b_buffers_of_rank_0"
    status, said = pytest_in(ROOT, name)
    assert status == 0 and "1 passed" in said and "1 of 1 points of 1 check\n" in said, said


@pytest.mark.parametrize("terminal", [False, True])
def test_make_adds_nothing_to_one_line(terminal):
    """Where a person looks at it. A script gets the status, and with it what make says."""
    there = ", ".join(one["id"] for one in exercises.manifest())
    words, said = "EX=99", f"there is no exercise 99; the exercises are {there}\n"
    if terminal:
        words, said = "SUBMISSION=nowhere", "nowhere: choose another one with --submission\n"
    ours, theirs = pty.openpty()
    run = make("check", words, **({"stderr": theirs} if terminal else {}))
    os.close(theirs)
    text = run.stdout + (run.stderr or "")
    with contextlib.suppress(OSError):
        text += os.read(ours, 10_000).decode().replace("\r", "")
    os.close(ours)
    assert "ERROR: there is no " in text and said in text and "Traceback" not in text, text
    assert (run.returncode == 0, "make" not in text) == (terminal, terminal)


def test_what_is_printed_is_shown_by_rank_and_kept(grade, tmp_path):
    """Of a check that fails. All of it lies in the file that is named. 03.2d fails."""
    code = """    lines = 0 if hasattr(average_gradients, "called") else 30
    average_gradients.called = True
    for number in range(lines):
        print(f"line {number} of {dist.get_rank()}" + " x" * 100 * (number == 29))
    has_one = torch"""
    text = SOLUTION.read_text().replace("    has_one = torch", code).replace("if count == 0:", "if False:")
    out = tmp_path / "out"
    result = grade(text, "03.2e", "--out", str(out))["03.2e"]
    shown = result.output.splitlines()
    left = [*(f"line {number} of 1" for number in range(4)), "... 20 lines left out", "line 24 of 1"]
    assert result.status == "failed" and shown[11:17] == [f"rank 1 | {words}" for words in left]
    assert all(line.startswith("rank ") and len(line) < 170 for line in shown) and len(shown) == 22
    assert f"\neverything that your code printed is in {out}/printed/03.txt\n" in grade.said
    whole = (out / "printed/03.txt").read_text()
    assert whole.count("rank 1 | line 29 of 1" + " x" * 100) == 1 and "left out" not in whole
    # Of a run that prints nothing, nothing stays of the one before.
    assert printed.keep("03", [], out) == "" and not (out / "printed/03.txt").exists()


def test_what_is_printed_without_end_is_short_in_a_report(fails):
    """Few lines of each rank, none of them long; how many are left out is true even where a part alone was
    kept. An exception has so many lines, too."""
    code = '    for number in range(4000): print(number, "x" * 3000)\n    raise ValueError("a\\n" * 900)'
    verdict, result = fails(WORK.replace("{code}", code)), Result("03.2a", "", 1)
    output = printed.some([("", *ranks.Submission.printed[0])], False).splitlines()
    of_rank = [line for line in output if line.startswith("rank 1 | ")]
    assert len(of_rank) == 11 and of_rank[4] == "rank 1 | ... 3990 lines left out"
    assert of_rank[0].startswith("rank 1 | 0 xxx") and of_rank[-1].startswith("rank 1 | 3999 xxx")
    assert max(map(len, output)) < 170
    plugin.fill_in(result, entry_of("03.2a"), verdict)
    lines = result.came.splitlines()
    assert len(lines) == 17 and re.fullmatch(r"\.\.\. \d+ lines left out", lines[12]), result.came


@pytest.mark.long
def test_it_checks_again_at_every_save(tmp_path):
    (tmp_path / NAME).write_text(STARTER.read_text())
    command = [sys.executable, "-u", HERE / "watch.py", "--only", "03", "--submission", tmp_path]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as watch:
        try:
            first = until(watch, "waiting for")
            (tmp_path / NAME).write_text(SOLUTION.read_text())
            second = until(watch, "waiting for")
            watch.send_signal(signal.SIGINT)
            watch.wait(10)
        finally:
            watch.kill()
    assert "0 of 12 points" in first and "12 of 12 points" in second
    for said in (first, second):
        assert said.index("checking 03 DDP in its simplest form ...") < said.index("of 12 points")


def until(process, words):
    text = ""
    for line in process.stdout:
        text += line
        if words in line:
            return text
    raise AssertionError(text)


# ---- walls ------------------------------------------------------------------------------------


def behind_the_wall(*words):
    """What a command prints that is started as the zygote is at level 3, before any rank gives up more."""
    if walls.machine()["level"] < 3:
        pytest.skip("needs bubblewrap that works here: make tools installs it")
    with walls.call_filter() as file:
        words = [*walls.bubblewrap({"PATH": "/usr/bin:/bin"}, file.fileno()), *words]
        run = subprocess.run(words, capture_output=True, text=True, pass_fds=[file.fileno()])
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_python_may_be_a_link_from_anywhere(tmp_path, monkeypatch):
    """Such as ~/.local/bin/python3: an environment that it makes keeps this path."""
    link, made = tmp_path / "bin/python3", tmp_path / "made"
    link.parent.mkdir()
    link.symlink_to(Path(sys.executable).resolve())
    subprocess.run([link, "-m", "venv", "--without-pip", made], check=True)
    monkeypatch.setattr(sys, "executable", str(made / "bin/python"))
    monkeypatch.setattr(sys, "prefix", str(made))
    assert behind_the_wall(sys.executable, "-c", "import sys; print(sys.prefix)").strip() == str(made)


def test_behind_the_wall_of_level_3_there_is_the_sandbox_and_a_small_folder():
    """What is written to that folder is memory of this machine."""
    found = behind_the_wall("find", str(ROOT), "-type", "f").splitlines()
    ours = {Path(name) for name in found if not Path(name).is_relative_to(sys.prefix)}
    assert ours == {path for path in SANDBOX.rglob("*") if path.is_file()} != set()
    assert behind_the_wall("df", "--output=size", "-B1", "/tmp").split()[1] == str(walls.TEMPORARY)


def calls(student, me, tried):
    """What the kernel says to each of these system calls."""
    libc, found = ctypes.CDLL(None, use_errno=True), {}
    for name, words in tried.items():
        words = [ctypes.c_long(word) for word in words]
        found[name] = "done" if libc.syscall(*words) >= 0 else errno.errorcode[ctypes.get_errno()]
    return found | {"user": [os.getuid(), os.getgid()]}


# For each call, what the kernel says, the number on x86_64, and arguments. Without the filter, a refused call
# would be done, or fail with another error.
CALLS = {
    "memfd_create": ("EPERM", 319, 0, 0),
    "unshare": ("EPERM", 272, 0x10000000),
    "clone": ("EPERM", 56, 0x10000200),
    "clone3": ("ENOSYS", 435, 0, 0),
    "shmget": ("EPERM", 29, 0, 4096, 0o1600),
    "ptrace": ("EPERM", 101, 0, 0, 0, 0),
    "socketpair": ("EPERM", 53, 1, 1, 0, 0),
    "a large pipe": ("EPERM", 72, 0, 1031, 1 << 20),
    "unix": ("EAFNOSUPPORT", 41, 1, 1, 0),
    "datagram": ("EAFNOSUPPORT", 41, 2, 2, 0),
    "another protocol": ("EAFNOSUPPORT", 41, 2, 1, 132),
    "netlink for firewalls": ("EAFNOSUPPORT", 41, 16, 3, 12),
    "netlink for addresses": ("done", 41, 16, 3, 0),
    "netlink for sockets": ("done", 41, 16, 3, 4),
    "inet": ("done", 41, 2, 1 | 0x80800, 6),
    "inet6": ("done", 41, 10, 1, 0),
    "a copy of a descriptor": ("done", 72, 0, 1030, 0),
}


def test_what_the_kernel_refuses_at_level_3():
    if walls.machine()["level"] < 3 or platform.machine() != "x86_64":
        pytest.skip("needs bubblewrap that works here, and the numbers of x86_64")
    (came,) = ranks.run(calls, [{name: words for name, (_, *words) in CALLS.items()}], files=NO_FILE)
    user, _ = came.pop("user")
    assert came == {name: said for name, (said, *_) in CALLS.items()}
    # Each grading process has its own user. Otherwise a fork bomb in one sandbox would stop the others.
    assert user == (61000 + os.getpid() % 1000 if walls.machine()["root"] else os.getuid())


def test_the_filter_is_the_same_on_both_processors():
    """The two programs differ only in numbers, so aarch64 refuses what x86_64 refuses."""
    one, other = ([*struct.iter_unpack("<HBBI", seccomp.program(name))] for name in seccomp.MACHINES)
    differ = {(here[3], there[3]) for here, there in zip(one, other, strict=True) if here != there}
    calls = {*seccomp.REFUSED.values(), seccomp.CLONE, seccomp.SOCKET, seccomp.FCNTL}
    same = {numbers for numbers in calls if len({*numbers}) == 1}
    assert differ == calls - same | {tuple(number for _, number in seccomp.MACHINES.values())}
    assert [line[:3] for line in one] == [line[:3] for line in other]
    # A kernel that knows the calls of x32 must refuse them, too.
    assert (seccomp.AT_LEAST, 0, 1, 0x40000000) in one


def touches(student, me, places):
    """Which of these files can be read, and where files can be written."""
    read, written = [], []
    for place in places:
        with contextlib.suppress(OSError), open(place):
            read.append(place)
    for folder in ("/", "/tmp", "/var/tmp", "/dev", "/dev/shm", "/run", ".", "..", os.path.expanduser("~")):
        with contextlib.suppress(OSError):
            open(f"{folder}/left", "w").close()
            written.append(folder)
            os.unlink(f"{folder}/left")
    return [read, written]


@pytest.mark.quick("3")
@pytest.mark.long
@pytest.mark.parametrize("level", [1, 3])
def test_a_submission_can_read_nothing_that_helps(level, another_sandbox):
    """By their true paths, which it knows: the exercise, the solution. And it can leave nothing for the next
    one anywhere."""
    if level not in {1, walls.machine()["level"]} or not walls.machine()["landlock"]:
        pytest.skip("this level of containment is not to be had here, or there is no Landlock")
    if level == 1:
        another_sandbox(1)
    places = [SOLUTION, *(path for path in (HERE / "03_average_gradients").rglob("*") if path.is_file())]
    assert ranks.run(touches, [[str(place) for place in places]], files=NO_FILE) == [[[], []]]
    assert ranks.BOX.level == level and len(places) > 4


def test_all_processes_of_a_run_have_so_much_memory(fails, monkeypatch):
    """None of them has more than the kernel would give to one."""
    for module in (ranks, causes):
        monkeypatch.setattr(module, "MEMORY_OF_ALL", 2 << 30)
    code = "    for _ in range(4):\n        if os.fork() == 0: break\n"
    code += "    kept = bytearray(b'x' * (200 << 20))\n    time.sleep(100)"
    verdict = fails(WORK.replace("{code}", code), 3)
    assert verdict.came == "your code used more than 2 GB of memory across all its processes"


def test_a_submission_has_so_many_seconds(grade, monkeypatch):
    """The first check takes all the time that there is; the rest is not begun."""
    monkeypatch.setattr(plugin, "SUBMISSION_SECONDS", 0.01)
    found = grade({NAME: SOLUTION.read_text()}, "03.1a,03.2a")
    assert {one.status for one in found.values()} == {"timeout"}
    assert "the time limit of 0.01 s for a submission was reached" in found["03.2a"].came


def test_nothing_of_one_submission_is_there_for_the_next():
    """Exercise 06b keeps files from run to run, also those in folders that nobody may open."""
    text = "import os\ndef work(given):\n    os.makedirs('a/b')\n    os.chmod('a', 0o500)\n"
    text += "    return os.listdir('.')\n"
    for _ in range(2):
        assert ranks.run(work, [0], files={"work.py": text}, disk=True) == [["a"]]
        ranks.wipe()


# ---- hostile submissions ----------------------------------------------------------------------

HOSTILE = tomllib.loads((Path(__file__).parent / "hostile.toml").read_text())


@pytest.mark.quick("prints a report")
@pytest.mark.long("reads what it can", "sends code", "deletes what it can")
@pytest.mark.night
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_submission_gets_nothing_and_harms_nothing(tmp_path, name):
    if walls.machine()["level"] < 3:
        pytest.skip("needs bubblewrap that works here: make tools installs it")
    other, results = tmp_path / "other", tmp_path / "results.json"
    attack = HOSTILE[name]["attack"].replace("FOLDER", str(other)).replace("ROOT", str(ROOT))
    head = f"import os, signal, sys, time\nfrom contextlib import suppress\n{attack}\n"
    put({"other/" + NAME: SOLUTION.read_text(), "mine/" + NAME: head + STARTER.read_text()}, tmp_path)
    began = time.monotonic()
    status, text = check("--submission", tmp_path / "mine", "--only", "03.1a,03.2a", "--results", results)
    found = {one["id"]: one for one in json.loads(results.read_text())["03"]}
    assert status == 1 and sum(one["score"] for one in found.values()) == 0, text
    assert HOSTILE[name]["came"] in found["03.1a"]["came"], text
    assert "\x1b" not in text and "\n  ok   03.1a" not in text, text
    assert "infrastructure" not in {one["status"] for one in found.values()}, text
    assert (other / NAME).read_text() == SOLUTION.read_text() and len([*other.iterdir()]) == 1
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [NAME]
    assert time.monotonic() - began < 120


@pytest.mark.quick("03")
@pytest.mark.long
@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_solution_gets_all_points_and_the_starter_none(exercise, capfd):
    """And of the mutants, those that say what a student reads first."""
    for case in mutants.cases(exercises.exercise(exercise)):
        if case.kind in ("solution", "starter") or case.hint:
            with capfd.disabled():
                is_right, line = mutants.verdict(case, 0)
            assert is_right, line


@pytest.mark.night
@pytest.mark.alone
@pytest.mark.parametrize("exercise", EXERCISES)
def test_each_mutant_falls_at_the_check_that_names_it(exercise):
    command = [sys.executable, HERE / "mutants.py", exercise]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
