"""A class is graded: what instructors, autograders and students get of tests/exercises/grade.py."""

import ast
import csv
import io
import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

import bundle
import course
import grade
import pytest
from grader import batch, ranks, walls
from grader.exercises import exercise, manifest, points_of
from grader.results import Result
from grader.settings import HERE, SOLUTIONS, STARTERS
from grader.walls import limits

import pages
from lessons import ROOT
from processes import wait_for

THIRD = "03_average_gradients.py"
SOLUTION = (SOLUTIONS / THIRD).read_text()
SUM = SOLUTION.replace("parameter.grad /= dist.get_world_size()", "pass")


def refused(monkeypatch, *words):
    """The one line with which grade.py refuses these words. It is called in this process."""
    monkeypatch.setattr(sys, "argv", ["grade.py", *map(str, words)])
    with pytest.raises(SystemExit) as error:
        grade.main()
    assert str(error.value).startswith("error: ") and "\n" not in str(error.value)
    return str(error.value)


def put(files, folder):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def command(*words):
    return [sys.executable, "tests/exercises/grade.py", *map(str, words)]


def call(*words):
    return subprocess.run(command(*words), cwd=ROOT, capture_output=True, text=True)


def make(*words, cwd=ROOT):
    """`make` with these words. If `make test` runs this, the inner make must not know of it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    words = ["make", *words, f"PYTHON={sys.executable}"]
    return subprocess.run(words, cwd=cwd, env=environment, stdin=-3, capture_output=True, text=True)


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# ---- a class ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def graded(once):
    made = once("class", grade_a_class)
    return {name: Path(value) if name in ("out", "folder") else value for name, value in made.items()}


def grade_a_class(folder):
    """A class of people and files as they come, graded by the documented command, twice."""
    subs, out = folder / "submissions", folder / "grades"
    (subs / "none").mkdir(parents=True)
    put({f"ada/{name}": "raise SystemExit('picked up')\n" for name in ("conftest.py", "torch.py")}, subs)
    put({f"ada/{THIRD}": SOLUTION, f"ben/{THIRD}": SUM}, subs)
    put({f"<b>eve/{THIRD}": "print('<script>alert(1)</script>')\nraise ValueError('<i>')\n"}, subs)
    (subs / "=1+1").mkdir()
    (subs / "=1+1" / THIRD).symlink_to(SOLUTIONS / THIRD)
    with zipfile.ZipFile(subs / "zoe.zip", "w") as archive:
        archive.writestr(f"my work/deep/{THIRD}", SOLUTION)
        archive.writestr("../../escaped.py", "x = 1\n")
    a_tar(subs / "tom.tar.gz", "w:gz", name=f"/abs/{THIRD}")
    a_tar(subs / "mallory.tar", type=tarfile.SYMTYPE, linkname=str(SOLUTIONS / THIRD))
    with zipfile.ZipFile(subs / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(THIRD, "#" * 50_000_000)
    (subs / "torn.zip").write_bytes(b"PK\x03\x04 not a zip")
    put({".DS_Store": "", "notes.txt": "not a submission"}, subs)
    made = {"out": str(out), "folder": str(folder)}
    for which in ("first", "second"):
        run = call(subs, "--out", out, "--only", "03", "--seed", "autumn", "--force")
        found = {path.parent.name: json.loads(path.read_text()) for path in out.glob("*/grade.json")}
        made[which] = {"code": run.returncode, "out": run.stdout, "err": run.stderr, "grades": found}
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
    # They hold how long each check took: graded again they would differ.
    first, second = (graded[which]["grades"] for which in ("first", "second"))
    assert {name: one["exercises"] for name, one in first.items()} == {
        name: one["exercises"] for name, one in second.items()
    }
    assert len(first) == 10


@pytest.mark.long
def test_each_student_gets_what_gradescope_reads(graded):
    grades = graded["first"]["grades"]
    for name in grades:
        results = json.loads((graded["out"] / name / "results.json").read_text())
        assert sum(test["max_score"] for test in results["tests"]) == 12
        assert sum(test["score"] for test in results["tests"]) == results["score"]
        assert "level" in results["output"] and results["stdout_visibility"] == "hidden"
        assert {test["status"] for test in results["tests"]} <= {"passed", "failed"}
    assert len({one["seed"] for one in grades.values()}) == 10  # other inputs for everybody


@pytest.mark.long
def test_nothing_of_a_student_runs_in_a_page(graded):
    text = (graded["out"] / "<b>eve" / "report.html").read_text()
    assert "<script>" not in text and "&lt;script&gt;" in text and "&lt;b&gt;eve" in text
    items = (graded["out"] / "items.html").read_text()
    assert "<i>" not in items and "data:image/png;base64," in items and "10 submissions" in items


def test_a_grade_is_kept_only_while_all_that_it_depends_on_stays(tmp_path, monkeypatch):
    shutil.copytree(HERE, tmp_path / "exercises", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(grade, "HERE", tmp_path / "exercises")
    third, files = exercise("03"), {THIRD: b"x = 1"}
    marks = {grade.fingerprint(third, files, "seed", 3)}
    for name in ("grader/ranks.py", "sandbox/worker.py", "optimizers.py", "03_average_gradients/test_03.py"):
        with (tmp_path / "exercises" / name).open("a") as file:
            file.write("\n")
        marks.add(grade.fingerprint(third, files, "seed", 3))
    marks.add(grade.fingerprint(third | {"seconds": 3}, files, "seed", 3))
    marks.add(grade.fingerprint(third, {THIRD: b"x = 2"}, "seed", 3))
    marks.add(grade.fingerprint(third, files, "other", 3))
    assert len(marks) == 8
    for name in ("04_sampler/test_04.py", "pages.py"):
        (tmp_path / "exercises" / name).write_text("")
    assert grade.fingerprint(third, files, "other", 3) in marks


# ---- archives and names -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["one.zip", "one.tar.xz"])
def test_a_flipped_bit_in_an_archive_is_the_students_trouble(tmp_path, name):
    """Wherever it is, grading goes on: no points for what cannot be opened, and words that say so."""
    put({f"files/{THIRD}": SOLUTION}, tmp_path)
    kind = "zip" if name.endswith("zip") else "xztar"
    path = Path(shutil.make_archive(str(tmp_path / "one"), kind, tmp_path / "files"))
    whole, said = path.read_bytes(), set()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        files, trouble = grade.collected(path, [exercise("03")])
        assert not (files and trouble)
        said.add(bool(trouble))
    assert True in said
    path.write_bytes(whole[: len(whole) // 2])
    files, trouble = grade.opened(path, [exercise("03")])
    assert not files and trouble.startswith(f"{name} cannot be opened: ")
    path.write_bytes(whole)
    assert grade.opened(path, [exercise("03")]) == ({THIRD: SOLUTION.encode()}, "")


def a_tar(path, mode="w", **facts):
    with tarfile.open(path, mode) as archive:
        entry = tarfile.TarInfo(THIRD)
        entry.size = len(SOLUTION)
        for name, value in facts.items():
            setattr(entry, name, value)
        archive.addfile(entry, io.BytesIO(SOLUTION.encode()))


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
    trick, words = TRICKS[name]
    trick(tmp_path / name)
    began = time.monotonic()
    files, trouble = grade.opened(tmp_path / name, [exercise("03")])
    assert files == {} and words in trouble and trouble.isprintable()
    assert time.monotonic() - began < 15  # 1 on a machine that does nothing else


def test_an_archive_gets_no_more_memory_than_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(grade, "collect", lambda path, exercises: {"a": bytes(2 << 30)})
    files, trouble = grade.opened(tmp_path / "a.zip", [])
    assert (files, trouble) == ({}, "a.zip cannot be opened: reading it takes more than 512 MB of memory")


def no_check_passes(files, exercises, seed):
    """Instead of grade_files."""
    facts = {"status": "failed", "came": "a wrong number"}
    every = [(one["id"], entry) for one in exercises for entry in one["check"]]
    found = {identity: [] for identity, _ in every}
    for identity, entry in every:
        found[identity].append(Result(entry["id"], entry["title"], entry["points"], **facts).as_dict())
    return found


NAMES = ["grades.csv", "Seed.TXT", "a\nb", "\x1b[31m", "\u202eevil", "x\udcff", "a;=1+1", "50%", "n\t" * 90]
NAMES += ["canvas.csv", "Moodle.CSV", "ada", "=1+1", " @1", "\uff1d1"]


def test_no_name_of_a_student_harms_the_class(tmp_path, monkeypatch):
    """Neither the files of the class nor those of others, neither a terminal nor a spreadsheet."""
    folder, out = tmp_path / "submissions", tmp_path / "grades"
    for name in NAMES:
        (folder / name).mkdir(parents=True)
    found, _ = grade.students(folder)
    assert len(found) == len(NAMES) and "ada" in found
    assert all(name.isprintable() and ";" not in name for name in found)
    assert not {"canvas.csv", "moodle.csv"} & {name.casefold() for name in found}
    monkeypatch.setattr(grade, "grade_files", no_check_passes)
    monkeypatch.setattr(ranks.BOX, "level", 1)
    records = [grade.grade_into(*one, out, [exercise("03")], 0) for one in found.items()]
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


# ---- seeds ------------------------------------------------------------------------------------


def test_a_seed_that_nobody_has_named_is_one_that_nobody_knows(tmp_path):
    """Who knows the seed and the name can draw the inputs of all ranks, in a submission."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    first, other = (grade.seed_in(folder, "") for folder in folders)
    assert first != other and min(len(first), len(other)) >= 12
    assert grade.seed_in(folders[0], "") == first
    with pytest.raises(SystemExit, match=f"has grades with the seed {first}: choose another --out"):
        grade.seed_in(folders[0], "autumn")


@pytest.mark.long
def test_the_same_seed_gives_the_same_inputs(tmp_path):
    put({THIRD: SUM}, tmp_path)
    with batch.pool(1, walls.machine()["level"]) as pool:
        runs = [pool.submit(batch.grade, tmp_path, "03.2a", seed).result() for seed in "aab"]
    came = [next(one["came"] for one in found["03"] if one["id"] == "03.2a") for found, _ in runs]
    assert came[0] == came[1] != came[2]


# ---- a machine that fails ---------------------------------------------------------------------


def fails(name, folder, monkeypatch):
    """Let this machine fail. Returns what the grader has to say of it."""
    monkeypatch.setattr(batch, "begin", lambda level: None)
    if name == "a result says it":
        found = no_check_passes({}, [exercise("03")], 0)
        found["03"][2] |= {"status": "infrastructure", "came": "the disk is full"}
        monkeypatch.setattr(batch, "grade", lambda *words: (found, ""))
        return ""
    if name == "pytest gives no results":
        monkeypatch.setattr(batch, "grade", lambda *words: ({}, "some words\nMemoryError\x1b[2J\n"))
        return "pytest gave no results for exercise 03: MemoryError"
    monkeypatch.setattr(ranks, "SANDBOX", folder / "none")  # where no sandbox starts
    return "the sandbox does not answer"


@pytest.mark.parametrize("name", ["a result says it", "pytest gives no results", "no sandbox starts"])
def test_a_machine_that_fails_is_nobodys_zero(name, tmp_path, monkeypatch):
    monkeypatch.setattr(ranks.BOX, "level", 1)
    words, third = fails(name, tmp_path, monkeypatch), [exercise("03")]
    record = grade.grade_safely("ada", SOLUTIONS, tmp_path, third, 0)
    assert record["infrastructure"] and words in record["trouble"] and "\x1b" not in record["trouble"]
    assert not (tmp_path / "ada" / "results.json").exists()
    monkeypatch.setattr(grade, "grade_in_pool", lambda found, records, *rest: records.update(ada=record))
    out = tmp_path / "grades"
    put({f"class/ada/{THIRD}": SOLUTION}, tmp_path)
    said = refused(monkeypatch, tmp_path / "class", "--out", out, "--only", "03", "--force")
    assert said == "error: 1 not graded: run the same command again"
    (row,) = table(out / "grades.csv")
    assert (row["total"], row["status"]) == ("", "infrastructure: not graded")
    assert (out / "nbgrader.csv").read_text().count("\n") == 1
    said = refused(monkeypatch, "--one", SOLUTIONS, "--out", tmp_path, "--only", "03", "--force")
    assert said.startswith("error: this machine failed, so there is no grade (") and words in said
    assert not (tmp_path / "results.json").exists()


@pytest.mark.night
def test_a_process_that_is_ended_costs_nobody_a_grade(tmp_path):
    """As when the machine has no memory left: of two, one waits when the process that grades is ended."""
    put({f"class/{name}/{THIRD}": SOLUTION for name in ("ada", "ben")}, tmp_path)
    words = [tmp_path / "class", "--only", "03", "--jobs", "1", "--force", "--out", tmp_path / "grades"]

    def graders():
        found = ranks.below(grader.pid)
        return [pid for pid in found if "spawn_main" in ranks.read(f"/proc/{pid}/cmdline")]

    with subprocess.Popen(command(*words), cwd=ROOT, stdout=subprocess.DEVNULL) as grader:
        os.kill(wait_for(graders)[0], signal.SIGKILL)
    assert grader.returncode == 0
    rows = {row["student"]: row["total"] for row in table(tmp_path / "grades" / "grades.csv")}
    assert rows == {"ada": "12", "ben": "12"}


HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    os.fork()\n",
    "ends what it can": "import os\nfor pid in [os.getppid(), -1]:\n    os.kill(pid, 9)\n",
    "left behind": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)\n" + SOLUTION,
    "files": "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'w').write('x' * 1000)\n    n += 1\n",
}


@pytest.mark.night
def test_hostile_submissions_change_nobodys_grade(tmp_path):
    """The honest ones of a class, graded with and without the hostile ones."""
    starter = (STARTERS / THIRD).read_text()
    texts = {"right": SOLUTION, "sum": SUM, "starter": starter}
    honest = {f"{place}{kind}": text for place in "012" for kind, text in texts.items()}
    grades = []
    for number, some in enumerate((honest, honest | HOSTILE)):
        folder, out = tmp_path / f"class-{number}", tmp_path / f"grades-{number}"
        put({f"{name}/{THIRD}": text for name, text in some.items()}, folder)
        run = call(folder, "--only", "03", "--force", "--seed", "s", "--out", out)
        assert run.returncode == 0, run.stdout + run.stderr
        rows = {row["student"]: row for row in table(out / "grades.csv")}
        checks = [json.loads((out / name / "grade.json").read_text())["exercises"]["03"] for name in honest]
        found = [[(one["id"], one["status"], one["came"]) for one in some] for some in checks]
        grades.append(([rows[name] for name in honest], found))
    assert grades[0] == grades[1]
    assert {row["total"] for row in grades[0][0]} == {"12", "4", "0"}


# ---- what is refused, and the levels ----------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2])
def test_a_class_below_level_3_needs_a_word(level, tmp_path, monkeypatch):
    """Two submissions at level 2 reach each other's ports."""
    monkeypatch.setitem(walls.machine()["why"], 3, "bubblewrap is not installed")
    monkeypatch.setitem(walls.machine(), "level", level)
    (tmp_path / "ada").mkdir()
    words = f"error: level {level} is not enough for a class (bubblewrap is not installed)"
    assert refused(monkeypatch, tmp_path, "--out", tmp_path / "grades").startswith(words)


def test_root_needs_a_word_for_one_at_level_1(tmp_path, monkeypatch):
    """Without it, what a submission does would be done by root."""
    monkeypatch.setattr(grade, "opened", lambda path, exercises: sys.exit("error: it was opened"))
    words = ["--one", tmp_path, "--level", "1", "--out", tmp_path / "grades"]
    # On somebody's own laptop, it is opened.
    for root, said in ((True, "level 1 is not enough for root"), (False, "it was opened")):
        monkeypatch.setitem(walls.machine(), "root", root)
        assert refused(monkeypatch, *words).startswith(f"error: {said}")


@pytest.mark.parametrize("below", ["/usr", "/dev", str(Path(sys.prefix).resolve())])
def test_nothing_is_graded_where_every_submission_can_read_the_solutions(monkeypatch, below):
    """As in a container whose WORKDIR is /usr/src/app. At every level of containment /usr can be read."""
    assert walls.within_reach() == ""
    monkeypatch.setattr(walls, "ROOT", Path(below, "src/app"))
    words = f"error: submissions can read everything below {below}, including {below}/src/app: "
    assert refused(monkeypatch, "--doctor").startswith(words)


BAD_WORDS = {
    "nowhere": "there is no folder nowhere",
    "--one nowhere": "there is no submission nowhere",
    "--jobs 0 .": "--jobs must be at least 1",
    "--only 77 .": "there is no exercise 77; the exercises are 01",
}


@pytest.mark.parametrize("words", BAD_WORDS)
def test_bad_words_get_one_line(words, monkeypatch):
    assert refused(monkeypatch, *words.split()).startswith(f"error: {BAD_WORDS[words]}")


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


@pytest.mark.long("2")
@pytest.mark.night
@pytest.mark.parametrize("level", [1, 2, 3])
def test_each_level_grades(level, tmp_path):
    """Root without bubblewrap is level 2, an ordinary user without it level 1, and with it level 3."""
    view = ["unshare", "--mount", "--propagation", "private", "bash", "-c", OPEN, "bash", sys.base_prefix]
    view += ["" if level == 3 else BUBBLEWRAP, *([] if level == 2 else AS_USER)]
    tmp_path.chmod(0o777)
    environment = os.environ | {"HOME": "/tmp", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as out:
        os.chmod(out, 0o777)
        words = command("--one", "solutions", "--only", "03", "--out", out)
        run = subprocess.run([*view, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "12 of 12 points" in run.stdout and f"\nlevel {level} (" in run.stdout, run.stdout + run.stderr


HANGS = "import os, time\nif os.fork() == 0:\n    os.setsid()\ntime.sleep(1000)\n"


@pytest.mark.long("2")
@pytest.mark.night
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_grading_is_interrupted(number, tmp_path):
    """Ctrl-C at level 1, where no namespace ends with the grader; or the grader cannot even say good-bye."""
    put({THIRD: HANGS}, tmp_path)
    words = ["--one", tmp_path, "--only", "03", "--force", "--level", "1", "--out", tmp_path / "grades"]
    limits.prctl(limits.SUBREAPER, 1)  # whatever is left by those that end is a child of this process
    ours = set(ranks.below(os.getpid()))

    def left():
        """Without those of Chromium, which other tests have left running: it starts some when it likes."""
        found = set(ranks.below(os.getpid())) - ours
        lines = {pid: ranks.read(f"/proc/{pid}/cmdline") for pid in found}
        return {pid for pid, line in lines.items() if line and "chrom" not in line}

    try:
        with subprocess.Popen(command(*words), cwd=ROOT, stderr=subprocess.PIPE, text=True) as grader:
            # The grader, pytest, the sandbox, two ranks and a child of each.
            wait_for(lambda: len(left()) == 7)
            grader.send_signal(number)
            said = grader.stderr.read()
        assert said == ("error: interrupted\n" if number == signal.SIGINT else "")
        wait_for(lambda: not left(), 20)
    finally:
        for pid in left():
            os.kill(pid, signal.SIGKILL)
        limits.prctl(limits.SUBREAPER, 0)


@pytest.mark.long
def test_the_doctor_says_what_there_is():
    run, level = call("--doctor"), walls.machine()["level"]
    assert f"submissions are contained at level {level}" in run.stdout and "sandbox starts in" in run.stdout
    assert run.returncode == (level < 2)


def test_what_jplag_and_moss_compare(tmp_path, monkeypatch):
    """By exercise and student, with the starter, which all have in common; also from an archive."""
    subs, out = tmp_path / "submissions", tmp_path / "compare"
    put({f"ada/{THIRD}": SOLUTION}, subs)
    with zipfile.ZipFile(subs / "zoe.zip", "w") as archive:
        archive.writestr(f"deep/{THIRD}", "x = 1\n")
        archive.writestr("../../escaped.py", "x = 1\n")
    monkeypatch.setattr(sys, "argv", ["grade.py", str(subs), "--collect", str(out), "--only", "03"])
    grade.main()
    there = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert there == {f"03/submissions/ada/{THIRD}", f"03/submissions/zoe/{THIRD}", f"03/starter/{THIRD}"}
    assert (out / "03/starter" / THIRD).read_text() == (STARTERS / THIRD).read_text()


# ---- what is given away: the students' copy, Gradescope's bundle, workflows -------------------


def holds_answers(name):
    """Whether this is a solution, or a file that is made of one."""
    return bool(re.search(r"(^|/)(solutions/|mutants|others|cheats)", name)) and name != OWN


OWN = "tests/exercises/mutants.py"  # reads solutions, and tells nothing


def students_copy(folder):
    """The students' copy, made by the command that tests/README.md tells an instructor."""
    assert "`make students`" in (ROOT / "tests/README.md").read_text()
    run = make("students", f"OUT={folder}")
    assert run.returncode == 0, run.stderr
    return folder / "students.zip"


def test_a_students_copy_has_no_answers(tmp_path):
    with zipfile.ZipFile(students_copy(tmp_path)) as archive:
        names = set(archive.namelist())
    assert [name for name in names if holds_answers(name)] == []
    assert {"Makefile", "tests/exercises/03_average_gradients/test_03.py"} <= names
    assert f"lessons/exercises/{THIRD}" in names


@pytest.mark.night
def test_make_check_works_in_a_students_copy(tmp_path):
    shutil.unpack_archive(students_copy(tmp_path), tmp_path / "copy")
    put({f"copy/lessons/exercises/{THIRD}": SOLUTION}, tmp_path)
    run = make("check", "EX=03.1a", cwd=tmp_path / "copy")
    assert run.returncode == 0 and "2 of 2 points" in run.stdout, run.stdout + run.stderr


def defined(path):
    """The functions of a file by name, but for bodies, which call the student's."""
    found = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    return {node.name for node in found if not node.args.args or node.args.args[0].arg != "student"}


def test_what_students_can_copy_from_a_test_is_said():
    """A function of a solution that a test holds under the same name."""
    found, text = {}, (ROOT / "tests/README.md").read_text()
    for one in manifest():
        answers = set().union(*(defined(SOLUTIONS / name) for name in one["files"]))
        found[one["id"]] = answers & defined(next((HERE / one["stem"]).glob("test_*.py")))
    assert found.pop("10") == {"gpipe", "one_forward_one_backward", "timeline"} and not any(found.values())
    assert "exercise 10's holds `gpipe`, `one_forward_one_backward` and `timeline` as functions" in text
    tenth, hunt = exercise("10"), exercise("04a")
    copied = sum(e["points"] for e in tenth["check"] if e["id"][:4] in ("10.1", "10.2", "10.3"))
    assert f"({copied} of its {points_of(tenth)} points)" in text
    kinds = sum(e["points"] for e in hunt["check"] if "has its name" in e["title"])
    assert f"the kind of each bug ({kinds} of its {points_of(hunt)})" in text


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
    assert [name for name in names if holds_answers(name) or name.endswith(OWN) or "roster" in name] == []
    tests = {Path(name).parts[-2] for name in names if Path(name).name.startswith("test_")}
    assert tests == {one["stem"] for one in manifest()}
    put({f"submission/{THIRD}": SOLUTION, "submission_metadata.json": '{"id": 123}'}, root)
    facts = dict.fromkeys(("CLASSROOM", "ASSIGNMENT", "SUBMISSION_TAG", "COMMIT_URL", "RELEASE_URL"), "x")
    facts |= {"AUTOGRADER": str(root), "PYTHON": sys.executable, "EXERCISES": "03"}

    def runs(program, script, folder):
        more = {"env": os.environ | facts, "cwd": folder, "capture_output": True, "text": True}
        run = subprocess.run([program, root / "source" / script], **more)
        assert run.returncode == 0, run.stdout + run.stderr

    runs("bash", "run_autograder", tmp_path)
    results = json.loads((root / "results" / "results.json").read_text())
    assert results["score"] == 12 and len(results["tests"]) == 8
    later = [test["number"] for test in results["tests"] if test["visibility"] == "after_due_date"]
    assert later == ["03.1a", "03.1b", "03.1c"]  # two need the one that is hidden
    # The same bundle under Classroom 50: its runner starts autograder.py in the student's folder.
    shutil.copy(bundle.RECIPES / "classroom50.py", root / "source" / "autograder.py")
    runs(sys.executable, "autograder.py", root / "submission")
    result = json.loads((root / "submission" / "result.json").read_text())
    assert (result["schema"], result["score"], result["max-score"]) == ("classroom50/result/v1", 8, 8)
    assert len(result["tests"]) == 5 and all(test["passed"] for test in result["tests"])


def test_what_graders_import_is_installed_as_the_lessons_pin_it():
    """By the bundle and by both workflows; only a class needs a progress bar and pictures."""
    imported = set()
    for path in bundle.contents().values():
        if path.suffix == ".py" and path.name != "classroom50.py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    names = (
                        [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                    )
                    imported |= {name.partition(".")[0] for name in names if name}
    ours = {path.stem for folder in ("", "grader", "sandbox") for path in (HERE / folder).glob("*.py")}
    needed = imported - set(sys.stdlib_module_names) - ours - {"grader"}
    assert needed == {"torch", "numpy", "pytest", "tqdm", "matplotlib"}
    pinned = (ROOT / "requirements.txt").read_text().split()
    for_one, recipe = {"torch", "numpy", "pytest"}, (bundle.RECIPES / "github.yml").read_text()
    for text, names in (
        (bundle.requirements(), for_one),
        (recipe, for_one),
        ((bundle.RECIPES / "github_grades.yml").read_text(), needed),
    ):
        words = text.split()
        assert names <= {word.partition("==")[0] for word in words}
        assert {word for word in words if re.match(r"\w+==", word)} <= set(pinned)


def step(recipe, name):
    import yaml  # jupyter brings it

    steps = yaml.safe_load((bundle.RECIPES / recipe).read_text())["jobs"]["grade"]["steps"]
    return next(step["run"] for step in steps if step.get("name") == name)


@pytest.mark.night
def test_the_workflow_checks(tmp_path):
    words = step("github.yml", "Grade").replace(".venv/bin/python", sys.executable)
    words = words.replace("--out grades", f"--out {tmp_path}")
    environment = os.environ | {"EXERCISES": "03"}
    for folder, code in (("lessons/exercises", 1), ("solutions", 0)):
        tried = words.replace("lessons/exercises", folder)
        run = subprocess.run(tried, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert run.returncode == code, run.stderr
        assert json.loads((tmp_path / "results.json").read_text())["score"] == 12 * (code == 0)


@pytest.mark.night
def test_the_workflow_grades(tmp_path):
    """Two students' repositories, and a `gh` that fetches them from this machine."""
    gh = '#!/bin/sh\nmkdir -p "$4" && cp "$HERE/$3.py" "$4/$NAME"\n'
    put({"gh": gh, "of/ada.py": SOLUTION, "of/ben.py": "x = 1\n"}, tmp_path)
    (tmp_path / "gh").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HERE": str(tmp_path)}
    environment |= {"NAME": THIRD, "STUDENTS": "of/ada of/ben", "SEED": "autumn", "PYTHONPATH": str(ROOT)}
    collect = step("github_grades.yml", "Collect")
    subprocess.run(["bash", "-ec", collect], cwd=tmp_path, env=environment, check=True)
    words = step("github_grades.yml", "Grade").removeprefix("sudo ")
    words = words.replace("--out grades", f"--out {tmp_path}/grades --only 03 --force")
    words = words.replace(".venv/bin/python", sys.executable)
    words = words.replace("submissions", f"{tmp_path}/submissions")
    run = subprocess.run(words, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    totals = {row["student"]: row["total"] for row in table(tmp_path / "grades" / "grades.csv")}
    assert totals == {"of-ada": "12", "of-ben": "0"}
    assert (tmp_path / "grades" / "seed.txt").read_text() == "autumn"
