"""What one GPU holds, by model and by way of sharding: the planner's memory, beside three kinds of GPU."""

from planner import plans
from tools.makers.site import models
from tools.makers.site.controls import RECOMPUTE, choice, control, powers, stacked

TITLE = "Memory: what one GPU holds"
INTRODUCTION = """\
Does the model fit on your GPU, and which ZeRO stage does it need? Each bar is what one GPU holds during
training. The dashed lines are GPUs with 24, 80 and 141 GB: a bar that ends before a line fits on that GPU.
ZeRO shards the optimizer states, the gradients and the parameters ([FSDP](../notebooks/09_fsdp.ipynb) is
stage 3). Only activation checkpointing, tensor parallelism and shorter sequences shrink the activations.
"""
FILES = {f"lessons/planner/{name}.py": () for name in ("formulas", "plans", "report", "measured", "__main__")}
FILES |= {f"tools/makers/site/{name}.py": () for name in ("gpus", "models")}
GPUS = (24e9, 80e9, 141e9)  # bytes
CONTROLS = [
    choice("model", "model", {name: name for name in models.MODELS}, "GPT-2 XL, 1.6 billion"),
    control("gpus", "GPUs", powers(*range(15)), 4),
    control("tensor_parallel", "tensor-parallel size", powers(*range(4)), 1),
    control("micro_batch", "micro-batch size", powers(*range(5)), 1),
    control("seq", "sequence length", powers(*range(9, 16)), 2048),
    choice("recompute", "activation checkpointing", RECOMPUTE, "selective"),
]
PRESETS = {
    "1.6 billion on 4 GPUs": {},
    "7.5 billion on 64 GPUs": {"model": "a GPT of 7.5 billion", "gpus": 64},
    "Llama 3 8B on one node": {"model": "Llama 3 8B", "gpus": 8, "recompute": "full"},
    "Llama 3 70B on 64 GPUs": {"model": "Llama 3 70B", "gpus": 64, "tensor_parallel": 8},
    "GPT-3 on 1,024 GPUs": {"model": "GPT-3, 175 billion", "gpus": 1024, "tensor_parallel": 8},
    "32,768-token sequences": {"model": "Llama 3 8B", "gpus": 64, "seq": 32768, "recompute": "full"},
}
NOTE = (
    "Estimates from the planner's formulas, for 16-bit training with Adam: each parameter takes 2 bytes, its "
    "gradient 2 bytes, and Adam's states with the 32-bit copy of the weights 12 bytes. Buffers and memory "
    "that the framework itself uses come on top. DDP's buckets add 2 bytes per parameter unless you pass "
    "gradient_as_bucket_view=True."
)
WAYS = {
    0: "DDP (ZeRO stage 0): everything replicated",
    1: "ZeRO stage 1: shards the optimizer states",
    2: "ZeRO stage 2: also shards the gradients",
    3: "ZeRO stage 3 (FSDP): also shards the parameters",
}
PARTS = ("parameters", "gradients", "optimizer", "activations")


def gigabytes(size):
    return f"{size / 1e9:,.1f} GB"


def axis(most):
    """Where the drawing ends, and its ticks: it grows with the model, and is round."""
    unit = 10 ** (len(f"{most:.0f}") - 1)
    for times in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10):
        top = times * unit
        if top >= most:
            break
    ticks = []
    for part in range(5):
        ticks.append({"at": part / 4, "words": f"{top * part / 4e9:,.4g} GB"})
    return top, ticks


def answer(**inputs):
    found = {"inputs": inputs, "tables": [], "bars": [], "lines": [], "ticks": []}
    if inputs["gpus"] < inputs["tensor_parallel"]:
        need = f"{inputs['tensor_parallel']} GPUs"
        found["said"] = f"One copy of the model takes {need}, but there are {inputs['gpus']}."
        return found

    parts_of = {}  # for each stage, the bytes of each part
    whole_of = {}
    copies = inputs["gpus"] // inputs["tensor_parallel"]
    for stage in WAYS:
        sizes = plans.memory_bytes(models.job_of(inputs, stage=stage), copies, microbatches=1)
        parts_of[stage] = {part: sizes[part] for part in PARTS}
        whole_of[stage] = sum(parts_of[stage].values())

    top, found["ticks"] = axis(max(*whole_of.values(), 1.2 * GPUS[0]))
    head = ["each GPU holds", *PARTS, "total"]
    for size in GPUS:
        head.append(named(size))
        if size <= top:
            found["lines"].append({"at": size / top, "words": named(size)})

    rows = []
    for stage, name in WAYS.items():
        parts = parts_of[stage]
        whole = whole_of[stage]
        fits = ["fits" if whole <= size else "no" for size in GPUS]
        rows.append([name, *map(gigabytes, parts.values()), gigabytes(whole), *fits])
        found["bars"].append({"name": name, "words": gigabytes(whole), "parts": stacked(parts, top)})

    gpus = "1 GPU" if inputs["gpus"] == 1 else f"{inputs['gpus']:,} GPUs"
    caption = f"{inputs['model']}, on {gpus}"
    found["tables"].append({"caption": caption, "head": head, "rows": rows})
    found["said"] = said(whole_of)
    return found


def named(size):
    return f"{size / 1e9:.0f} GB GPU"


def said(whole_of):
    """Which stage is the first that fits, for each kind of GPU."""
    words = []
    for size in GPUS:
        fitting = [stage for stage, whole in whole_of.items() if whole <= size]
        if not fitting:
            words.append(f"{named(size)}: does not fit, at any stage")
        elif fitting[0] == 0:
            words.append(f"{named(size)}: fits with DDP, without sharding")
        elif fitting[0] == 3:
            words.append(f"{named(size)}: fits with ZeRO stage 3 (FSDP)")
        else:
            words.append(f"{named(size)}: fits with ZeRO stage {fitting[0]}")
    return "; ".join(words) + "."
