"""The exercises: their starters, what they are called, the students' page, try.py."""

import hashlib
import itertools
import os
import re
import runpy
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import starters
from grader import exercises
from grader.settings import HERE, SOLUTIONS, STARTERS

from tests.helpers.lines import column
from tools.lessons import ROOT

EXERCISES = column(exercises.manifest(), "id")


def test_starters_are_what_their_solutions_say():
    words = [sys.executable, "tests/exercises/starters.py", "--check"]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_no_answer_is_in_a_file_that_students_get():
    """In no starter a line of any answer; in lessons and notebooks no two that follow each other. Lines that
    stand in the lessons, such as optimizer.step(), are the language and not an answer."""
    language = set()
    for path in (ROOT / "lessons").glob("*.py"):
        language |= stripped_lines(path)
    language.add("if dist.get_rank() == 0:")  # the lessons have the rank in a variable
    kinds = (".py", ".md", ".sh", ".sbatch")
    pages = [*(ROOT / "notebooks").glob("*.ipynb"), ROOT / "README.md"]
    for path in (ROOT / "lessons").rglob("*"):
        if path.suffix in kinds:
            pages.append(path)
    starter_lines = {}
    plain = {}
    for path in pages:
        if STARTERS in path.parents:
            starter_lines[path] = stripped_lines(path)
        else:
            # A notebook is JSON: each line of a cell is a string.
            text = re.sub(r"\s+", " ", path.read_text().replace('\\n",', "").replace('\\"', '"'))
            plain[path] = re.sub(r'" +"', " ", text)
    found = []
    for source in sorted(SOLUTIONS.rglob("*.py")):
        lines = starters.answers(source.read_text())
        assert lines, f"{source.name} has no answers: what is compared here?"
        for path, there in starter_lines.items():
            for line in lines:
                if len(line) > 15 and line in there and line not in language:
                    found.append((path.name, line))
        for one, two in itertools.pairwise(lines):
            pair = f"{one} {two}"
            for path, text in plain.items():
                if len(pair) > 40 and pair in text:
                    found.append((path.name, pair))
    assert found == []


def stripped_lines(path):
    return {line.strip() for line in path.read_text().splitlines()}


def test_the_manifest_is_in_order():
    seen = set()
    assert sorted(EXERCISES) == EXERCISES and {"03", "03a", "03b", "04"} <= set(EXERCISES)
    for one in exercises.manifest():
        fields = ["id", "stem", "title", "files", "forbidden", "floor", "limits", "seconds", "check"]
        assert set(one) <= set(fields) and one["id"] == one["stem"].partition("_")[0]
        for entry in one["check"]:
            assert set(entry) <= {"id", "title", "points", "needs", "hints", "when", "files"}
            assert entry["id"].startswith(one["id"] + ".") and entry["id"] not in seen
            assert entry["points"] > 0
            for pattern, *more in entry.get("when", []):
                assert re.compile(pattern) and len(more) in (1, 3) and {*map(type, more)} == {str}
            seen.add(entry["id"])


@pytest.mark.long
def test_pytest_finds_all_checks_with_the_settings_of_this_repository():
    """A deprecation is an error in them: `make check EX=08` would run no check."""
    words = [sys.executable, "-m", "pytest", "tests/exercises", "--collect-only", "-q"]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:]


def test_links_of_the_students_page_lead_somewhere():
    """test_pages_and_commands.py looks at the others."""
    links = re.findall(r"\]\(([^)#]+)", (STARTERS / "README.md").read_text())
    for link in links:
        assert link.startswith("http") or (STARTERS / link).exists(), link
    names = set()
    for one in exercises.manifest():
        for name in one["files"]:
            names.add(Path(name).parts[0])
    there = set(os.listdir(STARTERS))
    assert there - {"README.md", "try.py", "conftest.py", "__pycache__"} == names


@pytest.mark.long("03", "10")
@pytest.mark.night
@pytest.mark.parametrize("name", [name for name in EXERCISES if name != "04a"])
def test_each_exercise_can_be_tried_by_hand(forked, name):
    """With the solution in place, every line has the rank in front, and no part is left out."""
    run = forked(
        [sys.executable, STARTERS / "try.py", name, "--submission", SOLUTIONS], {"PYTHONWARNINGS": "default"}
    )
    code, out, err = run.code, run.stdout, run.stderr
    assert (code, "refused" in err, err.count("\n")) == (0, name == "06b", int(name == "06b"))
    lines = out.splitlines()
    fronts = {line.split(" | ")[0] for line in lines}
    assert fronts == {f"rank {rank}" for rank in range(len(fronts))} and len(fronts) >= 1
    assert "not written yet" not in out and len(lines) >= 3 * len(fronts)


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
    shutil.copy(STARTERS / "try.py", tmp_path)
    start = runpy.run_path(str(tmp_path / "try.py"))["main"]
    monkeypatch.setattr(sys, "argv", ["try.py", name])
    with pytest.raises(SystemExit, match=f"^error: {NOT_TRIED[name]}[^\n]*$"):
        start()


CHECKED_AS = {
    "lessons/exercises": "03",
    "lessons/exercises/02_scatter_gather.py": "02_scatter_gather",
    "lessons/exercises/04a_bug_hunt/bug_03.py::main": "bug_03",
}


@pytest.mark.parametrize("path", CHECKED_AS)
def test_pytest_on_a_starter_says_where_its_checks_are(path):
    run = subprocess.run([sys.executable, "-m", "pytest", path], cwd=ROOT, capture_output=True, text=True)
    name = CHECKED_AS[path]
    words = f"run `make check EX={name}`, or `pytest tests/exercises --only {name}`, in"
    assert run.returncode == 4 and words in run.stdout + run.stderr
    assert exercises.wanted(name)


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
    for name in MEANT[count]:
        assert len(exercises.wanted(name)) == count, name


ALL = f"the exercises are {', '.join(EXERCISES)}"
CHECKS_OF_03B = ", ".join(entry["id"] for entry in exercises.exercise("03b")["check"])
NO_NAMES = {
    "zebra": f"there is no exercise zebra; {ALL}",
    "3b.1.2": f"there is no check 03b.1.2. Exercise 03b has {CHECKS_OF_03B}",
}


@pytest.mark.parametrize("word", NO_NAMES)
def test_a_name_that_is_none_is_told_what_there_is(word):
    with pytest.raises(SystemExit) as refused:
        exercises.wanted(word)
    assert str(refused.value) == f"error: {NO_NAMES[word]}"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux says what threads do")
def test_memory_is_looked_at_when_no_other_thread_has_work():
    """Without Python's lock, as gloo's threads work: one of them may still hold the tensors that it sent."""
    ended = threading.Event()

    def work():
        hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)
        ended.set()

    threading.Thread(target=work).start()
    runpy.run_path(str(HERE / "sandbox/give_back.py"))["free_memory"]()
    assert ended.is_set()


@pytest.mark.long
def test_an_author_begins_with_a_copy_of_an_exercise_that_is_graded_at_once(tmp_path):
    """As tests/exercises/README.md says it. Numbers that were forged to be none get no points."""
    for name in ("tests/exercises", "solutions", "lessons/exercises"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "tests/README.md", tmp_path / "tests")
    shutil.copy(ROOT / "requirements.txt", tmp_path)
    folder = tmp_path / "tests/exercises/98_toy"
    shutil.copytree(HERE / "recipes/98_toy", folder)
    solution = shutil.move(folder / "98_toy.py", tmp_path / "solutions")

    def call(*words):
        run = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr

    code, text = call("tests/exercises/starters.py")
    assert code == 0 and "lessons/exercises/98_toy.py" in text, text
    code, text = call("tests/exercises/mutants.py", "98", "--jobs", "1")
    assert code == 0, text
    assert re.findall(r"^ok +98 +(\S+)", text, re.M) == ["solution", "starter", "other", "mutant"], text
    assert len(re.findall("^ok ", text, re.M)) == 4, text
    assert "98.1a failed: the sum of call 1 on rank 0: " in text, text
    assert "not finished: 98 has 1 mutants of at least 8, no try_98 in " in text, text
    with open(solution, "a") as file:
        file.write("import sys\nsys.modules['the_check'].totals = lambda *words: []\n")
    check = ("-m", "pytest", "tests/exercises/98_toy", "--submission=solutions", "-q")
    code, text = call(*check, "--confcutdir", "tests/exercises", "-p", "no:cacheprovider")
    assert code == 1 and "0 of 2 points" in text, text
