"""Is everything here right on this machine's GPUs, how fast is it, and what limits it? `make gpu`

    python -m tools.gpu --out out --minutes 11
    python -m tools.gpu --rehearse               the same stages in small, on 2 simulated GPUs
    python -m tools.gpu --only-new               leave out what the files of rows in tools/makers/results,
                                                 or OUT/gpu*.json, have shown right already

Whether it is right is asked by tests/lessons/test_on_gpus.py, which runs here on the machine's GPUs. A
rehearsal has the quick ones of these tests and one notebook. It does not test a GPU: see
tools/testbed/README.md. Without g++ it has no tests, and tries the measurements on the CPU.

You will see a row for each thing that was looked at, with the seconds that it took, and after how many it
would have been ended. OUT/gpu.json is written after each row; one that is there is renamed. OUT/gpu.log has
what a child said that failed. What has not been seen on a GPU comes first. A child that still runs when its
stage has no time left is ended, and its row fails if it had enough; a stage for which less than half of its
time is left is not run. In a rehearsal, a stage that takes longer than its own time fails. The exit status is
1 if anything failed.
"""

import argparse
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import torch

import workload
from tools.gpu import speed
from tools.gpu.harness import ROOT, Check, Job, Stage
from tools.gpu.seen import RESULTS, before
from tools.testbed import pretending
from tools.testbed.surroundings import python_path
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
    job = check.probe("numerics")
    job.seconds = 15  # of the 20 that its stage has
    (child,) = check.run({"numerics": job}).values()

    def machine(said):
        """Children that fell back to the CPU would pass what follows."""
        check.facts |= {name: said[name] for name in ("gpus", "versions", "bf16")}
        check.room = check.room if check.is_rehearsal else said["free"] or check.room
        named = [f"{name} {version}" for name, version in said["versions"].items()]
        named += ["no bf16"] * (said["bf16"] is False)
        return ", ".join(said["gpus"] + named), len(said["gpus"]) == check.gpus

    def flags(said):
        return ", ".join(f"{name} {value}" for name, value in said["flags"].items()), said["flags"] == FLAGS

    def error(said, name):
        return f"{said[name]:.1e}", said[name] < 1e-5

    check.judge("the machine", [child], machine, f"{check.gpus} GPUs")
    check.judge("flags after set_seed", [child], flags, "repeatable, and fp32 with 32 bits")
    for name in ("convolution", "product"):
        check.judge(f"a {name} in fp32 against float64", [child], partial(error, name=name), EXACT)


ON_GPUS = (
    "lessons/test_on_gpus.py",
    "lessons/test_recipes.py::test_a_recipe_has_the_cpus_curve_on_gpus",
    "lessons/test_recipes.py::test_a_recipe_that_computes_on_the_cpu_does_so_where_there_is_a_gpu",
)


def tests(check: Check, names: tuple[str, ...] = ON_GPUS, marks: str = "quick") -> None:
    """A row for each of these tests that is for this machine, as soon as it has ended."""
    folder = check.folder / str(len(check.rows))
    folder.mkdir()
    rows, failed = folder / "rows", folder / "rows.failed"
    # Most runs have two ranks, and a rank's context and NCCL's buffers take half a gigabyte or more.
    workers = int(max(1, min(6, len(os.sched_getaffinity(0)) // 2, check.room / 3e9)))
    known = folder / "before"
    table = {"known": check.before, "only new": check.only_new, "gpus": check.gpus}
    known.write_text(json.dumps(table))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tools.gpu.each_test"]
    words += ["-n", workers, "--dist", "load", "--maxschedchunk", 1]
    words += ["-m", marks] if check.is_rehearsal and marks else []
    words += ["-c", ROOT / "pyproject.toml", "--rootdir", ROOT, *(ROOT / "tests" / name for name in names)]
    rows.touch()
    environment = {"ROWS": rows, "BEFORE": known, "PYTHONPATH": python_path(ROOT)}
    child, seen = check.begin(Job(words, environment)), 0
    while True:
        is_last = child.has_ended() or check.is_over()
        for line in rows.read_text().splitlines()[seen:]:
            *row, seconds = [*json.loads(line), None][:5]
            limit = None if seconds is None else seconds + check.deadline - time.monotonic()
            check.row(*row, seconds=seconds, limit=limit)
            seen += 1
        if is_last:
            break
        time.sleep(0.2)
    check.finish("pytest", child)
    if failed.exists():
        check.log(failed.read_text())
    if child.problem.startswith("still ran"):  # none at all: they wait for each other, say
        check.row("the other tests", f"no time was left after {seen}", "", "not run" if seen else "failed")
    elif child.process.returncode == 5 and check.only_new:  # pytest has collected none
        check.row("the tests", "all were shown right before", "", "not run")
    elif seen == 0 or child.process.returncode not in (0, 1):
        check.row("the tests", child.last_words(), "", "failed" if child.problem else "not run")


def notebooks(check: Check) -> None:
    """All; a rehearsal has the shortest, and `make test-all` runs all of them on simulated GPUs."""
    test = "notebooks/test_notebooks.py::test_it_runs_on_a_gpu"
    return tests(check, (test + "[10a_stale_weights]" * check.is_rehearsal,), marks="")


# What matters most comes first: a run may be ended at any time. The first seconds are from a machine with one
# H100 and 16 cores: 46 tests had ended there after 250 s, and 12 measurements after 200 s. The others are for
# a rehearsal, which has less to do: on two idle cores it keeps to the first too, in 6, 106, 48, 36, 28 and 37
# seconds, but on two that have other work it takes up to four times as long.
STAGES = (
    Stage("what is here", 20, 20, numerics),
    Stage("the lessons", 200, 320, tests),
    Stage("several GPUs", 100, 150, speed.several_gpus),
    Stage("how fast, alone", 240, 120, speed.alone),
    Stage("the notebooks", 140, 200, notebooks),
    Stage("memory and sizes", 60, 110, speed.memory),
)


def without_overwriting(out: Path) -> list[Path]:
    """The files of rows in this folder; gpu.json has become gpu-1.json, or the next number."""
    if (out / "gpu.json").exists():
        number = 1 + len(list(out.glob("gpu-*.json")))
        (out / "gpu.json").rename(out / f"gpu-{number}.json")
    return sorted(out.glob("gpu-*.json"))


def pretended() -> int:
    """How many GPUs a rehearsal has."""
    # A torch that was built with CUDA takes real GPUs only. A rehearsal on those would look like a run.
    if pretending.real() or pretending.missing(2):
        return 0
    pretending.library()  # now: compiling takes 20 seconds, which no stage has
    return 2


def stop(number: int, frame: object) -> None:
    """So that no child is left behind, nor a folder; a second signal would cut this short."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


def main() -> int | str:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of all that it writes (out)")
    parser.add_argument("--minutes", type=float, help="after which no more is begun (11; several GPUs: 14)")
    parser.add_argument("--rehearse", action="store_true", help="in small on 2 simulated GPUs, or the CPU")
    parser.add_argument("--only-new", action="store_true", help="leave out what earlier files have shown")
    parser.add_argument(
        "--patience", type=float, default=1, help="times all limits, if it is slow or busy (1)"
    )
    parser.add_argument("--stages", default="123456", help="numbers of those to run (%(default)s)")
    arguments = parser.parse_args()
    gpus = pretended() if arguments.rehearse else workload.gpu_count()
    if not arguments.rehearse and gpus == 0:
        reason = machine.unseen_gpu() or "there is no GPU here"
        return f"error: {reason}; with --rehearse, the same stages are tried without one"
    whole = sum(stage.rehearsal for stage in STAGES) / 60 if arguments.rehearse else 11 if gpus == 1 else 14
    minutes = arguments.minutes or whole
    signal.signal(signal.SIGTERM, stop)
    check = Check(arguments.out, minutes, arguments.rehearse, gpus, arguments.patience)
    check.before = before([*RESULTS.glob("gpu-*.json"), *without_overwriting(arguments.out)])
    check.only_new = arguments.only_new
    check.facts["gpus"] = [torch.cuda.get_device_name(number) for number in range(pretending.real())]
    if pretending.real():
        check.room = torch.cuda.get_device_properties(0).total_memory
    print(check.title(), flush=True)
    status = check.go(stage for number, stage in enumerate(STAGES, 1) if str(number) in arguments.stages)
    for row in check.rows:
        if row.verdict in ("failed", "not run"):
            print(f"{row.verdict}: {row.stage}: {row.name}: {row.value}")
    print(f"{len(check.rows)} rows, {sum(row.verdict == 'failed' for row in check.rows)} failed")
    return status


if __name__ == "__main__":
    sys.exit(main())
