"""How many steps does a run need until a held-out loss is low enough, for batch sizes from 15 to 960?

    nice -n 19 python -m tools.makers.critical_batch

One process trains the lessons' model on the lessons' images, with a constant learning rate. For each batch
size, the rate doubles or halves as long as the median of three seeds needs fewer steps, so the rates next
to the best rate are measured, too. The results go into a dated file in OUT/results, a line for each run as
soon as it ends; notebook 03d shows such a file, notebooks/show/critical_batch.jsonl. Steps are counted
and not timed, so other programs may run meanwhile.
"""

import datetime
import functools
import json
import math
import os
import statistics
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import workload
from tools.makers import machine

SIZES, SEEDS = (15, 30, 60, 120, 240, 480, 960), (1, 2, 3)
JOB = {"target": 0.3, "train_images": 12_000, "held_out_images": 500, "momentum": 0.9}
FIRST_RATE = 0.02  # where the search begins, for the smallest batch
LOOK_EVERY = 240  # images; with larger batches, after each step
MOST_IMAGES = 300_000


def steps_to_target(train_set, held_out, size, rate, seed, limit):
    """Train until the held-out loss is at most the target. Infinite if the limit of steps comes first."""
    workload.set_seed(seed)
    model = workload.ConvNet(train_set.images.shape[1:])
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=JOB["momentum"])
    order = []
    for step in range(1, limit + 1):
        if len(order) < size:
            order = torch.randperm(len(train_set))  # a new epoch; what is left of the last one is dropped
        images, labels = train_set[order[:size]]
        order = order[size:]
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        if step % max(1, LOOK_EVERY // size) == 0:
            with torch.no_grad():
                loss = cross_entropy(model(held_out.images), held_out.labels).item()
            if loss <= JOB["target"]:
                return step
            if not math.isfinite(loss):
                break
    return math.inf


def measure(file, data, size, rate, best):
    """The median over the seeds. Each run gets a line in the file."""
    limit = int(min(MOST_IMAGES // size, 2 * best))  # a run with more steps can't be the best
    found = []
    for seed in SEEDS:
        found.append(steps_to_target(*data, size, rate, seed, limit))
        steps = None if found[-1] == math.inf else found[-1]
        row = {"size": size, "rate": rate, "seed": seed, "steps": steps, "limit": limit}
        print(json.dumps(row), file=file, flush=True)
    return statistics.median(found)


def best_rate(median_at, start):
    """The rate that needs the fewest steps: neither half nor double this rate needs fewer."""
    medians = {start: median_at(start, math.inf)}
    best = start
    for factor in (2, 0.5):
        while best * factor not in medians:
            rate = best * factor
            medians[rate] = median_at(rate, medians[best])
            if medians[rate] < medians[best]:
                best = rate
            else:
                break
    return best


def main():
    torch.set_num_threads(1)
    train_set = workload.draw_digits(JOB["train_images"], seed=1)
    held_out = workload.draw_digits(JOB["held_out_images"], seed=2)
    about = {"date": f"{datetime.date.today()}", "commit": machine.commit(), "machine": machine.machine()}
    about |= {"versions": machine.versions(), **JOB}
    path = Path(os.environ.get("OUT", "out")) / "results" / machine.file_name("critical-batch", about)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        print(json.dumps(about), file=file, flush=True)
        rate = FIRST_RATE
        for size in SIZES:
            rate = best_rate(functools.partial(measure, file, (train_set, held_out), size), rate)
    print(f"Kept: {path}")


if __name__ == "__main__":
    main()
