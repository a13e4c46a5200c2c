"""The pictures of notebook 16: which rank has which experts, what is sent, and which experts are busy."""

import matplotlib.pyplot as plt

from show.pictures import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    RANKS,
    RED,
    arrow,
    box,
    canvas,
    picture,
    tile,
)

EXPERTS = [BLUE, ORANGE, GREEN, PINK]


def draw_ways():
    """The layer on two processes: from the router to the experts and back."""
    axes = canvas(5, 4.4, 16, 13.2)
    for rank, left in enumerate((0.2, 9.2)):
        colour = RANKS[rank]
        box(axes, left, 10.2, 6.6, 2.6, f"rank {rank}", "its own texts", colour)
        box(axes, left, 6.6, 6.6, 2.2, "router", "which expert?", GREY)
        box(axes, left, 2.2, 6.6, 2.6, f"experts {2 * rank}, {2 * rank + 1}", "only here", colour)
        arrow(axes, (left + 3.3, 10.1), (left + 3.3, 8.9))
        arrow(axes, (left + 2.6 + 1.4 * rank, 6.5), (left + 2.6 + 1.4 * rank, 4.9), both=True)
    arrow(axes, (5.6, 6.5), (10.4, 4.9), colour=RED, both=True)
    arrow(axes, (10.4, 6.5), (5.6, 4.9), colour=RED, both=True)
    axes.text(8, 0.9, "dark orange: all-to-all, tokens there, outputs back", ha="center", size=9, color=RED)
    axes.text(8, 0, "everything else is on both, as in lesson 04", ha="center", size=9)
    picture(
        "Rank 0 has its own texts, a router and experts 0 and 1. Rank 1 has its own texts, a router and "
        "experts 2 and 3. Dark orange arrows go from each router to the experts of the other rank, and back."
    )


def draw_counts(counts, owners):
    """A row for each sending rank, a column for each expert. The colour is the rank of the expert."""
    axes = plt.figure(figsize=(4.2, 0.9 + 0.62 * len(counts))).add_subplot()
    most = max(map(max, counts))
    for row, line in enumerate(counts):
        for expert, count in enumerate(line):
            strength = 0.12 + 0.5 * count / most
            corner = expert, len(counts) - 1 - row
            axes.add_patch(
                plt.Rectangle(corner, 0.95, 0.92, color=tile(RANKS[owners[expert]], strength), lw=0)
            )
            axes.text(corner[0] + 0.48, corner[1] + 0.46, count, ha="center", va="center", color=DARK)
    names = [f"expert {expert}\nrank {owner}" for expert, owner in enumerate(owners)]
    axes.set_xticks([number + 0.48 for number in range(len(owners))], names)
    axes.set_yticks(
        [len(counts) - 0.54 - row for row in range(len(counts))],
        [f"from rank {row}" for row in range(len(counts))],
    )
    axes.set(xlim=(0, len(owners)), ylim=(0, len(counts)))
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    lines = (f"rank {rank} {', '.join(map(str, line))}" for rank, line in enumerate(counts))
    picture(f"How many tokens each rank has for each expert: {'; '.join(lines)}.")


def draw_bytes(counted, whole):
    """Bytes that leave a process in a step: by the formula (hollow), and counted by the kernel (filled)."""
    axes = plt.figure(figsize=(4.6, 3.6)).add_subplot()
    sizes = (1, 2, 4, 8)
    for per_token, colour, mark in ((1, BLUE, "o"), (2, ORANGE, "s")):
        formula = [per_token * whole * (n - 1) / n / n / 1e6 for n in sizes]
        looks = {"color": colour, "ls": ":", "lw": 1, "marker": mark}
        axes.plot(sizes, formula, mfc="none", ms=12, label=f"{per_token} per token: formula", **looks)
        found = [(n, sent / 1e6) for (n, each), sent in counted.items() if each == per_token]
        if found:
            axes.plot(*zip(*found, strict=True), mark, color=colour, ms=5, label=f"{per_token}: counted")
    axes.set_xticks(sizes)
    axes.set(xlabel="processes (8: with eight experts)", ylabel="MB that leave each process")
    axes.set_ylim(-0.2, 3.2)
    axes.figure.legend(title="experts", loc="outside lower center", ncols=2, columnspacing=1)
    picture(
        "MB that leave the average process in a step. By the formula it is none on one process, most on two, "
        "and less on four and eight. Two experts per token double it. The counted bytes, on two and four "
        "processes, lie inside the marks of the formula."
    )


def draw_loads(runs, block):
    """The share of the tokens that each expert gets, step by step, one panel for each run."""
    figure, panels = plt.subplots(len(runs), figsize=(4.6, 4.6), sharex=True)
    for panel, (title, loads) in zip(panels, runs.items(), strict=True):
        shares = [[100 * step[block][expert] for step in loads] for expert in range(len(loads[0][block]))]
        panel.stackplot(range(1, len(loads) + 1), shares, colors=EXPERTS, lw=0.4, edgecolor="white")
        panel.set(title=title, ylabel="% of the tokens", ylim=(0, 100), xlim=(1, len(loads)))
        for line in (25, 50, 75):
            panel.axhline(line, color="white", lw=0.8, ls=":")
    panels[-1].set_xlabel("step")
    handles = [plt.Rectangle((0, 0), 1, 1, facecolor=colour) for colour in EXPERTS]
    names = [f"expert {number}" for number in range(4)]
    figure.legend(handles, names, loc="outside lower center", ncols=4, handlelength=1, columnspacing=1)
    most = {title: max(loads[-1][block]) for title, loads in runs.items()}
    words = "; ".join(f"{title}, the busiest ends with {share:.0%}" for title, share in most.items())
    picture(f"The share of the tokens that each expert of block {block + 1} gets, step by step: {words}.")


def draw_jump(places, answers, smooth):
    """One component of the output, along a line from one token to another."""
    axes = plt.figure(figsize=(4.6, 2.9)).add_subplot()
    axes.plot(places, smooth, color=GREY, ls="--", label="both experts, weighted")
    axes.plot(places, answers, ".", color=BLUE, ms=3, label="the better expert only")
    axes.set(xlabel="from one token to another", ylabel="a component of the output")
    axes.legend(labelcolor=INK)
    picture(
        "One component of the layer's output while a token moves. If both experts are weighted, it changes "
        "smoothly. With the better expert only, it jumps where the other expert becomes better."
    )
