"""Does it pay to have more processes? `make scaling` measures and prints this section of the bench.

It trains lesson 04 on 1, 2 and 4 processes, with the lessons' model and with a wide one: once with one batch
for all processes (strong scaling), and once with a batch for each process (weak scaling). Each run is
compared with as many independent processes, which train at the same time and never communicate: the most that
the machine can do.
"""

import statistics

from tools.makers.bench import rows

STEM = "04_ddp_torchrun"
BATCH = 120
COUNTS = (1, 2, 4)
NAMES = {"small": "the lessons' model", "wide": "a wide model"}
OPTIONS = {
    "small": ("--epochs", 2),
    "wide": ("--width", 96, "--epochs", 2, "--train-size", 960, "--test-size", 60),
}


def speed(folder, jobs, count, size, words):
    """Images per second of so many independent jobs, on `count` processes each, which share a batch."""
    options = (*words, "--batch-size", size // jobs)
    started = {}
    for number in range(jobs):
        folder_of_job = folder / str(number)
        started[folder_of_job] = rows.lesson(STEM, count, folder_of_job, *options)
    for process in started.values():
        rows.finish(process)
    return sum(rows.speed_of(folder_of_job, STEM) for folder_of_job in started)


def named(model, count, size):
    return f"{NAMES[model]}, {count} processes, batch {size}"


def both(model, count, size):
    """What measures a job on several processes, and as many independent jobs."""

    def run(folder):
        with rows.empty_folder() as empty:
            speeds = {"together": speed(empty, 1, count, size, OPTIONS[model])}
        if count > 1:  # one process is as independent as it can be
            with rows.empty_folder() as empty:
                speeds["apart"] = speed(empty, count, 1, size, OPTIONS[model])
        return {"scaling": {named(model, count, size): speeds}}

    return run


def all_measures():
    found = {}
    for model in NAMES:
        for count in COUNTS:
            for size in (BATCH, BATCH * count):  # these are one job on one process
                found[named(model, count, size)] = both(model, count, size)
    return found


MEASURES = all_measures()


def lines(found, is_weak):
    """For each row of a table: model, processes, speeds together and apart, and the median on one process."""
    rows_of_table = []
    for model, name in NAMES.items():
        alone = statistics.median(found[named(model, 1, BATCH)]["together"])
        for count in COUNTS:
            size = BATCH * count if is_weak else BATCH
            row = found[named(model, count, size)]
            rows_of_table.append((name, count, row["together"], row.get("apart"), alone))
    return rows_of_table
