"""The pictures of notebook 12: the mesh, who holds which numbers, and which group communicates when."""

from collections import Counter

import matplotlib.pyplot as plt
import torch

from show.pictures import BLUE, GREEN, GREY, INK, ORANGE, RANKS, arrow, box, canvas, picture


def draw_mesh():
    """Four ranks in rows and columns, with what each of them reads and holds."""
    axes = canvas(5, 3.7, 16, 11.8)
    for rank, (x, y) in enumerate(((2.5, 6.2), (10, 6.2), (2.5, 0.3), (10, 0.3))):
        data, tensor = divmod(rank, 2)
        duties = f"batch, half {data}\nheads {2 * tensor} and {2 * tensor + 1}\nhalf of their\nweights"
        box(axes, x, y, 5.2, 4, f"rank {rank}", duties, RANKS[rank])
    for y in (8.2, 2.3):
        arrow(axes, (7.75, y), (9.95, y), "tensor", both=True, size=9)
    for x in (5.1, 12.6):
        arrow(axes, (x, 6.15), (x, 4.35), both=True)
        axes.text(x + 0.25, 5.25, "data", size=9, va="center")
    for y, text in ((8.2, "data\n= 0"), (2.3, "data\n= 1")):
        axes.text(0.1, y, text, size=9, va="center")
    for x, text in ((5.1, "tensor = 0"), (12.6, "tensor = 1")):
        axes.text(x, 11.2, text, size=9, ha="center")
    picture(
        "Four boxes, two by two. Ranks 0 and 1 are a row: both read half 0 of the batch; rank 0 has heads 0 "
        "and 1, rank 1 has heads 2 and 3. Ranks 0 and 2 are a column: they have the same heads, and each "
        "stores half of the weights."
    )


def draw_held(held, names):
    """Each dot is a weight, in the colour of the rank that holds it."""
    sizes = held[0]["sizes"]
    figure = plt.figure(figsize=(5, 4.2))
    grid = figure.add_gridspec(3, 6, height_ratios=[1, 0.35, 1])
    places = [(slice(0, 1), slice(0, 4)), (slice(2, 3), slice(0, 2)), (slice(2, 3), slice(2, 4))]
    places += [(slice(0, 3), slice(4, 6))]
    for (name, title), place in zip(names.items(), places, strict=True):
        axes = figure.add_subplot(grid[place])
        rows, columns = sizes[name]
        colours = torch.zeros(rows * columns, 3)
        for rank, found in enumerate(held):
            colours[found["holds"][name]] = torch.tensor(plt.matplotlib.colors.to_rgb(RANKS[rank]))
        axes.imshow(colours.view(rows, columns, 3).transpose(0, 1))  # as in x @ W: outputs across
        axes.set_title(title, size=10)
        axes.set(xticks=[], yticks=[])
        axes.set_xlabel(f"{columns} x {rows}", size=9)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in RANKS]
    names = [f"rank {rank}" for rank in range(4)]
    figure.legend(handles, names, loc="outside lower center", ncols=4, columnspacing=1)
    picture(
        "Four matrices, each split into four rectangles, one in the colour of each rank. In column-wise "
        "matrices ranks 0 and 2 are on the left, in row-wise matrices they are at the top."
    )


def draw_step(step):
    """The collectives of a step in their order: tensor in the upper row, data in the lower row."""
    axes = plt.figure(figsize=(5, 2.7)).add_subplot()
    marks = {"all-gather": ("^", BLUE), "reduce-scatter": ("v", GREEN), "all-reduce": ("D", ORANGE)}
    for kind, (marker, colour) in marks.items():
        places, heights = [], []
        for number, collective in enumerate(step):
            if collective["kind"] == kind:
                places.append(number)
                heights.append({"tensor": 1, "data": 0}[collective["dimension"]])
        axes.plot(places, heights, marker, color=colour, markersize=8, label=kind)
    turn = sum(collective["when"] == "forward" for collective in step) - 0.5
    axes.axvline(turn, color=GREY, ls=":")
    axes.text(turn - 0.3, 1.5, "forward", ha="right", color=INK)
    axes.text(turn + 0.3, 1.5, "backward", color=INK)
    axes.set_yticks([1, 0], ["tensor", "data"])
    axes.set(ylim=(-0.6, 1.9), xticks=[], xlabel="the collectives of a step, in their order")
    axes.figure.legend(loc="outside lower center", ncols=3, columnspacing=1, handletextpad=0.2)
    counts = Counter()
    for collective in step:
        words = f"{collective['kind']} {collective['when']} over {collective['dimension']}"
        counts[words] += 1
    said = [f"{count} {words}" for words, count in counts.items()]
    picture(f"The {len(step)} collectives of a step in their order: {', '.join(said)}.")
