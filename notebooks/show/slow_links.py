"""What tools/makers/bench/slow_links.py has measured: seconds to an accuracy, on links of two rates."""

import json
import math
import statistics
from pathlib import Path

FILE = Path(__file__).with_suffix(".jsonl")
WAYS = {
    "ddp": "DDP",
    "bf16": "bf16",
    "power_sgd": "PowerSGD",
    "local_sgd": "local SGD",
    "diloco": "DiLoCo",
    "diloco 20 0.7 0.9": "DiLoCo, 0.9",
}
JOB = {"epochs": 8, "look_every": 20, "enough": 0.97}


def newest():
    """What the file says about the machine, and a row for each rate and way."""
    run, *rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    return run | {"rows": rows}


def rates_of(result):
    return list(dict.fromkeys(row["rate"] for row in result["rows"]))


def head(result):
    return ["way", "steps to 97%", "MB sent", *(f"seconds, {rate}" for rate in rates_of(result))]


def table(result):
    """A line for each way: steps, megabytes and, for each rate, seconds until it reached the accuracy."""
    lines = []
    for way, name in WAYS.items():
        rows = [row for row in result["rows"] if row["way"] == way]
        times = [seconds(row) for row in rows]
        end = rows[0]["ends"][0]
        steps = "never" if math.inf in times else str(end["step"])
        shown = ["never" if each == math.inf else f"{each:.0f}" for each in times]
        lines.append([name, steps, f"{end['sent'] / 1e6:.1f}", *shown])
    return lines


def seconds(row):
    """Until it reached the accuracy: the median of all repeats, or infinite if one never did."""
    if any(end["accuracy"] < JOB["enough"] for end in row["ends"]):
        return math.inf
    return statistics.median(end["seconds"] for end in row["ends"])
