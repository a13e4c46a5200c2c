"""From nothing to a graded exercise, in a copy of the repository: what an author does first."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tools.lessons import ROOT


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy in which nothing is in the way."""
    folder = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "results", "pictures")
    for name in ("lessons", "solutions", "tests", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("Makefile", "README.md", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def call(tree, *words):
    # `make test` tells a make that it starts what it is itself to do.
    names = [name for name in os.environ if "MAKE" not in name and name != "MFLAGS"]
    environment = {name: os.environ[name] for name in names}
    run = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


def make(tree, *words):
    return call(tree, "make", *words, f"PYTHON={sys.executable}")


def all_files(tree):
    return {path for path in tree.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def made(tree):
    """What `make exercise` has written."""
    before = all_files(tree)
    code, text = make(tree, "exercise", "ID=98", "NAME=toy")
    assert code == 0 and "python tests/exercises/mutants.py 98" in text, text
    return all_files(tree) - before


def counts(tree):
    """The exercises, checks and points that tests/README.md counts."""
    words = r"(\d+) exercises, (\d+) checks, (\d+) points\."
    return [int(number) for number in re.search(words, (tree / "tests/README.md").read_text()).groups()]


@pytest.mark.long
def test_a_new_exercise_is_graded_at_once(tree, made):
    folder = tree / "tests/exercises/98_toy"
    names = ("exercise.toml", "test_98.py", "mutants.toml", "others.py")
    ours = {tree / "solutions/98_toy.py", tree / "lessons/exercises/98_toy.py"}
    assert made == ours | {folder / name for name in names}
    one_more = [before + more for before, more in zip(counts(ROOT), (1, 1, 2), strict=True)]
    assert counts(tree) == one_more
    code, text = call(tree, sys.executable, "tests/exercises/mutants.py", "98", "--jobs", "1")
    lines = [line.split()[:3] for line in text.splitlines() if line.startswith("ok ")]
    kinds = ("solution", "starter", "other", "mutant")
    assert code == 0 and lines == [["ok", "98", kind] for kind in kinds], text
    assert "98.1a failed: the sum of call 1 on rank 0: " in text, text
    lacks = ("1 mutants of at least 8", "1 other solutions of at least 2", "no try_98 in ")
    assert f"not finished: 98 has {', '.join(lacks)}" in text, text


@pytest.mark.long
def test_a_student_can_work_at_it(tree, made):
    code, text = make(tree, "check", "EX=98")
    assert code and "98 Toy: 0 of 2 points" in text, text
    assert "not written yet: 98.1: the sum over all processes" in text, text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "an exercise needs a number"),
        (("ID=98", "NAME=My toy"), "an exercise needs a number"),
        (("ID=03a", "NAME=other"), "03a is taken, by tests/exercises/03a_ring_all_reduce: choose another"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tree, words, error):
    before = all_files(tree)
    code, text = make(tree, "exercise", *words)
    lines = [line for line in text.splitlines() if not line.startswith("make: ")]
    assert code and len(lines) == 1 and lines[0].startswith(f"error: {error}"), text
    assert all_files(tree) == before
