"""Why does DDP hide so little communication inside one machine? Tests of threads, cores and buckets.

    python tools/bench/inside.py                         a table, and a dated file in results/inside
    python tools/bench/inside.py --pages FILE.json       measure nothing: write README.md from it

It times the steps of overlap.py on 64 images, and the steps of small.py with one and two gloo threads. The
variants take turns; a repeat takes a minute.
"""

import argparse
import datetime
import json
import os
import statistics
import sys
from pathlib import Path

import pieces
import report
import rows
import small

import bench

RESULTS = rows.HERE / "results" / "inside"
IMAGES, ROUNDS = 64, 20
WAYS = {
    "as it is": {},
    "each process bound to a core": {"bound": True},
    "one thread of gloo": {"GLOO_THREADS": "1"},
    "one thread, bound to a core": {"bound": True, "GLOO_THREADS": "1"},
    "buckets of 1 MiB": {"BUCKET_MIB": "1"},
    "buckets of 16 MiB": {"BUCKET_MIB": "16"},
}
THREADS = (1, 2)
ENDS = ("<!-- inside ", "<!-- end -->")


def overlap(folder: Path, bound: bool = False, **given: str) -> dict:
    """Milliseconds of each kind of step, and its CPU time."""
    environment = {"STORE": str(folder / "store"), "WORLD_SIZE": "2", **given}
    cores = sorted(os.sched_getaffinity(0))
    ranks = []
    for rank in (0, 1):
        words = [sys.executable, rows.HERE / "overlap.py", IMAGES, ROUNDS]
        if bound:
            words = ["taskset", "--cpu-list", cores[rank % len(cores)], *words]
        ranks.append(rows.start(words, folder, RANK=str(rank), **environment))
    said, _ = [rows.finish(process)[0] for process in ranks]
    found = json.loads(said)
    return {
        name: {kind: 1000 * value for kind, value in found[name].items()}
        for name in ("seconds", "cpu_seconds")
    }


def measure(repeats: int) -> dict:
    found = {}
    for repeat in range(repeats):
        numbers = {"overlap": {}, "small": {}}
        for way, given in WAYS.items():
            with rows.empty_folder() as folder:
                numbers["overlap"][way] = overlap(folder, **given)
        for threads in THREADS:
            with rows.empty_folder() as folder:
                numbers["small"][str(threads)] = small.run(folder, "free", GLOO_THREADS=str(threads))
        bench.collect(found, numbers)
        print(f"repeat {repeat + 1} of {repeats}", flush=True)
    return found


def faster(way: dict) -> float:
    return report.ratio(way["seconds"]["after"], way["seconds"]["overlap"])


def at_most(way: dict) -> float:
    """The speedup of a DDP step if it took no longer than its CPU time."""
    return report.ratio(way["seconds"]["after"], way["cpu_seconds"]["overlap"])


def section(result: dict) -> str:
    ways, steps = result["rows"]["overlap"], result["rows"]["small"]
    lines = []
    for way, found in ways.items():
        cells = [report.middle(found["seconds"][kind], 1, 1) for kind in ("alone", "after", "overlap")]
        used = [report.middle(found["cpu_seconds"][kind], 1, 1) for kind in ("alone", "overlap")]
        lines.append([way, *cells, f"{faster(found):.2f}", *used, f"{at_most(found):.2f}"])
    head = ["milliseconds of a step", "nothing sent", "sent after backward", "as DDP does it", "speedup"]
    head += ["CPU: nothing sent", "CPU: DDP", "speedup at most"]
    plain = ways["as it is"]
    times = [statistics.median(found["seconds"]["overlap"]) for found in ways.values()]
    one, two = (steps[str(threads)] for threads in THREADS)
    return f"""Measured on {report.where(result)}, {result["date"]}, by `python tools/bench/inside.py`: the model of 8 million parameters on two processes, 64 images each. Each number is the median of {ROUNDS} steps of each kind, which take turns, and of {result["repeats"]} repeats. The last column assumes that no process ever waits, so that a DDP step takes exactly its CPU time.

{report.table(head, lines)}

As it is, a DDP step is {faster(plain):.2f} times as fast as a step that sends after backward {report.verdict(faster(plain), 1.2)}. All variants of DDP take {min(times):.0f} to {max(times):.0f} ms. Buckets of 1 MiB do not make DDP faster; their speedup is large only because sending after backward becomes slower ({report.middle(ways["buckets of 1 MiB"]["seconds"]["after"])} ms). Communication costs {more(plain):.0f} ms of CPU time per step. With one core per process, nothing can hide this time, so even without any waiting the speedup would be at most {at_most(plain):.2f}.

**Gloo's threads.** `init_process_group` has no option for their number, but the group itself has a private one (`ProcessGroupGloo._Options`): by default two threads work on queued operations, and one more handles the connections. With one such thread, lesson 04's DDP step takes {report.middle(one["DDP"]["seconds"], 1, 2)} ms and reaches {small.share(one, "DDP"):.2f} of the speed of a step that sends nothing. With two, it takes {report.middle(two["DDP"]["seconds"], 1, 2)} ms and reaches {small.share(two, "DDP"):.2f}.
"""


def more(way: dict) -> float:
    """How many more milliseconds of CPU time a DDP step takes than a step that sends nothing."""
    used = way["cpu_seconds"]
    return statistics.median(used["overlap"]) - statistics.median(used["alone"])


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the dated file")
    parser.add_argument("--pages", type=Path, help="measure nothing: write README.md from this file")
    arguments = parser.parse_args()
    if arguments.pages:
        result = json.loads(arguments.pages.read_text())
        words = pieces.replaced(report.PAGE.read_text(), section(result), arguments.pages.name, ENDS)
        report.PAGE.write_text(words)
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
