"""The scripts of the bug hunt, started and stopped by hand as its hints say."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from tools.lessons import ROOT

START = ROOT / "lessons" / "exercises" / "04a_bug_hunt" / "start.py"


@pytest.mark.long
def test_ctrl_c_says_where_each_process_is(tmp_path):
    """Bug 3: rank 1 is done, and rank 0 waits for it for ever. Nothing is left."""
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    process = subprocess.Popen([sys.executable, START, "bug_03"], cwd=tmp_path, **more)
    try:
        printed = process.stdout.readline()
        assert printed.startswith("[rank 1] is done. The sum of its parameters is ")
        os.killpg(process.pid, signal.SIGINT)
        lines = process.communicate(timeout=60)[0].splitlines()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    # On its way to the collective, or in it.
    assert re.fullmatch(r"\[rank 0\] was in line \d+ of bug_03.py, in (train|measure)", lines[0])
    assert lines[1:] == ["[rank 1] was not, or not now, in bug_03.py"]
    # Python's own helper for semaphores ends when it sees that the first process has ended.
    deadline = time.monotonic() + 30
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_device_that_is_not_there(tmp_path):
    """Bug 9: the second machine's process has no such device. All processes end then."""
    words = [sys.executable, START, "bug_09", "--machines", "2"]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "IndexError: list index out of range" in run.stderr
    assert "[rank 0] puts" in run.stdout
