"""How processes end: refused in one line, told to stop, or all together when one fails."""

import atexit
import functools
import gc
import os
import signal
import sys
import threading
import time
import traceback
from types import FunctionType

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

told_to_stop = threading.Event()


def refuse(message, again=False):
    """End this process, non-zero. Each machine says why: the reason may be its own disk."""
    if int(os.environ.get("LOCAL_RANK", 0)) != 0:
        # torchrun ends all as soon as one has ended: leave local rank 0 the time to speak.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(10)
        os._exit(2)
    # torchrun restarts a hopeless run too.
    if again or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        say(f"error: {' '.join(str(message).split())}")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # While Python ends, another machine's failure could restart this process, and torchrun would not
        # count that on this machine: all would be said again.
        sys.stdout.flush()
        os._exit(2)
    sys.exit(2)


def say(message):
    print(message, file=sys.stderr, flush=True)


def end_with_parent():
    """End this process when the one that started it is gone: nobody else would."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def listen_for_the_end(limit=15):
    """SIGTERM and Ctrl-C end this process no longer: told_to_stop remembers them.

    Python calls `remember` between two of its own instructions. A process that waits in
    torch for one that is gone comes to no other, and would sit there until torchrun kills
    it, after 30 seconds. So a thread hears of the signal as well. It leaves a long step
    `limit` seconds to end.
    """

    def remember(number, frame):
        told_to_stop.set()

    def watch():
        while os.read(heard, 1)[0] not in (signal.SIGTERM, signal.SIGINT):
            pass  # a DataLoader's workers have a signal of their own, SIGCHLD
        if not told_to_stop.wait(limit):
            say(f"told to stop, but in the same step after {limit} seconds: ending unsaved")
            os._exit(1)

    heard, signals = os.pipe()
    os.set_blocking(signals, False)
    signal.set_wakeup_fd(signals)
    threading.Thread(target=watch, daemon=True).start()
    signal.signal(signal.SIGTERM, remember)
    signal.signal(signal.SIGINT, remember)


def leave(stopped):
    """End this process: with status 75, which a scheduler acts on, if told to stop."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from srun, when another has ended with 75
    if not stopped:
        sys.exit(0)
    if os.environ["RANK"] == "0":
        say("told to stop: saved, and ending with status 75. Started again, the run goes on from here")
    sys.exit(75)


def forget_group(function):
    """Functions of torch.distributed.nn have the group that was there at their import as a default."""
    defaults = function.__defaults__
    if any(isinstance(value, dist.ProcessGroup) for value in defaults):
        function.__defaults__ = tuple(
            None if isinstance(value, dist.ProcessGroup) else value for value in defaults
        )


@atexit.register
def release_group():
    """Drop what still refers to a process group, so that its threads end before Python does.

    A thread of gloo ends with the last reference to its group. A thread that is left may free a
    tensor while Python ends. It then waits for the GIL, which no thread can get any more, and the
    process aborts with its work done (https://github.com/pytorch/pytorch/issues/190489).
    """
    if dist.is_initialized() and dist.get_backend() == "gloo":  # an exception has ended the lesson
        sys.last_value = sys.last_traceback = None  # its frames refer to the model
        dist.destroy_process_group()
    for thing in gc.get_objects():
        if type(thing) is dist.DeviceMesh:  # DTensor's caches keep meshes, and those their groups
            getattr(thing, "_pg_registry", {}).clear()
        elif type(thing) is FunctionType and thing.__defaults__:
            forget_group(thing)
    gc.collect()  # a DDP object refers to its group, and in a circle to itself
    gc.freeze()  # or Python looks for garbage in all of torch as it ends, which takes half a second


def crash_once(now):
    """Die as if the machine had failed: the last process of all, and only in torchrun's first attempt."""
    is_last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    if now and is_last and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)


def let_the_first_speak(function):
    """Show the error of this process, and hand it to torchrun for its report. But if it fails only
    because another one is gone, leave the console to that one."""

    def wait_for_the_first(*arguments):
        try:
            return function(*arguments)
        except Exception as error:
            if isinstance(error, dist.DistError) or "gloo" in str(error):
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_DFL)
                if told_to_stop.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)  # in which torchrun ends this process, if it finds another one dead
            raise

    @functools.wraps(function)
    def speak(*arguments):
        try:
            return record(wait_for_the_first)(*arguments)
        except Exception:
            traceback.print_exc()
            os._exit(1)  # or else the process group could abort with an error of its own

    return speak
