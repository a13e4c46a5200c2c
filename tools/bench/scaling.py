"""Does it pay to have more processes? `make scaling`. Ends with a table, OUT/scaling.svg and a dated file.

    python tools/bench/scaling.py                                                 measure this machine
    python tools/bench/scaling.py --pages tools/bench/results/scaling/FILE.json   write README.md from a file

It trains lesson 04 on 1, 2 and 4 processes, with the lessons' model and with a wide one: once with one batch
for all processes (strong scaling), and once with a batch for each process (weak scaling). Each run is compared
with as many independent processes, which train at the same time and never communicate: the most that the
machine can do.
"""

import argparse
import datetime
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import pieces
import report
import rows

import bench
import ink
import launcher

STEM = "04_ddp_torchrun"
BATCH = 120
COUNTS = (1, 2, 4)
NAMES = {"small": "the lessons' model", "wide": "a wide model"}
RESULTS = bench.RESULTS / "scaling"
ENDS = ("<!-- scaling ", "<!-- end -->")


def jobs(gpus: int) -> dict[str, tuple]:
    """The options of each model. A GPU needs a wider one than two cores do."""
    if gpus:
        return {"small": ("--epochs", 4), "wide": ("--width", 512, "--epochs", 3)}
    return {"small": ("--epochs", 3), "wide": ("--width", 96, "--epochs", 3, "--train-size", 2400)}


def visible(first: int, count: int, gpus: int) -> dict[str, str]:
    numbers = [str(number % gpus) for number in range(first, first + count)] if gpus else []
    return {"CUDA_VISIBLE_DEVICES": ",".join(dict.fromkeys(numbers)), "SHARE_GPU": "1"}


def together(folder: Path, count: int, size: int, words: tuple, gpus: int) -> float:
    """Images per second of one job on `count` processes."""
    options = (*words, "--batch-size", size)
    rows.finish(rows.lesson(STEM, count, folder, *options, **visible(0, count, gpus)))
    return rows.speed(folder, STEM)


def apart(folder: Path, count: int, size: int, words: tuple, gpus: int) -> float:
    """Images per second of `count` independent jobs, each with its part of the batch."""
    options = (*words, "--batch-size", size // count)
    folders = [folder / str(number) for number in range(count)]
    started = [
        rows.lesson(STEM, 1, each, *options, **visible(number, 1, gpus))
        for number, each in enumerate(folders)
    ]
    for process in started:
        rows.finish(process)
    return sum(rows.speed(each, STEM) for each in folders)


def measure(repeats: int, gpus: int) -> tuple[list[dict], dict[str, str]]:
    """A row for each model, number of processes and kind of scaling, with the speeds of all repeats; and the
    error of each row that failed. A failed row is not tried again, and the other rows go on."""
    found = [
        {"model": model, "processes": count, "batch": size, "together": [], "apart": []}
        for model in NAMES
        for count in COUNTS
        for size in dict.fromkeys((BATCH, BATCH * count))
    ]
    failed = {}
    for repeat in range(1, repeats + 1):
        for row in found:
            words = f"{NAMES[row['model']]:18} | {row['processes']} processes | batch {row['batch']:3}"
            if words in failed:
                continue
            begin, note = time.monotonic(), ""
            run = row["processes"], row["batch"], jobs(gpus)[row["model"]], gpus
            try:
                for how in (together, apart):
                    with rows.empty_folder() as folder:
                        row[how.__name__].append(how(folder, *run))
            except (Exception, SystemExit) as error:
                failed[words], note = str(error), " failed"
            print(f"repeat {repeat} | {words} | {time.monotonic() - begin:.0f} s{note}", flush=True)
    return found, failed


def table(result: dict, is_weak: bool) -> str:
    """As Markdown."""
    lines = []
    rows_of = {(row["model"], row["processes"], row["batch"]): row for row in result["rows"]}
    for model, name in NAMES.items():
        for count in COUNTS:
            row = rows_of[model, count, BATCH * count if is_weak else BATCH]
            speed = f"{statistics.median(row['together']):,.0f}"
            faster = report.ratio(row["together"], rows_of[model, 1, BATCH]["together"])
            allowed = report.ratio(row["together"], row["apart"])
            lines.append([name, str(count), speed, f"{faster:.2f}", f"{allowed:.0%}"])
    return report.table(["model", "processes", "images/s", "speedup", "of independent"], lines)


def section(result: dict) -> str:
    what = result["machine"]
    on = (
        f"{len(what['gpus'])} x {what['gpus'][0]}"
        if what["gpus"]
        else f"{what['cores']} cores of {what['cpu']}"
    )
    return f"""Measured on {on}, torch {result["versions"]["torch"].split("+")[0]}, {result["date"]}; each number is the median of {result["repeats"]} runs. "Speedup" is relative to one process. "Of independent" is relative to the same number of independent processes.

**Strong scaling: one batch of {BATCH} for all processes** (the same job in less time):

{table(result, is_weak=False)}

**Weak scaling: a batch of {BATCH} for each process** (a larger job in the same time):

{table(result, is_weak=True)}
"""


def draw(result: dict, path: Path) -> None:
    figure, both = ink.pyplot().subplots(2, 1, figsize=(ink.WIDTH, 6.5))
    for axes, (model, name) in zip(both, NAMES.items(), strict=True):
        of_model = [row for row in result["rows"] if row["model"] == model]
        kinds = (
            ("one batch for all", lambda row: row["batch"] == BATCH, "#0072B2"),
            ("a batch for each", lambda row: row["batch"] == BATCH * row["processes"], "#D55E00"),
        )
        for label, belongs, colour in kinds:
            chosen = [row for row in of_model if belongs(row)]
            counts = [row["processes"] for row in chosen]
            for key, style, words in (("together", "o-", label), ("apart", ":", f"{label}, independent")):
                speeds = [statistics.median(row[key]) for row in chosen]
                axes.plot(counts, speeds, style, color=colour, label=words)
        axes.set(title=name, xlabel="processes", ylabel="images per second", xticks=COUNTS)
        axes.set_ylim(bottom=0)
    both[1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, fontsize=9)
    ink.save(figure, path)


def write_page(path: Path) -> None:
    """Into README.md of this folder, between its markers."""
    result = json.loads(path.read_text())
    words = pieces.replaced(report.PAGE.read_text(), section(result), path.name, ENDS)
    report.PAGE.write_text(words)
    draw(result, launcher.ROOT / "lessons/pictures/scaling.svg")


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture (out)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the dated file")
    parser.add_argument("--pages", type=Path, help="measure nothing: write README.md from this file")
    arguments = parser.parse_args()
    if arguments.pages:
        write_page(arguments.pages)
        return
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {arguments.repeats}")
    what = bench.machine()
    date = datetime.date.today().isoformat()
    result = {"date": date, "machine": what, "versions": bench.versions(), "repeats": arguments.repeats}
    result["rows"], failed = measure(arguments.repeats, len(what["gpus"]))
    for folder in (arguments.out, arguments.results):
        folder.mkdir(parents=True, exist_ok=True)
    if failed:
        path = arguments.out / f"{bench.name_of(result)}-scaling-incomplete.json"
        path.write_text(json.dumps(result | {"failed": failed}, indent=1) + "\n")
        words = "\n\n".join(f"{name}: {error}" for name, error in failed.items())
        sys.exit(f"{words}\n\nerror: {len(failed)} rows failed; what was measured is kept in {path}")
    path = arguments.results / f"{bench.name_of(result)}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    draw(result, arguments.out / "scaling.svg")
    print(f"\n{report.plain(section(result))}\nKept: {path} and {arguments.out / 'scaling.svg'}")


if __name__ == "__main__":
    main()
