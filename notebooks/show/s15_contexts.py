"""The pictures of notebook 15: which rank computes which blocks of attention, and what that costs."""

import matplotlib.pyplot as plt

from parts.ring_attention import ORDERS, chunks_of
from show.pictures import BLUE, DARK, GREEN, GREY, INK, ORANGE, RANKS, RED, arrow, canvas, picture, tile


def draw_blocks(processes=4):
    """Which chunks of queries meet which chunks of keys. The colour is the rank that has the queries."""
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
        axes.set_xlabel("keys: the rank that has them")
        axes.tick_params(length=0)
        axes.spines[["left", "bottom"]].set_visible(False)
    picture(
        f"Causal attention with {chunks} chunks, a triangle of {chunks * (chunks + 1) // 2} blocks. "
        f"Contiguous: rank 0 has the two shortest rows, rank {processes - 1} the two longest. Zigzag: each "
        f"rank has a short row and a long one, {chunks + 1} blocks."
    )


def draw_ring(processes=4):
    """A row for each rank, a column for each step: whose keys and values it has, and where it sends them."""
    axes = canvas(4.2, 3.9, across=4.2 * processes + 1.6, down=3.2 * processes + 2.6)
    top = 3.2 * processes
    for step in range(processes):
        left = 2.9 + 4.2 * step
        axes.text(left + 1.3, top + 1.5, f"step {step + 1}", ha="center", weight="bold", size=10)
        for rank in range(processes):
            bottom = top - 3.2 * (rank + 1) + 0.9
            owner = (rank - step) % processes  # as in around_the_ring
            fill = tile(RANKS[owner], 0.55)
            axes.add_patch(plt.Rectangle((left, bottom), 2.6, 2.2, facecolor=fill, edgecolor=GREY))
            words = f"keys\nof {owner}"
            axes.text(left + 1.3, bottom + 1.1, words, ha="center", va="center", color=DARK, size=9)
            if step == processes - 1:
                continue
            if rank < processes - 1:
                arrow(axes, (left + 2.6, bottom + 0.3), (left + 4.2, bottom - 1.2), colour=RANKS[owner])
            else:  # from the last rank to the first: out at the bottom, in at the top
                arrow(axes, (left + 2.6, bottom + 0.3), (left + 3.5, bottom - 0.9), colour=RANKS[owner])
                arrow(axes, (left + 3.3, top + 1.2), (left + 4.2, top - 0.2), colour=RANKS[owner])
    for rank in range(processes):
        middle = top - 3.2 * (rank + 1) + 2.0
        axes.text(0, middle, f"rank {rank}", va="center", color=RANKS[rank], weight="bold", size=10)
    picture(
        f"The ring on {processes} ranks. In step 1, each rank computes with its own keys and values. After "
        "each step, it sends the keys and values that it has to the next rank, and the last rank sends to "
        f"rank 0. In {processes} steps, each rank computes with the keys of all ranks, one after the other."
    )


def draw_work(measured):
    """For each order and rank: the multiply-adds, and the CPU time."""
    _, panels = plt.subplots(2, 1, figsize=(4, 4.6), sharex=True)
    for axes, number, unit, label in (
        (panels[0], 0, 1e6, "million multiply-adds"),
        (panels[1], 1, 1e-3, "ms of CPU time"),
    ):
        for shift, order, colour in ((-0.2, "contiguous", ORANGE), (0.2, "zigzag", BLUE)):
            heights = [rank[order][number] / unit for rank in measured]
            places = [rank + shift for rank in range(len(heights))]
            axes.bar(places, heights, 0.38, color=colour, label=order)
        axes.set_ylabel(label)
    panels[0].legend()
    panels[1].set_xticks(range(len(measured)), [f"rank {rank}" for rank in range(len(measured))])
    row, zigzag = ([round(rank[order][0] / 1e6) for rank in measured] for order in ORDERS)
    picture(
        f"Attention on {len(measured)} ranks. In contiguous order, multiply-adds and CPU time rise from "
        f"rank 0 to rank {len(measured) - 1}: {', '.join(map(str, row))} million. In zigzag order, each rank "
        f"has {zigzag[0]} million, and the times are about equal."
    )


def draw_memory(lengths, peaks, torchs_own):
    """The peak memory of attention in one process, against the length of the text."""
    _, axes = plt.subplots(figsize=(4.2, 3.6))
    marks = zip(peaks.items(), (RED, ORANGE, BLUE), "so^", strict=True)
    for (processes, values), colour, mark in marks:
        name = f"{processes} process{'es' * (processes > 1)}"
        axes.plot(lengths, [value / 1e6 for value in values], f"{mark}-", color=colour, label=name)
    axes.plot(lengths, [value / 1e6 for value in torchs_own], "d--", color=GREEN, label="1, PyTorch's kernel")
    axes.set(xscale="log", yscale="log", xlabel="positions of a text", ylabel="peak MB in one process")
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()
    axes.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.grid(alpha=0.25, color=INK)
    axes.legend()
    picture(
        "Peak memory of attention in one process against the length of the text. On 1, 2 and 4 processes it "
        f"grows {peaks[1][-1] / peaks[1][-2]:.1f}, {peaks[2][-1] / peaks[2][-2]:.1f} and "
        f"{peaks[4][-1] / peaks[4][-2]:.1f} times with the last doubling of the length. With PyTorch's own "
        f"kernel on one process it grows {torchs_own[-1] / torchs_own[-2]:.1f} times."
    )
