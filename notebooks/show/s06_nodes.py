"""Notebook 06 watches two torchrun launchers: what they print, and when."""

import json
import os
import re
import socket
import time

import matplotlib.pyplot as plt

from show.pictures import BLUE, INK, ORANGE, RED, SKY, curves, picture, timeline
from show.processes import folded

WORTH_A_LINE = re.compile(r"(epoch|resumed|told to stop|error: |\w*Error: )")


class Watch:
    """Prints the lines of the launchers that matter, with the seconds since it began."""

    def __init__(self):
        self.began = time.monotonic()
        self.launchers = {}
        self.events = []  # of each event: the seconds, the node, the line

    def now(self):
        return time.monotonic() - self.began

    def say(self, text):
        print(folded(f"{self.now():5.1f} s  {text}"), flush=True)
        return self.now()

    def until(self, enough, limit=100):
        """Watch until `enough()` is true. It is an error if no line comes for `limit` seconds."""
        last = self.now()
        done = False
        try:
            while not done:
                assert self.now() < last + limit, "nothing more happens"
                time.sleep(0.02)
                done = enough()
                for node, launcher in self.launchers.items():
                    while not launcher.news.empty():
                        self.note(node, launcher.news.get() or "")
                        last = self.now()
        except BaseException:  # the notebook was interrupted or failed: leave nothing running
            self.end()
            raise

    def note(self, node, line):
        if WORTH_A_LINE.match(line):
            line = re.sub(r"\[.*\] ", "", line.strip()).split(". ")[0]
            self.events.append((self.now(), node, line))
            self.say(f"node {node} | {line}")

    def first(self, words, after=0):
        """The seconds at which a line first began with these words, after so many seconds."""
        for seconds, _, line in self.events:
            if line.startswith(words) and seconds > after:
                return seconds
        raise LookupError(f"no line began with {words!r}")

    def end(self):
        """Kill all launchers and their processes with SIGKILL."""
        for launcher in self.launchers.values():
            launcher.end()
        return self.now()


def draw_moments(watch, rows, killed, returned, told, ended):
    """Above, what each node did; below, how many processes trained together. Node 1 was killed and returned;
    then node 0's process was told to end. Returns the seconds without training after the kill and after the
    return."""
    ends = {}
    for seconds, _, line in watch.events:
        if line.startswith("epoch"):
            ends[int(line.split()[1])] = seconds
    began = ends[1] - 6000 / rows[0]["images_per_second"]  # an epoch has 6,000 images
    alone = watch.first("resumed", killed)
    both = watch.first("resumed", told)
    starts, trains, waits = "starts", "trains", "waits, starts again"
    training = [(began, killed, trains), (alone, told, trains), (both, ended, trains)]
    pauses = [(0, began, starts), (killed, alone, waits), (told, both, waits)]
    returning = [(returned, told, starts), (told, both, waits), (both, ended, trains)]
    bars = {"node 0": [*training, *pauses], "node 1": [*training[:1], *pauses[:1], *returning]}

    _, (above, below) = plt.subplots(2, 1, figsize=(5, 4.2), sharex=True, height_ratios=[1, 1.5])
    timeline(above, bars, {starts: SKY, trains: BLUE, waits: ORANGE}, unit="")
    times = [0, began, killed, alone, told, both, ended]
    below.step(times, [0, 2, 0, 1, 0, 2, 2], where="post", color=BLUE, lw=2)
    for row in rows:
        if row["epoch"] in ends:
            below.plot(ends[row["epoch"]], row["world_size"], "o", color=INK, ms=5)
    for moment, text in ((killed, "node 1\nis killed"), (returned, "node 1 is\nstarted again")):
        for axes in (above, below):
            axes.axvline(moment, color=RED, ls="--", lw=1.2)
        below.text(moment + 0.3, 2.2, text, color=RED, size=10)
    below.set(yticks=[0, 1, 2], ylim=(-0.15, 3.1), xlabel="seconds since the launchers were started")
    below.set_ylabel("processes that\ntrain together")
    picture(
        f"Both nodes train until node 1 is killed after {killed:.0f} s. Node 0 waits until {alone:.0f} s "
        f"and then trains alone. Node 1 is started again after {returned:.0f} s. Node 0 continues until it "
        f"is told to stop after {told:.0f} s, and from {both:.0f} s both nodes train together."
    )
    return alone - killed, both - told


def draw_one_curve(rows, reference, lost, back):
    """The loss of two nodes, drawn on lesson 01's loss. The nodes resumed after epochs `lost` and `back`."""
    _, axes = plt.subplots(figsize=(5, 3.4))
    curves(axes, {"lesson 01, one process": reference, "two nodes, then one, then two": rows})
    axes.axvspan(lost, back, color=ORANGE, alpha=0.18, lw=0)
    for moment, text in ((lost, "node 1\nis killed"), (back, "node 1\nis back")):
        axes.axvline(moment, color=RED, ls="--", lw=1.2)
        axes.text(moment + 0.06, 0.95, text, color=RED, size=10)
    axes.text((lost + back) / 2, 1.6, "node 0\nalone", ha="center", size=10)
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.18))
    axes.set_title("Loss: a node is lost and comes back")
    picture(
        f"The loss over {len(rows)} epochs. The curve of the two nodes lies on the curve of lesson 01, even "
        f"after node 1 is killed after epoch {lost} and comes back after epoch {back}."
    )


def draw_batch_per_process(reference, rows, changed):
    """The loss of lesson 01, of lesson 06 on two nodes, and with a batch size per process on one process."""
    _, axes = plt.subplots(figsize=(5, 3))
    runs = {
        "lesson 01": reference,
        "lesson 06, on two nodes": rows,
        "60 per process, on one process": changed,
    }
    curves(axes, runs)
    axes.set_title("A smaller batch is a different run")
    picture(
        f"The loss over {len(changed)} epochs. Lesson 06 on two nodes has the curve of lesson 01. With 60 "
        f"images per process, on one process, the loss is lower: {changed[0]['loss']:.2f} instead of "
        f"{reference[0]['loss']:.2f} after the first epoch. It is a different run."
    )


def epochs(path):
    """The rows of a curve as far as a run has written them."""
    if not path.exists():
        return []
    return list(map(json.loads, path.read_text().splitlines()))


def own_gpus(count):
    """What each of two launchers gets as CUDA_VISIBLE_DEVICES: a GPU of its own, or the CPU."""
    if count < 2:
        return ["-1", "-1"]
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")[:2]


def free_address():
    """An address on this machine at which launchers can meet."""
    with socket.socket() as asking:
        asking.bind(("localhost", 0))
        return f"localhost:{asking.getsockname()[1]}"
