"""Pipeline schedules: who works when, how long the others wait, and what they hold meanwhile.

GPipe and 1F1B are worked out here, and a test compares them with exercise 10's solution; the idle share is
lesson 10's. The interleaved and the zero-bubble schedule are torch's own: orders.py writes them into a file.
"""

import json
import re

from planner import report
from tools.makers.site import taken
from tools.makers.site.controls import ROOT, choice, control

TITLE = "Pipeline schedules"
INTRODUCTION = """\
How long do the stages of a pipeline wait, and how many activations does each hold? More micro-batches
shrink the idle share (the bubble). GPipe and 1F1B wait equally long, but 1F1B holds fewer activations. Slow
one process down: the whole pipeline is as fast as its slowest stage. [Lesson 10's
notebook](../notebooks/10_pipeline.ipynb) draws the same pictures of real processes.
"""
TIMELINE = "lessons/parts/timeline.py"
ORDERS = "tools/makers/site/widgets/orders.json"
FILES = {
    TIMELINE: ("idle", "idle_in_theory"),
    ORDERS: (),
    "lessons/planner/report.py": (),
    "lessons/planner/plans.py": (),
    "lessons/planner/formulas.py": (),
}
timeline = taken.functions(ROOT / TIMELINE, *FILES[TIMELINE])

PROCESSES, MICROBATCHES = (2, 4, 8), (1, 2, 4, 8, 16, 32)
TWO_STAGES, ZERO = "interleaved", "zero-bubble"
SCHEDULES = ("naive", "gpipe", "1f1b", TWO_STAGES, ZERO)
FORWARD = 0.480  # seconds of the whole model on the whole batch, as in the notebook
SLOW = {"none": "none", "first": "the first", "middle": "a middle one", "last": "the last"}
KINDS = {"F": "forward", "B": "backward", "I": "backward, input", "W": "backward, weights"}


CONTROLS = [
    choice("schedule", "schedule", {name: name for name in SCHEDULES}, "1f1b"),
    control("processes", "processes", [[count, str(count)] for count in PROCESSES], 4),
    control("microbatches", "micro-batches", [[count, str(count)] for count in MICROBATCHES], 8),
    choice("slow", "slow process", SLOW, "none"),
    control("times", "its slowdown", [[one, f"{one:g} x"] for one in (1, 1.25, 1.5, 2, 3)], 1.5),
    control("backward", "backward time", [[one, f"{one:g} x forward"] for one in (1, 1.5, 2, 3)], 2),
]
PRESETS = {
    "1F1B": {},
    "naive: no micro-batches": {"schedule": "naive"},
    "GPipe": {"schedule": "gpipe"},
    "1F1B, 32 micro-batches": {"microbatches": 32},
    "interleaved": {"schedule": TWO_STAGES},
    "zero-bubble": {"schedule": ZERO},
    "a slow last stage": {"slow": "last", "times": 2},
}
NOTE = (
    "The forward pass of the whole model on the whole batch takes 480 ms, split evenly over stages and "
    'micro-batches; messages take no time. The formula assumes stages of equal length. "Held" is the most'
    " activations that a process keeps at once, in % of those of the whole batch: it keeps a micro-"
    "batch's from its forward to the end of its backward (in the zero-bubble schedule, to the end of the "
    "weights' part, which takes half of a backward). Interleaved has two stages per process, the other "
    "schedules have one."
)


def orders(schedule, processes, microbatches):
    """For each process the stage, the kind and the micro-batch of each of its actions."""
    if schedule in (TWO_STAGES, ZERO):
        stored = json.loads((ROOT / ORDERS).read_text())[f"{schedule} {processes} {microbatches}"]
        actions = [re.findall(r"(\d+)(\w)(\d+)", line) for line in stored]
        return [[(int(stage), KINDS[kind], int(number)) for stage, kind, number in line] for line in actions]
    microbatches = 1 if schedule == "naive" else microbatches
    most = [processes - stage if schedule == "1f1b" else microbatches for stage in range(processes)]
    return [order(stage, most[stage], microbatches) for stage in range(processes)]


def order(stage, most, microbatches):
    """A stage that may hold this many micro-batches: it does a backward whenever it holds them, or has done
    all its forwards. A stage that may hold all of them has GPipe's order."""
    actions, forwards = [], 0
    for backwards in range(microbatches):
        while forwards < min(microbatches, backwards + most):
            actions.append((stage, "forward", forwards))
            forwards += 1
        actions.append((stage, "backward", backwards))
    return actions


def when(lines, seconds):
    """Begin and end of each action, if each begins as soon as it can: lesson 10's events. A process does one
    thing at a time, in its order, and waits for what comes from the stages beside."""
    last = max(stage for line in lines for stage, _, _ in line)
    ends, events, left = {}, [[] for _ in lines], [list(line) for line in lines]

    def needs(stage, kind, number):
        if kind == "forward":
            return [("forward", stage - 1, number)] if stage else []
        if kind == KINDS["W"]:
            return [("gradient", stage, number)]
        own = ("forward", stage, number)
        return [own, ("gradient", stage + 1, number)] if stage < last else [own]

    while any(left):
        ready = [at for at, line in enumerate(left) if line and all(need in ends for need in needs(*line[0]))]
        if not ready:
            raise ValueError("the processes wait for each other for ever")
        for process in ready:
            stage, kind, number = left[process].pop(0)
            before = [ends[need] for need in needs(stage, kind, number)]
            begin = max([*before, *(event["end"] for event in events[process][-1:])], default=0.0)
            end = begin + seconds[kind][process]
            ends[kind if kind in ("forward", KINDS["W"]) else "gradient", stage, number] = end
            event = {"stage": stage, "kind": kind, "microbatch": number, "begin": begin, "end": end}
            events[process].append(event)
    return events


def values_of(schedule, inputs):
    """What lesson 10 writes of a run, for one that nothing disturbs."""
    processes = inputs["processes"]
    microbatches = 1 if schedule == "naive" else inputs["microbatches"]
    stages = 2 * processes if schedule == TWO_STAGES else processes
    slow = {"none": None, "first": 0, "middle": processes // 2, "last": processes - 1}[inputs["slow"]]
    times = [inputs["times"] if process == slow else 1 for process in range(processes)]
    forward = [FORWARD / stages / microbatches * one for one in times]
    backward = [inputs["backward"] * one for one in forward]
    half = [one / 2 for one in backward]
    seconds = {"forward": forward, "backward": backward, KINDS["I"]: half, KINDS["W"]: half}
    lines = orders(schedule, processes, microbatches)
    return {
        "schedule": schedule,
        "world_size": processes,
        "stages": stages,
        "microbatches": microbatches,
        "events": when(lines, seconds),
        "held": [held(line) for line in lines],
    }


def held(line):
    """The most micro-batches that a process holds: until a micro-batch's last backward in it has ended."""
    count = most = 0
    for _, kind, _ in line:
        count += (kind == "forward") - (kind in ("backward", KINDS["W"]))
        most = max(most, count)
    return most


def end_of(values):
    return max(event["end"] for row in values["events"] for event in row)


def share_held(values, process):
    """Of the activations that its stages have of the whole batch."""
    stages_of_each = values["stages"] // values["world_size"]
    return values["held"][process] / values["microbatches"] / stages_of_each


def row(values):
    theory = "no formula" if values["schedule"] == ZERO else f"{timeline.idle_in_theory(values):.1%}"
    first, last = (f"{share_held(values, process):.1%}" for process in (0, -1))
    return [
        values["schedule"],
        str(values["microbatches"]),
        report.duration(end_of(values)),
        f"{timeline.idle(values):.1%}",
        theory,
        first,
        last,
    ]


def bar(event, processes, longest):
    return {
        "kind": event["kind"],
        "second": event["stage"] >= processes,
        "microbatch": event["microbatch"],
        "from": round(event["begin"] / longest, 6),
        "to": round(event["end"] / longest, 6),
    }


def answer(**inputs):
    runs = {schedule: values_of(schedule, inputs) for schedule in SCHEDULES}
    chosen = runs[inputs["schedule"]]
    longest = max(end_of(values) for name, values in runs.items() if name != "naive")
    if inputs["schedule"] == "naive":
        longest = end_of(chosen)
    head = [
        *("schedule", "micro-batches", "step time", "idle", "idle by formula"),
        *("held by first process", "held by last process"),
    ]
    caption = f"{inputs['processes']} processes, {inputs['microbatches']} micro-batches"
    counts = ", ".join(map(str, chosen["held"]))
    said = (
        f"{inputs['schedule']}: a step takes {report.duration(end_of(chosen))}, and the processes are idle "
        f"for {timeline.idle(chosen):.1%} of it. Most micro-batches that each process holds at once: "
        f"{counts}."
    )
    shares = [share_held(chosen, process) for process in range(inputs["processes"])]
    return {
        "inputs": inputs,
        "said": said,
        # Not `row`: Python 3.12.1 would take the function below for it.
        "rows": [[bar(event, inputs["processes"], longest) for event in line] for line in chosen["events"]],
        "held": [{"share": share, "words": f"{share:.1%}"} for share in shares],
        "end": report.duration(longest),
        "tables": [
            {
                "caption": caption,
                "head": head,
                "rows": [row(values) for values in runs.values()],
                "chosen": SCHEDULES.index(inputs["schedule"]),
            }
        ],
    }
