"""How fast one H100 trains, from the files of results: two tables and a picture for launch/on_gpus.md.

python -m tools.makers.gpu.h100_page       write the tables between their markers, and pictures/gpt_step.svg
"""

from parts.colours import BLUE, DARK, GREEN, LIGHT_GREY, ORANGE, PINK
from tools import diffs, ink
from tools.lessons import ROOT
from tools.makers import result_files
from tools.makers.gpu.measure import IN_32_BITS, LOOPS, PEAKS

FOLDER = result_files.FOLDER
PAGE = ROOT / "lessons/launch/on_gpus.md"
PICTURE = ROOT / "lessons/pictures/gpt_step.svg"
COMMAND = "python -m tools.makers.gpu.h100_page"
PEAK = PEAKS["H100 80GB HBM3"] * 1e12
HOW = {  # a GPT was measured; in the order in which this is said
    "compiled": "compiled as a whole",
    "blocks": "each block compiled",
    "fused": "one product for query, key and value",
    "cudnn": "cuDNN's attention",
}
# Kernels that are neither: GELU, norms, additions, the loss, and conversions to bf16.
KINDS = {
    "products": (BLUE, "matrix products"),
    "attention": (GREEN, "attention"),
    "other kernels": (ORANGE, "other kernels"),
    "optimizer": (PINK, "AdamW"),
    "rest": (LIGHT_GREY, "the rest"),
}


def measured(kind):
    """The rows of this kind, by name: each from the newest file that has it."""
    found = {}
    for path in sorted(FOLDER.glob("gpu-*h100-*.jsonl"), key=lambda path: path.stem[-10:]):
        _, rows = result_files.read(path)
        for row in rows:
            if row["kind"] == kind and "failed" not in row:
                found[row["name"]] = row
    return found


def how(row):
    """A GPT was compiled and changed, in words."""
    said = []
    for kind, words in HOW.items():
        if kind in row["kinds"]:
            said.append(words)
    if not said:
        said.append("not compiled")
    words = row.get("characters", 64)
    if words != 64:
        said.append(f"{words:,} words")
    return "; ".join(said)


def ladder():
    lines = [
        "| row | what changes | images/s | range of 5 rounds | MFU |",
        "| ---: | --- | ---: | --- | ---: |",
    ]
    found = measured("loop")
    number = 0
    for name, change in LOOPS.items():
        if name not in found:
            continue
        number += 1
        row = found[name]
        share = "" if name in IN_32_BITS else f"{row['images/s'] * row['flops'] / PEAK:.1%}"
        rounds = f"{min(row['rounds']):,.0f} to {max(row['rounds']):,.0f}"
        lines.append(f"| {number} | {change} | {row['images/s']:,.0f} | {rounds} | {share} |")
    return "\n".join(lines) + "\n"


def gpt():
    rounds = "ms per step, range of 5 rounds"
    lines = [
        f"| texts | `torch.compile` | tokens/s | {rounds} | MFU | MFU, causal | memory |",
        "| ---: | --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for row in measured("gpt").values():
        rounds = f"{1000 * min(row['rounds']):.1f} to {1000 * max(row['rounds']):.1f}"
        share = f"{row['flops'] / row['seconds'] / PEAK:.1%}"
        causal = f"{row['causal'] / row['seconds'] / PEAK:.1%}"
        memory = f"{row['bytes'] / 1e9:.0f} GB"
        cells = [str(row["size"]), how(row), f"{row['tokens/s']:,.0f}", rounds, share, causal, memory]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def budget(row):
    """Milliseconds for each 8 texts, by what the GPU does in them. Copies take less than 0.3 ms."""
    shares = row["busy"] | {"rest": 1 - row["busy"]["busy"]}
    texts = row["size"] / 8
    return {kind: 1000 * row["seconds"] / texts * shares[kind] for kind in KINDS}


def draw(path):
    plt = ink.pyplot()
    names = []
    budgets = []
    for row in measured("gpt").values():
        names.append(f"{row['size']} texts,\n" + how(row).replace("; ", ",\n"))
        budgets.append(budget(row))
    height = len("\n".join(names).splitlines())
    figure, axes = plt.subplots(figsize=(ink.WIDTH, 1.2 + 0.3 * height))

    left = [0.0] * len(names)
    for kind, (colour, label) in KINDS.items():
        widths = [found[kind] for found in budgets]
        bars = axes.barh(names, widths, left=left, color=colour, label=label)
        shown = []
        for number, width in enumerate(widths):
            shown.append(f"{width:.0f}" if width >= 3 else "")
            left[number] += width
        axes.bar_label(bars, shown, label_type="center", color=DARK)
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds", title="The time of one H100 for 8 texts")
    figure.legend(loc="outside lower center", ncols=3)
    ink.save(figure, path)
    plt.close(figure)


def page():
    """lessons/launch/on_gpus.md with these tables."""
    return diffs.written_between(PAGE.read_text(), PAGE, {"ladder": ladder(), "gpt": gpt()}, COMMAND)


if __name__ == "__main__":
    PAGE.write_text(page())
    draw(PICTURE)
