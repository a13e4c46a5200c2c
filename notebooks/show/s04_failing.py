"""Notebook 04: RANK on two machines, one rank that raises or hangs, and a file that two ranks write."""

import matplotlib.pyplot as plt

from show.pictures import DARK, GREEN, GREY, INK, RANKS, RED, arrow, box, canvas, picture, tile
from show.rank_inks import GREEN_INK, INK_OF_RANK, RED_INK
from show.s04_launching import WAITS


def draw_two_machines(machines=2, gpus=2):
    """A row for each process: its two numbers, and the GPU that it gets by either of them."""
    axes = canvas(4.8, 4.6, across=16, down=7.2 * machines + 1.6)
    top = 7.2 * machines + 0.8
    for x, name in ((9.0, "LOCAL_RANK"), (13.6, "RANK")):
        axes.text(x, top, f"GPU by\n{name}", ha="center", va="center", size=10, weight="bold")
    wrong = []
    for machine in range(machines):
        bottom = 7.2 * (machines - 1 - machine)
        frame = plt.Rectangle((0.1, bottom + 0.1), 15.8, 6.6, fill=False, edgecolor=GREY, lw=1.5)
        axes.add_patch(frame)
        axes.text(0.6, bottom + 5.9, f"machine {machine}", va="center", weight="bold", size=10)
        for gpu in range(gpus):
            rank = machine * gpus + gpu
            low = bottom + 3.0 - 2.6 * gpu
            looks = {"facecolor": tile(RANKS[rank], 0.45), "edgecolor": RANKS[rank]}
            axes.add_patch(plt.Rectangle((0.6, low), 5.6, 2.2, **looks))
            words = f"RANK {rank}\nLOCAL_RANK {gpu}"
            axes.text(3.4, low + 1.05, words, ha="center", va="center", size=9.5, color=DARK)
            arrow(axes, (6.3, low + 1.1), (7.5, low + 1.1))
            axes.text(9.0, low + 1.1, f"GPU {gpu}", ha="center", va="center", size=10, color=GREEN_INK)
            by_rank, colour = f"GPU {rank}", GREEN_INK
            if rank >= gpus:
                by_rank, colour = f"GPU {rank}\ndoesn't exist", RED_INK
                wrong.append(f"GPU {rank}")
            axes.text(13.6, low + 1.1, by_rank, ha="center", va="center", size=10, color=colour)
    picture(
        f"{machines} machines with {gpus} GPUs and {gpus} processes each. RANK counts all processes, from 0 "
        f"to {machines * gpus - 1}. LOCAL_RANK counts those of one machine, from 0 to {gpus - 1}, and is the "
        f"number of the GPU that the process uses. Picked by RANK, {' and '.join(wrong)} do not exist."
    )


LOOKS = {
    "step 1": {"facecolor": tile(GREEN, 0.5), "edgecolor": "white", "lw": 0},
    "other work": {"facecolor": tile(GREY, 0.5), "edgecolor": "white", "lw": 0},
    "waits": WAITS,
    "hangs": {"facecolor": tile(RED, 0.5), "edgecolor": "white", "hatch": "////", "lw": 0},
}


def draw_life(axes, row, rank, parts):
    """What a rank does, in a row: (begin, end, what, words) for each part."""
    axes.text(-0.25, row, f"rank {rank}", ha="right", va="center", color=INK_OF_RANK[rank], weight="bold")
    for begin, end, what, words in parts:
        axes.barh(row, end - begin, left=begin, height=0.62, **LOOKS[what])
        axes.text((begin + end) / 2, row + 0.36, words, ha="center", va="bottom", size=9.5)
    axes.barh(row, parts[-1][1] - parts[0][0], height=0.62, facecolor="none", edgecolor=RANKS[rank], lw=1.5)


def draw_failures(busy, timeout):
    """Rank 1 fails after step 1: in the upper half it raises an error, in the lower half it hangs.
    Step 1 and torchrun's reaction are drawn wider than they are, or nobody would see them."""
    begin, stop = 0.9, 0.7
    end = begin + busy + timeout
    figure, both = plt.subplots(2, 1, figsize=(5, 4.9), sharex=True)
    raises, hangs = both

    raises.set_title("rank 1 raises an error")
    first = (0, begin, "step 1", "")
    draw_life(raises, 1, 0, [first, (begin, begin + stop, "other work", "")])
    draw_life(raises, 0, 1, [first])
    raises.plot(begin, 0, "x", color=RED, ms=11, mew=3)
    raises.text(begin + 0.4, 0, "OSError: the true cause", va="center", color=RED_INK)
    raises.plot(begin + stop, 1, "s", color=INK, ms=8)

    hangs.set_title("rank 1 hangs")
    works = (begin, begin + busy, "other work", f"{busy} s")
    waits = (begin + busy, end, "waits", f"timeout: {timeout} s")
    draw_life(hangs, 1, 0, [first, works, waits])
    draw_life(hangs, 0, 1, [first, (begin, end + stop, "hangs", "")])
    hangs.plot(end, 1, "x", color=RED, ms=11, mew=3)
    hangs.text(end + 0.3, 1.75, "Timed out:\na consequence", ha="right", va="bottom", color=RED_INK)
    hangs.plot(end + stop, 0, "s", color=INK, ms=8)

    raises.set(ylim=(-0.6, 1.6))
    hangs.set(ylim=(-0.6, 2.75))
    for axes in both:
        axes.set(xlim=(-0.1, end + 1.2), xticks=[], yticks=[])
        axes.spines["left"].set_visible(False)
    marks = []
    for looks in LOOKS.values():
        marks.append(plt.Rectangle((0, 0), 1, 1, **looks))
    marks.append(plt.Line2D([], [], marker="x", color=RED, ls="", ms=9, mew=3))
    marks.append(plt.Line2D([], [], marker="s", color=INK, ls="", ms=8))
    names = ["step 1", "other work", "waits for rank 1", "hangs", "fails", "stopped by torchrun"]
    figure.legend(marks, names, loc="outside upper center", ncols=3, handlelength=1.2, columnspacing=1)
    hangs.set_xlabel("time (drawn, not measured)")
    picture(
        "Two timelines of ranks 0 and 1. Above, rank 1 raises an OSError after step 1, and torchrun stops "
        f"rank 0 at once. Below, rank 1 hangs after step 1: rank 0 does {busy} seconds of other work, waits "
        f"{timeout} seconds for rank 1, and fails with a timeout; then torchrun stops rank 1. Rank 0 has the "
        "error, but rank 1 is the cause."
    )


def draw_loading(tag, ranks):
    """From one file, each rank loads a tensor. `tag` is the device that the file names."""
    axes = canvas(4.8, 5.4, across=16, down=19)
    width = 16 / ranks
    for bottom, call in ((9.7, "torch.load(path)"), (0, "torch.load(path, map_location=device)")):
        axes.text(0, bottom + 8.7, call, family="monospace", size=9.5, va="center")
        box(axes, 5, bottom + 6.7, 6, 1.3, f"file with the tag {tag}", colour=GREY)
        own_device = "map_location" in call
        for gpu in range(ranks):
            left = gpu * width
            axes.add_patch(
                plt.Rectangle((left + 0.1, bottom + 0.2), width - 0.2, 5.1, fill=False, color=GREY)
            )
            axes.text(left + width / 2, bottom + 4.7, f"cuda:{gpu}", ha="center", va="center", size=9.5)
        for rank in range(ranks):
            device = f"cuda:{rank}" if own_device else tag
            place = 0 if own_device else rank
            left = int(device.removeprefix("cuda:")) * width
            low = bottom + 3.4 - 1.05 * place
            looks = {"facecolor": tile(RANKS[rank], 0.45), "edgecolor": RANKS[rank]}
            axes.add_patch(plt.Rectangle((left + 0.4, low), width - 0.8, 0.9, **looks))
            words = f"rank {rank}"
            axes.text(left + width / 2, low + 0.42, words, ha="center", va="center", size=9.5, color=DARK)
            begin = (5.6 + 1.6 * rank, bottom + 6.65)
            target = left + width / 2
            if not own_device:
                target = left + 0.7 + 0.85 * rank
            arrow(axes, begin, (target, bottom + 5.35), colour=RANKS[rank])
    picture(
        f"{ranks} GPUs, and where each of {ranks} ranks loads a tensor whose tag is {tag}. Above, without "
        f"map_location, all {ranks} copies are on {tag}. Below, with map_location, each rank has its copy on "
        "its own GPU."
    )


def draw_ports():
    """Two runs whose stores want one port, and a third run that takes a free port."""
    axes = canvas(4.8, 3.6, across=16, down=11.8)
    runs = (
        (9.4, "another run", GREY, 8.0, INK),
        (5.6, "torchrun,\nolder version", RED, 8.0, RED),
        (1.8, "torchrun\n--standalone", GREEN, 2.8, GREEN),
    )
    for middle, name, colour, port, ink in runs:
        box(axes, 0.1, middle - 1.1, 5.6, 2.2, name, colour=colour, size=9.5)
        arrow(axes, (5.8, middle), (10.2, port), colour=ink)
    ports = ((8.0, "port 29500, taken", GREY), (2.8, "a free port", GREEN))
    for middle, words, colour in ports:
        looks = {"facecolor": tile(colour, 0.35), "edgecolor": colour}
        axes.add_patch(plt.Rectangle((10.3, middle - 1.1), 5.5, 2.2, lw=1.5, **looks))
        axes.text(13.05, middle - 0.05, words, ha="center", va="center", size=9.5, color=DARK)
    axes.plot(8.0, 6.8, "x", color=RED, ms=11, mew=3)
    axes.text(13.05, 5.5, "address already\nin use", ha="center", va="center", size=9.5, color=RED_INK)
    picture(
        "The store of another run listens on port 29500. An older torchrun, whose store wants the same port, "
        "fails: the address is already in use. With --standalone, torchrun's store gets a free port."
    )


def draw_saving(sizes):
    """What the file holds while first rank 0 and then rank 1 save to it, and its size at these moments."""
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
        words += f"\n{sizes[number]}\nbytes"
        axes.text(left + 2, 4.1, words, ha="center", va="center", size=10, color=colour)
        if number:
            arrow(axes, (left - 1.5, 4.1), (left - 0.1, 4.1))
    axes.plot(8, 1.75, "x", color=RED, ms=10, mew=3)
    axes.text(8, 0.7, "a kill here loses the weights", ha="center", va="center", size=10, color=RED_INK)
    axes.text(2.4, 1.75, "complete", ha="center", va="center", size=10, color=GREEN_INK)
    axes.text(13.6, 1.75, "complete", ha="center", va="center", size=10, color=GREEN_INK)
    picture(
        f"One file at three moments: rank 0 has saved, and the file holds the weights, {sizes[0]} bytes; "
        f"rank 1 opens the file, which is now empty, {sizes[1]} bytes; rank 1 has saved, and the file is "
        f"complete again, {sizes[2]} bytes. A kill at the second moment loses the weights."
    )
