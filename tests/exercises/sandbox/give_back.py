"""What a body does so that memory can be looked at."""

import contextlib
import ctypes
import gc
import threading
import time

import linux_proc


def libc(name, *words):
    """A call of the C library, where it has it."""
    with contextlib.suppress(OSError, AttributeError):
        getattr(ctypes.CDLL(None), name)(*words)


def own_pages():
    """Give every large block pages of its own (M_MMAP_THRESHOLD), which go back when it is freed.

    By itself the C library raises the threshold, and a thread's heap keeps what gloo had in it.
    """
    libc("mallopt", -3, 1 << 17)


def free_memory():
    """Hand memory that is free back to the system, or it would be counted as used.

    A call of torch.distributed may return before gloo's thread has let go of the tensors that it sent. For
    that, the thread needs Python's lock, which this one gives up while it sleeps, and then a core.
    """
    gc.collect()
    for _ in range(200):
        time.sleep(0.005)
        if not linux_proc.IS_HERE:
            break
        others = [thread for thread in linux_proc.own_threads() if thread != threading.get_native_id()]
        if not any(linux_proc.is_at_work(thread) for thread in others):
            break
    libc("malloc_trim", 0)
