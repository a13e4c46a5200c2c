"""The ways to meet that the page on launching lists: each is run."""

import re
import sys

import pytest

import launcher
import lessons

FOLDER = launcher.ROOT / "lessons/launch"
SCRIPT = FOLDER / "ways_to_meet.py"
WAYS = ("env", "tcp", "file", "store")


@pytest.mark.quick("tcp", "file", "store")
@pytest.mark.night
@pytest.mark.parametrize("way", WAYS)
def test_two_processes_meet(forked, way):
    result = forked([sys.executable, SCRIPT, way])
    assert (result.code, result.stdout) == (0, f"{way}: 2 processes have met\n"), result.stderr


@pytest.mark.long
def test_the_command_of_the_docstring(start):
    result = start("03_ddp_spawn", words=[sys.executable, SCRIPT, "env"]).finish()
    assert (result.code, result.stdout) == (0, "env: 2 processes have met\n"), result.stderr


def test_the_table_has_a_row_for_each_way():
    """And torchrun's two, which tests of hosts run: elastic in test_hosts.py, static in test_launch.py."""
    table = (FOLDER / "README.md").read_text().partition("## How processes meet")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w :./-]+?)[` ]", table, re.M)
    assert rows == ["torchrun", "torchrun", *WAYS]
    assert "torchrun --nnodes" in table and "--node-rank" in table


def test_a_process_takes_its_gpu_before_it_makes_the_group():
    """Or all processes of a machine would take GPU 0. (workload.pick_device calls set_device_index.)"""
    texts = [lesson.path.read_text() for lesson in lessons.LESSONS]
    texts = [text for text in texts if "dist.init_process_group(" in text]
    assert len(texts) > len(lessons.LESSONS) // 2
    for text in texts:
        assert 0 < text.find("workload.pick_device(") < text.index("dist.init_process_group("), text[:80]
