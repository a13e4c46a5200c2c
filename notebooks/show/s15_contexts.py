"""The pictures of notebook 15: which rank computes which blocks of attention, and what that costs."""

import matplotlib.pyplot as plt

from parts.ring_attention import ORDERS, chunks_of
from show.pictures import DARK, GREY, INK, RANKS, RED, SKY, arrow, canvas, picture, tile
from show.rank_inks import INK_OF_RANK


def draw_blocks(processes=4):
    """Which chunks of queries meet which chunks of keys. The colour is the rank that has the queries."""
    chunks = 2 * processes
    _, panels = plt.subplots(2, 1, figsize=(3.6, 6.6))
    for axes, order in zip(panels, ORDERS, strict=True):
        owners = owners_of_chunks(processes, order)
        for query in range(chunks):
            bottom = chunks - 1 - query
            fill = tile(RANKS[owners[query]], 0.55)
            for key in range(query + 1):
                axes.add_patch(plt.Rectangle((key, bottom), 0.94, 0.94, facecolor=fill, edgecolor=GREY))
                words = str(owners[key])
                axes.text(key + 0.47, bottom + 0.47, words, ha="center", va="center", color=DARK, size=10)
            axes.text(-0.25, bottom + 0.47, f"rank {owners[query]}", ha="right", va="center", size=10)
        axes.set(xlim=(-2.2, chunks), ylim=(0, chunks), xticks=[], yticks=[], aspect="equal", title=order)
        axes.set_xlabel("keys: the rank that holds them")
        axes.spines[["left", "bottom"]].set_visible(False)
    picture(
        f"Causal attention with {chunks} chunks, a triangle of {chunks * (chunks + 1) // 2} blocks. "
        f"Contiguous: rank 0 has the two shortest rows, rank {processes - 1} the two longest. Zigzag: each "
        f"rank has a short row and a long one, {chunks + 1} blocks."
    )


def owners_of_chunks(processes, order):
    """For each chunk of a text, the rank that holds it."""
    owners = {}
    for rank in range(processes):
        for chunk in chunks_of(rank, processes, order):
            owners[chunk] = rank
    return owners


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
        colour = INK_OF_RANK[rank]
        axes.text(0, middle, f"rank {rank}", va="center", color=colour, weight="bold", size=10)
    picture(
        f"The ring on {processes} ranks. In step 1, each rank computes with its own keys and values. After "
        "each step, it sends the keys and values that it has to the next rank, and the last rank sends to "
        f"rank 0. In {processes} steps, each rank computes with the keys of all ranks, one after the other."
    )


def draw_work(measured):
    """For each order, how long each rank works, and how much less that is than the slowest rank's time."""
    _, panels = plt.subplots(2, 1, figsize=(4, 4.4), sharex=True)
    longest = 0
    for rank in measured:
        for order in ORDERS:
            longest = max(longest, 1000 * rank[order]["seconds"])
    for axes, order in zip(panels, ORDERS, strict=True):
        times = [1000 * rank[order]["seconds"] for rank in measured]
        end = max(times)
        for number, busy in enumerate(times):
            axes.barh(-number, busy, 0.7, color=tile(RANKS[number], 0.55))
            axes.barh(-number, end - busy, 0.7, left=busy, color="none", edgecolor=GREY, ls=":")
            words = f"{millions_of(measured[number], order)} million"
            axes.text(0.02 * longest, -number, words, va="center", color=DARK, size=9)
        axes.axvline(end, color=INK, lw=1.2)
        axes.set_yticks([0, -1, -2, -3], ["rank 0", "rank 1", "rank 2", "rank 3"])
        axes.tick_params(axis="y", length=0)
        axes.set(title=order, xlim=(0, 1.05 * longest))
    panels[1].set_xlabel("ms of CPU time; in the bars: multiply-adds")
    lists = []
    for order in ORDERS:
        lists.append(", ".join(millions_of(rank, order) for rank in measured))
    picture(
        f"Attention on four ranks. In contiguous order, multiply-adds and CPU time rise from rank 0 to "
        f"rank 3: {lists[0]} million. Dotted frames show how much longer the slowest rank works. In zigzag "
        f"order, the ranks have {lists[1]} million, the times are about equal, and the layer ends earlier."
    )


def millions_of(rank, order):
    return f"{rank[order]['multiply-adds'] / 1e6:.0f}"


def draw_memory(lengths, found):
    """The peak memory of attention in one process, against the length of the text."""
    _, axes = plt.subplots(figsize=(4.2, 3.8))
    for name, mark, words in (
        ("1", "s", "1 process"),
        ("2", "o", "2 processes"),
        ("4", "^", "4 processes"),
    ):
        megabytes = [peak / 1e6 for peak in found[name]]
        axes.plot(lengths, megabytes, f"{mark}-", color=RED)
        axes.annotate(words, (lengths[3], megabytes[3]), (8, -4), textcoords="offset points")
    megabytes = [peak / 1e6 for peak in found["kernel"]]
    axes.plot(lengths, megabytes, "d--", color=SKY)
    words = "1 process,\nPyTorch's\nkernel"
    axes.annotate(words, (lengths[3], megabytes[3]), (8, -24), textcoords="offset points")
    axes.set(xscale="log", yscale="log", xlabel="positions of a text", ylabel="peak MB in one process")
    axes.set_xlim(220, 6500)  # the names of the lines need the room on the right
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()
    axes.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.grid(alpha=0.25, color=INK)
    growth = {}
    for name, values in found.items():
        growth[name] = f"{values[-1] / values[-2]:.1f}"
    picture(
        "Peak memory of attention in one process against the length of the text. On 1, 2 and 4 processes it "
        f"grows {growth['1']}, {growth['2']} and {growth['4']} times with the last doubling of the length. "
        f"With PyTorch's own kernel on one process it grows {growth['kernel']} times."
    )
