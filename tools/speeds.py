"""How fast one H100 trains, from the rows that `make gpu` measured there: two tables and a picture.

`make diffs` writes the tables into lessons/launch/README.md, `make pictures` draws pictures/gpt_step.svg.
"""

import json

from lessons import ROOT

FOLDER = ROOT / "tools/bench/results/gpu"
PEAK = 989e12  # an H100's in bf16, dense, by its data sheet
CHANGES = {
    "repeatable": "32-bit convolutions and repeatable kernels, as in the lessons",
    "plain": "PyTorch's defaults: TF32 in convolutions; four workers prepare single images",
    "input": "images stay on the GPU, which prepares whole batches",
    "bf16": "bf16 (autocast)",
    "channels_last": "`channels_last`",
    "benchmark": "cuDNN picks the fastest kernels",
    "fused": "a fused optimizer",
    "compile": "`torch.compile`",
}
GPTS = {
    "gpt": ("8", "not compiled"),
    "gpt, block by block": ("8", "each block compiled"),
    "gpt, compiled": ("8", "compiled as a whole"),
    "gpt, batches of 16": ("16", "each block compiled"),
}
# Kernels that are neither: GELU, norms, additions, the loss, and conversions to bf16.
KINDS = {
    "products": ("#0072B2", "matrix products"),
    "attention": ("#009E73", "attention"),
    "other kernels": ("#E69F00", "other kernels"),
    "optimizer": ("#CC79A7", "AdamW"),
    "idle": ("#999999", "idle"),
}


def measured() -> dict:
    return json.loads(max(FOLDER.glob("h100-*.json")).read_text())["how fast, alone, 192 s"]


def ladder() -> str:
    lines = ["| change, in addition to all above it | images/s | five rounds | share of the peak |"]
    lines.append("| --- | ---: | --- | ---: |")
    for name, change in CHANGES.items():
        row = measured()["ladder"][name]
        share = (
            f"{row['images/s'] * row['flops'] / PEAK:.1%}"
            if name not in ("repeatable", "plain", "input")
            else ""
        )
        rounds = f"{min(row['rounds']):,.0f} to {max(row['rounds']):,.0f}"
        lines.append(f"| {change} | {row['images/s']:,.0f} | {rounds} | {share} |")
    return "\n".join(lines) + "\n"


def gpt() -> str:
    lines = [
        "| texts in a step | `torch.compile` | tokens/s | ms a step, five rounds | MFU | causal | memory |"
    ]
    lines.append("| ---: | --- | ---: | --- | ---: | ---: | ---: |")
    for name, (texts, compiled) in GPTS.items():
        row = measured()["gpt"][name]
        rounds = f"{1000 * min(row['rounds']):.1f} to {1000 * max(row['rounds']):.1f}"
        shares = " | ".join(f"{row[kind] / row['seconds'] / PEAK:.1%}" for kind in ("flops", "causal"))
        memory = f"{row['bytes'] / 1e9:.0f} GB"
        lines.append(f"| {texts} | {compiled} | {row['tokens/s']:,.0f} | {rounds} | {shares} | {memory} |")
    return "\n".join(lines) + "\n"


def budget(row: dict) -> dict[str, float]:
    """Milliseconds for each 8 texts, by what the GPU does in them. Copies take less than 0.3 ms."""
    shares = dict(row["busy"]) | {"idle": 1 - row["busy"]["busy"]}
    texts = row["flops"] / measured()["gpt"]["gpt"]["flops"]
    return {kind: 1000 * row["seconds"] / texts * shares[kind] for kind in KINDS}


def draw(path) -> None:
    import ink

    plt = ink.pyplot()
    figure, axes = plt.subplots(figsize=(ink.WIDTH, 3.6))
    names = [f"{texts} texts,\n{compiled}" for texts, compiled in GPTS.values()]
    budgets = [budget(measured()["gpt"][name]) for name in GPTS]
    left = [0.0] * len(names)
    for kind, (colour, label) in KINDS.items():
        widths = [each[kind] for each in budgets]
        bars = axes.barh(names, widths, left=left, color=colour, label=label)
        axes.bar_label(
            bars,
            [f"{width:.0f}" if width >= 3 else "" for width in widths],
            label_type="center",
            color="#111111",
        )
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds for 8 texts", title="What one H100 does in a step")
    figure.legend(loc="outside lower center", ncols=3)
    ink.save(figure, path)
