"""Notebook 13a: dry runs, and pictures of what they find. Each function that draws shows its picture."""

import functools

import matplotlib.pyplot as plt

from planner import dry_run
from show.pictures import (
    BLUE,
    GREEN,
    GREY,
    HATCHES,
    INK,
    ORANGE,
    PINK,
    RANKS,
    SKY,
    arrow,
    box,
    canvas,
    picture,
)

SIZES = [8, 128, 4096, 16384]
PARTS = {
    "parameters": BLUE,
    "gradients": SKY,
    "optimizer": GREEN,
    "gathered group": ORANGE,
    "activations": PINK,
}


@functools.cache
def at(ranks, tensor=1, replicate=1, batch=1):
    """A dry run of lesson 13's model on this number of ranks."""
    mesh = {}
    if replicate > 1:
        mesh["replicate"] = replicate
    mesh["data"] = ranks // tensor // replicate
    mesh["tensor"] = tensor
    return dry_run.report(ranks, mesh, batch=batch, precision="bf16")


def sent(found, dimension=None):
    """Bytes that rank 0 sends in one step, if the ranks of each group form a ring."""
    total = 0
    for row in found["collectives"]:
        if dimension is None or row["dimension"] == dimension:
            total += row["times"] * row["sent"]
    return total


def held(found):
    """Bytes of parameters, gradients and optimizer state that rank 0 holds."""
    memory = found["memory"]
    return memory["parameters"] + memory["gradients"] + memory["optimizer"]


def with_commas(numbers):
    return [f"{number:,}" for number in numbers]


def draw_pretence():
    """The code that is real, and the two substitutes that it runs on."""
    axes = canvas(5, 4.1, 16, 13)
    box(axes, 0.1, 4.4, 15.7, 8.4, "", colour=GREY)
    axes.text(8, 12.1, "this process: rank 0 of 16,384", ha="center", weight="bold", size=10)
    box(axes, 0.6, 8.6, 14.7, 2.8, "real", "build_model, shard, forward,\nbackward, AdamW", BLUE)
    box(axes, 0.6, 4.9, 7, 2.8, "fake tensors", "a shape and a type,\nno memory", ORANGE)
    box(axes, 8.3, 4.9, 7, 2.8, "fake backend", "every collective\nis done at once", ORANGE)
    for number in range(72):
        corner = 0.5 + number % 24 * 0.64, 0.1 + number // 24 * 0.7
        axes.add_patch(plt.Rectangle(corner, 0.45, 0.5, fill=False, ec=GREY, ls=":"))
    axes.text(8.6, 2.5, "16,383 ranks that do not exist", ha="center", size=10)
    arrow(axes, (1.6, 4.4), (1.6, 2.2))
    axes.text(2, 3.3, "nothing is sent", size=9)
    picture(
        "A box for this process, rank 0 of 16,384. In it the real code runs on fake tensors and a fake "
        "backend. Nothing is sent to the other 16,383 ranks, which do not exist."
    )


def draw_bars(axes, tensor):
    """A bar for each number of ranks: what rank 0 holds if so many ranks share each matrix."""
    labels = with_commas(SIZES)
    found = [at(ranks, tensor) for ranks in SIZES]
    tops = [0] * len(SIZES)
    for name, colour in PARTS.items():
        style = {"hatch": HATCHES.get(colour), "edgecolor": INK, "lw": 0.3, "width": 0.7}
        bottoms = list(tops)
        sizes = []
        for number, one in enumerate(found):
            sizes.append(one["memory"][name] / 1e9)
            tops[number] += sizes[number]
        axes.bar(labels, sizes, bottom=bottoms, color=colour, label=name, **style)
    axes.set_ylabel("GB held by rank 0")


def draw_memory(titles):
    """What rank 0 holds; a panel for each number of ranks that share a matrix."""
    grid = plt.subplots(len(titles), sharex=True, figsize=(5, 5.6))[1]
    for axes, (tensor, title) in zip(grid, titles.items(), strict=True):
        draw_bars(axes, tensor)
        axes.set_title(title)
    grid[0].legend()
    grid[-1].set_xlabel("ranks")
    few = held(at(SIZES[0]))
    many = held(at(SIZES[-1]))
    picture(
        "What rank 0 holds on 8 to 16,384 ranks. With FSDP alone, parameters, gradients and optimizer state "
        f"shrink from {few / 1e9:.1f} GB to {many / 1e6:.1f} MB. The activations keep their size, and are "
        "most of the bar on many ranks."
    )


def draw_sent():
    """What rank 0 sends over data and over tensor."""
    titles = {"data": "over data (FSDP)", "tensor": "over tensor (one text)"}
    grid = plt.subplots(2, sharex=True, figsize=(5, 6))[1]
    for axes, (dimension, title) in zip(grid, titles.items(), strict=True):
        for tensor, colour, marker in zip((1, 2, 4, 8), RANKS, "os^D", strict=True):
            gigabytes = [sent(at(ranks, tensor), dimension) / 1e9 for ranks in SIZES]
            axes.plot(SIZES, gigabytes, color=colour, marker=marker, label=f"{tensor}")
        axes.set_xscale("log", base=2)
        axes.set_xticks(SIZES, with_commas(SIZES))
        axes.set(ylabel="GB sent by rank 0", title=title, ylim=(0, None))
    grid[0].legend(title="ranks that share\na matrix")
    grid[1].set_xlabel("ranks")
    on_128 = sent(at(128), "data")
    on_4096 = sent(at(4096), "data")
    on_16384 = sent(at(16384), "data")
    picture(
        f"What rank 0 sends in a step. Over data it grows by a factor of {on_4096 / on_128:.2f} from "
        f"128 to 4,096 ranks, and of {on_16384 / on_4096:.2f} from there to 16,384. Over tensor it does "
        "not depend on the number of ranks."
    )


def draw_bounds(milliseconds):
    """The least time for the bytes over tensor, for each order of the dimensions."""
    axes = plt.figure(figsize=(5, 1.7)).add_subplot()
    bars = axes.barh(list(milliseconds), list(milliseconds.values()), color=ORANGE, height=0.6)
    labels = []
    said = []
    for order, bound in milliseconds.items():
        labels.append(f" {bound:.0f} ms")
        said.append(f"{bound:.0f} ms with {order}")
    axes.bar_label(bars, labels, color=INK)
    axes.invert_yaxis()
    axes.set(xlabel="ms for the bytes over tensor, at least", xlim=(0, 100))
    picture(f"The least time for the bytes over tensor in a step: {', '.join(said)}.")


def draw_mesh(mesh):
    """For the slider: what rank 0 holds and sends on such a mesh. Returns the alt text."""
    replicate, _, tensor = mesh.split(" x ")
    found = at(16384, int(tensor), int(replicate))
    figure = plt.figure(figsize=(5, 4.4))
    figure.suptitle(f"replicate x data x tensor = {mesh}", size=11, weight="bold")
    upper, lower = figure.subfigures(2, height_ratios=[1.2, 1])
    above = upper.add_subplot()
    below = lower.add_subplot()

    left = 0
    for name, colour in PARTS.items():
        gigabytes = found["memory"][name] / 1e9
        label = f"{name} {gigabytes:.2f}"
        above.barh([""], gigabytes, left=left, color=colour, hatch=HATCHES.get(colour), label=label)
        left += gigabytes
    above.set(xlabel="GB held by rank 0", xlim=(0, 12))
    upper.legend(loc="outside lower center", ncols=2, handlelength=1)

    amounts = {}
    said = []
    for name in ("tensor", "data", "replicate"):
        amounts[name] = sent(found, name) / 1e9
        said.append(f"{amounts[name]:.2f} GB over {name}")
    bars = below.barh(list(amounts), list(amounts.values()), color=(ORANGE, BLUE, GREEN))
    below.bar_label(bars, fmt="{:.2f}", padding=3, color=INK)
    below.set(xlabel="GB sent by rank 0 in a step", xlim=(0, 190))  # on every mesh, to be compared
    return (
        f"On a mesh of replicate x data x tensor = {mesh}, rank 0 holds {left:.1f} GB and sends "
        f"{', '.join(said)}."
    )
