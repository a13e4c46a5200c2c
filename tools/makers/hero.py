"""The README's first picture: two processes share a batch, and the lines that lesson 03 adds for it."""

import difflib

from tools import ink, lessons

plt = ink.pyplot()
FIRST, DDP = "01_single_gpu", "03_ddp_spawn"
# The beginnings of six lines that the diff adds, and what of each line is shown.
ADDED = {
    "mp.spawn(": "mp.spawn(worker, ...)",
    "dist.init_process_group(": "dist.init_process_group(...)",
    "sampler = Dist": "sampler = DistributedSampler(...)",
    "model = nn.parallel": "model = ...DistributedDataParallel(model)",
    "sampler.set_epoch": "sampler.set_epoch(epoch)",
    "dist.all_reduce(loss_sum": "dist.all_reduce(loss_sum)",
}
SHARDS = ("#0072B2", "#E69F00")
GREEN = "#2da44e"


def added():
    """The six lines, as the picture shows them. Each must be a line that lesson 03 adds to lesson 01."""
    one, other = (lessons.get(stem).path.read_text().splitlines() for stem in (FIRST, DDP))
    new = [line[2:].strip() for line in difflib.ndiff(one, other) if line.startswith("+ ")]
    for beginning, shown in ADDED.items():
        (line,) = [line for line in new if line.startswith(beginning)]
        parts = shown.split("...")
        assert line.startswith(parts[0]), f"lesson {DDP} has {line!r}, and the picture {shown!r}"
    return list(ADDED.values())


def draw(path):
    figure = plt.figure(figsize=(5, 2.6), layout="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 50), ylim=(0, 25))
    axes.axis("off")

    def words(x, y, text, size=8.5, **more):
        axes.text(x, y, text, {"color": ink.INK, "fontsize": size, "va": "center", **more})

    def box(x, y, width, height, colour, alpha=0.35):
        axes.add_patch(plt.Rectangle((x, y), width, height, facecolor=colour, alpha=alpha, linewidth=0))

    def arrow(begin, end, style="-|>"):
        axes.annotate("", end, begin, arrowprops={"arrowstyle": style, "color": ink.INK, "linewidth": 1})

    words(11.5, 23.6, "one batch of 120 images", ha="center")
    box(0.5, 20.2, 11, 2, SHARDS[0])
    box(11.5, 20.2, 11, 2, SHARDS[1])
    for rank, x in enumerate((0.5, 12)):
        centre = x + 5.25
        arrow((centre, 20), (centre, 16.6))
        box(x, 9.4, 10.5, 7, SHARDS[rank], 0.2)
        words(centre, 15, f"process {rank}", 9, ha="center", weight="bold")
        words(centre, 12.8, "copy of the model", 7.6, ha="center")
        words(centre, 10.8, "60 images", 7.6, ha="center")
        arrow((centre, 9.2), (centre, 6.6))
    box(0.5, 3.6, 22, 2.8, ink.INK, 0.2)
    words(11.5, 5, "all-reduce: average the gradients", ha="center")
    words(11.5, 1.6, "both copies take the same step", ha="center")

    words(24.5, 23.6, "six lines that lesson 03 adds")
    for number, line in enumerate(added()):
        y = 20.4 - 3.1 * number
        box(24.5, y - 1.2, 25.5, 2.4, GREEN, 0.22)
        words(24.9, y, f"+ {line}", 7, family="monospace")
    words(24.5, 1.6, "one process or four: the same losses")
    ink.save(figure, path)
    plt.close(figure)
