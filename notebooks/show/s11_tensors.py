"""The pictures of notebook 11: who holds which numbers of a matrix, and which collective runs where."""

import matplotlib.pyplot as plt
import numpy

from show.pictures import BLUE, GREY, INK, ORANGE, RANKS, RED, SKY, arrow, box, canvas, picture


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

    def draw(at, bottom, columns, rows, name, colour):
        for row in range(rows):
            for column in range(columns):
                corner = at + column, bottom + rows - 1 - row
                axes.add_patch(plt.Rectangle(corner, 0.9, 0.9, color=colour(row, column), lw=0))
        axes.text(at + columns / 2, bottom + rows + 0.5, name, ha="center", size=9)

    first, second = RANKS[:2]
    draw(0, 3, 4, 3, "input", lambda row, column: GREY)
    draw(7, 3, 6, 4, "up,\nby columns", lambda row, column: (first, second)[column // 3])
    draw(16, 3, 6, 3, "after GELU", lambda row, column: (first, second)[column // 3])
    draw(25, 2, 4, 6, "down,\nby rows", lambda row, column: (first, second)[row // 3])
    draw(32, 6.5, 4, 3, "a sum", lambda row, column: first)
    draw(32, 2, 4, 3, "", lambda row, column: second)
    for at, sign in ((5.5, "@"), (14.5, "→"), (23.5, "@"), (30.5, "="), (34, "+")):
        axes.text(at, 5.6 if at == 34 else 5, sign, ha="center", va="center", size=12)
    axes.text(18.5, 0, "blue: rank 0   orange: rank 1   grey: both", ha="center", size=9)
    picture(
        "An input that both ranks have, times a matrix whose left columns belong to rank 0 and whose right "
        "columns belong to rank 1, times a matrix whose upper rows belong to rank 0. The result is a sum of "
        "two terms, one on each rank."
    )


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
        kind = held[0][f"{name}.weight"][0]
        tints = []
        for found, colour in zip(held, RANKS, strict=False):
            own = numpy.abs(found[f"{name}.weight"][1]).T  # as in x @ W: inputs down, outputs across
            strength = (0.25 + 0.75 * own / own.max())[..., None]
            tints.append(strength * plt.matplotlib.colors.to_rgb(colour) + 1 - strength)
        panel.imshow(numpy.concatenate(tints, axis=1 if kind == "S(0)" else 0), aspect="equal")
        panel.set_title(name.split(".")[1], size=10)
        panel.set(xticks=[], yticks=[])
        rows, columns = own.shape
        whole = f"{rows} x {2 * columns}" if kind == "S(0)" else f"{2 * rows} x {columns}"
        panel.set_xlabel(f"{whole}, {kind}:\n{rows} x {columns} each", size=9)
    note = figure.add_subplot(grid[2:, :4])
    note.axis("off")
    note.text(0, 0.2, "blue: held by rank 0\norange: held by rank 1\ndarker: a larger weight", size=10)
    picture(
        "The six matrices of a block, with a dot for each weight. Query, key, value and up are split into a "
        "left half on rank 0 and a right half on rank 1, project and down into an upper and a lower half."
    )


def draw_block(find):
    """Which collective runs at which layer of a block: forward downwards, backward upwards."""
    axes = canvas(5, 5, 16, 15)
    layers = ("attention_norm", "attention.query", "attention.project")
    layers += ("feed_forward_norm", "feed_forward.up", "feed_forward.down")
    for left, way, title in ((0, "tensor", "tensor parallel"), (8, "sequence", "sequence parallel")):
        counts = find(way)["counts"]
        axes.text(left + 0.1, 14.2, title, weight="bold", size=11)
        for number, layer in enumerate(layers):
            bottom, sharded = 11.8 - 2.3 * number, number in (1, 2, 4, 5)
            name = "query,\nkey, value" if layer.endswith("query") else layer.split(".")[-1]
            name = "norm" if name.endswith("norm") else name
            colour = BLUE if sharded else SKY if way == "sequence" else GREY
            box(axes, left + 0.1, bottom, 2.9, 1.5, name, "", colour, 9)
            for sign, kinds in ran(counts, layer).items():
                up = sign == "↑"
                for kind in kinds:
                    short = kind.removesuffix("_tensor").removesuffix("_into")
                    axes.text(
                        left + 3.3, bottom + (0.95 if up else 0.05), f"{sign} {short}", size=9, color=RED
                    )
    picture(
        "A block's layers. Tensor parallel: an all-reduce runs forward after project and after down, and "
        "backward before query and before up. Sequence parallel: a reduce-scatter and an all-gather instead."
    )


def ran(counts, layer):
    """The kinds of collectives at a layer, forward and backward. The input of attention counts as query's."""
    forward = dict(counts.get(f"blocks.0.{layer}", {}).get("forward", {}))
    backward = dict(counts.get(f"blocks.0.{layer}", {}).get("backward", {}))
    if layer == "attention.query":
        forward = dict(counts["blocks.0.attention"]["forward"])
        for kind, times in counts["blocks.0.attention.project"]["forward"].items():
            forward[kind] -= times
    if layer == "attention_norm":
        forward = backward = {}
    return {
        "↓": [kind for kind, times in forward.items() if times],
        "↑": [kind for kind, times in backward.items() if times],
    }


def draw_bytes(results):
    """The bytes that a step puts into collectives, for several hidden sizes. Lines are the formulas."""
    axes = plt.figure(figsize=(5, 4)).add_subplot()
    line = numpy.array([24, 1024])
    for batch, colour in ((8, ORANGE), (32, RED)):
        axes.plot(line, 4 * 4 * 2 * batch * 28 * line, color=colour, label=f"tensor parallel, {batch} images")
        equal = batch * 28 / 3  # the hidden size at which both send as much
        axes.plot(equal, 4 * 2 * 12 * equal**2, "x", color=INK, ms=10, mew=2, zorder=3)
    axes.plot(line, 4 * 2 * 12 * line**2, color=BLUE, ls="--", label="data parallel, any batch")
    for row in results:
        if row["way"] == "tensor" and row["batch"] in (8, 32):
            axes.plot(row["hidden"], row["sent"], "o", color=ORANGE if row["batch"] == 8 else RED)
        elif row["way"] == "data":
            axes.plot(row["hidden"], row["sent"], "s", color=BLUE)
    axes.set(xscale="log", yscale="log", xlabel="hidden size", ylabel="bytes into collectives, a step")
    axes.legend()
    picture(
        "Bytes that a step puts into collectives, against the hidden size. Tensor parallel grows with the "
        "hidden size and with the images, data parallel with the square of the hidden size. Measured dots "
        "are on the lines or near them."
    )


def draw_kept(kept):
    """A bar for each way of working, of the bytes that a process keeps for the backward pass."""
    labels = {"data": "one process", "tensor": "tensor\nparallel", "sequence": "sequence\nparallel"}
    megabytes = {way: amount / 1e6 for way, amount in kept.items()}
    axes = plt.figure(figsize=(5, 2.4)).add_subplot()
    for number, (amount, colour) in enumerate(zip(megabytes.values(), (GREY, BLUE, SKY), strict=True)):
        axes.barh(-number, amount, color=colour, height=0.6)
        axes.text(amount, -number, f" {amount:.2f} MB", va="center", color=INK)
    axes.set_yticks([0, -1, -2], [labels[way] for way in megabytes])
    axes.set(xlabel="MB kept for the backward pass", xlim=(0, 1.25 * max(megabytes.values())))
    words = ", ".join(f"{way} {amount:.2f} MB" for way, amount in megabytes.items())
    picture(f"Kept for the backward pass by one process, without the weights: {words}.")


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
    totals = [0] * len(columns)
    for number, (name, (count, shares)) in enumerate(rows.items()):
        bottom = 17 - 3 * number
        axes.text(8.2, bottom + 0.6, name, ha="right", va="center", size=9)
        for column, share in enumerate(shares.split()):
            filled = 1 if share == "whole" else 0.5
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
