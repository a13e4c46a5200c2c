"""Notebook 04: names for the processes of a command, its lines, and drawings of who starts whom."""

import re
from unittest import mock

import matplotlib.pyplot as plt
import torch

from show.pictures import DARK, GREY, INK, RANKS, arrow, box, canvas, picture, tile
from show.rank_inks import INK_OF_RANK

TOLD = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
WAITS = {"facecolor": "none", "edgecolor": INK, "hatch": "....", "lw": 0.8}  # in all pictures of notebook 04


def name_of(process):
    """What a process of a command is, as its environment and its command line show."""
    words = process.cmdline()
    rank = process.environ().get("RANK")
    if rank is not None:
        return f"rank {rank}"
    if "torch.distributed.run" in words:  # the module that torchrun starts
        return "torchrun"
    if "resource_tracker" in " ".join(words):
        return "tracker"
    if "spawn_main" in " ".join(words):
        return "a child"
    return "the parent"


def all_lines(running):
    """Wait until a command ends, without showing what it writes. Returns its lines."""
    running.reader.join(120)
    running.end()
    return running.text.splitlines()


def report(running):
    """Print torchrun's report, shortened. What the processes themselves wrote comes before it."""
    lines = all_lines(running)
    for line in lines[lines.index("Failures:") :]:
        line = re.sub(r"\[\S*/gloo/\S*\] ", "", line)  # a line of PyTorch's own source
        if re.match(r"\S|  (rank|exitcode)|  \w*Error:|.*Signal", line):
            print(line.split(". ")[0].rstrip())


def save_as_on_gpu_0(state, path):
    """Save tensors of the CPU with the tag that tensors on GPU 0 have. No GPU is needed for it."""
    with mock.patch.object(torch.serialization, "location_tag", lambda storage: "cuda:0"):
        torch.save(state, path)


def draw_store(moments):
    """Two ranks and their keys in the store, with what each rank has noted: when it set its own key and when
    it had both keys, in seconds."""
    figure, axes = plt.subplots(figsize=(4.8, 3.8))
    end = 1.5 * max(moment["has all"] for moment in moments)
    said = []
    for rank, moment in enumerate(moments):
        row = 3 * rank
        key = 1.2 + 0.6 * rank
        sets, waits = moment["sets"], moment["has all"] - moment["sets"]
        axes.barh(row, sets, height=0.55, color=tile(RANKS[rank], 0.55))
        axes.barh(row, waits, left=sets, height=0.55, **WAITS)
        axes.barh(key, end - sets, left=sets, height=0.5, color=tile(RANKS[rank], 0.3))
        middle = (sets + end) / 2
        axes.text(middle, key, f"key of rank {rank}", ha="center", va="center", size=10, color=DARK)
        if sets > end / 3:
            axes.text(sets / 2, row, "busy", ha="center", va="center", size=10, color=DARK)
        said.append(f"rank {rank} sets its key after {sets:.1f} s and waits {waits:.1f} s")
    axes.add_patch(plt.Rectangle((0, 0.88), end, 1.24, facecolor="none", edgecolor=GREY, lw=1.5))
    draw_call(axes, moments[0]["sets"], 0.3, 0.86, RANKS[0])
    last = moments[1]["sets"]
    draw_call(axes, last, 2.7, 2.14, RANKS[1])
    draw_call(axes, last, 0.86, 0.3, INK)
    axes.text(0.06, 0.58, "set", va="center", size=9.5, color=INK_OF_RANK[0])
    axes.text(last + 0.06, 2.42, "set", va="center", size=9.5, color=INK_OF_RANK[1])
    axes.text(last + 0.06, 0.58, "get returns", va="center", size=9.5)
    axes.set_yticks([0, 1.5, 3], ["rank 0", "store, in\ntorchrun", "rank 1"])
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set(xlabel="seconds", xlim=(-0.05, end + 0.02))
    mark = plt.Rectangle((0, 0), 1, 1, **WAITS)
    figure.legend([mark], ["waits in store.get"], loc="outside upper center", handlelength=1.5)
    picture(
        f"When each rank sets its key in torchrun's store, and how long it waits: {'; '.join(said)}. "
        "A rank waits until the last key is there."
    )


def draw_call(axes, moment, begin, end, colour):
    """An arrow down or up, from a rank to the store or back."""
    looks = {"arrowstyle": "-|>", "color": colour, "lw": 1.6, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (moment, end), (moment, begin), arrowprops=looks)


def draw_launcher():
    """One command, the launcher with its store, and two processes with their environments."""
    axes = canvas(4.7, 5.6, across=10, down=12.2)
    command = "torchrun --standalone\n--nproc-per-node 2 script.py"
    box(axes, 1.6, 10.5, 6.8, 1.6, "your terminal", command, GREY)
    arrow(axes, (5, 10.45), (5, 9.55))

    box(axes, 0.9, 6.5, 8.2, 3.0, "torchrun", " ", GREY)
    axes.text(5, 8.35, "starts the processes, watches them,\nstops them, hosts the store", **WORDS)
    draw_tile(axes, 1.3, 6.75, 7.4, 0.9, "store: where the processes find each other", GREY)

    for rank, left in ((0, 0.1), (1, 5.6)):
        box(axes, left, 0.8, 4.3, 4.5, f"process {rank}", " ", RANKS[rank])
        told = f"RANK={rank}\nLOCAL_RANK={rank}\nWORLD_SIZE=2"
        draw_tile(axes, left + 0.3, 2.8, 3.7, 1.65, told, RANKS[rank])
        duties = "model, optimizer\n60 of 120 images"
        if rank == 0:
            duties += "\nprints and saves"
        axes.text(left + 2.15, 1.8, duties, **WORDS)
        arrow(axes, (left + 2.15, 6.45), (left + 2.15, 5.35))
    axes.text(5, 5.85, "environments", **WORDS)
    arrow(axes, (4.45, 1.8), (5.55, 1.8), both=True)
    axes.text(5, 0.35, "averaged gradients", **WORDS)
    picture(
        "Your terminal starts torchrun, which hosts the store. torchrun starts processes 0 and 1 and gives "
        "each an environment with its own RANK and LOCAL_RANK and the same WORLD_SIZE. Each process has a "
        "model and an optimizer and takes 60 of 120 images. The processes average gradients without torchrun."
    )


WORDS = {"ha": "center", "va": "center", "size": 9, "linespacing": 1.35}


def draw_tile(axes, left, bottom, width, height, words, colour):
    """Something that is inside a box."""
    looks = {"facecolor": tile(colour, 0.45), "edgecolor": colour}
    axes.add_patch(plt.Rectangle((left, bottom), width, height, **looks))
    axes.text(left + width / 2, bottom + height / 2, words, color=DARK, **WORDS)


def draw_families(families):
    """For each title a family: the parent above, its children below. Of each process, its name and its
    environment."""
    axes = canvas(4.7, 5.6, across=10, down=7 * len(families))
    alt = []
    for number, (title, processes) in enumerate(families.items()):
        bottom = 7 * (len(families) - 1 - number)
        axes.text(0.1, bottom + 6.1, title, weight="bold", size=10)
        width = 10 / (len(processes) - 1)
        below = []
        for place, (name, environment) in enumerate(processes):
            told = [f"{key}={environment[key]}" for key in TOLD if key in environment]
            words = "\n".join(told) or "no RANK"
            said = f"{name} ({words})".replace("\n", ", ")
            if place == 0:
                box(axes, 3.3, bottom + 4, 3.4, 1.7, name, words, GREY)
                parent = said
                continue
            colour = RANKS[int(name[-1])] if name.startswith("rank") else GREY
            left = (place - 1) * width
            box(axes, left + 0.1, bottom + 0.2, width - 0.2, 2.7, name, words, colour)
            arrow(axes, (5, bottom + 3.95), (left + width / 2, bottom + 2.95))
            below.append(said)
        alt.append(f"{title}: {parent}, and below it {'; '.join(below)}.")
    picture(f"Two trees of processes. {' '.join(alt)}")


def draw_logs():
    """Where the lines of two ranks go with --tee 3."""
    axes = canvas(4.8, 5.8, across=16, down=19)
    axes.add_patch(plt.Rectangle((0.1, 11.1), 15.8, 4.0, facecolor="none", edgecolor=GREY, lw=1.5))
    axes.text(8, 14.5, "attempt_0/", weight="bold", ha="center", va="center", size=9.5)
    for rank in range(2):
        left = 0.1 + 8.1 * rank
        colour = RANKS[rank]
        box(axes, left, 17.4, 7.7, 1.5, f"rank {rank}", colour=colour, size=10)
        for number, stream in enumerate(("stdout", "stderr")):
            corner = left + 0.3 + 3.7 * number
            looks = {"facecolor": tile(colour, 0.45), "edgecolor": colour}
            axes.add_patch(plt.Rectangle((corner, 11.4), 3.4, 2.5, **looks))
            words = f"{rank}/\n{stream}.log"
            axes.text(corner + 1.7, 12.6, words, ha="center", va="center", size=9.5, color=DARK)
            arrow(axes, (corner + 1.7, 17.3), (corner + 1.7, 14.0), colour=colour)
            arrow(axes, (corner + 1.7, 11.3), (corner + 1.7, 9.7), colour=colour)
    axes.text(8, 16.2, "writes", ha="center", va="center", size=9.5)
    axes.text(8, 10.35, "reads", ha="center", va="center", size=9.5)
    words = "puts a prefix before each line"
    box(axes, 0.1, 7.2, 15.8, 2.4, "torchrun", words, GREY, 9.5)
    arrow(axes, (8, 7.1), (8, 6.3))
    axes.add_patch(plt.Rectangle((0.1, 0.2), 15.8, 6.0, facecolor="none", edgecolor=GREY, lw=1.5))
    axes.text(0.6, 5.5, "screen", weight="bold", size=9.5, va="center")
    bottom = 4.4
    for words in ("a line", "an error"):
        for rank in range(2):
            line = f"rank {rank} | {words} of rank {rank}"
            looks = {"family": "monospace", "color": INK_OF_RANK[rank], "size": 9.5, "va": "center"}
            axes.text(0.6, bottom, line, **looks)
            bottom -= 1.2
    picture(
        "Two ranks with --tee 3. Each rank writes its stdout and its stderr into two files of its own, in "
        "the folder attempt_0. torchrun reads the four files, puts a prefix before each line, and prints the "
        "four lines on the screen."
    )
