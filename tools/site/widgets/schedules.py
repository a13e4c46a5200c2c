"""Pipeline schedules: who works when, how long the others wait, and what they hold meanwhile.

GPipe and 1F1B are those that exercise 10 is judged with, and so is what a stage holds; the idle share is
lesson 10's. The interleaved and the zero-bubble schedule are torch's own, which tools/site/orders.py
writes into a file.
"""

import json
import re
import sys
from pathlib import Path

import taken
from controls import choice, control

ROOT = Path(__file__).resolve().parents[3]
sys.path.append(str(ROOT / "lessons"))
from planner import report

TITLE = "Pipeline schedules"
INTRODUCTION = """\
Double the micro-batches until the processes wait for less than a tenth of the time, then make one process
slower. You will see that gpipe and 1f1b wait equally long and differ in what they hold, and that a
pipeline is as fast as its slowest stage. [Lesson 10's notebook](../notebooks/10_pipeline.ipynb) has the
same pictures of real processes.
"""
JUDGE, TIMELINE = "tests/exercises/10_pipeline/check.py", "lessons/parts/timeline.py"
ORDERS = "tools/site/widgets/orders.json"
FILES = {
    JUDGE: ("gpipe", "one_forward_one_backward", "all_stages", "most_held"),
    TIMELINE: ("idle", "idle_in_theory"),
    ORDERS: (),
    "lessons/planner/report.py": (),
    "lessons/planner/plans.py": (),
    "lessons/planner/formulas.py": (),
}
judge = taken.functions(ROOT / JUDGE, *FILES[JUDGE])
timeline = taken.functions(ROOT / TIMELINE, *FILES[TIMELINE])

PROCESSES, MICROBATCHES = (2, 4, 8), (1, 2, 4, 8, 16, 32)
TWO_STAGES, ZERO = "interleaved", "zero-bubble"
SCHEDULES = ("naive", "gpipe", "1f1b", TWO_STAGES, ZERO)
FORWARD = 0.480  # seconds of the whole model on the whole batch, as in the notebook
SLOW = {"none": "none", "first": "the first", "middle": "the one in the middle", "last": "the last"}
KINDS = {"F": "forward", "B": "backward", "I": "backward, input", "W": "backward, weights"}


CONTROLS = [
    choice("schedule", "schedule", {name: name for name in SCHEDULES}, "1f1b"),
    control("processes", "processes", [[count, str(count)] for count in PROCESSES], 4),
    control("microbatches", "micro-batches", [[count, str(count)] for count in MICROBATCHES], 8),
    choice("slow", "slower process", SLOW, "none"),
    control("times", "which takes", [[one, f"{one:g} times as long"] for one in (1, 1.25, 1.5, 2, 3)], 1.5),
    control("backward", "a backward takes", [[one, f"{one:g} forwards"] for one in (1, 1.5, 2, 3)], 2),
]
NOTE = (
    "A forward of the whole model on the whole batch takes 480 ms, divided evenly among stages and "
    "micro-batches; messages take no time. The formula is that of stages of equal length. Held is what a "
    "process keeps of activations at most, where 100% are those of the whole batch: a micro-batch's from "
    "its forward to the end of its backward, in the zero-bubble schedule to that of the weights' part, "
    "which takes half of a backward. Interleaved has two stages in each process, all others one."
)


def orders(schedule, processes, microbatches):
    """For each process the stage, the kind and the micro-batch of each of its actions."""
    if schedule in (TWO_STAGES, ZERO):
        stored = json.loads((ROOT / ORDERS).read_text())[f"{schedule} {processes} {microbatches}"]
        return [
            [
                (int(stage), KINDS[kind], int(number))
                for stage, kind, number in re.findall(r"(\d+)(\w)(\d+)", line)
            ]
            for line in stored
        ]
    function = judge.one_forward_one_backward if schedule == "1f1b" else judge.gpipe
    lines = judge.all_stages(function, processes, 1 if schedule == "naive" else microbatches)
    return [[(stage, kind, number) for kind, number in line] for stage, line in enumerate(lines)]


def when(lines, seconds):
    """Begin and end of each action, if each begins as soon as it can: lesson 10's events. A process does one
    thing at a time, in its order, and waits for what comes from the stages beside."""
    last = max(stage for line in lines for stage, _, _ in line)
    ends, events = {}, [[] for _ in lines]

    def needs(stage, kind, number):
        if kind == "forward":
            return [("forward", stage - 1, number)] if stage else []
        if kind == KINDS["W"]:
            return [("gradient", stage, number)]
        own = ("forward", stage, number)
        return [own, ("gradient", stage + 1, number)] if stage < last else [own]

    going = True
    while going:
        going = False
        for process, line in enumerate(lines):
            while len(events[process]) < len(line):
                stage, kind, number = line[len(events[process])]
                if any(need not in ends for need in needs(stage, kind, number)):
                    break
                before = [ends[need] for need in needs(stage, kind, number)]
                begin = max([*before, *(event["end"] for event in events[process][-1:])], default=0.0)
                end = begin + seconds[kind][process]
                name = kind if kind in ("forward", KINDS["W"]) else "gradient"
                ends[name, stage, number] = end
                event = {"stage": stage, "kind": kind, "microbatch": number, "begin": begin, "end": end}
                events[process].append(event)
                going = True
    if any(len(row) < len(line) for row, line in zip(events, lines, strict=True)):
        raise ValueError("the processes wait for each other for ever")
    return events


def values_of(schedule, inputs):
    """What lesson 10 writes of a run, for one that nothing disturbs."""
    processes = inputs["processes"]
    microbatches = 1 if schedule == "naive" else inputs["microbatches"]
    stages = 2 * processes if schedule == TWO_STAGES else processes
    slow = {"none": None, "first": 0, "middle": processes // 2, "last": processes - 1}[inputs["slow"]]
    forward = [
        FORWARD / stages / microbatches * (inputs["times"] if process == slow else 1)
        for process in range(processes)
    ]
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
    frees = {"forward": "forward", "backward": "backward", KINDS["W"]: "backward"}
    return judge.most_held([[frees.get(kind, "neither"), number] for _, kind, number in line])


def end_of(values):
    return max(event["end"] for row in values["events"] for event in row)


def share_held(values, process):
    """Of the activations that its stages have of the whole batch."""
    stages_of_each = values["stages"] // values["world_size"]
    return values["held"][process] / values["microbatches"] / stages_of_each


def row(values):
    theory = "no formula here" if values["schedule"] == ZERO else f"{timeline.idle_in_theory(values):.1%}"
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


def answer(**inputs):
    runs = {schedule: values_of(schedule, inputs) for schedule in SCHEDULES}
    chosen = runs[inputs["schedule"]]
    longest = max(end_of(values) for name, values in runs.items() if name != "naive")
    if inputs["schedule"] == "naive":
        longest = end_of(chosen)
    head = [
        *("schedule", "micro-batches", "a step", "idle", "idle, formula"),
        *("held, first process", "held, last process"),
    ]
    caption = f"{inputs['processes']} processes, {inputs['microbatches']} micro-batches"
    counts = ", ".join(map(str, chosen["held"]))
    said = (
        f"{inputs['schedule']}: a step takes {report.duration(end_of(chosen))}, and the processes are idle "
        f"for {timeline.idle(chosen):.1%} of it. Micro-batches held by each process at most: {counts}."
    )
    bars = [
        [
            {
                "kind": event["kind"],
                "second": event["stage"] >= inputs["processes"],
                "microbatch": event["microbatch"],
                "from": round(event["begin"] / longest, 6),
                "to": round(event["end"] / longest, 6),
            }
            for event in events
        ]
        for events in chosen["events"]
    ]
    return {
        "inputs": inputs,
        "said": said,
        "rows": bars,
        "held": [
            {"share": share_held(chosen, process), "words": f"{share_held(chosen, process):.1%}"}
            for process in range(inputs["processes"])
        ],
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
