"""The README's first picture: two processes share a batch, and the lines that lesson 03 adds for it."""

from parts.colours import DARK
from tools import diffs, ink, lessons

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
# All letters stand on one of these: on a pale ground, they can be read on a light page and on a dark one.
SHARDS = ("#A6D1E8", "#F6DEA6")
GREY, GREEN = "#DDDDDD", "#C8EBD1"


def added():
    """The six lines, as the picture shows them. Each must be a line that lesson 03 adds to lesson 01."""
    new = []
    for line in diffs.changed_lines("+", lessons.get(FIRST).path, lessons.get(DDP).path):
        new.append(line.strip())
    for beginning, shown in ADDED.items():
        (line,) = [line for line in new if line.startswith(beginning)]
        parts = shown.split("...")
        assert line.startswith(parts[0]), f"lesson {DDP} has {line!r}, and the picture {shown!r}"
    return list(ADDED.values())


def draw(path):
    """All letters are at least 9.5 points high: on a phone, which is 380 dots wide, that is 10 dots."""
    figure = plt.figure(figsize=(5, 3.5), layout="none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 50), ylim=(0, 35))
    axes.axis("off")

    def words(x, y, text, size=9.5, **more):
        style = {"color": DARK, "fontsize": size, "va": "center", "ha": "center", **more}
        axes.text(x, y, text, style)

    def box(x, y, width, height, colour):
        axes.add_patch(plt.Rectangle((x, y), width, height, facecolor=colour, linewidth=0))

    def arrow(x, top, bottom):
        line = {"arrowstyle": "-|>", "color": ink.INK, "linewidth": 1}
        axes.annotate("", (x, bottom), (x, top), arrowprops=line)

    for rank, share in enumerate(("60 of 120 images", "the other 60 images")):
        left = 0.5 + 25 * rank
        middle = left + 12
        box(left, 32.2, 24, 2.4, SHARDS[rank])
        words(middle, 33.4, share)
        arrow(middle, 32.1, 30.2)
        box(left, 25.8, 24, 4.3, SHARDS[rank])
        words(middle, 28.9, f"process {rank}", 10, weight="bold")
        words(middle, 26.9, "copy of the model")
        arrow(middle, 25.7, 23.8)
    box(0.5, 17.4, 49, 6.3, GREY)
    words(25, 22.6, "all-reduce: average the gradients")
    words(25, 20.5, "both copies take the same step")
    words(25, 18.4, "one process or four: the same losses")

    box(0.5, 0.4, 49, 16.2, GREEN)
    words(25, 15.3, "six lines that lesson 03 adds", 10, weight="bold")
    for number, line in enumerate(added()):
        words(1.5, 13 - 2.25 * number, f"+ {line}", ha="left", family="monospace")
    ink.save(figure, path)
    plt.close(figure)
