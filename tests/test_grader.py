"""What a student or an instructor is promised of the grader: tests/exercises/grader."""

import contextlib
import ctypes
import errno
import itertools
import json
import os
import platform
import pty
import random
import re
import shutil
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
    ranks,
    seccomp,
    submissions,
    walls,
    who_waits,
)
from grader.results import Verdict
from grader.server import ForkServer
from grader.settings import HERE, SANDBOX, SOLUTIONS, STARTERS

from tests.helpers.lines import column
from tools.lessons import ROOT

NAME = "03_average_gradients.py"
SOLUTION, STARTER = ((folder / NAME).read_text() for folder in (SOLUTIONS, STARTERS))
SUM = SOLUTION.replace("parameter.grad /= dist.get_world_size()", "print('summed')")
EXERCISES = column(exercises.manifest(), "id")
(CHECK_2A,) = (entry for entry in exercises.exercise("03")["check"] if entry["id"] == "03.2a")


@pytest.fixture(scope="module", autouse=True)
def sandbox():
    yield
    ranks.SERVER.close()


def run(body, inputs, text="", disk=False, **more):
    """What a body returns with a file of this text."""
    return ranks.run(ranks.Attempt({"work.py": text}, **more), body, inputs, disk=disk)


def fails(text, world_size=2, disk=False, **more):
    """The Verdict on a file whose function `work` runs on so many ranks, and comes to nothing."""
    with pytest.raises(Verdict) as error:
        run(work, list(range(world_size)), text, disk, **more)
    return error.value


def work(student, me, given):
    return student.work(given)


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
        results = {}
        for some in found.values():
            for one in some:
                results[one["id"]] = SimpleNamespace(**one)
        return results

    return grade


def put(files, folder):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def call(words, folder=ROOT, **more):
    """If `make test` runs this, an inner make must not know of it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} | more
    run = subprocess.run(list(map(str, words)), cwd=folder, env=environment, text=True, **more)
    return run.returncode, run.stdout


def check(*words, **more):
    """Status and output of `make check`."""
    return call(["make", "check", f"PYTHON={sys.executable}", *words], **more)


# ---- what came of a run, in words -------------------------------------------------------------

# Line 4 is the first of what is put into the body of `work`.
WORK = """import os, threading, time
import torch, torch.distributed as dist
def work(rank):
{code}
    dist.all_reduce(torch.ones(3))
def helper(tensor):
    return tensor.shape
"""


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (
            "if rank == 1: return",
            "one goes home",
            r"^rank 1 returned before all_reduce number 1 \(line 5 .*\); ranks 0 and 2 were waiting for it$",
        ),
        (
            "if rank: return dist.broadcast(torch.ones(3), 0)",
            "one goes home",
            "^the ranks do not make the same calls: rank 0 called all_reduce number 1 .*, rank 1 called br",
        ),
        ("dist.all_reduce(torch.ones(3 + rank))", "one goes home", "rank 0 gives 3 numbers, rank 1 gives 4"),
        ("if rank == 1: os.kill(os.getpid(), 9)", "", "^rank 1 was killed by SIGKILL"),
        (
            "while rank == 1: pass",
            "never ends",
            "^rank 1 was at line 4 of work.py: `while rank == 1: pass` and had not returned after 2 s; rank",
        ),
        ("if rank: return\n    threading.Event().wait()", "never ends", "^the run was stuck: ranks 1 and 2 "),
        ("breakpoint()", "no keyboard", "no process of the grader has a keyboard; use print at line 4 of w"),
        (
            "helper(None)",
            "an error in Python",
            r"raised AttributeError: .* at line 7 of work.py: `return tensor.shape`, called in line 4:",
        ),
        (
            "dist.send(torch.zeros(1 << 20), (rank + 1) % 3)",
            "all wait",
            "^all ranks are waiting and none can go on: rank 0 in send number 1 to rank 1 .*; rank 1 in send "
            "number 1 to rank 2 .*; messages that were not received: 1 from rank 0 to rank 1, 1 from rank 1",
        ),
        ("open('log', 'w')", "no files", "raised (PermissionError|OSError)"),
        ("raise NotImplementedError('03.2: a')", "not begun", "^not written yet: 03.2: a$"),
        ("pass\ndel work\ndef other():", "", "^there is no work in work.py$"),
    ],
)
def test_the_earliest_cause_is_named(code, kind, words, monkeypatch):
    if kind == "no files" and not walls.machine()["landlock"]:
        pytest.skip("this level of containment is not to be had here, or there is no Landlock")
    monkeypatch.setattr(ranks, "TOO_BUSY", 100)  # of these 2 s, a run on a busy machine gets little in 20
    came = fails(WORK.replace("{code}", f"    {code}"), 3, seconds=2 if "while" in code else 20).came
    assert re.search(words, came), came
    assert "after 20 s" not in came  # the grader sees that nothing moves, and does not wait for the limit
    assert hints.kind(CHECK_2A, came) == kind


def test_broadcasts_from_different_ranks_say_so(grade):
    came = grade(SOLUTION.replace("src=0", "src=dist.get_rank()"), "03.1a")["03.1a"].came
    words = " of src: rank 0 with src=0, rank 1 with src=1"
    assert "; the ranks call broadcast number 1 (line " in came and came.endswith(words), came


def test_of_several_broadcasts_from_different_ranks_the_first_is_named():
    found = {}
    for rank in (0, 1):
        events = []
        for number, root in ((1, 0), (2, rank), (3, rank)):
            events.append({"phase": "begin", "event": "broadcast", "number": number, "root": root})
        found[rank] = {"events": events}
    words = "the ranks call broadcast number 2 with different values of src: "
    assert who_waits.different_roots(found) == words + "rank 0 with src=0, rank 1 with src=1"


THREE = torch.tensor([1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("got", "words", "kind"),
    [
        (None, "is None", "no gradient"),
        ([1.0, 2.0, 3.0], "is [1.0", ""),
        (THREE[:2], "has the shape 2", ""),
        (THREE.bfloat16(), "is bfloat16", "another dtype"),
        (torch.tensor([1.0, 2.0, torch.nan]), "nan at [2]", ""),
        (torch.tensor([1.0, 2.0, 3.1]), "3.1 at [2] (1 of 3 numbers is wrong)", ""),
        (THREE * 1.00003, "nearly right", "rounding"),
        (3 * THREE, "every number is 3 times what it should be", "a sum"),
        (THREE / 3, "every number is 0.3333 times", "a mean"),
        (THREE.flip(0), "these are numbers that rank 1 was given", ""),
    ],
)
def test_what_is_not_close(got, words, kind):
    given = [{"mine": THREE * 7}, {"mine": [THREE.flip(0)]}, {}]
    comparing.close("it", torch.tensor([1.0, 2.0, 3.00001]), THREE, given=given)
    with pytest.raises(Verdict) as verdict:
        comparing.close("the gradient of a", got, THREE, given=given, dtype=torch.float32)
    assert verdict.value.status == "failed" and words in verdict.value.came, verdict.value.came
    assert hints.kind(CHECK_2A, verdict.value.came) == kind


def test_what_is_none_or_a_tensor_has_a_hint_of_its_own():
    assert hints.kind(CHECK_2A, "it is None") == "nothing"
    assert hints.kind(CHECK_2A, "it is a tensor") == "a tensor for a number"


def test_what_is_not_the_same():
    began = time.process_time()
    for got, expected, words in (
        ([*range(90), 91], [*range(91)], "; missing: 90; not expected: 91"),
        ([2, 1, 1], [1, 2, 1], "; the items are right, but in a different order"),
        ([torch.zeros(30_000_000, dtype=torch.uint8)] * 2, [1, 2], "it has 60000000 numbers"),
    ):
        with pytest.raises(Verdict) as verdict:
            comparing.same("it", got, expected)
        assert verdict.value.came.endswith(words)
    assert time.process_time() - began < 5  # as words, 60 million numbers would take minutes


# ---- what stands in a file --------------------------------------------------------------------


@pytest.mark.parametrize("text", ["-" * 190_000 + "1", "f" + "()" * 90_000, "[" * 190_000], ids=range(3))
def test_no_text_makes_the_grader_fall_over(text):
    assert submissions.no_python(NAME, text).startswith(NAME)


@pytest.mark.parametrize(
    ("exercise", "line"),
    [
        ("03b", "getattr(torch.nn.parallel, 'Distributed' + 'DataParallel')(torch.nn.Linear(1, 1))"),
        ("02", "from torch.nn.parallel.parallel_apply import parallel_apply as apply; apply([], [])"),
    ],
)
def test_what_is_forbidden_is_not_there(exercise, line):
    forbidden = exercises.exercise(exercise)["forbidden"]
    came = fails(WORK.replace("{code}", f"    {line}"), forbidden=forbidden).came
    assert "must not be used in this exercise at line 4 of work.py" in came, came


@pytest.mark.parametrize(
    ("exercise", "module"),
    [("04", "torch.utils.data.distributed"), ("08", "torch.distributed.optim.zero_redundancy_optimizer")],
)
def test_what_was_taken_away_cannot_be_imported_again(exercise, module):
    """By importlib.reload, the classes were back: 11 of 14 points of exercise 08 with 12 lines around one."""
    forbidden = exercises.exercise(exercise)["forbidden"]
    reload = f"    import importlib, {module} as it; importlib.reload(it)"
    anew = f"    import sys; del sys.modules['{module}']; import {module}"
    for line in (reload, anew):
        came = fails(WORK.replace("{code}", line), forbidden=forbidden).came
        assert f"{module} cannot be imported again in this exercise" in came, came


def test_a_file_that_cannot_be_read_is_said_once(grade, tmp_path):
    """Also by checks that need no other. A mark that some editors write in front costs nothing."""
    name = exercises.exercise("03a")["files"][0]
    first, *others = grade({name: "def chunks_of(flat:\n"}, "03a").values()
    assert first.came == f"{name} has a syntax error in line 1: '(' was never closed"
    assert {one.status for one in others} == {"not reached"} and "hint" not in grade.said
    (tmp_path / NAME).write_bytes("# \u00e9\n".encode("latin-1"))
    with pytest.raises(Verdict, match=f"^{NAME} is not encoded in UTF-8: save it as UTF-8 in your editor$"):
        submissions.read_files(exercises.exercise("03"), tmp_path)
    (tmp_path / NAME).write_bytes("# \u00e9\n".encode("utf-8-sig"))
    assert submissions.read_files(exercises.exercise("03"), tmp_path) == {NAME: "# \u00e9\n"}


# ---- what a rank sends, and what it can learn -------------------------------------------------

TENSOR = '{"value": {"dtype": "%s", "shape": %s, "bytes": "%s"}}'
CALL = '{"event": "all_reduce", "phase": "begin", %s}'
NONSENSE = {
    "too deep": ['{"value": ' + "[" * 100_000 + "]" * 100_000 + "}"],
    "a number of 5000 digits": ['{"value": 1' + "0" * 5000 + "}"],
    "too many values": ['{"value": [' + "[]," * 2_000_000 + "[]]}"],
    "code for a dtype": [TENSOR % ("os.system", "[1]", "")],
    "from nothing": [TENSOR % ("float32", "[1000000000]", "")],
    "a call at a list": [CALL % '"where": []'],
    "too many calls": [CALL % '"number": 1'] * 20_002,
    "two results": ['{"value": 1}', '{"value": 2}'],
}


@pytest.fixture
def bare_rank():
    """What is seen of a rank, without a process."""
    rank = ranks.Rank(0)
    yield rank
    for descriptor in (*rank.theirs, rank.given, *rank.pipes.values()):
        os.close(descriptor)


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_an_error_of_the_rank(kind, bare_rank):
    began = time.process_time()
    for line in NONSENSE[kind]:
        bare_rank.hear(line.encode(), 0.0)
    assert bare_rank.error["kind"] == "BadFrame" and bare_rank.value is None
    with pytest.raises(Verdict, match=r"^your code sent something that is not a valid result \("):
        causes.explain("done", 1.0, [bare_rank.seen() | {"time": 1.0}], {NAME: ""}, ())
    assert time.process_time() - began < 5


def numbers(student, me, given):
    return [torch.initial_seed(), random.random(), student.word, os.getpid()]


def test_a_rank_knows_nothing_from_which_the_grader_draws():
    plugin.seed_all("0/any")
    one, other = run(numbers, [{}, {}], "word = hash('word')\n")
    assert not set(one) & {*other, torch.initial_seed(), random.getstate()[1][0]}


@pytest.mark.long
def test_each_rank_can_be_started_anew_as_on_macos(tmp_path, monkeypatch):
    """There, a process that has imported torch must not fork."""
    monkeypatch.setenv("RUNGS_SPAWN", "1")
    status, text = check("EX=03.2a", f"SUBMISSION={SOLUTIONS}", f"OUT={tmp_path}")
    assert status == 0 and "3 of 3 points of 1 check" in text, text


def test_the_start_of_the_sandbox_is_not_the_students_time(monkeypatch):
    """On a busy machine it takes 20 seconds, in which nothing of a student has run."""
    ask = ranks.SERVER.ask

    def late(do, *words, **named):
        answer = ask(do, *words, **named)
        if do == "start":
            time.sleep(2.5)
        return answer

    monkeypatch.setattr(ranks.SERVER, "ask", late)
    text = "import time\ndef work(given):\n    time.sleep(0.5)\n    return given"
    assert run(work, [1], text, seconds=2) == [1]


@pytest.mark.long
def test_where_each_rank_imports_torch_itself_that_is_not_the_students_time(monkeypatch):
    """The import takes a second or more, of the clock's time and of the processor's."""
    monkeypatch.setenv("RUNGS_SPAWN", "1")
    monkeypatch.setattr(ranks.fork_server, "FORK", False)
    monkeypatch.setattr(ranks, "TOO_BUSY", 1000)
    server = ForkServer()
    monkeypatch.setattr(ranks, "SERVER", server)
    try:
        few = ranks.LIMITS | {"cpu_seconds": 1}
        assert run(work, [1, 2], "def work(given): return given", seconds=0.5, limits=few) == [1, 2]
        assert fails("def work(given):\n    while True: pass", seconds=0.5).status == "timeout"
    finally:
        server.close()


# ---- nobody's zero ----------------------------------------------------------------------------


def test_a_check_that_is_broken_or_that_the_solution_fails_is_nobodys_zero(grade, monkeypatch):
    def refuse(what, *words, **named):
        raise Verdict("failed", f"{what} is wrong", "another number")

    monkeypatch.setattr("grader.testing.close", refuse)
    wrong = grade(SOLUTION, "03.2a")["03.2a"]
    words = "the recorded solution does not pass it either (the gradient of shift on rank 0 is wrong"
    assert (wrong.status, wrong.score) == ("infrastructure", 0) and words in wrong.came
    monkeypatch.setattr("grader.testing.close", lambda *words, **named: 1 / 0)
    broken = grade(SOLUTION, "03.2a")["03.2a"]
    assert (broken.status, broken.score) == ("infrastructure", 0) and "division by zero" in broken.came


# What replaces the body of a test, and makes the test fail in a way of its own.
STRANGE = {
    "a word": "'passed'",
    "400 digits": "{'state': dict.fromkeys(given['state'], 10 ** 400)}",
}


@pytest.mark.parametrize("with_solutions", [True, False])
@pytest.mark.parametrize("kind", STRANGE)
def test_no_submission_can_make_a_check_nobodys_zero(kind, with_solutions, grade, monkeypatch, tmp_path):
    """A check that fails does so with the recorded solution, too, or it is the submission's fault. Where
    there are no solutions, as in Gradescope's bundle, the kind of the failure has to say it."""
    text = f"import sys\nsys.modules['the_check'].begin = lambda student, me, given: {STRANGE[kind]}\n"
    if not with_solutions:
        monkeypatch.setattr(plugin, "SOLUTIONS", tmp_path / "none")
    result = grade(text + SOLUTION, "03.1a")["03.1a"]
    assert result.status in ("failed", "error") and result.score == 0, result.came
    if kind == "a word":
        assert re.match(r"your code sent something that the check cannot read \(\w+Error: ", result.came)


@pytest.mark.filterwarnings("ignore")  # the sandbox that has ended is the parent's, and closed there
def test_a_machine_that_fails_for_a_moment_costs_nothing(grade, monkeypatch):
    """The process from which ranks are forked ends; it is started again, and the check repeated."""
    real, asked = ForkServer.ask, []

    def ends_once(server, *words, **order):
        asked.append(words)
        if len(asked) == 5:
            os.kill(server.process.pid, signal.SIGKILL)
        return real(server, *words, **order)

    monkeypatch.setattr(ForkServer, "ask", ends_once)
    result = grade(SOLUTION, "03.1a")["03.1a"]
    assert (result.status, result.score) == ("passed", 2), result.came


# ---- as people meet it ------------------------------------------------------------------------


def test_a_student_checks_a_starter(tmp_path):
    status, text = check("EX=03", f"OUT={tmp_path}")
    assert status == 2 and "03 DDP in its simplest form: 0 of 12 points" in text, text
    assert "not written yet: 03.1: all ranks begin with what rank 0 has" in text
    assert text.count("(not reached: 03.") == 6 and "hint:" not in text
    assert "Traceback" not in text and "contained at level" in text


@pytest.mark.long
def test_a_check_that_is_not_reached_fails_everywhere(tmp_path):
    """03.2b needs 03.2a, which is wrong. A skip would leave the status 0, and a course that goes by it would
    give the points."""
    put({NAME: SUM}, tmp_path)
    junit = f"ARGUMENTS=--junitxml={tmp_path}/junit.xml"
    status, text = check("EX=03.2b", f"SUBMISSION={tmp_path}", "HINTS=1", f"OUT={tmp_path}", junit)
    assert status == 2 and "hint 3:" in text and "0 of 1 points of 1 check" in text, text
    assert "(not reached: 03.2a must pass first)" in text
    cases = ElementTree.parse(tmp_path / "junit.xml").iter("testcase")
    (last,) = [case for case in cases if case.get("name").startswith("test_2b_")]
    assert last.find("failure") is not None
    assert last.find("skipped") is None
    properties = {one.get("name"): one.get("value") for one in last.iter("property")}
    assert properties["points"] == "1" and properties["score"] == "0"


@pytest.mark.long
def test_it_is_ordinary_pytest(tmp_path):
    """-k, --lf, -x, -v, -r and a test's own name, in the folder of an exercise too."""
    put({NAME: SUM}, tmp_path)
    pytest_in = [sys.executable, "-m", "pytest"]
    more = ["--submission", tmp_path, "--out", tmp_path, "-o", f"cache_dir={tmp_path}/cache"]
    folder = HERE / "03_average_gradients"
    status, said = call([*pytest_in, ".", "-k", "1a or 2a", "-rA", "-v", *more], folder)
    assert status == 1 and "3 passed" in said and "2 of 5 points of 2 checks" in said, said
    assert "::test_1a_parameters_of_rank_0[3] PASSED" in said
    assert re.search(r"\nFAILED \S+::test_2a_the_mean_over_all_ranks\[2\]", said)
    assert "\n    rank 1 | summed\n" in said
    # Only what has failed, again; and no further than to the first failure.
    status, said = call([*pytest_in, ".", "--lf", "-x", *more], folder)
    assert status == 1 and "1 failed" in said and "passed" not in said, said
    name = "tests/exercises/03_average_gradients/test_03.py::test_1b_buffers_of_rank_0"
    status, said = call([*pytest_in, name, *more])
    assert status == 0 and "1 passed" in said and "1 of 1 points of 1 check\n" in said, said


@pytest.mark.parametrize("terminal", [False, True])
def test_make_adds_nothing_to_one_line(terminal):
    """Where a person looks at it. A script gets the status, and with it what make says."""
    ours, theirs = pty.openpty()
    status, text = check("SUBMISSION=nowhere", **({"stderr": theirs} if terminal else {}))
    os.close(theirs)
    with contextlib.suppress(OSError):
        text += os.read(ours, 10_000).decode().replace("\r", "")
    os.close(ours)
    assert re.search("ERROR: there is no .*nowhere: choose another one with --submission\n", text)
    assert "Traceback" not in text and (status == 0, "make" not in text) == (terminal, terminal)


def test_what_is_printed_is_shown_by_rank_and_kept(grade, tmp_path):
    """Of a check that fails: few lines of each rank, none of them long. All of it lies in the file that is
    named. An exception has few lines, too."""
    code = """    for number in range(4000):
        print(f"line {number} of {dist.get_rank()} " + "x" * 3000)
    raise ValueError("a\\n" * 900)
    has_one = torch"""
    text, out = SOLUTION.replace("    has_one = torch", code), tmp_path / "out"
    result = grade(text, "03.2a", "--out", str(out))["03.2a"]
    shown = [line for line in result.output.splitlines() if line.startswith("rank 1 | ")]
    assert result.status == "error" and len(shown) == 11 and max(map(len, shown)) < 170
    assert shown[0].startswith("rank 1 | line 0 of 1 xxx") and shown[4] == "rank 1 | ... 3990 lines left out"
    assert shown[-1].startswith("rank 1 | line 3999 of 1 xxx")
    assert len(result.came.splitlines()) == 17 and re.search(r"\n\.\.\. \d+ lines left out\n", result.came)
    assert f"\neverything that your code printed is in {out}/printed/03.txt\n" in grade.said
    assert "rank 1 | line 5 of 1 " + "x" * 3000 in (out / "printed/03.txt").read_text()
    # Of a run that prints nothing, nothing stays of the one before.
    grade(SOLUTION, "03.2a", "--out", str(out))
    assert not (out / "printed/03.txt").exists()


def test_what_an_earlier_run_has_printed_says_so(grade):
    """A check that fails in its second run: what the first has printed is shown below what was tried. Without
    that line, it would look like the output of the run that failed."""
    name = "05_resume.py"
    text = (SOLUTIONS / name).read_text()
    in_save = text.replace("    if rank == 0:", '    print("in save")\n    if rank == 0:')
    one = "    if not snapshot.exists():"
    in_both = in_save.replace(one, f'    print("in load")\n{one}')
    wrong = in_save.replace("    return saved", "    return 2 + saved")
    assert text.count(one) == 1 and wrong != in_save and in_save != text

    result = grade({name: wrong}, "05.2a")["05.2a"]
    first, *lines = result.output.splitlines()
    assert result.status == "failed" and lines == ["rank 0 | in save", "rank 1 | in save"]
    assert first == f"-- {result.tried}" and result.tried.startswith("2 processes save after epoch 3")

    # Of the run that failed itself, the report says above it what was tried.
    wrong = in_both.replace("    return saved", "    return 2 + saved")
    result = grade({name: wrong}, "05.2a")["05.2a"]
    assert result.status == "failed"
    assert result.output.splitlines() == ["rank 0 | in load", "rank 1 | in load"]


@pytest.mark.long
def test_it_checks_again_at_every_save(tmp_path):
    (tmp_path / NAME).write_text(STARTER)
    command = [sys.executable, "-u", HERE / "watch.py", "--only", "03", "--submission", tmp_path]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as watch:
        try:
            first = [*itertools.takewhile(lambda line: "waiting for" not in line, watch.stdout)]
            (tmp_path / NAME).write_text(SOLUTION)
            second = [*itertools.takewhile(lambda line: "waiting for" not in line, watch.stdout)]
            watch.send_signal(signal.SIGINT)
            watch.wait(10)
        finally:
            watch.kill()
    assert ": 0 of 12 points" in "".join(first) and "12 of 12 points" in "".join(second)


# ---- walls ------------------------------------------------------------------------------------


def behind_the_wall(*words):
    """What a command prints that is started as the fork server is at level 3, before any rank gives up
    more."""
    if walls.machine()["level"] < 3:
        pytest.skip("needs bubblewrap that works here: make tools installs it")
    with walls.call_filter() as file:
        words = [*walls.bubblewrap({"PATH": "/usr/bin:/bin"}, file.fileno()), *words]
        run = subprocess.run(words, capture_output=True, text=True, pass_fds=[file.fileno()])
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_behind_the_wall_of_level_3_there_is_the_sandbox_and_a_small_folder():
    """What is written to that folder is memory of this machine."""
    found = behind_the_wall("find", str(ROOT), "-type", "f").splitlines()
    ours = {Path(name) for name in found if not Path(name).is_relative_to(sys.prefix)}
    assert ours == {path for path in SANDBOX.rglob("*") if path.is_file()} != set()
    assert behind_the_wall("df", "--output=size", "-B1", walls.home()).split()[1] == str(walls.TEMPORARY)


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
    "a large pipe": ("EPERM", 72, 0, 1031, 1 << 20),
    "unix": ("EAFNOSUPPORT", 41, 1, 1, 0),
    "datagram": ("EAFNOSUPPORT", 41, 2, 2, 0),
    "netlink for addresses": ("done", 41, 16, 3, 0),
    "inet": ("done", 41, 2, 1 | 0x80800, 6),
}


def test_what_the_kernel_refuses_at_level_3():
    if walls.machine()["level"] < 3 or platform.machine() != "x86_64":
        pytest.skip("needs bubblewrap that works here, and the numbers of x86_64")
    tried = {}
    expected = {}
    for name, (said, *words) in CALLS.items():
        tried[name] = words
        expected[name] = said
    (came,) = run(calls, [tried])
    user, _ = came.pop("user")
    assert came == expected
    # Each grading process has its own user. Otherwise a fork bomb in one sandbox would stop the others.
    assert user == (61000 + os.getpid() % 1000 if walls.machine()["root"] else os.getuid())


def test_the_filter_is_the_same_on_both_processors():
    """The two programs differ only in numbers, so aarch64 refuses what x86_64 refuses."""
    one, other = map(instructions, seccomp.MACHINES)
    differ = set()
    for (*here, number), (*there, other_number) in zip(one, other, strict=True):
        assert here == there
        if number != other_number:
            differ.add((number, other_number))
    calls = [*seccomp.REFUSED.values(), seccomp.CLONE, seccomp.SOCKET, seccomp.FCNTL]
    expected = {tuple(number for _, number in seccomp.MACHINES.values())}
    for number, other_number in calls:
        if number != other_number:
            expected.add((number, other_number))
    assert differ == expected


def instructions(machine):
    return list(struct.iter_unpack("<HBBI", seccomp.program(machine)))


def look_around(student, me, given):
    """What a rank finds in its memory, what it can open, and where it can write."""
    found = set()
    opened = []
    written = []
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            first, last = (int(word, 16) for word in line.split()[0].split("-"))
            if "rw" in line:
                with contextlib.suppress(OSError, ValueError):
                    memory.seek(first)
                    found |= set(re.findall(rb"for rank \d+!", memory.read(last - first)))
    places = [f"{me.folder.parent}/{1 - me.rank}/.", f"/proc/{os.getppid()}/root/.", *given["places"]]
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != os.getpid():
            for name in ("mem", "environ", "maps", "fd/100", "fd/101"):
                places.append(f"/proc/{pid}/{name}")
    for place in places:
        with contextlib.suppress(OSError):
            os.close(os.open(place, os.O_RDONLY))
            opened.append(place)
    for folder in ("/", "/tmp", "/var/tmp", "/dev", "/dev/shm", "/run", ".", "..", os.path.expanduser("~")):
        with contextlib.suppress(OSError):
            open(f"{folder}/left", "w").close()
            written.append(folder)
            os.unlink(f"{folder}/left")
    return {"found": sorted(word.decode() for word in found), "opened": opened, "written": written}


@pytest.mark.quick("3")
@pytest.mark.long
@pytest.mark.parametrize("level", [1, 3])
def test_a_submission_can_read_nothing_that_helps_and_leave_nothing_for_the_next(level, monkeypatch):
    """Not what others were given, in this run or the one before, nor exercise and solution, by their true
    paths."""
    if level not in {1, walls.machine()["level"]} or not walls.machine()["landlock"]:
        pytest.skip("this level of containment is not to be had here, or there is no Landlock")
    server = ForkServer()
    server.level = level
    monkeypatch.setattr(ranks, "SERVER", server)
    places = [str(path) for path in (SOLUTIONS / NAME, *(HERE / "03_average_gradients").glob("*.*"))]
    # At level 1, Landlock keeps others' memory shut, but not their environments (no answers there).
    harmless = ("/environ", "/maps") if level == 1 else ()
    with contextlib.closing(server):
        for notes in (["for rank 10!", "for rank 11!"], ["for rank 20!", "for rank 21!"]):
            given = [{"note": note, "places": places} for note in notes]
            for note, came in zip(notes, run(look_around, given), strict=True):
                assert came["found"] == [note]
                assert came["written"] == []
                for place in came["opened"]:
                    assert place.endswith(harmless)
    assert len(places) > 4


def test_all_processes_of_a_run_have_so_much_memory(monkeypatch):
    """None of them has more than the kernel would give to one."""
    for module in (ranks, causes):
        monkeypatch.setattr(module, "MEMORY_OF_ALL", 2 << 30)
    code = "    for _ in range(4):\n        if os.fork() == 0: break\n"
    code += "    kept = bytearray(b'x' * (200 << 20))\n    time.sleep(100)"
    verdict = fails(WORK.replace("{code}", code), 3)
    assert verdict.came == "your code used more than 2 GB of memory across all its processes"


TOO_MUCH = {
    "files": (True, "[os.mkdir(f'{given} {number}') for number in range(10 ** 7)]"),
    "connections": (
        False,
        "[(connect(), kept.append(listener.accept())) for _ in range(110)]; time.sleep(100)",
    ),
    "messages": (False, "[connect().send(bytes(1 << 22)) for _ in range(200)]; sleep()"),
    "CPU time": (False, "[os.fork() for _ in range(2)]\n    while True: pass"),
}


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_what_counts_for_no_process_is_counted_for_the_run(kind):
    """Files and messages are memory of the kernel, which none of the limits of a process knows. A submission
    that takes it is not to harm the next one."""
    if walls.machine()["level"] < 3:
        pytest.skip("needs bubblewrap that works here: make tools installs it")
    disk, line = TOO_MUCH[kind]
    text = f"""import os, socket, time
kept = []
listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
def connect():
    kept.append(socket.create_connection(listener.getsockname()))
    kept[-1].setblocking(False)
    return kept[-1]
def sleep():
    time.sleep(100)
def work(given):
    {line}
"""
    began = time.monotonic()
    assert re.search(f"^your code .*{kind}.* across all its processes$", fails(text, 2, disk=disk).came)
    ranks.wipe()
    assert run(work, [0], "def work(given): return 3") == [3]
    assert time.monotonic() - began < 120


def test_an_answer_that_comes_late_is_not_taken_for_another_one():
    """The fork server is asked, and nobody waits for its answer. The next one who asks gets another
    server."""
    right = "def work(given): return given"
    assert run(work, [1, 2], right) == [1, 2]
    ranks.SERVER.channel.send({"do": "wipe", "number": "late"})
    with pytest.raises(ranks.Broken, match="it answers late when it is asked"):
        ranks.wipe()
    assert run(work, [1, 2], right) == [1, 2]


def test_seconds_in_which_a_rank_waits_for_a_core_do_not_count(monkeypatch):
    """A run of six seconds in all, of which each rank has computed two."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ranks, "busyness", lambda: 1.0)  # which a Mac has in place of delays
    clock = ranks.Clock()
    for delays in ([0.0, 1.5], [1.5, 3.0], [2.0, 4.0]):
        now[0] += 2
        clock.look(delays)
    assert (clock.passed(), clock.used) == (6.0, 2.0)
    clock.look([0.0, 0.0])  # all have ended
    assert clock.used == 2.0


def test_a_submission_has_so_many_seconds(grade, monkeypatch):
    """The first case of a check takes all the time that there is; the rest is not begun."""
    monkeypatch.setattr(plugin, "SUBMISSION_SECONDS", 0.01)
    found = grade(SOLUTION, "03.1a,03.2a")
    assert {one.status for one in found.values()} == {"timeout"}
    assert "the time limit of 0.01 s for a submission was reached" in found["03.2a"].came


def test_nothing_of_one_submission_is_there_for_the_next():
    """Exercise 06b keeps files from run to run, also those in folders that nobody may open."""
    text = "import os\ndef work(given):\n    os.makedirs('a/b')\n    os.chmod('a', 0o500)\n"
    text += "    return os.listdir('.')\n"
    for _ in range(2):
        assert run(work, [0], text, disk=True) == [["a"]]
        ranks.wipe()


# ---- hostile submissions ----------------------------------------------------------------------

HOSTILE = tomllib.loads((Path(__file__).parent / "hostile.toml").read_text())


@pytest.mark.quick("prints a report")
@pytest.mark.long("reads what it can", "sends code", "deletes what it can", "computes for ever")
@pytest.mark.night
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_submission_gets_nothing_and_harms_nothing(tmp_path, name):
    if walls.machine()["level"] < 3:
        pytest.skip("needs bubblewrap that works here: make tools installs it")
    other, results = tmp_path / "other", tmp_path / "results.json"
    attack = HOSTILE[name]["attack"].replace("FOLDER", str(other)).replace("ROOT", str(ROOT))
    head = f"import os, signal, sys, time\nfrom contextlib import suppress\n{attack}\n"
    put({f"other/{NAME}": SOLUTION, f"mine/{NAME}": head + STARTER}, tmp_path)
    began = time.monotonic()
    where = [f"SUBMISSION={tmp_path}/mine", f"OUT={tmp_path}/out", f"ARGUMENTS=--results {results}"]
    status, text = check("EX=03.1a,03.2a", *where)
    found = {one["id"]: one for one in json.loads(results.read_text())["03"]}
    assert status == 2, text
    for one in found.values():
        assert one["score"] == 0, text
        assert one["status"] != "infrastructure", text
    assert HOSTILE[name]["came"] in found["03.1a"]["came"], text
    assert "\x1b" not in text and "\n  ok   03.1a" not in text, text

    assert "fork_server.py" not in text, "a line of the grader in what a student reads"
    assert (other / NAME).read_text() == SOLUTION and len([*other.iterdir()]) == 1
    assert os.listdir(tmp_path / "mine") == [NAME]
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
@pytest.mark.parametrize("exercise", EXERCISES)
def test_no_check_refuses_a_right_answer_with_any_of_20_seeds(exercise):
    """`make sweep SEEDS=2000` tries more before a release."""
    status, said = call([sys.executable, HERE / "sweep.py", exercise, "--seeds", "20", "--real", "5"])
    assert status == 0 and said.count(" 0 of ") == 2, said


@pytest.mark.long
def test_a_sweep_finds_a_seed_with_which_a_check_is_wrong(tmp_path):
    """In a copy of the exercises, where a check refuses what is right for one seed of ten or so."""
    for name in ("tests/exercises", "solutions", "lessons/exercises"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "tests/exercises/01_accumulate/test_01.py"
    text = path.read_text()
    right = "    right_state(came, right)\n    mode_kept(came)\n"
    assert text.count(right) == 1
    path.write_text(text.replace(right, f"    require(came['loss'] % 1 < 0.9, 'too large')\n{right}"))
    words = [sys.executable, tmp_path / "tests/exercises/sweep.py", "01", "--seeds", "20"]
    status, said = call(words, tmp_path)
    assert status == 1 and re.search(r"test_01.py::test_1a_\S+ --seed \d+: Verdict: too large", said), said


@pytest.mark.night
@pytest.mark.alone
@pytest.mark.parametrize("exercise", EXERCISES)
def test_each_mutant_falls_at_the_check_that_names_it(exercise):
    status, said = call([sys.executable, HERE / "mutants.py", exercise])
    assert status == 0, said[-3000:]
