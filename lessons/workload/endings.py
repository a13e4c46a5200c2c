"""How processes end: with a one-line error, after a signal, or because another process
failed.
"""

import atexit
import functools
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import FunctionType

import torch.distributed as dist

# On a Mac, the next import warns that torchrun cannot redirect output, which no lesson asks for.
logging.getLogger("torch.distributed.elastic.multiprocessing.redirects").setLevel(logging.ERROR)
from torch.distributed.elastic.multiprocessing.errors import record  # noqa: E402

told_to_stop = threading.Event()


def refuse(message, again=False):
    """Print the error and end this process with status 2. On each machine, one process
    prints the error.
    """
    if int(os.environ.get("LOCAL_RANK", 0)) != 0:
        # torchrun ends all processes as soon as one ends, so let local rank 0 print first.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(10)
        os._exit(2)
    error = f"error: {' '.join(str(message).split())}"
    # torchrun also restarts a run that cannot work, so print the error only once.
    if again or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        say(error)
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        # torchrun ends with a report of some 40 lines. This makes the error its last line.
        details = {"py_callstack": error, "timestamp": str(int(time.time()))}
        report = {"message": {"message": error, "extraInfo": details}}
        Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(report))
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # Exit immediately. If another machine failed while Python is still shutting down, torchrun would
        # restart this process without counting the restart here, and the error would be printed again.
        sys.stdout.flush()
        os._exit(2)
    sys.exit(2)


def say(message):
    print(message, file=sys.stderr, flush=True)


def end_with_parent():
    """End this process when its parent is gone, because nothing else would end it."""
    parent = os.getppid()

    def watch():
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def exit_with_status(stopped):
    """End this process, with status 75 for the scheduler if it was told to stop."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # srun sends SIGTERM when another process has ended with 75
    if not stopped:
        sys.exit(0)
    if os.environ["RANK"] == "0":
        say("told to stop: saved, and ending with status 75. Started again, the run goes on from here")
    sys.exit(75)


def forget_group(function):
    """Drop the process group that a function of torch.distributed.nn keeps as a default
    argument.
    """
    defaults = function.__defaults__
    if any(isinstance(value, dist.ProcessGroup) for value in defaults):
        function.__defaults__ = tuple(
            None if isinstance(value, dist.ProcessGroup) else value for value in defaults
        )


@atexit.register
def release_group():
    """Drop all references to process groups, so gloo's threads end before Python does.

    A gloo thread ends when the last reference to its group is gone. A thread that still
    runs may free a tensor while Python shuts down. It then waits for the GIL, which no
    thread can get any more, and the process aborts although its work is done
    (https://github.com/pytorch/pytorch/issues/190489).
    """
    if dist.is_initialized() and dist.get_backend() == "gloo":  # an exception ended the run
        # Their frames refer to the model. Python 3.12 added last_exc.
        sys.last_exc = sys.last_value = sys.last_traceback = None
        dist.destroy_process_group()
    for thing in gc.get_objects():
        if type(thing) is dist.DeviceMesh:  # DTensor caches meshes, and meshes keep groups
            getattr(thing, "_pg_registry", {}).clear()
        elif type(thing) is FunctionType and thing.__defaults__:
            forget_group(thing)
    gc.collect()  # a DDP object refers to its group, and also to itself
    if "triton" not in sys.modules:  # triton would report frozen objects as leaked
        gc.freeze()  # otherwise Python spends half a second on garbage at exit


def crash_once(now):
    """Kill the last rank, as if its machine had failed, in torchrun's first attempt
    only.
    """
    is_last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    if now and is_last and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)


def print_first_error(function):
    """Print the error of this process and record it for torchrun's report. If this
    process fails only because another process is gone, let the other process print
    its error first.
    """

    def wait_for_the_first(*arguments):
        try:
            return function(*arguments)
        except Exception as error:
            if isinstance(error, dist.DistError) or "gloo" in str(error):
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, signal.SIG_DFL)
                if told_to_stop.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)  # if another process failed, torchrun ends this one meanwhile
            raise

    @functools.wraps(function)
    def print_error(*arguments):
        try:
            return record(wait_for_the_first)(*arguments)
        except Exception:
            traceback.print_exc()
            os._exit(1)  # otherwise the process group could abort with its own error

    return print_error
