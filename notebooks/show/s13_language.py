"""The pictures of notebook 13: which rank holds what of the GPT, what a step sends, the losses of a run."""

import math

import matplotlib.pyplot as plt

from show.pictures import BLUE, DARK, GREY, ORANGE, RANKS, RED, canvas, picture, tile


def draw_parts():
    """The GPT from the characters to their scores, and which rank of a 2 x 2 mesh holds which part."""
    columns, rows, table = ((0, 2, 1, 3),), ((0, 2), (1, 3)), ((0, 1), (2, 3))  # inputs down, outputs across
    layers = {
        "embedding, positions": (table, "all-gather"),
        "norm": (None, ""),
        "query, key, value": (columns, ""),
        "project": (rows, "all-reduce"),
        "norm ": (None, ""),
        "up": (columns, ""),
        "down": (rows, "all-reduce"),
        "norm  ": (None, ""),
        "head": (columns, "all-reduces"),
    }
    axes = canvas(4.4, 5.8, across=17, down=21.6)
    axes.text(0.2, 21, "a text: 176 characters", va="center", size=10)
    for number, (name, (parts, collective)) in enumerate(layers.items()):
        bottom = 18.4 - 2.2 * number
        axes.text(6.6, bottom + 0.8, name.strip(), ha="right", va="center", size=10)
        draw_matrix(axes, 7.4, bottom, parts)
        if collective:
            axes.text(13.2, bottom + 0.8, f"{collective}\nover tensor", va="center", size=9, color=RED)
    axes.plot((0.4, 0.1, 0.1, 0.4), (17.6, 17.6, 5.2, 5.2), color=GREY, lw=1.2)
    axes.text(0.5, 10.4, "2 blocks", va="center", weight="bold", size=10)
    axes.text(0.2, -0.1, "a score for each of 61 characters, at each position", va="center", size=10)
    picture(
        "A GPT from top to bottom: embedding, two blocks, norm, head. Each of the four ranks holds a quarter "
        "of every matrix. Ranks 0 and 2 have the left half of query, key, value, up and head, and the upper "
        "half of project and down. Each norm is on ranks 0 and 1 in one half, on ranks 2 and 3 in the other. "
        "Embedding, project, down and head are followed by collectives over tensor."
    )


def draw_matrix(axes, x, y, parts):
    """A matrix in the colours of the ranks that hold its parts. Two ranks hold each half of a norm."""
    parts = parts or (("0, 1", "2, 3"),)
    height, width = 1.6 / len(parts), 5 / len(parts[0])
    for row, ranks in enumerate(parts):
        for column, rank in enumerate(ranks):
            fill = tile(GREY, 0.3) if isinstance(rank, str) else tile(RANKS[rank], 0.6)
            corner = x + width * column, y + 1.6 - height * (row + 1)
            axes.add_patch(plt.Rectangle(corner, width, height, facecolor=fill, edgecolor=GREY, lw=0.8))
            middle = corner[0] + width / 2, corner[1] + height / 2
            axes.text(*middle, rank, ha="center", va="center", color=DARK, size=9)


def draw_sent(sent):
    """Kilobytes that rank 0 sends in a step, for each kind of collective and dimension."""
    kinds = ["all-gather", "reduce-scatter", "all-reduce"]
    axes, totals = plt.figure(figsize=(5, 2.8)).add_subplot(), []
    for shift, (over, colour) in enumerate((("data", BLUE), ("tensor", ORANGE))):
        widths = [
            sum(size for (_, kind, way), size in sent.items() if (kind, way) == (wanted, over)) / 1e3
            for wanted in kinds
        ]
        places = [number + 0.4 * shift for number in range(3)]
        axes.barh(places, widths, 0.36, color=colour, label=f"over {over}")
        totals.append(f"{sum(widths):,.0f} kB over {over}")
    axes.set_yticks([0.2, 1.2, 2.2], kinds)
    axes.invert_yaxis()
    axes.set_xlabel("kB that rank 0 sends in a step")
    axes.legend()
    picture(
        f"In a step rank 0 sends {totals[0]}, in all-gathers and reduce-scatters, and {totals[1]}, most "
        "of it in all-reduces."
    )


def draw_losses(trained_on, held_back, characters):
    """The loss of each step on training text, and of every tenth step on text that is held back."""
    steps = len(trained_on)
    axes = plt.figure(figsize=(5, 3.4)).add_subplot()
    axes.plot(range(1, steps + 1), trained_on, color=BLUE, label="limericks that it trains on")
    axes.plot(range(10, steps + 1, 10), held_back, color=ORANGE, label="limericks held back")
    axes.axhline(math.log(characters), color=GREY, ls="--", label=f"guessing: log {characters}")
    axes.set(xlabel="step", ylabel="loss of a character", ylim=(0, 5.6))
    axes.legend()
    picture(
        f"The loss of {steps} steps. On limericks that the model trains on it falls to {trained_on[-1]:.2f}. "
        f"On limericks held back it falls to {min(held_back):.2f}, then rises to {held_back[-1]:.2f}."
    )
