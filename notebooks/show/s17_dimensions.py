"""The pictures of notebook 17: the ranks of a mesh with four dimensions, and what each dimension sends."""

import matplotlib.pyplot as plt

from show.pictures import BLUE, DARK, GREEN, GREY, INK, ORANGE, PINK, arrow, picture, tile

COLOURS = {"data": GREEN, "pipeline": PINK, "context": ORANGE, "tensor": BLUE}


def draw_places():
    """Eight ranks on a mesh of 1 x 2 x 2 x 2: the stage, positions and heads of each rank."""
    axes = plt.figure(figsize=(4.4, 5.6)).add_subplot()
    axes.set(xlim=(0, 15), ylim=(-0.1, 15.1))
    axes.axis("off")
    for rank in range(8):
        stage, context, tensor = rank >> 2, rank >> 1 & 1, rank & 1
        x, y = 0.4 + 8.4 * tensor, 12.2 - 3.6 * context - 8.6 * stage
        fill = tile(COLOURS["pipeline"], 0.35) if stage else tile(GREY, 0.25)
        axes.add_patch(plt.Rectangle((x, y), 5.6, 2.7, facecolor=fill, edgecolor=INK, lw=1.2))
        blocks = f"blocks {2 * stage}, {2 * stage + 1}"
        chunks = "chunks 0 and 3" if context == 0 else "chunks 1 and 2"
        heads = f"heads {2 * tensor}, {2 * tensor + 1}"
        said = f"rank {rank}\n{blocks}\n{chunks}\n{heads}"
        axes.text(x + 2.8, y + 1.35, said, ha="center", va="center", size=9, color=DARK, linespacing=1.25)
        if tensor == 0:
            arrow(
                axes, (x + 5.6, y + 1.35), (x + 8.4, y + 1.35), "tensor", COLOURS["tensor"], both=True, size=9
            )
        if context == 0:
            arrow(axes, (x + 1, y), (x + 1, y - 0.9), colour=COLOURS["context"], both=True)
            axes.text(x + 1.3, y - 0.47, "context", size=9, va="center", color=COLOURS["context"])
    colour = COLOURS["pipeline"]
    for line, edge in ((8.1, 8.4), (6.8, 6.5)):  # below the first stage, above the second
        axes.plot((0.4, 0.4, 14.4, 14.4), (edge, line, line, edge), color=colour, lw=1.2)
    arrow(axes, (1.9, 8.2), (1.9, 6.7), colour=colour, both=True)
    axes.text(2.4, 7.45, "pipeline: each rank r with rank r + 4", size=9, va="center", color=colour)
    picture(
        "Eight ranks. Ranks 0 to 3 have blocks 0 and 1, ranks 4 to 7 have blocks 2 and 3. In each stage, two "
        "ranks have chunks 0 and 3 of a text, and two have chunks 1 and 2. Of each two, one rank has heads 0 "
        "and 1, the other heads 2 and 3."
    )


def draw_sent(rows):
    """For each mesh, the kilobytes that rank 0 sends in each dimension. Gradients of `context` are pale."""
    _, panels = plt.subplots(len(rows), 1, figsize=(4.6, 1.5 + 1.1 * len(rows)), sharex=True)
    widest = 0
    said = []
    for axes, (mesh, row) in zip(panels, rows.items(), strict=True):
        totals = []
        for place, (name, sizes) in enumerate(row.items()):
            total = draw_bar(axes, place, COLOURS[name], list(sizes.values()))
            widest = max(widest, total)
            totals.append(f"{name} {total:.0f}")
        said.append(f"On {mesh}: {', '.join(totals)}")
        axes.set_yticks(range(len(row)), row)
        axes.set_ylim(len(row) - 0.5, -0.5)  # the first dimension on top
        axes.set_title(mesh, size=10)
        axes.tick_params(axis="y", length=0)
    panels[-1].set(xlabel="kilobytes that rank 0 sends in a step", xlim=(0, 1.6 * widest))
    picture(f"Kilobytes that rank 0 sends in a step. {'; '.join(said)}.")


def draw_bar(axes, place, colour, sizes):
    """Draw what rank 0 sends in one dimension, and return it in kilobytes. A second part is gradients."""
    left = 0
    numbers = []
    for size, strength in zip(sizes, (1, 0.5), strict=False):
        axes.barh(place, size / 1e3, left=left, color=tile(colour, strength))
        left += size / 1e3
        numbers.append(f"{size / 1e3:,.0f}")

    words = " + ".join(numbers)
    if len(numbers) == 0:
        words = "one process: nothing"
    if len(numbers) == 2:
        words += " (gradients)"
    axes.text(left, place, f" {words}", va="center", size=9, color=INK)
    return left
