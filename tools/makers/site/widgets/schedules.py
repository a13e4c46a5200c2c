"""Pipeline schedules: who works when, how long the others wait, and what they hold meanwhile.

GPipe and 1F1B are worked out here, and a test compares them with exercise 10's solution; the idle share is
lesson 10's. The interleaved and the zero-bubble schedule are torch's own: orders.py writes them into a file.
"""

import json
import re

from planner import report
from tools.makers.site import extract
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
timeline = extract.functions(ROOT / TIMELINE, *FILES[TIMELINE])

PROCESSES, MICROBATCHES = (2, 4, 8), (1, 2, 4, 8, 16, 32)
TWO_STAGES, ZERO = "interleaved", "zero-bubble"
SCHEDULES = ("naive", "gpipe", "1f1b", TWO_STAGES, ZERO)
FORWARD = 0.480  # seconds of the whole model on the whole batch, as in the notebook
SLOW = {"none": "none", "first": "the first", "middle": "a middle one", "last": "the last"}
HEAD = (
    "schedule",
    "micro-batches",
    "step time",
    "idle",
    "idle by formula",
    "held by first process",
    "held by last process",
)
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
        return stored_orders(schedule, processes, microbatches)
    if schedule == "naive":
        microbatches = 1
    found = []
    for stage in range(processes):
        most = processes - stage if schedule == "1f1b" else microbatches
        found.append(order(stage, most, microbatches))
    return found


def stored_orders(schedule, processes, microbatches):
    """The same of a schedule of torch's, from the file that orders.py has written."""
    stored = json.loads((ROOT / ORDERS).read_text())
    found = []
    for line in stored[f"{schedule} {processes} {microbatches}"]:
        actions = []
        for stage, kind, number in re.findall(r"(\d+)(\w)(\d+)", line):
            actions.append((int(stage), KINDS[kind], int(number)))
        found.append(actions)
    return found


def order(stage, most, microbatches):
    """A stage that may hold this many micro-batches: it does a backward whenever it holds them, or has done
    all its forwards. A stage that may hold all of them has GPipe's order."""
    actions = []
    forwards = 0
    for backwards in range(microbatches):
        while forwards < min(microbatches, backwards + most):
            actions.append((stage, "forward", forwards))
            forwards += 1
        actions.append((stage, "backward", backwards))
    return actions


def when(lines, seconds):
    """Begin and end of each action, if each begins as soon as it can: lesson 10's events. A process does one
    thing at a time, in its order, and waits for what comes from the stages beside."""
    last = 0
    for line in lines:
        for stage, _, _ in line:
            last = max(last, stage)
    left = [list(line) for line in lines]
    events = [[] for _ in lines]
    ends = {}  # of what other actions wait for

    def begin_of(process, action):
        """When this process can begin its action, or None if it waits for one that has no end yet."""
        needed = needs(*action, last)
        if any(need not in ends for need in needed):
            return None
        begin = max([ends[need] for need in needed], default=0.0)
        if events[process]:
            begin = max(begin, events[process][-1]["end"])
        return begin

    while any(left):
        begins = {}
        for process, line in enumerate(left):
            if line:
                begins[process] = begin_of(process, line[0])
        if all(begin is None for begin in begins.values()):
            raise ValueError("the processes wait for each other for ever")

        for process, begin in begins.items():
            if begin is None:
                continue
            stage, kind, number = left[process].pop(0)
            end = begin + seconds[kind][process]
            # Other stages wait for the forward and for the gradient of the input, whichever part makes it.
            result = kind if kind in ("forward", KINDS["W"]) else "gradient"
            ends[result, stage, number] = end
            event = {"stage": stage, "kind": kind, "microbatch": number, "begin": begin, "end": end}
            events[process].append(event)
    return events


def needs(stage, kind, number, last):
    """What must have ended before an action begins: results of this stage and of those beside it."""
    if kind == "forward":
        return [("forward", stage - 1, number)] if stage else []
    if kind == KINDS["W"]:
        return [("gradient", stage, number)]
    needed = [("forward", stage, number)]
    if stage < last:
        needed.append(("gradient", stage + 1, number))
    return needed


def values_of(schedule, inputs):
    """What lesson 10 writes of a run, for one that nothing disturbs."""
    processes = inputs["processes"]
    microbatches = 1 if schedule == "naive" else inputs["microbatches"]
    stages = 2 * processes if schedule == TWO_STAGES else processes
    slow = {"none": None, "first": 0, "middle": processes // 2, "last": processes - 1}[inputs["slow"]]

    seconds = {kind: [] for kind in KINDS.values()}
    for process in range(processes):
        forward = FORWARD / stages / microbatches
        if process == slow:
            forward *= inputs["times"]
        backward = inputs["backward"] * forward
        seconds["forward"].append(forward)
        seconds["backward"].append(backward)
        seconds[KINDS["I"]].append(backward / 2)
        seconds[KINDS["W"]].append(backward / 2)

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
    count = 0
    most = 0
    for _, kind, _ in line:
        if kind == "forward":
            count += 1
        elif kind in ("backward", KINDS["W"]):
            count -= 1
        most = max(most, count)
    return most


def end_of(values):
    """When the last process has ended its last action."""
    return max(row[-1]["end"] for row in values["events"])


def share_held(values, process):
    """Of the activations that its stages have of the whole batch."""
    stages_of_each = values["stages"] // values["world_size"]
    return values["held"][process] / values["microbatches"] / stages_of_each


def row(values):
    theory = "no formula" if values["schedule"] == ZERO else f"{timeline.idle_in_theory(values):.1%}"
    return [
        values["schedule"],
        str(values["microbatches"]),
        report.duration(end_of(values)),
        f"{timeline.idle(values):.1%}",
        theory,
        f"{share_held(values, 0):.1%}",
        f"{share_held(values, -1):.1%}",
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
    longest = end_of(chosen)
    if inputs["schedule"] != "naive":
        # The same scale for all schedules, so that a reader can compare them. The naive one is much longer.
        for name, values in runs.items():
            if name != "naive":
                longest = max(longest, end_of(values))

    rows = []
    for line in chosen["events"]:
        rows.append([bar(event, inputs["processes"], longest) for event in line])
    shares = []
    for process in range(inputs["processes"]):
        share = share_held(chosen, process)
        shares.append({"share": share, "words": f"{share:.1%}"})

    counts = ", ".join(map(str, chosen["held"]))
    said = (
        f"{inputs['schedule']}: a step takes {report.duration(end_of(chosen))}, and the processes are idle "
        f"for {timeline.idle(chosen):.1%} of it. Most micro-batches that each process holds at once: "
        f"{counts}."
    )
    return {
        "inputs": inputs,
        "said": said,
        "rows": rows,
        "held": shares,
        "end": report.duration(longest),
        "tables": [
            {
                "caption": f"{inputs['processes']} processes, {inputs['microbatches']} micro-batches",
                "head": HEAD,
                "rows": [row(values) for values in runs.values()],
                "chosen": SCHEDULES.index(inputs["schedule"]),
            }
        ],
    }
