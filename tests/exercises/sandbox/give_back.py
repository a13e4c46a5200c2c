"""What a body does so that memory can be looked at."""

import contextlib
import ctypes
import gc
import time


def libc(name, *words):
    """A call of the C library, where it has it."""
    with contextlib.suppress(OSError, AttributeError):
        getattr(ctypes.CDLL(None), name)(*words)


def own_pages():
    """Give every large block pages of its own (M_MMAP_THRESHOLD), which go back when it is freed.

    By itself the C library raises the threshold, and a thread's heap keeps what gloo had in it.
    """
    libc("mallopt", -3, 1 << 17)


def settle():
    """Hand memory that is free back to the system, or it would be counted as used."""
    gc.collect()
    time.sleep(0.005)
    libc("malloc_trim", 0)
