"""The planner with sliders: one plan, and its sweep over the number of GPUs."""

import math
import re
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "lessons"))
from controls import RECOMPUTE, choice, control, powers
from planner import __main__ as command
from planner import plans, report

TITLE = "The planner"
INTRODUCTION = """\
Move *GPUs* to the right, one step after another, and watch the days fall and the dollars rise; then make
the step of all GPUs larger. You will see where a job no longer fits, what takes the time of a GPU, and
from where on more GPUs hardly help. [The notebook on planning](../notebooks/planning.ipynb) says what the
formulas leave out.
"""
FILES = {f"lessons/planner/{name}.py": () for name in ("formulas", "plans", "report", "__main__")}
PARTS = ("parameters", "gradients", "optimizer", "activations")


def counts(values):
    return [[value, report.count(value)] for value in values]


PARAMS = [1.25e8, 3.5e8, 7.6e8, 1.5e9, 3e9, 7.5e9, 1.3e10, 3e10, 7e10, 1.75e11, 4.05e11, 1e12]
CONTROLS = [
    control("params", "parameters", counts(PARAMS), 7.5e9),
    control("gpus", "GPUs", powers(*range(15)), 64),
    control("tensor_parallel", "tensor-parallel", powers(*range(4)), 1),
    control("pipeline", "pipeline stages", powers(*range(5)), 1),
    control("stage", "ZeRO", [[stage, f"stage {stage}"] for stage in range(4)], 1),
    control("batch_tokens", "tokens of a step", powers(*range(19, 27)), 2**24),
    control("micro_batch", "texts at once", powers(*range(5)), 1),
    choice("recompute", "backward recomputes", RECOMPUTE, "selective"),
    choice("memory", "memory of a GPU", {one * 1e9: f"{one} GB" for one in (24, 80, 141)}, 80e9),
    control(
        "bandwidth_network",
        "network, one way",
        [[one * 1e9, f"{one:g} GB/s"] for one in (1.25, 12.5, 25, 50, 100)],
        50e9,
    ),
    control("price_per_hour", "a GPU's hour", [[one, f"{one:g} dollars"] for one in (1, 1.5, 2, 3, 4, 6)], 3),
]
NOTE = (
    "All other options of python lessons/planner have their defaults: an H100's peak, of which half is "
    "reached, 20 tokens for each parameter, Llama 3's rate of interruptions. In the sweep are as many "
    "GPUs as one copy of the model takes, and so on, doubled."
)


def job_of(inputs):
    """The options of the planner's command, as its parser would hand them on."""
    job = {name.replace("-", "_"): option.default for name, option in command.OPTIONS.items()}
    job |= {name: choices[0] for name, (choices, _) in command.CHOICES.items()}
    return job | {"sequence_parallel": False} | inputs


def answer(**inputs):
    found = {"inputs": inputs, "said": "", "tables": [], "memory": [], "shares": [], "curve": []}
    job = job_of(inputs)
    try:
        one = plans.plan(job)
    except ValueError as error:
        found["said"] = f"No plan: {error}."
    else:
        found |= plan(one)
    try:
        rows, end = plans.sweep(job | {"gpus": 2**14})
    except ValueError:
        return found
    found["curve"], found["axis"] = curve(rows, inputs["gpus"])
    found["tables"] += [sweep(rows, inputs["gpus"])]
    found["end"] = f"No further: {end}." if end else ""
    return found


def plan(one):
    """The words, the table and the two bars of one plan. The lines are those of the planner's report."""
    memory, limit = one["memory_bytes"], one["job"]["memory"]
    whole = sum(memory.values())
    top = 1.05 * max(whole, limit)
    fits = "fits" if one["fits"] else "does not fit"
    said = (
        f"{report.count(one['job']['params'])} parameters on {one['job']['gpus']:,} GPUs: it {fits} "
        f"({whole / 1e9:,.1f} GB of {limit / 1e9:,.0f} GB), takes {report.duration(one['days'] * 86400)}, "
        f"costs {one['dollars']:,.0f} dollars, and has {one['interruptions']:,.1f} interruptions."
    )
    lines = [line for line in report.text(one).splitlines() if line.startswith("    ")]
    rows = [re.split(r" {2,}", line) for line in map(str.strip, lines)]
    rows = [[*cells, *[""] * (3 - len(cells))] for cells in rows]
    start, bars = 0.0, []
    for part in PARTS:
        bars.append({"part": part, "from": start / top, "to": (start + memory[part]) / top})
        start += memory[part]
    before, shares = 0.0, []
    for name, share in report.shares(one).items():
        shares.append({"part": name, "from": before, "to": before + share, "words": f"{share:.1%}"})
        before += share
    return {
        "said": said,
        "memory": bars,
        "limit": {"at": limit / top, "words": f"{limit / 1e9:.0f} GB"},
        "needs": f"{whole / 1e9:,.1f} GB",
        "shares": shares,
        "tables": [{"caption": "the plan", "head": ["part", "size", "share"], "rows": rows}],
    }


def sweep(rows, gpus):
    """The table that the planner's command prints with --sweep."""
    there = [one["job"]["gpus"] for one in rows]
    chosen = there.index(gpus) if gpus in there else None
    table = [report.cells(one, rows[0]) for one in rows]
    return {"caption": "the sweep", "head": report.HEAD, "rows": table, "chosen": chosen}


def curve(rows, gpus):
    """Dots from 0 to 1 on logarithmic axes: tokens a second against GPUs, and as many times the first."""
    speeds = [one["tokens_per_second"] for one in rows]
    numbers = [one["job"]["gpus"] for one in rows]
    linear = [speeds[0] * number / numbers[0] for number in numbers]
    across = max(1.0, math.log2(numbers[-1] / numbers[0]))
    up = max(1.0, math.log2(linear[-1] / speeds[0]))
    dots = [
        {
            "x": math.log2(number / numbers[0]) / across,
            "y": math.log2(speed / speeds[0]) / up,
            "linear": math.log2(ideal / speeds[0]) / up,
            "fits": one["fits"],
            "chosen": number == gpus,
            "words": f"{number:,}",
        }
        for one, number, speed, ideal in zip(rows, numbers, speeds, linear, strict=True)
    ]
    return dots, f"{speeds[0]:,.0f} to {speeds[-1]:,.0f} tokens a second"
