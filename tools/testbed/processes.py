"""The processes of a run: which are alive, and which train."""

import contextlib
import itertools
import os
import time
from pathlib import Path
from typing import NamedTuple

PORTS = itertools.count()


def free_port():
    """One that the system does not hand out by itself, and no other test process takes."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    return 20000 + 1000 * (worker % 10) + (os.getpid() + next(PORTS)) % 1000


class Stat(NamedTuple):
    """What the kernel says of a process; `ticks` is its time on a processor, in hundredths of a second."""

    pid: int
    state: str
    parent: int
    session: int
    ticks: int


def stat(pid):
    state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Stat(int(pid), state, int(fields[0]), int(fields[2]), int(fields[10]) + int(fields[11]))


def living():
    """All processes that have not ended. A zombie has: it only waits to be asked for its status."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended since
            if (found := stat(folder.name)).state not in "ZX":
                yield found


def alive(mark):
    """The processes that were started with this mark in their environment, and their children."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if words.strip():  # a zombie has none
                    found.append((int(folder.name), words.strip()))
    return found


def wait_for(condition, seconds=120):
    """Four processes that start beside other tests take most of a minute."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found


def trained(run, stem):
    """The processes of a run that train, once its first epoch is over."""
    run.wait_for(lambda: (run.out / f"{stem}.jsonl").exists())
    launchers = ("bin/torchrun", "resource_tracker")
    return [
        pid
        for pid, words in alive(run.mark)
        if pid != run.process.pid and not any(word in words for word in launchers)
    ]
