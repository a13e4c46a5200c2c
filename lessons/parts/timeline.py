"""The timeline of lesson 10: when each process worked in the last step, and how many
micro-batches it held.
"""

import json
import time

import torch
import torch.distributed as dist

PRETEND = """with --timeline: a forward of the whole model on a whole batch takes at least this
long, and a backward twice as long; each stage sleeps for its share. Use it if the machine has fewer
cores than stages: stages that compute would take turns, but stages that sleep run at the same time
(0)"""


def watch(stages, arguments):
    """Return a list to which each forward and backward of these stages adds an event
    from now on.
    """
    events = []
    parts = arguments.stages * arguments.microbatches
    forward_seconds = arguments.pretend_milliseconds / 1000 / parts
    for stage in stages:  # torch calls a micro-batch a "chunk" here
        stage.forward_one_chunk = noted(
            stage.forward_one_chunk, "forward", forward_seconds, stage, stages, events
        )
        stage.backward_one_chunk = noted(
            stage.backward_one_chunk, "backward", 2 * forward_seconds, stage, stages, events
        )
    return events


def noted(function, kind, seconds, stage, stages, events):
    """Wrap a function so that it takes at least this many seconds and appends an event."""

    def run(microbatch, *arguments, **options):
        if not stage.has_backward:  # an evaluation
            return function(microbatch, *arguments, **options)
        finish_queued_work(stage.device)  # the input may still be on its way
        begin = time.perf_counter()
        result = function(microbatch, *arguments, **options)
        finish_queued_work(stage.device)
        time.sleep(max(0, begin + seconds - time.perf_counter()))
        event = {
            "stage": stage.stage_index,
            "kind": kind,
            "microbatch": microbatch,
            "begin": begin,
            "end": time.perf_counter(),
            # fwd_cache keeps a micro-batch's activations from its forward to its backward.
            "held": sum(len(each.fwd_cache) for each in stages),
        }
        events.append(event)
        return result

    return run


def finish_queued_work(device):
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def write(events, arguments):
    """Write the last step's events to OUT/<lesson>.timeline.json, and print a summary."""
    count = 2 * arguments.microbatches * arguments.stages // arguments.world_size
    rows = [None] * arguments.world_size if dist.get_rank() == 0 else None
    dist.gather_object(events[-count:], rows)
    if dist.get_rank() != 0:
        return
    # All processes of a machine share one clock, but the times of another machine would be shifted.
    start = min(event["begin"] for row in rows for event in row)
    for row in rows:
        for event in row:
            event["begin"] -= start
            event["end"] -= start
    values = {
        "schedule": arguments.schedule,
        "world_size": arguments.world_size,
        "stages": arguments.stages,
        "microbatches": arguments.microbatches,
        "pretend_milliseconds": arguments.pretend_milliseconds,
        "events": rows,
    }
    path = arguments.out / f"{arguments.lesson}.timeline.json"
    path.write_text(json.dumps(values))
    held = []
    for row in rows:
        most = max(event["held"] for event in row)
        held.append(str(most))
    print(
        f"last step: idle {idle(values):.1%}, in theory {idle_in_theory(values):.1%}; "
        f"micro-batches held by each process at most: {', '.join(held)}"
    )


def idle(values):
    """Return how much of the processes' time between the first event and the last was
    idle, as a share.
    """
    events = [event for row in values["events"] for event in row]
    busy = sum(event["end"] - event["begin"] for event in events)
    first = min(event["begin"] for event in events)
    last = max(event["end"] for event in events)
    return 1 - busy / (values["world_size"] * (last - first))


def idle_in_theory(values):
    """Return (p - 1) / (m v + p - 1), for p processes with v stages each and m
    micro-batches. This assumes equally fast stages, and messages that take no time.

    With m < p, a process also waits p - m times before each of its stages except the
    first.
    """
    processes, microbatches = values["world_size"], values["microbatches"]
    stages_of_each = values["stages"] / processes
    waiting = processes - 1 + (stages_of_each - 1) * max(0, processes - microbatches)
    return waiting / (microbatches * stages_of_each + waiting)
