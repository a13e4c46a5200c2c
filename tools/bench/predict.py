"""How long do an all-reduce and a training step take on a link of known rate? Predicted, then measured.

    python tools/bench/predict.py                        a table, and a dated file in results/predict
    python tools/bench/predict.py --add FILE.json        the same, appended to the repeats in this file
    python tools/bench/predict.py --pages FILE.json      measure nothing: write README.md from it

The inputs of the prediction are measured on this machine without a link. The hosts are network namespaces, and
the kernel limits their links to the rate (tbf). A repeat takes a minute and a half.
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import time
from pathlib import Path

import pieces
import report
import rows

import bench

RESULTS = rows.HERE / "results" / "predict"
MIB = 2**20
SIZES = [MIB, 4 * MIB, 16 * MIB, 64 * MIB]
ROUNDS = 2  # of all sizes, after one that opens the connections
COUNTS = (2, 4)
RATES = {"200mbit": 2e8, "1gbit": 1e9, "10gbit": 1e10}  # as tc writes them, and bits a second
# An idle link passes this many bytes at once, and the rest at its rate. With less than an unsegmented packet
# (64 KiB), the kernel segments the packet itself, and the cores need more time than the link.
BURST = 256 * 2**10
# A packet carries 1448 bytes of the tensor after the headers of Ethernet (14), IP (20) and TCP (32).
OVERHEAD = (1448 + 14 + 20 + 32) / 1448
IMAGES, STEPS = 512, 3  # the steps of overlap.py
STEP_RATES = ("200mbit", "1gbit")
ENDS = ("<!-- predict ", "<!-- end -->")


# ---- the prediction -----------------------------------------------------------------------------


def on_the_link(size: float, hosts: int, rate: float) -> float:
    """Seconds that an idle link takes for the bytes that its host sends in an all-reduce."""
    return max(0, 2 * (hosts - 1) / hosts * size * OVERHEAD - BURST) * 8 / rate


def on_the_cores(used: float, hosts: int, cores: int) -> float:
    """Seconds that the hosts' CPU time takes: they are on one machine and share its cores."""
    return used * hosts / cores


def predicted(size: int, hosts: int, rate: float, used: float, cores: int) -> float:
    return on_the_link(size, hosts, rate) + on_the_cores(used, hosts, cores)


def predicted_steps(size: int, rate: float, alone: float, used: float, cores: int) -> dict[str, float]:
    """Seconds of a step on two hosts: sending after backward, and with DDP. `alone`: without sending.

    Backward takes twice as long as forward, and DDP sends during backward.
    """
    link, copying = on_the_link(size, 2, rate), on_the_cores(used, 2, cores)
    return {"after": alone + link + copying, "overlap": alone / 3 + max(alone * 2 / 3, link) + copying}


# ---- the measurement ----------------------------------------------------------------------------


def work() -> dict:
    """Milliseconds of an all-reduce of each size, and the CPU time of a process."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.zeros(SIZES[0] // 4))
    found = {size: {"seconds": [], "cpu_seconds": []} for size in SIZES}
    for _ in range(ROUNDS):
        for size, times in found.items():
            tensor = torch.zeros(size // 4)
            dist.barrier()
            time.sleep(0.05)  # else bytes of the last all-reduce would still occupy the link
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            dist.all_reduce(tensor)
            times["seconds"].append(1000 * (time.perf_counter() - begin))
            times["cpu_seconds"].append(1000 * (time.process_time() - used))
    dist.barrier()
    return {
        size: {name: statistics.median(values) for name, values in times.items()}
        for size, times in found.items()
    }


def without_a_link(folder: Path, count: int) -> dict:
    environment = {"STORE": str(folder / "store"), "WORLD_SIZE": str(count)}
    ranks = [
        rows.start([sys.executable, Path(__file__)], folder, RANK=str(rank), **environment)
        for rank in range(count)
    ]
    said, *_ = [rows.finish(process)[0] for process in ranks]
    return json.loads(said)


def on_hosts(folder: Path, count: int, rate: str, words: list) -> dict:
    """What rank 0 prints when one rank runs on each host."""
    with rows.hosts.Hosts(folder, count) as several:
        for number in range(1, count + 1):
            shape = ("rate", rate, "burst", BURST, "latency", "100ms")
            several.call("tc", "qdisc", "add", "dev", f"link{number}", "root", "tbf", *shape)
        environment = rows.ENVIRONMENT | {"STORE": str(folder / "store"), "WORLD_SIZE": str(count)}
        environment |= {"GLOO_SOCKET_IFNAME": "eth0"}
        ranks = [
            several.run(rank + 1, sys.executable, *words, environment=environment | {"RANK": str(rank)})
            for rank in range(count)
        ]
        if [command.finish(rows.LIMIT) for command in ranks] != [0] * count:
            sys.exit("error: it failed on the hosts:\n" + "".join(command.output() for command in ranks))
        return json.loads(ranks[0].output().splitlines()[-1])


def steps(found: dict) -> dict:
    times = {name: 1000 * value for name, value in found["seconds"].items()}
    return times | {"bytes": found["bytes"], "CPU, sent": 1000 * found["cpu_seconds"]["sent"]}


def all_reduces() -> dict:
    found = {"none": {}, "link": {rate: {} for rate in RATES}}
    for count in COUNTS:
        with rows.empty_folder() as folder:
            found["none"][str(count)] = without_a_link(folder, count)
    for rate in RATES:
        for count in COUNTS:
            with rows.empty_folder() as folder:
                found["link"][rate][str(count)] = on_hosts(folder, count, rate, [Path(__file__)])
    return found


def training() -> dict:
    with rows.empty_folder() as folder:
        found = {"none": steps(rows.start_ranks("overlap.py", folder, IMAGES, 3 * STEPS))}
    for rate in STEP_RATES:
        with rows.empty_folder() as folder:
            found[rate] = steps(on_hosts(folder, 2, rate, [rows.HERE / "overlap.py", IMAGES, STEPS]))
    return {"steps": found}


PARTS = {"all-reduces": all_reduces, "steps": training}


def measure(parts: list[str], repeats: int, found: dict) -> dict:
    for repeat in range(repeats):
        for part in parts:
            bench.collect(found, PARTS[part]())
        print(f"repeat {repeat + 1} of {repeats}", flush=True)
    return found


# ---- the words ----------------------------------------------------------------------------------


def lines_of(result: dict, count: int) -> list[tuple]:
    """Rate, size, the link's part of the prediction, the prediction, and the measurements, in milliseconds."""
    cores, lines = result["machine"]["cores"], []
    for rate, bits in RATES.items():
        for size, found in result["rows"]["link"][rate][str(count)].items():
            used = statistics.median(result["rows"]["none"][str(count)][size]["cpu_seconds"]) / 1000
            link = 1000 * on_the_link(int(size), count, bits)
            lines.append(
                (rate, size, link, 1000 * predicted(int(size), count, bits, used, cores), found["seconds"])
            )
    return lines


def off(prediction: float, measured: list[float]) -> float:
    return prediction / statistics.median(measured) - 1


def shown(prediction: float, measured: list[float]) -> list[str]:
    digits = 1 if prediction < 1000 else 0
    middles = [f"{prediction:,.{digits}f}", report.middle(measured, 1, digits)]
    return [*middles, report.reach(measured, 1, digits), f"{off(prediction, measured):+.0%}"]


HEAD = ["predicted", "measured", "range", "error"]


def table(result: dict, count: int) -> str:
    lines = [
        [NAMES[rate], pieces.name_of(size), f"{link:,.1f}", f"{time - link:.1f}", *shown(time, measured)]
        for rate, size, link, time, measured in lines_of(result, count)
    ]
    return report.table([f"{count} hosts, ms", "size", "link", "cores", *HEAD], lines)


NAMES = {"200mbit": "200 Mbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s"}


def verdict(result: dict) -> str:
    """How many predictions are within 20%, by rate."""
    near = {rate: [] for rate in RATES}
    for count in COUNTS:
        for rate, _, _, expected, measured in lines_of(result, count):
            near[rate].append(abs(off(expected, measured)) <= 0.2)
    words = [f"{sum(found)} of {len(found)} at {NAMES[rate]}" for rate, found in near.items()]
    return f"Within 20% of the measurement (the aim): {', '.join(words)}."


def step_table(result: dict) -> str:
    found, lines = result["rows"]["steps"], []
    alone, used, size = (statistics.median(found["none"][name]) for name in ("alone", "CPU, sent", "bytes"))
    cores = result["machine"]["cores"]
    kinds = {"after": "sent after backward", "overlap": "as DDP does it"}
    for rate in STEP_RATES:
        times = predicted_steps(size, RATES[rate], alone / 1000, used / 1000, cores)
        for kind, words in kinds.items():
            lines.append([NAMES[rate], words, *shown(1000 * times[kind], found[rate][kind])])
    return report.table(["ms", "step", *HEAD], lines)


def section(result: dict) -> str:
    step = result["rows"]["steps"]["none"]
    repeats = len(result["rows"]["none"]["2"][str(MIB)]["seconds"])
    alone, size = report.middle(step["alone"]), report.middle(step["bytes"], 1e-6)
    used = [
        report.middle(found["2"][str(64 * MIB)]["cpu_seconds"])
        for found in (result["rows"]["none"], result["rows"]["link"]["10gbit"])
    ]
    return f"""Measured on {report.where(result)}, {result["date"]}, by `python tools/bench/predict.py`; each number is the median of {repeats} repeats. The hosts are network namespaces on this one machine, and the kernel limits the link of each host to the given rate in both directions.

The prediction is the time on the link plus the time on the cores. With n hosts, each host sends 2(n - 1)/n times the size of the tensor. Headers add {OVERHEAD - 1:.1%} (66 bytes per 1,448 bytes of data). The kernel does not slow down the first {BURST // 1024} KiB. The time on the cores is the CPU time that a process needs without a link, times the number of processes, divided by the number of cores. These formulas were written down before the measurement.

{table(result, 2)}

{table(result, 4)}

{verdict(result)} For 64 MiB one process uses {used[0]} ms of CPU time without a link, and {used[1]} ms on two hosts at 10 Gbit/s. The network of the namespaces needs the cores too, which the prediction does not include.

**A training step** with {size} MB of gradients on two hosts, {len(step["alone"])} repeats. Without sending, a step takes {alone} ms on this machine, a third of it forward and two thirds backward. The prediction adds the link's time if gradients are sent after backward. With DDP, it adds only the link's time that exceeds backward. Both add the cores' time.

{step_table(result)}
"""


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the dated file")
    parser.add_argument("--add", type=Path, help="append the new repeats to this file")
    parser.add_argument("--pages", type=Path, help="measure nothing: write README.md from this file")
    arguments = parser.parse_args()
    if arguments.pages:
        result = json.loads(arguments.pages.read_text())
        words = pieces.replaced(report.PAGE.read_text(), section(result), arguments.pages.name, ENDS)
        report.PAGE.write_text(words)
        return
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {arguments.repeats}")
    if rows.hosts.why_not():
        sys.exit(f"error: no network namespaces here ({rows.hosts.why_not().strip()}): make tools")
    date = datetime.date.today().isoformat()
    result = {
        "date": date,
        "machine": bench.machine(),
        "versions": bench.versions(),
        "rows": {},
    }
    if arguments.add:
        before = json.loads(arguments.add.read_text())
        if any(before[name] != result[name] for name in ("date", "machine", "versions")):
            sys.exit(f"error: {arguments.add} is of another day or machine: leave --add out")
        result = before
    elif set(arguments.parts) != set(PARTS):
        parser.error("--parts needs --add: the page needs both parts")
    measure(arguments.parts, arguments.repeats, result["rows"])
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / f"{bench.name_of(result)}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\n{section(result)}\nKept: {path}")


if __name__ == "__main__":
    if "STORE" in os.environ:  # as one of the ranks
        import ranks

        ranks.together(work)
    else:
        main()
