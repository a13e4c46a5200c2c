"""All ways to split training over two processes: who holds which weights, texts and positions.

`make pictures` draws lessons/pictures/splits.svg.
"""

from typing import NamedTuple

from parts.colours import RANKS
from tools import ink

LAYERS, TEXTS = 4, 4
WHOLE, FIRST, SECOND = (0, 1), (0, 0.5), (0.5, 1)


class Way(NamedTuple):
    name: str
    lesson: str
    sends: str


WAYS = (
    Way("data", "DDP, lesson 03", "gradients"),
    Way("sharded data", "FSDP, lesson 09", "weights, gradients"),
    Way("pipeline", "lesson 10", "activations"),
    Way("tensor", "lesson 11", "activations"),
    Way("context", "lesson 15", "keys, values"),
    Way("experts", "lesson 16", "tokens"),
)


def held_weights(way, rank):
    """For each layer, the rectangles that this process holds, as parts of the width and of the height."""
    half = (FIRST, SECOND)[rank]
    if way.name in ("data", "context"):
        return [[(WHOLE, WHOLE)]] * LAYERS
    if way.name == "sharded data":
        return [[(WHOLE, half)]] * LAYERS
    if way.name == "pipeline":
        whole_layers = [[(WHOLE, WHOLE)]] * (LAYERS // 2)
        none = [[]] * (LAYERS // 2)
        return whole_layers + none if rank == 0 else none + whole_layers
    if way.name == "tensor":
        return [[(half, WHOLE)]] * LAYERS
    attention = ((0, 0.3), WHOLE)
    experts = [((0.38, 0.52), WHOLE), ((0.54, 0.68), WHOLE), ((0.70, 0.84), WHOLE), ((0.86, 1), WHOLE)]
    return [[attention, *experts[2 * rank : 2 * rank + 2]]] * LAYERS


def held_data(way, rank):
    """For each text, the part of its positions that this process reads."""
    half = (FIRST, SECOND)[rank]
    if way.name in ("pipeline", "tensor"):
        return [WHOLE] * TEXTS
    if way.name == "context":
        return [half] * TEXTS
    whole_texts = [WHOLE] * (TEXTS // 2)
    none = [None] * (TEXTS // 2)
    return whole_texts + none if rank == 0 else none + whole_texts


def draw(path):
    plt = ink.pyplot()
    figure = plt.figure(figsize=(5, 7.4), layout="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 50), ylim=(0, 74))
    axes.axis("off")

    def words(x, y, text, size=8.5, **more):
        axes.text(x, y, text, {"color": ink.INK, "fontsize": size, "va": "center", **more})

    def rectangle(x, y, width, height, **style):
        axes.add_patch(plt.Rectangle((x, y), width, height, **style))

    def frame(x, y, width, height):
        rectangle(x, y, width, height, facecolor="none", edgecolor=ink.INK, linewidth=0.7)

    lefts = (17, 34)  # of the two processes
    width = 7
    height = 8
    for rank, left in enumerate(lefts):
        words(left + 7.5, 72.3, f"process {rank}", 10, ha="center", weight="bold", color=RANKS[rank])
        words(left + 3.5, 69.8, "weights", ha="center")
        words(left + 11.5, 69.8, "batch", ha="center")

    for number, way in enumerate(WAYS):
        bottom = 59.3 - 10.6 * number
        words(0.5, bottom + 6.7, way.name, 10, weight="bold")
        words(0.5, bottom + 4, way.lesson)
        words(0.5, bottom + 1.5, f"sends {way.sends}")

        for rank, left in enumerate(lefts):
            solid = {"facecolor": RANKS[rank], "linewidth": 0}
            each = height / LAYERS
            for layer, held in enumerate(held_weights(way, rank)):
                y = bottom + height - each * (layer + 1)
                if way.name == "sharded data":
                    rectangle(left, y + 0.15, width, each - 0.3, **solid, alpha=0.25)
                for (begin, end), (low, high) in held:
                    inner = each - 0.3
                    size = (width * (end - begin), inner * (high - low))
                    rectangle(left + width * begin, y + 0.15 + inner * (1 - high), *size, **solid)
                frame(left, y + 0.15, width, each - 0.3)

            each = height / TEXTS
            for text, held in enumerate(held_data(way, rank)):
                y = bottom + height - each * (text + 1)
                if held is not None:
                    begin, end = held
                    rectangle(left + 8 + width * begin, y + 0.15, width * (end - begin), each - 0.3, **solid)
                frame(left + 8, y + 0.15, width, each - 0.3)

    words(25, 3.9, "4 layers of weights; 4 texts, positions from left to right", ha="center")
    words(25, 1.4, "filled: held or computed here. Pale: gathered for a moment", ha="center")
    ink.save(figure, path)
    plt.close(figure)
