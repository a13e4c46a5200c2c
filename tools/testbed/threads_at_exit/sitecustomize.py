"""Python reads this before a test's lesson, and calls `write_what_is_left` when the lesson has ended.

A worker thread of gloo that is left then may free a tensor while Python ends, and abort the process. (Gloo's
other thread, gloo_tcp_loop, only moves bytes: it holds no tensors and never needs Python's lock.)

Only Linux tells a process what its threads are called; elsewhere, only a process group is seen.
"""

import atexit
import contextlib
import os
import sys
from pathlib import Path


def names_of_threads():
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended since: a group that is taken down ends its threads
            names.append(path.read_text().strip())
    return names


def write_what_is_left():
    left = ["a worker thread of gloo" for name in names_of_threads() if name == "pt_gloo_runloop"]
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        left.append("a process group")
    Path(os.environ["SEEN"], str(os.getpid())).write_text(", ".join(left))


if "SEEN" in os.environ and ("RANK" in os.environ or "--multiprocessing-fork" in sys.orig_argv):
    atexit.register(write_what_is_left)

if "PRETEND_GPUS" in os.environ:
    sys.path.append(str(Path(__file__).parents[1] / "simulated_gpus"))
    import pretend  # noqa: F401
