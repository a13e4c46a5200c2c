"""Several judges at once, each a process with a nursery of its own. Not threads: torch's random numbers
belong to the whole process, and a check that draws some would disturb the other one."""

import multiprocessing
import multiprocessing.util
import signal
from concurrent.futures import ProcessPoolExecutor

import judge

NURSERY = None


def pool(jobs, level):
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=begin, initargs=(level,))


def begin(level):
    """Once in each process: its nursery, which ends with it."""
    global NURSERY
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process above, which ends this one
    NURSERY = judge.Nursery(level)
    NURSERY.start()
    multiprocessing.util.Finalize(None, NURSERY.close, exitpriority=10)
