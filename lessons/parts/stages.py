"""Parts of lesson 10: where the model is split, and which options are refused."""

import math

import workload

# For each number of stages: the index of each stage's first layer. ConvNet has ten layers.
# 5 and 7 are missing, because there are at most 4 processes with 1 or 2 stages each.
BEGINNINGS = {
    1: [0],
    2: [0, 5],
    3: [0, 3, 6],
    4: [0, 3, 5, 8],
    6: [0, 2, 3, 5, 6, 8],
    8: [0, 2, 3, 4, 5, 6, 8, 9],
}


def check(arguments):
    """Set the number of stages and micro-batches, and refuse options that cannot work."""
    schedule = arguments.schedule
    processes = arguments.world_size
    if schedule == "naive":
        arguments.microbatches = 1
    count = arguments.microbatches
    arguments.stages = processes
    # torch 2.13 cannot evaluate two consecutive stages in one process.
    if schedule == "interleaved" and processes > 1:
        arguments.stages = 2 * processes
    if processes > 4:
        workload.refuse(f"the model has 4 layers with weights: {processes} processes are too many")
    if count < 1:
        workload.refuse(f"--microbatches must be at least 1, not {count}")
    size = arguments.batch_size
    if size % count:
        fits = math.ceil(size / count) * count
        what = f"--batch-size {size} does not divide by {count} micro-batches"
        workload.refuse(f"{what}: take {fits}")
    if schedule == "1f1b" and count < processes:
        workload.refuse(f"1f1b on {processes} processes needs {processes} micro-batches or more, not {count}")
    rounds = max(1, count // processes)
    if schedule == "interleaved" and count % rounds:
        fits = math.ceil(count / processes) * processes
        what = f"interleaved has {rounds} rounds here, and {count} micro-batches do not divide by {rounds}"
        workload.refuse(f"{what}: take {fits}")
    if not 0 <= arguments.pretend_milliseconds <= 60_000:
        workload.refuse("--pretend-milliseconds must be from 0 to 60000")
    if arguments.pretend_milliseconds and not arguments.timeline:
        workload.refuse("--pretend-milliseconds needs --timeline")
