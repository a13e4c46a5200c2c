"""A class is graded: what instructors, autograders and students get of tests/exercises/grade.py."""

import ast
import csv
import io
import json
import lzma
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from contextlib import suppress
from pathlib import Path

import bundle
import grade
import psutil
import pytest
from grader import batch, handed, ranks, server, walls
from grader.exercises import exercise, manifest, points_of
from grader.results import Result
from grader.settings import HERE, SOLUTIONS
from grader.walls import limits

from tests.helpers import cgroups
from tests.helpers.lines import column
from tools.lessons import ROOT
from tools.testbed.processes import wait_for

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


def follow(words, **more):
    """What comes of a shell command, run as GitHub does."""
    words = ["bash", "-ec", words]
    return subprocess.run(words, cwd=ROOT, env=os.environ | more, capture_output=True, text=True)


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# ---- a class ----------------------------------------------------------------------------------


# Two that could harm the submissions beside them. test_grader.py tries each of hostile.toml alone.
HEAD = "import os, signal\nfrom contextlib import suppress\n"
ATTACKS = tomllib.loads((ROOT / "tests/hostile.toml").read_text())
HOSTILE = {name: HEAD + ATTACKS[name]["attack"] for name in ("forks for ever", "kills what it can")}


def a_tar(path, mode="w", **facts):
    with tarfile.open(path, mode) as archive:
        entry = tarfile.TarInfo(THIRD)
        entry.size = len(SOLUTION)
        for name, value in facts.items():
            setattr(entry, name, value)
        archive.addfile(entry, io.BytesIO(SOLUTION.encode()))


def a_zip(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)


PICKED_UP = "raise SystemExit('picked up')\n"


def a_class(folder):
    """People and files as they come; tricks, and names that could harm the files of the class, a terminal or
    a spreadsheet."""
    for name in ("none", "grades.csv", "a\nb", " @1", "\uff1d1", "=1+1"):
        (folder / name).mkdir(parents=True)
    put({"ada/conftest.py": PICKED_UP, "ada/torch.py": PICKED_UP}, folder)
    put({f"ada/{THIRD}": SOLUTION, f"ada/old/{THIRD}": SUM}, folder)  # the copy nearer the top counts
    put({f"ben/{THIRD}": SUM, f"bea/{THIRD}": SUM}, folder)
    put({f"<b>eve/{THIRD}": "print('<script>alert(1)</script>')\nraise ValueError('<i>')\n"}, folder)
    for name, text in HOSTILE.items():
        put({f"{name}/{THIRD}": text}, folder)
    (folder / "=1+1" / THIRD).symlink_to(SOLUTIONS / THIRD)
    (folder / "linked").symlink_to(SOLUTIONS)
    a_zip(folder / "zoe.zip", {f"my work/deep/{THIRD}": SOLUTION, "../../escaped.py": "x = 1\n"})
    a_tar(folder / "tom.tar.gz", "w:gz", name=f"/abs/{THIRD}")
    a_tar(folder / "mallory.tar", type=tarfile.SYMTYPE, linkname=str(SOLUTIONS / THIRD))
    a_zip(folder / "bomb.zip", {THIRD: "#" * 50_000_000})
    a_zip(folder / "damaged.zip", {THIRD: SOLUTION})
    whole = bytearray((folder / "damaged.zip").read_bytes())
    whole[70] ^= 0xFF  # in what is compressed: zlib finds that, and not zipfile
    (folder / "damaged.zip").write_bytes(whole)
    (folder / "\x1b[2J.zip").write_bytes(b"PK\x03\x04 not a zip")
    os.mkfifo(folder / "pipe.tar")
    put({".DS_Store": "", "notes.txt": "not a submission"}, folder)


UNREADABLE = {
    "damaged": "damaged.zip cannot be opened: Error -3 while decompressing",
    "%1b[2J": "%1b[2J.zip cannot be opened: File is not a zip file",
    "pipe": "pipe.tar cannot be opened: it is not a regular file",
    "linked": "linked cannot be opened: it is a link, and links are not followed",
}


@pytest.mark.long
def test_a_class_is_graded(tmp_path):
    """By the documented command, twice. What is graded is kept, and can be repeated."""
    folder, out = tmp_path / "submissions", tmp_path / "grades"
    a_class(folder)
    words = (folder, "--out", out, "--only", "03", "--seed", "autumn", "--force")
    for again in (call(*words), call(*words)):
        assert (again.returncode, again.stderr) == (0, "")
    rows = {row["student"]: row for row in table(out / "grades.csv")}
    expected = dict.fromkeys(["ada", "zoe", "tom"], 12) | {"ben": 4, "bea": 4}
    expected |= dict.fromkeys(["<b>eve", "none", "bomb", "mallory", *UNREADABLE, *HOSTILE], 0)
    expected |= dict.fromkeys(["%67rades.csv", "a%0ab", "' @1", "'\uff1d1", "'=1+1"], 0)
    assert rows.keys() == expected.keys()
    for name, row in rows.items():
        assert float(row["total"]) == expected[name], name
        assert (row["maximum"], row["corrected"]) == ("12", "")
    assert rows["none"]["not handed in"] == "03"
    assert rows["ada"]["not handed in"] == ""
    for name in ("mallory", "'=1+1"):
        assert rows[name]["not handed in"] == f"03 ({THIRD} is a link or a device)"
    for name, said in UNREADABLE.items():
        assert rows[name]["status"].startswith(f"unreadable: {said}")
        assert f"unreadable, so no points: {said}" in again.stdout
    assert "ignored, because it is not a folder, zip or tar file: notes.txt" in again.stdout
    assert not list(tmp_path.glob("**/escaped.py"))
    # Each student gets what Gradescope reads, and a page in which nothing runs.
    for path in out.glob("*/results.json"):
        results = json.loads(path.read_text())
        assert sum(column(results["tests"], "max_score")) == 12
        assert sum(column(results["tests"], "score")) == results["score"]
        assert "level" in results["output"] and results["stdout_visibility"] == "hidden"
    text = (out / "<b>eve" / "report.html").read_text()
    assert "<script>" not in text and "&lt;script&gt;" in text and "&lt;b&gt;eve" in text
    items = (out / "items.html").read_text()
    assert "<i>" not in items and f"{len(rows)} submissions" in items
    assert f"0 graded, {len(rows)} kept from an earlier run" in again.stdout
    # Other inputs for everybody, and the same ones again for whoever names the seed of a report.
    ben = json.loads((out / "ben/grade.json").read_text())
    bea = json.loads((out / "bea/grade.json").read_text())
    words = ("--one", folder / "ben", "--out", tmp_path, "--only", "03", "--seed", ben["seed"])
    said = call(*words).stdout
    came = ben["exercises"]["03"][3]["came"]
    assert came.startswith("the gradient of shift on rank 0: ")
    assert came in said
    assert bea["exercises"]["03"][3]["came"] not in said


def test_a_grade_is_kept_while_all_that_it_depends_on_stays(tmp_path, monkeypatch):
    shutil.copytree(HERE, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(grade, "HERE", tmp_path)

    def mark(seed="s", text=b"x = 1", **more):
        return grade.fingerprint(exercise("03") | more, {THIRD: text}, seed, 3)

    marks = {mark(), mark("other"), mark(text=b"x = 2"), mark(seconds=3)}
    for name in ("grader/ranks.py", "sandbox/worker.py", "optimizers.py", "03_average_gradients/test_03.py"):
        (tmp_path / name).write_text("")
        marks.add(mark())
    (tmp_path / "04_sampler/test_04.py").write_text("")
    assert len(marks) == 8 and mark() in marks


HANDED_IN = {
    # As Canvas names files in a bulk download, with one that was handed in again.
    "lovelaceada_LATE_17_4142_03_average_gradients.py": ("lovelaceada_17", THIRD, "first"),
    "lovelaceada_LATE_17_4242_03_average_gradients-1.py": ("lovelaceada_17", THIRD, "second"),
    "lovelaceada_17_4243_bug_03.py": ("lovelaceada_17", "04a_bug_hunt/bug_03.py", "second"),
    # As Moodle does, with files and with folders.
    "Alan Turing_23_assignsubmission_file_03_average_gradients.py": ("Alan Turing_23", THIRD, "second"),
    f"Emmy Noether_22_assignsubmission_file/{THIRD}": ("Emmy Noether_22", THIRD, "second"),
    # As it was before.
    f"ben/work/{THIRD}": ("ben", THIRD, "second"),
}


def test_a_bulk_download_is_read_as_it_is(tmp_path):
    expected = {"noetheremmy_18": {THIRD: b"second"}}
    for name, (student, file, text) in HANDED_IN.items():
        put({name: text}, tmp_path)
        expected.setdefault(student, {})[file] = b"second"
    a_zip(tmp_path / "noetheremmy_18_4244_my work.zip", {f"a/{THIRD}": "second"})

    found, ignored = handed.students(tmp_path)
    assert ignored == []
    assert found.keys() == expected.keys()
    for student, one in found.items():
        assert handed.read(one, [exercise("03"), exercise("04a")]).files == expected[student]


def test_files_and_archives_of_other_systems_are_read(tmp_path):
    """A Mac's zip, bugs without their folder, capital letters, and an archive that Python cannot read."""
    flat = {"04a/bug_01.py": "flat", f"a/b/{THIRD}": "mine", f"__MACOSX/{THIRD}": "attributes"}
    a_zip(tmp_path / "ada.ZIP", flat)
    a_zip(tmp_path / "ben.zip", {"bug_01.py": "flat", "a/b/04a_bug_hunt/bug_01.py": "in its folder"})
    put(
        {"eve.7z": "x", "__MACOSX/eve/x.py": "x", "Zoë Q_24_assignsubmission_onlinetext/x.html": "x"},
        tmp_path,
    )
    put({f"Zoë Q_24_assignsubmission_file/{THIRD}": "mine"}, tmp_path)
    found, ignored = handed.students(tmp_path)
    assert sorted(found) == ["Zoë Q_24", "ada", "ben", "eve"] and ignored == []
    read = {}
    for name, one in found.items():
        read[name] = handed.read(one, [exercise("03"), exercise("04a")])
    assert read["ada"].files == {THIRD: b"mine", "04a_bug_hunt/bug_01.py": b"flat"}
    assert read["ben"].files == {"04a_bug_hunt/bug_01.py": b"in its folder"}
    assert read["Zoë Q_24"].files == {THIRD: b"mine"}
    assert read["eve"].trouble == "eve.7z cannot be opened: ask for a zip or a tar"


GUESSES = {
    "01": "01_accumulat.py",
    "03": "ex03.py",
    "03b": "03b_ddp (1).py",
    "05": "05.py",
    "06b": "snapshots.py",
    "08": "08_sharded_optimizer.ipynb",
    "11": "exercise 11.py",
    "15": "15_ring_attention.py.txt",
    "16": "16_experts.PY",
}


def test_a_file_with_a_wrong_name_is_named(tmp_path):
    """It is not graded: which exercise it is for, the grader can only guess."""
    for name in ("utils.py", "2024.py", "09.pdf", "__MACOSX/._10.py"):
        put({f"deep/{name}": "x = 1"}, tmp_path)
    expected = {}
    for name, file in GUESSES.items():
        put({f"deep/{file}": "x = 1"}, tmp_path)
        expected[name] = f"is it deep/{file}?"
    found = handed.read(handed.Submission({"": tmp_path}), manifest())
    assert found.guesses == expected
    assert found.files == {} and found.trouble == ""


def test_inputs_with_which_the_solution_fails_are_drawn_again(tmp_path, monkeypatch):
    """Such a seed says nothing about a submission. It is recorded, so running again would not help."""
    real = ("03.1a", "with these inputs, the recorded solution does not pass it either (1e-9)")
    seeds = []

    def graded(files, exercises, seed):
        seeds.append(seed)
        found = {}
        for one in exercises:
            results = []
            for entry in one["check"]:
                results.append(Result(entry["id"], "", 1, status="passed", score=1).as_dict())
            if one["id"] == "03" and len(seeds) < 3:
                results[0] |= {"status": "infrastructure", "came": real[1]}
            found[one["id"]] = results
        return found

    monkeypatch.setattr(grade, "grade_files", graded)
    monkeypatch.setattr(ranks.SERVER, "level", 3)
    every = [exercise("03"), exercise("03a")]
    words = ("ada", handed.Submission({"": SOLUTIONS}), tmp_path, every, "autumn")
    record = grade.grade_into(*words)
    assert not record["infrastructure"] and len(set(seeds)) == 3
    assert record["seed"] == seeds[0] and record["seeds"] == {"03": seeds[2]}
    assert f"Seed of exercise 03: {seeds[2]}" in (tmp_path / "ada/report.html").read_text()
    # It is kept with these inputs.
    assert grade.grade_into(*words)["kept"] and len(seeds) == 3 + 1


ARCHIVE_CPU = 1 + 2 + 1  # ARCHIVE_SECONDS, what read() adds to it, and what the kernel takes to notice


def cpu_seconds_of_children():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_an_archive_gets_no_more_time_than_there_is(tmp_path, monkeypatch):
    """Six gigabytes of nothing."""
    monkeypatch.setattr(handed, "ARCHIVE_SECONDS", 1)
    with (tmp_path / "bomb.tar").open("wb") as file:
        header = tarfile.TarInfo("zeros")
        header.size = 6 << 30
        file.write(lzma.compress(header.tobuf()))
        file.write(lzma.compress(bytes(64 << 20), preset=0) * (6 << 30 >> 26))
    before = cpu_seconds_of_children()
    found = handed.read(handed.Submission({"": tmp_path / "bomb.tar"}), [exercise("03")])
    assert found == handed.Found({}, "bomb.tar cannot be opened: reading it takes more than 1 s")
    assert cpu_seconds_of_children() - before < ARCHIVE_CPU  # others may use the cores, so no time of day


@pytest.mark.skipif(sys.platform != "linux", reason="a Mac does not limit the memory of a process")
def test_an_archive_gets_no_more_memory_than_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr(handed, "collect", lambda *words: handed.Found({"a": bytes(2 << 30)}))
    found = handed.read(handed.Submission({"": tmp_path / "a.zip"}), [])
    assert found == handed.Found({}, "a.zip cannot be opened: reading it takes more than 512 MB of memory")


def test_a_grader_that_cannot_read_is_nobodys_zero(tmp_path, monkeypatch):
    monkeypatch.setattr(handed, "collected", lambda *words: 1 / 0)
    with pytest.raises(ranks.Broken, match="ended with the status 1"):
        handed.read(handed.Submission({"": tmp_path}), [exercise("03")])


def test_a_seed_that_nobody_has_named_is_one_that_nobody_knows(tmp_path):
    """Who knows the seed and the name can draw the inputs of all ranks, in a submission."""
    folder = tmp_path / "a"
    other_folder = tmp_path / "b"
    folder.mkdir()
    other_folder.mkdir()
    first = grade.seed_in(folder, "")
    other = grade.seed_in(other_folder, "")
    assert first != other
    assert min(len(first), len(other)) >= 12
    assert grade.seed_in(folder, "") == first
    with pytest.raises(SystemExit, match=f"has grades with the seed {first}: choose another --out"):
        grade.seed_in(folder, "autumn")


# ---- a machine that fails ---------------------------------------------------------------------


@pytest.mark.parametrize("words", ["", "the sandbox does not answer"])
def test_a_machine_that_fails_is_nobodys_zero(words, tmp_path, monkeypatch):
    """A result says that it fails, or no sandbox starts."""
    monkeypatch.setattr(ranks.SERVER, "level", 1)
    monkeypatch.setattr(batch, "begin", lambda level: None)
    if words:
        monkeypatch.setattr(server, "SANDBOX", tmp_path / "none")
    else:
        broken = Result("03.1a", "", 1, status="infrastructure", came="the disk is full").as_dict()
        monkeypatch.setattr(batch, "grade", lambda *words: ({"03": [broken] * 8}, ""))
    record = grade.grade_safely("ada", handed.Submission({"": SOLUTIONS}), tmp_path, [exercise("03")], 0)
    assert record["infrastructure"] and words in record["trouble"]
    assert not (tmp_path / "ada" / "results.json").exists()
    monkeypatch.setattr(grade, "grade_in_pool", lambda found, records, *rest: records.update(ada=record))
    out = tmp_path / "grades"
    put({f"class/ada/{THIRD}": SOLUTION}, tmp_path)
    said = refused(monkeypatch, tmp_path / "class", "--out", out, "--only", "03", "--force")
    assert said.endswith("error: 1 not graded: run the same command again")
    (row,) = table(out / "grades.csv")
    assert (row["total"], row["status"][:41]) == ("", "not graded, because this machine failed: ")
    assert (words or "03.1a: the disk is full") in row["status"]
    assert (out / "nbgrader.csv").read_text().count("\n") == 1
    said = refused(monkeypatch, "--one", SOLUTIONS, "--out", tmp_path, "--only", "03", "--force")
    assert said.startswith("error: this machine failed, so there is no grade (") and words in said
    assert not (tmp_path / "results.json").exists()


@pytest.mark.long
def test_ctrl_c_ends_the_grading_of_a_class_at_once(tmp_path):
    """Nothing more is started, and nothing is left."""
    for name in "abcdef":
        put({f"class/{name}/{THIRD}": SOLUTION}, tmp_path)
    words = [tmp_path / "class", "--only", "03", "--jobs", "2", "--force", "--out", tmp_path / "grades"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command(*words), cwd=ROOT, env=environment, **pipes) as grader:
        first = next(line for line in grader.stdout if "12 of 12 points" in line)
        began = time.monotonic()
        below = psutil.Process(grader.pid).children(recursive=True)
        grader.send_signal(signal.SIGINT)
        said = grader.stderr.read()
        grader.wait()
        assert time.monotonic() - began < 5
    assert first.startswith(("a: 12", "b: 12")) and grader.returncode == 1
    assert re.search(r"error: interrupted: all grades are kept, [12] of them new; run the same command", said)
    wait_for(lambda: not any(process.is_running() for process in below))
    assert list(tmp_path.glob("rungs*")) == []


@pytest.mark.night
def test_a_process_that_is_ended_costs_nobody_a_grade(tmp_path):
    """As when the machine has no memory left. Ben waits when the process that grades Ada is ended: another
    one grades her."""
    put({f"class/ada/{THIRD}": SOLUTION, f"class/ben/{THIRD}": SOLUTION}, tmp_path)
    words = [tmp_path / "class", "--only", "03", "--jobs", "1", "--force", "--out", tmp_path / "grades"]

    def of_the_pool():
        found = []
        for process in psutil.Process(grader.pid).children(recursive=True):
            if "spawn_main" in " ".join(process.cmdline()):
                found.append(process.pid)
        return found if len(found) == 2 else []  # with the pytest that is forked from it

    with subprocess.Popen(command(*words), cwd=ROOT, stdout=-3, stderr=-1, text=True) as grader:
        os.kill(wait_for(of_the_pool)[0], signal.SIGKILL)
        said = grader.stderr.read()
    rows = table(tmp_path / "grades" / "grades.csv")
    assert column(rows, "total") == ["12", "12"] and grader.returncode == 0, said


def test_what_is_not_contained_well_enough_needs_a_word(tmp_path, monkeypatch):
    """Two submissions at level 2 reach each other's ports; at level 1, root would do what a submission does;
    and at every level /usr can be read, as in a container whose WORKDIR is /usr/src/app."""
    monkeypatch.setattr(handed, "read", lambda *words: sys.exit("error: it was opened"))
    monkeypatch.setitem(walls.machine()["why"], 3, "bubblewrap is not installed")
    (tmp_path / "ada").mkdir()
    for level in (1, 2):
        monkeypatch.setitem(walls.machine(), "level", level)
        words = f"error: level {level} is not enough for a class (bubblewrap is not installed)"
        assert refused(monkeypatch, tmp_path, "--out", tmp_path).startswith(words)
    # On somebody's own laptop, it is opened.
    for root, said in ((True, "level 1 is not enough for root"), (False, "it was opened")):
        monkeypatch.setitem(walls.machine(), "root", root)
        words = ["--one", tmp_path, "--level", "1", "--out", tmp_path]
        assert refused(monkeypatch, *words).startswith(f"error: {said}")
    for below in ("/usr", "/dev", str(Path(sys.prefix).resolve())):
        assert walls.within_reach() == ""
        with monkeypatch.context() as there:
            there.setattr(walls, "ROOT", Path(below, "src/app"))
            words = f"error: submissions can read everything below {below}, including {below}/src/app: "
            assert refused(there, "--doctor").startswith(words)


def test_another_user_contains_nothing_if_that_user_can_read_the_solutions(monkeypatch, tmp_path):
    """On a kernel without Landlock, only the mode of a folder hides the solutions."""
    monkeypatch.setattr(walls, "python_is_closed", lambda: "")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(walls, "HERE", tmp_path / "missing")
    monkeypatch.setattr(walls, "SOLUTIONS", Path("/usr"))
    monkeypatch.setattr(limits, "landlock_version", lambda: 0)
    assert walls.no_other_user().startswith("another user can read /usr, and there is no Landlock: ")
    monkeypatch.setattr(limits, "landlock_version", lambda: 1)
    assert walls.no_other_user() == ""


def test_bad_words_get_one_line(monkeypatch, tmp_path):
    put({"class/ada/a.py": ""}, tmp_path)
    said = refused(monkeypatch, tmp_path / "class", "--student", "adda", "--force")
    assert said == "error: there is no submission of adda: did you mean ada?"
    shutil.rmtree(tmp_path / "class")
    assert refused(monkeypatch, "nowhere") == "error: there is no folder nowhere"
    assert refused(monkeypatch, "--only", "77", ".").startswith("error: there is no exercise 77; the ex")
    put({"ada/a.py": "", "ada.zip": ""}, tmp_path)
    said = refused(monkeypatch, tmp_path)
    assert said == f"error: ada.zip and ada in {tmp_path} both belong to ada: remove one"


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


@pytest.mark.long("1", "2")
@pytest.mark.night
@pytest.mark.parametrize("level", [1, 2, 3])
def test_each_level_grades(level):
    """Root without bubblewrap is level 2, an ordinary user (a student) without it level 1, and with it
    level 3."""
    view = ["unshare", "--mount", "--propagation", "private", "bash", "-c", OPEN, "bash", sys.base_prefix]
    view += ["" if level == 3 else BUBBLEWRAP, *([] if level == 2 else AS_USER)]
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
    ours = set(psutil.Process().children(recursive=True))

    def left():
        """Of these alone: a browser of another test starts processes when it likes."""
        found = set()
        for process in set(psutil.Process().children(recursive=True)) - ours:
            with suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE and "chrom" not in process.name():
                    found.add(process)
        return found

    try:
        with subprocess.Popen(command(*words), cwd=ROOT, stderr=subprocess.PIPE, text=True) as grader:
            # The grader, pytest, the sandbox, two ranks and a child of each.
            wait_for(lambda: len(left()) == 7)
            grader.send_signal(number)
            said = grader.stderr.read()
        assert said == ("error: interrupted\n" if number == signal.SIGINT else "")
        wait_for(lambda: not left(), 20)
    finally:
        for process in left():
            process.kill()
        limits.prctl(limits.SUBREAPER, 0)


@pytest.mark.long
def test_the_doctor_says_what_there_is():
    run, level = call("--doctor"), walls.machine()["level"]
    assert f"submissions are contained at level {level}" in run.stdout and "sandbox starts in" in run.stdout
    assert run.returncode == (level < 2)


# ---- what is given away: the students' copy, Gradescope's bundle, workflows -------------------


OWN = "tests/exercises/mutants.py"  # reads solutions, and tells nothing


def answers(names):
    """Which of these files are a solution, or made of one."""
    return list(filter(re.compile(r"(^|/)(solutions/|mutants|other_solution|cheats)").search, names))


@pytest.mark.long
def test_a_students_copy_has_no_answers_and_works(tmp_path):
    """Made by the command that tests/README.md tells an instructor."""
    assert "`make students`" in (ROOT / "tests/README.md").read_text()
    make = ["env", "-u", "MAKEFLAGS", "make", f"PYTHON={sys.executable}"]
    subprocess.run([*make, "students", f"OUT={tmp_path}"], cwd=ROOT, check=True)
    with zipfile.ZipFile(tmp_path / "students.zip") as archive:
        names = archive.namelist()
        assert answers(names) == [OWN]
        assert not re.findall(".*(?:hostile|test_grader).*", "\n".join(names))
        archive.extractall(tmp_path / "copy")
    put({f"copy/lessons/exercises/{THIRD}": SOLUTION}, tmp_path)
    run = subprocess.run([*make, "check", "EX=03.1a"], cwd=tmp_path / "copy", capture_output=True, text=True)
    assert run.returncode == 0 and "2 of 2 points" in run.stdout, run.stdout + run.stderr


def defined(path):
    """The functions of a file by name, but for bodies, which call the student's."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            arguments = node.args.args
            if not arguments or arguments[0].arg != "student":
                names.add(node.name)
    return names


def test_what_students_can_copy_from_a_test_is_said():
    """A function of a solution that a test holds under the same name."""
    found = {}
    for one in manifest():
        solved = set()
        for name in one["files"]:
            solved |= defined(SOLUTIONS / name)
        found[one["id"]] = solved & defined(next((HERE / one["stem"]).glob("test_*.py")))
    assert found.pop("10") == {"gpipe", "one_forward_one_backward", "timeline"}
    assert not any(found.values())
    words = "exercise 10's holds `gpipe`, `one_forward_one_backward` and `timeline` as functions"
    assert words in (ROOT / "tests/README.md").read_text()


def unpacked_bundle(tmp_path):
    """The bundle, unpacked as Gradescope does."""
    bundle.build(tmp_path / "gradescope.zip")
    root = tmp_path / "autograder"
    with zipfile.ZipFile(tmp_path / "gradescope.zip") as archive:
        names = archive.namelist()
        archive.extractall(root / "source")
    return root, names


@pytest.mark.long
def test_gradescopes_bundle_grades(tmp_path):
    """It is run by its own script; only the folder is another one."""
    root, names = unpacked_bundle(tmp_path)
    assert {"setup.sh", "run_autograder"} <= set(names)
    assert answers(names) == []
    tests = set()
    for name in map(Path, names):
        if name.name.startswith("test_"):
            tests.add(name.parent.name)
    assert tests == set(column(manifest(), "stem"))
    put({f"submission/{THIRD}": SOLUTION, "submission_metadata.json": '{"id": 123}'}, root)
    facts = {"AUTOGRADER": str(root), "PYTHON": sys.executable, "EXERCISES": "03"}
    run = follow(f"bash {root}/source/run_autograder", **facts)
    assert run.returncode == 0, run.stdout + run.stderr
    results = json.loads((root / "results" / "results.json").read_text())
    assert results["score"] == 12 and len(results["tests"]) == 8


@pytest.mark.night
@pytest.mark.parametrize("identity", column(manifest(), "id"))
def test_a_container_of_the_size_that_we_name_is_large_enough(tmp_path, identity):
    """tests/README.md says which size to choose in Gradescope's settings."""
    said = re.search(r"at least (\d) CPU, (\d) GB of memory", (ROOT / "tests/README.md").read_text())
    cores, gigabytes = map(int, said.groups())
    root, _ = unpacked_bundle(tmp_path)
    for name in exercise(identity)["files"]:
        put({f"submission/{name}": (SOLUTIONS / name).read_text()}, root)
    facts = {"AUTOGRADER": str(root), "PYTHON": sys.executable, "EXERCISES": identity}
    with cgroups.container(cores, gigabytes) as container:
        run = follow(f"{container.enter}; bash {root}/source/run_autograder", **facts)
        print(f"exercise {identity}: at most {container.most_memory() / 1e6:.0f} MB")
    assert run.returncode == 0, run.stdout + run.stderr
    results = json.loads((root / "results" / "results.json").read_text())
    assert results["score"] == points_of(exercise(identity)), run.stdout
    assert container.ended_for_memory == 0


def test_what_graders_import_is_installed_as_the_lessons_pin_it():
    """By the bundle and by the workflow."""
    workflow = (bundle.RECIPES / "github.yml").read_text()
    text = (ROOT / "requirements.txt").read_text()
    pinned = {"numpy", *re.findall("^(?:torch|pytest|psutil)==.*", text, re.M)}
    assert len(pinned) == 4
    assert pinned <= set(bundle.requirements().split())
    assert pinned <= set(workflow.split())


def step(recipe, name):
    import yaml  # jupyter brings it

    steps = yaml.safe_load((bundle.RECIPES / recipe).read_text())["jobs"]["grade"]["steps"]
    (words,) = (step["run"] for step in steps if step.get("name") == name)
    return words.replace(".venv/bin/python", sys.executable)


@pytest.mark.night
def test_the_workflow_checks(tmp_path):
    words = step("github.yml", "Grade").replace("--out grades", f"--out {tmp_path}")
    for folder, code in (("lessons/exercises", 1), ("solutions", 0)):
        run = follow(words.replace("lessons/exercises", folder), EXERCISES="03")
        assert run.returncode == code, run.stderr
        assert json.loads((tmp_path / "results.json").read_text())["score"] == (12 if code == 0 else 0)
