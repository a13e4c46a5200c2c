"""lessons/ddp.py fits on a screen and needs no other file: it runs, and has one curve."""

import re
import shutil

import pytest

from tools import launcher, lessons

LESSON = "04_ddp_torchrun"  # its command starts the program too


PROGRAM = lessons.ROOT / "lessons/ddp.py"


def command(processes, path):
    """torchrun without the lesson, and then the program."""
    kept = []
    for word in map(str, launcher.command(LESSON, processes)[0]):
        if word.endswith(f"{LESSON}.py"):
            break
        kept.append(word)
    return [*kept, str(path)]


def losses(stdout):
    return [float(loss) for loss in re.findall(r"^epoch \d \| loss ([\d.]+)$", stdout, re.M)]


def test_it_fits_on_a_screen_and_needs_none_of_our_files():
    text = PROGRAM.read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 28
    assert max(map(len, text.splitlines())) < 100
    imported = re.findall(r"^(?:import|from) (\w+)", text, re.M)
    assert set(imported) == {"torch"}


@pytest.fixture
def path(tmp_path):
    return shutil.copy(PROGRAM, tmp_path)  # it has none of our files beside it


@pytest.mark.long
def test_it_runs_by_the_command_on_the_page_and_leaves_no_thread(start, path):
    """What gloo leaves behind is looked at by the fixture: see conftest.py."""
    result = start(None, words=command(2, path)).finish()
    assert result.code == 0, result.stderr
    found = losses(result.stdout)
    assert len(found) == 5 and found == sorted(found, reverse=True) and found[-1] < 0.1 * found[0]


def test_the_losses_are_the_same_on_any_number_of_processes(forked, path):
    found = {}
    for processes in (1, 2, 3, 4):
        result = forked(command(processes, path), folder=str(processes))
        assert result.code == 0, result.stderr
        found[processes] = losses(result.stdout)
    assert len(found[1]) == 5
    for processes in (2, 3, 4):
        assert found[processes] == pytest.approx(found[1], rel=1e-4, abs=2e-6), processes
