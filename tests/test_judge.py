"""The exercises and their judge. The grader is graded here with mutants, other solutions and cheats; then
every way in which people meet it: pytest, grade.py, Gradescope's bundle, each level of containment."""

import ast
import contextlib
import csv
import io
import itertools
import json
import lzma
import os
import platform
import pty
import random
import re
import runpy
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from collections import Counter
from pathlib import Path
from textwrap import indent
from xml.etree import ElementTree

import bundle
import contain
import course
import grade
import judge
import numpy
import nursery as inside_nursery
import pytest
import selftest
import wire
from judge import forbidden, seccomp, several, walls

import pages
import starters
from lessons import ROOT
from processes import wait_for

EXERCISES = [one["id"] for one in judge.manifest()]
STEMS = {one["stem"] for one in judge.manifest()}
THIRD = "03_average_gradients.py"
CHECKS_OF_03B = ", ".join(entry["id"] for entry in judge.exercise("03b")["check"])


@pytest.fixture(scope="module")
def nursery():
    with judge.Nursery() as nursery:
        yield nursery


def solution(name=THIRD):
    return (judge.SOLUTIONS / name).read_text()


def with_code(line, code):
    """The solution of exercise 03 with this code in front of the line that begins with `line`."""
    text = solution()
    (margin,) = re.findall(rf"^( *){re.escape(line)}", text, re.M)
    return text.replace(f"{margin}{line}", f"{indent(code, margin)}\n{margin}{line}")


def one_check(identity, nursery, folder=judge.SOLUTIONS, text=None, seed=0, **more):
    """The result of one check alone, as if the checks before it had passed. If there is a `text`, it is first
    written into the folder as the submission."""
    one = judge.exercise(identity.partition(".")[0]) | more
    (entry,) = (entry for entry in one["check"] if entry["id"] == identity)
    if text is not None:
        (folder / one["files"][0]).write_text(text)
    return judge.grade_one(one, entry, folder, nursery, seed, set(entry.get("needs", [])))


def refused(monkeypatch, *words):
    """The one line with which grade.py refuses these words. It is called in this process."""
    monkeypatch.setattr(sys, "argv", ["grade.py", *map(str, words)])
    with pytest.raises(SystemExit) as error:
        grade.main()
    assert str(error.value).startswith("error: ") and "\n" not in str(error.value)
    return str(error.value)


def mutant_of(identity, name):
    return next(case for case in selftest.cases(judge.exercise(identity)) if case.name.startswith(name))


def put(files, folder):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def grader(*words):
    command = [sys.executable, "tests/exercises/grade.py", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def pytest_on(*words, args=("tests/exercises",)):
    """Status and output of `pytest tests/exercises` with these words."""
    command = [sys.executable, "-m", "pytest", *args, "-p", "no:cacheprovider", *map(str, words)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


def make(*words, cwd=ROOT, **more):
    """`make` with these words. If `make test` runs this, the inner make must not know of it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    words = ["make", *words, f"PYTHON={sys.executable}"]
    return subprocess.run(words, cwd=cwd, env=environment, text=True, **more)


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def graded_right(rows):
    assert [selftest.line(row) for row in rows if not row["right"]] == []


# ---- the grader, graded -----------------------------------------------------------------------


@pytest.mark.quick("03")
@pytest.mark.long
@pytest.mark.parametrize("identity", EXERCISES)
def test_the_solution_the_starter_and_one_mutant_for_each_check(identity, nursery):
    one = judge.exercise(identity)
    found = selftest.cases(one)
    mutants = {case.killed_by: case for case in found if case.kind == "mutant"}
    assert mutants.keys() == {check["id"] for check in one["check"]}
    some = [case for case in found if case.kind in ("solution", "starter")] + list(mutants.values())
    graded_right(selftest.run_case(case, nursery, depth="none") for case in some)


@pytest.mark.night
@pytest.mark.parametrize("identity", EXERCISES)
def test_mutants_and_other_solutions(identity, nursery):
    """A mutant must pass what comes before its check: else a small mistake would cost many points. That takes
    most of the time: every third one shows all of it, and the others what their check names."""
    one = judge.exercise(identity)
    depths = itertools.cycle(["all", "next", "next"])
    some = [case for case in selftest.cases(one) if case.kind in ("other", "mutant")]
    graded_right(selftest.run_case(case, nursery, depth) for case, depth in zip(some, depths, strict=False))
    assert selftest.unfinished(one) == []


def test_each_other_solution_replaces_something_of_the_solution():
    """A misspelled function would leave that of the solution in place, and nobody would see it."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    for one in judge.manifest():
        for name, files, _ in selftest.overlays(one, "others.py"):
            assert files, name
            for file, text in files.items():
                tree = ast.parse(text)
                there = {node.name for node in ast.parse(solution(file)).body if isinstance(node, kinds)}
                found = Counter(node.name for node in tree.body if isinstance(node, kinds))
                used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
                assert any(found[word] > 1 for word in there), f"{name} leaves {file} as it is"
                assert set(found) - there <= used, f"{name} does not use all of its own in {file}"


@pytest.mark.parametrize("depth", ["none", "next", "all"])
def test_a_mutant_that_nobody_kills_is_found(depth, nursery):
    """Also where the check that should kill it is made without those that it needs."""
    case = selftest.Case(judge.exercise("03"), "mutant", "none at all", {THIRD: solution()}, "03.2b")
    row = selftest.run_case(case, nursery, depth)
    assert (row["right"], row["fell_at"], row["status"]) == (False, None, "passed")


def test_a_cheat_that_does_not_find_what_it_attacks_is_found(nursery):
    """It earns nothing that way, and says nothing of the grader."""
    text = "import sys\nsys.modules['drive_03']\n" + solution()
    case = selftest.Case(judge.exercise("03"), "cheat", "missed", {THIRD: text})
    (row,) = selftest.cheat_rows([case], nursery)
    assert (row["right"], row["came"]) == (False, "what it attacks is not there")


@pytest.mark.night
@pytest.mark.parametrize("part", ["one a channel", 0, 1, 2, 3])
def test_cheats_earn_nothing_and_harm_nothing(part, nursery):
    """Those of exercise 03 try each channel once: pipe, files, processes, memory, modules."""
    every = [case for one in judge.manifest() for case in selftest.cheat_cases(one)]
    of_third = selftest.cheat_cases(judge.exercise("03"))
    graded_right(selftest.cheat_rows(of_third if part == "one a channel" else every[part::4], nursery))
    assert len(of_third) >= 25


# ---- the only source --------------------------------------------------------------------------


def test_starters_are_what_their_solutions_say():
    words = [sys.executable, "tools/starters.py", "--check"]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_cut_leaves_its_words_or_what_stands_instead():
    text = "a\n  # cut 03.1: words\n  one = 1\n  # end\n# cut 03.2: b\n# instead: two = 0\ntwo = 2\n# end\n"
    assert starters.starter(text) == 'a\n  raise NotImplementedError("03.1: words")\ntwo = 0\n'


def test_no_answer_is_in_a_file_that_students_get():
    """In no starter a line of any answer; in lessons and notebooks no two that follow each other. Lines that
    stand in the lessons, such as optimizer.step(), are the language and not an answer."""
    lessons = (ROOT / "lessons").glob("*.py")
    language = {line.strip() for path in lessons for line in path.read_text().splitlines()}
    language.add("if dist.get_rank() == 0:")  # the lessons have the rank in a variable
    kinds = (".py", ".md", ".sh", ".sbatch")
    pages = [path for path in (ROOT / "lessons").rglob("*") if path.suffix in kinds]
    pages += [*(ROOT / "notebooks").glob("*.ipynb"), ROOT / "README.md"]
    starter_lines, plain = {}, {}
    for path in pages:
        if judge.STARTERS in path.parents:
            starter_lines[path] = {line.strip() for line in path.read_text().splitlines()}
        else:
            # A notebook is JSON: each line of a cell is a string.
            text = re.sub(r"\s+", " ", path.read_text().replace('\\n",', "").replace('\\"', '"'))
            plain[path] = re.sub(r'" +"', " ", text)
    found = []
    for source in sorted(judge.SOLUTIONS.rglob("*.py")):
        lines = starters.answers(source.read_text())
        assert lines, f"{source.name} has no answers: what is compared here?"
        for path, there in starter_lines.items():
            found += [(path.name, line) for line in lines if len(line) > 15 and line in there - language]
        pairs = [f"{one} {two}" for one, two in itertools.pairwise(lines)]
        for path, text in plain.items():
            found += [(path.name, pair) for pair in pairs if len(pair) > 40 and pair in text]
    assert found == []


# ---- the manifest -----------------------------------------------------------------------------


def test_the_manifest_says_what_the_docstrings_say():
    for one in judge.manifest():
        text = "".join(solution(name) for name in one["files"])
        written = dict(re.findall(r"^ +(\d\d[a-z]?\.\d+) \((\d+) points?\)", text, re.M))
        counted = Counter()
        for entry in one["check"]:
            counted[re.match(r"\d\d[a-z]?\.\d+", entry["id"])[0]] += entry["points"]
        if written:
            assert {part: int(points) for part, points in written.items()} == counted, one["id"]
        assert f"{judge.points_of(one)} points" in text or len(one["files"]) > 1, one["id"]


def test_the_manifest_is_in_order():
    seen = set()
    assert sorted(EXERCISES) == EXERCISES and {"03", "03a", "03b", "04"} <= set(EXERCISES)
    for one in judge.manifest():
        fields = ["id", "stem", "title", "files", "forbidden", "floor", "limits", "seconds", "check"]
        assert set(one) <= set(fields) and one["id"] == one["stem"].partition("_")[0]
        for entry in one["check"]:
            assert set(entry) <= {"id", "title", "points", "needs", "hints", "when", "visibility", "files"}
            assert entry["id"].startswith(one["id"] + ".") and entry["id"] not in seen
            assert set(entry.get("needs", [])) <= seen, entry["id"]
            assert len(entry["hints"]) == 3 and entry["points"] > 0
            for pattern, *hints in entry.get("when", []):
                assert re.compile(pattern) and len(hints) in (1, 3) and {*map(type, hints)} == {str}
            seen_by = ("visible", "hidden", "after_due_date", "after_published")
            assert entry.get("visibility", "visible") in seen_by
            assert callable(judge.check_function(entry["id"]))
            seen.add(entry["id"])
    assert set(judge.CHECKS) == seen


def test_the_hint_follows_what_came():
    """The check's own `when` goes before a general kind, and that before the check's first hint."""
    assert set(KINDS) == set(judge.hints.ALWAYS | judge.hints.PLAIN) and len(HINTED) > 25
    entry = {"id": "03.1a", "hints": ["one", "two", "three"], "when": [["is 3", "own"], ["is 4", ""]]}
    entry["when"].append(["is 6", "of", "another", "fault"])

    def shown(came, hints=1):
        result = judge.Result("03.1a", "", 1, status="failed", came=came)
        result.hints = judge.hints.fitting(entry, came)
        return judge.helpful(result, hints)

    assert shown("it is 3") == ["own"] and shown("it is 4") == [] and shown("it is 5") == ["one"]
    assert shown("it is 3", 4) == ["own", "one", "two", "three"]
    assert shown("it is 6", 4) == ["of", "another", "fault"]
    assert shown("it is 4", 4) == shown("not written yet: 03.1: it is 5", 4) == ["one", "two", "three"]
    assert shown("not written yet: 03.1: it is 5") == []
    # Of a loop without an end, the line comes first, and the check's own hint would mislead.
    stack = '(most recent call first):\n  File "a.py", line 2 in f\n  File "b.py", line 9 in g\n'
    ended = {"marks": {}, "ended": -24, "output": f"some words\n{stack}"}
    cause = judge.causes.ended(0, ended, "your code", {"a.py": "def f():\n    while True: pass\n"})
    words = "your code was at line 2 of a.py: `while True: pass` when it had used up its"
    assert cause.came.startswith(words)
    assert cause.status == "timeout" and shown(cause.came) == []


# A mutant for each kind (its name, or a line of the solution and the code in front of it), and the check.
LOOP = "for tensor in"
KINDS = {
    "not begun": (("with torch.no_grad", 'raise NotImplementedError("03.1: a")'), "03.1a"),
    "no keyboard": ((LOOP, "input()"), "03.1a"),
    "no files": ((LOOP, "open('log', 'w')"), "03.1a"),
    "a tensor for a number": ("a tensor returned", "01.1b"),
    "another dtype": ("what comes out is bfloat16", "09.4a"),
    "an error in Python": ((LOOP, "model.bufers()"), "03.1a"),
    "never ends": ((LOOP, "while True: pass"), "03.1a"),
    "a sum": ("sum instead of mean", "03.2a"),
    "a mean": ("the mean instead of the sum", "03a.4a"),
    "rounding": (("dist.all_reduce(parameter.grad)", "parameter.grad *= 0.999"), "03.2a"),
    "no gradient": ("rank 0 alone adds the bias", "11.3b"),
    "nothing": ("symptom hidden: nobody measures", "04a.3a"),
    "one goes home": ("one rank goes home early in the first half", "03a.3a"),
    "all wait": ("all send before they receive", "03a.2a"),
}


@pytest.mark.quick(*(kind for kind in KINDS if kind != "never ends"))
@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_failure_has_a_mutant(kind, nursery, tmp_path):
    mutant, name = KINDS[kind]
    identity, more = name.partition(".")[0], {"seconds": 3} if kind == "never ends" else {}
    by_name = isinstance(mutant, str)
    put(mutant_of(identity, mutant).files if by_name else {THIRD: with_code(*mutant)}, tmp_path)
    result = one_check(name, nursery, tmp_path, **more)
    (entry,) = (entry for entry in judge.exercise(identity)["check"] if entry["id"] == name)
    assert judge.hints.kind(entry, result.came, result.expected) == kind, result.came
    hint = (judge.hints.ALWAYS | judge.hints.PLAIN)[kind][1]
    assert judge.helpful(result, 1) == [hint] * bool(hint) and result.hints[1:] == entry["hints"]


# The mutants that say what a student reads first.
HINTED = [
    pytest.param(path.parent.name.partition("_")[0], mutant, id=mutant["name"])
    for path in sorted(judge.HERE.glob("*/mutants.toml"))
    for mutant in tomllib.loads(path.read_text())["mutant"]
    if "hint" in mutant
]


@pytest.mark.parametrize(("identity", "mutant"), HINTED)
def test_the_first_hint_names_the_mistake(identity, mutant, nursery, tmp_path):
    put(mutant_of(identity, mutant["name"]).files, tmp_path)
    result = one_check(mutant["killed_by"], nursery, tmp_path)
    assert re.search(mutant["came"], result.came), result.came
    (shown,) = judge.helpful(result, 1)
    assert re.search(mutant["hint"], shown), shown


def test_a_check_that_needs_another_of_its_part_has_hints_of_its_own():
    """Whoever has passed 03.2a divides by the number of ranks: in 03.2c something else is wrong."""
    by_name = {entry["id"]: entry for entry in judge.exercise("03")["check"]}
    plain, further = by_name["03.2a"], by_name["03.2c"]
    came = "it: 2 at [0]; every number is 3 times what it should be, and there are 3 processes"
    assert judge.hints.kind(plain, came) == "a sum" and judge.hints.kind(further, came) == ""
    assert judge.hints.kind(further, "it is a tensor") == "a tensor for a number"


# ---- frames -----------------------------------------------------------------------------------


def test_frames_come_back_as_they_were():
    value = {
        "a": [1, -2.5, "x", None, True, float("inf")],
        "b": {"c": numpy.arange(6, dtype="float32").reshape(2, 3), 3: numpy.zeros((0, 4), "int64")},
        "d": numpy.float32(3.5),
    }
    came = wire.unpack(wire.pack(value))
    assert came["a"] == value["a"] and came["b"]["c"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert came["b"][3].shape == (0, 4) and came["d"] == 3.5
    assert numpy.isnan(wire.unpack(wire.pack([float("nan")]))[0])


EVENTS = {
    "an array for a phase": {"event": "a", "phase": numpy.zeros(3)},
    "a dict for a name": {"event": {}},
    "a list": [1],
    "a list in a list": {"event": "a", "sends": [[]]},
    "a number for a call": {"event": 5, "phase": "begin", "number": 1, "size": 1},
    "nothing for a place": {"event": "a", "phase": "begin", "number": 1, "size": 1, "where": None},
}


@pytest.mark.parametrize("value", EVENTS.values(), ids=EVENTS)
def test_no_event_makes_the_nursery_fall_over(value):
    rank, data = inside_nursery.Rank(0), wire.pack(value)
    rank.reads, writes = os.pipe()
    os.write(writes, struct.pack("<cI", b"E", len(data)) + data)
    assert inside_nursery.take(rank, 0.0) is False
    assert rank.error["kind"] == "BadFrame" and rank.events == []
    os.close(writes)
    os.close(rank.reads)


def test_a_rank_tells_so_much_and_no_more(monkeypatch):
    rank, event = inside_nursery.Rank(0), wire.pack({"event": "a", "sends": [1] * 20})
    monkeypatch.setattr(inside_nursery, "MOST_EVENT_BYTES", 2 * len(event))
    for _ in range(2):
        rank.told(b"E", event, 0.0)
    with pytest.raises(wire.BadFrame, match="too many events"):
        rank.told(b"E", event, 0.0)


def test_a_question_has_no_more_words_than_a_result():
    """Lists of nothing are twenty times as much memory as they are bytes, in the nursery and in the judge."""
    for count, fits in ((1_000, True), (wire.MOST_VALUES, False)):
        rank, question = inside_nursery.Rank(0), wire.pack({"gate": "here", "with": [[]] * count})
        rank.gates = {"here": {}}
        with contextlib.nullcontext() if fits else pytest.raises(wire.BadFrame, match="too many"):
            rank.told(b"Q", question, 0.0)
        assert ("here" in rank.asked) == fits


@pytest.mark.parametrize("event", [{"phase": "begin"}, {"event": "all_reduce", "phase": "begin"}])
@pytest.mark.parametrize("why", ["done", "stuck", "timeout"])
def test_no_event_makes_the_judge_fall_over(event, why):
    """What a call has not said of itself is filled in: name, number, size."""
    ranks = [inside_nursery.Rank(number) for number in range(2)]
    for rank in ranks:
        rank.told(b"E", wire.pack(event), 0.0)
    seen = [rank_of(events=rank.events, inside=list(rank.inside.values())) for rank in ranks]
    if why == "done":
        seen[0]["error"] = {"kind": "RuntimeError", "words": "gloo/transport", "time": 1.0}
    with pytest.raises(judge.Verdict):
        judge.explain({"why": why, "seconds": 1.2, "ranks": seen}, {THIRD: ""})


def test_no_bytes_make_the_judge_fall_over():
    chance, good = random.Random(7), wire.pack({"a": numpy.arange(5.0), "b": [1, "x"]})
    for number in range(4000):
        data = bytearray(good if number % 2 else chance.randbytes(chance.randrange(200)))
        for _ in range(chance.randrange(4)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        data = data[: chance.randrange(len(data) + 1)] if chance.random() < 0.3 else data
        try:
            wire.unpack(bytes(data))
        except wire.BadFrame:
            continue


# What stands in the header of a frame: the value, and its arrays if it has any.
ONE = '{"@array": 0}'
FRAMES = {
    "objects": (ONE, ["|O", [1]]),
    "more than it says": (ONE, ["<f4", [0]]),
    "too long": (ONE, ["<f4", [1000000000000]]),
    "negative": (ONE, ["<f4", [-1]]),
    "from the end": ('{"@array": -1}', ["<f4", []]),
    "not a number": ("NaN",),
    "a tag": ('{"@run": "os.system"}',),
    "too deep": ("[" * 100_000 + "]" * 100_000,),
    "too deep for a comparison": ("[" * 100 + "]" * 100,),
    "401 digits": ("1" + "0" * 400,),
    "too many bytes": ('"' + "x" * (1 << 20) + '"',),
    "too many values": ("[" + "[]," * 50_001 + "[]]",),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_that_is_none_is_refused(kind):
    value, *arrays = FRAMES[kind]
    head = f'{{"value": {value}, "arrays": {json.dumps(arrays)}}}'.encode()
    with pytest.raises(wire.BadFrame):
        wire.unpack(
            struct.pack("<I", len(head)) + head + bytes(4 * len(arrays)), wire.LONGEST, wire.MOST_VALUES
        )


# ---- seen from outside ------------------------------------------------------------------------

TOOLS = r"""
import os, re, socket, sys, time
import numpy
frame = sys._getframe()
while "tools" not in frame.f_locals:
    frame = frame.f_back
tools = frame.f_locals["tools"]

def in_memory(pattern):
    found = set()
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            first, last = (int(word, 16) for word in line.split()[0].split("-"))
            if "rw" in line:
                try:
                    memory.seek(first)
                    found |= set(re.findall(pattern, memory.read(last - first)))
                except (OSError, ValueError):
                    pass
    return sorted(word.decode() for word in found)
"""


def looked_at(nursery, text, gates=None, notes=(None, None), **more):
    """A run of two ranks with this before the solution: the trial, to ask what was seen of it."""
    trial = judge.Trial(nursery, judge.exercise("03"), "03.1c", {THIRD: TOOLS + text + solution()}, 0)
    states = judge.check_function("03.1c").__globals__["states"](trial, 2)
    inputs = [{"state": state, "note": note} for state, note in zip(states, notes, strict=True)]
    trial.run("begin", inputs, gates=gates, **more)
    return trial


def printed_by(trial):
    return [one["output"].strip() for one in trial.answer["ranks"]]


CALL_ONESELF = """
    here = socket.create_server(("127.0.0.1", 0))
    there = socket.create_connection(here.getsockname())
    there.send(bytes(5000))
"""


@pytest.mark.parametrize("depth", [1, 2], ids=["a child", "an orphan"])
def test_what_a_child_has_counts(depth, nursery):
    """Its memory, and its connections: also where the one between has ended."""
    text = f"""
ready, done = os.pipe()
if tools.rank == 0 and os.fork() == 0:
    if {depth} == 2 and os.fork():
        os._exit(0)
    kept = bytearray(os.urandom(1 << 20) * 50)
    {CALL_ONESELF}
    os.write(done, b".")
    time.sleep(1000)
if tools.rank == 0:
    os.read(ready, 1)
"""
    trial = looked_at(nursery, text)
    before, after = trial.mark(0, "@start"), trial.mark(0, "@end")
    assert after["memory"] - before["memory"] > 50 << 20
    assert trial.sent(0) > 5000 and after["sockets"] >= before["sockets"] + 2
    assert (trial.sent(1) > 5000) == (depth == 2)  # nobody knows whose an orphan was
    nursery.wipe()


CLOSE_ALL = """
import stat, sys

class Closing:
    def flush(self):
        time.sleep(0.2)
        for descriptor in range(6, 256):
            try:
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    os.dup2(2, descriptor)  # gloo would end a process whose descriptor is closed
            except OSError:
                pass

if tools.rank == 0:
    sys.stdout = Closing()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts from outside")
def test_a_rank_that_has_no_connections_any_more_fails(nursery):
    """It closes them when its work is done. Nobody knows then what went over them."""
    trial = looked_at(nursery, CLOSE_ALL)
    marks = [one["marks"] for one in trial.answer["ranks"]]
    assert marks[0]["@start"]["sockets"] > 0 and marks[0]["@end"]["sockets"] == 0
    with pytest.raises(judge.Verdict, match=r"rank 0 has closed \d of its connections"):
        trial.sent(0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts from outside")
def test_a_connection_that_was_there_at_a_gate_stays(nursery):
    text = f"if tools.rank == 0:{CALL_ONESELF}"
    text += "    tools.ask('here')\n    there.close()\n    tools.ask('later')\n"
    those = gates(sent=4500)
    those[0]["later"] = {"value": 1.0}
    trial = looked_at(nursery, text, those)
    assert trial.asked(0, "here")["sent"] >= 5000
    with pytest.raises(judge.Verdict, match=r"rank 0 has closed 1 of its connections"):
        trial.sent(0)


def gates(**demands):
    """A number for rank 0, with this demand, and one for rank 1."""
    return [{"here": {"value": 1.5} | demands}, {"there": {"value": 1.0}}]


ASK = "if tools.rank == 0:\n    tools.ask('here')\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts from outside")
def test_a_gate_opens_when_the_bytes_have_left_and_its_number_is_nowhere_before(nursery):
    # Another number each time, for the nursery has had the last one; and a pattern that does not fit itself.
    number = random.uniform(0.5, 0.6)
    digits = str(number)[2:16]
    look = f"    assert not in_memory(rb'0[.]{digits[:-1]}[{digits[-1]}]'), 'it is here'\n"
    ask = "    assert 0.5 <= tools.ask('here', [1, 2]) <= 0.6\n"
    text = f"if tools.rank == 0:{CALL_ONESELF}{look}{ask}"
    trial = looked_at(nursery, text, gates(sent=4500, value=number))
    assert trial.asked(0, "here")["with"] == [1, 2] and 5000 <= trial.asked(0, "here")["sent"] < 9000
    words = "at 'here', rank 0 had sent nothing, and it sent nothing later"
    with pytest.raises(judge.Verdict, match=words) as verdict:
        looked_at(nursery, ASK, gates(sent=4500))
    assert (verdict.value.status, verdict.value.expected) == ("failed", "at least 4500 bytes")
    with pytest.raises(judge.Verdict, match=r"rank 1 never reached 'there', where it must ask the grader"):
        trial.asked(1, "there")


def test_a_gate_waits_for_another_rank(nursery):
    text = """
if tools.rank == 1:
    time.sleep(0.1)
    tools.ask("there")
"""
    trial = looked_at(nursery, text + ASK, gates(asked=[[1, "there"]]))
    assert trial.asked(0, "here")["time"] > 0
    with pytest.raises(judge.Verdict, match=r"^rank 1 slept") as verdict:
        looked_at(nursery, ASK, gates(asked=[[1, "there"]], words="rank 1 slept"))
    assert verdict.value.status == "timeout"


# What a rank might do when it is not its turn. If it began twice, what it had sent before would be hidden. If
# it could go on without the number of the last gate, what that gate demands would not count.
OUT_OF_TURN = {
    "begins twice": ("tools._pipe.send(b'M', None)", "ready to begin a second time"),
    "asks for nothing": ("tools.ask('nowhere')", "a question that has no answer"),
    "asks twice": ("[tools.ask('here') for _ in range(2)]", "a question that has no answer"),
    "goes on": (
        "tools._pipe.send(b'Q', {'gate': 'here', 'with': None})",
        "a result while it waits for a number: here",
    ),
}


@pytest.mark.parametrize("what", OUT_OF_TURN)
def test_nobody_acts_out_of_turn(what, nursery):
    code, words = OUT_OF_TURN[what]
    demand = {"sent": 1 << 30} if what == "goes on" else {}
    with pytest.raises(judge.Verdict, match=rf"sent something that is not a valid result \({words}"):
        looked_at(nursery, f"if tools.rank == 0:\n    {code}\n", gates(**demand))


def test_in_the_memory_of_a_rank_is_nothing_that_others_were_given(nursery):
    """Not in this run, and not of the run before. What it was given itself is found."""
    for notes in (["for rank 10!", "for rank 11!"], ["for rank 20!", "for rank 21!"]):
        trial = looked_at(nursery, r"print(in_memory(rb'for rank \d+!'))" + "\n", notes=notes)
        assert printed_by(trial) == [f"['{note}']" for note in notes]


def test_a_rank_knows_nothing_from_which_the_judge_draws(nursery):
    """Its seed, its folder, what torch, random and numpy begin with: all are another number."""
    text = "import random, torch\nprint(torch.initial_seed(), random.random(), os.getcwd(), hash('word'))\n"
    trial = looked_at(nursery, text, folder="kept")
    outputs = [words.split() for words in printed_by(trial)]
    assert all(str(trial.seed) not in word for words in outputs for word in words)
    assert [one != other for one, other in zip(*outputs, strict=True)] == [True, True, False, True]
    nursery.forget(trial.folders)


def test_the_secrets_of_two_ranks_are_never_nearly_equal():
    trial = judge.Trial(None, judge.exercise("08"), "08.3c", {}, 0)
    for _ in range(1000):
        numbers = [gates["before"]["value"] for gates in several.gates_of(trial, 4, "before")]
        assert min(abs(one - other) for one, other in itertools.combinations(numbers, 2)) > 0.12


# ---- comparing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (None, "is None"),
        ("passed", "is 'passed'"),
        (True, "is True"),
        ([1.0, 2.0, 3.0], "is [1.0"),
        (numpy.array([1.0, 2.0]), "has the shape 2"),
        (numpy.array([1.0, 2.0, numpy.nan]), "nan at [2]"),
        (numpy.array([1.0, 2.0, numpy.inf]), "inf at [2]"),
        (numpy.array([1.0, 2.0, 3.001]), "3.001 at [2] (1 of 3 numbers is wrong)"),
        (numpy.array([2.0, 4.0, 6.0]), "every number is 2 times what it should be"),
        (numpy.array([1.0, 2.0, 3.00001]), ""),
    ],
)
def test_what_is_close(got, words):
    trial = judge.Trial(None, judge.exercise("03"), "03.1a", {}, 0)
    if not words:
        trial.close("it", got, [1.0, 2.0, 3.0])
        trial.close("it", got - 3, [-2.0, -1.0, 0.0])
        trial.close("it", numpy.array([5e-7]), [0.0])  # what is small by chance keeps a rounding
        return
    with pytest.raises(judge.Verdict) as verdict:
        trial.close("it", got, [1.0, 2.0, 3.0])
    assert verdict.value.status == "failed" and words in verdict.value.came


DEEP = {
    "minus": "-" * 190_000 + "1",
    "calls": "f" + "()" * 90_000,
    "brackets": "[" * 190_000,
}


@pytest.mark.parametrize("kind", DEEP)
def test_no_text_makes_the_judge_fall_over(kind):
    with pytest.raises(judge.Verdict) as verdict:
        judge.refuse_names(judge.exercise("03"), THIRD, DEEP[kind])
    assert verdict.value.status == "error" and THIRD in verdict.value.came


def test_a_long_chain_of_names_is_not_gone_through():
    """To put together the path of each name in it took the judge 15 seconds, for each check."""
    tree = ast.parse("a" + ".all_reduce" * 2000)
    imports = {"a": "torch.distributed"}
    paths = [path for node in ast.walk(tree) for path in forbidden.named(node, imports, set())]
    assert max(map(len, paths)) < 2 * forbidden.LONGEST and "torch.distributed.all_reduce" in paths


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("dist.all_reduce(x)", "all_reduce"),
        ("from torch.distributed import all_reduce as add", "all_reduce"),
        ("from torch.distributed import *\nall_reduce(x)", "all_reduce"),
        ("import torch\ntorch.distributed.distributed_c10d.reduce(x, 0)", "reduce"),
        ("from torch.distributed.nn import functional\nfunctional.all_reduce(x)", "all_reduce"),
        ("group.allreduce([x])", "allreduce"),
        ("getattr(dist, 'all_reduce')(x)", "all_reduce"),
        ("def all_reduce(x):\n    return dist.all_reduce(x)", "all_reduce"),
        ("other = dist\nother.all_reduce(x)", "all_reduce"),
        ("import importlib\nimportlib.import_module('torch.distributed').barrier()", "barrier"),
        ("def all_reduce(x):\n    pass\nall_reduce(x)", ""),
        ("class Ring:\n    def reduce(self):\n        pass\n\nRing().reduce()", ""),
        ("class Ring:\n    def __init__(self):\n        self.gather = []\n        self.gather.append(1)", ""),
        ("def half(chunks, broadcast):\n    return broadcast", ""),
        ("from functools import reduce\nreduce(max, [1])", ""),
        ("import functools\nfunctools.reduce(max, [1])", ""),
        ("import torch\ntorch.gather(x, 0, x)", ""),
        ("print('all_reduce', x)", ""),
        ('pattern = "\\d+"', ""),  # a warning of Python's is no error
    ],
)
def test_what_is_forbidden_is_torchs(text, word):
    """And not what is only called like it."""
    text = f"import torch.distributed as dist\n{text}\n"
    if word:
        with pytest.raises(judge.Verdict, match=rf"^line \d of ring.py uses {word}$"):
            judge.refuse_names(judge.exercise("03a"), "ring.py", text)
    else:
        judge.refuse_names(judge.exercise("03a"), "ring.py", text)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1"])
def test_a_mark_in_front_costs_nothing(encoding, nursery, tmp_path):
    """Some editors write one. Any other encoding is told in a line."""
    (tmp_path / THIRD).write_bytes(f"# \u00e9\n{solution()}".encode(encoding))
    result = one_check("03.1a", nursery, tmp_path)
    words = f"{THIRD} is not encoded in UTF-8: save it as UTF-8 in your editor"
    came = ("passed", "") if encoding == "utf-8-sig" else ("error", words)
    assert (result.status, result.came) == came


# ---- who is to blame --------------------------------------------------------------------------

# Code that is put in front of a line of average_gradients, what the judge says of it, and the line, if it is
# not the one that begins with `has_one`.
BLAME = {
    "leaves early": (
        "if dist.get_rank() == 1:\n    return",
        r"rank 1 returned before all_reduce number 1 \(line \d+ of 03_av\w+.py\); rank 0 was waiting for it",
    ),
    "three wait for one": (
        "if dist.get_rank() == 1 and dist.get_world_size() == 3:\n    return",
        r"rank 1 returned before all_reduce number 1 .*; ranks 0 and 2 were waiting for it",
    ),
    "another call": (
        "if dist.get_rank():\n    return dist.broadcast(has_one, 0)",
        r"do not make the same calls: rank 0 called all_reduce number 1 .*, rank 1 called broadcast number 1",
        "dist.all_reduce(has_one)",
    ),
    "raises": (
        "if dist.get_rank() == 1:\n    raise ValueError('mine')",
        r"rank 1 raised ValueError: mine at line \d+ .*; rank 0 was waiting for it in all_reduce number 2",
        "dist.all_reduce(parameter.grad)",
    ),
    "dies": (
        "if dist.get_rank() == 1:\n    import os\n    os.kill(os.getpid(), 9)",
        "rank 1 was killed by SIGKILL",
        "dist.all_reduce(parameter.grad)",
    ),
    "never ends": (
        "while dist.get_rank() == 1:\n    pass",
        r"rank 1 was at line \d+ of 03_av\w+.py: `.*` and had not returned after 3 s; "
        r"rank 0 was waiting for it in all_reduce number 1",
    ),
    "sleeps": (
        "import time\nif dist.get_rank() == 1:\n    time.sleep(1000)",
        r"rank 1 was at line 41 of 03_av\w+.py: `time.sleep\(1000\)`; rank 0 waited in all_reduce",
    ),
    "all sleep": (
        "import time\ntime.sleep(1000)",
        r"the run was stuck: ranks 0 and 1 were at line \d+ of 03_av\w+.py: `time.sleep\(1000\)`$",
    ),
    "waits for nobody": (
        "import threading\nif dist.get_rank() == 1:\n    return\nthreading.Event().wait()",
        r"the run was stuck: rank 1 returned, and rank 0 was at line 42 of 03_av\w+.py: `threading.Ev",
    ),
    "asks the keyboard": (
        "breakpoint()",
        r"rank [01] raised RuntimeError: breakpoint\(\) cannot work here: no process of the grader has a "
        r"keyboard; use print at line \d+ of 03_average_gradients.py: `breakpoint\(\)`",
    ),
    "a helper raises": (
        "helper(None)",
        r"rank [01] raised AttributeError: .* at line \d+ of 03_average_gradients.py: `return tensor.shape`, "
        r"called in line \d+: `helper\(None\)`$",
    ),
    "send without receive": (
        "if dist.get_rank() < 2 and dist.get_world_size() > 1:\n"
        "    dist.send(torch.zeros(1 << 20), 1 - dist.get_rank())",
        r"all ranks are waiting and none can go on: rank 0 in send number 1 to rank 1 .*; rank 1 in send "
        r"number 1 to rank 0 .*; messages that were not received: 1 from rank 0 to rank 1, 1 from rank 1",
    ),
}


@pytest.mark.parametrize("fault", BLAME)
def test_the_earliest_cause_is_named(fault, nursery, tmp_path):
    code, words, *where = BLAME[fault]
    text = (
        with_code(*where or ["has_one = torch"], code) + "\n\ndef helper(tensor):\n    return tensor.shape\n"
    )
    result = one_check("03.2a", nursery, tmp_path, text, seconds=3 if fault == "never ends" else 20)
    assert result.score == 0
    assert re.search(words, result.came), result.came


@pytest.mark.parametrize(
    ("src", "words"),
    [
        ("src=dist.get_rank()", "; the ranks call broadcast number 1 (line 26 of 03_average_gradients.py)"),
        ("dist.get_rank()", " with different values of src: rank 0 with src=0, rank 1 with src=1"),
        ("src=1", " on rank 0 is that of rank 1"),
    ],
)
def test_broadcasts_from_different_ranks_say_so(src, words, nursery, tmp_path):
    result = one_check("03.1a", nursery, tmp_path, solution().replace("src=0", src))
    assert result.score == 0 and words in result.came
    differ = "different values of src: rank 0 with src=0, rank 1 with src=1" in result.came
    assert differ == ("get_rank" in src)


def rank_of(**facts):
    empty = dict.fromkeys(["value", "error", "broken", "ended", "gate"])
    return empty | {"events": [], "marks": {}, "asked": {}, "inside": [], "output": ""} | facts


def test_a_bystander_is_not_the_cause_even_if_it_is_heard_first():
    closed = {"kind": "RuntimeError", "words": "Connection closed by peer [127.0.0.1]:1234", "time": 1.0}
    ranks = [rank_of(error=closed), rank_of(ended=-9, marks={"@ended": {"time": 1.1}}), rank_of(error=closed)]
    with pytest.raises(judge.Verdict) as verdict:
        judge.explain({"why": "done", "seconds": 1.2, "ranks": ranks}, {THIRD: ""})
    assert verdict.value.came == "rank 1 was killed by SIGKILL"


def test_a_file_that_is_no_python_is_said_once(nursery, tmp_path):
    ring = judge.exercise("03a")  # some of its checks stand on no other
    (tmp_path / ring["files"][0]).write_text("def chunks_of(flat:\n")
    results = judge.grade(ring, tmp_path, nursery)
    assert results[0].came == f"{ring['files'][0]} has a syntax error in line 1: '(' was never closed"
    assert {result.status for result in results[1:]} == {"not reached"}
    assert "hint" not in judge.report(ring, results)


@pytest.mark.long
def test_a_nursery_that_is_gone_is_started_again(nursery):
    assert one_check("03.1a", nursery).status == "passed"
    os.killpg(nursery.process.pid, signal.SIGKILL)
    assert one_check("03.1a", nursery).status == "passed"


def test_nothing_of_one_submission_is_there_for_the_next():
    """Exercise 06b keeps files from run to run."""
    one = judge.exercise("06b")
    one = one | {"check": one["check"][:1]}
    files, _ = grade.opened(judge.SOLUTIONS, [one])
    with judge.Nursery(1) as nursery:
        judge.grade(one, judge.SOLUTIONS, nursery)
        assert list(Path(nursery.base).iterdir())
        grade.grade_files(files, [one], 0, nursery)
        assert not list(Path(nursery.base).iterdir())


def test_a_check_that_is_broken_is_nobodys_zero(nursery, monkeypatch):
    monkeypatch.setitem(judge.CHECKS, "03.1a", lambda trial: 1 / 0)
    result = one_check("03.1a", nursery)
    assert (result.status, result.score) == ("infrastructure", 0)


WORD = """
import os, struct, sys
data = sys.modules["wire"].pack("a word for a result")
os.write(3, struct.pack("<cI", b"R", len(data)) + data)
os._exit(0)
"""


def test_no_submission_can_make_a_check_nobodys_zero(nursery, tmp_path, monkeypatch):
    """A check that fails does so with the recorded solution, too, or it is the submission's fault."""
    result = one_check("03.1a", nursery, tmp_path, WORD)
    assert (result.status, result.score) == ("error", 0), result.came
    words = (
        r"with your code, the check itself failed: \w+Error: .*; with the recorded solution, the .* passes"
    )
    assert re.fullmatch(words, result.came) and result.left  # the next submission gets a new nursery
    assert one_check("03.1a", nursery).status == "passed"
    # Where there are no solutions, as in Gradescope's bundle, the kind of the failure has to say it.
    monkeypatch.setattr(judge.grading, "SOLUTIONS", tmp_path / "none")
    result = one_check("03.1a", nursery, tmp_path)
    words = r"your code sent something that the check cannot read \(\w+Error: .*\)"
    assert result.status == "error" and re.fullmatch(words, result.came), result.came


@pytest.mark.long
def test_no_submission_can_take_the_place_where_ranks_meet(nursery, tmp_path):
    """A folder is kept from one run to the next, and gloo's ranks meet in it."""
    (entry,) = (entry for entry in judge.exercise("04a")["check"] if entry["id"] == "04a.8a")
    name = entry["files"][0]
    text = """import glob, os
last = max(int(name.split('-')[1]) for name in glob.glob('.meeting-*'))
for n in range(last + 1, last + 9):
    try:
        os.mkdir(f'.meeting-{n}')
    except OSError:
        pass
"""
    put({name: text + solution(name)}, tmp_path)
    result = one_check("04a.8a", nursery, tmp_path)
    assert result.status == "error" and "recorded solution" in result.came


def test_a_machine_that_fails_for_a_moment_costs_nothing(nursery, monkeypatch):
    calls, real = [], judge.check_function("03.1a")

    def fails_once(trial):
        calls.append(trial)
        return real(trial) if len(calls) > 1 else open("/proc/none")

    monkeypatch.setitem(judge.CHECKS, "03.1a", fails_once)
    result = one_check("03.1a", nursery)
    assert (result.status, result.score, result.came, len(calls)) == ("passed", 2, "", 3)


def test_a_number_of_400_digits_is_no_result(nursery, tmp_path):
    text = solution(judge.exercise("04")["files"][0]) + "\n\ndef exact_accuracy(right):\n    return 10**400\n"
    result = one_check("04.3b", nursery, tmp_path, text)
    assert (result.status, result.score) == ("error", 0)
    assert "sent something that is not a valid result (a whole number of more than 64 bits)" in result.came


@pytest.mark.parametrize("starts", [True, False])
def test_a_machine_that_fails_is_nobodys_zero(monkeypatch, tmp_path, starts):
    """The nursery can start no process; or it does not even start itself."""
    one, broken = judge.exercise("03"), judge.Nursery(1)
    if starts:
        answer = {"why": "infrastructure: no process can be started", "ranks": [], "left": 0, "seconds": 0}
        broken.ready, broken.run = lambda: None, lambda **request: answer
    else:
        monkeypatch.setattr(judge.connection, "INSIDE", tmp_path)
    record = grade.grade_into("ada", judge.SOLUTIONS, tmp_path, [one], 0, broken)
    assert record["infrastructure"] and not (tmp_path / "ada" / "results.json").exists()
    pages.write_class([record], tmp_path, 0, course.Course())
    (row,) = table(tmp_path / "grades.csv")
    assert (row["total"], row["status"]) == ("", "infrastructure: not graded")
    assert (tmp_path / "nbgrader.csv").read_text().count("\n") == 1


# ---- as people meet it ------------------------------------------------------------------------


def test_a_student_checks_a_starter():
    code, text = pytest_on("--only", "03")
    assert code == 1
    assert "03 DDP in its simplest form: 0 of 12 points" in text
    assert "not written yet: 03.1: all ranks begin with what rank 0 has" in text
    assert text.count("(not reached: 03.") == 6 and "hint:" not in text
    assert "8 failed" in text and "skipped" not in text
    assert "Traceback" not in text and "contained at level" in text


@pytest.mark.long
def test_a_check_that_is_not_reached_fails_everywhere(tmp_path):
    """03.2b needs 03.2a, which is wrong. A skip would leave the status 0, and a course that goes by it would
    give the points."""
    text = solution().replace("parameter.grad /= dist.get_world_size()", "pass")
    put({THIRD: text}, tmp_path)
    junit = f"ARGUMENTS=--junitxml={tmp_path}/junit.xml"
    run = make("check", "EX=03.2b", f"SUBMISSION={tmp_path}", "WARM=no", "HINTS=1", f"OUT={tmp_path}", junit)
    assert run.returncode == 2 and "1 failed" in run.stdout and "hint 3:" in run.stdout
    assert "(not reached: 03.2a must pass first)" in run.stdout
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "0")
    run = grader("--one", tmp_path, "--only", "03", "--force", "--out", tmp_path, "--strict")
    assert run.returncode == 1
    results = json.loads((tmp_path / "results.json").read_text())
    (test,) = (test for test in results["tests"] if test["number"] == "03.2b")
    assert test["status"] == "failed" and test["score"] == 0
    assert "03.2a must pass first" in test["output"] and "hint" not in test["output"]


@pytest.mark.long
def test_it_reads_as_pytest_does(tmp_path):
    """Names, -v, -r and the JUnit file are what somebody who knows pytest expects. With -r, what a check
    that is passed has printed is shown, too."""
    junit = tmp_path / "junit.xml"
    text = with_code(LOOP, "for number in range(30):\n    print(number)")
    text = text.replace("parameter.grad /= dist.get_world_size()", "print('summed')")
    put({THIRD: text}, tmp_path)
    third = "tests/exercises/03_average_gradients/exercise.toml"
    words = ["--submission", tmp_path, "--out", tmp_path]
    code, text = pytest_on(*words, "-rA", "-v", f"--junitxml={junit}", "-k", "03.1a or 03.2a")
    assert code == 1 and "1 passed" in text and "2 of 5 points of 2 checks" in text
    assert f"{third}::03.1a PASSED" in text and f"{third}::03.2a FAILED" in text
    assert f"\nPASSED {third}::03.1a\n" in text
    # Of three runs, the one with the most ranks, which are three.
    assert text.count("rank 2 | ... 25 lines left out") == 1
    came = re.search(rf"\nFAILED {third}::03.2a - (.+)\n", text)[1]
    assert f"result:   {came.partition('...')[0]}" in text
    passed, failed = ElementTree.parse(junit).getroot().iter("testcase")
    assert (passed.get("name"), failed.get("name"), len(passed.findall("failure"))) == ("03.1a", "03.2a", 0)
    properties = {one.get("name"): one.get("value") for one in failed.iter("property")}
    assert properties["points"] == "3" and properties["score"] == "0"
    failure = failed.find("failure")
    assert "every number is 2 times what it should be" in failure.get("message")
    for words_of_it in ("0 of 3 points", "\n  expected: ", "\n  hint:     ", "\n    rank 0 | summed"):
        assert words_of_it in failure.text, words_of_it
    # By its name alone, as pytest has printed it. 03.1a runs too, because 03.1b needs it, and does not count.
    code, text = pytest_on(*words, args=[f"{third}::03.1b"])
    assert code == 0 and "1 passed" in text and "1 of 1 points of 1 check\n" in text


CHECKED_AS = {
    "lessons/exercises": "03",
    "lessons/exercises/02_scatter_gather.py": "02_scatter_gather",
    "lessons/exercises/04a_bug_hunt/bug_03.py::main": "bug_03",
}


@pytest.mark.parametrize("path", CHECKED_AS)
def test_pytest_on_a_starter_says_where_its_checks_are(path):
    (code, text), name = pytest_on(args=[path]), CHECKED_AS[path]
    assert code == 4 and f"run `make check EX={name}`, or `pytest tests/exercises --only {name}`, in" in text
    assert judge.wanted(name)


# How many checks are meant by what a student may call them.
MEANT = {
    1: ["03a.4c"],
    2: ["4a.1", "bug_03", "lessons/exercises/04a_bug_hunt/bug_10.py"],
    5: ["03.2"],
    8: ["3", "03", "03_average_gradients"],
    9: ["3a", "3A", "lessons/exercises/03_average_gradients.py, 03.1a,3a.4c"],
    20: ["04a_bug_hunt/"],
}


@pytest.mark.parametrize("count", MEANT)
def test_a_number_names_an_exercise_a_part_or_a_check(count):
    assert {name: len(judge.wanted(name)) for name in MEANT[count]} == dict.fromkeys(MEANT[count], count)


ALL = f"the exercises are {', '.join(EXERCISES)}"
NO_NAMES = {
    "02_scatter": "there is no exercise 02_scatter: did you mean 02_scatter_gather?",
    "DDP": "there is no exercise ddp: did you mean 03b_ddp?",
    "03_avarage_gradient": "there is no exercise 03_avarage_gradient: did you mean 03_average_gradients?",
    "12": f"there is no exercise 12; {ALL}",
    "zebra": f"there is no exercise zebra; {ALL}",
    "3b.1.2": f"there is no check 03b.1.2. Exercise 03b has {CHECKS_OF_03B}",
}


@pytest.mark.parametrize("word", NO_NAMES)
def test_a_name_that_is_none_is_told_what_there_is(word):
    with pytest.raises(SystemExit) as refused:
        judge.wanted(word)
    assert str(refused.value) == f"error: {NO_NAMES[word]}"


def test_a_number_that_is_none_is_told_those_there_are():
    words = f"there is no exercise 99; {ALL}\n"
    code, text = pytest_on("--only", "99")
    assert code == 4 and f"ERROR: {words}" in text
    run = grader("--only", "99", ".")
    assert (run.returncode, run.stderr) == (1, f"error: {words}")


@pytest.mark.parametrize("terminal", [False, True])
def test_make_adds_nothing_to_the_report(terminal):
    """Where a person looks at it. A script gets the status, and with it what make says."""
    ours, theirs = pty.openpty()
    more = {"stderr": theirs} if terminal else {}
    run = make("check", "EX=99", "WARM=no", **more)
    os.close(theirs)
    said = run.stdout + (run.stderr or "")
    with contextlib.suppress(OSError):
        said += os.read(ours, 10_000).decode()
    os.close(ours)
    assert "there is no exercise 99" in said
    assert (run.returncode == 0, "make" not in said) == (terminal, terminal)


def test_what_is_printed_is_shown_by_rank_and_kept(tmp_path):
    """Of a check that fails. All of it lies in the file that is named. 03.2d fails."""
    code = """lines = 0 if hasattr(average_gradients, "called") else 30
average_gradients.called = True
for number in range(lines):
    print(f"line {number} of {dist.get_rank()}" + " x" * 100 * (number == 29))"""
    put({THIRD: with_code("has_one = torch", code).replace("if count == 0:", "if False:")}, tmp_path)
    code, text = pytest_on("--only", "03.2", "--submission", tmp_path, "--out", tmp_path / "out")
    assert ": passed" not in text
    shown = re.findall(r"^    (rank . \| .*)$", text, re.M)
    left = [*(f"line {number} of 1" for number in range(4)), "... 20 lines left out", "line 24 of 1"]
    assert code == 1 and shown[11:17] == [f"rank 1 | {words}" for words in left]
    assert all(line.startswith("rank ") and len(line) < 170 for line in shown) and len(shown) == 22
    assert f"\neverything that your code printed is in {tmp_path}/out/printed/03.txt\n" in text
    whole = (tmp_path / "out/printed/03.txt").read_text()
    assert whole.count("rank 1 | line 29 of 1" + " x" * 100) == 7 and "left out" not in whole
    assert "-- 4 processes, different gradients on each rank\n" in whole
    # Of a run that prints nothing, nothing stays of the one before.
    assert judge.printed.keep("03", [], tmp_path / "out") == "" != whole
    assert not (tmp_path / "out/printed/03.txt").exists()


def test_what_is_printed_without_end_is_short_in_a_report(nursery, tmp_path):
    """Few lines of each rank, none of them long; how many are left out is true even where the nursery has
    kept a part. An exception has so many lines, too."""
    text = with_code("has_one = torch", 'for number in range(4000):\n    print(number, "x" * 3000)')
    text = text.replace("/= dist.get_world_size()", '/= 0; raise ValueError("a\\n" * 900)')
    result = one_check("03.2a", nursery, tmp_path, text)
    assert "printed" in result.as_dict() and result.as_dict()["printed"] == ""
    of_rank = [line for line in result.output.splitlines() if line.startswith("rank 1 | ")]
    assert len(of_rank) == 11 and of_rank[4] == "rank 1 | ... 3990 lines left out"
    assert of_rank[0].startswith("rank 1 | 0 xxx") and of_rank[-1].startswith("rank 1 | 3999 xxx")
    assert max(map(len, result.output.splitlines())) < 170
    lines = result.came.splitlines()
    assert len(lines) == 17 and re.fullmatch(r"\.\.\. \d+ lines left out", lines[12]), result.came


# What load may write to stderr when it has refused step 2. Mutants of 06b show what it may not.
SAID = ["refused /x/2.snapshot: damaged\n", "\n2.snapshot refused, bad sum\n\n", "/x/2.snapshot: повреждён\n"]
LINES = {
    "2.snapshot: 17\n": "the line on stderr is '2.snapshot: 17'",
    "2.snapshot: damaged\nso the one before\n": "on stderr there are 2 lines: 2.snapshot",
    "a and b are noise\n": "on stderr there is 1 line: a and b are noise",
}


def test_what_is_refused_has_one_line_with_its_name_and_a_reason():
    trial = judge.Trial(None, judge.exercise("06b"), "06b.2b", {}, 0)
    refused_aloud = judge.check_function("06b.2b").__globals__["refused_aloud"]
    for said in SAID:
        (reason,) = refused_aloud(trial, said, "2.snapshot")
        assert "snapshot" not in reason and reason
    assert refused_aloud(trial, "b: noise\na: foreign\n", "a", "b") == ["foreign", "noise"]
    for said, words in LINES.items():
        with pytest.raises(judge.Verdict) as verdict:
            refused_aloud(trial, said, *(["2.snapshot"] if "2" in said else ["a", "b"]))
        assert verdict.value.came.startswith(words)


@pytest.mark.long("03", "10")
@pytest.mark.night
@pytest.mark.parametrize("name", [name for name in EXERCISES if name != "04a"])
def test_each_exercise_can_be_tried_by_hand(forked, name):
    """With the solution in place, every line has the rank in front, and no part is left out."""
    words = [sys.executable, judge.STARTERS / "try.py", name, "--submission", judge.SOLUTIONS]
    run = forked(words, {"PYTHONWARNINGS": "default"})
    code, out, err = run.code, run.stdout, run.stderr
    assert (code, "refused" in err, err.count("\n")) == (0, name == "06b", int(name == "06b"))
    lines = out.splitlines()
    ranks = {line.split(" | ")[0] for line in lines}
    assert ranks == {f"rank {rank}" for rank in range(len(ranks))} and len(ranks) >= 1
    assert "not written yet" not in out and len(lines) >= 3 * len(ranks)


@pytest.mark.long
def test_a_starter_can_be_tried():
    command = [sys.executable, "lessons/exercises/try.py", "3", "--ranks", "3"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.count("not written yet: 03.1: all ranks begin with what rank 0 has") == 3


NOT_TRIED = {
    "try": "there is no exercise try in ",
    "bug_03": "start the bug hunt with ",
    "98": "there is no try_98 yet: write it, ",
}


@pytest.mark.parametrize("name", NOT_TRIED)
def test_what_cannot_be_tried_is_refused_in_one_line(name, monkeypatch, tmp_path):
    (tmp_path / "98_toy.py").touch()
    shutil.copy(judge.STARTERS / "try.py", tmp_path)
    start = runpy.run_path(str(tmp_path / "try.py"))["main"]
    monkeypatch.setattr(sys, "argv", ["try.py", name])
    with pytest.raises(SystemExit, match=f"^error: {NOT_TRIED[name]}[^\n]*$"):
        start()


def test_a_folder_that_is_not_there():
    code, text = pytest_on("--submission", "nowhere")
    assert code == 2 and "error: there is no folder nowhere: choose another one with --submission" in text


@pytest.mark.long
def test_it_checks_again_at_every_save(tmp_path):
    (tmp_path / THIRD).write_text((judge.STARTERS / THIRD).read_text())
    command = [sys.executable, "-u", "tests/exercises/watch.py", "--only", "03", "--submission", tmp_path]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as watch:
        try:
            first = until(watch, "waiting for")
            (tmp_path / THIRD).write_text(solution())
            began = time.monotonic()
            second = until(watch, "waiting for")
            seconds = time.monotonic() - began
            watch.send_signal(signal.SIGINT)
            watch.wait(10)
        finally:
            watch.kill()
    assert "0 of 12 points" in first and "12 of 12 points" in second
    for said in (first, second):
        assert said.index("checking 03 DDP in its simplest form ...") < said.index("of 12 points")
    assert seconds < 30  # 2 on a machine that does nothing else


def until(process, words):
    text = ""
    for line in process.stdout:
        text += line
        if words in line:
            return text
    raise AssertionError(text)


# ---- a class ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graded(once):
    made = once("class", grade_a_class)
    return {name: Path(value) if name in ("out", "folder") else value for name, value in made.items()}


def grade_a_class(folder):
    """A class of people and files as they come, graded by the documented command, twice."""
    subs, out = folder / "submissions", folder / "grades"
    for name in ("ada", "ben", "<b>eve", "=1+1", "none"):
        (subs / name).mkdir(parents=True)
    (subs / "ada" / THIRD).write_text(solution())
    (subs / "ada" / "conftest.py").write_text("raise SystemExit('picked up')\n")
    (subs / "ada" / "torch.py").write_text("raise SystemExit('picked up')\n")
    (subs / "ben" / THIRD).write_text(solution().replace("parameter.grad /= dist.get_world_size()", "pass"))
    (subs / "<b>eve" / THIRD).write_text("print('<script>alert(1)</script>')\nraise ValueError('<i>')\n")
    (subs / "=1+1" / THIRD).symlink_to(judge.SOLUTIONS / THIRD)
    with zipfile.ZipFile(subs / "zoe.zip", "w") as archive:
        archive.writestr(f"my work/deep/{THIRD}", solution())
        archive.writestr("../../escaped.py", "x = 1\n")
    a_tar(subs / "tom.tar.gz", "w:gz", name=f"/abs/{THIRD}")
    a_tar(subs / "mallory.tar", type=tarfile.SYMTYPE, linkname=str(judge.SOLUTIONS / THIRD))
    with zipfile.ZipFile(subs / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(THIRD, "#" * 50_000_000)
    (subs / "torn.zip").write_bytes(b"PK\x03\x04 not a zip")
    (subs / ".DS_Store").write_bytes(b"")
    (subs / "notes.txt").write_text("not a submission")
    made = {"out": str(out), "folder": str(folder)}
    for which in ("first", "second"):
        run = grader(subs, "--out", out, "--only", "03", "--seed", "autumn", "--force")
        made[which] = {"code": run.returncode, "out": run.stdout, "err": run.stderr}
        grades = out.glob("*/grade.json")
        found = {path.parent.name: json.loads(path.read_text())["exercises"] for path in grades}
        made[which]["grades"] = found
    return made


@pytest.mark.long
def test_a_class_is_graded(graded):
    assert (graded["first"]["code"], graded["first"]["err"]) == (0, ""), graded["first"]["err"]
    rows = {row["student"]: row for row in table(graded["out"] / "grades.csv")}
    points = {name: float(row["total"]) for name, row in rows.items()}
    expected = dict.fromkeys(["ada", "zoe", "tom"], 12.0) | {"ben": 4.0}
    expected |= dict.fromkeys(["<b>eve", "'=1+1", "none", "mallory", "bomb", "torn"], 0.0)
    assert points == expected
    assert {row["maximum"] for row in rows.values()} == {"12"}
    assert rows["torn"]["status"].startswith("unreadable: torn.zip cannot be opened")
    assert rows["none"]["not handed in"] == "03" and rows["ada"]["not handed in"] == ""
    assert "unreadable, so no points: torn.zip" in graded["first"]["out"]
    assert "ignored, because it is not a folder, zip or tar file: notes.txt" in graded["first"]["out"]
    assert not list(graded["folder"].glob("**/escaped.py"))


@pytest.mark.long
def test_what_is_graded_is_kept(graded):
    assert "0 graded, 10 kept from an earlier run" in graded["second"]["out"]
    assert "10 submissions" in graded["second"]["out"]
    # They hold how long each check took: graded again they would differ.
    assert graded["second"]["grades"] == graded["first"]["grades"] and len(graded["first"]["grades"]) == 10


@pytest.mark.long
def test_each_student_gets_what_gradescope_reads(graded):
    for folder in graded["out"].iterdir():
        if folder.is_dir():
            results = json.loads((folder / "results.json").read_text())
            assert sum(test["max_score"] for test in results["tests"]) == 12
            assert sum(test["score"] for test in results["tests"]) == results["score"]
            assert "level" in results["output"] and results["stdout_visibility"] == "hidden"
            assert {test["status"] for test in results["tests"]} <= {"passed", "failed"}
    seeds = {json.loads(path.read_text())["seed"] for path in graded["out"].glob("*/grade.json")}
    assert len(seeds) == 10  # other inputs for everybody


@pytest.mark.long
def test_nothing_of_a_student_runs_in_a_page(graded):
    text = (graded["out"] / "<b>eve" / "report.html").read_text()
    assert "<script>" not in text and "&lt;script&gt;" in text and "&lt;b&gt;eve" in text
    items = (graded["out"] / "items.html").read_text()
    assert "<i>" not in items and "data:image/png;base64," in items and "10 submissions" in items


@pytest.mark.parametrize("name", ["one.zip", "one.tar.xz"])
def test_a_flipped_bit_in_an_archive_is_the_students_trouble(tmp_path, name):
    """Wherever it is, grading goes on: no points for what cannot be opened, and words that say so."""
    (tmp_path / "files").mkdir()
    shutil.copy(judge.SOLUTIONS / THIRD, tmp_path / "files")
    kind = "zip" if name.endswith("zip") else "xztar"
    path = Path(shutil.make_archive(str(tmp_path / "one"), kind, tmp_path / "files"))
    third = judge.exercise("03")
    whole, said = path.read_bytes(), set()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        files, trouble = grade.collected(path, [third])
        assert not (files and trouble)
        said.add(bool(trouble))
    assert True in said
    path.write_bytes(whole[: len(whole) // 2])
    files, trouble = grade.opened(path, [third])
    assert not files and trouble.startswith(f"{name} cannot be opened: ")


def a_tar(path, mode="w", **facts):
    with tarfile.open(path, mode) as archive:
        entry = tarfile.TarInfo(THIRD)
        entry.size = len(solution())
        for name, value in facts.items():
            setattr(entry, name, value)
        archive.addfile(entry, io.BytesIO(solution().encode()))


def bomb(path):
    """Six gigabytes of nothing."""
    with path.open("wb") as file:
        header = tarfile.TarInfo("zeros")
        header.size = 6 << 30
        file.write(lzma.compress(header.tobuf()))
        block = lzma.compress(bytes(64 << 20), preset=0)
        file.write(block * (6 << 30 >> 26))


def hidden_link(path):
    with zipfile.ZipFile(path, "w") as archive:
        entry = zipfile.ZipInfo(THIRD)
        entry.external_attr = 0o120777 << 16
        archive.writestr(entry, "/etc/passwd")


TRICKS = {
    "link.tar": (lambda path: a_tar(path, type=tarfile.SYMTYPE, linkname="/etc"), "a link or a device"),
    "link.zip": (hidden_link, "a link or a device"),
    "other.tar.gz": (lambda path: a_tar(path, "w:bz2"), "it is a bz2 file, but its name has another ending"),
    "pipe.tar": (os.mkfifo, "it is not a regular file"),
    "bomb.tar": (bomb, "reading it takes more than 1 s"),
    "\x1b[2J.zip": (lambda path: path.write_bytes(b"no zip"), "%1b[2J.zip cannot be opened: File is not"),
}


@pytest.mark.parametrize("name", TRICKS)
def test_an_archive_that_is_a_trick_is_unreadable(name, tmp_path, monkeypatch):
    """At once, or in the seconds that there are; and what is said of it can stand on a terminal."""
    monkeypatch.setattr(grade, "ARCHIVE_SECONDS", 1)
    make, words = TRICKS[name]
    make(tmp_path / name)
    began = time.monotonic()
    files, trouble = grade.opened(tmp_path / name, [judge.exercise("03")])
    assert files == {} and words in trouble and trouble.isprintable()
    assert time.monotonic() - began < 15  # 1 on a machine that does nothing else


def test_an_archive_gets_no_more_memory_than_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(grade, "collect", lambda path, exercises: {"a": bytes(2 << 30)})
    files, trouble = grade.opened(tmp_path / "a.zip", [])
    assert (files, trouble) == ({}, "a.zip cannot be opened: reading it takes more than 512 MB of memory")


NAMES = ["grades.csv", "Seed.TXT", "a\nb", "\x1b[31m", "\u202eevil", "x\udcff", "a;=1+1", "50%", "n\t" * 90]
NAMES += ["canvas.csv", "Moodle.CSV"]


def test_no_name_of_a_student_harms_the_class(tmp_path):
    """Neither the files of the class nor those of others, neither a terminal nor a spreadsheet."""
    folder, out = tmp_path / "submissions", tmp_path / "grades"
    for name in [*NAMES, "ada", "=1+1", " @1", "\uff1d1"]:
        (folder / name).mkdir(parents=True)
    found, _ = grade.students(folder)
    assert len(found) == len(NAMES) + 4 and "ada" in found
    assert all(name.isprintable() and ";" not in name for name in found)
    assert not {"canvas.csv", "moodle.csv"} & {name.casefold() for name in found}
    third = [judge.exercise("03")]
    with judge.Nursery(1) as nursery:
        records = [grade.grade_into(*one, out, third, 0, nursery) for one in found.items()]
    (out / "seed.txt").write_text("0")
    pages.write_class(records, out, 0, course.Course())
    rows = table(out / "grades.csv")
    assert {row["status"] for row in rows} == {"graded"} and len(rows) == len(found)
    for name in ("grades.csv", "nbgrader.csv"):
        cells = [cell for row in csv.reader((out / name).read_text().splitlines()) for cell in row]
        assert not [cell for cell in cells if cell.lstrip()[:1] in tuple("=+-@\uff1d")]
    (folder / "ada.zip").write_bytes(b"")
    with pytest.raises(SystemExit, match=r"error: ada.zip and ada in .* both belong to ada: remove one"):
        grade.students(folder)


def test_a_seed_that_nobody_has_named_is_one_that_nobody_knows(tmp_path):
    """Who knows the seed and the name can draw what the judge draws for all ranks, in a submission."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    first, other = (grade.seed_in(folder, "") for folder in folders)
    assert first != other and min(len(first), len(other)) >= 12
    assert grade.seed_in(folders[0], "") == first
    with pytest.raises(SystemExit, match=f"has grades with the seed {first}: choose another --out"):
        grade.seed_in(folders[0], "autumn")


def test_the_same_seed_gives_the_same_inputs(nursery, tmp_path):
    text = solution().replace("parameter.grad /= dist.get_world_size()", "pass")
    came = [one_check("03.2a", nursery, tmp_path, text, seed).came for seed in ("a", "a", "b")]
    assert came[0] == came[1] != came[2]


@pytest.mark.night
def test_a_judge_that_is_ended_costs_nobody_a_grade(tmp_path):
    """As when the machine has no memory left: of two, one waits when the process that grades is ended."""
    for name in ("ada", "ben"):
        (tmp_path / "class" / name).mkdir(parents=True)
        shutil.copy(judge.SOLUTIONS / THIRD, tmp_path / "class" / name)
    words = [sys.executable, "tests/exercises/grade.py", tmp_path / "class", "--only", "03", "--jobs", "1"]
    words += ["--force", "--out", tmp_path / "grades"]

    def judges():
        lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in inside_nursery.below(grader.pid)}
        return [pid for pid, line in lines.items() if b"spawn_main" in line]

    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL) as grader:
        wait_for(judges)
        os.kill(judges()[0], signal.SIGKILL)
    assert grader.returncode == 0
    rows = {row["student"]: row["total"] for row in table(tmp_path / "grades" / "grades.csv")}
    assert rows == {"ada": "12", "ben": "12"}


HOSTILE = ["fork_bomb", "stops_the_parent", "endless_files", "folders_without_end", "daemon_left_behind"]


@pytest.mark.night
def test_five_hostile_submissions_change_nobodys_grade(tmp_path):
    """A class of twenty, of which fifteen are honest and of all kinds: graded with and without the five."""
    one = judge.exercise("03")
    honest = {case.name: case.files[THIRD] for case in selftest.cases(one)[:15]}
    hostile = {case.name: case.files[THIRD] for case in selftest.cheat_cases(one) if case.name in HOSTILE}
    assert (len(honest), len(hostile)) == (15, 5)
    grades = []
    for number, some in enumerate((honest, honest | hostile)):
        folder, out = tmp_path / f"class-{number}", tmp_path / f"grades-{number}"
        for name, text in some.items():
            (folder / name).mkdir(parents=True)
            (folder / name / THIRD).write_text(text)
        run = grader(folder, "--only", "03", "--jobs", "2", "--out", out)
        assert run.returncode == 0, run.stderr
        rows = {row["student"]: row for row in table(out / "grades.csv")}
        checks = [json.loads((out / grade.shown(name) / "grade.json").read_text()) for name in honest]
        found = [[(r["id"], r["status"], r["score"]) for r in one["exercises"]["03"]] for one in checks]
        grades.append(([rows[grade.shown(name)] for name in honest], found))
    assert grades[0] == grades[1]
    assert len({row["total"] for row in grades[0][0]}) > 3  # or the same would be easily said


@pytest.mark.parametrize("level", [1, 2])
def test_a_class_below_level_3_needs_a_word(level, tmp_path, monkeypatch):
    """Two submissions at level 2 reach each other's ports."""
    monkeypatch.setitem(judge.machine()["why"], 3, "bubblewrap is not installed")
    monkeypatch.setitem(judge.machine(), "level", level)
    (tmp_path / "ada").mkdir()
    words = f"error: level {level} is not enough for a class (bubblewrap is not installed)"
    assert refused(monkeypatch, tmp_path, "--out", tmp_path / "grades").startswith(words)


def test_root_needs_a_word_for_one_at_level_1(tmp_path, monkeypatch):
    """Without it, what a submission does would be done by root."""
    monkeypatch.setattr(grade, "opened", lambda path, exercises: sys.exit("error: it was opened"))
    words = ["--one", tmp_path, "--level", "1", "--out", tmp_path / "grades"]
    # On somebody's own laptop, it is opened.
    for root, said in ((True, "level 1 is not enough for root"), (False, "it was opened")):
        monkeypatch.setitem(judge.machine(), "root", root)
        assert refused(monkeypatch, *words).startswith(f"error: {said}")


def test_all_processes_of_a_run_have_so_much_memory(nursery, tmp_path, monkeypatch):
    """None of them has more than the kernel would give to one."""
    monkeypatch.setitem(judge.trial.LIMITS, "memory_of_all", 1 << 30)
    code = "import os, time\nfor _ in range(4):\n    if os.fork() == 0:\n        break\n"
    code += "kept = bytearray(b'x' * (100 << 20))\ntime.sleep(100)\n"
    result = one_check("03.1a", nursery, tmp_path, code)
    assert result.came == "your code used more than 1 GB of memory across all its processes"
    assert result.status == "error" and result.left


@pytest.mark.long
def test_a_check_and_a_submission_have_so_many_seconds(nursery, tmp_path, monkeypatch):
    monkeypatch.setattr(judge.trial, "CHECK_SECONDS", 3)
    result = one_check("03.1a", nursery, tmp_path, "\nwhile True: pass\n")
    assert result.status == "timeout"
    words = "ranks 0 and 1 were at line 2 of 03_average_gradients.py: `while True: pass` and had not returned"
    assert re.fullmatch(words + r" after [3-9] s", result.came)
    one = judge.exercise("03")
    trial = judge.Trial(nursery, one, "03.1a", {}, 0)
    trial.seconds = 3
    with pytest.raises(judge.Verdict, match="s for a check was reached"):
        trial.run("begin", [{}])
    # The first check takes all the time that there is; the rest is not begun, and the next exercise neither.
    monkeypatch.setattr(grade.judge, "SUBMISSION_SECONDS", 0.3)
    files = {THIRD: (tmp_path / THIRD).read_bytes()}
    graded = grade.grade_files(files, [one, judge.exercise("03a")], 0, nursery)
    came = [result.came for results in graded.values() for result in results]
    assert came[0].startswith("ranks 0 and 1 were at line 2 of")
    assert "s for a submission was reached" in came[1]
    assert len({*came[1:]}) == 1 and {r.status for r in graded["03a"]} == {"timeout"}


BAD_WORDS = {
    "nowhere": "there is no folder nowhere",
    "--one nowhere": "there is no submission nowhere",
    "--jobs 0 .": "--jobs must be at least 1",
}


@pytest.mark.parametrize("words", BAD_WORDS)
def test_bad_words_get_one_line(words, monkeypatch):
    assert refused(monkeypatch, *words.split()) == f"error: {BAD_WORDS[words]}"


HANGS = """
import os, time
if os.fork() == 0:
    os.setsid()
time.sleep(1000)
"""


@pytest.mark.long("2")
@pytest.mark.night
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_grading_is_interrupted(number, tmp_path):
    """Ctrl-C at level 1, where no namespace ends with the grader; or the grader cannot even say good-bye."""
    (tmp_path / THIRD).write_text(HANGS)
    words = [sys.executable, "tests/exercises/grade.py", "--one", tmp_path, "--only", "03", "--force"]
    words += ["--level", "1", "--out", tmp_path / "grades"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    contain.prctl(contain.SUBREAPER, 1)  # whatever is left by those that end is a child of this process
    ours = inside_nursery.descendants()

    def left():
        """Without those of Chromium, which other tests have left running: it starts some when it likes."""
        commands = {}
        for pid in inside_nursery.descendants() - ours:
            with contextlib.suppress(OSError):
                commands[pid] = Path(f"/proc/{pid}/cmdline").read_text()
        return {pid for pid, command in commands.items() if "chrom" not in command}

    try:
        with subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.PIPE) as grader:
            # The grader, its nursery, the copy that answers, two ranks and a child of each.
            wait_for(lambda: len(left()) == 7)
            grader.send_signal(number)
            said = grader.stderr.read().decode()
        assert said == ("error: interrupted\n" if number == signal.SIGINT else "")
        wait_for(lambda: not left(), 20)
    finally:
        for pid in left():
            os.kill(pid, signal.SIGKILL)
        contain.prctl(contain.SUBREAPER, 0)


# ---- levels of containment, and where a process may not be forked -----------------------------

# A view of this machine in which everybody may read Python, and some programs cannot be started.
OPEN = """
set -e
base=$(mktemp -d); mount --bind "$1" "$base"; mount -t tmpfs -o mode=755 none /root
mkdir -p "$1"; mount --bind "$base" "$1"
for place in $2; do [ ! -e $place ] || mount --bind /dev/null $place; done
shift 2; exec "$@"
"""
BUBBLEWRAP = "/usr/bin/bwrap /usr/local/bin/bwrap"
AS_USER = ["setpriv", "--reuid", "61990", "--regid", "61990", "--clear-groups"]


@pytest.mark.long("3-")
@pytest.mark.night
@pytest.mark.parametrize(("level", "hidden"), [(1, BUBBLEWRAP), (2, BUBBLEWRAP), (3, "")])
def test_the_other_levels(level, hidden, tmp_path):
    """Root without bubblewrap is level 2, an ordinary user without it level 1, and with it level 3."""
    code = """
import sys
sys.path.insert(0, "tests/exercises")
import judge, selftest
names = ("os_exit_at_import", "daemon", "reads_the_checks", "kills_the_parent", "deletes", "thread_bomb")
names = (*names, "looks_into_the_nursery", "folders", "fork_bomb")
with judge.Nursery() as nursery:
    results = judge.grade(judge.exercise("03"), "solutions", nursery)
    cheats = [cheat for one in judge.manifest() for cheat in selftest.cheat_cases(one)]
    some = [cheat for cheat in cheats if any(name in cheat.name for name in names)]
    rows = list(selftest.cheat_rows(some, nursery))
right = all(row["right"] for row in rows)
print(nursery.level, sum(result.score for result in results), len(rows), right)
print([selftest.line(row) for row in rows if not row["right"]])
"""
    view = ["unshare", "--mount", "--propagation", "private", "bash", "-c", OPEN, "bash"]
    words = [*view, sys.base_prefix, hidden, *([] if level == 2 else AS_USER), sys.executable, "-c", code]
    environment = os.environ | {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert run.stdout.splitlines()[:1] == [f"{level} 12 10 True"], run.stdout + run.stderr


def behind_the_wall(*words):
    """What a command prints that is started as the nursery is at level 3, before any worker gives up more."""
    if judge.machine()["level"] < 3:
        pytest.skip("needs bubblewrap that works here: make tools installs it")
    with walls.call_filter() as file:
        words = [*walls.bubblewrap({"PATH": "/usr/bin:/bin"}, file.fileno()), *words]
        run = subprocess.run(words, capture_output=True, text=True, pass_fds=[file.fileno()])
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_behind_the_wall_of_level_3_there_are_drivers_and_nothing_beside_them():
    found = behind_the_wall("find", str(ROOT), "-type", "f").splitlines()
    ours = {Path(name) for name in found if not Path(name).is_relative_to(sys.prefix)}
    inside = {path for path in judge.INSIDE.rglob("*") if path.is_file()}
    assert ours - inside == {judge.HERE / stem / "drive.py" for stem in STEMS}


def test_behind_the_wall_of_level_3_no_file_grows_for_ever():
    """What is written there is memory of this machine."""
    code = """
import os
for folder in ("/", "/dev", "/dev/shm"):
    try:
        open(f"{folder}/x", "w")
    except OSError as error:
        print(folder, error.strerror)
open("/tmp/x", "w").close()
facts = os.statvfs("/tmp")
print(facts.f_frsize * facts.f_blocks)
"""
    said = behind_the_wall(sys.executable, "-c", code).splitlines()
    assert said[:-1] == [f"{folder} Read-only file system" for folder in ("/", "/dev", "/dev/shm")]
    assert int(said[-1]) == walls.TEMPORARY


# Each call that is to be refused, with words that the kernel would take otherwise, or would find fault with
# for another reason. Numbers of x86_64.
CALLS = """
import ctypes, errno, os, socket
libc, me, room = ctypes.CDLL(None, use_errno=True), os.getpid(), ctypes.create_string_buffer(4096)
mine = os.pidfd_open(me)


def call(*words):
    if libc.syscall(*[ctypes.c_long(word) if isinstance(word, int) else word for word in words]) >= 0:
        return "done"
    return errno.errorcode[ctypes.get_errno()]


def cloned():
    end = call(56, 0x10000011, 0, 0, 0, 0)
    if os.getpid() != me:
        os._exit(0)
    if end == "done":
        os.waitpid(-1, 0)
    return end


def opened(*words):
    try:
        return socket.socket(*words).close() or "done"
    except OSError as error:
        return errno.errorcode[error.errno]


came = {
    "add_key": call(248, b"user", b"a", b"b", 1, -2),
    "request_key": call(249, b"user", b"a", None, -2),
    "keyctl": call(250, 0, -2, 1),
    "shmget": call(29, 0, 4096, 0o1600),
    "semget": call(64, 0, 1, 0o1600),
    "msgget": call(68, 0, 0o1600),
    "mq_open": call(240, b"a", 0o102, 0o600, None),
    "memfd_create": call(319, b"a", 0),
    "memfd_secret": call(447, 0),
    "unshare": call(272, 0x10000000),
    "setns": call(308, mine, 0x10000000),
    "process_vm_readv": call(310, me, 0, 0, 0, 0, 0),
    "process_vm_writev": call(311, me, 0, 0, 0, 0, 0),
    "pidfd_getfd": call(438, mine, 0, 0),
    "kcmp": call(312, me, me, 1, 0, 0),
    "io_uring_setup": call(425, 2, room),
    "io_uring_enter": call(426, -1, 0, 0, 0, 0, 0),
    "io_uring_register": call(427, -1, 0, 0, 0),
    "userfaultfd": call(323, 1),
    "bpf": call(321, 0, room, 8),
    "perf_event_open": call(298, room, 0, -1, -1, 0),
    "clone3": call(435, room, 88),
    "clone": cloned(),
    "x32": call(0x40000000 + 39),
    "vsock": opened(40, 1),
    "alg": opened(38, 5),
    "packet": opened(17, 3),
    "unix": opened(1, 1),
    "socketpair": call(53, 1, 1, 0, room),
    "large_pipe": call(72, os.pipe()[0], 1031, 1 << 17),
    "datagram": opened(2, 2),
    "netlink_of_users": opened(16, 3, 2),
    "inet": opened(2, 1),
    "inet6": opened(10, 1),
    "netlink": opened(16, 3),
    "ptrace": call(101, 0, 0, 0, 0),
}
raise RuntimeError(" ".join(f"{name}={end}" for name, end in came.items()))
"""


@pytest.mark.parametrize("filtered", [True, False])
def test_what_the_kernel_refuses_at_level_3(filtered, nursery, tmp_path, monkeypatch):
    """And without the filter it refuses hardly any of it, or not with these words."""
    if judge.machine()["level"] < 3 or platform.machine() != "x86_64":
        pytest.skip("needs bubblewrap that works here, and the numbers of x86_64")
    allow_all = struct.pack("<HBBI", seccomp.RETURN, 0, 0, seccomp.ALLOW)
    with contextlib.nullcontext(nursery) if filtered else judge.Nursery() as used:
        if not filtered:
            monkeypatch.setattr(seccomp, "program", lambda: allow_all)
        came = one_check("03.1a", used, tmp_path, CALLS).came
    ends = dict(re.findall(r"(\w+)=(\w+)", came))
    assert "ptrace" in ends, came
    no_family = ["vsock", "alg", "packet", "unix", "datagram", "netlink_of_users"]
    expected = dict.fromkeys([*seccomp.REFUSED, "clone", "large_pipe"], "EPERM")
    expected |= dict.fromkeys(["clone3", "x32"], "ENOSYS") | dict.fromkeys(no_family, "EAFNOSUPPORT")
    expected |= dict.fromkeys(["inet", "inet6", "netlink"], "done")
    if filtered:
        assert ends == expected, came
    else:
        # This kernel has no socket for encryption, and no x32.
        same = {"inet", "inet6", "netlink", "alg", "x32"}
        assert {name for name in expected if ends[name] == expected[name]} <= same, came


def filtered(program, architecture, number, *arguments):
    """What the kernel does with a call: the program is run as it would run it."""
    lines, at, value = [*struct.iter_unpack("<HBBI", program)], 0, None
    places = (seccomp.FIRST_ARGUMENT, seccomp.SECOND_ARGUMENT, seccomp.THIRD_ARGUMENT)
    seen = dict.fromkeys(places, 0) | dict(zip(places, arguments, strict=False))
    seen |= {seccomp.NUMBER: number, seccomp.ARCHITECTURE: architecture}
    while True:
        code, true, false, k = lines[at]
        if code == seccomp.RETURN:
            return k
        if code == seccomp.LOAD:
            value, at = seen[k], at + 1
        elif code == seccomp.AND:
            value, at = value & k, at + 1
        else:
            tests = {seccomp.EQUAL: value == k, seccomp.AT_LEAST: value >= k, seccomp.ANY_BIT: value & k}
            at += 1 + (true if tests[code] else false)


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_filter_of_both_architectures(machine):
    (which, architecture), program = seccomp.MACHINES[machine], seccomp.program(machine)

    def of(number, *arguments, architecture=architecture):
        return filtered(program, architecture, number, *arguments)

    clone, fcntl, socket_ = (numbers[which] for numbers in (seccomp.CLONE, seccomp.FCNTL, seccomp.SOCKET))
    refused = {numbers[which]: seccomp.EPERM for numbers in seccomp.REFUSED.values()}
    refused |= {seccomp.CLONE3[which]: seccomp.ENOSYS}
    for number in range(600):
        if number not in (clone, socket_):
            assert of(number) == refused.get(number, seccomp.ALLOW), number
        assert of(number, architecture=architecture ^ 1) == of(0x40000000 + number) == seccomp.ENOSYS
    for flags in (0x3D0F00, 17):  # what the C library gives to clone for a thread, and for a process
        assert of(clone, flags) == seccomp.ALLOW
    for bit in (17, 25, 26, 27, 28, 29, 30):  # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
        assert of(clone, 1 << bit | 17) == seccomp.EPERM
    # Duplicating a descriptor, and making a pipe large.
    assert [of(fcntl, 3, command) for command in (1030, 1031)] == [seccomp.ALLOW, seccomp.EPERM]
    tried = itertools.product(range(64), range(16), (0, 2, 4, 6, 262))
    opened = [words for words in tried if of(socket_, *words) == seccomp.ALLOW]
    netlink = itertools.product([16], range(16), (0, 4))
    assert opened == [*itertools.product([2, 10], [1], (0, 6)), *netlink]
    assert of(socket_, 2, 1 | 0x800 | 0x80000, 6) == seccomp.ALLOW  # as gloo opens one


@pytest.mark.parametrize("level", [1, 3])
def test_a_submission_can_read_nothing_that_helps(level, nursery, tmp_path):
    """By their true paths, which it knows: all that lies beside a driver, and the solution. And it can leave
    nothing for the next one anywhere."""
    if level not in {1, judge.machine()["level"]} or not judge.machine()["landlock"]:
        pytest.skip("this level of containment is not to be had here, or there is no Landlock")
    folder = judge.HERE / "03_average_gradients"
    places = [judge.SOLUTIONS / THIRD, *(path for path in folder.rglob("*") if path.is_file())]
    code = """
import os
read, written = [], []
for place in PLACES:
    try:
        read.append(open(place).read() and place)
    except OSError:
        pass
for folder in ("/", "/tmp", "/var/tmp", "/dev", "/dev/shm", "/run", "..", os.path.expanduser("~")):
    try:
        open(f"{folder}/left", "w").close()
        written.append(folder)
        os.unlink(f"{folder}/left")
    except OSError:
        pass
raise RuntimeError(f"can read {read}, write {written}")
"""
    code = code.replace("PLACES", repr([str(place) for place in places]))
    with contextlib.nullcontext(nursery) if level == nursery.level else judge.Nursery(level) as used:
        came = one_check("03.1a", used, tmp_path, code).came
    assert "RuntimeError: can read [], write [] at line" in came and len(places) > 5, came


def test_a_submission_runs_as_another_user(nursery, tmp_path):
    code = "import os\nraise RuntimeError(f'user {os.getuid()}, group {os.getgid()}')\n"
    came = one_check("03.1a", nursery, tmp_path, code).came
    user, group = map(int, re.search(r"user (\d+), group (\d+)", came).groups())
    if judge.machine()["root"] and nursery.level > 1:
        assert user == group == nursery.uid >= 61000
    else:
        assert (user, group) == (os.getuid(), os.getgid())


def test_no_two_nurseries_have_one_user(monkeypatch):
    monkeypatch.setattr(walls, "USERS", range(61900, 61902))  # of no other test
    with judge.Nursery() as one, judge.Nursery() as other, judge.Nursery() as third:
        one.start()
        other.start()
        if one.uid is None:
            pytest.skip("needs root and level 2: without, all nurseries are one's own user")
        assert (one.uid, other.uid) == (61900, 61901)
        with pytest.raises(judge.Gone, match="no user id is free between 61900 and 61902"):
            third.start()
        one.close()
        third.start()
        assert third.uid == 61900  # what is given back can be had again


def test_each_rank_can_be_started_anew(monkeypatch):
    """As on macOS, where a process that has imported torch must not fork."""
    monkeypatch.setenv("RUNGS_SPAWN", "1")
    with judge.Nursery() as nursery:
        result = one_check("03.1c", nursery)
    assert (result.status, result.came) == ("passed", "")


@pytest.mark.parametrize("below", ["/usr", "/dev", str(Path(sys.prefix).resolve())])
def test_nothing_is_graded_where_every_submission_can_read_the_solutions(monkeypatch, below):
    """As in a container whose WORKDIR is /usr/src/app. At every level of containment /usr can be read."""
    assert walls.within_reach() == ""
    monkeypatch.setattr(walls, "ROOT", Path(below, "src/app"))
    words = f"error: submissions can read everything below {below}, including {below}/src/app: "
    assert refused(monkeypatch, "--doctor").startswith(words)


def test_the_doctor_says_what_there_is():
    run = grader("--doctor")
    level = judge.machine()["level"]
    assert f"submissions are contained at level {level}" in run.stdout and "a nursery starts in" in run.stdout
    assert run.returncode == (level < 2)


def test_what_jplag_and_moss_compare(tmp_path):
    """By exercise and student, with the starter, which all have in common; also from an archive."""
    subs, out = tmp_path / "submissions", tmp_path / "compare"
    (subs / "ada").mkdir(parents=True)
    (subs / "ada" / THIRD).write_text(solution())
    with zipfile.ZipFile(subs / "zoe.zip", "w") as archive:
        archive.writestr(f"deep/{THIRD}", "x = 1\n")
        archive.writestr("../../escaped.py", "x = 1\n")
    run = grader(subs, "--collect", out, "--only", "03")
    assert run.returncode == 0, run.stderr
    there = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert there == {f"03/submissions/ada/{THIRD}", f"03/submissions/zoe/{THIRD}", f"03/starter/{THIRD}"}
    assert (out / "03/starter" / THIRD).read_text() == (judge.STARTERS / THIRD).read_text()


# ---- recipes ----------------------------------------------------------------------------------


def holds_answers(name):
    """Whether this is a solution, or a file that is made of one."""
    return bool(re.search(r"(^|/)(solutions|mutants|cheats|others|selftest)([_./]|$)", name))


def students_copy(folder):
    """The students' copy, made by the command that tests/README.md tells an instructor."""
    assert "`make students`" in (ROOT / "tests/README.md").read_text()
    run = make("students", f"OUT={folder}")
    assert run.returncode == 0, run.stderr
    return folder / "students.zip"


def test_a_students_copy_has_no_answers(tmp_path):
    with zipfile.ZipFile(students_copy(tmp_path)) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    common = {
        "tests/exercises/selftest.py",
        "tests/exercises/mutants.py",
    }  # They read solutions, and tell nothing.
    assert set(filter(holds_answers, names)) <= common
    assert {
        "Makefile",
        "tests/exercises/03_average_gradients/check.py",
        f"lessons/exercises/{THIRD}",
    } <= names


@pytest.mark.night
def test_make_check_works_in_a_students_copy(tmp_path):
    shutil.unpack_archive(students_copy(tmp_path), tmp_path / "copy")
    put({f"copy/lessons/exercises/{THIRD}": solution()}, tmp_path)
    run = make("check", "EX=03.1a", "WARM=no", cwd=tmp_path / "copy")
    assert run.returncode == 0 and "2 of 2 points" in run.stdout, run.stdout + run.stderr


def defined(path):
    """The functions of a file by name, but for checks, which are no answers."""
    body = ast.parse(path.read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and not node.decorator_list}


def test_what_students_can_copy_from_a_check_is_said():
    """A function of a solution that a check holds under the same name."""
    found, text = {}, (ROOT / "tests/README.md").read_text()
    for one in judge.manifest():
        if one["id"] != "04a":  # the check and the scripts both have a train, which are not alike
            answers = set().union(*(defined(judge.SOLUTIONS / name) for name in one["files"]))
            found[one["id"]] = answers & defined(judge.HERE / one["stem"] / "check.py")
    assert found.pop("10") == {"gpipe", "one_forward_one_backward", "timeline"} and not any(found.values())
    assert "exercise 10's holds `gpipe`, `one_forward_one_backward` and `timeline` as functions" in text
    tenth, hunt = judge.exercise("10"), judge.exercise("04a")
    copied = sum(e["points"] for e in tenth["check"] if e["id"][:4] in ("10.1", "10.2", "10.3"))
    assert f"({copied} of its {judge.points_of(tenth)} points)" in text
    kinds = sum(e["points"] for e in hunt["check"] if "has its name" in e["title"])
    assert f"the kind of each bug ({kinds} of its {judge.points_of(hunt)})" in text


@pytest.mark.long
def test_gradescopes_bundle_grades(tmp_path):
    """The bundle, unpacked as Gradescope does, run by its own script; only the folder is another one."""
    put(
        {"course.toml": 'roster = "r.csv"\nhidden = ["03.1a"]', "r.csv": "ID,Email address\n1,a@x.org"},
        tmp_path,
    )
    bundle.build(tmp_path / "gradescope.zip", course.Course(tmp_path / "course.toml"))
    root = tmp_path / "autograder"
    with zipfile.ZipFile(tmp_path / "gradescope.zip") as archive:
        names = archive.namelist()
        archive.extractall(root / "source")
    assert {"setup.sh", "run_autograder"} <= set(names)
    assert [name for name in names if holds_answers(name) or "roster" in name] == []
    assert {Path(name).parts[-2] for name in names if name.endswith("check.py")} == STEMS
    (root / "submission").mkdir()
    shutil.copy(judge.SOLUTIONS / THIRD, root / "submission")
    put({"submission_metadata.json": '{"id": 123}'}, root)
    facts = dict.fromkeys(("CLASSROOM", "ASSIGNMENT", "SUBMISSION_TAG", "COMMIT_URL", "RELEASE_URL"), "x")
    facts |= {"AUTOGRADER": str(root), "PYTHON": sys.executable, "EXERCISES": "03"}

    def runs(command, folder):
        more = {"env": os.environ | facts, "cwd": folder, "capture_output": True, "text": True}
        run = subprocess.run([*command.split(), root / "source" / script], **more)
        assert run.returncode == 0, run.stdout + run.stderr

    script = "run_autograder"
    runs("bash", tmp_path)
    results = json.loads((root / "results" / "results.json").read_text())
    assert results["score"] == 12 and len(results["tests"]) == 8
    later = [test["number"] for test in results["tests"] if test["visibility"] == "after_due_date"]
    assert later == ["03.1a", "03.1b", "03.1c"]  # two need the one that is hidden
    # The same bundle under Classroom 50: its runner starts autograder.py in the student's folder.
    script = "autograder.py"
    shutil.copy(bundle.RECIPES / "classroom50.py", root / "source" / script)
    runs(sys.executable, root / "submission")
    result = json.loads((root / "submission" / "result.json").read_text())
    assert (result["schema"], result["score"], result["max-score"]) == ("classroom50/result/v1", 8, 8)
    assert len(result["tests"]) == 5 and all(test["passed"] for test in result["tests"])


def test_gradescopes_requirements_are_those_of_the_lessons():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    (pinned,) = (line for line in lines if line.startswith("torch=="))
    recipes = [path.read_text() for path in bundle.RECIPES.glob("*.yml")]
    assert all(pinned in text for text in (bundle.requirements(), *recipes))


def step(recipe, name):
    import yaml  # jupyter brings it

    steps = yaml.safe_load((bundle.RECIPES / recipe).read_text())["jobs"]["grade"]["steps"]
    return next(step["run"] for step in steps if step.get("name") == name)


@pytest.mark.night
def test_the_workflow_checks(tmp_path):
    command = step("github.yml", "Grade").replace(".venv/bin/python", sys.executable)
    command = command.replace("--out grades", f"--out {tmp_path}")
    environment = os.environ | {"EXERCISES": "03"}
    for folder, code in (("lessons/exercises", 1), ("solutions", 0)):
        tried = command.replace("lessons/exercises", folder)
        run = subprocess.run(tried, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert run.returncode == code, run.stderr
        assert json.loads((tmp_path / "results.json").read_text())["score"] == 12 * (code == 0)


@pytest.mark.night
def test_the_workflow_grades(tmp_path):
    """Two students' repositories, and a `gh` that fetches them from this machine."""
    gh = '#!/bin/sh\nmkdir -p "$4" && cp "$HERE/$3.py" "$4/$NAME"\n'
    put({"gh": gh, "of/ada.py": solution(), "of/ben.py": "x = 1\n"}, tmp_path)
    (tmp_path / "gh").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HERE": str(tmp_path)}
    environment |= {"NAME": THIRD, "STUDENTS": "of/ada of/ben", "SEED": "autumn", "PYTHONPATH": str(ROOT)}
    collect = step("github_grades.yml", "Collect")
    subprocess.run(["bash", "-ec", collect], cwd=tmp_path, env=environment, check=True)
    command = step("github_grades.yml", "Grade").removeprefix("sudo ")
    command = command.replace("--out grades", f"--out {tmp_path}/grades --only 03 --force")
    command = command.replace(".venv/bin/python", sys.executable)
    command = command.replace("submissions", f"{tmp_path}/submissions")
    run = subprocess.run(command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    totals = {row["student"]: row["total"] for row in table(tmp_path / "grades" / "grades.csv")}
    assert totals == {"of-ada": "12", "of-ben": "0"}
    assert (tmp_path / "grades" / "seed.txt").read_text() == "autumn"


# ---- pages ------------------------------------------------------------------------------------


def test_links_of_the_pages_lead_somewhere():
    """Of the students' page; test_house.py looks at the others."""
    links = re.findall(r"\]\(([^)#]+)", (judge.STARTERS / "README.md").read_text())
    missing = [link for link in links if not (judge.STARTERS / link).exists()]
    assert all(link.startswith("http") for link in missing), missing


def test_paths_of_students_page_are_those_of_the_repository():
    names = {Path(name).parts[0] for one in judge.manifest() for name in one["files"]}
    there = {path.name for path in judge.STARTERS.iterdir()}
    there -= {"README.md", "try.py", "conftest.py", "__pycache__"}
    assert there == names


# ---- what a second siege found ----------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can become an ordinary user")
def test_a_folder_in_which_nobody_may_write_is_removed():
    """Root may write everywhere. For an ordinary user it stayed there, and the next submission saw it."""
    code = (
        "import os, sys, tempfile; sys.path.insert(0, sys.argv[1]); import nursery; "
        "os.setgid(65534); os.setuid(65534); folder = tempfile.mkdtemp(); os.makedirs(folder + '/a/b'); "
        "os.chmod(folder + '/a', 0o500); "
        "print(nursery.remove(folder), os.path.exists(folder))"
    )
    words = [sys.executable, "-c", code, str(judge.HERE / "inside")]
    run = subprocess.run(words, capture_output=True, text=True, check=True, cwd="/")
    assert run.stdout == "False False\n"


def test_an_array_comes_once():
    """Under a thousand names it would be sent on as a thousand."""
    frame = wire.pack([numpy.zeros(3), numpy.ones(3)])
    assert frame.count(b'{"@array": 1}') == 1 and len(wire.unpack(frame)) == 2
    with pytest.raises(wire.BadFrame, match="an array that is there twice"):
        wire.unpack(frame.replace(b'{"@array": 1}', b'{"@array": 0}'))


def test_what_is_much_too_long_costs_the_judge_no_time():
    began = time.process_time()
    with pytest.raises(judge.Verdict, match="the list has 60000000 numbers"):
        judge.comparing.same("the list", [numpy.zeros(30_000_000, dtype="uint8")] * 2, [1, 2])
    verdict = judge.Verdict("failed", "gradient " * 100_000, "gradient " * 100_000)
    assert judge.hints.kind(judge.exercise("06b")["check"][0], verdict.came, verdict.expected) == ""
    assert time.process_time() - began < 5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts from outside")
def test_connections_that_belong_to_no_process_are_not_looked_at():
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(20):
            with socket.create_connection(server.getsockname()):
                server.accept()[0].close()
    assert 0 not in inside_nursery.sockets()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts from outside")
@pytest.mark.parametrize("is_accepted", [False, True])
def test_what_is_on_its_way_is_held_by_the_rank(is_accepted, monkeypatch):
    """Its own memory is left out here: it changes all the time."""
    monkeypatch.setattr(inside_nursery, "memory_of", lambda pid: {})

    def held():
        rank = inside_nursery.Rank.__new__(inside_nursery.Rank)
        rank.connections = set()
        return inside_nursery.seen_from_outside(rank, [os.getpid()], inside_nursery.sockets())["memory"]

    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        one = stack.enter_context(socket.create_connection(server.getsockname()))
        if is_accepted:
            stack.enter_context(server.accept()[0])
        before = held()
        one.sendall(bytes(40_000))
        assert before + 40_000 <= held() <= before + 80_000  # twice, until it is acknowledged


def test_further_lines_of_an_error_do_not_look_like_the_judges():
    result = judge.Result("03.1a", "title", 2, status="error", came="no\n  ok   03.1a  2 of 2")
    lines = judge.wording.detail(result, 0)
    assert "ok   03.1a" in "\n".join(lines) and "\n" + " " * 14 + "ok" in "\n".join(lines)


def test_the_judge_computes_with_one_thread():
    """A second one waits for the first, and on a busy machine for a processor."""
    program = "import judge, torch; print(torch.get_num_threads())"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    words = [sys.executable, "-c", program]
    run = subprocess.run(words, cwd=judge.HERE, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "1\n"
