"""How fast one H100 trains, from the rows that `make gpu` measured there: two tables and a picture.

`make diffs` writes the tables into lessons/launch/README.md, `make pictures` draws pictures/gpt_step.svg.
"""

import json

from tools.lessons import ROOT

FOLDER = ROOT / "tools/makers/results"
PEAK = 989e12  # an H100's in bf16, dense, by its data sheet
CHANGES = {
    "repeatable": "the lessons' flags: convolutions in 32 bits, repeatable kernels",
    "plain": "PyTorch's flags: TF32 in convolutions, any kernel",
    "input": "images stay on the GPU, which prepares whole batches; no `loss.item()`",
    "bf16": "`torch.autocast` in bf16",
    "channels_last": "`channels_last`",
    "benchmark": "`cudnn.benchmark = True`",
    "fused": "`SGD(fused=True)`",
    "compile": "`torch.compile`",
}
IN_32_BITS = ("repeatable", "plain", "input")  # with a peak of their own
HOW = {  # a GPT was measured; in the order in which this is said
    "compiled": "compiled as a whole",
    "blocks": "each block compiled",
    "fused": "one product for query, key and value",
    "cudnn": "cuDNN's attention",
}
# Kernels that are neither: GELU, norms, additions, the loss, and conversions to bf16.
KINDS = {
    "products": ("#0072B2", "matrix products"),
    "attention": ("#009E73", "attention"),
    "other kernels": ("#E69F00", "other kernels"),
    "optimizer": ("#CC79A7", "AdamW"),
    "rest": ("#999999", "the rest"),
}


def measured() -> dict[str, dict]:
    """What is known of the ladder and of the GPT: each row from the newest file that has it. `make gpu`
    writes them as "facts"; a file that was put together by hand has them under the name of their stage, with
    the seconds that this took."""
    found = {"ladder": {}, "gpt": {}}
    for path in sorted(FOLDER.glob("gpu-h100-*.json")):
        for name, part in json.loads(path.read_text()).items():
            if name == "facts" or name.startswith("how fast, alone"):
                for kind in found.keys() & part.keys():
                    found[kind] |= part[kind]
    return found


def how(row: dict) -> str:
    said = [words for kind, words in HOW.items() if kind in row["kinds"]]
    words = row.get("characters", 64)
    return "; ".join((said or ["not compiled"]) + [f"{words:,} words"] * (words != 64))


def ladder() -> str:
    lines = ["| row | what changes | images/s | range of 5 rounds | MFU |"]
    lines.append("| ---: | --- | ---: | --- | ---: |")
    found = measured()["ladder"]
    for number, name in enumerate([name for name in CHANGES if name in found], 1):
        row, change = found[name], CHANGES[name]
        share = "" if name in IN_32_BITS else f"{row['images/s'] * row['flops'] / PEAK:.1%}"
        rounds = f"{min(row['rounds']):,.0f} to {max(row['rounds']):,.0f}"
        lines.append(f"| {number} | {change} | {row['images/s']:,.0f} | {rounds} | {share} |")
    return "\n".join(lines) + "\n"


def gpt() -> str:
    lines = [
        "| texts | `torch.compile` | tokens/s | ms per step, range of 5 rounds | MFU | MFU, causal | memory |"
    ]
    lines.append("| ---: | --- | ---: | --- | ---: | ---: | ---: |")
    for row in measured()["gpt"].values():
        rounds = f"{1000 * min(row['rounds']):.1f} to {1000 * max(row['rounds']):.1f}"
        shares = " | ".join(f"{row[kind] / row['seconds'] / PEAK:.1%}" for kind in ("flops", "causal"))
        memory = f"{row['bytes'] / 1e9:.0f} GB"
        lines.append(
            f"| {row['size']} | {how(row)} | {row['tokens/s']:,.0f} | {rounds} | {shares} | {memory} |"
        )
    return "\n".join(lines) + "\n"


def budget(row: dict) -> dict[str, float]:
    """Milliseconds for each 8 texts, by what the GPU does in them. Copies take less than 0.3 ms."""
    shares = dict(row["busy"]) | {"rest": 1 - row["busy"]["busy"]}
    texts = row["size"] / 8
    return {kind: 1000 * row["seconds"] / texts * shares[kind] for kind in KINDS}


def draw(path) -> None:
    from tools import ink

    plt = ink.pyplot()
    rows = measured()["gpt"].values()
    names = [f"{row['size']} texts,\n" + how(row).replace("; ", ",\n") for row in rows]
    lines = sum(len(name.splitlines()) for name in names)
    figure, axes = plt.subplots(figsize=(ink.WIDTH, 1.2 + 0.3 * lines))
    budgets = [budget(row) for row in rows]
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
    axes.set(xlabel="milliseconds", title="The time of one H100 for 8 texts")
    figure.legend(loc="outside lower center", ncols=3)
    ink.save(figure, path)
