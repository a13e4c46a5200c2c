"""The pictures of notebook 15: which process computes which block of attention, and what that costs."""

import matplotlib.pyplot as plt

from parts.ring_attention import ORDERS, chunks_of
from show.pictures import BLUE, DARK, GREEN, GREY, INK, ORANGE, RANKS, RED, tile


def draw_blocks(processes=4):
    """Which chunks of queries meet which chunks of keys: the colour is the rank that has the queries."""
    chunks = 2 * processes
    _, panels = plt.subplots(2, 1, figsize=(3.6, 6.6))
    for axes, order in zip(panels, ORDERS, strict=True):
        owner = {chunk: rank for rank in range(processes) for chunk in chunks_of(rank, processes, order)}
        for query in range(chunks):
            for key in range(query + 1):
                rank = owner[query]
                corner = key, chunks - 1 - query
                fill = tile(RANKS[rank], 0.55)
                axes.add_patch(plt.Rectangle(corner, 0.94, 0.94, facecolor=fill, edgecolor=GREY))
                middle = key + 0.47, chunks - 1 - query + 0.47
                axes.text(*middle, owner[key], ha="center", va="center", color=DARK, size=10)
        labels = [f"rank {owner[chunk]}" for chunk in reversed(range(chunks))]
        axes.set_yticks([chunk + 0.47 for chunk in range(chunks)], labels)
        axes.set(xlim=(0, chunks), ylim=(0, chunks), xticks=[], aspect="equal", title=order)
        axes.set_xlabel("keys: whose they are")
        axes.tick_params(length=0)
        axes.spines[["left", "bottom"]].set_visible(False)


def draw_work(measured):
    """For each order and rank the multiply-adds, and the seconds that the CPU worked."""
    _, panels = plt.subplots(2, 1, figsize=(4, 4.6), sharex=True)
    for axes, number, unit, label in (
        (panels[0], 0, 1e6, "million multiply-adds"),
        (panels[1], 1, 1e-3, "ms of the CPU"),
    ):
        for shift, order, colour in ((-0.2, "contiguous", ORANGE), (0.2, "zigzag", BLUE)):
            heights = [rank[order][number] / unit for rank in measured]
            places = [rank + shift for rank in range(len(heights))]
            axes.bar(places, heights, 0.38, color=colour, label=order)
        axes.set_ylabel(label)
    panels[0].legend()
    panels[1].set_xticks(range(len(measured)), [f"rank {rank}" for rank in range(len(measured))])


def draw_memory(lengths, peaks, torchs_own):
    _, axes = plt.subplots(figsize=(4.2, 3.6))
    marks = zip(peaks.items(), (RED, ORANGE, BLUE), "so^", strict=True)
    for (processes, values), colour, mark in marks:
        name = f"{processes} process{'es' * (processes > 1)}"
        axes.plot(lengths, [value / 1e6 for value in values], f"{mark}-", color=colour, label=name)
    axes.plot(
        lengths, [value / 1e6 for value in torchs_own], "d--", color=GREEN, label="1, with torch's kernel"
    )
    axes.set(xscale="log", yscale="log", xlabel="positions of a text", ylabel="MB at most, in one process")
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()
    axes.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.grid(alpha=0.25, color=INK)
    axes.legend()
