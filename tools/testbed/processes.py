"""The processes of a run: which are alive, and which train. psutil answers, on Linux and on macOS."""

import contextlib
import itertools
import os
import time

import psutil

PORTS = itertools.count()


def free_port():
    """One that the system does not hand out by itself, and no other test process takes."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    return 20000 + 1000 * (worker % 10) + (os.getpid() + next(PORTS)) % 1000


def is_alive(pid):
    """A zombie is not: it only waits to be asked for its status."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def children(pid):
    """The living processes that this one has started."""
    try:
        started = psutil.Process(pid).children()
    except psutil.NoSuchProcess:
        return []
    return sorted(process.pid for process in started if is_alive(process.pid))


def session(leader):
    """The living processes of a session."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):  # it has ended since, or is another user's
            if os.getsid(pid) == leader and is_alive(pid):
                found.append(pid)
    return found


def cpu_seconds(pid):
    """How long a process has computed."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def alive(mark):
    """The processes that were started with this mark in their environment, and their children."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended since, or is another user's
            # As the kernel keeps it, with a zero byte at each end: SLURM's job 1 is not job 10.
            environment = "".join(f"{name}={value}\0" for name, value in process.environ().items())
            if mark in environment and (words := process.cmdline()):
                found.append((process.pid, " ".join(words)))
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
    found = []
    for pid, words in alive(run.mark):
        is_launcher = pid == run.process.pid or "bin/torchrun" in words or "resource_tracker" in words
        if not is_launcher:
            found.append(pid)
    return found
