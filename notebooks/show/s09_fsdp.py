"""Notebook 09: what processes hold, what a step keeps, and the curves of runs that resumed."""

import re

import matplotlib.pyplot as plt

from show.pictures import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PAPER,
    PINK,
    RANKS,
    RED,
    SKY,
    curves,
    picture,
    tile,
    timeline,
)

EXACT = 1e-12  # where zero is drawn on a logarithmic axis
LIMIT = 1e-5  # of the tests


def held(running):
    """What each process of a run has printed: bytes of weights, of gradients, of momentum."""
    lines = [line for line in running.text.splitlines() if " holds " in line]
    return [[int(size.replace(",", "")) for size in re.findall(r"\d[\d,]{3,}", line)] for line in lines]


def draw_resumed(one, four, resumed):
    """The losses of all runs, and how far the losses of those that resumed are from lesson 01's."""
    upper, lower = plt.subplots(2, 1, figsize=(5, 5.4), height_ratios=(3, 2))[1]
    curves(upper, {"lesson 01": one, "4 processes": four} | resumed)
    upper.axvline(2.5, color=RED, ls="--", lw=1)
    upper.text(2.47, upper.get_ylim()[0], "resumed ", color=RED, va="bottom", ha="right", size=10)
    upper.set_title("loss")
    colours, worst = [line.get_color() for line in upper.get_lines()[2:5]], 0
    for (label, rows), colour in zip(resumed.items(), colours, strict=True):
        off = [abs(row["loss"] / truth["loss"] - 1) for row, truth in zip(rows, one, strict=True)]
        lower.plot(range(1, 5), [max(value, EXACT) for value in off], "o-", color=colour, label=label)
        worst = max(worst, *off)
    lower.axhline(LIMIT, color=RED, ls="--", lw=1)
    lower.set(yscale="log", ylim=(3e-13, 3e-3), xlabel="epoch", title="relative difference from lesson 01")
    lower.text(1, 2 * LIMIT, "the limit of the tests", color=RED, size=10)
    lower.set_xticks([1, 2, 3, 4])
    picture(
        "Above, the losses of lesson 01, of 4 processes, and of 3, 2 and 1 that resumed after epoch 2: one "
        f"curve. Below, their relative distance from lesson 01: at most {worst:.0e}, where the tests allow "
        "1e-5."
    )


def draw_held(parameters, measured):
    """Bars for ZeRO's formulas, four numbers of processes and four stages; dots for what each measured."""
    kinds = {"weights": BLUE, "gradients": ORANGE, "momentum": GREEN}
    axes = plt.subplots(figsize=(5, 3.8))[1]
    for processes in (1, 2, 3, 4):
        for stage in range(4):
            place, bottom = processes + 0.2 * (stage - 1.5), 0
            for whole_until, (kind, colour) in zip((2, 1, 0), kinds.items(), strict=True):
                height = 4 * parameters / 1000 / (1 if stage <= whole_until else processes)
                label = kind if (processes, stage) == (1, 0) else None
                axes.bar(place, height, 0.17, bottom, color=colour, alpha=0.75, label=label)
                bottom += height
            axes.text(place, -6, stage, ha="center", va="top", size=9)
        for rank, sizes in enumerate(measured[processes]):
            place = processes + 0.3 + 0.05 * (rank - (processes - 1) / 2)
            label = "measured, by rank" if (processes, rank) == (1, 0) else None
            axes.plot(place, sum(sizes) / 1000, "o", color=INK, ms=5, label=label)
    names = [f"\n{count} process{'es' if count > 1 else ''}" for count in (1, 2, 3, 4)]
    axes.set_xticks((1, 2, 3, 4), names)
    axes.tick_params(axis="x", length=0)
    axes.set(xlabel="above: ZeRO's stage", ylabel="kB on each process")
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda number: labels[number].startswith("measured"))
    axes.legend(
        [handles[number] for number in order],
        [labels[number] for number in order],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=2,
    )
    picture(
        "What each process holds by ZeRO's stage on 1 to 4 processes. Stage 0 is "
        f"{12 * parameters / 1000:.0f} kB on any number; stage 3 is that divided by the number of processes. "
        "The measured dots are at the height of stage 3."
    )


def draw_formulas(formulas, billions, numbers):
    """GB on each GPU against the number of GPUs, a line for each stage."""
    axes = plt.subplots(figsize=(5, 3.2))[1]
    for (stage, formula), style in zip(formulas.items(), ("-", "--", "-.", "-"), strict=True):
        axes.plot(numbers, [billions * formula(n) for n in numbers], style, lw=2.2, label=stage)
    axes.axhline(80, color=RED, lw=1)
    axes.text(1, 75, "a GPU of 80 GB", color=RED, va="top", size=10)
    axes.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="GB on each")
    axes.set_title(f"{billions} billion parameters")
    axes.set_xticks([1, 2, 4, 8, 16, 32, 64], [1, 2, 4, 8, 16, 32, 64])
    axes.set_yticks([10, 20, 50, 100, 200, 500], [10, 20, 50, 100, 200, 500])
    axes.minorticks_off()
    axes.legend(loc="lower left")
    picture(
        f"GB on each GPU by the number of GPUs, for {billions} billion parameters. Stage 0 stays at "
        f"{16 * billions} GB, above a GPU of 80 GB. Stages 1 and 2 fall towards {4 * billions} and "
        f"{2 * billions} GB. Stage 3 falls without end, to {16 * billions / 64:.1f} GB on 64 GPUs."
    )


def draw_whole(found):
    """The weights that are whole at every place of a step, in three settings."""
    axes = plt.subplots(figsize=(5, 4))[1]
    looks = {"the lesson": (BLUE, "-"), "--no-reshard": (ORANGE, "--"), "only the root": (RED, ":")}
    for name, (colour, style) in looks.items():
        places = [place for place, _ in found[name]["whole"]]
        sizes = [size / 1000 for _, size in found[name]["whole"]]
        axes.step(range(len(places)), sizes, where="mid", color=colour, ls=style, lw=2.4, label=name)
    axes.set_xticks(range(len(places)), places, rotation=90)
    axes.set_ylabel("kB of weights that are whole")
    axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    most = {name: max(size for _, size in found[name]["whole"]) / 1000 for name in looks}
    picture(
        "The weights that are whole during a step. In the lesson only the layer that computes, at most "
        f"{most['the lesson']:.0f} kB. With --no-reshard they add up to all {most['--no-reshard']:.0f} kB "
        "until backward. With fully_shard only on the root, all are whole from the first layer on."
    )


def draw_kept(kept, weights):
    """A bar for what each setting keeps for the backward pass, in bytes, and a line for all weights."""
    axes = plt.subplots(figsize=(5, 2.1))[1]
    bars = axes.barh(list(kept), [size / 1000 for size in kept.values()], color=[BLUE, PINK, GREEN])
    axes.bar_label(bars, padding=4, fmt="{:,.0f} kB", color=INK)
    axes.axvline(weights / 1000, color=RED, lw=1)
    axes.text(170, -0.66, "all weights of the model", color=RED, va="center", size=10)
    axes.set(xlabel="kept for backward on each process, kB", xlim=(0, 3600), ylim=(2.6, -0.95))
    sizes = ", ".join(f"{size / 1000:,.0f} kB ({label})" for label, size in kept.items())
    picture(
        f"What a process keeps for the backward pass: {sizes}. All weights together are "
        f"{weights / 1000:.0f} kB."
    )


def draw_saving(diaries):
    """When each rank trains and writes: from step 9 to the end of the last write."""
    rows, colours = {}, {"step": SKY, "copy": RED, "write": GREEN}
    for rank, diary in enumerate(diaries):
        zero = diary[9][0]
        until = [end for _, end, kind in diary if kind == "write"][-1] + 0.05
        seen = [
            (1000 * (begin - zero), 1000 * (end - zero), kind)
            for begin, end, kind in diary
            if zero <= begin < until
        ]
        rows[f"rank {rank} trains"] = [bar for bar in seen if bar[2] != "write"]
        rows[f"rank {rank} writes"] = [bar for bar in seen if bar[2] == "write"]
    timeline(plt.subplots(figsize=(5, 2.6))[1], rows, colours)
    picture(
        "Two ranks over time, each with a row for training and one for writing. Two checkpoints are copied, "
        "while no step is taken, and then written, while further steps are taken."
    )


def draw_gathered(places):
    """What rank 0 of two ranks has in memory at each place of a step: a column for each layer."""
    steps = [place for place, _ in places[1:-1]]  # without "before" and "after"
    layers = [place.removeprefix("forward ") for place in steps if place.startswith("forward ")]
    axes = plt.subplots(figsize=(4.8, 4.6))[1]
    for row, place in enumerate([*steps, "after"]):
        for column, layer in enumerate(layers):
            is_whole = place.endswith(layer)
            is_done = f"backward {layer}" in steps[:row]
            parts = [("weights", 0, True), ("weights", 1, is_whole)]
            parts += [("gradient", 0, is_done or place == f"backward {layer}")]
            parts += [("gradient", 1, place == f"backward {layer}")]
            for kind, rank, is_there in parts:
                corner = column + 0.42 * rank, -row - (0.36 if kind == "gradient" else 0)
                fill = tile(RANKS[rank], 0.6) if is_there else PAPER
                hatch = "////" if kind == "gradient" and is_there else None
                looks = {"facecolor": fill, "hatch": hatch, "edgecolor": GREY, "lw": 0.6}
                axes.add_patch(plt.Rectangle(corner, 0.42, 0.32, **looks))
    axes.set_yticks([-row for row in range(len(steps) + 1)], [*steps, "after"])
    axes.set_xticks([column + 0.42 for column in range(len(layers))], layers)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set(xlim=(-0.1, len(layers)), ylim=(-len(steps) - 0.5, 0.5))
    looks = (("its shard", BLUE, None), ("the other rank's", ORANGE, None), ("gradient", GREY, "////"))
    handles = [
        plt.Rectangle((0, 0), 1, 1, facecolor=tile(colour, 0.6), hatch=hatch, edgecolor=GREY)
        for _, colour, hatch in looks
    ]
    names = [name for name, *_ in looks]
    axes.figure.legend(handles, names, loc="outside lower center", ncols=3, columnspacing=1)
    picture(
        "The memory of rank 0 of two ranks during a step. It always has its shard of the weights of each "
        "layer. The other rank's shard is there only while the layer computes: in turn forward, from "
        f"{layers[0]} to {layers[-1]}, and back. The gradient of a layer is whole in its backward pass, then "
        "rank 0 keeps its shard."
    )
