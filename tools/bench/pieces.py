"""What makes a ring of sends and receives as fast as gloo's all-reduce? One improvement after another.

    python tools/bench/pieces.py                        a table, and a dated file in results/pieces
    python tools/bench/pieces.py --pages FILE.json      measure nothing: write README.md from this file

The variants come from notebook 03a (notebooks/show/travel/race.py) and take turns in the same processes. A
repeat takes half a minute; each of its numbers is the median on rank 0.
"""

import argparse
import datetime
import json
import os
import statistics
import sys
from pathlib import Path

import report
import rows

import bench

RESULTS = rows.HERE / "results" / "pieces"
RACE = rows.launcher.ROOT / "notebooks/show/travel/race.py"
COUNTS = (2, 4)
SECONDS = 0.4  # for each variant and size
MIB = 2**20
ENDS = ("<!-- pieces ", "<!-- end -->")


def race(folder: Path, processes: int) -> dict:
    """For each variant and size, the median milliseconds of one all-reduce, and its CPU time."""
    environment = {"STORE": str(folder / "store"), "WORLD_SIZE": str(processes), "SECONDS_EACH": str(SECONDS)}
    folders = ("lessons", "notebooks/show/inside")
    environment["PYTHONPATH"] = os.pathsep.join(str(rows.launcher.ROOT / folder) for folder in folders)
    ranks = [
        rows.start(
            [sys.executable, RACE], folder, RANK=str(rank), RESULT=str(folder / str(rank)), **environment
        )
        for rank in range(processes)
    ]
    for process in ranks:
        rows.finish(process)
    found = json.loads((folder / "0").read_text())
    return {
        way: {
            size: {name: 1000 * statistics.median(times) for name, times in both.items()}
            for size, both in sizes.items()
        }
        for way, sizes in found.items()
    }


def measure(repeats: int) -> dict:
    found = {}
    for repeat in range(repeats):
        for processes in COUNTS:
            with rows.empty_folder() as folder:
                bench.collect(found, {str(processes): race(folder, processes)})
            print(f"repeat {repeat + 1} of {repeats}, {processes} processes", flush=True)
    return found


def table(ways: dict) -> str:
    lines = []
    for size in ways["gloo"]:
        times = {way: sizes[size]["seconds"] for way, sizes in ways.items()}
        ratios = [f"{report.ratio(times['gloo'], times[way]):.2f}" for way in times if way != "gloo"]
        used = [report.middle(ways[way][size]["cpu_seconds"], 1, 1) for way in ("gloo", "ring", "in pieces")]
        lines.append([name_of(size), report.middle(times["gloo"], 1, 2), *ratios, *used])
    head = ["size", "gloo, ms", *[way for way in ways if way != "gloo"]]
    return report.table([*head, "CPU ms: gloo", "ring", "in pieces"], lines)


def least(ways: dict) -> float:
    """The lowest speed relative to gloo, from 1 MiB up."""
    times = {way: ways[way] for way in ("gloo", "in pieces")}
    return min(
        report.ratio(times["gloo"][size]["seconds"], times["in pieces"][size]["seconds"])
        for size in times["gloo"]
        if int(size) >= MIB
    )


def longer(ways: dict, size: int) -> str:
    """How many milliseconds longer the ring in pieces takes than gloo."""
    ours, theirs = (ways[way][str(size)]["seconds"] for way in ("in pieces", "gloo"))
    return f"{statistics.median(one - other for one, other in zip(ours, theirs, strict=True)):.2f}"


def predicted(two: dict, size: str, cores: int) -> list[float]:
    """Milliseconds of gloo's all-reduce on four processes, predicted from the CPU time of one of two processes.

    Each of four sends 6/4 of the tensor, each of two 2/2, and four share the cores. Waiting is not counted.
    """
    return [1.5 * used * 4 / cores for used in two["gloo"][size]["cpu_seconds"]]


def name_of(size: str) -> str:
    return f"{int(size) // MIB} MiB" if int(size) >= MIB else f"{int(size) // 1024} KiB"


def prediction(result: dict) -> str:
    """The table, and for which sizes it is within 20%."""
    two, four = (result["rows"][str(count)] for count in COUNTS)
    lines, near = [], []
    for size, found in four["gloo"].items():
        times, measured = predicted(two, size, result["machine"]["cores"]), found["seconds"]
        off = statistics.median(times) / statistics.median(measured) - 1
        reached = report.reach(measured, 1, 1)
        middles = (report.middle(times, 1, 1), report.middle(measured, 1, 1))
        lines.append([name_of(size), *middles, reached, f"{off:+.0%}"])
        near += [name_of(size)] * (abs(off) <= 0.2)
    head = ["gloo, ms", "predicted", "measured", "range", "error"]
    verdict = f"Within 20% of the measurement (the aim): {', '.join(near) or 'none'}. The other sizes miss this aim."
    return f"{report.table(head, lines)}\n\n{verdict}"


def section(result: dict) -> str:
    two, four = (result["rows"][str(count)] for count in COUNTS)
    return f"""Measured on {report.where(result)}, {result["date"]}, by `python tools/bench/pieces.py`. The variants take turns in the same processes; each number is the median of {result["repeats"]} repeats. The columns after gloo's time give the speed relative to gloo; the last three give the CPU time of one process. Each variant adds one improvement to the previous one: receive buffers that are kept, a connection for each direction, and pieces of 2 MiB, so that one piece is added while the next is sent. On two processes a chunk of a tensor up to 4 MiB is a single piece, and on four processes each neighbour has its own connection anyway. In these cases two variants do the same work, so any difference between them is noise.

On two processes, from 1 MiB up, the ring in pieces reaches at least {least(two):.2f} of gloo's speed {report.verdict(least(two), 1)}. At 64 KiB, where almost no bytes are sent, it takes {longer(two, 2**16)} ms longer than gloo, and at 1 MiB {longer(two, MIB)} ms. This is the cost of the messages, not of the bytes.

{table(two)}

On four processes, the ring in pieces reaches at least {least(four):.2f} of gloo's speed {report.verdict(least(four), 1)}. Each process has two threads, and all of them share {result["machine"]["cores"]} cores, so every step waits for the thread that gets a core last.

{table(four)}

**Predicting four processes from two.** The processes share the cores' CPU time. A process that sends 1.5 times the bytes needs 1.5 times the CPU time, and four processes need twice as much as two. The predicted time of gloo's all-reduce on four processes is this total divided by the number of cores. The formula was written down before the measurement.

{prediction(result)}

For large tensors, sending bytes takes most of the time, and CPU time predicts the duration. For small tensors, messages take most of the time, and CPU time does not predict it: in each of six steps the operating system has to give a core to one of at least eight threads, and this delay is not CPU time.
"""


def replaced(text: str, words: str, source: str, ends: tuple[str, str] = ENDS) -> str:
    before, mark, rest = text.partition(ends[0])
    if not mark:
        sys.exit(f"error: the page has no line that begins with {ends[0].strip()}")
    _, end, after = rest.partition(ends[1])
    return f"{before}{mark}{source} -->\n{words}{end}{after}"


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the dated file")
    parser.add_argument("--pages", type=Path, help="measure nothing: write README.md from this file")
    arguments = parser.parse_args()
    if arguments.pages:
        result = json.loads(arguments.pages.read_text())
        report.PAGE.write_text(replaced(report.PAGE.read_text(), section(result), arguments.pages.name))
        return
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {arguments.repeats}")
    date = datetime.date.today().isoformat()
    result = {"date": date, "machine": bench.machine(), "versions": bench.versions()}
    result |= {"repeats": arguments.repeats, "rows": measure(arguments.repeats)}
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / f"{bench.name_of(result)}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{section(result)}\nKept: {path}")


if __name__ == "__main__":
    main()
