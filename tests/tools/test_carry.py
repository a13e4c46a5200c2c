"""`make carry` takes a change of a lesson into the scripts that grew from it, and stops where it does not
fit.
"""

import subprocess
import sys

import pytest

from tests.helpers.changed_lessons import copy_scripts


@pytest.fixture
def clone(tmp_path):
    """The lessons and the tools, committed."""
    copy_scripts(tmp_path)
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def change(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, path
    path.write_text(text.replace(old, new))


def carry(clone, lesson):
    words = [sys.executable, "-m", "tools.carry", lesson]
    return subprocess.run(words, cwd=clone, capture_output=True, text=True)


def test_a_change_reaches_the_grandchildren_and_stops_where_a_script_has_other_lines(clone):
    zero = "            optimizer.zero_grad()\n"
    change(clone / "lessons/05_snapshots.py", zero, zero.replace(")", "set_to_none=False)"))
    result = carry(clone, "05")
    assert result.returncode == 1
    assert result.stdout.splitlines() == [
        "lessons/06_multinode.py follows lessons/05_snapshots.py",
        "lessons/06a_any_step.py follows lessons/06_multinode.py",
        "lessons/06b_preemption.py follows lessons/06a_any_step.py",
        "lessons/08_real_training.py follows lessons/06b_preemption.py",
    ]
    recipe = clone / "lessons/recipes/mixed_precision.py"
    lines = recipe.read_text().splitlines()
    where = 1 + next(number for number, line in enumerate(lines) if "with autocast:" in line)
    assert result.stderr == (
        f"error: lessons/recipes/mixed_precision.py:{where} has other lines there: make the change by hand, "
        "then make carry LESSON=lessons/recipes/mixed_precision.py\n"
    )
    assert recipe.read_text().splitlines() == lines
    for name in ("06_multinode", "06a_any_step", "06b_preemption", "08_real_training"):
        assert "zero_grad(set_to_none=False)" in (clone / f"lessons/{name}.py").read_text(), name
    assert "set_to_none" not in (clone / "lessons/04_ddp_torchrun.py").read_text()


def test_once_more_changes_nothing(clone):
    line = "@record  # record puts the first failed process's traceback into torchrun's report"
    change(clone / "lessons/06_multinode.py", line, f"{line}, too")
    assert carry(clone, "06").stdout == "lessons/06a_any_step.py follows lessons/06_multinode.py\n"
    before = (clone / "lessons/06a_any_step.py").read_text()
    assert carry(clone, "06").stdout == ""
    assert (clone / "lessons/06a_any_step.py").read_text() == before
    unchanged = "error: lessons/02_data_parallel.py has not changed since the last commit\n"
    assert carry(clone, "02").stderr == unchanged


def test_an_unknown_lesson_is_one_line(clone):
    assert carry(clone, "99").stderr == (
        "error: there is no lesson '99': name a lesson by its number, such as LESSON=03\n"
    )
