"""Notebook 04: RANK on two machines, one rank that raises or hangs, and a file that two ranks write."""

import matplotlib.pyplot as plt

from show.pictures import DARK, GREEN, GREY, INK, RANKS, RED, SKY, arrow, box, canvas, picture, tile
from show.rank_inks import GREEN_INK, INK_OF_RANK, RED_INK


def draw_two_machines(machines=2, gpus=4):
    """A process for each GPU, with its number among all processes and its number on its machine."""
    axes = canvas(5, 3.9, across=16, down=6.1 * machines)
    for machine in range(machines):
        bottom = 6.1 * (machines - 1 - machine)
        box(axes, 0.1, bottom + 0.2, 15.8, 5.6, f"machine {machine}", " ", GREY, 10)
        for gpu in range(gpus):
            left = 0.5 + 3.85 * gpu
            rank = machine * gpus + gpu
            axes.add_patch(
                plt.Rectangle((left, bottom + 2.5), 3.5, 1.9, facecolor=tile(SKY, 0.45), edgecolor=SKY)
            )
            axes.text(
                left + 1.75, bottom + 3.9, f"RANK {rank}", ha="center", va="center", size=9.5, color=DARK
            )
            local = f"LOCAL_RANK {gpu}"
            axes.text(left + 1.75, bottom + 3.0, local, ha="center", va="center", size=8.8, color=DARK)
            arrow(axes, (left + 1.75, bottom + 2.5), (left + 1.75, bottom + 1.6))
            axes.text(
                left + 1.75, bottom + 1.0, f"GPU {gpu}", ha="center", va="center", size=10, weight="bold"
            )
    last = machines * gpus - 1
    picture(
        f"{machines} machines with {gpus} GPUs and {gpus} processes each. RANK counts all processes, from 0 "
        f"to {last}. LOCAL_RANK counts those of one machine, from 0 to {gpus - 1}, and is the number of the "
        "GPU that the process uses."
    )


LOOKS = {
    "step 1": (GREEN, None),
    "other work": (GREY, None),
    "waits": (RED, "...."),
    "hangs": (RED, "////"),
}


def draw_life(axes, row, rank, parts):
    """What a rank does, in a row: (begin, end, what, words) for each part."""
    axes.text(-0.25, row, f"rank {rank}", ha="right", va="center", color=INK_OF_RANK[rank], weight="bold")
    for begin, end, what, words in parts:
        colour, hatch = LOOKS[what]
        axes.barh(
            row,
            end - begin,
            left=begin,
            height=0.62,
            color=tile(colour, 0.5),
            hatch=hatch,
            edgecolor="white",
            lw=0,
        )
        if words:
            ground = {"facecolor": tile(colour, 0.5), "edgecolor": "none", "pad": 1.5}
            axes.text(
                (begin + end) / 2, row, words, ha="center", va="center", color=DARK, size=9.5, bbox=ground
            )
    axes.barh(row, parts[-1][1] - parts[0][0], height=0.62, facecolor="none", edgecolor=RANKS[rank], lw=1.5)


def draw_failures(busy, timeout):
    """Rank 1 fails after step 1: in the upper half it raises an error, in the lower half it hangs.
    Step 1 and torchrun's reaction are drawn wider than they are, or nobody would see them."""
    begin, stop = 0.9, 0.7
    end = begin + busy + timeout
    figure, both = plt.subplots(2, 1, figsize=(5, 4.6), sharex=True)
    raises, hangs = both

    raises.set_title("rank 1 raises an error")
    first = (0, begin, "step 1", "")
    draw_life(raises, 1, 0, [first, (begin, begin + stop, "other work", "")])
    draw_life(raises, 0, 1, [first])
    raises.plot(begin, 0, "x", color=RED, ms=11, mew=3)
    raises.text(begin + 0.4, 0, "OSError: the true cause", va="center", color=RED_INK)
    raises.plot(begin + stop, 1, "s", color=INK, ms=8)
    raises.text(begin + stop + 0.4, 1, "stopped by torchrun (SIGTERM)", va="center")

    hangs.set_title("rank 1 hangs")
    works = (begin, begin + busy, "other work", f"other work, {busy} s")
    waits = (begin + busy, end, "waits", f"waits for rank 1, {timeout} s")
    draw_life(hangs, 1, 0, [first, works, waits])
    draw_life(hangs, 0, 1, [first, (begin, end + stop, "hangs", "hangs")])
    hangs.plot(end, 1, "x", color=RED, ms=11, mew=3)
    hangs.text(end, 1.55, "Timed out: only a consequence", ha="right", va="center", color=RED_INK)
    hangs.plot(end + stop, 0, "s", color=INK, ms=8)
    hangs.text(end + stop, -0.6, "stopped by torchrun (SIGTERM)", ha="right", va="center")

    for axes in both:
        axes.set(ylim=(-0.9, 1.9), xlim=(-0.1, end + 1.2), xticks=[], yticks=[])
        axes.spines["left"].set_visible(False)
    marks = []
    for what in ("step 1", "other work"):
        marks.append(plt.Rectangle((0, 0), 1, 1, facecolor=tile(LOOKS[what][0], 0.5)))
    names = ["step 1", "rank 0's other work"]
    figure.legend(marks, names, loc="outside upper center", ncols=2, handlelength=1)
    hangs.set_xlabel("time (drawn, not measured)")
    picture(
        "Two timelines of ranks 0 and 1. Above, rank 1 raises an OSError after step 1, and torchrun stops "
        f"rank 0 at once. Below, rank 1 hangs after step 1: rank 0 does {busy} seconds of other work, waits "
        f"{timeout} seconds for rank 1, and fails with a timeout; then torchrun stops rank 1. Rank 0 has the "
        "error, but rank 1 is the cause."
    )


def draw_loading(tag, ranks):
    """Where each rank's copy of a tensor is after torch.load. `tag` is the device that the file names."""
    axes = canvas(4.8, 4.9, across=16, down=15.6)
    width = 16 / ranks
    for bottom, call in ((7.6, "torch.load(path)"), (0, "torch.load(path, map_location=device)")):
        axes.text(0, bottom + 6.6, call, family="monospace", size=9.5)
        own_device = "map_location" in call
        for gpu in range(ranks):
            left = gpu * width
            axes.add_patch(
                plt.Rectangle((left + 0.1, bottom + 0.2), width - 0.2, 5.9, fill=False, color=GREY)
            )
            axes.text(left + width / 2, bottom + 5.4, f"cuda:{gpu}", ha="center", va="center", size=9.5)
        for rank in range(ranks):
            device = f"cuda:{rank}" if own_device else tag
            place = 0 if own_device else rank
            left = int(device.removeprefix("cuda:")) * width
            low = bottom + 3.9 - 1.15 * place
            looks = {"facecolor": tile(RANKS[rank], 0.45), "edgecolor": RANKS[rank]}
            axes.add_patch(plt.Rectangle((left + 0.4, low), width - 0.8, 0.95, **looks))
            words = f"rank {rank}"
            axes.text(left + width / 2, low + 0.45, words, ha="center", va="center", size=9.5, color=DARK)
    picture(
        f"{ranks} GPUs, and where each of {ranks} ranks loads a tensor whose tag is {tag}. Above, without "
        f"map_location, all {ranks} copies are on {tag}. Below, with map_location, each rank has its copy on "
        "its own GPU."
    )


def draw_saving():
    """What the file holds while first rank 0 and then rank 1 save to it."""
    axes = canvas(5, 2.9, across=16, down=8.4)
    moments = (("rank 0\nhas saved", 1, 0), ("rank 1 opens\nthe file", 0, 1), ("rank 1\nhas saved", 1, 1))
    for number, (when, share, rank) in enumerate(moments):
        left = 0.4 + 5.6 * number
        axes.text(
            left + 2, 7.2, when, ha="center", va="center", size=10, color=INK_OF_RANK[rank], weight="bold"
        )
        axes.add_patch(plt.Rectangle((left, 2.4), 4, 3.4, facecolor="none", edgecolor=INK, lw=1.5))
        if share:
            axes.add_patch(
                plt.Rectangle((left, 2.4), 4, 3.4, facecolor=tile(RANKS[rank], 0.45), edgecolor=INK, lw=1.5)
            )
        words, colour = ("weights", DARK) if share else ("empty", RED_INK)
        axes.text(left + 2, 4.1, words, ha="center", va="center", size=11, color=colour)
        if number:
            arrow(axes, (left - 1.5, 4.1), (left - 0.1, 4.1))
    axes.plot(8, 1.75, "x", color=RED, ms=10, mew=3)
    axes.text(8, 0.7, "a kill here loses the weights", ha="center", va="center", size=10, color=RED_INK)
    axes.text(2.4, 1.75, "complete", ha="center", va="center", size=10, color=GREEN_INK)
    axes.text(13.6, 1.75, "complete", ha="center", va="center", size=10, color=GREEN_INK)
    picture(
        "One file at three moments: rank 0 has saved, and the file holds the weights; rank 1 opens the file, "
        "which is now empty; rank 1 has saved, and the file is complete again. A kill at the second moment "
        "loses the weights."
    )
