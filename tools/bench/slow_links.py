"""DDP and four ways to send fewer bytes, on two hosts whose link has a limited rate: which is the fastest?

    python tools/bench/slow_links.py                      measure this machine
    python tools/bench/slow_links.py --rates 10mbit       at one rate only

For each rate and each way, this runs lesson 04's job on two processes until it recognizes 97% of the test
images. It measures seconds (without the time for testing), steps, and the bytes that one process sent. Two
network namespaces are the hosts, and the kernel limits the rate of their link (tbf). The results go into a
dated file in results/links. Notebook 07a shows the newest file.
"""

import argparse
import datetime
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import rows

import bench
import hosts
import lessons

RESULTS = bench.RESULTS / "links"
SCRIPT = lessons.ROOT / "notebooks/show/inside/few_bytes.py"
WAYS = {
    "ddp": "DDP",
    "bf16": "bf16",
    "power_sgd": "PowerSGD",
    "local_sgd": "local SGD",
    "diloco": "DiLoCo",
    "diloco 20 0.7 0.9": "DiLoCo, 0.9",
}
RATES = ("1gbit", "10mbit")
# This many bytes may pass at once, without waiting: far fewer than the 129 KB of a gradient.
BURST = "16kb"
JOB = {"epochs": 8, "look_every": 20, "enough": 0.97}
SIZES = (12_000, 2_000)
LIMIT = 500


def on_two_hosts(folder: Path, rate: str, runs: list[dict], sizes: tuple[int, int] = SIZES) -> list:
    """Run one after the other on two hosts with a link of this rate, and return what each run found."""
    with hosts.Hosts(folder, 2) as two:
        for number in (1, 2):
            shape = ("rate", rate, "burst", BURST, "latency", "100ms")
            two.call("tc", "qdisc", "add", "dev", f"link{number}", "root", "tbf", *shape)
        environment = {"STORE": folder / "store", "WORLD_SIZE": 2, "GLOO_SOCKET_IFNAME": "eth0"}
        environment |= {"RUNS": json.dumps(runs), "SIZES": json.dumps(sizes), "OMP_NUM_THREADS": 1}
        environment |= {"PYTHONPATH": lessons.ROOT / "lessons"}
        started = []
        for rank in (0, 1):
            own = environment | {"RANK": rank, "RESULT": folder / f"{rank}.json"}
            own = {name: str(value) for name, value in own.items()}
            started.append(two.run(rank + 1, sys.executable, SCRIPT, environment=own))
        if [command.finish(LIMIT) for command in started] != [0, 0]:
            raise RuntimeError("\n".join(command.output() for command in started))
        return json.loads((folder / "0.json").read_text())


def measure(rates: tuple[str, ...], repeats: int) -> list[dict]:
    """A row for each rate and way, with what each repeat needed to reach the accuracy."""
    found = [{"rate": rate, "way": way, "ends": []} for rate in rates for way in WAYS]
    for repeat in range(1, repeats + 1):
        for row in found:
            begin = time.monotonic()
            with rows.empty_folder() as folder:
                run = {"way": row["way"], **JOB}
                curve = on_two_hosts(folder, row["rate"], [run])[0]
            row["ends"].append(curve[-1])
            took = time.monotonic() - begin
            print(f"repeat {repeat} | {row['rate']:7} | {row['way']:9} | {took:3.0f} s", flush=True)
    return found


def rates_of(result: dict) -> list[str]:
    return list(dict.fromkeys(row["rate"] for row in result["rows"]))


def head(result: dict) -> list[str]:
    return ["way", "steps to 97%", "MB sent", *(f"seconds, {rate}" for rate in rates_of(result))]


def table(result: dict) -> list[list[str]]:
    """A line for each way: steps, megabytes and, for each rate, seconds until it reached the accuracy."""
    lines = []
    for way, name in WAYS.items():
        of_way = {row["rate"]: row for row in result["rows"] if row["way"] == way}
        times = [seconds(of_way[rate]) for rate in rates_of(result)]
        end = of_way[rates_of(result)[0]]["ends"][0]
        steps = "never" if math.inf in times else str(end["step"])
        times = ["never" if each == math.inf else f"{each:.0f}" for each in times]
        lines.append([name, steps, f"{end['sent'] / 1e6:.1f}", *times])
    return lines


def seconds(row: dict) -> float:
    """Until it reached the accuracy: the median of all repeats, or infinite if one never did."""
    good = all(end["accuracy"] >= JOB["enough"] for end in row["ends"])
    return statistics.median(end["seconds"] for end in row["ends"]) if good else math.inf


def newest() -> dict:
    return json.loads(max(RESULTS.glob("*.json"), key=lambda path: path.stem[-10:]).read_text())


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--rates", nargs="+", default=RATES, help="as tc writes them (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the dated file")
    arguments = parser.parse_args()
    if hosts.why_not():
        sys.exit(f"error: this needs network namespaces ({hosts.why_not().strip()}): run make tools")
    date = datetime.date.today().isoformat()
    result = {"date": date, "machine": bench.machine(), "versions": bench.versions()}
    load = os.getloadavg()[1]  # other work on the machine: at a fast link, the seconds depend on its cores
    found = measure(arguments.rates, arguments.repeats)
    load = [round(load, 1), round(os.getloadavg()[1], 1)]
    result |= {"repeats": arguments.repeats, "load": load, "rows": found}
    arguments.results.mkdir(parents=True, exist_ok=True)
    path = arguments.results / f"{bench.name_of(result)}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(" | ".join(f"{cell:>14}" for cell in line) for line in [head(result), *table(result)]))
    print(f"Kept: {path}")


if __name__ == "__main__":
    main()
