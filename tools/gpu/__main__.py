"""Is everything here right on this machine's GPUs, how fast is it, and what limits it? `make gpu`

    python -m tools.gpu --out out --minutes 11
    python -m tools.gpu --rehearse               the same stages in small, on 2 simulated GPUs

Whether it is right is asked by tests/lessons/test_on_gpus.py, which runs here on the machine's GPUs. A
rehearsal has the quick ones of these tests. It does not test a GPU: see tools/testbed/README.md. Without g++
it has no tests, and tries the measurements on the CPU.

You will see a row for each thing that was looked at, as soon as it is known, and a picture, OUT/gpu.png.
OUT/gpu.json is written after each row, so that a run that is ended early has told what it knew, and
OUT/gpu.log has what a child said that failed. A child that still runs when its stage has no time left is
ended, and its row fails; a stage for which no time is left is not run, and named. The exit status is 1 if
anything failed.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import workload
from tools.gpu import speed
from tools.gpu.harness import ROOT, Check, Job, Stage
from tools.testbed import pretending
from workload import machine

EXACT = "relative error under 1e-5"  # Winograd's convolutions round more; TF32 would be off by 3e-4
FLAGS = {
    "cudnn.benchmark": False,
    "cudnn.deterministic": True,
    "convolutions": "ieee",
    "products": "ieee",
    "old flag of TF32": False,
}


def numerics(check: Check) -> None:
    (child,) = check.run({"numerics": check.probe("numerics")}).values()

    def machine(child):
        """Children that fell back to the CPU would pass what follows."""
        found = child.said()
        check.facts |= {name: found[name] for name in ("gpus", "versions")}
        named = [f"{name} {version}" for name, version in found["versions"].items()]
        return ", ".join(found["gpus"] + named), len(found["gpus"]) == check.gpus

    def flags(child):
        found = child.said()["flags"]
        return ", ".join(f"{name} {value}" for name, value in found.items()), found == FLAGS

    check.judge("the machine", [child], machine, f"{check.gpus} GPUs")
    check.judge("flags after set_seed", [child], flags, "repeatable, and fp32 with 32 bits")
    for name in ("convolution", "product"):

        def error(child, name=name):
            return f"{child.said()[name]:.1e}", child.said()[name] < 1e-5

        check.judge(f"a {name} in fp32 against float64", [child], error, EXACT)


ON_GPUS = (
    "lessons/test_on_gpus.py",
    "lessons/test_recipes.py::test_a_recipe_has_the_cpus_curve_on_gpus",
    "lessons/test_recipes.py::test_a_recipe_that_computes_on_the_cpu_does_so_where_there_is_a_gpu",
)


def tests(check: Check, names: tuple[str, ...] = ON_GPUS) -> None:
    """A row for each of these tests that was not skipped, as soon as it has ended."""
    folder = check.folder / str(len(check.rows))
    folder.mkdir()
    rows, failed = folder / "rows", folder / "rows.failed"
    workers = max(1, min(6, len(os.sched_getaffinity(0)) // 2))  # most runs have two ranks
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tools.gpu.each_test"]
    words += ["-n", workers, "--dist", "load", "--maxschedchunk", 1]
    words += ["-m", "quick"] if check.is_rehearsal else []
    words += ["-c", ROOT / "pyproject.toml", "--rootdir", ROOT, *(ROOT / "tests" / name for name in names)]
    rows.touch()
    child, seen = check.begin(Job(words, {"ROWS": rows, "PYTHONPATH": ROOT})), 0
    while True:
        is_last = child.has_ended() or check.is_over()
        for line in rows.read_text().splitlines()[seen:]:
            check.row(*json.loads(line))
            seen += 1
        if is_last:
            break
        time.sleep(0.2)
    check.finish("pytest", child)
    if failed.exists():
        check.log(failed.read_text())
    if child.problem.startswith("still ran"):  # none at all: they wait for each other, say
        check.row("the other tests", f"no time was left after {seen}", "", "not run" if seen else "failed")
    elif seen == 0 or child.process.returncode not in (0, 1):
        check.row("the tests", child.last_words(), "", "failed" if child.problem else "not run")


def notebooks(check: Check) -> None:
    if check.is_rehearsal:
        return check.row("the notebooks", "are run on simulated GPUs by `make test-all`", "", "not run")
    return tests(check, ("notebooks/test_notebooks.py::test_it_runs_on_a_gpu",))


# What matters most comes first: a run may be ended at any time. The seconds are from a machine with one H100
# and 16 cores: 46 tests had ended there after 250 s, and 12 measurements after 200 s.
STAGES = (
    Stage("what is here", 20, numerics),
    Stage("the lessons", 200, tests),
    Stage("how fast, alone", 240, speed.alone),
    Stage("memory and sizes", 60, speed.memory),
    Stage("several GPUs", 100, speed.several_gpus),
    Stage("the notebooks", 60, notebooks),
)


def pretended() -> int:
    """How many GPUs a rehearsal has."""
    # A torch that was built with CUDA takes real GPUs only. A rehearsal on those would look like a run.
    if pretending.real() or pretending.missing(2):
        return 0
    pretending.library()  # now: compiling takes 20 seconds, which no stage has
    return 2


def main() -> int | str:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of all that it writes (out)")
    parser.add_argument("--minutes", type=float, help="after which no more is begun (11; several GPUs: 14)")
    parser.add_argument("--rehearse", action="store_true", help="in small on 2 simulated GPUs, or the CPU")
    parser.add_argument("--stages", default="123456", help="numbers of those to run (%(default)s)")
    arguments = parser.parse_args()
    gpus = pretended() if arguments.rehearse else workload.gpu_count()
    if not arguments.rehearse and gpus == 0:
        reason = machine.unseen_gpu() or "there is no GPU here"
        return f"error: {reason}; with --rehearse, the same stages are tried without one"
    minutes = arguments.minutes or (60 if arguments.rehearse else 11 if gpus == 1 else 14)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that no child is left behind
    check = Check(arguments.out, minutes, arguments.rehearse, gpus)
    check.facts["gpus"] = [torch.cuda.get_device_name(number) for number in range(pretending.real())]
    print(check.title(), flush=True)
    status = check.go(stage for number, stage in enumerate(STAGES, 1) if str(number) in arguments.stages)
    speed.draw(check.facts, arguments.out / "gpu.png", check.title())
    for row in check.rows:
        if row.verdict in ("failed", "not run"):
            print(f"{row.verdict}: {row.stage}: {row.name}: {row.value}")
    print(f"{len(check.rows)} rows, {sum(row.verdict == 'failed' for row in check.rows)} failed")
    return status


if __name__ == "__main__":
    sys.exit(main())
