"""Notebook 09a: what 96 images are enough for, and the memory that loading needs."""

import matplotlib.pyplot as plt

from show.pictures import BLUE, GREEN, INK, ORANGE, RANKS, picture


def draw_accuracies(runs):
    """The accuracy of each run, epoch by epoch."""
    axes = plt.subplots(figsize=(5, 3.2))[1]
    looks = ((BLUE, "-"), (GREEN, "--"), (ORANGE, "-."))
    for (name, rows), (colour, style) in zip(runs.items(), looks, strict=True):
        accuracies = [100 * row["accuracy"] for row in rows]
        axes.plot(range(1, len(rows) + 1), accuracies, style, color=colour, lw=2, label=name)
    axes.set(xlabel="epoch", ylabel="% of 600 test images", title="Odd or even, from 96 images")
    axes.set_ylim(45, 100)
    axes.legend(loc="lower right")
    ends = ", ".join(f"{name} {rows[-1]['accuracy']:.0%}" for name, rows in runs.items())
    picture(f"The accuracy of three runs over twelve epochs. At the end: {ends}.")


def draw_peaks(peaks, size):
    """The peak memory of each way to load, a bar for each rank, and a line for the model of this size."""
    axes = plt.subplots(figsize=(5, 3.4))[1]
    for rank in range(4):
        at = [number + 0.2 * (rank - 1.5) for number in range(len(peaks))]
        heights = [row[rank] / 1e6 for row in peaks.values()]
        axes.bar(at, heights, 0.18, color=RANKS[rank], label=f"rank {rank}")
    axes.axhline(size / 1e6, color=INK, lw=1, ls="--")
    axes.text(2.4, size / 1e6 + 6, "M, the model", ha="right")
    axes.set_xticks(range(len(peaks)), list(peaks))
    axes.set(ylabel="peak, MB", title="Memory for loading, on four processes")
    axes.legend(ncols=2)
    said = "; ".join(f"{way} {', '.join(f'{peak / 1e6:.0f}' for peak in row)}" for way, row in peaks.items())
    picture(
        "The peak memory that each of four processes needs to load a model of "
        f"{size / 1e6:.0f} MB. In MB: {said}."
    )
