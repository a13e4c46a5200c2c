"""What lesson 10 sees of itself: who worked when in its last step, and how many micro-batches each held."""

import json
import time

import torch
import torch.distributed as dist

PRETEND = """with --timeline: a forward of the whole model on a whole batch takes this long at least, and a
backward twice as long; each stage waits for its share. For a machine with fewer cores than stages: there,
stages that compute take turns, and only stages that wait really run at the same time (0)"""


def watch(stages, arguments):
    """From now on, note each forward and backward of these stages. Returns the list that grows."""
    events = []
    for stage in stages:
        for kind, weight in (("forward", 1), ("backward", 2)):
            parts = arguments.stages * arguments.microbatches
            seconds = weight * arguments.pretend_milliseconds / 1000 / parts
            name = f"{kind}_one_chunk"  # "chunk" is torch's word for a micro-batch here
            setattr(stage, name, noted(getattr(stage, name), kind, seconds, stage, stages, events))
    return events


def noted(function, kind, seconds, stage, stages, events):
    def run(microbatch, *arguments, **options):
        if not stage.has_backward:  # an evaluation
            return function(microbatch, *arguments, **options)
        finish_queued_work(stage.device)  # what it needs may still be on its way
        begin = time.perf_counter()
        result = function(microbatch, *arguments, **options)
        finish_queued_work(stage.device)
        time.sleep(max(0, begin + seconds - time.perf_counter()))
        end = time.perf_counter()
        # A stage keeps what a micro-batch's backward will need in this cache, from its forward on.
        held = sum(len(each.fwd_cache) for each in stages)
        event = {"stage": stage.stage_index, "kind": kind, "microbatch": microbatch}
        events.append(event | {"begin": begin, "end": end, "held": held})
        return result

    return run


def finish_queued_work(device):
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def write(events, arguments):
    """Gather the last step's events in OUT/<lesson>.timeline.json, in seconds, and say what they come to."""
    count = 2 * arguments.microbatches * arguments.stages // arguments.world_size
    rows = [None] * arguments.world_size if dist.get_rank() == 0 else None
    dist.gather_object(events[-count:], rows)
    if dist.get_rank() == 0:
        # One clock for all processes of a machine; those of another machine would be shifted.
        start = min(event["begin"] for row in rows for event in row)
        for event in (event for row in rows for event in row):
            event["begin"], event["end"] = event["begin"] - start, event["end"] - start
        names = ("schedule", "world_size", "stages", "microbatches", "pretend_milliseconds")
        values = {name: getattr(arguments, name) for name in names} | {"events": rows}
        (arguments.out / f"{arguments.lesson}.timeline.json").write_text(json.dumps(values))
        held = ", ".join(str(max(event["held"] for event in row)) for row in rows)
        print(
            f"last step: idle {idle(values):.1%}, in theory {idle_in_theory(values):.1%}; "
            f"micro-batches held by each process at most: {held}"
        )


def idle(values):
    """The share of the processes' time, from the first event to the last, in which they did not work."""
    events = [event for row in values["events"] for event in row]
    busy = sum(event["end"] - event["begin"] for event in events)
    span = max(event["end"] for event in events) - min(event["begin"] for event in events)
    return 1 - busy / (values["world_size"] * span)


def idle_in_theory(values):
    """If all stages take the same time, and messages none: (p - 1) / (m v + p - 1), v stages a process."""
    processes, stages = values["world_size"], values["stages"]
    return (processes - 1) / (values["microbatches"] * stages / processes + processes - 1)
