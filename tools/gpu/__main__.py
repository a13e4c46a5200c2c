"""Is everything here right on this machine's GPUs, how fast is it, and what limits it? `make gpu`

    python tools/gpu --out out --minutes 11
    python tools/gpu --rehearse               the same stages in small, on 2 simulated GPUs

A rehearsal tests this program and the code that the lessons run on GPUs. It does not test a GPU: see
tests/pretend/README.md. Without g++ it uses the CPU and gloo. The first line, gpu.json and gpu.png say
what it ran on.

You will see a row for each thing that was looked at, as soon as it is known. At the end come the whole
table and a picture, OUT/gpu.png. OUT/gpu.json is written after each row, so that a run that is ended
early has told what it knew, and OUT/gpu.log has what a child said that failed. A child that runs too long
is ended, and its row fails; a stage for which no time is left is not run, and named. The exit status is 1
if anything failed. A goal that was missed is called so, and is no failure.

For "the same bytes" all children have NCCL_NVLS_ENABLE=0 and CUBLAS_WORKSPACE_CONFIG=:4096:8.
"""

import argparse
import signal
import sys
from pathlib import Path

import correct
import drawing
import speed
import torch
from harness import VERDICTS, Check, Stage

import pretending
import workload

# What matters most comes first: a run may be ended at any time. The seconds are those of a machine with one
# H100 and 16 cores on 2026-11-26. The third and the fourth had too few there (110 and 90), and have guesses.
STAGES = (
    Stage("what is here", 5, correct.numerics),
    Stage("one rank", 50, correct.one_rank),
    Stage("several ranks", 220, correct.several_ranks),
    Stage("how fast, alone", 130, speed.alone),
    Stage("a rank is killed", 70, correct.kills),
    Stage("lesson 08", 80, correct.real_training),
    Stage("memory and sizes", 60, speed.memory),
    Stage("several GPUs", 20, speed.several_gpus),
)

REHEARSED_GPUS = 2


def pretended() -> tuple[int, str]:
    """How many GPUs a rehearsal has, and if none, why."""
    # A torch that was built with CUDA takes real GPUs only. A rehearsal on those would look like a run.
    reason = "torch was built with CUDA" if torch.version.cuda else pretending.missing(REHEARSED_GPUS)
    if not reason:
        try:
            pretending.library()  # now: compiling takes 20 seconds, which no stage has
        except RuntimeError as error:  # g++ is there, and Python's headers are not
            reason = " ".join(str(error).splitlines()[:2])
    return (0, reason) if reason else (REHEARSED_GPUS, "")


def table(check: Check) -> str:
    lines = []
    for stage in dict.fromkeys(row.stage for row in check.rows):
        lines.append(f"\n{stage}")
        for row in (row for row in check.rows if row.stage == stage):
            expected = f"  (expected: {row.expected})" if row.expected else ""
            lines.append(f"  {row.verdict:8}  {row.name}: {row.value}{expected}")
    return "\n".join(lines)


def summary(check: Check) -> str:
    counts = check.counts()
    named = [
        f"{counts[name]} {words}" for name, words in VERDICTS.items() if counts[name] or name == "failed"
    ]
    return f"{len(check.rows)} rows: {', '.join(named)}"


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of all that it writes (out)")
    parser.add_argument("--minutes", type=float, help="after which no more is begun (11; a rehearsal: 60)")
    parser.add_argument("--rehearse", action="store_true", help="in small on 2 simulated GPUs, or the CPU")
    parser.add_argument("--stages", help="numbers of those to run, from 1: 1,4")
    arguments = parser.parse_args()
    if not arguments.rehearse and workload.gpu_count() == 0:
        return "error: there is no GPU here; with --rehearse, the same stages are tried without one"
    minutes = (60 if arguments.rehearse else 11) if arguments.minutes is None else arguments.minutes
    stages = {str(number): stage for number, stage in enumerate(STAGES, 1)}
    chosen = arguments.stages.split(",") if arguments.stages else stages
    if wrong := [number for number in chosen if number not in stages]:
        return f"error: --stages are numbers from 1 to {len(stages)}, not {', '.join(wrong)}"
    gpus, reason = pretended() if arguments.rehearse else (workload.gpu_count(), "")
    check = Check(arguments.out, minutes, arguments.rehearse, gpus)
    print(check.title() + (f": {reason}" if reason else ""), flush=True)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that no child is left behind
    status = check.go([stages[number] for number in chosen])
    print(table(check))
    try:
        drawing.draw(check.facts, arguments.out / "gpu.png", check.title())
    except ImportError:
        print("no picture: matplotlib is not here")
    print(f"\n{summary(check)}; {arguments.out / 'gpu.json'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
