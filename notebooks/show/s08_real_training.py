"""Notebook 08: a killed run, batch norm on four ranks, growing rounding errors, rates, augmentation."""

import math

import matplotlib.pyplot as plt

from show.pictures import BLUE, GREY, INK, ORANGE, RANKS, RED, SKY, curves, picture


def draw_killed(runs):
    axes = plt.subplots(figsize=(5, 2.8))[1]
    curves(axes, {"uninterrupted": runs["uninterrupted"], "killed in epoch 2": runs["killed"]})
    axes.set(title="The two curves coincide", xticks=[1, 2, 3])
    last = runs["killed"][-1]["loss"]
    picture(f"The losses of both runs over three epochs. The curves coincide: both end at {last:.4f}.")


def draw_means(alone, together, whole_mean):
    """The mean by which each rank normalizes, with plain and with synchronized batch norm."""
    both = plt.subplots(1, 2, figsize=(5, 2.8), sharey=True)[1]
    titles = {"nn.BatchNorm2d": alone, "SyncBatchNorm": together}
    for axes, (title, means) in zip(both, titles.items(), strict=True):
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
    axes = plt.subplots(figsize=(5, 3.4))[1]
    equal_at = 1e-18  # below all differences, because the logarithm of 0 does not exist
    equal = {}
    for (bits, values), colour, mark in zip(off.items(), (RED, BLUE), ("o", "s"), strict=True):
        differ = [value or math.nan for value in values]  # nan leaves a gap in the line
        axes.semilogy(range(1, 16), differ, color=colour, marker=mark, ms=5, label=f"{bits} bits")
        equal[bits] = [step for step, value in enumerate(values, 1) if value == 0]
        axes.plot(equal[bits], [equal_at] * len(equal[bits]), mark, color=colour, mfc="none", ms=6)
    axes.axhline(10 * equal_at, color=GREY, lw=0.8, ls=":")
    axes.set_yticks([equal_at, 1e-16, 1e-12, 1e-8, 1e-4], ["equal", "1e-16", "1e-12", "1e-8", "1e-4"])
    axes.minorticks_off()
    axes.set(xlabel="step", ylabel="relative difference", title="Loss of four processes against one")
    axes.set_ylim(equal_at / 5, 1)
    axes.set_xticks(range(1, 16, 2))
    axes.legend(loc="upper left")
    steps = ", ".join(f"{len(found)} in {bits} bits" for bits, found in equal.items())
    picture(
        "How far the loss of four processes is from the loss of one. In 32 bits it begins at "
        f"{off[32][0]:.0e} and is {off[32][-1]:.0e} after 15 steps; in 64 bits it is never more than "
        f"{max(off[64]):.0e}. Hollow marks at the bottom are steps with equal losses: {steps}."
    )


def draw_rates(rates, epochs=4):
    """The learning rate of each batch size, step by step."""
    axes = plt.subplots(figsize=(5, 2.8))[1]
    for (batch, values), colour, width in zip(rates.items(), (SKY, ORANGE, INK), (5, 3, 1.5), strict=True):
        at = [epochs * step / len(values) for step in range(len(values))]
        axes.plot(at, values, color=colour, lw=width, label=f"batch {batch}")
    axes.set(xlabel="epoch", ylabel="learning rate", title="--lr 0.1 --warm-up 0.5 --epochs 4")
    axes.legend()
    *highest, last = [f"{max(values):g}" for values in rates.values()]
    picture(
        f"The learning rate over four epochs for batches of {', '.join(map(str, rates))}. Each rises in a "
        f"line for half an epoch, to {', '.join(highest)} and {last}, and falls in half a cosine to 0."
    )


def draw_augmented(rows):
    """A row for each image: first as it is, then as it looks in each epoch."""
    axes = plt.subplots(len(rows), 6, figsize=(5, 2.8))[1]
    for row, (image, versions) in enumerate(rows.items()):
        for column, version in enumerate(versions):
            axes[row][column].imshow(version[0], cmap="gray")
            axes[row][column].set(xticks=[], yticks=[])
            if row == 0:
                title = f"epoch {column}" if column else "original"
                axes[row][column].set_title(title, size=9, loc="center")
        axes[row][0].set_ylabel(f"image {image}", size=9)
    picture(
        "Three digits, each as it is and as the augmentation makes it in five epochs: shifted and turned a "
        "little, differently in each epoch."
    )
