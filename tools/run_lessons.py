"""Run lessons 01 to 06 on this machine's GPUs or CPU: `make run`. Run all lessons: `make run LESSONS=all`.

Ends with a table and with out/run/ladder.svg, a plot of all curves. A lesson with a model of its own also
runs on one process, and its curve is compared with that run. The lessons write into out/run, where no command
of a page looks: otherwise lesson 05's command would find a finished run. Other arguments are passed to the
lessons:
python -m tools.run_lessons --epochs 2 --out elsewhere
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import workload
from parts.colours import BLUE, GREEN, INK, ORANGE, PINK, RED, SKY, YELLOW
from tools import ink, launcher, lessons
from tools.lessons import Curve, Lesson
from workload.machine import unseen_gpu

NUMBERS = ("processes", "final loss", "accuracy", "images/s", "seconds")  # to the right of their column
COLUMNS = ("lesson", "launched by", *NUMBERS, "same curve")
WHY_SLOWER = """
Two processes are slower here ({lesson}): lesson 01's one process already computes with {cores} threads, while
two processes share the cores and wait for each other in every step of this tiny model. DDP pays when a step
computes more: with a larger model, two processes were 1.92 times as fast (tools/makers/bench/README.md)."""
# What torchrun prints about OMP_NUM_THREADS, and on a Mac about redirects, which no lesson uses.
UNNEEDED = ("torch/distributed/run.py", "Redirects are currently not supported")
SILENT_SECONDS = 120
COPY_SECONDS = 120  # a copy takes a millisecond, and the start of CUDA some seconds for each GPU
CURE_OF_COPIES = (
    "see lessons/launch/nccl.md#p2p-between-gpus-of-one-machine, or put CUDA_VISIBLE_DEVICES=0 in front of "
    "the command to use one GPU"
)
WHY_SILENT = "on several GPUs see lessons/launch/nccl.md, else lessons/pages/errors.md"
COLOURS = [INK, ORANGE, SKY, GREEN, RED, PINK, YELLOW, BLUE]


@dataclass
class Climbed:
    """A lesson that has been run, and what came of it."""

    lesson: Lesson
    processes: int
    seconds: float
    curve: list[dict] = field(default_factory=list)  # empty if it failed
    verdict: str = "failed"

    def is_different(self) -> bool:
        return self.verdict.startswith("no:")

    def speed(self) -> float:
        """Images per second, the median of the epochs."""
        return statistics.median(point["images_per_second"] for point in self.curve)


def climb(arguments: argparse.Namespace, rest: list[str]) -> None:
    gpus = workload.gpu_count()
    print(describe_machine(gpus), flush=True)
    if gpus > 1:
        check_copies()
    rows = []
    left_out = []
    for lesson in lessons.chosen(arguments.lessons):
        if lesson.is_missing():
            left_out.append(lesson)
            continue
        row = run(lesson, lesson.processes_for(gpus), arguments.out, rest)
        rows.append(row)
        row.verdict = judge(row, rows[0], arguments.out)
    if not rows:
        sys.exit(f"error: no lesson can run: {left_out[0].stem} needs {left_out[0].needs}")

    show(rows)
    slower = find_slower(rows)
    if slower and not gpus:
        print(WHY_SLOWER.format(lesson=slower.lesson.stem, cores=os.cpu_count()))
    for lesson in left_out:
        print(f"left out: {lesson.stem} needs {lesson.needs}")
    picture(rows, arguments.out / "ladder.svg")
    print(f"\nThe curves of all lessons: {arguments.out / 'ladder.svg'}")
    print("Now read notebooks/01_single_gpu.ipynb: on the web, or with `make lab`.")

    failed = [row.lesson.stem for row in rows if not row.curve]
    if failed:
        sys.exit(f"error: failed: {', '.join(failed)}")
    different = [row.lesson.stem for row in rows if row.is_different()]
    if different:
        sys.exit(f"error: different curve: {', '.join(different)}")


def describe_machine(gpus: int) -> str:
    if gpus == 1:
        return "This machine has 1 GPU."
    if gpus:
        return f"This machine has {gpus} GPUs."
    text = f"This machine has no GPU that torch can use, and {os.cpu_count()} cores."
    if sys.platform == "darwin":
        return f"{text} Apple's GPU stays idle, because no backend for collectives supports it."
    if reason := unseen_gpu():
        return f"{text} Its GPU stays idle: {reason} (lessons/pages/errors.md)."
    return text


def check_copies() -> None:
    """Refuse GPUs that cannot copy to each other: lesson 02 would wait forever, or have a wrong loss."""
    words = [sys.executable, lessons.ROOT / "tools/copies.py"]
    try:
        changed = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=COPY_SECONDS).stdout
    except subprocess.TimeoutExpired:
        sys.exit(f"error: a copy from one GPU to another has not ended in {COPY_SECONDS} s: {CURE_OF_COPIES}")
    if changed:
        pairs = ", ".join(changed.splitlines())
        sys.exit(f"error: a copy arrives changed {pairs}: {CURE_OF_COPIES}")


def run(lesson: Lesson, processes: int, out: Path, rest: list[str]) -> Climbed:
    """Run a lesson; on one process too, if that is whose curve it must have."""
    climbed = Climbed(lesson, processes, 0)
    if lesson.curve.is_its_own() and not start(lesson, 1, out / "one_process", rest):
        return climbed
    begin = time.perf_counter()
    succeeded = start(lesson, processes, out, rest)
    climbed.seconds = time.perf_counter() - begin
    if succeeded:
        climbed.curve = launcher.read_curve(out, lesson.stem)
    return climbed


def start(lesson: Lesson, processes: int, out: Path, rest: list[str]) -> bool:
    """Run a command to its end, show what it prints, and keep it. False if it failed."""
    words, environment = launcher.command(lesson.stem, processes, "--out", out, *rest)
    if 0 < workload.gpu_count() < processes:
        environment["SHARE_GPU"] = "1"
    print(f"\n{lesson.stem}\n$ {launcher.as_typed(words, environment)}", flush=True)
    clear(out, lesson.stem)
    lines = []
    with subprocess.Popen(
        words, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        silence = Silence(lesson.stem)
        silence.begin()
        for line in process.stdout:
            silence.begin()
            if not any(words in line for words in UNNEEDED):
                print(f"  {line}", end="", flush=True)
            lines.append(line)
        silence.end()
    log = out / f"{lesson.stem}.log"
    log.write_text("".join(lines))
    if process.returncode:
        print(f"\n{lesson.stem} failed with status {process.returncode}. Its log, {log}:\n")
        for line in lines:
            print(f"  | {line}", end="")
        print(flush=True)
    return process.returncode == 0


class Silence:
    """Says after two minutes without a line where a reader finds out why: some GPUs cannot reach each other,
    and then NCCL, which DataParallel uses too, waits forever.
    """

    def __init__(self, stem: str) -> None:
        self.text = f"  ({stem} has printed nothing for two minutes: {WHY_SILENT})"
        self.timer = None
        self.said = False

    def begin(self) -> None:
        self.end()
        if not self.said:
            self.timer = threading.Timer(SILENT_SECONDS, self.say)
            self.timer.daemon = True
            self.timer.start()

    def say(self) -> None:
        self.said = True
        print(self.text, flush=True)

    def end(self) -> None:
        if self.timer:
            self.timer.cancel()


def clear(out: Path, stem: str) -> None:
    """Lesson 05 would go on from yesterday's run."""
    out.mkdir(parents=True, exist_ok=True)
    for path in out.glob(f"{stem}.*"):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix != ".lock":  # it tells of a run that is still going on
            path.unlink()


def judge(row: Climbed, first: Climbed, out: Path) -> str:
    """Whether a lesson has the curve that it must have, in words for the table."""
    curve = row.lesson.curve
    if not row.curve:
        return "failed"
    if row.lesson.stem == Curve.of:
        return "yes"
    if curve.of == "nothing":
        return "nothing to compare"
    if curve.is_its_own():
        reference = launcher.read_curve(out / "one_process", row.lesson.stem)
    elif first.lesson.stem == curve.of and first.curve:
        reference = first.curve
    else:
        return "no lesson 01"
    problem = launcher.difference(row.curve, reference, curve)
    if problem:
        return f"no: {problem}"

    within = max(curve.early, curve.late)
    if within <= Curve.late:
        words = "yes"
    elif within < 0.5:
        words = f"yes, within {within:.0%}"
    else:
        words = "roughly"  # the lesson's page says why
    return f"{words}, its own" if curve.is_its_own() else words


def cells(row: Climbed) -> dict[str, str]:
    """A line of the table."""
    how = "2 torchrun launchers" if row.lesson.launcher == "two agents" else row.lesson.launcher
    if row.lesson.restarts:
        how += ", restarts"
    found = {
        "lesson": row.lesson.stem,
        "launched by": how,
        "processes": str(row.processes),
        "final loss": "-",
        "accuracy": "-",
        "images/s": "-",
        "seconds": f"{row.seconds:.0f}",
        "same curve": row.verdict,
    }
    if row.curve:
        last = row.curve[-1]
        found["final loss"] = f"{last['loss']:.4f}"
        found["accuracy"] = f"{last['accuracy']:.1%}"
        found["images/s"] = f"{row.speed():,.0f}"
        if row.lesson.items != "images":
            found["images/s"] += f" {row.lesson.items}"
    return found


def show(rows: list[Climbed]) -> None:
    head = {column: column for column in COLUMNS}
    lines = [head, *map(cells, rows)]
    widths = {}
    for column in COLUMNS:
        widths[column] = max(len(line[column]) for line in lines)
    print()
    for line in lines:
        words = []
        for column, width in widths.items():
            text = line[column]
            words.append(text.rjust(width) if column in NUMBERS else text.ljust(width))
        print("  ".join(words).rstrip())


def find_slower(rows: list[Climbed]) -> Climbed | None:
    """The first lesson in which several processes train fewer images per second than lesson 01's process."""
    comparable = with_the_first_curve(rows)
    firsts = [row for row in comparable if row.lesson.stem == Curve.of]
    for row in comparable:
        if firsts and row.processes > 1 and row.speed() < firsts[0].speed():
            return row
    return None


def with_the_first_curve(rows: list[Climbed]) -> list[Climbed]:
    """The lessons that have ended and must have the curve of lesson 01."""
    return [row for row in rows if row.curve and row.lesson.curve.of == Curve.of]


def picture(rows: list[Climbed], path: Path) -> None:
    rows = with_the_first_curve(rows)
    if not rows:
        return
    figure, (upper, lower) = ink.pyplot().subplots(2, 1, figsize=(ink.WIDTH, 6.6))
    for number, (row, colour) in enumerate(zip(rows, COLOURS, strict=False)):
        epochs = []
        losses = []
        percentages = []
        for point in row.curve:
            epochs.append(point["epoch"])
            losses.append(point["loss"])
            percentages.append(100 * point["accuracy"])
        # The first line is the widest, so that those drawn later leave a rim of it in sight.
        style = {"color": colour, "linewidth": max(1, 13 - 2 * number), "solid_capstyle": "round"}
        style["label"] = f"{row.lesson.stem} ({row.processes})"
        upper.plot(epochs, losses, **style)
        lower.plot(epochs, percentages, **style)
    upper.set(title="loss on the training images", xlabel="epoch", ylabel="mean cross-entropy", yscale="log")
    ink.plain(upper.yaxis)
    lower.set(title="accuracy on the test images", xlabel="epoch", ylabel="%")
    upper.legend(title="lesson (processes)")
    for axes in (upper, lower):
        axes.xaxis.get_major_locator().set_params(integer=True)
    ink.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/run"))
    parser.add_argument("--lessons", default="ladder", help="ladder, all, or some by their numbers: 01,03")
    climb(*parser.parse_known_args())


if __name__ == "__main__":
    main()
