"""Notebook 09a: what 96 images are enough for, and the memory that loading needs."""

import matplotlib.pyplot as plt

from show.pictures import BLUE, GREEN, INK, ORANGE, RANKS, picture


def draw_accuracies(runs):
    """The accuracy of each run, epoch by epoch."""
    axes = plt.subplots(figsize=(5, 3.2))[1]
    looks = ((BLUE, "-"), (GREEN, "--"), (ORANGE, "-."))
    ends = []
    for (name, rows), (colour, style) in zip(runs.items(), looks, strict=True):
        accuracies = [100 * row["accuracy"] for row in rows]
        axes.plot(range(1, len(rows) + 1), accuracies, style, color=colour, lw=2, label=name)
        ends.append(f"{name} {rows[-1]['accuracy']:.0%}")
    axes.set(xlabel="epoch", ylabel="% of 600 test images", title="Odd or even, from 96 images")
    axes.set_ylim(45, 100)
    axes.legend(loc="lower right")
    picture(f"The accuracy of three runs over twelve epochs. At the end: {', '.join(ends)}.")


def draw_peaks(peaks, size):
    """The peak memory of each way to load, a bar for each rank, and a line for the model of this size."""
    axes = plt.subplots(figsize=(5, 3.4))[1]
    for rank in range(4):
        places, heights = [], []
        for number, peak_of_rank in enumerate(peaks.values()):
            places.append(number + 0.2 * (rank - 1.5))
            heights.append(peak_of_rank[rank] / 1e6)
        axes.bar(places, heights, 0.18, color=RANKS[rank], label=f"rank {rank}")
    axes.axhline(size / 1e6, color=INK, lw=1, ls="--")
    axes.text(2.4, size / 1e6 + 6, "M, the model", ha="right")
    axes.set_xticks(range(len(peaks)), list(peaks))
    axes.set(ylabel="peak, MB", title="Memory for loading, on four processes")
    axes.legend(ncols=2)
    said = []
    for way, peak_of_rank in peaks.items():
        megabytes = [f"{peak / 1e6:.0f}" for peak in peak_of_rank]
        said.append(f"{way} {', '.join(megabytes)}")
    picture(
        "The peak memory that each of four processes needs to load a model of "
        f"{size / 1e6:.0f} MB. In MB: {'; '.join(said)}."
    )
