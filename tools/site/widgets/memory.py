"""What one GPU holds, by model and by way of sharding: the planner's memory, beside three kinds of GPU."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "lessons"))
from controls import RECOMPUTE, choice, control, powers
from planner import __main__ as command
from planner import formulas, plans

TITLE = "Memory: what one GPU holds"
INTRODUCTION = """\
Choose a larger model until no bar ends before the line of your GPU, then move *tensor-parallel* to the
right. You will see that ZeRO's stages shard the optimizer, the gradients and the parameters, and that
only recomputation, tensor parallelism or shorter texts make the activations smaller.
[FSDP](../notebooks/09_fsdp.ipynb) is stage 3.
"""
FILES = {f"lessons/planner/{name}.py": () for name in ("formulas", "plans", "report", "__main__")}
MODELS = {  # layers, width, heads: GPT-2's, those of Narayanan 2021 (table 1), GPT-3's and Llama 3's largest
    "GPT-2, 124 million": (12, 768, 12),
    "GPT-2 XL, 1.6 billion": (48, 1600, 25),
    "7.5 billion": (36, 4096, 32),
    "18.4 billion": (40, 6144, 48),
    "39.1 billion": (48, 8192, 64),
    "76.1 billion": (60, 10240, 80),
    "GPT-3, 175 billion": (96, 12288, 96),
    "as wide as Llama 3 405B": (126, 16384, 128),
    "1 trillion": (128, 25600, 160),
}
GPUS = (24e9, 80e9, 141e9)  # bytes
TOPS = (30e9, 100e9, 160e9)  # of the drawing; a bar that is higher is cut
POSITIONS = 2048  # that a model has embeddings of
CONTROLS = [
    choice("model", "model", {name: name for name in MODELS}, "7.5 billion"),
    control("gpus", "GPUs", powers(*range(15)), 64),
    control("tensor_parallel", "tensor-parallel", powers(*range(4)), 1),
    control("micro_batch", "texts at once", powers(*range(5)), 1),
    control("seq", "tokens of a text", powers(*range(9, 16)), 2048),
    choice("recompute", "backward recomputes", RECOMPUTE, "selective"),
]
NOTE = (
    "By the planner's formulas, for 16-bit training with Adam: a parameter takes 2 bytes, its gradient 2, "
    "and Adam's copy and moments of it 12. Buffers, and what the framework takes for itself, come on top. "
    "So do DDP's buckets, unless DDP is told gradient_as_bucket_view=True: 2 bytes more for a parameter. "
    "The models are GPTs of these sizes with the planner's vocabulary."
)
WAYS = {
    0: "replicated (DDP, stage 0)",
    1: "stage 1: the optimizer is sharded",
    2: "stage 2: the gradients too",
    3: "stage 3: the parameters too (FSDP)",
}
PARTS = ("parameters", "gradients", "optimizer", "activations")


def job_of(inputs, stage):
    layers, hidden, heads = MODELS[inputs["model"]]
    job = {name.replace("-", "_"): option.default for name, option in command.OPTIONS.items()}
    job |= {"params": round(formulas.transformer_params(layers, hidden, plans.VOCAB, POSITIONS))}
    return (
        job
        | {"layers": layers, "hidden": hidden, "heads": heads, "sequence_parallel": False, "stage": stage}
        | {name: value for name, value in inputs.items() if name != "model"}
    )


def gigabytes(size):
    return f"{size / 1e9:,.1f} GB"


def answer(**inputs):
    found = {"inputs": inputs, "tables": [], "bars": [], "lines": []}
    if inputs["gpus"] < inputs["tensor_parallel"]:
        need = f"{inputs['tensor_parallel']} GPUs"
        return found | {"said": f"One copy of the model takes {need}: there are {inputs['gpus']}."}
    copies = inputs["gpus"] // inputs["tensor_parallel"]
    bars = [plans.memory_bytes(job_of(inputs, stage), copies, microbatches=1) for stage in WAYS]
    wholes = [sum(parts.values()) for parts in bars]
    top = next((top for top in TOPS if max(wholes) <= top), TOPS[-1])
    rows = []
    for name, parts, whole in zip(WAYS.values(), bars, wholes, strict=True):
        fits = ["fits" if whole <= size else "no" for size in GPUS]
        rows.append([name, *(gigabytes(parts[part]) for part in PARTS), gigabytes(whole), *fits])
        start, drawn = 0.0, []
        for part in PARTS:
            end = min(start + parts[part] / top, 1.0)
            drawn.append({"part": part, "from": start, "to": end})
            start = end
        found["bars"].append({"name": name, "words": gigabytes(whole), "is_cut": whole > top, "parts": drawn})
    found["lines"] = [{"at": size / top, "words": f"{size / 1e9:.0f} GB"} for size in GPUS if size <= top]
    head = ["each GPU holds", *PARTS, "in all", *(f"{size / 1e9:.0f} GB" for size in GPUS)]
    caption = f"{inputs['model']}, on {inputs['gpus']:,} GPUs"
    found["tables"] = [{"caption": caption, "head": head, "rows": rows}]
    return found | {"said": f"{caption}, {copies:,} data-parallel ranks: {said(wholes)}"}


def said(wholes):
    """Which stage is the first that fits, for each kind of GPU."""
    words = []
    for size in GPUS:
        first = next((stage for stage, whole in enumerate(wholes) if whole <= size), None)
        kind = f"{size / 1e9:.0f} GB"
        if first is None:
            words.append(f"{kind} are not enough for any stage")
        elif first == 0:
            words.append(f"in {kind} it fits without sharding")
        else:
            words.append(f"in {kind} it fits from stage {first} on")
    return "; ".join(words) + "."
