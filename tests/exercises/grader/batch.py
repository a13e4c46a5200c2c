"""Several submissions one after the other, in processes that have imported torch: pytest once for each.

A process keeps its sandbox from one submission to the next. Nothing of a student runs in the process from
which ranks are forked, and after each test no process and no file is left there.
"""

import json
import multiprocessing
import os
import signal
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from grader import ranks
from grader.settings import HERE


def pool(jobs, level=None):
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=begin, initargs=(level,))


def begin(level):
    """Once in each process: what each pytest would otherwise import again."""
    import pytest  # noqa: F401
    import torch  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process above, which ends this one
    ranks.BOX.level = level
    ranks.BOX.begin()
    multiprocessing.util.Finalize(None, ranks.BOX.close, exitpriority=10)


def grade(folder, only, seed, more=()):
    """The results of the checks `only` (03,03a or 03.2a) for the files in a folder: a list of dicts for each
    exercise; and what pytest has printed."""
    from judge import exercises

    identities = {word.partition(".")[0] for word in only.split(",")}
    paths = [
        str(path)
        for name in identities
        for path in (HERE / exercises.exercise(name)["stem"]).glob("test_*.py")
    ]
    if ranks.BOX.process is None or ranks.BOX.process.poll() is not None:
        ranks.BOX.close()
        ranks.BOX.begin()
    ranks.wipe()  # and so it is ready: only one process can hear that
    with tempfile.TemporaryDirectory() as out:
        results, printed = Path(out, "results.json"), Path(out, "printed")
        words = [*paths, "--submission", str(folder), "--only", only, "--seed", str(seed), "--out", out]
        words += ["--results", str(results), "-q", *more]
        if (pid := os.fork()) == 0:
            try:
                os.dup2(os.open(printed, os.O_CREAT | os.O_WRONLY), 1)
                os.dup2(1, 2)
                run_pytest(words)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        said = printed.read_text(errors="replace")
        return (json.loads(results.read_text()) if results.exists() else {}), said


def run_pytest(words):
    import pytest

    sys.path[:0] = [str(HERE)]
    pytest.main(["-p", "grader.plugin", "--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist", *words])
