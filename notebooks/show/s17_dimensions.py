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
        chunks = "chunks 0 and 3" if context == 0 else "chunks 1 and 2"
        blocks, heads = (f"{2 * number}, {2 * number + 1}" for number in (stage, tensor))
        said = f"rank {rank}\nblocks {blocks}\n{chunks}\nheads {heads}"
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
    widest = max(sum(sizes.values()) for row in rows.values() for sizes in row.values()) / 1e3
    for axes, (mesh, row) in zip(panels, rows.items(), strict=True):
        for place, (name, sizes) in enumerate(row.items()):
            parts, left = [size / 1e3 for size in sizes.values()], 0
            for part, strength in zip(parts, (1, 0.5), strict=False):
                axes.barh(place, part, left=left, color=tile(COLOURS[name], strength))
                left += part
            text = " + ".join(f"{part:,.0f}" for part in parts) or "one process: nothing"
            text += " (gradients)" if len(parts) > 1 else ""
            axes.text(left, place, f" {text}", va="center", size=9, color=INK)
        axes.set_yticks(range(len(row)), row)
        axes.set_ylim(len(row) - 0.5, -0.5)  # the first dimension on top
        axes.set_title(mesh, size=10)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1.6 * widest)
    panels[-1].set_xlabel("kilobytes that rank 0 sends in a step")
    words = (
        f"On {mesh}: " + ", ".join(f"{name} {sum(sizes.values()) / 1e3:.0f}" for name, sizes in row.items())
        for mesh, row in rows.items()
    )
    picture(f"Kilobytes that rank 0 sends in a step. {'; '.join(words)}.")
