"""The pictures of notebook 11: who holds which numbers of a matrix, and which collective runs where."""

import matplotlib.pyplot as plt
import numpy

from show.pictures import BLUE, DARK, GREY, INK, RANKS, RED, arrow, box, canvas, picture, tile
from show.rank_inks import RED_INK


def draw_two_ways():
    """Data parallelism above, tensor parallelism below."""
    axes = canvas(5, 4, 16, 12)
    for bottom, title, holds, travels in (
        (6.7, "data parallel (lesson 04)", "all weights,\nhalf of the images", "gradients,\nonce a step"),
        (0.3, "tensor parallel (this lesson)", "half of each matrix,\nall images", "sums, in\nevery block"),
    ):
        axes.text(0.1, bottom + 4.2, title, weight="bold", size=11)
        for rank, left in enumerate((0.1, 10.1)):
            box(axes, left, bottom, 5.8, 3.2, f"rank {rank}", holds, RANKS[rank])
        arrow(axes, (6.1, bottom + 1.0), (9.9, bottom + 1.0), travels, both=True, size=9)
    picture(
        "Data parallel: each rank has all weights and half of the images, and gradients travel once a step. "
        "Tensor parallel: each rank has half of each matrix and all images, and sums travel in every block."
    )


def draw_matrices():
    """x @ up, GELU, @ down: which process has which numbers, with two processes."""
    axes = canvas(5, 2.2, across=37, down=13)
    first, second = RANKS[:2]

    # A matrix is drawn as one part for each rank: its left or its upper half belongs to rank 0.
    draw_numbers(axes, 0, 3, columns=4, rows=3, colour=GREY)
    draw_numbers(axes, 7, 3, columns=3, rows=4, colour=first)
    draw_numbers(axes, 10, 3, columns=3, rows=4, colour=second)
    draw_numbers(axes, 16, 3, columns=3, rows=3, colour=first)
    draw_numbers(axes, 19, 3, columns=3, rows=3, colour=second)
    draw_numbers(axes, 25, 5, columns=4, rows=3, colour=first)
    draw_numbers(axes, 25, 2, columns=4, rows=3, colour=second)
    draw_numbers(axes, 32, 6.5, columns=4, rows=3, colour=first)
    draw_numbers(axes, 32, 2, columns=4, rows=3, colour=second)

    for middle, bottom, name in (
        (2, 6.5, "input"),
        (10, 7.5, "up,\nby columns"),
        (19, 6.5, "after GELU"),
        (27, 8.5, "down,\nby rows"),
        (34, 10, "a sum"),
    ):
        axes.text(middle, bottom, name, ha="center", size=9)
    for middle, sign in ((5.5, "@"), (14.5, "→"), (23.5, "@"), (30.5, "=")):
        axes.text(middle, 5, sign, ha="center", va="center", size=12)
    axes.text(34, 5.6, "+", ha="center", va="center", size=12)
    axes.text(18.5, 0, "blue: rank 0   orange: rank 1   grey: both", ha="center", size=9)
    picture(
        "An input that both ranks have, times a matrix whose left columns belong to rank 0 and whose right "
        "columns belong to rank 1, times a matrix whose upper rows belong to rank 0. The result is a sum of "
        "two terms, one on each rank."
    )


def draw_numbers(axes, left, bottom, columns, rows, colour):
    """A square for each number of a matrix."""
    for row in range(rows):
        for column in range(columns):
            corner = left + column, bottom + row
            axes.add_patch(plt.Rectangle(corner, 0.9, 0.9, color=colour, lw=0))


def draw_held(held):
    """The matrices of a block: each dot is a weight, in the colour of the rank that holds it."""
    places = {
        "attention.query": (1, slice(0, 1)),
        "attention.key": (1, slice(1, 2)),
        "attention.value": (1, slice(2, 3)),
        "attention.project": (1, slice(3, 4)),
        "feed_forward.up": (0, slice(0, 4)),
        "feed_forward.down": (slice(0, 4), slice(4, 5)),
    }
    figure = plt.figure(figsize=(5, 4.8))
    grid = figure.add_gridspec(4, 5, height_ratios=[1, 1.1, 1, 0.6])
    for name, place in places.items():
        panel = figure.add_subplot(grid[place])
        placement = held[0][f"{name}.weight"]["placement"]
        parts = []
        for found, colour in zip(held, RANKS[:2], strict=True):
            # nn.Linear stores the transpose. In x @ W, inputs go down and outputs go across.
            own = numpy.abs(found[f"{name}.weight"]["numbers"]).T
            parts.append(tinted(own, colour))
        rows, columns = own.shape
        if placement == "S(0)":
            whole, cut = f"{rows} x {2 * columns}", "by columns"
            panel.imshow(numpy.concatenate(parts, axis=1), aspect="equal")
        else:
            whole, cut = f"{2 * rows} x {columns}", "by rows"
            panel.imshow(numpy.concatenate(parts, axis=0), aspect="equal")
        panel.set_title(name.split(".")[1], size=10)
        panel.set(xticks=[], yticks=[])
        panel.set_xlabel(f"{whole},\n{cut}:\n{rows} x {columns} each", size=9)
    note = figure.add_subplot(grid[2:, :4])
    note.axis("off")
    note.text(0, 0.2, "blue: held by rank 0\norange: held by rank 1\ndarker: a larger weight", size=10)
    picture(
        "The six matrices of a block, with a dot for each weight. Query, key, value and up are split into a "
        "left half on rank 0 and a right half on rank 1, project and down into an upper and a lower half."
    )


def tinted(numbers, colour):
    """A pixel for each number: the larger it is, the stronger the colour, and the less white."""
    strength = 0.25 + 0.75 * numbers / numbers.max()
    strength = strength[:, :, None]  # the same for red, green and blue
    white = 1 - strength
    return strength * plt.matplotlib.colors.to_rgb(colour) + white


# A block from its input to its output: a layer, its name, and what comes between it and the next layer.
# "collectives" are those of the layers on both sides, which run there in both directions.
BLOCK = [
    ("attention_norm", "norm", "collectives"),
    ("attention.query", "query,\nkey, value", "attention"),
    ("attention.project", "project", "collectives"),
    ("feed_forward_norm", "norm", "collectives"),
    ("feed_forward.up", "up", "GELU"),
    ("feed_forward.down", "down", "collectives"),
]
HEIGHT = 1.4  # of a layer


def draw_block(find):
    """Which collective runs where in a block: forward downwards, backward upwards."""
    axes = canvas(5, 6.2, 16, 19)
    for left, way, title in ((0, "tensor", "tensor parallel"), (8, "sequence", "sequence parallel")):
        counts = find(way)["counts"]
        axes.text(left + 0.1, 18.3, title, weight="bold", size=11)
        middle = left + 1.55
        top = 17.8
        for number, (layer, name, between) in enumerate(BLOCK):
            bottom = top - HEIGHT
            draw_layer(axes, left + 0.1, bottom, name, way)
            top = bottom - 0.9
            if between == "collectives":
                top = bottom - 1.6
            axes.plot([middle, middle], [bottom, top], color=GREY, lw=1)
            halfway = (bottom + top) / 2
            if between == "collectives":
                layers = [layer]
                if number + 1 < len(BLOCK):
                    layers.append(BLOCK[number + 1][0])
                words = "\n".join(collectives_between(counts, layers))
                axes.text(middle + 0.4, halfway, words, size=9, color=RED_INK, va="center", linespacing=1.3)
            else:
                axes.text(middle + 0.4, halfway, between, size=9, va="center")
    words = "↓ forward   ↑ backward\nblue: rank 0   orange: rank 1   grey: both ranks, all of it"
    axes.text(8, 0.7, words, ha="center", va="center", size=9, linespacing=1.5)
    picture(
        "A block's layers, in halves for rank 0 and rank 1: left and right for query, key, value and up, "
        "upper and lower for project and down. All collectives run between a norm and the matrices: above "
        "query, below project, above up and below down. Tensor parallel: an all-reduce runs forward below "
        "project and below down, and backward above query and above up. Sequence parallel: at each of the "
        "four places, a reduce-scatter runs in one direction and an all-gather in the other, and the norms "
        "are in halves too."
    )


def collectives_between(counts, layers):
    """Those of a column-wise matrix's input and of a row-wise matrix's output: a line for each."""
    lines = []
    for layer in layers:
        for kind in names_of(forward_at(counts, layer)):
            lines.append(f"↓ {kind}")
        for kind in names_of(backward_at(counts, layer)):
            lines.append(f"↑ {kind}")
    return lines


def draw_layer(axes, left, bottom, name, way):
    """A layer in the colours of the ranks: in two halves, as it is sharded, or grey where nothing is."""
    width, height = 2.9, HEIGHT
    first, second = tile(RANKS[0], 0.5), tile(RANKS[1], 0.5)
    if name == "norm" and way == "tensor":
        halves = [((left, bottom), width, height, tile(GREY, 0.35))]
    elif name in ("query,\nkey, value", "up"):  # by columns
        halves = [
            ((left, bottom), width / 2, height, first),
            ((left + width / 2, bottom), width / 2, height, second),
        ]
    else:  # by rows; for the norms, the positions
        halves = [
            ((left, bottom + height / 2), width, height / 2, first),
            ((left, bottom), width, height / 2, second),
        ]
    for corner, across, down, colour in halves:
        axes.add_patch(plt.Rectangle(corner, across, down, color=colour, lw=0))
    axes.add_patch(plt.Rectangle((left, bottom), width, height, fill=False, edgecolor=GREY))
    middle = left + width / 2, bottom + height / 2
    axes.text(*middle, name, ha="center", va="center", weight="bold", color=DARK, size=9)


def forward_at(counts, layer):
    """How often each kind of collective runs in a layer's forward pass."""
    if layer == "attention_norm":
        return {}  # what runs on its output is drawn at the query, which reads it
    if layer != "attention.query":
        return counts.get(f"blocks.0.{layer}", {}).get("forward", {})
    # The collective on attention's input runs in `attention`, whose counts include those of `project`.
    found = dict(counts["blocks.0.attention"]["forward"])
    for kind, times in counts["blocks.0.attention.project"]["forward"].items():
        found[kind] -= times
    return found


def backward_at(counts, layer):
    if layer == "attention_norm":
        return {}
    return counts.get(f"blocks.0.{layer}", {}).get("backward", {})


def names_of(kinds):
    names = []
    for kind, times in kinds.items():
        if times:
            names.append(kind.removesuffix("_tensor").removesuffix("_into"))
    return names


def draw_bytes(results):
    """The bytes that a step puts into collectives, for several hidden sizes. Lines are the formulas."""
    axes = plt.figure(figsize=(5, 4)).add_subplot()
    line = numpy.array([24, 1024])
    for batch, mark in ((8, "o"), (32, "^")):
        axes.plot(line, 4 * 4 * 2 * batch * 28 * line, color=RED)
        equal = batch * 28 / 3  # the hidden size at which both ways send as much
        axes.plot(equal, 4 * 2 * 12 * equal**2, "x", color=INK, ms=11, mew=2.5, zorder=3)
        for row in results:
            if row["way"] == "tensor" and row["batch"] == batch:
                axes.plot(row["hidden"], row["sent"], mark, color=RED)
    axes.plot(line, 4 * 2 * 12 * line**2, color=GREY, ls="--")
    for row in results:
        if row["way"] == "data":
            axes.plot(row["hidden"], row["sent"], "s", color=GREY)
    axes.text(600, 1.5e6, "tensor parallel,\n8 images", ha="center", va="top", color=RED_INK)
    axes.text(50, 2.2e6, "tensor parallel,\n32 images", ha="center", va="bottom", color=RED_INK)
    axes.text(330, 4.5e7, "data parallel,\nany batch", ha="right", va="center")
    axes.set(xscale="log", yscale="log", xlabel="hidden size", ylabel="bytes into collectives, a step")
    sizes = (32, 64, 128, 256, 512, 1024)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    picture(
        "Bytes that a step puts into collectives, against the hidden size. Tensor parallel grows with the "
        "hidden size and with the images, data parallel with the square of the hidden size. Measured marks "
        "are on the lines or near them."
    )


def draw_kept(kept):
    """A bar for each way of working, of the bytes that a process keeps for the backward pass."""
    axes = plt.figure(figsize=(5, 2.4)).add_subplot()
    labels, words = [], []
    for number, (way, label, colour) in enumerate(
        (
            ("data", "one process", GREY),
            ("tensor", "tensor\nparallel", BLUE),
            ("sequence", "sequence\nparallel", BLUE),
        )
    ):
        megabytes = kept[way] / 1e6
        axes.barh(-number, megabytes, color=colour, height=0.6)
        axes.text(megabytes, -number, f" {megabytes:.2f} MB", va="center", color=INK)
        labels.append(label)
        name = label.replace("\n", " ")
        words.append(f"{name} {megabytes:.2f} MB")
    axes.set_yticks([0, -1, -2], labels)
    axes.set(xlabel="MB that rank 0 keeps for the backward pass", xlim=(0, 1.25 * kept["data"] / 1e6))
    picture(f"Kept for the backward pass by one process, without the weights: {', '.join(words)}.")


def draw_kept_tensors():
    """The tensors that a block keeps for the backward pass: what rank 0 of two ranks has of each."""
    rows = {
        "norms:\ninputs": (2, "whole whole half half"),
        "norms:\noutputs": (2, "whole whole whole half"),
        "queries, keys,\nvalues, outputs": (4, "whole half half half"),
        "GELU: input": (4, "whole half half half"),
        "GELU: output": (4, "whole half half half"),
    }
    columns = ("one\nprocess", "tensor\nparallel", "sequence\nparallel", "Megatron-\nLM")
    formulas = ("", "4 + 12/n", "2 + 14/n", "16/n")
    axes = canvas(5, 3.8, across=30, down=22)
    totals = [0, 0, 0, 0]
    for number, (name, (count, shares)) in enumerate(rows.items()):
        bottom = 17 - 3 * number
        axes.text(8.2, bottom + 0.6, name, ha="right", va="center", size=9)
        for column, share in enumerate(shares.split()):
            filled = 1
            if share == "half":
                filled = 0.5
            totals[column] += count * filled
            for place in range(count):
                corner = 9.2 + 5.4 * column + 1.15 * place, bottom
                axes.add_patch(plt.Rectangle(corner, filled, 1.2, color=BLUE, lw=0))
                axes.add_patch(plt.Rectangle(corner, 1, 1.2, fill=False, edgecolor=GREY, lw=0.8))
    for column, name in enumerate(columns):
        middle = 11.4 + 5.4 * column
        axes.text(middle, 20.6, name, ha="center", va="center", weight="bold", size=9)
        axes.text(middle, 2.9, f"{totals[column]:g}", ha="center", va="center", weight="bold", size=11)
        axes.text(middle, 0.9, formulas[column], ha="center", va="center", size=9)
    axes.text(8.2, 2.9, "tensors on rank 0", ha="right", va="center", size=9)
    axes.text(8.2, 0.9, "on n processes", ha="right", va="center", size=9)
    picture(
        "The 16 tensors that a block keeps, and what rank 0 of two ranks has of each. Tensor parallelism "
        "halves all but the inputs and outputs of the norms, sequence parallelism also halves the inputs, "
        "Megatron-LM halves everything. So rank 0 keeps "
        f"{totals[1]:g}, {totals[2]:g} or {totals[3]:g} tensors."
    )


def draw_heads():
    """The 32 columns of the query matrix: which of them make a head, and which rank holds it."""
    axes = canvas(4.4, 4.4, across=33.5, down=21)
    both, first, second = tile(GREY, 0.35), tile(RANKS[0], 0.55), tile(RANKS[1], 0.55)

    axes.text(0.4, 19.6, "one process: 4 heads of 8 columns", weight="bold", size=10)
    for head in range(4):
        draw_head(axes, 0.4 + 8 * head, 16, 8, f"head {head}", both)

    axes.text(0.4, 12.6, "two processes, right: the same 4 heads", weight="bold", size=10)
    for head in range(2):
        draw_head(axes, 0.4 + 8 * head, 9, 8, f"head {head}", first)
        draw_head(axes, 16.9 + 8 * head, 9, 8, f"head {head + 2}", second)
    axes.text(8.4, 7.9, "rank 0", ha="center", va="center", size=9)
    axes.text(24.9, 7.9, "rank 1", ha="center", va="center", size=9)

    axes.text(0.4, 4.8, "mistake: 4 heads on each, of 4 columns", weight="bold", size=10)
    for head in range(4):
        draw_head(axes, 0.4 + 4 * head, 1.2, 4, str(head), first)
        draw_head(axes, 16.9 + 4 * head, 1.2, 4, str(head), second)
    axes.text(8.4, 0.2, "rank 0", ha="center", va="center", size=9)
    axes.text(24.9, 0.2, "rank 1", ha="center", va="center", size=9)
    picture(
        "The 32 columns of the query matrix, with a short line between two columns. On one process they are "
        "four heads of 8 columns. On two processes, rank 0 holds heads 0 and 1, and rank 1 holds heads 2 "
        "and 3, each still of 8 columns. With the mistake, each rank cuts its 16 columns into four heads of "
        "4 columns: eight small heads."
    )


def draw_head(axes, left, bottom, columns, name, colour):
    axes.add_patch(plt.Rectangle((left, bottom), columns, 2.6, facecolor=colour, edgecolor="none"))
    for column in range(1, columns):
        place = left + column
        axes.plot([place, place], [bottom, bottom + 0.5], color=GREY, lw=0.6)
    axes.add_patch(plt.Rectangle((left, bottom), columns, 2.6, fill=False, edgecolor=DARK, lw=1.2))
    middle = left + columns / 2, bottom + 1.45
    axes.text(*middle, name, ha="center", va="center", color=DARK, size=9)
