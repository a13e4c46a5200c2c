"""The processes of a run: which are alive, and which train."""

import itertools
import os
import time
from pathlib import Path

PORTS = itertools.count()


def free_port():
    """One that the system does not hand out by itself, and no other test process takes."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    return 20000 + 1000 * (worker % 10) + (os.getpid() + next(PORTS)) % 1000


def alive(mark):
    """The processes that were started with this mark in their environment, and their children."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                words = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
                if words:  # a zombie has none: it only waits to be asked for its status
                    found.append((int(folder.name), words))
        except OSError:
            continue
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
