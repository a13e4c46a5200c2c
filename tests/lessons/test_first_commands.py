"""The first hour of a reader: the first command of README and of each lesson's page, in the order of the
table of lessons, in one clone, twice, and nothing is removed in between. Each does what its page says.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.changed_lessons import copy_scripts
from tools import lessons
from tools.lessons import ROOT


def commands_of(path):
    """The commands of a page, as its reader would copy them."""
    text = re.sub(r"^> ?", "", path.read_text(), flags=re.M)
    return re.findall(r"```sh\n(.*?)```", text, re.S)


def first_command(lesson):
    command = commands_of(lesson.page)[0].strip()
    sizes = f"{lesson.small} --epochs 4"
    return f"{command} {sizes}"


def readme_kill():
    """README's command that kills a process."""
    found = [command for command in commands_of(ROOT / "README.md") if "--crash-at" in command]
    assert len(found) == 1
    return f"{found[0].strip()} {lessons.get('05_snapshots').small} --epochs 4"


def type_it(command, clone, code=0):
    """Run a command in the clone, as in the terminal of somebody who has activated the environment."""
    environment = dict(os.environ)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment["OMP_NUM_THREADS"] = "1"
    environment["CUDA_VISIBLE_DEVICES"] = "-1"
    environment["TMPDIR"] = str(clone / "tmp")
    words = ["bash", "-c", command]
    result = subprocess.run(
        words,
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert result.returncode == code, f"{command}\n{result.stdout}"
    return result.stdout


@pytest.fixture
def clone(tmp_path):
    copy_scripts(tmp_path)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def make_run(clone):
    sizes = "--epochs 4 --train-size 240 --batch-size 24 --test-size 60"
    table = type_it(f"python -m tools.run_lessons {sizes}", clone).partition("same curve")[2]
    assert table.count(" yes") == len(lessons.LADDER), table


def look_again(lesson, clone):
    """The page's command, after the same command has run to its end."""
    if lesson.number == "14":
        found = type_it(first_command(lesson), clone, code=2)
        assert "error: the search in out/14_tuning.journal has ended: to start a new one" in found
        return
    found = type_it(first_command(lesson), clone)
    says_what_to_do = "nothing is left to train: to start over, remove out/" in found
    assert says_what_to_do == lesson.keeps_snapshot, f"{lesson.stem}\n{found}"


WITH_SNAPSHOTS = [lesson for lesson in lessons.LESSONS if lesson.keeps_snapshot and lesson.number < "07"]


@pytest.mark.long("05 to 06b")
@pytest.mark.night
@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(WITH_SNAPSHOTS, id="05 to 06b"),
        pytest.param(lessons.LESSONS, id="all"),
    ],
)
def test_the_first_commands_of_pages_in_their_order_twice(clone, chosen):
    make_run(clone)
    assert not list(clone.glob("out/*.*")), "make run writes where commands of pages look"

    killed = type_it(readme_kill(), clone)
    assert "failed (exitcode: -9)" in killed and "resumed after epoch 2" in killed

    there = [lesson for lesson in chosen if not lesson.is_missing()]
    for lesson in there:
        first = type_it(first_command(lesson), clone)
        assert "nothing is left to train" not in first, lesson.stem
        if "--crash-at" in first_command(lesson):
            assert "failed (exitcode: -9)" in first and "resumed" in first, lesson.stem

    make_run(clone)  # again, beside what the pages' commands have left
    for lesson in there:
        look_again(lesson, clone)

    # What the line names is what has to go, so that the page's command works as it did at first.
    lesson = lessons.get("05_snapshots")
    finished = type_it(first_command(lesson), clone)
    for path in clone.glob(re.search(r"to start over, remove (\S+)", finished)[1]):
        path.unlink()
    assert "resumed after epoch 2" in type_it(first_command(lesson), clone)
