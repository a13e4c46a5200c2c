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
    run, *rows = map(json.loads, FILE.read_text().splitlines())
    return run | {"rows": rows}


def rates_of(result):
    rates = []
    for row in result["rows"]:
        if row["rate"] not in rates:
            rates.append(row["rate"])
    return rates


def head(result):
    names = ["way", "steps to 97%", "MB sent"]
    for rate in rates_of(result):
        names.append(f"seconds, {rate}")
    return names


def table(result):
    """A line for each way: steps, megabytes and, for each rate, seconds until it reached the accuracy."""
    lines = []
    for way, name in WAYS.items():
        rows = [row for row in result["rows"] if row["way"] == way]
        times = list(map(seconds, rows))
        end = rows[0]["ends"][0]
        steps = "never" if math.inf in times else str(end["step"])
        line = [name, steps, f"{end['sent'] / 1e6:.1f}"]
        for each in times:
            line.append("never" if each == math.inf else f"{each:.0f}")
        lines.append(line)
    return lines


def seconds(row):
    """Until it reached the accuracy: the median of all repeats, or infinite if one never did."""
    times = []
    for end in row["ends"]:
        if end["accuracy"] < JOB["enough"]:
            return math.inf
        times.append(end["seconds"])
    return statistics.median(times)
