"""Two mechanisms as pictures: what torchrun tells each process, and how a snapshot replaces the previous one.

`make pictures` draws lessons/pictures/ranks.svg and lessons/pictures/rename.svg.
"""

from parts.colours import BLUE, ORANGE, RANKS
from tools import ink

MACHINES, PROCESSES = 2, 2  # of each machine
# What is on the disk at each moment of saving epoch 3: the epoch of a file, and whether it is whole.
MOMENTS = {
    "training\nepoch 3": {"snapshot": (2, True)},
    "torch.save\nis writing": {"snapshot": (2, True), "temporary": (3, False)},
    "torch.save\nis done": {"snapshot": (2, True), "temporary": (3, True)},
    "replace()\nis done": {"snapshot": (3, True)},
}
EPOCH_COLOURS = {2: BLUE, 3: ORANGE}


def numbers_of(machine, process):
    """What torchrun sets for a process: RANK and LOCAL_RANK."""
    return machine * PROCESSES + process, process


def resumes_after(files):
    """The epoch that a process loads when it starts now: it looks at the snapshot alone."""
    return files["snapshot"][0]


class Sheet:
    """A figure without axes, of `width` x `height` tenths of an inch."""

    def __init__(self, width, height):
        self.plt = ink.pyplot()
        self.figure = self.plt.figure(figsize=(width / 10, height / 10), layout="none")
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, width), ylim=(0, height))
        self.axes.axis("off")

    def words(self, x, y, text, size=9, **more):
        style = {"color": ink.INK, "fontsize": size, "va": "center", "ha": "center", **more}
        self.axes.text(x, y, text, style)

    def box(self, x, y, width, height, colour=ink.INK, **more):
        """A frame and no filling: on a filling, the letters would have too little contrast."""
        line = {"edgecolor": colour, "linewidth": 0.8 if colour == ink.INK else 2.5, **more}
        self.axes.add_patch(self.plt.Rectangle((x, y), width, height, facecolor="none", **line))

    def arrow(self, begin, end):
        self.axes.annotate("", end, begin, arrowprops={"arrowstyle": "-|>", "color": ink.INK, "linewidth": 1})

    def save(self, path):
        ink.save(self.figure, path)
        self.plt.close(self.figure)


def draw_ranks(path):
    sheet = Sheet(50, 33)
    for machine in range(MACHINES):
        left = 0.5 + 25 * machine
        sheet.box(left, 8.2, 24, 24.3)
        sheet.words(left + 12, 30.7, f"machine {machine}", 10, weight="bold")
        sheet.box(left + 4, 26.2, 16, 2.8)
        sheet.words(left + 12, 27.6, "torchrun launcher")
        for process in range(PROCESSES):
            rank, local_rank = numbers_of(machine, process)
            x = left + 1 + 11.5 * process
            middle = x + 5.25
            sheet.arrow((middle, 26), (middle, 23.4))
            sheet.box(x, 15.4, 10.5, 7.8, RANKS[rank])
            sheet.words(middle, 21.2, f"RANK={rank}", 9.5, weight="bold")
            sheet.words(middle, 19, f"LOCAL_RANK={local_rank}", 8)
            sheet.words(middle, 16.9, "WORLD_SIZE=4", 8)
            sheet.arrow((middle, 15.2), (middle, 12.4))
            sheet.box(x, 9.4, 10.5, 2.8)
            sheet.words(middle, 10.8, f"GPU {local_rank}")
    width = 49 / (MACHINES * PROCESSES)
    for rank, colour in enumerate(RANKS):
        sheet.box(0.5 + width * rank + 0.2, 3.2, width - 0.4, 2.8, colour)
        sheet.words(0.5 + width * (rank + 0.5), 4.6, f"for rank {rank}", 8.5)
    sheet.words(25, 1.5, "the images of one batch")
    sheet.save(path)


def draw_rename(path):
    sheet = Sheet(50, 21)
    rows = {"snapshot": 11.4, "temporary": 6.4}
    for name, y in rows.items():
        sheet.words(0.3, y + 1.9, f"{name}\nfile", ha="left")
    sheet.words(0.3, 2.2, "a crash now:\nresumed after", ha="left")
    for number, (moment, files) in enumerate(MOMENTS.items()):
        middle = 15 + 10 * number
        sheet.words(middle, 18.4, moment)
        for name, y in rows.items():
            if name not in files:
                continue
            epoch, is_whole = files[name]
            line = {"linestyle": "-" if is_whole else ":"}
            sheet.box(middle - 4, y, 8, 3.8, EPOCH_COLOURS[epoch], **line)
            sheet.words(middle, y + 1.9, f"epoch {epoch}" if is_whole else "a part")
        sheet.words(middle, 2.2, f"epoch {resumes_after(files)}", weight="bold")
    sheet.save(path)
