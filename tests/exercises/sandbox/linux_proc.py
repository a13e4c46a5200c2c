"""What only Linux tells of processes, and more exactly than psutil does: it is asked first where it is
there."""

import contextlib
import os
import platform
import resource
from pathlib import Path

# Makes the peak of a process's memory begin anew.
CLEAR = "/proc/self/clear_refs"
IS_HERE = os.path.exists(CLEAR)
CLOSED_BY_BOTH = "06"  # TIME_WAIT, of a connection that is over
CLOCK_NANOSLEEP = {"x86_64": "230 ", "aarch64": "115 "}.get(platform.machine(), "unknown")


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:  # the process has ended
        return ""


def memory_of(pid):
    """Bytes of a process, shared ones included: data could be put there so as not to count."""
    found = 0
    for line in read(f"/proc/{pid}/status").splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            found += int(line.split()[1]) << 10
    return found


def peak():
    """The most that this process has ever used since its peak began anew, with files that it has mapped."""
    for line in read("/proc/self/status").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    raise OSError("the kernel does not say how much memory this process has used")


def life(pid):
    """What a process does: ticks of processor time so far, with those of its children that have ended, those
    of gloo's own thread, whether all threads wait, whether gloo's does, whether it sleeps and so will go on,
    and for how many seconds its threads have waited for a core. None if it has ended."""
    found = {"ticks": 0, "gloo_ticks": 0, "waits": True, "gloo_waits": True, "delay": 0.0}
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return None
    for task in tasks:
        name, _, rest = read(f"/proc/{pid}/task/{task}/stat").rpartition(")")
        facts = rest.split()
        if not facts:
            continue
        is_gloo = name.endswith("(gloo_tcp_loop")
        found["gloo_ticks" if is_gloo else "ticks"] += int(facts[11]) + int(facts[12])
        if facts[0] not in "SZX":
            found["gloo_waits" if is_gloo else "waits"] = False
        delay = read(f"/proc/{pid}/task/{task}/schedstat").split()
        if len(delay) > 1:
            found["delay"] += int(delay[1]) / 1e9
    rest = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if rest:
        found["ticks"] += int(rest[13]) + int(rest[14])  # of its children that have ended
    found["sleeps"] = read(f"/proc/{pid}/syscall").startswith(CLOCK_NANOSLEEP)
    return found


def sockets():
    """How many TCP sockets there are in this network, and how many bytes lie in them: memory of the kernel,
    which counts for no process."""
    count, lying = 0, 0
    for name in ("tcp", "tcp6"):
        for line in read(f"/proc/self/net/{name}").splitlines()[1:]:
            facts = line.split()
            if facts[3] == CLOSED_BY_BOTH:
                continue
            count += 1
            sent, _, received = facts[4].partition(":")
            lying += int(sent, 16) + int(received, 16)
    return count, lying


def is_at_work(thread):
    """Whether a thread of this process has something to do. On a busy machine, it may have to wait for it."""
    rest = read(f"/proc/self/task/{thread}/stat").rpartition(")")[2].split()
    return bool(rest) and rest[0] == "R"


def own_threads():
    return [int(name) for name in os.listdir("/proc/self/task")]


def address_space():
    """Bytes of address space this process has now. torch alone reserves gigabytes that it never touches."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def threads_of(uid):
    """Threads of a user on this machine: RLIMIT_NPROC counts them all."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count
