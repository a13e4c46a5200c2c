"""The planner with sliders: one plan, and its sweep over the number of GPUs."""

import math
import re

from planner import plans, report
from tools.makers.site import gpus, models
from tools.makers.site.controls import (
    NETWORK,
    RECOMPUTE,
    choice,
    control,
    powers,
    stacked,
    typed,
    with_commas,
)

TITLE = "The planner"
INTRODUCTION = """\
Does the job fit, how long does it take, and what does it cost? Pick an example, or describe your own job
and choose [your GPU](#gpus).
The curve shows how much of the ideal speedup is left on more GPUs. [The notebook on
planning](../notebooks/planning.ipynb) says what the formulas leave out.
"""
FILES = {f"lessons/planner/{name}.py": () for name in ("formulas", "plans", "report", "measured", "__main__")}
FILES |= {f"tools/makers/site/{name}.py": () for name in ("gpus", "models")}
PARTS = ("parameters", "gradients", "optimizer", "activations")
STAGES = {0: "0 (DDP)", 1: "1", 2: "2", 3: "3 (FSDP)"}
CONTROLS = [
    choice("model", "model", {name: name for name in models.MODELS}, "Llama 3 8B"),
    typed("params", "or billions of parameters", (None, 0.35, 3, 13), None, empty="as the model"),
    gpus.CONTROL,
    gpus.MEMORY,
    gpus.PRICE,
    control("gpus", "GPUs", powers(*range(15)), 64),
    control("tensor_parallel", "tensor-parallel size", powers(*range(4)), 1),
    control("pipeline", "pipeline stages", powers(*range(5)), 1),
    control("stage", "ZeRO stage", [[*pair] for pair in STAGES.items()], 1),
    control("batch_tokens", "tokens per step", powers(*range(17, 27)), 2**20),
    control("micro_batch", "micro-batch size", powers(*range(5)), 1),
    choice("recompute", "activation checkpointing", RECOMPUTE, "selective"),
    control("bandwidth_network", "network bandwidth", NETWORK, 12.5e9),
]
FAST = {"bandwidth_network": 50e9}
LARGE = FAST | {"batch_tokens": 2**24, "tensor_parallel": 8}
AT_HOME = {"gpu": "RTX 4090", "gpus": 4, "stage": 3, "batch_tokens": 2**19}
PRESETS = {
    "Llama 3 8B on 64 GPUs": {},
    "the same, with FSDP": {"stage": 3},
    "the same, fast network": FAST,
    "1.6 billion on 4 RTX 4090s": {"model": "GPT-2 XL, 1.6 billion"} | AT_HOME,
    "Llama 3 70B on 1,024 GPUs": {"model": "Llama 3 70B"} | LARGE | {"gpus": 1024},
    "Llama 3 405B on 16,384 GPUs": {"model": "Llama 3 405B"} | LARGE | {"gpus": 2**14, "pipeline": 16},
    "too large: 30 billion, DDP": {"model": "a GPT of 30 billion", "stage": 0} | FAST,
}
BELOW = f"""\
(gpus)=
## The GPUs

{gpus.table()}

Prices are list prices of one provider in the month that the table names. They differ several times between
providers and change every month, so type your own.
"""
NOTE = (
    "Everything else has the defaults of python lessons/planner: GPUs that reach half of their peak, 2,048 "
    "tokens per sequence, 20 training tokens per parameter, and the failure rate of Llama 3's training run. "
    "The sweep starts with the GPUs that one copy of the model takes, and doubles them."
)


def answer(**inputs):
    found = {"inputs": inputs, "said": "", "tables": [], "memory": [], "shares": [], "curve": []}
    job = models.job_of(inputs)
    try:
        one = plans.plan(job)
    except ValueError as error:
        found["said"] = f"No plan: {in_words(error)}."
    else:
        found |= plan(one, inputs)
    try:
        rows, end = plans.sweep(job | {"gpus": 2**14})
    except ValueError:
        return found
    found |= curve(rows, inputs["gpus"])
    found["tables"].append(sweep(rows, inputs["gpus"]))
    found["end"] = f"The sweep stops here: {in_words(end)}." if end else ""
    return found


def in_words(error):
    """An error of the planner's command, with the words of this page for its options."""
    words = {one["name"]: one["label"] for one in CONTROLS}
    words["gpus"] = "the number of GPUs"

    def named(option):
        return words.get(option[1].replace("-", "_"), option[0])

    return with_commas(re.sub(r"--([a-z-]+)", named, str(error)))


def plan(one, inputs):
    """The words, the table and the bars of one plan. The lines are those of the planner's report; of a job
    that does not fit there is only the memory, since it takes no time and costs nothing."""
    memory = one["memory_bytes"]
    limit = one["job"]["memory"]
    whole = sum(memory.values())
    top = 1.05 * max(whole, limit)

    rows = []
    for line in report.text(one).splitlines():
        if line.startswith("    "):
            cells = re.split(r" {2,}", line.strip())
            rows.append([*cells, "", ""][:3])
    shares = []
    if one["fits"]:
        said = verdict(one)
        share_of = report.shares(one)
        for bar in stacked(share_of, 1):
            shares.append(bar | {"words": f"{share_of[bar['part']]:.1%}"})
    else:
        said = no(one, remedies(one["job"]))
        rows = rows[: len(memory)]

    caption = f"python lessons/planner {models.words_of(inputs)}"
    return {
        "said": said,
        "memory": stacked({part: memory[part] for part in PARTS}, top),
        "limit": {"at": limit / top, "words": f"{limit / 1e9:.0f} GB"},
        "needs": f"{whole / 1e9:,.1f} GB",
        "shares": shares,
        "tables": [{"caption": caption, "head": ["part", "size", "share"], "rows": rows}],
    }


def sizes(one):
    return f"{sum(one['memory_bytes'].values()) / 1e9:,.1f} GB", f"{one['job']['memory'] / 1e9:,.0f} GB"


def verdict(one):
    needs, limit = sizes(one)
    said = (
        f"Yes, it fits: {needs} of {limit} per GPU. Training on {report.count(one['job']['tokens'])} tokens "
        f"takes {report.duration(one['days'] * 86400)} and costs ${one['dollars']:,.0f}."
    )
    if round(one["interruptions"]) == 0:  # nobody plans for a tenth of an interruption
        return said
    return f"{said} Expect {count_of(one['interruptions'], 'unplanned interruption')}."


def count_of(number, name):
    if round(number) != 1:
        name += "s"
    return f"{number:,.0f} {name}"


def no(one, changes):
    needs, limit = sizes(one)
    would = "No single change makes it fit: combine ZeRO stage 3, tensor parallelism and more GPUs."
    if changes:
        would = f"What would fit: {' or '.join(changes)}."
    return f"No, it does not fit: each GPU would need {needs} and has {limit}. {would}"


def remedies(job):
    """The single changes that make a job fit, at most three, each with what a GPU would then hold."""
    changes = {
        "ZeRO stage 3 (FSDP)": {"stage": 3},
        "full activation checkpointing": {"recompute": "full"},
        "a tensor-parallel size of 8": {"tensor_parallel": 8},
        "16 pipeline stages": {"pipeline": 16},
        "a micro-batch size of 1": {"micro_batch": 1},
    }
    found = []
    for name, change in changes.items():
        try:
            other = plans.plan(job | change)
        except ValueError:
            continue
        if other["fits"]:
            found.append(f"{name} ({sizes(other)[0]})")
    return found[:3]


def sweep(rows, count):
    """The table that the planner's command prints with --sweep."""
    table = []
    chosen = None
    for number, one in enumerate(rows):
        table.append(report.cells(one, rows[0]))
        if one["job"]["gpus"] == count:
            chosen = number
    return {"caption": "the same job on more GPUs", "head": report.HEAD, "rows": table, "chosen": chosen}


def curve(rows, count):
    """Dots from 0 to 1: the share of linear speedup, against GPUs on a logarithmic axis."""
    fewest = rows[0]["job"]["gpus"]
    most = rows[-1]["job"]["gpus"]
    width = max(1.0, math.log2(most / fewest))
    shares = [report.efficiency(one, rows[0]) for one in rows]
    top = max(1.0, *shares)

    dots = []
    for one, share in zip(rows, shares, strict=True):
        number = one["job"]["gpus"]
        dots.append(
            {
                "x": math.log2(number / fewest) / width,
                "y": share / top,
                "fits": one["fits"],
                "chosen": number == count,
                "words": f"{number:,}",
                "share": f"{share:.1%}",
            }
        )
    ticks = []
    for part in range(5):
        ticks.append({"at": part / 4 / top, "words": f"{25 * part}%"})
    first = "one GPU" if fewest == 1 else f"{fewest:,} GPUs"
    return {"curve": dots, "ticks": ticks, "axis": f"Throughput, in % of linear speedup from {first}"}
