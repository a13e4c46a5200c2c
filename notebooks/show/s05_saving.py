"""Notebook 05: who writes and loads the snapshot, what a kill sets off, and what a file holds meanwhile."""

import time

import matplotlib.pyplot as plt

from show.pictures import BLUE, DARK, GREEN, GREY, INK, RANKS, RED, SKY, arrow, box, canvas, picture, tile
from show.processes import folded
from show.rank_inks import GREEN_INK, INK_OF_RANK, RED_INK

LOOKS = {"old": (SKY, None), "incomplete": (RED, "////"), "new": (GREEN, None)}


def follow_without_traceback(running, limit=180):
    """Print what a command writes until it ends, but only torchrun's line and the script's own lines."""
    deadline = time.monotonic() + limit
    while (line := running.next(deadline)) is not None:
        if line.startswith(("failed", "resumed", "epoch")):
            print(folded(line), end="")


def draw_who_does_what():
    """torchrun and two processes, of which process 0 writes the snapshot and both load it."""
    axes = canvas(5, 5.3, across=10, down=10.6)
    box(axes, 2.6, 9.3, 4.8, 1.2, "torchrun", "starts and watches both", GREY)
    for rank, left in ((0, 0.1), (1, 6.7)):
        held = "model, optimizer,\nscheduler\n\nits images"
        box(axes, left, 5.7, 3.2, 2.4, f"process {rank}", held, RANKS[rank])
    arrow(axes, (3.2, 9.2), (1.9, 8.2))
    arrow(axes, (6.8, 9.2), (8.1, 8.2))
    arrow(axes, (3.4, 6.9), (6.6, 6.9), "gradients", both=True, size=9)
    box(axes, 0.3, 3.4, 2.7, 1.1, "temporary file", colour=BLUE)
    axes.patches[-1].set_linestyle("--")
    box(axes, 0.1, 0.2, 3.2, 2.0, "snapshot", "model, optimizer,\nscheduler, epoch", GREEN)
    arrow(axes, (1.7, 5.6), (1.7, 4.6), colour=BLUE)
    arrow(axes, (1.7, 3.3), (1.7, 2.3), colour=BLUE)
    axes.text(0.9, 5.1, "1 write", ha="center", va="center", size=9, color=INK_OF_RANK[0])
    axes.text(0.8, 2.8, "2 rename", ha="center", va="center", size=9, color=INK_OF_RANK[0])
    arrow(axes, (3.4, 1.8), (7.6, 5.6), colour=GREEN)
    arrow(axes, (3.2, 2.3), (3.2, 5.6), colour=GREEN)
    axes.text(4.7, 3.9, "3 load,\nat the start", size=9, color=GREEN_INK, ha="center")
    picture(
        "torchrun starts and watches two processes, which exchange gradients. At the end of an epoch, "
        "process 0 writes the model, the optimizer, the scheduler and the epoch into a temporary file and "
        "renames it to be the snapshot. At the start, both processes load the snapshot."
    )


WORK = {
    "trains": {"facecolor": tile(SKY, 0.5), "edgecolor": "white", "lw": 0},
    "waits": {"facecolor": "none", "edgecolor": INK, "hatch": "....", "lw": 0.8},
    "starts again": {"facecolor": tile(GREY, 0.4), "edgecolor": "white", "lw": 0},
    "repeats": {"facecolor": tile(RED, 0.5), "edgecolor": "white", "lw": 0},
}


def draw_restart():
    """What happens from the kill of process 1 to the repeated steps."""
    saved, killed, noticed, started, loaded, repeated, end = 2, 4, 5.4, 6.2, 8.4, 10.4, 11.6
    figure, axes = plt.subplots(figsize=(5, 4.6))
    begun = [(started, loaded, "starts again"), (loaded, repeated, "repeats"), (repeated, end, "trains")]
    rows = (
        (2, [(0, killed, "trains"), (killed, noticed, "waits"), *begun]),
        (1, [(0, killed, "trains"), *begun]),
    )
    for row, parts in rows:
        for begin, stop, what in parts:
            axes.barh(row, stop - begin, left=begin, height=0.55, **WORK[what])
    axes.plot(killed, 1, "x", color=RED, ms=11, mew=3)
    axes.plot(noticed, 2, "s", color=INK, ms=8)
    axes.text(killed + 0.35, 1, "killed", va="center", color=RED_INK)

    axes.barh(3, end, height=0.55, facecolor="none", edgecolor=GREY)
    axes.text(0.1, 3, "watches", va="center", size=9.5)
    axes.text(killed, 3, "notices", ha="left", va="center", size=9.5)
    axes.text(started + 0.1, 3, "starts two", ha="left", va="center", size=9.5)
    draw_arrow(axes, (started, 2.72), (started, 2.32), INK)
    draw_arrow(axes, (started, 2.72), (started, 1.32), INK)

    axes.barh(0, end - saved, left=saved, height=0.55, facecolor=tile(GREEN, 0.4))
    words = "snapshot of epoch 1"
    axes.text((saved + loaded) / 2, 0, words, ha="center", va="center", size=10, color=DARK)
    draw_arrow(axes, (saved, 1.7), (saved, 0.32), GREEN)
    draw_arrow(axes, (loaded, 0.3), (loaded, 0.7), GREEN)
    draw_arrow(axes, (loaded, 0.3), (loaded, 1.7), GREEN)
    axes.text(saved - 0.15, 0.5, "save", ha="right", va="center", size=9.5, color=GREEN_INK)
    axes.text(loaded - 0.15, 0.5, "load", ha="right", va="center", size=9.5, color=GREEN_INK)

    axes.set_yticks(range(4), ["snapshot", "process 1", "process 0", "torchrun"])
    for label, ink in zip(axes.get_yticklabels(), (INK, INK_OF_RANK[1], INK_OF_RANK[0], INK), strict=True):
        label.set_color(ink)
    axes.tick_params(axis="y", length=0)
    axes.set(xlim=(-0.05, end + 0.1), ylim=(-0.5, 3.5), xticks=[], xlabel="time (drawn, not measured)")
    axes.spines["left"].set_visible(False)
    marks = []
    for looks in WORK.values():
        marks.append(plt.Rectangle((0, 0), 1, 1, **looks))
    marks.append(plt.Line2D([], [], marker="s", color=INK, ls="", ms=8))
    names = ["trains", "waits for process 1", "imports torch", "repeats steps", "fails or is stopped"]
    figure.legend(marks, names, loc="outside upper center", ncols=2, handlelength=1.2, columnspacing=1)
    picture(
        "From a kill to the repeated steps. Process 0 saves a snapshot after epoch 1. Process 1 is killed in "
        "epoch 2. Process 0 waits for it, and fails or is stopped. torchrun notices this and starts two new "
        "processes. They import torch, load the snapshot, repeat the steps since the snapshot, and train on."
    )


def draw_arrow(axes, start, end, colour):
    looks = {"arrowstyle": "-|>", "color": colour, "lw": 1.5, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=looks)


def draw_rates(rates, right):
    """{What was left out: the learning rates of the epochs after the snapshot}, in four small pictures.
    `right` has the rates of the uninterrupted run."""
    figure, grid = plt.subplots(2, 2, figsize=(5, 4.0), sharex=True, sharey=True)
    said = []
    for axes, (title, of_epochs) in zip(grid.flat, rates.items(), strict=True):
        for place, rate in enumerate(of_epochs):
            is_right = place < len(right) and rate == right[place]
            colour = SKY if is_right else RED
            epoch = place + 1
            axes.bar(epoch, rate, width=0.8, facecolor=tile(colour, 0.6), edgecolor=colour)
            axes.text(epoch, rate + 0.001, f"{rate:.2f}", ha="center", va="bottom", size=9.5)
        for epoch, rate in enumerate(right, 1):
            axes.plot((epoch - 0.45, epoch + 0.45), (rate, rate), color=INK, lw=2)
        axes.set_title(title, size=10)
        axes.set(ylim=(0, 0.052), xticks=[1, 2, 3], yticks=[0, 0.02, 0.04])
        numbers = [f"{rate:.2f}" for rate in of_epochs]
        said.append(f"{title} {', '.join(numbers)}")
    marks = [plt.Line2D([], [], color=INK, lw=2)]
    for colour in (SKY, RED):
        marks.append(plt.Rectangle((0, 0), 1, 1, facecolor=tile(colour, 0.6), edgecolor=colour))
    names = ["uninterrupted run", "same", "different"]
    figure.legend(marks, names, loc="outside upper center", ncols=3, handlelength=1.2, columnspacing=1)
    figure.supxlabel("epochs after the snapshot", size=10)
    figure.supylabel("learning rate", size=10)
    picture(f"The learning rates of the epochs after the snapshot: {'; '.join(said)}.")


def draw_left_out(runs, steps_per_epoch):
    """How far each run that lacks a part is from the uninterrupted run: {the part: a distance a step}."""
    figure, grid = plt.subplots(2, 2, figsize=(5, 3.8), sharex=True, sharey=True)
    said = []
    for axes, (part, distances) in zip(grid.flat, runs.items(), strict=True):
        steps, far = [], []
        for step, distance in enumerate(distances, 1):
            if distance > 0:  # a log axis has no place for 0
                steps.append(step)
                far.append(distance)
        axes.plot(steps, far, color=RED, lw=2.5)
        axes.plot(steps[0], far[0], "o", color=RED, ms=6)
        axes.axvline(steps_per_epoch + 0.5, color=INK, lw=1, ls=":")
        axes.set_title(f"without {part}", size=10)
        axes.set(yscale="log", yticks=[1e-3, 1e-2])
        axes.minorticks_off()
        said.append(f"without {part}, from step {steps[0]} on, by up to {max(far):.1g}")
    mark = plt.Line2D([], [], color=INK, lw=1, ls=":")
    figure.legend([mark], ["the run's next epoch begins"], loc="outside upper center")
    figure.supxlabel("steps since the snapshot", size=10)
    figure.supylabel("largest difference of a weight", size=10)
    picture(
        "How far the weights of a resumed run are from the weights of an uninterrupted run, after each step: "
        f"{'; '.join(said)}. The curves are drawn from the first difference on."
    )


def draw_contents(sizes, size_of_file):
    """The bytes of a snapshot's entries, to scale. What is left of the file belongs to its format."""
    axes = canvas(4.8, 2.0, across=100, down=8)
    rest = size_of_file - sizes["model"] - sizes["optimizer"]
    parts = {"model": (sizes["model"], SKY), "optimizer": (sizes["optimizer"], GREEN), "": (rest, RED)}
    left = 0
    for name, (size, colour) in parts.items():
        width = 100 * size / size_of_file
        looks = {"facecolor": tile(colour, 0.55), "edgecolor": colour}
        axes.add_patch(plt.Rectangle((left, 3.6), width, 4.2, **looks))
        words = f"{name}\n{size:,}"
        if name:
            axes.text(left + width / 2, 5.7, words, ha="center", va="center", size=10, color=DARK)
        left += width
    arrow(axes, (98.8, 1.7), (98.8, 3.5), colour=RED_INK)
    words = f"scheduler, epoch, names, format: {rest:,}"
    axes.text(100, 0.9, words, ha="right", va="center", size=10, color=RED_INK)
    small = sum(sizes.values()) - sizes["model"] - sizes["optimizer"]
    picture(
        f"The {size_of_file:,} bytes of the snapshot, to scale: {sizes['model']:,} are the model's weights, "
        f"{sizes['optimizer']:,} are the optimizer's state, and {rest:,} are the rest: {small} of them are "
        "the scheduler and the epoch, and the others are names and the format of the file."
    )


def draw_file(axes, row, parts):
    """What a file holds over time: (begin, end, what) for each part."""
    for begin, end, what in parts:
        colour, hatch = LOOKS[what]
        ground = tile(colour, 0.5)
        axes.barh(
            row, end - begin, left=begin, height=0.6, color=ground, hatch=hatch, edgecolor="white", lw=0
        )
        behind = {"facecolor": ground, "edgecolor": "none", "pad": 1.5}
        middle = (begin + end) / 2
        axes.text(middle, row, what, ha="center", va="center", size=10, color=DARK, bbox=behind)


def draw_saving():
    """Two ways to write a new snapshot over an old one, as timelines."""
    opens, written, end = 2.5, 7.5, 10
    _, (in_place, renamed) = plt.subplots(2, 1, figsize=(5, 4.4), height_ratios=(1, 1.7))

    in_place.set_title("in place")
    draw_file(in_place, 0, [(0, opens, "old"), (opens, written, "incomplete"), (written, end, "new")])
    in_place.annotate(
        "a kill here: no snapshot is left",
        ((opens + written) / 2, -0.32),
        ((opens + written) / 2, -0.95),
        ha="center",
        va="center",
        color=RED_INK,
        arrowprops={"arrowstyle": "-|>", "color": RED},
    )
    in_place.set(ylim=(-1.2, 0.5))
    in_place.set_yticks([0], ["snapshot"])

    renamed.set_title("temporary file, then rename")
    draw_file(renamed, 1, [(0, written + 0.6, "old"), (written + 0.6, end, "new")])
    draw_file(renamed, 0, [(opens, written, "incomplete")])
    renamed.barh(0, 0.6, left=written, height=0.6, color=tile(GREEN, 0.5))
    renamed.annotate(
        "",
        (written + 0.6, 0.7),
        (written + 0.6, 0.1),
        arrowprops={"arrowstyle": "-|>", "color": GREEN, "lw": 2},
    )
    renamed.text(written + 0.85, 0, "rename", va="center", color=GREEN_INK, weight="bold")
    renamed.text(
        5, -0.75, "a kill at any time: old or new, complete", ha="center", va="center", color=GREEN_INK
    )
    renamed.set(ylim=(-1.1, 1.5))
    renamed.set_yticks([0, 1], ["temporary", "snapshot"])

    for axes in (in_place, renamed):
        axes.set(xlim=(0, end + 0.1), xticks=[])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    renamed.set_xlabel("time", color=INK)
    picture(
        "Two timelines of a snapshot that is replaced. In place, the snapshot is incomplete from the moment "
        "that it is opened until the last byte is written, and a kill in between leaves no snapshot. With a "
        "temporary file, only that file is incomplete; the rename replaces the old snapshot by the complete "
        "new one in a single operation, so a kill at any time leaves the old or the new snapshot."
    )
