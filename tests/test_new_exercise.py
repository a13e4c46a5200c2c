"""From nothing to a graded exercise, in a copy of the repository: what an author does first."""

import os
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from lessons import ROOT

TOP = ("Makefile", "README.md", "requirements.txt", "pyproject.toml")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy in which nothing is in the way."""
    folder, ignored = (
        tmp_path_factory.mktemp("tree"),
        shutil.ignore_patterns("__pycache__", "results", "pictures"),
    )
    for name in ("lessons", "solutions", "tests", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in TOP:
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
    assert code == 0 and "python tests/exercises/selftest.py 98" in text, text
    return all_files(tree) - before


def counts(tree):
    """The exercises, checks and points that tests/README.md counts."""
    words = r"(\d+) exercises, (\d+) checks, (\d+) points\."
    return [int(number) for number in re.search(words, (tree / "tests/README.md").read_text()).groups()]


def test_a_new_exercise_is_graded_at_once(tree, made):
    folder = tree / "tests/exercises/98_toy"
    names = ("exercise.toml", "check.py", "drive.py", "mutants.toml", "others.py")
    ours = {tree / "solutions/98_toy.py", tree / "lessons/exercises/98_toy.py"}
    assert made == ours | {folder / name for name in names}
    one_more = [before + more for before, more in zip(counts(ROOT), (1, 1, 2), strict=True)]
    assert counts(tree) == one_more
    code, text = call(tree, sys.executable, "tests/exercises/selftest.py", "98")
    lines = [line.split()[:3] for line in text.splitlines() if line.startswith("ok ")]
    kinds = ("solution", "starter", "other", "mutant", "cheat", "cheat")
    assert code == 0 and lines == [["ok", "98", kind] for kind in kinds], text
    assert "98.1a failed: the sum on rank 0: " in text and "6 of 6 graded as required" in text, text
    lacks = ("1 mutants of at least 8", "1 other solutions of at least 2", "no try_98 in ")
    assert f"not finished: 98 has {', '.join(lacks)}" in text, text


@pytest.mark.long
def test_a_student_can_work_at_it(tree, made):
    code, text = make(tree, "check", "EX=98", "WARM=no")
    assert code and "98 Toy: 0 of 2 points" in text, text
    assert "not written yet: 98.1: the sum over all processes" in text, text
    code, text = make(tree, "check", "EX=00", "WARM=no")
    assert code and "there is no exercise 00; the exercises are 01, " in text and ", 98\n" in text, text


def test_it_is_as_clean_as_the_others(tree, made):
    for words in (("check",), ("format", "--check")):
        code, text = call(tree, sys.executable, "-m", "ruff", *words, *made)
        assert code == 0, text
    one = tomllib.loads((tree / "tests/exercises/98_toy/exercise.toml").read_text())
    assert [len(entry["hints"]) for entry in one["check"]] == [3]
    assert make(tree, "exercise", "ID=99", "NAME=later")[0] == 0  # whether there is a lesson 99 or not
    shutil.rmtree(tree / "tests/exercises/99_later")
    for path in ("solutions/99_later.py", "lessons/exercises/99_later.py"):
        (tree / path).unlink()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "an exercise needs a number and a name: make exercise ID=14 NAME=toy"),
        (("ID=98",), "an exercise needs a number and a name"),
        (("ID=03a", "NAME=other"), "03a is taken, by tests/exercises/03a_ring_all_reduce: choose another"),
        (("ID=3", "NAME=toy"), "ID=3 is no number: two digits"),
        (("ID=98", "NAME=My toy"), "NAME=My toy is no name: small letters"),
        (("ID=../x", "NAME=toy"), "ID=../x is no number"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tree, words, error):
    before = all_files(tree)
    code, text = make(tree, "exercise", *words)
    lines = [line for line in text.splitlines() if not line.startswith("make: ")]
    assert code and len(lines) == 1 and lines[0].startswith(f"error: {error}"), text
    assert all_files(tree) == before
