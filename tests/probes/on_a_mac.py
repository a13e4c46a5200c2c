"""Print what Python has here, as JSON: tests/tools/test_mac.py starts it in the surroundings of a Mac."""

import errno
import fcntl
import json
import multiprocessing
import os
import resource
import select
import shlex
import shutil
import signal
import socket
import sys
import tempfile

import psutil


def error_of(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
    return None


def refuses_sed():
    with tempfile.NamedTemporaryFile() as file:  # without a file, GNU's sed -i fails, too
        return os.system(f"sed -i s/a/b/ {shlex.quote(file.name)} 2>/dev/null") != 0


def names_of_linux():
    """What lacks.py takes away, and is here nevertheless."""
    names = {
        os: """sched_getaffinity sched_setaffinity memfd_create pidfd_open eventfd unshare setns splice
            copy_file_range pipe2 fdatasync posix_fallocate posix_fadvise setresuid getresuid setresgid
            getresgid""",
        socket: "SOCK_CLOEXEC SOCK_NONBLOCK TCP_INFO SO_PEERCRED SO_PASSCRED",
        signal: """SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT SIGPOLL SIGCLD sigtimedwait sigwaitinfo
            pidfd_send_signal""",
        select: "epoll EPOLLIN",
        fcntl: "F_SETPIPE_SZ F_GETPIPE_SZ F_ADD_SEALS F_GET_SEALS",
        resource: "prlimit RUSAGE_THREAD RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_MSGQUEUE",
        psutil.Process: "cpu_affinity ionice rlimit io_counters memory_maps cpu_num",
    }
    here = []
    for owner, text in names.items():
        for name in text.split():
            if hasattr(owner, name):
                here.append(f"{owner.__name__}.{name}")
    return here


found = {
    "platform": sys.platform,
    "start method": multiprocessing.get_start_method(),
    "of linux": names_of_linux(),
    "seqpacket": error_of(socket.socketpair, socket.AF_UNIX, socket.SOCK_SEQPACKET) or "",
    "stream": error_of(socket.socketpair) or "",
    "name": error_of(socket.gethostbyname, socket.gethostname()) is not None,
    "interfaces": [name for _, name in socket.if_nameindex()],
    "proc": os.path.exists("/proc/self/status"),
    "temporary": len(tempfile.gettempdir()),
    "programs": [shutil.which(name) for name in ("timeout", "getent", "unshare", "setsid", "bwrap")],
    "sed": refuses_sed(),
    "psutil": psutil.Process(os.getppid()).pid == os.getppid() and psutil.virtual_memory().available > 0,
}
print(json.dumps(found))
