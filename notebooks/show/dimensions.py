"""The pictures of notebook 17: who is where on a mesh of four dimensions, and what travels in each."""

import matplotlib.pyplot as plt

from show.pictures import BLUE, DARK, GREEN, GREY, INK, ORANGE, PINK, arrow, tile

COLOURS = {"data": GREEN, "pipeline": PINK, "context": ORANGE, "tensor": BLUE}


def draw_places():
    """Eight ranks on a mesh of 1 x 2 x 2 x 2: for each, its stage, its positions, its heads."""
    axes = plt.figure(figsize=(4.4, 5.2)).add_subplot()
    axes.set(xlim=(0, 15), ylim=(-0.1, 14))
    axes.axis("off")
    for rank in range(8):
        stage, context, tensor = rank >> 2, rank >> 1 & 1, rank & 1
        x, y = 0.4 + 8.4 * tensor, 11.2 - 3.6 * context - 7.6 * stage
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
    arrow(axes, (4.6, 7.5), (4.6, 6.5), colour=COLOURS["pipeline"], both=True)
    axes.text(5, 7, "pipeline: 0 with 4, 1 with 5, ...", size=9, va="center", color=COLOURS["pipeline"])


def draw_sent(rows):
    """For each mesh, the kilobytes that rank 0 sends in each dimension of it."""
    _, panels = plt.subplots(len(rows), 1, figsize=(4.6, 1.5 + 1.1 * len(rows)), sharex=True)
    for axes, (mesh, sizes) in zip(panels, rows.items(), strict=True):
        names = list(sizes)
        axes.barh(names, [sizes[name] / 1e3 for name in names], color=[COLOURS[name] for name in names])
        for place, name in enumerate(names):
            text = f" {sizes[name] / 1e3:,.0f}" if sizes[name] else " alone: nothing"
            axes.text(sizes[name] / 1e3, place, text, va="center", size=9, color=INK)
        axes.set_title(mesh, size=10)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1.2 * max(max(sizes.values()) / 1e3 for sizes in rows.values()))
    panels[-1].set_xlabel("kilobytes that rank 0 sends in a step")
