"""Lesson 06's promises: its commands, really given to two launchers, and a refusal without a shared disk."""

import os
import re
import shlex
import signal
import sys
from pathlib import Path

import pytest

from tests.helpers.lines import check_what_it_printed, column
from tools import launcher, lessons
from tools.testbed.processes import alive, free_port

STEM = "06_multinode"
SMALL = ("--train-size", 480, "--test-size", 20, "--batch-size", 24)
CONF = "join_timeout=60,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


def documented(port, *options):
    """The command of the docstring for two real machines, on this one."""
    text = lessons.get(STEM).path.read_text().split('"""')[1].replace("\\\n", " ")
    (line,) = re.findall(r"^ +(torchrun .*)$", text, re.M)
    assert "--rdzv-endpoint HOST:29400 " in line
    line = line.replace("HOST:29400", f"localhost:{port}").removesuffix("--out FOLDER_ON_A_SHARED_DISK")
    words = shlex.split(line)
    words[0] = str(Path(sys.executable).parent / "torchrun")
    words[words.index(f"lessons/{STEM}.py")] = lessons.get(STEM).path
    return [*words, *options]


def start_both(start, words, out, environment=None):
    """Two launchers, each in a folder of its own. The first one has the store, whoever comes first."""
    both = []
    for number in (0, 1):
        options = ["--rdzv-conf", f"{CONF},is_host={1 - number}", *words[1:], "--out", out]
        words_of_one = [words[0], *options]
        both.append(start(STEM, words=words_of_one, environment=environment, folder=f"machine {number}"))
    return both


@pytest.mark.long
def test_the_command_for_two_machines_has_lesson_01s_curve(start, tmp_path, reference):
    sizes = (*SMALL, "--epochs", 2)
    shared = tmp_path / "shared"
    both = start_both(start, documented(free_port(), *sizes), shared)
    first, second = [one.finish() for one in both]
    assert first.code == second.code == 0, first.stderr + second.stderr
    curve = launcher.read_curve(shared, STEM)
    assert launcher.difference(curve, reference(*sizes)) == ""
    assert set(column(curve, "world_size")) == {4}
    check_what_it_printed(first.stdout + second.stdout, curve)
    names = {f"{STEM}.jsonl", f"{STEM}.pt", f"{STEM}.snapshot", "ticket"}
    assert set(os.listdir(shared)) == names


@pytest.mark.night
def test_elastic_it_goes_on_with_one_machine(start, tmp_path, reference):
    """A launcher and its processes are killed: the other one resumes after the last epoch, alone."""
    sizes = ("--train-size", 4800, "--test-size", 60)
    words, shared = documented(free_port(), *sizes), tmp_path / "shared"
    at = words.index("--nnodes")
    words[at : at + 2] = ["--nnodes", "1:2", "--max-restarts", 3]
    both = start_both(start, words, shared, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    curve = shared / f"{STEM}.jsonl"
    both[0].wait_for(lambda: curve.exists() and len(curve.read_text().splitlines()) > 2)
    for pid, _ in alive(both[1].mark):
        os.kill(pid, signal.SIGKILL)
    result = both[0].finish()
    assert result.code == 0, result.stderr
    assert result.stdout.count("resumed after epoch ") == 1
    rows = launcher.read_curve(shared, STEM)
    assert launcher.difference(rows, reference(*sizes)) == ""
    assert (rows[0]["world_size"], rows[-1]["world_size"]) == (4, 2)


def test_a_disk_that_is_not_shared_is_refused(start):
    """The folder that --out names is on each machine's own disk. Who does not see rank 0's file says so."""
    both = start_both(start, documented(free_port(), *SMALL, "--epochs", 2), "out")
    said = []
    for one in both:
        result = one.finish()
        assert result.code != 0
        assert result.stdout == ""
        if "error: " in result.stderr:
            said.append(result.stderr)
    (said,) = said  # of the one without rank 0
    assert re.findall("^error: .*", said, re.M) == [
        "error: --out out is not on a shared disk; 06b has --own-disks"
    ]
    assert not re.search(r'File ".*/lessons/', said), "a stack trace through the lesson"
