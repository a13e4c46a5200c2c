"""DDP and four ways to send fewer bytes, on two hosts whose link has a limited rate: which is the fastest?

    python -m tools.makers.bench.slow_links                      measure this machine
    python -m tools.makers.bench.slow_links --rates 10mbit       at one rate only

For each rate and each way, this runs lesson 04's job on two processes until it recognizes 97% of the test
images. It measures seconds (without the time for testing), steps, and the bytes that one process sent. Two
network namespaces are the hosts, and the kernel limits the rate of their link (tbf). The results go into a
dated file in OUT/results; notebook 07a shows such a file, notebooks/show/slow_links.jsonl.
"""

import functools
import json
import sys
from pathlib import Path

from show.slow_links import JOB, WAYS, head, table
from tools import lessons
from tools.makers.bench import bench, rows
from tools.testbed import hosts

SCRIPT = lessons.ROOT / "notebooks/show/rank_scripts/s07a_five_ways.py"
RATES = ("1gbit", "10mbit")
# This many bytes may pass at once, without waiting: far fewer than the 129 KB of a gradient.
BURST = "16kb"
SIZES = (12_000, 2_000)
LIMIT = 500


def on_two_hosts(folder: Path, rate: str, runs: list[dict], sizes: tuple[int, int] = SIZES) -> list:
    """Run one after the other on two hosts with a link of this rate, and return what each run found."""
    asked = {"RUNS": json.dumps(runs), "SIZES": json.dumps(sizes)}
    rows.on_two_hosts(folder, rate, BURST, SCRIPT, limit=LIMIT, **asked)
    return json.loads((folder / "0.json").read_text())


def measure(folder, row):
    """Run until the model is good enough, and add what this took to the row."""
    looks = on_two_hosts(folder, row["rate"], [{"way": row["way"], **JOB}])[0]
    row["ends"].append(looks[-1])
    return {row["rate"]: {row["way"]: looks[-1]["seconds"]}}


def main() -> None:
    parser = bench.options(__doc__)
    parser.add_argument("--rates", nargs="+", default=RATES, help="as tc writes them (%(default)s)")
    arguments = bench.parse(parser)
    if hosts.why_not():
        sys.exit(f"error: this needs network namespaces ({hosts.why_not().strip()}): run make tools")
    ends = []
    measures = {}
    for rate in arguments.rates:
        for way in WAYS:
            ends.append({"rate": rate, "way": way, "ends": []})
            measures[f"{rate}, {way}"] = functools.partial(measure, row=ends[-1])

    about, _, path = bench.run(arguments, measures, "slow-links", as_rows=lambda found: ends)
    measured = {**about, "rows": ends}
    for line in [head(measured), *table(measured)]:
        print(" | ".join(f"{cell:>14}" for cell in line))
    print(f"\nKept: {path}")


if __name__ == "__main__":
    main()
