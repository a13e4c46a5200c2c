"""What tools/testbed/processes.py and the tools beside it say of processes that wait, live or have ended."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tools import launcher
from tools.makers import chaos
from tools.testbed import processes

# It starts a process, which also sleeps.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print(child.pid, flush=True)
time.sleep(100)
"""


@pytest.fixture
def family():
    """A process with the mark `family-of-a-test` in its environment, and the number of its child."""
    environment = os.environ | {"MARK": "family-of-a-test"}
    options = {"env": environment, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", PARENT], **options) as parent:
        child = int(parent.stdout.readline())
        yield parent, child
        for pid in (child, parent.pid):
            if processes.is_alive(pid):
                os.kill(pid, 9)


def test_children_are_those_that_a_process_has_started_itself(family):
    parent, child = family
    assert processes.children(parent.pid) == [child]
    ours = processes.children(os.getpid())
    assert parent.pid in ours and child not in ours


def test_a_mark_and_a_session_lead_to_grandchildren_too(family):
    parent, child = family
    expected = sorted([parent.pid, child])
    assert sorted(pid for pid, _ in processes.alive("MARK=family-of-a-test\0")) == expected
    assert sorted(processes.session(parent.pid)) == expected


def test_a_zombie_is_not_alive(family):
    """The parent has not asked for its child's status, nor we for the parent's."""
    parent, child = family
    for pid, its_parent in ((child, parent.pid), (parent.pid, os.getpid())):
        os.kill(pid, 9)
        processes.wait_for(lambda pid=pid: not processes.is_alive(pid), 20)
        os.kill(pid, 0)  # it still has an entry in the table of processes
        assert pid not in processes.children(its_parent)
    assert processes.session(parent.pid) == []


def test_waiting_returns_what_was_found_and_ends_with_an_error_after_its_limit():
    looks = iter([[], [], ["found"]])
    assert processes.wait_for(lambda: next(looks)) == ["found"]
    with pytest.raises(AssertionError, match="waited in vain"):
        processes.wait_for(lambda: False, 0.1)


def test_the_kill_matrix_says_for_what_it_waited_in_vain():
    run = SimpleNamespace(ended=lambda: False, log=lambda: "the log")
    assert chaos.wait_for(run, lambda: True, "a step") is True
    with pytest.raises(AssertionError, match=r"waited 0.1 seconds for a step\nthe log"):
        chaos.wait_for(run, lambda: False, "a step", 0.1)
    run.ended = lambda: True
    assert chaos.wait_for(run, lambda: False, "a step") is False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the server that forks")
def test_nothing_but_rank_0_gets_the_port_that_torchrun_has_chosen(forks, tmp_path):
    """On CI, two tests met there once."""
    script = launcher.ROOT / "tests/probes/port_of_the_store.py"
    words, environment = launcher.command("05_snapshots", 2, script=script)
    result = forks.finish(words, tmp_path, environment)
    assert (result.code, result.stdout, result.stderr) == (0, "the port is reserved\n", "")
