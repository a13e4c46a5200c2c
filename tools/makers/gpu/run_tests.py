"""Test the lessons on this machine's GPUs: `make gpu`

    python -m tools.makers.gpu.run_tests                           the lessons and the recipes
    python -m tools.makers.gpu.run_tests --notebooks               the notebooks
    python -m tools.makers.gpu.run_tests --session-timeout 420     begin no test after 7 minutes
    python -m tools.makers.gpu.run_tests -k 09                     any option of pytest

You will see pytest's output. Tests that have never run here come first. A test that takes longer than its
limit fails, and its processes are ended: an NCCL that hangs would otherwise take the rest of your time. The
seconds, properties and errors of all tests are in OUT/results/gpu-tests.xml (JUnit's format). pytest's cache
is in OUT/results/gpu-cache: copy it to the next machine.
"""

import argparse
import os
import sys
from pathlib import Path

import pytest
import torch

import workload
from tools.lessons import ROOT
from workload import machine

LESSONS = (
    "tests/lessons/test_on_gpus.py",
    "tests/lessons/test_recipes.py::test_a_recipe_has_the_cpus_curve_on_gpus",
    "tests/lessons/test_recipes.py::test_a_recipe_that_computes_on_the_cpu_does_so_where_there_is_a_gpu",
)
NOTEBOOKS = ("tests/notebooks/test_notebooks.py::test_it_runs_on_a_gpu",)
# On an H100, no test of a lesson took more than 54 seconds; a notebook may take minutes.
SECONDS_OF_A_TEST = 180
SECONDS_OF_A_NOTEBOOK = 400
MEMORY_OF_A_TEST = 3e9  # bytes: most runs have two ranks, each with CUDA's context and NCCL's buffers


class Ran:
    """Keeps the names of the tests that ran, for --nf: with several workers, pytest itself keeps none."""

    def __init__(self):
        self.names = set()

    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            self.names.add(report.nodeid)

    @pytest.hookimpl(trylast=True)  # pytest writes its own list first
    def pytest_sessionfinish(self, session):
        cache = session.config.cache
        known = cache.get("cache/nodeids", [])
        cache.set("cache/nodeids", sorted(self.names.union(known)))


def workers():
    """As many tests at once as the cores and the memory of the first GPU can take."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = torch.cuda.get_device_properties(0).total_memory
    return max(1, min(6, cores // 2, int(memory / MEMORY_OF_A_TEST)))


def options(arguments, out, at_once):
    """pytest's command line. What the reader adds comes last, and wins."""
    names = NOTEBOOKS if arguments.notebooks else LESSONS
    limit = SECONDS_OF_A_NOTEBOOK if arguments.notebooks else SECONDS_OF_A_TEST
    return [
        f"--rootdir={ROOT}",
        f"--config-file={ROOT / 'pyproject.toml'}",
        f"--override-ini=cache_dir={out / 'gpu-cache'}",
        f"--junitxml={out / 'gpu-tests.xml'}",
        f"--timeout={limit}",
        f"--numprocesses={at_once}",
        "--maxschedchunk=1",  # a worker takes one test after the other, so that the order is kept
        "--nf",
        "--durations=10",
        *(str(ROOT / name) for name in names),
    ]


def main():
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of all that it writes (out)")
    parser.add_argument("--notebooks", action="store_true", help="the notebooks, which take several minutes")
    arguments, more = parser.parse_known_args()
    if workload.gpu_count() == 0:
        reason = machine.unseen_gpu() or "there is no GPU here"
        cure = "make test ARGUMENTS=tests/lessons/test_on_gpus.py tries the tests on simulated GPUs"
        return f"error: {reason}: {cure}"
    out = (arguments.out / "results").resolve()
    return pytest.main([*options(arguments, out, workers()), *more], plugins=[Ran()])


if __name__ == "__main__":
    sys.exit(main())
