"""Start a program in an empty folder, read what it says, and leave nothing of it behind."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from tools.testbed.processes import alive

MARK = f"makers-{uuid.uuid4().hex}"  # in the environment of every process that is started here
STARTED = []  # processes that may still run
LIMIT = 120  # seconds


@contextlib.contextmanager
def empty_folder():
    """A folder for one run. At its end, all processes that it started are ended, including torchrun's ranks
    and the processes that ran beside a failed one. Otherwise they would disturb the next measurement."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield Path(folder)
        finally:
            deadline = time.monotonic() + 10
            left = alive(MARK)
            while left and time.monotonic() < deadline:
                for pid, _ in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)
                left = alive(MARK)
            while STARTED:
                with STARTED.pop() as process:
                    process.kill()


def start(words, folder, environment):
    folder.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        list(map(str, words)),
        cwd=folder,
        env=environment | {"MARK_OF_MAKERS": MARK},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    STARTED.append(process)
    return process


def finish(process, limit=LIMIT):
    """What it printed. One that fails, or takes too long, raises SystemExit with its last words."""
    try:
        stdout, stderr = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        sys.exit(f"error: {' '.join(process.args)} still ran after {limit} seconds")
    if process.returncode:
        sys.exit(f"error: {' '.join(process.args)} failed:\n{stderr}")
    return stdout, stderr
