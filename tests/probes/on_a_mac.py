"""Print what Python has here, as JSON: tests/tools/test_mac.py starts it in the surroundings of a Mac."""

import errno
import json
import multiprocessing
import os
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


found = {
    "platform": sys.platform,
    "start method": multiprocessing.get_start_method(),
    "missing": [hasattr(os, "sched_getaffinity"), hasattr(signal, "SIGRTMIN"), hasattr(os, "pipe2")],
    "seqpacket": error_of(socket.socketpair, socket.AF_UNIX, socket.SOCK_SEQPACKET) or "",
    "stream": error_of(socket.socketpair) or "",
    "name": error_of(socket.gethostbyname, socket.gethostname()) is not None,
    "interfaces": [name for _, name in socket.if_nameindex()],
    "proc": os.path.exists("/proc/self/status"),
    "temporary": len(tempfile.gettempdir()),
    "programs": [shutil.which(name) for name in ("timeout", "getent", "unshare", "setsid", "bwrap")],
    "sed": os.system("echo a | sed -i s/a/b/ 2>/dev/null") != 0,
    "psutil": psutil.Process(os.getppid()).pid == os.getppid() and psutil.virtual_memory().available > 0,
}
print(json.dumps(found))
