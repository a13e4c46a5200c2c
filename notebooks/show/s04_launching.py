"""Who starts whom: the processes of a command as the operating system sees them, and drawings of them."""

import json
import re
import time
from unittest import mock

import matplotlib.pyplot as plt
import torch

from show.pictures import DARK, GREY, INK, PINK, RANKS, arrow, box, canvas, picture, tile

TOLD = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def family(running):
    """The living processes of a command, the first one first: a name, and what its environment says."""
    found = []
    for process in running.tree():
        words = process.cmdline()
        environment = process.environ()
        if "RANK" in environment:
            name = f"rank {environment['RANK']}"
        elif "torch.distributed.run" in words:  # the module that torchrun starts
            name = "torchrun"
        elif "resource_tracker" in " ".join(words):
            name = "tracker"
        elif "spawn_main" in " ".join(words):
            name = "a child"
        else:
            name = "the parent"
        says = [f"{key}={environment[key]}" for key in TOLD if key in environment]
        found.append((name, says or ["no RANK"]))
    return found


def list_processes(running, folder, count):
    """Wait until `count` processes have written their environment into the folder, list all processes of the
    command, and let them end. Returns the names of the processes and the environments, by rank."""
    while len(list(folder.glob("*.json"))) < count and running.code is None:
        time.sleep(0.05)
    names = [name for name, _ in family(running)]
    (folder / "go").touch()
    running.follow()
    environments = []
    for rank in range(count):
        environments.append(json.loads((folder / f"{rank}.json").read_text()))
    return sorted(names), environments


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
    """Which keys the store has when, and which rank waits: what each rank has noted, in seconds."""
    _, axes = plt.subplots(figsize=(4.8, 3.1))
    end = max(moment["has all"] for moment in moments)
    rows = []
    said = []
    for rank, moment in enumerate(moments):
        sets = moment["sets"]
        waits = moment["has all"] - sets
        rows += [f"rank {rank}", f"key of rank {rank}"]
        busy = {"facecolor": "none", "edgecolor": GREY, "ls": ":"}
        axes.barh(2 * rank, sets, height=0.6, **busy)
        axes.barh(2 * rank, waits, left=sets, height=0.6, color=tile(RANKS[rank], 0.55))
        axes.barh(2 * rank + 1, 1.25 * end - sets, left=sets, height=0.6, color=tile(GREY, 0.55))
        axes.plot((sets, sets), (2 * rank, 2 * rank + 1), color=INK, lw=1.4)
        words = "in the store"
        if sets > end / 2:
            axes.text(sets / 2, 2 * rank, "busy", ha="center", va="center", size=10)
            words = "there"
        if waits > end / 2:
            middle = sets + waits / 2
            axes.text(middle, 2 * rank, "waits", ha="center", va="center", size=10, color=DARK)
        middle = (sets + 1.25 * end) / 2
        axes.text(middle, 2 * rank + 1, words, ha="center", va="center", size=10, color=DARK)
        said.append(f"rank {rank} sets its key after {sets:.1f} s and waits {waits:.1f} s")
    axes.axvline(max(moment["sets"] for moment in moments), color=INK, lw=1.4, ls=":")
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set(xlabel="seconds", xlim=(-0.02 * end, 1.27 * end))
    picture(
        f"When each rank sets its key in torchrun's store, and how long it waits: {'; '.join(said)}. "
        "A rank waits until the last key is there."
    )


def draw_launcher():
    """One command, the launcher, two processes."""
    axes = canvas(4.7, 4.6, across=10, down=10)
    box(
        axes, 1.6, 8.3, 6.8, 1.6, "your terminal", "torchrun --standalone\n--nproc-per-node 2 script.py", GREY
    )
    duties = "starts the processes, watches them,\nstops them, hosts the store\nwhere they find each other"
    box(axes, 0.9, 4.9, 8.2, 2.2, "torchrun", duties, PINK)
    arrow(axes, (5, 8.25), (5, 7.15))
    for rank, left in ((0, 0.1), (1, 5.9)):
        duties = f"GPU {rank} or the CPU\na model and an optimizer\n60 of 120 images"
        if rank == 0:
            duties += "\nprints and saves"
        box(axes, left, 0.3, 4, 2.9, f"process {rank}", duties, RANKS[rank])
        start = (4 + 2 * rank, 4.85)
        end = (2.1 + 5.8 * rank, 3.25)
        arrow(axes, start, end, f"RANK={rank}", at=(-1.4 + 2.8 * rank, -0.1), size=9)
    arrow(axes, (4.15, 1.5), (5.85, 1.5), both=True)
    axes.text(5, 1.8, "averaged\ngradients", size=9, ha="center")
    picture(
        "Your terminal starts torchrun. torchrun starts processes 0 and 1 and gives each its RANK. Each "
        "process has a model and takes 60 of 120 images. The processes average gradients without torchrun."
    )


def draw_families(families):
    """For each title a family: the parent above, its children below."""
    axes = canvas(4.7, 5.6, across=10, down=7 * len(families))
    alt = []
    for number, (title, (parent, *children)) in enumerate(families.items()):
        bottom = 7 * (len(families) - 1 - number)
        axes.text(0.1, bottom + 6.1, title, weight="bold", size=10)
        box(axes, 3.3, bottom + 4, 3.4, 1.7, parent[0], "\n".join(parent[1]), PINK)
        width = 10 / len(children)
        for place, (name, says) in enumerate(children):
            colour = RANKS[int(name[-1])] if name.startswith("rank") else GREY
            box(axes, place * width + 0.1, bottom + 0.2, width - 0.2, 2.7, name, "\n".join(says), colour)
            arrow(axes, (5, bottom + 3.95), ((place + 0.5) * width, bottom + 2.95))
        below = [f"{name} ({', '.join(says)})" for name, says in children]
        alt.append(f"{title}: {parent[0]} ({', '.join(parent[1])}), and below it {'; '.join(below)}.")
    picture(f"Two trees of processes. {' '.join(alt)}")
