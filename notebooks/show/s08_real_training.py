"""Notebook 08: who does what, batch norm's messages and means, rounding errors, rates, augmentation, early
stopping, luck."""

import inspect
import math
import textwrap

import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.ticker import PercentFormatter

from show.pictures import BLUE, DARK, GREEN, GREY, INK, RANKS, RED, SKY, arrow, box, canvas, picture, tile
from show.rank_inks import GREEN_INK, INK_OF_RANK, RED_INK
from show.text import Source

COLUMNS = ((0, 0.1), (1, 9.9))  # the two processes, and where the column of each begins


def draw_heads(axes, height):
    for rank, left in COLUMNS:
        title = f"process {rank}"
        axes.text(left + 3, height, title, weight="bold", size=10, ha="center", color=INK_OF_RANK[rank])


def draw_duties():
    """The parts of the pipeline in two processes, and what they tell each other."""
    axes = canvas(5, 6.4, down=16.7)
    draw_heads(axes, 16.3)
    duties = (
        ("images", "its part of the batch", []),
        ("augment", "by seed, epoch, index", []),
        ("forward", "batch norm", ["means,\nvariances"]),
        (
            "backward",
            "batch norm\n\nall parameters",
            ["gradients of\nmean, variance", "DDP averages\ngradients"],
        ),
        ("optimizer", "learning rate by formula", []),
        ("validate", "its part of the images", ["right\nanswers"]),
        ("best? stop?", "by the sum of all", []),
    )
    bottom = 16.0
    for part, duty, messages in duties:
        height = 3.2 if len(messages) == 2 else 1.6
        bottom -= height + 0.4
        for rank, left in COLUMNS:
            box(axes, left, bottom, 6.0, height, part, duty, RANKS[rank])
        for number, message in enumerate(messages):
            place = bottom + height - 1.6 * (number + 1)
            arrow(axes, (6.2, place + 0.25), (9.8, place + 0.25), both=True, colour=RED)
            axes.text(8, place + 1.1, message, ha="center", va="center", size=9, color=RED_INK)
    picture(
        "Two processes, each with seven parts from top to bottom: images, augment, forward, backward, "
        "optimizer, validate, and the decision which epoch is best and whether to stop. Arrows join them at "
        "forward (means and variances of batch norm), at backward (the gradients of these means and "
        "variances, and the average of all gradients by DDP) and at validate (right answers)."
    )


def draw_splits(train, validation, test):
    """Which images each of two processes sees, and when: a row for each set."""
    axes = canvas(5, 3.2, across=40, down=24)
    rows = (
        ("training images", train, "in every step: train"),
        ("validation images", validation, "after every epoch: choose the best epoch"),
        ("test images", test, "once, at the end: measure the best epoch"),
    )
    for row, (name, size, use) in enumerate(rows):
        bottom = 15.8 - 7.4 * row
        axes.text(0.2, bottom + 4.4, f"{size} {name}", weight="bold", size=10, va="center")
        for rank in (0, 1):
            corner = 0.3 + 19.8 * rank, bottom
            looks = {"facecolor": tile(RANKS[rank], 0.45), "edgecolor": RANKS[rank]}
            axes.add_patch(plt.Rectangle(corner, 19.4, 3.2, **looks))
            words = f"process {rank}: {size // 2}"
            place = corner[0] + 9.7, bottom + 1.55
            axes.text(*place, words, ha="center", va="center", size=9.5, color=DARK)
        axes.text(39.8, bottom + 4.4, use, size=9, ha="right", va="center")
    picture(
        f"Three sets of images, each split between two processes: {train} training images for every step, "
        f"{validation} validation images after every epoch, which choose the best epoch, and {test} test "
        "images once at the end, which measure the best epoch."
    )


def draw_pass(axes, bottom, title, before, message, after):
    """One pass through a batch norm layer: what each process has, the all-reduce, what each then has."""
    axes.text(8, bottom + 6.5, title, weight="bold", size=10.5, ha="center")
    for rank, left in COLUMNS:
        box(axes, left, bottom + 4.4, 6.0, 1.6, *before, RANKS[rank])
        arrow(axes, (left + 3, bottom + 4.4), (left + 3, bottom + 3.6))
        arrow(axes, (left + 3, bottom + 2.4), (left + 3, bottom + 1.7))
        box(axes, left, bottom + 0.1, 6.0, 1.6, *after, RANKS[rank])
    box(axes, 0.1, bottom + 2.4, 15.8, 1.2, f"all-reduce: {message}", colour=RED)


def draw_messages():
    """What a batch norm layer sends: statistics in the forward pass, their gradients in the backward pass."""
    axes = canvas(5, 5.6, down=15.4)
    draw_heads(axes, 14.9)
    draw_pass(
        axes,
        7.5,
        "forward",
        ("mean, variance", "of its own images"),
        "means and variances of all",
        ("mean, variance", "of the whole batch"),
    )
    draw_pass(
        axes,
        0,
        "backward: gradients of mean and variance",
        ("two gradients", "from its own images"),
        "adds up the gradients",
        ("two gradients", "from the whole batch"),
    )
    picture(
        "A batch norm layer on two processes. Forward: each process computes the mean and the variance of "
        "its own images, an all-reduce collects them, and each process normalizes with the mean and the "
        "variance of the whole batch. Backward: each process has the gradients of the mean and the variance "
        "from its own images, and a second all-reduce adds them up over the whole batch."
    )


class Lines(Source):
    """Lines from the middle of a function: on a page, they are not indented as in their file."""

    def _repr_markdown_(self):
        return f"```python\n{textwrap.dedent(self.text)}\n```"


def show_lines(function, first, last):
    """Show some lines of a function. `first` and `last` are the beginnings of the first and the last one."""
    lines = inspect.getsource(function).splitlines()
    begin = line_that_begins(lines, first)
    end = begin + line_that_begins(lines[begin:], last)
    display(Lines("\n".join(lines[begin : end + 1])), metadata={"rungs": "source"})


def line_that_begins(lines, words):
    for number, line in enumerate(lines):
        if line.strip().startswith(words):
            return number
    raise ValueError(f"no line begins with {words!r}")


def draw_rows(statistics):
    """The tensor `rows` of SyncBatchNorm before and after the all-reduce: a (mean, variance) of each rank."""
    axes = canvas(5, 4.8, across=20, down=21)
    for left, title in ((3, "before: its own row"), (13.8, "after: all rows")):
        axes.text(left + 2.6, 20.4, title, weight="bold", size=10, ha="center", va="center")
        axes.text(left + 1.3, 19.3, "mean", size=9, ha="center", va="center")
        axes.text(left + 3.9, 19.3, "variance", size=9, ha="center", va="center")
    for rank in range(4):
        top = 18.6 - 4.8 * rank
        axes.text(0, top - 2, f"rank {rank}", size=10, weight="bold", va="center", color=INK_OF_RANK[rank])
        for row in range(4):
            own = (0, 0)
            if row == rank:
                own = statistics[row]
            draw_row(axes, 3, top - row, row, own)
            draw_row(axes, 13.8, top - row, row, statistics[row])
        arrow(axes, (8.4, top - 2), (9.4, top - 2), colour=RED)
        arrow(axes, (12.4, top - 2), (13.6, top - 2), colour=RED)
    box(axes, 9.5, 0.2, 2.8, 18.4, "all-\nreduce:\n\nthe sum", colour=RED)
    said = []
    for rank, (mean, variance) in enumerate(statistics):
        said.append(f"rank {rank} {mean:.1f} and {variance:.0f}")
    picture(
        "The tensor `rows` on four ranks. Before the all-reduce, each rank has the mean and the variance of "
        f"its own images in its own row and zeros in the other rows: {', '.join(said)}. After the "
        "all-reduce, which adds up the tensors, every rank has all four rows."
    )


def draw_row(axes, left, top, rank, numbers):
    """A row of two numbers: in the colour of the rank that computed it, or pale grey if it is zero."""
    fill = tile(RANKS[rank], 0.45)
    words = [f"{numbers[0]:.1f}", f"{numbers[1]:.0f}"]
    if numbers == (0, 0):
        fill = tile(GREY, 0.12)
        words = ["0", "0"]
    for column, word in enumerate(words):
        corner = left + 2.6 * column, top - 1
        axes.add_patch(plt.Rectangle(corner, 2.6, 1, facecolor=fill, edgecolor=GREY, lw=0.8))
        axes.text(corner[0] + 1.3, top - 0.52, word, ha="center", va="center", size=9, color=DARK)


def draw_means(alone, together, whole_mean):
    """The mean by which each rank normalizes, with plain and with synchronized batch norm."""
    _, both = plt.subplots(1, 2, figsize=(5, 2.8), sharey=True)
    for axes, title, means in zip(both, ("nn.BatchNorm2d", "SyncBatchNorm"), (alone, together), strict=True):
        axes.bar(range(4), means, color=RANKS, width=0.6)
        axes.axhline(whole_mean, color=INK, ls="--", lw=1.5, label="the whole batch")
        axes.set(title=title, xlabel="rank", xticks=range(4), ylim=(0, 1.35 * whole_mean))
    both[0].set_ylabel("mean of the pixels")
    both[1].legend(loc="upper right")
    picture(
        "The mean by which each of four ranks normalizes. With nn.BatchNorm2d: "
        f"{', '.join(f'{mean:.1f}' for mean in alone)}. With SyncBatchNorm all four ranks have the mean of "
        f"the whole batch, {whole_mean:.1f}."
    )


def draw_drift(off):
    """How far the loss of four processes is from the loss of one, step by step, in 32 and 64 bits."""
    _, axes = plt.subplots(figsize=(5, 3.4))
    equal_at = 1e-18  # a log axis has no 0: equal losses get a place of their own below all differences
    equal = {}
    for bits, colour, mark in ((32, RED, "o"), (64, SKY, "s")):
        heights, equal[bits] = [], []
        for step, difference in enumerate(off[bits], 1):
            if difference == 0:
                equal[bits].append(step)
                heights.append(math.nan)  # a gap in the line, or it would plunge to a value that is none
            else:
                heights.append(difference)
        axes.semilogy(range(1, 16), heights, color=colour, lw=2, marker=mark, ms=5)
        axes.plot(equal[bits], [equal_at] * len(equal[bits]), mark, color=colour, mfc="none", ms=7)
    axes.text(15, max(off[32]) * 40, "32 bits", color=RED_INK, weight="bold", ha="right")
    axes.text(15, max(off[64]) * 20, "64 bits", color=INK_OF_RANK[0], weight="bold", ha="right")
    axes.axhline(10 * equal_at, color=GREY, lw=0.8, ls=":")
    axes.set_yticks([equal_at, 1e-16, 1e-12, 1e-8, 1e-4], ["equal", "1e-16", "1e-12", "1e-8", "1e-4"])
    axes.minorticks_off()
    axes.set(xlabel="step", ylabel="relative difference", title="Loss of four processes against one")
    axes.set_ylim(equal_at / 5, 10)
    axes.set_xticks(range(1, 16, 2))
    picture(
        "How far the loss of four processes is from the loss of one. In 32 bits it begins at "
        f"{off[32][0]:.0e} and is {off[32][-1]:.0e} after 15 steps; in 64 bits it is never more than "
        f"{max(off[64]):.0e}. Hollow marks at the bottom are steps with equal losses: {len(equal[32])} in 32 "
        f"bits, {len(equal[64])} in 64 bits."
    )


def draw_rates(rates, epochs):
    """The learning rate of each batch size, step by step: {batch size: rates}."""
    _, axes = plt.subplots(figsize=(5, 2.8))
    highest = []
    for (batch, values), colour in zip(rates.items(), (SKY, RED, INK), strict=True):
        steps = len(values) // epochs
        at = [(step + 1) / steps for step in range(len(values))]  # where each step ends
        highest.append(f"{max(values):g}")
        axes.plot(at, values, color=colour, lw=2.5, label=f"batch {batch}: up to {highest[-1]}")
    axes.set(xlabel="epoch", ylabel="learning rate", title="--lr 0.1 --warm-up 0.5 --epochs 4")
    axes.legend(reverse=True)
    picture(
        f"The learning rate over {epochs} epochs for batches of {', '.join(map(str, rates))}. Each rises in "
        f"a line for half an epoch, to {', '.join(highest)}, and falls in half a cosine to 0."
    )


def draw_augmented(rows):
    """A row for each image: first as it is, then as it looks in each epoch."""
    _, grid = plt.subplots(len(rows), 6, figsize=(5, 2.8))
    for row, (image, versions) in enumerate(rows.items()):
        for column, version in enumerate(versions):
            axes = grid[row][column]
            axes.imshow(version[0], cmap="gray_r")
            axes.set(xticks=[], yticks=[])
            if row == 0:
                title = f"epoch {column}" if column else "original"
                axes.set_title(title, size=9, loc="center")
        grid[row][0].set_ylabel(f"image {image}", size=9)
    picture(
        "Three digits, each as it is and as the augmentation makes it in five epochs: shifted and turned a "
        "little, differently in each epoch."
    )


def draw_image_3(rows):
    """{what decides on the random numbers: image 3 on one process, and on two}."""
    _, grid = plt.subplots(2, 2, figsize=(3.6, 3.9))
    for row, (title, versions) in enumerate(rows.items()):
        for column, version in enumerate(versions):
            axes = grid[row][column]
            axes.imshow(version[0], cmap="gray_r")
            axes.set(xticks=[], yticks=[])
            axes.set_xlabel("one process" if column == 0 else "two processes")
        same = (versions[0] == versions[1]).all().item()
        words, colour = ("the same", GREEN_INK) if same else ("different", RED_INK)
        grid[row][0].set_title(title, size=10)
        grid[row][1].set_title(words, size=10, color=colour, loc="right")
    picture(
        "Image 3 as a run on one process sees it, and a run on two. If each image has its own seed, both see "
        "the same; if the numbers come in the order of requests, the two are shifted and turned differently."
    )


def draw_stopping(curve, best, patience, epochs):
    """The accuracy on the validation images after each epoch: the best epoch, and how the run ended."""
    _, axes = plt.subplots(figsize=(5, 3.2))
    accuracies = [100 * row["accuracy"] for row in curve]
    last = len(curve)
    highest = accuracies[best - 1]
    axes.axvspan(best, last, color=RED, alpha=0.15, lw=0)
    axes.plot(range(1, last + 1), accuracies, "o-", color=BLUE, lw=2, ms=4)
    axes.plot(best, highest, "o", color=GREEN, ms=9)
    axes.text(best - 0.5, highest + 1.5, f"best: epoch {best}", color=GREEN_INK, ha="right", va="bottom")
    words = f"{last - best} epochs without\na new best"
    axes.text(best - 0.3, 8, words, color=RED_INK, ha="right")
    axes.axvspan(last, epochs, color=GREY, alpha=0.12, lw=0)
    axes.text((last + epochs) / 2, 45, "not\ntrained", ha="center", va="center")
    axes.set(xlabel="epoch", ylabel="validation accuracy", title=f"--epochs {epochs} --patience {patience}")
    axes.set(xlim=(0.5, epochs + 0.5), ylim=(0, 112))
    axes.set_yticks(range(0, 101, 20))
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.xaxis.get_major_locator().set_params(integer=True)
    picture(
        f"The accuracy on the validation images after each epoch of a run. It is highest after epoch {best}, "
        f"{highest:.1f}%. The next {last - best} epochs bring no new best, so the run stops after epoch "
        f"{last} of {epochs}, with a patience of {patience}."
    )


def draw_luck(sizes, reported, honest):
    """The accuracy of the chosen epoch on the images that chose it, and on all others."""
    _, axes = plt.subplots(figsize=(5, 3))
    axes.fill_between(sizes, honest, reported, color=RED, alpha=0.2, lw=0)
    axes.plot(sizes, reported, "o-", color=RED, lw=2)
    axes.plot(sizes, honest, "s-", color=GREEN, lw=2)
    axes.text(sizes[1], reported[1] + 1, "on the images that choose", color=RED_INK)
    axes.text(sizes[1], honest[1] - 1.3, "on all others", color=GREEN_INK, va="top")
    axes.set(xscale="log", xlabel="images that choose the best epoch", ylabel="accuracy of this epoch")
    axes.set(ylim=(min(honest) - 3, max(reported) + 2))
    axes.set_xticks(sizes, sizes)
    axes.set_yticks(range(60, 80, 5))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    picture(
        f"The accuracy of the chosen epoch. With {sizes[0]} images that choose, it is {reported[0]:.0f}% on "
        f"them and {honest[0]:.0f}% on all others; with {sizes[-1]}, {reported[-1]:.0f}% and "
        f"{honest[-1]:.0f}%. The gap closes as more images choose."
    )


def draw_decisions(results, patience):
    """When each process stops by its own results: {process or both: right answers after each epoch}. A
    process that goes on waits for the other."""
    axes = canvas(5, 2.5, across=40, down=20)
    colours = [RANKS[0], RANKS[1], GREY]
    last = {}
    for row, (name, right_answers) in enumerate(results.items()):
        bottom = 12.6 - 4.6 * row
        axes.text(0.2, bottom + 1.7, name, va="center", size=9, weight="bold")
        most, best = -1, 0
        for epoch, right in enumerate(right_answers, 1):
            left = 8 + 6.3 * (epoch - 1)
            if row == 0:
                axes.text(left + 3, 17.6, f"epoch {epoch}", ha="center", size=9)
            if epoch - best > patience:
                axes.text(left + 3, bottom + 1.7, "stopped", ha="center", va="center", size=9, color=RED_INK)
                continue
            last[name] = epoch
            if row == 1 and epoch > last["process 0"]:
                axes.text(left + 3, bottom + 1.7, "waits", ha="center", va="center", size=9, color=RED_INK)
                continue
            fill = tile(colours[row], 0.15)
            if right > most:
                most, best = right, epoch
                fill = tile(colours[row], 0.6)
            axes.add_patch(plt.Rectangle((left, bottom), 5.9, 3.4, facecolor=fill, edgecolor=GREY, lw=0.8))
            axes.text(left + 3, bottom + 1.7, right, ha="center", va="center", size=10, color=DARK)
    words = "numbers: right answers   strong colour: a new best"
    axes.text(20, 0.6, words, ha="center", size=9)
    ends = ", ".join(f"{name}: epoch {epoch}" for name, epoch in last.items())
    picture(
        "The right answers of two processes and their sum after each epoch, and the last epoch that each "
        f"would train with a patience of {patience}: {ends}. There, process 1 waits for process 0."
    )


def draw_batches(test_set, orders):
    """The first images of the third batch of 30 in each order: {name: indices of the test images}."""
    axes = canvas(5, 2, across=40, down=16)
    said = []
    for row, (name, order) in enumerate(orders.items()):
        bottom = 9 - 8.6 * row
        axes.text(0.2, bottom + 5.4, f"from a batch, {name}", weight="bold", size=10)
        chosen = order[60:68]
        for column, index in enumerate(chosen):
            left = 0.2 + 5 * column
            place = (left, left + 4.6, bottom, bottom + 4.6)
            axes.imshow(test_set.images[index][0], cmap="gray_r", extent=place, aspect="auto")
        labels = test_set.labels[chosen].tolist()
        said.append(f"{name}: {', '.join(map(str, labels))}")
    picture(f"The first eight digits of the third batch of test images. {'; '.join(said)}.")
