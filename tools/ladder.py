"""Climb lessons 01 to 06 on whatever this machine has: `make run`. All thirteen: `make run LESSONS=all`.

Ends with a table and out/ladder.png, the curves of all lessons drawn on one another. A lesson with a model
of its own is run on one process too, and must have that run's curve. Arguments are handed on to the
lessons: python tools/ladder.py --epochs 2 --out elsewhere
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import launcher

sys.path.insert(0, str(launcher.ROOT / "lessons"))
import workload


def climb(arguments, rest):
    gpus = workload.gpu_count()
    processes = gpus or 2
    machine = f"{gpus} GPUs" if gpus else f"no GPU, {os.cpu_count()} cores"
    print(f"This machine has {machine}. Lessons from 03 on run on {processes} processes.", flush=True)
    rows, failed = [], []
    for stem in chosen(arguments.lessons):
        count = processes if stem[:2] >= "03" else 1
        if stem.startswith("06"):
            count = max(2, processes // 2 * 2)  # two agents, of one size
        if stem[:2] in ("12", "13") and not gpus:
            count = 4  # their mesh is 2 x 2
        runs = [(count, arguments.out)]
        if launcher.OTHER_CURVES.get(stem[:2], ("",))[0] == "itself":
            runs.insert(0, (1, arguments.out / "one_process"))
        for count, out in runs:
            words, environment = launcher.command(stem, count, "--out", out, *rest)
            print(f"\n{stem}\n$ {launcher.as_typed(words, environment)}", flush=True)
            clear(out, stem)
            start = time.perf_counter()
            code, log = run(words, os.environ | environment, out / f"{stem}.log")
            if code:
                failed.append(stem)
                print(f"\n{stem} failed with status {code}. Its log, {out / f'{stem}.log'}:\n")
                print("".join(f"  | {line}\n" for line in log.splitlines()), flush=True)
                break
        rows.append(row(arguments.out, stem, count, time.perf_counter() - start, code, rows))
    show(rows)
    picture(rows, arguments.out / "ladder.png")
    print(f"\nThe curves, drawn on one another: {arguments.out / 'ladder.png'}")
    different = [row["lesson"] for row in rows if row["same"].startswith("no")]
    if failed:
        sys.exit(f"error: failed: {', '.join(failed)}")
    if different:
        sys.exit(f"error: another curve than lesson 01: {', '.join(different)}")


def chosen(lessons):
    """The stems that --lessons names."""
    numbers = {stem[:2]: stem for stem in launcher.STEMS}
    names = list(numbers) if lessons == "all" else lessons.split(",")
    if unknown := [name for name in names if name not in numbers]:
        sys.exit(f"error: there is no lesson {unknown[0]!r}: take all, or some of {','.join(numbers)}")
    return [numbers[name] for name in sorted(names)]


def clear(out, stem):
    """Lesson 05 would go on from yesterday's run."""
    out.mkdir(parents=True, exist_ok=True)
    for path in out.glob(f"{stem}.*"):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix != ".lock":  # it tells of a run that is still going on
            path.unlink()


def run(words, environment, log):
    """Run a command, show what it prints and keep it."""
    lines = []
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout:
            if "torch/distributed/run.py" not in line:  # its five lines on OMP_NUM_THREADS
                print(f"  {line}", end="", flush=True)
            lines.append(line)
    log.write_text("".join(lines))
    return process.returncode, "".join(lines)


def row(out, stem, processes, seconds, code, rows):
    how = {"01": "python", "02": "python", "03": "mp.spawn", "05": "torchrun, restarts"}
    how |= {"06": "2 torchrun agents", "08": "torchrun, restarts"}
    row = {"lesson": stem, "launched by": how.get(stem[:2], "torchrun"), "processes": processes}
    row |= {"curve": [], "seconds": seconds}
    if code:
        return row | {"same": "failed"}
    row["curve"] = launcher.read_curve(out, stem)
    if stem.startswith("01"):
        return row | {"same": "yes"}
    whose, *limits = launcher.OTHER_CURVES.get(stem[:2], ("01", *launcher.LIMITS))
    if whose == "itself":
        reference = launcher.read_curve(out / "one_process", stem)
    elif rows and rows[0]["curve"]:
        reference = rows[0]["curve"]
    else:
        return row | {"same": "no lesson 01"}
    problem = launcher.difference(row["curve"], reference, limits)
    within = max(limits[:2])
    words = "yes" if limits == list(launcher.LIMITS) else f"yes, within {within:.0%}"
    words = words if within < 0.5 else "roughly"  # the lesson's page says why
    return row | {"same": f"no: {problem}" if problem else words + (", its own" if whose == "itself" else "")}


def show(rows):
    head = (
        "lesson",
        "launched by",
        "processes",
        "final loss",
        "accuracy",
        "images/s",
        "seconds",
        "same curve",
    )
    lines = [head]
    for row in rows:
        last = row["curve"][-1] if row["curve"] else None
        speeds = sorted(point["images_per_second"] for point in row["curve"])
        numbers = (
            (
                f"{last['loss']:.4f}",
                f"{last['accuracy']:.1%}",
                f"{speeds[len(speeds) // 2]:,.0f}" + (" texts" if row["lesson"].startswith("13") else ""),
            )
            if last
            else ("-", "-", "-")
        )
        lines.append(
            (
                row["lesson"],
                row["launched by"],
                str(row["processes"]),
                *numbers,
                f"{row['seconds']:.0f}",
                row["same"],
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    print()
    for line in lines:
        cells = [
            cell.rjust(width) if 2 <= column <= 6 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def picture(rows, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [
        row
        for row in rows
        if row["curve"] and launcher.OTHER_CURVES.get(row["lesson"][:2], "0")[0] != "itself"
    ]
    if not rows:
        return
    # Okabe and Ito's colours, told apart by colour-blind people too.
    colours = [
        "#000000",
        "#E69F00",
        "#56B4E9",
        "#009E73",
        "#D55E00",
        "#CC79A7",
        "#F0E442",
        "#0072B2",
        "#767676",
    ]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for position, (row, colour) in enumerate(zip(rows, colours, strict=False)):
        epochs = [point["epoch"] for point in row["curve"]]
        label = f"{row['lesson']} ({row['processes']})"
        # The first line is the widest, so that those drawn later leave a rim of it in sight.
        style = {
            "color": colour,
            "linewidth": max(1, 13 - 2 * position),
            "solid_capstyle": "round",
            "label": label,
        }
        left.plot(epochs, [point["loss"] for point in row["curve"]], **style)
        right.plot(epochs, [100 * point["accuracy"] for point in row["curve"]], **style)
    left.set(title="loss on the training images", xlabel="epoch", ylabel="mean cross-entropy", yscale="log")
    right.set(title="accuracy on the test images", xlabel="epoch", ylabel="%")
    left.legend(title="lesson (processes)", frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--lessons", default="01,02,03,04,05,06", help="which ones, by their numbers; or all")
    arguments, rest = parser.parse_known_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    climb(arguments, rest)


if __name__ == "__main__":
    main()
