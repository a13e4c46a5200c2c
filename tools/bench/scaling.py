"""Does it pay to have more processes? `make scaling` measures and prints this section of the bench.

It trains lesson 04 on 1, 2 and 4 processes, with the lessons' model and with a wide one: once with one batch
for all processes (strong scaling), and once with a batch for each process (weak scaling). Each run is compared
with as many independent processes, which train at the same time and never communicate: the most that the
machine can do.
"""

import statistics

from tools.bench import rows

STEM = "04_ddp_torchrun"
BATCH = 120
COUNTS = (1, 2, 4)
NAMES = {"small": "the lessons' model", "wide": "a wide model"}
ROWS = [(model, n, size) for model in NAMES for n in COUNTS for size in dict.fromkeys((BATCH, BATCH * n))]
OPTIONS = {
    "small": ("--epochs", 2),
    "wide": ("--width", 96, "--epochs", 2, "--train-size", 960, "--test-size", 60),
}


def speed(folder, jobs, count, size, words):
    """Images per second of so many independent jobs, on `count` processes each, which share a batch."""
    folders = [folder / str(number) for number in range(jobs)]
    options = (*words, "--batch-size", size // jobs)
    for process in [rows.lesson(STEM, count, each, *options) for each in folders]:
        rows.finish(process)
    return sum(rows.speed(each, STEM) for each in folders)


def named(model, count, size):
    return f"{NAMES[model]}, {count} processes, batch {size}"


def both(model, count, size):
    """What measures a job on several processes, and as many independent jobs."""

    def run(folder):
        speeds = {}
        for how, shape in (("together", (1, count)), ("apart", (count, 1))):
            if how == "apart" and count == 1:
                continue  # one process is as independent as it can be
            with rows.empty_folder() as empty:
                speeds[how] = speed(empty, *shape, size, OPTIONS[model])
        return {"scaling": {named(model, count, size): speeds}}

    return run


MEASURES = {named(*row): both(*row) for row in ROWS}


def lines(found, is_weak):
    """The rows of a table: speeds, and the speedups that follow from the medians."""
    for model, name in NAMES.items():
        alone = statistics.median(found[named(model, 1, BATCH)]["together"])
        for count in COUNTS:
            row = found[named(model, count, BATCH * count if is_weak else BATCH)]
            yield name, count, row["together"], row.get("apart"), alone
