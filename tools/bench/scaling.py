"""Does it pay to have more processes? `make scaling`. Ends with a table, OUT/scaling.svg and a dated file.

    python -m tools.bench.scaling                                                 measure this machine
    python -m tools.bench.scaling --pages tools/bench/results/scaling/FILE.json   write README.md from a file

It trains lesson 04 on 1, 2 and 4 processes, with the lessons' model and with a wide one: once with one batch
for all processes (strong scaling), and once with a batch for each process (weak scaling). Each run is compared
with as many independent processes, which train at the same time and never communicate: the most that the
machine can do.
"""

import statistics
from pathlib import Path

from tools import ink
from tools.bench import bench, report, rows

STEM = "04_ddp_torchrun"
BATCH = 120
COUNTS = (1, 2, 4)
NAMES = {"small": "the lessons' model", "wide": "a wide model"}
ROWS = [(model, n, size) for model in NAMES for n in COUNTS for size in dict.fromkeys((BATCH, BATCH * n))]
RESULTS = bench.RESULTS / "scaling"


def jobs(gpus: int) -> dict[str, tuple]:
    """The options of each model. A GPU needs a wider one than two cores do."""
    if gpus:
        return {"small": ("--epochs", 4), "wide": ("--width", 512, "--epochs", 3)}
    return {"small": ("--epochs", 3), "wide": ("--width", 96, "--epochs", 3, "--train-size", 2400)}


def visible(first: int, count: int, gpus: int) -> dict[str, str]:
    numbers = [str(number % gpus) for number in range(first, first + count)] if gpus else []
    return {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(numbers)), "SHARE_GPU": "1"}


def speed(folder: Path, jobs: int, count: int, size: int, words: tuple, gpus: int) -> float:
    """Images per second of so many independent jobs, on `count` processes each, which share a batch."""
    folders = [folder / str(number) for number in range(jobs)]
    options = (*words, "--batch-size", size // jobs)
    started = [
        rows.lesson(STEM, count, each, *options, **visible(number * count, count, gpus))
        for number, each in enumerate(folders)
    ]
    for process in started:
        rows.finish(process)
    return sum(rows.speed(each, STEM) for each in folders)


def named(model: str, count: int, size: int) -> str:
    return f"{NAMES[model]}, {count} processes, batch {size}"


def measures(gpus: int) -> dict:
    """By name, what measures a row: each model, number of processes and kind of scaling."""

    def both(model, count, size):
        def run(folder):
            speeds = {}
            for how, shape in (("together", (1, count)), ("apart", (count, 1))):
                with rows.empty_folder() as empty:
                    speeds[how] = speed(empty, *shape, size, jobs(gpus)[model], gpus)
            return {named(model, count, size): speeds}

        return run

    return {named(*row): both(*row) for row in ROWS}


def in_rows(found: dict) -> list[dict]:
    nothing = {"together": [], "apart": []}
    return [
        {"model": model, "processes": count, "batch": size} | found.get(named(model, count, size), nothing)
        for model, count, size in ROWS
    ]


def table(result: dict, is_weak: bool) -> str:
    """As Markdown."""
    lines = []
    rows_of = {(row["model"], row["processes"], row["batch"]): row for row in result["rows"]}
    for model, name in NAMES.items():
        for count in COUNTS:
            row = rows_of[model, count, BATCH * count if is_weak else BATCH]
            faster = report.ratio(row["together"], rows_of[model, 1, BATCH]["together"])
            allowed = report.ratio(row["together"], row["apart"])
            lines.append([name, count, report.middle(row["together"]), f"{faster:.2f}", f"{allowed:.0%}"])
    return report.table(["model", "processes", "images/s", "speedup", "of independent"], lines)


def section(result: dict, path: Path) -> str:
    what = result["machine"]
    gpus, cores = what["gpus"], f"{what['cores']} cores of {what['cpu']}"
    on = f"{len(gpus)} x {gpus[0]}" if gpus else cores
    return f"""Measured on {on}, torch {result["versions"]["torch"].split("+")[0]}, {result["date"]}; each number is the median of {result["repeats"]} runs. "Speedup" is relative to one process. "Of independent" is relative to the same number of independent processes.

**Strong scaling: one batch of {BATCH} for all processes** (the same job in less time):

{table(result, is_weak=False)}

**Weak scaling: a batch of {BATCH} for each process** (a larger job in the same time):

{table(result, is_weak=True)}"""


def draw(result: dict, path: Path) -> None:
    figure, both = ink.pyplot().subplots(2, 1, figsize=(ink.WIDTH, 6.5))
    kinds = (("one batch for all", False, "#0072B2"), ("a batch for each", True, "#D55E00"))
    for axes, (model, name) in zip(both, NAMES.items(), strict=True):
        for label, is_weak, colour in kinds:
            sizes = {count: BATCH * count if is_weak else BATCH for count in COUNTS}
            chosen = [
                row
                for row in result["rows"]
                if row["model"] == model and row["batch"] == sizes[row["processes"]]
            ]
            for key, style, words in (("together", "o-", label), ("apart", ":", f"{label}, independent")):
                speeds = [statistics.median(row[key]) for row in chosen]
                axes.plot(list(sizes), speeds, style, color=colour, label=words)
        axes.set(title=name, xlabel="processes", ylabel="images per second", xticks=COUNTS)
        axes.set_ylim(bottom=0)
    both[1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, fontsize=9)
    ink.save(figure, path)


def main() -> None:
    arguments = bench.parse(__doc__, RESULTS)
    if arguments.readme:
        report.write_page("scaling", arguments.readme, section, draw)
        return
    gpus = len(bench.machine()["gpus"])
    bench.run(arguments, measures(gpus), section, draw, in_rows, "scaling")


if __name__ == "__main__":
    main()
