"""The exercises and their judge. The grader is graded here with mutants, other solutions and cheats; then
every way in which people meet it: pytest, grade.py, Gradescope's bundle, each level of containment."""

import contextlib
import csv
import io
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import numpy
import pytest

from lessons import ROOT

sys.path.insert(0, str(ROOT / "tests" / "exercises"))
import itertools

import bundle
import grade
import judge
import nursery as inside_nursery
import selftest
import wire
from judge import walls

import pages
import starters

EXERCISES = [one["id"] for one in judge.manifest()]
STEMS = {one["stem"] for one in judge.manifest()}
THIRD = "03_average_gradients.py"


@pytest.fixture(scope="module")
def nursery():
    with judge.Nursery() as nursery:
        yield nursery


def solution(name=THIRD):
    return (judge.SOLUTIONS / name).read_text()


# ---- the grader, graded -----------------------------------------------------------------------


@pytest.mark.parametrize("identity", EXERCISES)
def test_the_solution_the_starter_and_one_mutant_for_each_check(identity, nursery):
    one = judge.exercise(identity)
    found = selftest.sample(selftest.cases(one))
    assert {case.killed_by for case in found if case.kind == "mutant"} == {
        check["id"] for check in one["check"]
    }
    rows = [selftest.run_case(one, case, nursery, whole=False) for case in found]
    assert [selftest.line(row) for row in rows if not row["right"]] == []


@pytest.mark.long
@pytest.mark.parametrize("identity", EXERCISES)
def test_solutions_mutants_and_other_solutions(identity, nursery):
    """Of the mutants those that the test above has not taken."""
    one = judge.exercise(identity)
    rows = selftest.exercise_matrix(one, nursery, each=3, but=selftest.sample(selftest.cases(one)))
    assert [selftest.line(row) for row in rows if not row["right"]] == []
    assert selftest.unfinished(one) == []


@pytest.mark.parametrize("whole", [False, True])
def test_a_mutant_that_nobody_kills_is_found(whole, nursery):
    """Also where the check that should kill it is made without those that it needs."""
    one = judge.exercise("03")
    case = selftest.Case("mutant", "none at all", {THIRD: solution()}, "03.2b")
    row = selftest.run_case(one, case, nursery, whole=whole)
    assert (row["right"], row["fell_at"], row["status"]) == (False, None, "passed")


def test_a_cheat_that_does_not_find_what_it_attacks_is_found(nursery):
    """It earns nothing that way, and says nothing of the grader."""
    text = "import sys\nsys.modules['drive_03']\n" + solution()
    with contextlib.closing(selftest.Canary()) as canary:
        row = selftest.run_cheat(
            selftest.CheatCase(judge.exercise("03"), "missed", {THIRD: text}, 0), nursery, canary
        )
    assert (row["right"], row["came"]) == (False, "what it attacks is not there")


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_cheats_earn_nothing_and_harm_nothing(part, nursery):
    rows = selftest.cheat_matrix(nursery, part=(part, 4))
    assert [selftest.line(row) for row in rows if not row["right"]] == []
    assert len(selftest.cheat_cases()) >= 25


# ---- the only source --------------------------------------------------------------------------


def test_starters_are_what_their_solutions_say():
    run = subprocess.run(
        [sys.executable, "tools/starters.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_no_answer_is_in_a_file_that_students_get():
    """In no starter a line of any answer; in lessons and notebooks no two that follow each other. Lines that
    stand in the lessons, such as optimizer.step(), are the language and not an answer."""
    lessons = (ROOT / "lessons").glob("*.py")
    language = {line.strip() for path in lessons for line in path.read_text().splitlines()}
    taught = {"os.fsync(file.fileno()) aside.replace(path)"}  # lesson 05 is about these two
    pages = [
        path for path in (ROOT / "lessons").rglob("*") if path.suffix in (".py", ".md", ".sh", ".sbatch")
    ]
    pages += [*(ROOT / "notebooks").glob("*.ipynb"), ROOT / "README.md"]
    texts = {path: path.read_text() for path in pages}
    found = []
    for source in sorted(judge.SOLUTIONS.rglob("*.py")):
        lines = starters.answers(source.read_text())
        assert lines, f"{source.name} has no answers: what is compared here?"
        for path, text in texts.items():
            if judge.STARTERS in path.parents:
                there = {line.strip() for line in text.splitlines()}
                found += [(path.name, line) for line in lines if len(line) > 15 and line in there - language]
            else:
                # A notebook is JSON: each line of a cell is a string.
                plain = re.sub(r"\s+", " ", text.replace('\\n",', "").replace('\\"', '"'))
                plain = re.sub(r'" +"', " ", plain)
                pairs = (f"{one} {two}" for one, two in itertools.pairwise(lines))
                found += [
                    (path.name, pair)
                    for pair in pairs
                    if len(pair) > 40 and pair in plain and pair not in taught
                ]
    assert found == []


# ---- the manifest -----------------------------------------------------------------------------


def test_the_manifest_says_what_the_docstrings_say():
    for one in judge.manifest():
        text = "".join(solution(name) for name in one["files"])
        written = {
            part: int(points)
            for part, points in re.findall(r"^ +(\d\d[a-z]?\.\d+) \((\d+) points?\)", text, re.M)
        }
        counted = {}
        for entry in one["check"]:
            part = re.match(r"\d\d[a-z]?\.\d+", entry["id"])[0]
            counted[part] = counted.get(part, 0) + entry["points"]
        if written:
            assert written == counted, one["id"]
        assert f"{judge.points_of(one)} points" in text or len(one["files"]) > 1, one["id"]


def test_the_manifest_is_in_order():
    seen = set()
    assert sorted(EXERCISES) == EXERCISES and {"03", "03a", "03b", "04"} <= set(EXERCISES)
    for one in judge.manifest():
        assert set(one) <= {
            "id",
            "stem",
            "title",
            "files",
            "forbidden",
            "floor",
            "limits",
            "seconds",
            "check",
        }
        for entry in one["check"]:
            assert set(entry) <= {"id", "title", "points", "needs", "hints", "visibility", "files"}
            assert entry["id"].startswith(one["id"] + ".") and entry["id"] not in seen
            assert set(entry.get("needs", [])) <= seen, entry["id"]
            assert len(entry["hints"]) == 3 and entry["points"] > 0
            assert entry.get("visibility", "visible") in (
                "visible",
                "hidden",
                "after_due_date",
                "after_published",
            )
            assert callable(judge.check_function(entry["id"]))
            seen.add(entry["id"])
    assert set(judge.CHECKS) == seen


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


@pytest.mark.parametrize(
    "value",
    [{"event": "a", "phase": numpy.zeros(3)}, {"event": numpy.zeros(3)}, {"event": {}}, [1], numpy.zeros(3)],
    ids=["an array for a phase", "an array for a name", "a dict for a name", "a list", "an array"],
)
def test_no_event_makes_the_nursery_fall_over(value):
    rank, data = inside_nursery.Rank(0), wire.pack(value)
    rank.reads, writes = os.pipe()
    os.write(writes, struct.pack("<cI", b"E", len(data)) + data)
    assert inside_nursery.take(rank, 0.0) is False
    assert rank.error["kind"] == "BadFrame" and rank.events == []
    os.close(writes)
    os.close(rank.reads)


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


@pytest.mark.parametrize(
    "head",
    [
        '{"value": {"@array": 0}, "arrays": [["|O", [1]]]}',
        '{"value": {"@array": 0}, "arrays": [["<U1", [1]]]}',
        '{"value": {"@array": 0}, "arrays": [["<f4", [0]]]}',
        '{"value": {"@array": 0}, "arrays": [["<f4", [1000000000000]]]}',
        '{"value": {"@array": 0}, "arrays": [["<f4", [-1]]]}',
        '{"value": {"@array": -1}, "arrays": [["<f4", []]]}',
        '{"value": NaN, "arrays": []}',
        '{"value": {"@run": "os.system"}, "arrays": []}',
        '{"value": ' + "[" * 100_000 + "]" * 100_000 + ', "arrays": []}',
    ],
    ids=[
        "objects",
        "text",
        "more than it says",
        "too long",
        "negative",
        "from the end",
        "not a number",
        "a tag",
        "too deep",
    ],
)
def test_a_frame_that_is_none_is_refused(head):
    data = len(head).to_bytes(4, "little") + head.encode() + bytes(4)
    with pytest.raises(wire.BadFrame):
        wire.unpack(data)


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
        (numpy.array([1.0, 2.0, 3.001]), "3.001 at [2] (1 of 3 numbers are wrong)"),
        (numpy.array([2.0, 4.0, 6.0]), "every number is 2 times what it should be"),
        (numpy.array([1.0, 2.0, 3.00001]), ""),
    ],
)
def test_what_is_close(got, words):
    trial = judge.Trial(None, judge.exercise("03"), "03.1a", {}, 0)
    if not words:
        trial.close("it", got, [1.0, 2.0, 3.0])
        return
    with pytest.raises(judge.Verdict) as verdict:
        trial.close("it", got, [1.0, 2.0, 3.0])
    assert verdict.value.status == "failed" and words in verdict.value.came


DEEP = {
    "minus": "-" * 190_000 + "1",
    "plus": "1" + "+1" * 90_000,
    "points": "a" + ".b" * 90_000,
    "calls": "f" + "()" * 90_000,
    "brackets": "[" * 190_000,
    "lambdas": "lambda:" * 25_000 + "1",
}


@pytest.mark.parametrize("kind", DEEP)
def test_no_text_makes_the_judge_fall_over(kind):
    with pytest.raises(judge.Verdict) as verdict:
        judge.refuse_names(judge.exercise("03"), THIRD, DEEP[kind])
    assert verdict.value.status == "error" and THIRD in verdict.value.came


def test_a_warning_is_no_error():
    judge.refuse_names(judge.exercise("03"), THIRD, 'pattern = "\\d+"\n')


# ---- who is to blame --------------------------------------------------------------------------

BLAME = {
    "leaves early": (
        "    has_one = torch",
        "    if dist.get_rank() == 1:\n        return\n    has_one = torch",
        r"rank 1 returned before all_reduce number 1 \(line \d+ of 03_av\w+.py\); rank 0 was waiting for it",
    ),
    "another call": (
        "    dist.all_reduce(has_one)",
        "    dist.broadcast(has_one, 0) if dist.get_rank() else dist.all_reduce(has_one)",
        r"do not make the same calls: rank 0 called all_reduce number 1 .*, rank 1 called broadcast number 1",
    ),
    "raises": (
        "        dist.all_reduce(parameter.grad)\n",
        "        if dist.get_rank() == 1:\n            raise ValueError('mine')\n"
        "        dist.all_reduce(parameter.grad)\n",
        r"rank 1 raised ValueError: mine at line \d+ .*; rank 0 was waiting for it in all_reduce number 2",
    ),
    "dies": (
        "        dist.all_reduce(parameter.grad)\n",
        "        if dist.get_rank() == 1:\n            import os\n            os.kill(os.getpid(), 9)\n"
        "        dist.all_reduce(parameter.grad)\n",
        r"rank 1 was ended by SIGKILL",
    ),
    "never ends": (
        "    has_one = torch",
        "    while dist.get_rank() == 1:\n        pass\n    has_one = torch",
        r"rank 1 had not returned after 3 s; rank 0 was waiting for it in all_reduce number 1",
    ),
    "send without receive": (
        "    has_one = torch",
        "    if dist.get_rank() < 2 and dist.get_world_size() > 1:\n"
        "        dist.send(torch.zeros(1 << 20), 1 - dist.get_rank())\n    has_one = torch",
        r"all ranks wait and none can go on: rank 0 in send number 1 to rank 1 .*; rank 1 in send "
        r"number 1 to rank 0 .*; messages that nobody has received: 1 from rank 0 to rank 1, 1 from rank 1",
    ),
}


@pytest.mark.parametrize("fault", BLAME)
def test_the_earliest_cause_is_named(fault, nursery, tmp_path):
    old, new, words = BLAME[fault]
    assert solution().count(old) == 1
    (tmp_path / THIRD).write_text(solution().replace(old, new))
    one = judge.exercise("03") | {"seconds": 3 if fault == "never ends" else 20}
    result = judge.grade(one, tmp_path, nursery)[3]
    assert result.id == "03.2a" and result.score == 0
    assert re.search(words, result.came), result.came


def test_three_ranks_wait_for_one(nursery, tmp_path):
    text = solution().replace(
        "    has_one = torch",
        "    if dist.get_rank() == 1 and dist.get_world_size() == 3:\n        return\n    has_one = torch",
    )
    (tmp_path / THIRD).write_text(text)
    came = judge.grade(judge.exercise("03"), tmp_path, nursery)[3].came
    assert (
        "rank 1 returned before all_reduce number 1" in came and "ranks 0 and 2 were waiting for it" in came
    )


def rank_of(**facts):
    empty = {
        "value": None,
        "error": None,
        "broken": None,
        "ended": None,
        "events": [],
        "marks": {},
        "at": None,
    }
    return empty | {"inside": [], "output": ""} | facts


def test_a_bystander_is_not_the_cause_even_if_it_is_heard_first():
    closed = {"kind": "RuntimeError", "words": "Connection closed by peer [127.0.0.1]:1234", "time": 1.0}
    ranks = [rank_of(error=closed), rank_of(ended=-9, marks={"@ended": {"time": 1.1}}), rank_of(error=closed)]
    with pytest.raises(judge.Verdict) as verdict:
        judge.explain({"why": "done", "seconds": 1.2, "ranks": ranks}, [THIRD])
    assert verdict.value.came == "rank 1 was ended by SIGKILL"


def test_a_file_that_is_no_python_is_said_once(nursery, tmp_path):
    ring = judge.exercise("03a")  # some of its checks stand on no other
    (tmp_path / ring["files"][0]).write_text("def chunks_of(flat:\n")
    results = judge.grade(ring, tmp_path, nursery)
    assert results[0].came == f"{ring['files'][0]} has a syntax error in line 1: '(' was never closed"
    assert {result.status for result in results[1:]} == {"not reached"}
    assert "hint" not in judge.report(ring, results)


def test_a_nursery_that_is_gone_is_started_again(nursery):
    with judge.Nursery() as other:
        assert judge.grade_one(*first_check(), judge.SOLUTIONS, other, 0, set()).status == "passed"
        os.killpg(other.process.pid, signal.SIGKILL)
        assert judge.grade_one(*first_check(), judge.SOLUTIONS, other, 0, set()).status == "passed"


def test_nothing_of_one_submission_is_there_for_the_next():
    """Exercise 05 keeps files from run to run."""
    one = judge.exercise("05")
    one = one | {"check": one["check"][:1]}
    files, _ = grade.opened(judge.SOLUTIONS, [one])
    with judge.Nursery(1) as nursery:
        judge.grade(one, judge.SOLUTIONS, nursery)
        assert list(Path(nursery.base).iterdir())
        grade.grade_files(files, [one], 0, nursery)
        assert not list(Path(nursery.base).iterdir())


def test_a_check_that_is_broken_is_nobodys_zero(nursery, monkeypatch):
    one, entry = first_check()
    monkeypatch.setitem(judge.CHECKS, entry["id"], lambda trial: 1 / 0)
    result = judge.grade_one(one, entry, judge.SOLUTIONS, nursery, 0, set())
    assert (result.status, result.score) == ("infrastructure", 0)


@pytest.mark.parametrize("starts", [True, False])
def test_a_machine_that_fails_is_nobodys_zero(monkeypatch, tmp_path, starts):
    """The nursery can start no process; or it does not even start itself."""
    one, broken = judge.exercise("03"), judge.Nursery(1)
    if starts:
        answer = {"why": "infrastructure: no process can be started", "ranks": [], "left": 0}
        broken.ready, broken.run = lambda: None, lambda **request: answer
    else:
        monkeypatch.setattr(judge.nursery, "INSIDE", tmp_path)
    record = grade.grade_into("ada", judge.SOLUTIONS, tmp_path, [one], 0, broken)
    assert record["infrastructure"] and not (tmp_path / "ada" / "results.json").exists()
    pages.write_class([record], tmp_path, 0)
    (row,) = table(tmp_path / "grades.csv")
    assert (row["total"], row["status"]) == ("", "infrastructure: not graded")
    assert (tmp_path / "nbgrader.csv").read_text().count("\n") == 1


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def first_check():
    return judge.exercise("03"), judge.exercise("03")["check"][0]


# ---- as people meet it ------------------------------------------------------------------------


def check(*words):
    command = [sys.executable, "-m", "pytest", "tests/exercises", "-p", "no:cacheprovider", *words]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


def test_a_student_checks_a_starter():
    code, text = check("--only", "03")
    assert code == 1
    assert "03 DDP in its simplest form: 0 of 12 points" in text
    assert "not written yet: 03.1: all ranks begin with what rank 0 has" in text
    assert text.count("(not reached)") == 7 and "hint" not in text
    assert "Traceback" not in text and "contained at level" in text


def test_a_student_asks_for_hints_and_for_one_check():
    code, text = check("--only", "03.2a", "--hints", "--submission", str(judge.STARTERS))
    assert code in (0, 1) and "hint 3:" in text and "1 skipped" in text


@pytest.mark.parametrize(
    ("words", "checks"), [("3", 8), ("03", 8), ("03.2", 5), ("3a", 9), ("4a.1", 2), ("03a.4c", 1)]
)
def test_a_number_names_an_exercise_a_part_or_a_check(words, checks):
    wanted = subprocess.run(
        [sys.executable, "-c", KEPT, words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert wanted.stdout.split("\n")[-2:-1] == [str(checks)]


@pytest.mark.parametrize("number", ["00", "99", "3b.1.2"])
def test_a_number_that_is_none_is_told_those_there_are(number):
    code, text = check("--only", number)
    assert code == 4 and "ERROR: there is no " in text
    if number.isdigit():
        for one in judge.manifest():
            assert re.search(rf"^  {one['id']} +{re.escape(one['title'])}$", text, re.M), text
    graded = subprocess.run(
        [sys.executable, "tests/exercises/grade.py", "--only", number, "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert graded.returncode == 1 and graded.stderr.startswith("error: there is no "), graded.stderr


KEPT = """
import sys, pytest
class Count:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session):
        self.found = len(session.items)
        session.items.clear()
count = Count()
pytest.main(["tests/exercises", "-p", "no:cacheprovider", "--only", sys.argv[1]], plugins=[count])
print(getattr(count, "found", 0))
"""


def test_the_solutions_pass_as_a_submission():
    code, text = check("--only", "03", "--submission", "solutions", "--seed", "another")
    assert code == 0 and "12 of 12 points" in text and "8 passed" in text


def test_a_folder_that_is_not_there():
    code, text = check("--submission", "nowhere")
    assert code == 2 and "error: there is no folder nowhere: name one with --submission" in text


def test_it_checks_again_at_every_save(tmp_path):
    (tmp_path / THIRD).write_text((judge.STARTERS / THIRD).read_text())
    command = [
        sys.executable,
        "-u",
        "tests/exercises/watch.py",
        "--only",
        "03",
        "--submission",
        str(tmp_path),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as watch:
        try:
            first = until(watch, "waiting for")
            (tmp_path / THIRD).write_text(solution())
            began = time.monotonic()
            second = until(watch, "waiting for")
            seconds = time.monotonic() - began
        finally:
            watch.send_signal(signal.SIGINT)
            try:
                watch.wait(10)
            finally:
                watch.kill()
    assert "0 of 12 points" in first and "12 of 12 points" in second
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
    (subs / "ben" / THIRD).write_text(
        solution().replace("        parameter.grad /= dist.get_world_size()\n", "")
    )
    (subs / "<b>eve" / THIRD).write_text("print('<script>alert(1)</script>')\nraise ValueError('<i>')\n")
    (subs / "=1+1" / THIRD).symlink_to(judge.SOLUTIONS / THIRD)
    with zipfile.ZipFile(subs / "zoe.zip", "w") as archive:
        archive.writestr(f"my work/deep/{THIRD}", solution())
        archive.writestr("../../escaped.py", "x = 1\n")
    with tarfile.open(subs / "tom.tar.gz", "w:gz") as archive:
        data = solution().encode()
        entry = tarfile.TarInfo(f"/abs/{THIRD}")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    with tarfile.open(subs / "mallory.tar", "w") as archive:
        entry = tarfile.TarInfo(THIRD)
        entry.type, entry.linkname = tarfile.SYMTYPE, str(judge.SOLUTIONS / THIRD)
        archive.addfile(entry)
    with zipfile.ZipFile(subs / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(THIRD, "#" * 50_000_000)
    (subs / "torn.zip").write_bytes(b"PK\x03\x04 not a zip")
    (subs / ".DS_Store").write_bytes(b"")
    (subs / "notes.txt").write_text("not a submission")
    words = [
        sys.executable,
        "tests/exercises/grade.py",
        str(subs),
        "--out",
        str(out),
        "--only",
        "03",
        "--seed",
        "autumn",
    ]
    words += ["--force"]
    made = {"out": str(out), "folder": str(folder)}
    for which in ("first", "second"):
        run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
        made[which] = {"code": run.returncode, "out": run.stdout, "err": run.stderr}
        made[which]["grades"] = {
            path.parent.name: json.loads(path.read_text())["exercises"] for path in out.glob("*/grade.json")
        }
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
    assert "unreadable, so it has no points: torn.zip" in graded["first"]["out"]
    assert "ignored, since it is no folder, zip or tar: notes.txt" in graded["first"]["out"]
    assert not list(graded["folder"].glob("**/escaped.py"))


@pytest.mark.long
def test_what_is_graded_is_kept(graded):
    assert "0 graded, 10 kept from before" in graded["second"]["out"]
    assert "10 submissions" in graded["second"]["out"]
    # They hold how long each check took: graded again they would differ.
    assert graded["second"]["grades"] == graded["first"]["grades"] and len(graded["first"]["grades"]) == 10


@pytest.mark.long
def test_another_seed_needs_another_folder(graded):
    words = [
        sys.executable,
        "tests/exercises/grade.py",
        str(graded["folder"] / "submissions"),
        "--out",
        str(graded["out"]),
    ]
    run = subprocess.run([*words, "--force", "--seed", "spring"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1 and "holds grades of the seed autumn: name another --out" in run.stderr


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


@pytest.mark.parametrize("name", ["deflated.zip", "lzma.zip", "bzip2.zip", "one.tar.gz", "one.tar.xz"])
def test_a_flipped_bit_in_an_archive_is_the_students_trouble(tmp_path, name):
    """Wherever it is, grading goes on: no points for what cannot be opened, and words that say so."""
    path, third = tmp_path / name, judge.exercise("03")
    kind, _, ending = name.partition(".")
    if ending == "zip":
        with zipfile.ZipFile(path, "w", getattr(zipfile, f"ZIP_{kind.upper()}")) as archive:
            archive.write(judge.SOLUTIONS / THIRD, THIRD)
    else:
        with tarfile.open(path, f"w:{ending[4:]}") as archive:
            archive.add(judge.SOLUTIONS / THIRD, THIRD)
    whole, said = path.read_bytes(), set()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        files, trouble = grade.opened(path, [third])
        assert not (files and trouble)
        said.add(trouble[: len(name) + 19])
    assert f"{name} cannot be opened: " in said


def test_the_same_seed_gives_the_same_inputs(nursery, tmp_path):
    (tmp_path / THIRD).write_text(solution().replace("parameter.grad /= dist.get_world_size()", "pass"))
    third = judge.exercise("03")
    came = [judge.grade(third, tmp_path, nursery, seed)[3].came for seed in ("a", "a", "b")]
    assert came[0] == came[1] != came[2]


def test_a_class_at_level_1_needs_a_word(tmp_path):
    run = grade_here(tmp_path, "--level", "1")
    assert (
        run.returncode == 1
        and "level 1 is not enough for a class" in run.stderr
        and run.stderr.startswith("error: ")
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["nowhere"], "error: there is no folder nowhere"),
        (["--one", "nowhere"], "error: there is no submission nowhere"),
        (["--jobs", "0", "."], "error: --jobs must be at least 1"),
    ],
)
def test_bad_words_get_one_line(words, error):
    run = subprocess.run(
        [sys.executable, "tests/exercises/grade.py", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode and run.stderr.startswith(error) and run.stderr.count("\n") == 1


def grade_here(tmp_path, *words):
    (tmp_path / "submissions" / "ada").mkdir(parents=True)
    shutil.copy(judge.SOLUTIONS / THIRD, tmp_path / "submissions" / "ada")
    command = [
        sys.executable,
        "tests/exercises/grade.py",
        str(tmp_path / "submissions"),
        "--out",
        str(tmp_path / "grades"),
    ]
    return subprocess.run([*command, "--only", "03", *words], cwd=ROOT, capture_output=True, text=True)


# ---- levels of containment, and where a process may not be forked -----------------------------

# A view of this machine in which everybody may read Python, and there is no bubblewrap.
OPEN = """
set -e
base=$(mktemp -d); mount --bind "$1" "$base"; mount -t tmpfs -o mode=755 none /root
mkdir -p "$1"; mount --bind "$base" "$1"
for place in /usr/bin/bwrap /usr/local/bin/bwrap; do [ ! -e $place ] || mount --bind /dev/null $place; done
shift; exec "$@"
"""
AS_USER = ["setpriv", "--reuid", "61990", "--regid", "61990", "--clear-groups"]


@pytest.mark.long
@pytest.mark.parametrize("level", [1, 2])
def test_the_lower_levels(level, tmp_path):
    """Root without bubblewrap is level 2, and an ordinary user without it level 1."""
    code = """
import sys
sys.path.insert(0, "tests/exercises")
import judge, selftest
names = ("os_exit_at_import", "daemon", "reads_the_checks", "kills_the_parent", "deletes", "thread_bomb")
with judge.Nursery() as nursery:
    results = judge.grade(judge.exercise("03"), "solutions", nursery)
    rows = [row for name in names for row in selftest.cheat_matrix(nursery, only=name)]
right = all(row["right"] for row in rows)
print(nursery.level, sum(result.score for result in results), len(rows), right)
print([selftest.line(row) for row in rows if not row["right"]])
"""
    view = ["unshare", "--mount", "--propagation", "private", "bash", "-c", OPEN, "bash", sys.base_prefix]
    words = [*view, *(AS_USER if level == 1 else []), sys.executable, "-c", code]
    environment = os.environ | {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert run.stdout.splitlines()[:1] == [f"{level} 12 6 True"], run.stdout + run.stderr


def test_behind_the_wall_of_level_3_there_are_drivers_and_nothing_beside_them():
    """The file system as the nursery has it, before any worker gives up more."""
    if judge.machine()["level"] < 3:
        pytest.skip("needs bubblewrap that works here: make tools installs it")
    words = [*walls.bubblewrap({"PATH": "/usr/bin:/bin"}), "find", str(ROOT), "-type", "f"]
    found = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    ours = {Path(name) for name in found if not Path(name).is_relative_to(sys.prefix)}
    inside = {path for path in judge.INSIDE.rglob("*") if path.is_file()}
    assert ours - inside == {judge.HERE / stem / "drive.py" for stem in STEMS}


@pytest.mark.parametrize("level", [1, 3])
def test_a_submission_can_read_nothing_that_helps(level, tmp_path):
    """By their true paths, which it knows: all that lies beside a driver, and the solution."""
    if level not in {1, judge.machine()["level"]} or not judge.machine()["landlock"]:
        pytest.skip("this level of containment is not to be had here, or there is no Landlock")
    folder = judge.HERE / "03_average_gradients"
    places = [judge.SOLUTIONS / THIRD, *(path for path in folder.rglob("*") if path.is_file())]
    code = """
read = []
for place in PLACES:
    try:
        read.append(open(place).read() and place)
    except OSError:
        pass
raise RuntimeError(f"can read {read}")
"""
    (tmp_path / THIRD).write_text(code.replace("PLACES", repr([str(place) for place in places])))
    with judge.Nursery(level) as nursery:
        came = judge.grade_one(*first_check(), tmp_path, nursery, 0, set()).came
    assert "RuntimeError: can read [] at line" in came and len(places) > 5


def test_a_submission_runs_as_another_user(nursery, tmp_path):
    (tmp_path / THIRD).write_text(
        "import os\nraise RuntimeError(f'user {os.getuid()}, group {os.getgid()}')\n"
    )
    came = judge.grade_one(*first_check(), tmp_path, nursery, 0, set()).came
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
        result = judge.grade_one(*first_check(), judge.SOLUTIONS, nursery, 0, set())
    assert (result.status, result.came) == ("passed", "")


@pytest.mark.parametrize("below", ["/usr", "/dev", str(Path(sys.prefix).resolve())])
def test_nothing_is_graded_where_every_submission_can_read_the_solutions(monkeypatch, below):
    """As in a container whose WORKDIR is /usr/src/app. At every level of containment /usr can be read."""
    assert walls.within_reach() == ""
    monkeypatch.setattr(walls, "ROOT", Path(below, "src/app"))
    monkeypatch.setattr(sys, "argv", ["grade.py", "--doctor"])
    words = f"error: submissions can read all that is below {below}, and so {below}/src/app: "
    with pytest.raises(SystemExit, match=re.escape(words)):
        grade.main()


def test_the_doctor_says_what_there_is():
    run = subprocess.run(
        [sys.executable, "tests/exercises/grade.py", "--doctor"], cwd=ROOT, capture_output=True, text=True
    )
    level = judge.machine()["level"]
    assert f"submissions are contained at level {level}" in run.stdout and "a nursery starts in" in run.stdout
    assert run.returncode == (level < 2)


# ---- recipes ----------------------------------------------------------------------------------


def holds_answers(name):
    """Whether this is a solution, or a file that is made of one."""
    return bool(re.search(r"(^|/)(solutions|mutants|cheats?|other|selftest)([_./]|$)", name))


def test_a_students_copy_has_no_answers(tmp_path):
    """By the command that tests/README.md tells an instructor."""
    command = re.search(r"`(git archive -o students.zip [^`]+)`", (ROOT / "tests/README.md").read_text())[1]
    command = command.replace("students.zip", str(tmp_path / "students.zip"))
    run = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    with zipfile.ZipFile(tmp_path / "students.zip") as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
    # What the cheats at exercise 03 put before a solution, and the selftest that reads one, tell nothing.
    common = {"tests/exercises/cheats.py", "tests/exercises/selftest.py"}
    assert [name for name in names if holds_answers(name) and name not in common] == []
    assert {"Makefile", "tests/exercises/03_average_gradients/check.py", f"lessons/exercises/{THIRD}"} <= {
        *names
    }


def test_gradescopes_bundle_grades(tmp_path):
    """The bundle, unpacked as Gradescope does, run by its own script; only the folder is another one."""
    bundle.build(tmp_path / "gradescope.zip")
    with zipfile.ZipFile(tmp_path / "gradescope.zip") as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "autograder" / "source")
    assert {"setup.sh", "run_autograder"} <= set(names)
    assert [name for name in names if holds_answers(name)] == []
    assert {Path(name).parts[-2] for name in names if name.endswith("check.py")} == STEMS
    root = tmp_path / "autograder"
    (root / "submission").mkdir()
    shutil.copy(judge.SOLUTIONS / THIRD, root / "submission")
    (root / "submission_metadata.json").write_text('{"id": 123}')
    environment = os.environ | {"AUTOGRADER": str(root), "PYTHON": sys.executable, "EXERCISES": "03"}
    words = ["bash", str(root / "source" / "run_autograder")]
    run = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    results = json.loads((root / "results" / "results.json").read_text())
    assert results["score"] == 12 and len(results["tests"]) == 8


def test_gradescopes_requirements_are_those_of_the_lessons():
    pinned = [
        line for line in (ROOT / "requirements.txt").read_text().splitlines() if line.startswith("torch==")
    ]
    assert pinned[0] in bundle.requirements()
    assert pinned[0] in (bundle.RECIPES / "github.yml").read_text()


def test_the_workflow_grades(tmp_path):
    import yaml  # jupyter brings it

    steps = yaml.safe_load((bundle.RECIPES / "github.yml").read_text())["jobs"]["grade"]["steps"]
    command = next(step["run"] for step in steps if step.get("name") == "Grade")
    command = command.replace(".venv/bin/python", sys.executable).replace(
        "--out grades", f"--out {tmp_path} --only 03"
    )
    run = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads((tmp_path / "results.json").read_text())["score"] == 0


# ---- pages ------------------------------------------------------------------------------------


def test_the_readme_says_how_the_grader_is_graded():
    text = (ROOT / "README.md").read_text()
    assert selftest.sentence() in text, f"run `make starters`, which writes: {selftest.sentence()}"


def test_links_of_the_pages_lead_somewhere():
    for page in (ROOT / "tests/README.md", judge.HERE / "README.md", judge.STARTERS / "README.md"):
        for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), (page.name, link)


def test_paths_of_students_page_are_those_of_the_repository():
    names = {Path(name).parts[0] for one in judge.manifest() for name in one["files"]}
    there = {path.name for path in judge.STARTERS.iterdir()} - {"README.md", "__pycache__"}
    assert there == names
