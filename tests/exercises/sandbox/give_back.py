"""What a body does so that memory can be looked at."""

import contextlib
import ctypes
import gc
import os
import threading
import time
from pathlib import Path


def libc(name, *words):
    """A call of the C library, where it has it."""
    with contextlib.suppress(OSError, AttributeError):
        getattr(ctypes.CDLL(None), name)(*words)


def own_pages():
    """Give every large block pages of its own (M_MMAP_THRESHOLD), which go back when it is freed.

    By itself the C library raises the threshold, and a thread's heap keeps what gloo had in it.
    """
    libc("mallopt", -3, 1 << 17)


def is_at_work(thread):
    """Whether a thread has something to do, which it may not be doing if the machine is busy."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] == "R"
    return False  # it has ended


def free_memory():
    """Hand memory that is free back to the system, or it would be counted as used.

    A call of torch.distributed may return before gloo's thread has let go of the tensors that it sent. For
    that, the thread needs Python's lock, which this one gives up while it sleeps, and then a core.
    """
    gc.collect()
    threads = Path("/proc/self/task")  # Linux has it
    for _ in range(200):
        time.sleep(0.005)
        names = os.listdir(threads) if threads.exists() else []
        if not any(is_at_work(name) for name in names if int(name) != threading.get_native_id()):
            break
    libc("malloc_trim", 0)
