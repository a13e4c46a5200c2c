"""What lesson 10 sees of itself: who worked when in its last step, and what each process held."""

import json
import time

import torch
import torch.distributed as dist

PRETEND = """with --timeline: a forward of the whole model on a whole batch takes this long at
least, and a backward twice as long; each stage waits for its share. For a machine with fewer
cores than stages: there, stages that compute take turns, and only stages that wait really run
at the same time (0)"""


def watch(stages, arguments):
    """From now on, note each forward and backward of these stages, in the list that it returns."""
    events = []
    parts = arguments.stages * arguments.microbatches
    forward_seconds = arguments.pretend_milliseconds / 1000 / parts
    for stage in stages:  # "chunk" is torch's word for a micro-batch here
        stage.forward_one_chunk = noted(
            stage.forward_one_chunk, "forward", forward_seconds, stage, stages, events
        )
        stage.backward_one_chunk = noted(
            stage.backward_one_chunk, "backward", 2 * forward_seconds, stage, stages, events
        )
    return events


def noted(function, kind, seconds, stage, stages, events):
    """A function that does the same, takes these seconds at least, and adds to the events."""

    def run(microbatch, *arguments, **options):
        if not stage.has_backward:  # an evaluation
            return function(microbatch, *arguments, **options)
        finish_queued_work(stage.device)  # what it needs may still be on its way
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
            # From its forward on, a stage keeps here what a micro-batch's backward will need.
            "held": sum(len(each.fwd_cache) for each in stages),
        }
        events.append(event)
        return result

    return run


def finish_queued_work(device):
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def write(events, arguments):
    """Write the last step's events to OUT/<lesson>.timeline.json, and say what they come to."""
    count = 2 * arguments.microbatches * arguments.stages // arguments.world_size
    rows = [None] * arguments.world_size if dist.get_rank() == 0 else None
    dist.gather_object(events[-count:], rows)
    if dist.get_rank() != 0:
        return
    # One clock for all processes of a machine; those of another machine would be shifted.
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
    held = [max(event["held"] for event in row) for row in rows]
    print(
        f"last step: idle {idle(values):.1%}, in theory {idle_in_theory(values):.1%}; "
        f"micro-batches held by each process at most: {', '.join(map(str, held))}"
    )


def idle(values):
    """The share of the processes' time, from first event to last, in which they did not work."""
    events = [event for row in values["events"] for event in row]
    busy = sum(event["end"] - event["begin"] for event in events)
    first = min(event["begin"] for event in events)
    last = max(event["end"] for event in events)
    return 1 - busy / (values["world_size"] * (last - first))


def idle_in_theory(values):
    """(p - 1) / (m v + p - 1), if all of a process's v stages take the same time, messages none.

    With m < p, it also waits p - m times before each but the first of its stages.
    """
    processes, microbatches = values["world_size"], values["microbatches"]
    stages_of_each = values["stages"] / processes
    waiting = processes - 1 + (stages_of_each - 1) * max(0, processes - microbatches)
    return waiting / (microbatches * stages_of_each + waiting)
