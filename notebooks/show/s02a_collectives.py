"""Processes that run the lines of code that a cell sends them, and pictures of what they hold."""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from show.paths import RANK_SCRIPTS
from show.pictures import DARK, GREY, INK, ORANGE, RANKS, picture, tile
from show.processes import Running
from tools.testbed.command_environment import python_path

WIDTH = 3.45  # inches: 380 pixels, so that a phone shows the picture as large as it is
LONG = 0.25  # seconds: half of how late a rank comes
WAIT = tile(ORANGE, 0.55)


class Ranks:
    """Real processes, one per rank. The first line starts them, and so does the line after an error."""

    def __init__(self, world_size=4, limit=5):
        self.world_size = world_size
        self.limit = limit
        self.running = []
        self.lines = {}  # {name of the picture: line}

    def start(self):
        self.folder = tempfile.TemporaryDirectory()
        store = Path(self.folder.name) / "store"
        for rank in range(self.world_size):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(self.world_size),
                "STORE": str(store),
                "LIMIT": str(self.limit),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": python_path(RANK_SCRIPTS),
            }
            words = [sys.executable, str(Path(__file__).with_name("s02a_rank.py"))]
            self.running.append(Running(words, environment, stdin=subprocess.PIPE))
        for rank in range(self.world_size):
            self.hear(rank, "ready")
        self.tell("begin")

    def tell(self, text):
        for one in self.running:
            one.process.stdin.write(text + "\n")
            one.process.stdin.flush()

    def hear(self, rank, beginning):
        """The next line of a rank that begins with these words. Other lines are skipped."""
        deadline = time.monotonic() + 60
        while (line := self.running[rank].next(deadline)) is not None:
            if line.startswith(beginning):
                return line
        self.close()
        raise RuntimeError(f"rank {rank} ended or printed nothing for a minute: run the cell again")

    def run(self, line, before="tensor", after="tensor", late=None, seconds=0.5, size=1):
        """Let all ranks run the line. Returns what each held before and after, how long it spent in the line,
        and the bytes that it moved. Rank `late` starts later; `size` is the size of a chunk, in numbers."""
        if not self.running:
            self.start()
        request = {"line": line, "before": before, "after": after, "late": late}
        self.tell(json.dumps(request | {"seconds": seconds, "size": size}))
        answers = []
        errors = []
        for rank in range(self.world_size):
            answer = json.loads(self.hear(rank, "{"))
            answers.append(answer)
            if "error" in answer:
                errors.append(f"rank {rank}: {answer['error']}")
        if errors:
            self.close()  # a rank that is still in a collective would answer the next line
            raise RuntimeError("\n".join(errors))
        return answers

    def picture(self, name, line, before="tensor", after="tensor"):
        """Let all ranks run the line, draw what they hold before and after, and return the latter."""
        self.lines[name] = line
        answers = self.run(line, before, after)
        held_before = [one["before"] for one in answers]
        held_after = [one["after"] for one in answers]
        picture(f"{name}. {describe(held_before, held_after)}", draw_held(held_before, held_after))
        return held_after

    def picture_of_time(self, name, line, late):
        """Let all ranks run the line, one of them late. Draw and return how long each was in the line."""
        self.lines[name] = line
        waited = self.wait(line, late)
        said = [f"rank {rank} {seconds:.1f} s" for rank, seconds in enumerate(waited)]
        alt = f"{name}. Rank {late} is half a second late. Time in the line: {', '.join(said)}"
        picture(alt, draw_time(waited, late))
        return waited

    def wait(self, line, late):
        """How many seconds each rank spends in the line when one of them is late."""
        return [one["waited"] for one in self.run(line, "None", "None", late=late)]

    def count(self, line, size=65_536):
        """(sent, received) of each rank, in K, the size of `tensor`; None if the system has no counters."""
        whole = torch.float32.itemsize * size * self.world_size
        moved = []
        for answer in self.run(line, "None", "None", size=size):
            if answer["moved"] is None:
                return None
            sent, received = answer["moved"]
            moved.append([sent / whole, received / whole])
        return moved

    def close(self):
        for one in self.running:
            one.process.stdin.close()  # rank.py ends when nothing more can come
        for one in self.running:
            one.reader.join(self.limit + 5)
            one.end()
        if self.running:
            self.folder.cleanup()
        self.running = []


def place(column, rank):
    """(row, number) of each chunk that a rank holds. A single chunk is in the row of its rank."""
    if column is None:
        return []
    if len(column) == 1:
        return [(rank, column[0])]
    return list(enumerate(column))


def draw_held(before, after):
    """A column for each rank and a row for each chunk. The digits of a number determine its colour."""
    world_size = len(before)
    figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 1.75), layout="constrained")
    figure.get_layout_engine().set(wspace=0.12)
    for axes, columns, title in zip(panels, (before, after), ("before", "after"), strict=True):
        for rank, column in enumerate(columns):
            for row, number in place(column, rank):
                draw_chunk(axes, rank, row, number, world_size)
        axes.set(xlim=(-0.5, world_size - 0.5), ylim=(world_size - 0.5, -0.5))
        axes.set_xticks(range(world_size), range(world_size), size=9)
        axes.set_yticks([])
        axes.tick_params(length=0, pad=1)
        axes.spines[:].set_visible(False)
        axes.set_title(title, size=9, loc="center", pad=3)
        axes.set_xlabel("rank", size=9, labelpad=1)
    return figure


def draw_chunk(axes, rank, row, number, world_size):
    digits = str(number).replace("0", "")
    edge = {"edgecolor": GREY, "lw": 0.8, "ls": ":"}
    face = "none"
    if digits:  # the digit says which chunk it is, the number of digits how many were added up
        strength = 0.3 + 0.45 * (len(digits) - 1) / (world_size - 1)
        face = tile(RANKS[int(digits[0]) - 1], strength)
        edge = {"lw": 0}
    axes.add_patch(plt.Rectangle((rank - 0.46, row - 0.42), 0.92, 0.84, facecolor=face, **edge))
    weight = "bold" if len(digits) == world_size else "normal"
    axes.text(rank, row, number or "", ha="center", va="center", size=8.5, weight=weight, color=DARK)


def describe(before, after):
    """The alt text of the picture."""
    words = []
    for when, columns in (("before", before), ("after", after)):
        held = []
        for rank, column in enumerate(columns):
            chunks = " ".join(map(str, column)) if column else "nothing"
            held.append(f"rank {rank} {chunks}")
        words.append(f"{when}: {', '.join(held)}")
    return "What each rank holds " + "; ".join(words)


def draw_time(waited, late, seconds=0.5):
    """A bar for each rank, from its call to its return."""
    figure, axes = plt.subplots(figsize=(WIDTH, 1.6), layout="constrained")
    for rank, length in enumerate(waited):
        start = seconds if rank == late else 0
        if rank == late:
            axes.barh(rank, start, height=0.6, facecolor="none", edgecolor=GREY, ls=":")
            axes.text(start / 2, rank, "not there yet", ha="center", va="center", size=9)
        axes.barh(rank, length, left=start, height=0.6, color=WAIT)
        if rank != late:
            axes.text(length / 2, rank, "waits", ha="center", va="center", size=9, color=DARK)
    names = [f"rank {rank}" for rank in range(len(waited))]
    axes.set_yticks(range(len(waited)), names, size=9)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=9)
    axes.set_xlabel("seconds", size=9, labelpad=1)
    return figure


def draw_waits(waits):
    """A row for each collective, and a panel for each late rank: how long each rank was in the line."""
    lates = list(next(iter(waits.values())))
    size = (WIDTH, 0.6 + 0.24 * len(waits))
    options = {"figsize": size, "sharey": True, "squeeze": False, "layout": "constrained"}
    figure, panels = plt.subplots(1, len(lates), **options)
    for axes, late in zip(panels[0], lates, strict=True):
        for row, seconds in enumerate(waits.values()):
            for rank, waited in enumerate(seconds[late]):
                face, ink = (WAIT, DARK) if waited > LONG else ("none", INK)
                axes.add_patch(plt.Rectangle((rank - 0.46, row - 0.42), 0.92, 0.84, facecolor=face, lw=0))
                colour, text = (GREY, "late") if rank == late else (ink, f"{waited:.1f}")
                axes.text(rank, row, text, ha="center", va="center", size=8.5, color=colour)
        world_size = len(seconds[late])
        axes.set(xlim=(-0.5, world_size - 0.5), ylim=(len(waits) - 0.5, -0.5))
        axes.set_xticks(range(world_size), range(world_size), size=9)
        axes.set_yticks(range(len(waits)), list(waits), size=9)
        axes.tick_params(length=0, pad=1)
        axes.spines[:].set_visible(False)
        axes.tick_params(axis="y", pad=4)
        axes.set_title(f"rank {late} is late", size=9, loc="center", pad=3)
        axes.set_xlabel("rank", size=9, labelpad=1)
    return figure


def who_waits(seconds):
    """The ranks that waited in the line."""
    return [rank for rank, waited in enumerate(seconds) if waited > LONG]


def picture_of_waits(waits):
    words = []
    for name, panels in waits.items():
        for late, seconds in panels.items():
            waiting = " and ".join(map(str, who_waits(seconds))) or "nobody"
            words.append(f"{name}: {waiting} for rank {late}")
    picture("Which ranks wait. " + "; ".join(words), draw_waits(waits))
