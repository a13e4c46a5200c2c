"""How processes end: refused with one line, told to stop, or all together when one of them fails."""

import functools
import gc
import os
import signal
import sys
import threading
import time
import traceback

import torch.distributed as dist
import torch.distributed.nn  # noqa: F401, before there is a group: its functions keep one that they find
from torch.distributed.elastic.multiprocessing.errors import record

told_to_stop = threading.Event()


def refuse(message):
    """End this process, non-zero, with one line from rank 0."""
    if int(os.environ.get("RANK", 0)) != 0:
        # torchrun ends all processes as soon as one has ended: the others leave rank 0 the time to speak.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(10)
        os._exit(2)
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":  # torchrun restarts even a hopeless run
        say(f"error: {' '.join(str(message).split())}")
    sys.exit(2)


def say(message):
    print(message, file=sys.stderr, flush=True)


def end_with_parent():
    """End this process when the one that started it is gone: nobody else would. (Lessons 05 and later.)"""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def listen_for_the_end():
    """From now on SIGTERM and Ctrl-C do not end this process. The lesson asks for them between two steps."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: told_to_stop.set())


def leave(status):
    """End with a status that a scheduler can act on."""
    if status and os.environ["RANK"] == "0":
        say(f"told to stop: saved, and ending with status {status}. Started again, the run goes on from here")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from srun, as soon as another process has ended with 75
    sys.exit(status)


def release_group():
    """Drop what refers to the process group, so that destroy_process_group() ends gloo's threads.

    A thread ends with the last reference to its group. One that is left may free a tensor while Python ends:
    it waits for Python's lock, which nobody is given any more, and the process aborts with its work done.
    """
    for thing in gc.get_objects():
        if type(thing) is dist.DeviceMesh:  # DTensor's caches keep meshes, and those their groups
            getattr(thing, "_pg_registry", {}).clear()
    gc.collect()  # a DDP object refers to its group, and in a circle to itself


def crash_once(now):
    """Die as if the machine had failed: the last process of all, and only in torchrun's first attempt."""
    is_last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    if now and is_last and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)


def let_the_first_speak(function):
    """Show the error of this process, and hand it to torchrun for its report. But if it fails only because
    another one is gone, leave the console to that one."""

    def wait_for_the_first(*arguments):
        try:
            return function(*arguments)
        except Exception as error:
            if isinstance(error, dist.DistError) or "gloo" in str(error):
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_DFL)
                if told_to_stop.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)  # torchrun ends this process within that time, if it finds another one dead
            raise

    @functools.wraps(function)
    def speak(*arguments):
        try:
            return record(wait_for_the_first)(*arguments)
        except Exception:
            traceback.print_exc()
            os._exit(1)  # on the way out, the process group could abort with an error of its own

    return speak
