"""DDP and four ways to send fewer bytes, on two hosts whose link has a limited rate: which is the fastest?

    python -m tools.bench.slow_links                      measure this machine
    python -m tools.bench.slow_links --rates 10mbit       at one rate only

For each rate and each way, this runs lesson 04's job on two processes until it recognizes 97% of the test
images. It measures seconds (without the time for testing), steps, and the bytes that one process sent. Two
network namespaces are the hosts, and the kernel limits the rate of their link (tbf). The results go into a
dated file in results/links. Notebook 07a shows the newest file.
"""

import functools
import json
import math
import statistics
import sys
from pathlib import Path

from tools import lessons
from tools.bench import bench, rows
from tools.testbed import hosts

RESULTS = bench.RESULTS / "links"
SCRIPT = lessons.ROOT / "notebooks/show/rank_scripts/s07a_five_ways.py"
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
    asked = {"RUNS": json.dumps(runs), "SIZES": json.dumps(sizes)}
    rows.on_two_hosts(folder, rate, BURST, SCRIPT, limit=LIMIT, **asked)
    return json.loads((folder / "0.json").read_text())


def measures(rates: tuple[str, ...], ends: list[dict]) -> dict:
    """What measures each rate and way. A row of `ends` gets what the run needed to reach the accuracy."""

    def one(folder, row):
        row["ends"].append(on_two_hosts(folder, row["rate"], [{"way": row["way"], **JOB}])[0][-1])
        return {row["rate"]: {row["way"]: row["ends"][-1]["seconds"]}}

    ends += [{"rate": rate, "way": way, "ends": []} for rate in rates for way in WAYS]
    return {f"{row['rate']}, {row['way']}": functools.partial(one, row=row) for row in ends}


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
    parser = bench.options(__doc__, RESULTS)
    parser.add_argument("--rates", nargs="+", default=RATES, help="as tc writes them (%(default)s)")
    arguments = bench.parse(parser)
    if hosts.why_not():
        sys.exit(f"error: this needs network namespaces ({hosts.why_not().strip()}): run make tools")
    ends: list[dict] = []
    result, path = bench.run(arguments, measures(arguments.rates, ends), in_rows=lambda found: ends)
    for line in [head(result), *table(result)]:
        print(" | ".join(f"{cell:>14}" for cell in line))
    print(f"\nKept: {path}")


if __name__ == "__main__":
    main()
