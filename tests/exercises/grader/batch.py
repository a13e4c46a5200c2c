"""Several submissions one after the other, in processes that have imported torch: pytest once for each.

A process keeps its sandbox from one submission to the next. Nothing of a student runs in the process from
which ranks are forked, and after each test no process and no file is left there.
"""

import contextlib
import json
import multiprocessing
import multiprocessing.util
import os
import signal
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import limits

from grader import exercises, ranks
from grader.settings import HERE

END_WITH_PARENT = 1  # for prctl: by which signal, so that nothing is left if the grader is killed


def pool(jobs, level=None, scratch=None):
    """Processes that grade. Their temporary folders lie in `scratch`."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=begin_in_pool, initargs=(level, scratch))


@contextlib.contextmanager
def without_interrupts():
    """Ctrl-C is for the process above, which ends those that begin meanwhile."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end(pool):
    """End these processes and all that they have started, at once."""
    for process in multiprocessing.active_children():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # it may have no group of its own yet
    pool.shutdown(wait=False, cancel_futures=True)


def begin_in_pool(level, scratch):
    os.setpgid(0, 0)  # with the pytest that is forked from it
    limits.prctl(END_WITH_PARENT, signal.SIGKILL)
    tempfile.tempdir = scratch
    begin(level)
    multiprocessing.util.Finalize(None, ranks.SERVER.close, exitpriority=10)


def begin(level=None):
    """Once in each process: start the sandbox, and import what each pytest would otherwise import again."""
    ranks.SERVER.level = level
    ranks.SERVER.begin()
    import pytest  # noqa: F401
    import torch  # noqa: F401


def grade(folder, only, seed, more=()):
    """The results of the checks `only` (03,03a or 03.2a) for the files in a folder: a list of dicts for each
    exercise; and what pytest has printed."""
    stems = sorted({exercises.exercise(check.partition(".")[0])["stem"] for check in exercises.wanted(only)})
    paths = [str(HERE / stem) for stem in stems]
    if ranks.SERVER.is_lost():
        ranks.SERVER.close()
    ranks.wipe()  # and so it is ready: only one process can hear that
    with tempfile.TemporaryDirectory() as out:
        results, printed = Path(out, "results.json"), Path(out, "printed")
        words = [*paths, "--submission", str(folder), "--only", only, "--seed", str(seed), "--out", out]
        words += ["--results", str(results), "-q", *more]
        if (pid := os.fork()) == 0:
            status = 1
            try:
                limits.prctl(END_WITH_PARENT, signal.SIGKILL)
                os.dup2(os.open(printed, os.O_CREAT | os.O_WRONLY), 1)
                os.dup2(1, 2)
                run_pytest(words)
                # It has got no answer, or had to start another one, which ends with it.
                status = ranks.SERVER.process is None or ranks.SERVER.owner == os.getpid()
                ranks.SERVER.close()
            finally:
                os._exit(status)
        try:
            _, status = os.waitpid(pid, 0)
        except BaseException:  # Ctrl-C, mostly
            os.kill(pid, signal.SIGKILL)
            raise
        if status:
            ranks.SERVER.close()
        said = printed.read_text(errors="replace")
        return (json.loads(results.read_text()) if results.exists() else {}), said


def run_pytest(words):
    import pytest

    # Or each pytest imports all plugins that lie about, which takes longer than a small exercise.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # Nothing of this repository but the exercises: the bundle for Gradescope has nothing else.
    here = ["--rootdir", str(HERE), "--confcutdir", str(HERE), "-c", os.devnull]
    pytest.main([*here, "-p", "no:cacheprovider", "-p", "no:xdist", *words])
