"""Notebook 03a: pictures of a server and a ring, step by step, and what its scripts measured."""

import shutil
import statistics
from pathlib import Path

import matplotlib.pyplot as plt
import numpy

from show.pictures import BLUE, DARK, INK, RANKS, RED, arrow, picture, tile


def copy_scripts(out):
    """Copy the notebook's scripts into the folder of the files that its cells write."""
    shutil.copytree(Path(__file__).with_name("travel"), out, dirs_exist_ok=True)


def play(world_size, steps, chunks=None):
    """Which ranks have been added up in which chunk of which process: at the start, and after each step. A
    step is a list of moves: (from rank, to rank, chunk, "add" or "replace"). There is one chunk per process
    unless `chunks` says otherwise."""
    chunks = chunks or world_size
    holds = [[{rank}] * chunks for rank in range(world_size)]
    states = [holds]
    for moves in steps:
        before = holds
        holds = list(map(list, before))
        for source, target, chunk, kind in moves:
            moved = before[source][chunk]
            there = before[target][chunk]
            if kind == "replace":
                holds[target][chunk] = moved
            else:
                assert not moved & there, "counted twice"
                holds[target][chunk] = moved | there
        states.append(holds)
    for column in holds:
        for added in column:
            assert len(added) == world_size, "not everyone has the sum"
    return states


def all_gather(world_size):
    """The steps of a ring's second half. They are here, not in the notebook: the exercise asks for them."""
    steps = []
    for number in range(world_size - 1):
        moves = []
        for rank in range(world_size):
            right = (rank + 1) % world_size
            chunk = (rank + 1 - number) % world_size  # first the chunk that the first half has completed
            moves.append((rank, right, chunk, "replace"))
        steps.append(moves)
    return steps


def draw(world_size, steps, names):
    """A panel for each step: the first half of the steps on the left, the second on the right."""
    states = play(world_size, steps)
    half = world_size - 1
    size = (4.2, 0.6 + (0.45 + 0.24 * world_size) * world_size)
    figure, grid = plt.subplots(world_size, 2, figsize=size, squeeze=False, layout="constrained")
    figure.suptitle(f"{world_size} processes", size=11, weight="bold")
    figure.get_layout_engine().set(h_pad=0.08)  # the ranks' numbers belong to the panel above them
    panel(grid[0, 0], states[0], [], "start")
    for number, (holds, moves) in enumerate(zip(states[1:], steps, strict=True)):
        column, row = divmod(number, half)
        panel(grid[row + 1, column], holds, moves, f"{names[column]} {row + 1}")
    hint = ["column: process (rank)", "row, colour: chunk", "digits: whose are in it", "Σ: the sum of all"]
    grid[0, 1].text(0.5, 0.5, "\n".join(hint), ha="center", va="center", size=9.5)
    grid[0, 1].axis("off")


def draw_server(world_size, steps):
    draw(world_size, steps, ["collect", "hand out"])
    half = world_size - 1
    picture(
        f"A parameter server with {world_size} processes, in {len(steps)} steps. In the first {half} steps, "
        f"rank 0 adds up the gradients of all other ranks. In the last {half}, it sends the sum to each of "
        "them. In every step, only two processes have work."
    )


def draw_ring(world_size, steps):
    """For show.slider: draws, and returns the alt text."""
    draw(world_size, steps, ["reduce-scatter", "all-gather"])
    return (
        f"A ring of {world_size} processes, in {len(steps)} steps. In every step, each process sends one "
        "chunk to the right. After half of the steps, each process has the sum of one chunk. At the end, "
        "each process has all sums."
    )


def panel(axes, holds, moves, title):
    """What each process holds, with a frame around what has just arrived."""
    world_size = len(holds)
    arrived = set()
    pairs = set()
    for source, target, chunk, _ in moves:
        arrived.add((target, chunk))
        pairs.add((source, target))
    for rank, column in enumerate(holds):
        for chunk, added in enumerate(column):
            done = len(added) == world_size
            face = tile(RANKS[chunk], 0.15 + 0.45 * (len(added) - 1) / (world_size - 1))
            frame = {"edgecolor": INK, "lw": 1.6} if (rank, chunk) in arrived else {"lw": 0}
            axes.add_patch(plt.Rectangle((rank - 0.36, chunk - 0.4), 0.72, 0.8, facecolor=face, **frame))
            text = "Σ" if done else "".join(map(str, sorted(added)))
            weight = "bold" if done else "normal"
            axes.text(rank, chunk, text, ha="center", va="center", size=9, weight=weight, color=DARK)
    if len(pairs) == 1:  # one sends to one other: an arrow above the columns
        ((source, target),) = pairs
        arrow(axes, (source, -0.5), (target, -0.5), bend=-0.2 if target > source else 0.2)
    else:  # each process sends to the right, and the last one to the first
        for source, target, chunk, _ in moves:
            axes.plot([source + 0.5, target - 0.5], [chunk, chunk], ">", color=INK, ms=4)
    axes.set(xlim=(-0.75, world_size - 0.25), ylim=(world_size - 0.5, -1.1))
    axes.set_xticks(range(world_size), range(world_size), size=9)
    axes.set_yticks([])
    axes.tick_params(length=0, pad=1)
    axes.spines[:].set_visible(False)
    axes.set_title(title, size=10, loc="center", pad=2)


def draw_through(counted):
    """Bytes through the server and through each process of the ring: {world size: (server, ring)}, in K."""
    _, axes = plt.subplots(figsize=(4.2, 3.2))
    sizes = numpy.arange(2, 9)
    axes.plot(sizes, 2 * (sizes - 1), color=RED, label="the server")
    axes.plot(sizes, 4 * (sizes - 1) / sizes, color=BLUE, label="each process of the ring")
    for world_size, (server, ring) in counted.items():
        axes.plot(world_size, server, "s", color=RED, ms=9, mfc="none", mew=2)
        axes.plot(world_size, ring, "o", color=BLUE, ms=6)
    axes.set(xlabel="number of processes, N", ylabel="bytes through it, in K", ylim=0)
    axes.set_title("Lines: formula. Marks: counted")
    axes.legend()
    picture(
        "Bytes through a process, for 2 to 8 processes. The server's line, 2 (N-1) K, grows without limit: "
        "14 K with 8 processes. The ring's line, 4 (N-1) K / N, stays below 4 K. What was counted lies on "
        "the lines."
    )


def draw_wires(shares):
    """For each way, how much each rank has sent to each other rank, in K: a list of lists, [from][to]."""
    _, grid = plt.subplots(len(shares), 1, figsize=(3.4, 2 * len(shares)))
    for axes, (way, share) in zip(grid, shares.items(), strict=True):
        ranks = range(len(share))
        for source in ranks:
            for target in ranks:
                if share[source][target] > 0.005:
                    face = tile(RANKS[0], 0.1 + 0.15 * min(share[source][target], 2))
                    place = (target - 0.48, source - 0.46)
                    axes.add_patch(plt.Rectangle(place, 0.96, 0.92, facecolor=face, lw=0))
                    words = f"{share[source][target]:.2f} K"
                    axes.text(target, source, words, ha="center", va="center", color=DARK)
        axes.set(xlim=(-0.5, len(share) - 0.5), ylim=(len(share) - 0.5, -0.5), title=way)
        axes.set(xlabel="to rank", ylabel="from rank", xticks=ranks, yticks=ranks)
        between = numpy.arange(len(share) - 1) + 0.5
        axes.set_xticks(between, minor=True)
        axes.set_yticks(between, minor=True)
        axes.grid(which="minor", lw=0.4)
        axes.tick_params(which="both", length=0)


def picture_of_wires(shares):
    """The same from tensors of [from, to], as a picture with its alt text."""
    draw_wires({way: share.tolist() for way, share in shares.items()})
    words = []
    for way, share in shares.items():
        sent = []
        for source, row in enumerate(share.tolist()):
            for target, part in enumerate(row):
                if part > 0.005:
                    sent.append(f"{source} to {target} {part:.2f} K")
        words.append(f"{way}: {', '.join(sent)}")
    picture(f"How much each rank has sent to each other rank. {'; '.join(words)}.")


def medians(race):
    """The median seconds of each way for each size in bytes, from what race.py measured."""
    medians_of = {}
    for way, sizes in race.items():
        medians_of[way] = {}
        for size, found in sizes.items():
            medians_of[way][int(size)] = statistics.median_high(found["seconds"])
    return medians_of


def in_words(size):
    if size >= 2**20:
        return f"{size // 2**20} MiB"
    return f"{size // 2**10} KiB"
