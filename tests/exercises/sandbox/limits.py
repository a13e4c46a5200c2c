"""What a worker may still do after it has given up the rest. Linux; elsewhere only the limits hold.

Landlock is a promise to the kernel that a process makes about itself and cannot take back: here, to read
nothing but Python and the system's folders (READABLE), and to write nowhere but in its own folder. It needs
no special user.
"""

import contextlib
import ctypes
import os
import resource
import struct
import sys
import time

import linux_proc

NO_NEW_PRIVS, DUMPABLE, SUBREAPER, NO_LARGE_PAGES = 38, 4, 36, 41
READ, ALL_OF_FIRST = 0b1101, (1 << 13) - 1
# Python runs on what is there, and torch asks the kernel about the processors. Nothing of ours may be there.
READABLE = {sys.prefix, sys.base_prefix, "/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/sys", "/dev"}
LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option, value):
    if sys.platform == "linux":
        LIBC.prctl(option, value, 0, 0, 0)


def landlock_version():
    """0 where there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, LIBC.syscall(444, None, ctypes.c_size_t(0), 1))


def landlock(readable, writable):
    """Nothing but these folders from now on, and no signal to anybody outside."""
    version = landlock_version()
    if not version:
        return
    handled = ALL_OF_FIRST | (1 << 13 if version >= 2 else 0) | (1 << 14 if version >= 3 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("<QQQ", handled, 0, 3)[:size]
    rules = LIBC.syscall(444, attributes, ctypes.c_size_t(size), 0)
    if rules < 0:
        return
    for paths, access in ((readable, READ), (writable, handled)):
        for path in paths:
            with contextlib.suppress(OSError):
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
                allowed = access if os.path.isdir(path) else access & (0b111 | 1 << 14)
                rule = struct.pack("<Qi", allowed, place)
                LIBC.syscall(445, rules, 1, rule, 0)
                os.close(place)
    prctl(NO_NEW_PRIVS, 1)
    if LIBC.syscall(446, rules, 0):
        raise OSError(ctypes.get_errno(), "landlock")
    os.close(rules)


def limit(name, most):
    kind = getattr(resource, name, None)
    if kind is None:
        return
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    # At the soft limit of processor time comes SIGXCPU, which says what happened; at the hard one SIGKILL.
    soft = most - 2 if name == "RLIMIT_CPU" else most
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (soft, most))


def give_up(limits, uid, writable):
    """Limits, another user id if there is one, and Landlock."""
    # Or the memory of a rank would be counted in steps of two megabytes.
    prctl(NO_LARGE_PAGES, 1)
    limit("RLIMIT_CORE", 0)
    # A rank that was not forked has used seconds for the import of torch.
    limit("RLIMIT_CPU", limits["cpu_seconds"] + 2 + round(time.process_time()))
    limit("RLIMIT_FSIZE", limits["file_bytes"])
    limit("RLIMIT_NOFILE", 256)
    limit("RLIMIT_MSGQUEUE", 0)  # a POSIX queue outlives whoever made it, and the next run would find it
    if sys.platform == "linux":
        limit("RLIMIT_AS", linux_proc.address_space() + limits["memory_bytes"])
    if uid is not None:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    prctl(NO_NEW_PRIVS, 1)
    if sys.platform == "linux":
        # Counted for the whole user: on a laptop, with all that its owner runs. Elsewhere nobody says how
        # many these are, and a limit below them would refuse every process.
        limit("RLIMIT_NPROC", limits["processes"] + linux_proc.threads_of(os.getuid()))
        landlock(READABLE, writable)
        # Or the counters of this process could not be read from outside.
        prctl(DUMPABLE, 1)
