"""What tools/makers/critical_batch.py has measured: the steps that each batch size needs to reach a loss."""

import json
import math
import statistics
from pathlib import Path

import matplotlib.pyplot as plt
import numpy

from show.pictures import BLUE, GREY, picture

FILE = Path(__file__).with_suffix(".jsonl")


def newest():
    """What the file says about the job and the machine, and a row for each run."""
    about, *rows = map(json.loads, FILE.read_text().splitlines())
    return about | {"rows": rows}


def best_rates(rows):
    """For each batch size, the learning rate that needed the fewest steps, and the steps of its runs."""
    runs = {}
    for row in rows:
        steps = math.inf if row["steps"] is None else row["steps"]
        runs.setdefault((row["size"], row["rate"]), []).append(steps)
    best = {}
    for (size, rate), steps in runs.items():
        if size not in best or statistics.median(steps) < statistics.median(best[size][1]):
            best[size] = rate, sorted(steps)
    return best


def medians(best):
    return {size: statistics.median(steps) for size, (_, steps) in best.items()}


def model(size, fewest, critical):
    """The steps that a batch size needs, by McCandlish and others (2018)."""
    return fewest * (1 + critical / size)


def fit(steps):
    """The fewest steps and the critical batch size with which the model is closest to all these steps.

    Closest on a logarithmic scale: without it, only the small batches, which need many steps, would count.
    """
    best = None
    for critical in range(1, 2001):
        logs = []
        for size, found in steps.items():
            logs.append(math.log(found / model(size, 1, critical)))
        error = statistics.pvariance(logs)
        if best is None or error < best[0]:
            best = error, math.exp(statistics.mean(logs)), critical
    return best[1:]


def fits_without_one(steps):
    """The critical batch sizes of the fits in which one of the batch sizes is left out."""
    found = []
    for left_out in steps:
        others = dict(steps)
        del others[left_out]
        found.append(fit(others)[1])
    return found


def draw(best, fewest, critical):
    """Steps by batch size, and the fitted curve with its two limits, which meet at the critical batch."""
    sizes = list(best)
    low = sizes[0] / 1.3
    high = sizes[-1] * 1.3
    along = numpy.geomspace(low, high, 201)
    axes = plt.figure(figsize=(5, 4)).add_subplot()
    limits = {"color": GREY, "lw": 1.5}
    axes.plot(along, model(along, fewest, critical), color=BLUE, lw=2)
    axes.plot(along, fewest * critical / along, "--", **limits)
    axes.axhline(fewest, ls="--", **limits)
    axes.axvline(critical, ls=":", **limits)
    said = []
    for size, (_, steps) in best.items():
        middle = statistics.median(steps)
        axes.plot([size] * len(steps), steps, "o", color=BLUE, ms=5, mfc="none")
        axes.plot(size, middle, "o", color=BLUE, ms=8)
        said.append(f"{middle:.0f} at {size}")
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(fewest / 1.6, 1000))
    axes.set(xlabel="batch size", title="steps until the held-out loss is 0.3")
    axes.set_xticks(sizes, list(map(str, sizes)))
    axes.set_yticks([50, 100, 200, 400, 800], ["50", "100", "200", "400", "800"])
    axes.minorticks_off()
    axes.text(low * 1.05, fewest * 0.93, f"never fewer than {fewest:.0f} steps", va="top")
    axes.text(critical * 1.08, 800, f"critical batch: {critical}", va="top")
    axes.text(low * 1.05, 160, "twice the batch,\nhalf the steps", va="top")
    picture(
        "Steps until the held-out loss is 0.3 by batch size, both axes logarithmic: the median of three "
        f"seeds is {', '.join(said)}. A fitted curve follows a line that falls as the batch grows, and bends "
        f"at a batch size of {critical} toward a horizontal line at {fewest:.0f} steps."
    )
