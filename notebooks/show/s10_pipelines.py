"""The pictures of notebook 10: who worked when, how long the processes waited, and what they held."""

import math
import os
import time

import matplotlib.pyplot as plt
import torch

from parts import timeline
from show.pictures import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    INK,
    ORANGE,
    RANKS,
    RED,
    SKY,
    YELLOW,
    arrow,
    box,
    canvas,
    picture,
)
from show.pictures import timeline as draw_timeline

LOOKS = {
    "naive": "like a staircase, one process works at a time",
    "gpipe": "all forwards come before all backwards",
    "1f1b": "forwards and backwards alternate",
    "interleaved": "each process has two stages, in dark and light colours",
}
COLOURS = {("forward", 0): BLUE, ("backward", 0): ORANGE, ("forward", 1): SKY, ("backward", 1): YELLOW}


def draw_stages(model, borders):
    """A box for each process with the layers of its stage, and what travels between neighbours."""
    axes = canvas(5, 2.8, 16, 7)
    names = [type(layer).__name__ for layer in model]
    ends = [*borders[1:], len(names)]  # each stage ends where the next one begins
    for rank, (first, end) in enumerate(zip(borders, ends, strict=True)):
        layers = "\n".join(names[first:end])
        box(axes, 0.2 + 4.1 * rank, 1.6, 3.2, 3.4, f"rank {rank}", layers, RANKS[rank])
        if rank < 3:
            arrow(axes, (3.3 + 4.1 * rank, 3.8), (4.4 + 4.1 * rank, 3.8), colour=BLUE)
            arrow(axes, (4.4 + 4.1 * rank, 2.6), (3.3 + 4.1 * rank, 2.6), colour=RED)
    axes.text(8, 6.2, "forward: activations  →", ha="center", color=BLUE)
    axes.text(8, 0.5, "←  backward: gradients of the activations", ha="center", color=RED)
    arrow(axes, (0.9, 6.1), (0.9, 5.0), "images", at=(0.2, 0.6), size=9)
    arrow(axes, (15.1, 6.1), (15.1, 5.0), "labels", at=(-0.2, 0.6), size=9)
    picture(
        f"Four boxes in a row, one for each rank, with the {len(names)} layers of the model divided among "
        "them. Activations go from left to right, their gradients from right to left, between neighbours."
    )


def draw_by_hand(moments):
    """One step on two devices, from the moments at which the work went from one to the other."""
    begin, middle, turn, back, end = [1000 * (moment - moments[0]) for moment in moments]
    rows = {
        "first device": [(begin, middle, "forward"), (back, end, "backward")],
        "second device": [(middle, turn, "forward"), (turn, back, "backward")],
    }
    _, axes = plt.subplots(figsize=(5, 1.9))
    draw_timeline(axes, rows, {"forward": BLUE, "backward": ORANGE})
    busy = (middle - begin + end - back) / end
    picture(
        f"One step over {end:.0f} ms. The first device computes the forward pass, then the second device "
        "the forward and the backward pass, then the first device the backward pass. The first works for "
        f"{busy:.0%} of the time, the second for {1 - busy:.0%}."
    )
    print(f"the first device works for {busy:.0%} of the step, the second for {1 - busy:.0%}")


def profile_layers(model, values, repeats=20):
    """The shortest time of some repeats, forward and backward, for each layer, in milliseconds.

    Each repeat goes through all layers, so that a moment in which the machine is busy does not count.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise the profiler prints messages
    shortest = [math.inf] * len(model)
    for _ in range(repeats):
        held, gradient = values, False  # images need no gradient
        for number, layer in enumerate(model):
            held = held.detach().clone().requires_grad_(gradient)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                result = layer(held)
                if result.requires_grad:
                    result.sum().backward()
            microseconds = sum(operator.self_cpu_time_total for operator in profiler.key_averages())
            shortest[number] = min(shortest[number], microseconds / 1000)
            held, gradient = result, result.requires_grad
    return shortest


def noting(moments, devices):
    """A function that appends the current moment to a list once the devices have finished their work."""

    def note(*_):
        for device in devices:
            timeline.finish_queued_work(torch.device(device))
        moments.append(time.perf_counter())

    return note


def draw_rows(axes, values, title, numbers=True):
    """A row for each process with its forwards and backwards. The second stage has lighter colours."""
    count = values["world_size"]
    whole = 0  # milliseconds from the first event to the end of the last
    for row in values["events"]:
        for event in row:
            whole = max(whole, 1000 * event["end"])

    places, names = [], []
    for rank, row in enumerate(values["events"]):
        places.append(-rank)
        names.append(f"rank {rank}")
        for event in row:
            begin = 1000 * event["begin"]
            length = 1000 * (event["end"] - event["begin"])
            colour = COLOURS[event["kind"], event["stage"] // count]
            axes.barh(-rank, length, left=begin, height=0.8, color=colour, edgecolor=INK, lw=0.4)
            if numbers and length > 0.017 * whole:
                draw_number(axes, begin + length / 2, -rank, event["microbatch"], colour)
    axes.set_yticks(places, names)
    axes.tick_params(axis="y", length=0)
    axes.set_title(f"{title}: idle {timeline.idle(values):.0%}")


def draw_number(axes, x, y, number, colour_of_bar):
    """Write the number of a micro-batch into its bar, which has the same colour on a dark page."""
    ink = DARK
    if colour_of_bar == BLUE:
        ink = "white"
    axes.text(x, y, number, ha="center", va="center", color=ink, size=9, clip_on=True)


def draw_timelines(runs, numbers=True):
    """One timeline below the other, on one axis of time."""
    rows = sum(values["world_size"] for values in runs.values())
    height = 0.9 + 0.35 * len(runs) + 0.28 * rows
    grid = plt.subplots(len(runs), squeeze=False, sharex=True, figsize=(5, height))[1][:, 0]
    kinds = {"forward": BLUE, "backward": ORANGE}
    sentences = []
    for axes, (title, values) in zip(grid, runs.items(), strict=True):
        draw_rows(axes, values, title, numbers and values["schedule"] != "interleaved")
        if values["stages"] > values["world_size"]:
            kinds |= {"forward, 2nd stage": SKY, "backward, 2nd stage": YELLOW}
        look, idle = LOOKS[values["schedule"]], timeline.idle(values)
        sentences.append(f"{title}: {look}; idle for {idle:.0%} of the time.")
    grid[-1].set_xlabel("ms")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in kinds.values()]
    grid[-1].figure.legend(
        handles, kinds, loc="outside lower center", ncols=2, columnspacing=0.8, handlelength=1
    )
    picture("For each rank a row of bars, the forwards and backwards of its stage. " + " ".join(sentences))


def draw_idle(runs):
    """The idle share against the number of micro-batches, and of each schedule on four processes."""
    above, below = plt.subplots(2, figsize=(5, 6))[1]
    counts = range(1, 65)
    colour_of = {2: BLUE, 4: ORANGE, 8: GREEN}
    for processes, colour in colour_of.items():
        shares = [100 * (processes - 1) / (count + processes - 1) for count in counts]
        above.plot(counts, shares, color=colour, label=f"{processes} processes")
    for (schedule, processes, count), values in runs.items():
        if schedule in ("naive", "gpipe"):
            above.plot(count, 100 * timeline.idle(values), "o", color=colour_of[processes])
    above.set(xlabel="micro-batches m", ylabel="idle, %", title="Formula (lines), measured gpipe (dots)")
    above.set(xscale="log", xticks=[1, 2, 4, 8, 16, 32, 64], xticklabels=[1, 2, 4, 8, 16, 32, 64])
    above.legend()

    runs_on_four = {
        "naive": runs["naive", 4, 1],
        "gpipe": runs["gpipe", 4, 8],
        "1f1b": runs["1f1b", 4, 8],
        "interleaved": runs["interleaved", 4, 8],
    }
    for shift, colour, hatch, label, idle in (
        (-0.2, GREY, None, "formula", timeline.idle_in_theory),
        (0.2, ORANGE, "////", "measured", timeline.idle),
    ):
        places, heights = [], []
        for place, values in enumerate(runs_on_four.values()):
            places.append(place + shift)
            heights.append(100 * idle(values))
        below.bar(places, heights, 0.4, color=colour, hatch=hatch, label=label)
    below.set_xticks(range(4), list(runs_on_four))
    below.set(ylabel="idle, %", title="4 processes, m = 8 (naive: 1)")
    below.legend()
    picture(
        "Above: the idle share falls as the number of micro-batches grows, and is larger for more processes. "
        "Below: bars of the formula and of the measured idle share of each schedule on four processes. The "
        "measured bars are higher."
    )


def draw_held(most):
    """How many micro-batches each rank holds at most: most(schedule, count) has a number for each rank."""
    above, below = plt.subplots(2, figsize=(5, 6))[1]
    styles = {"gpipe": (BLUE, None), "1f1b": (ORANGE, "////"), "interleaved": (GREEN, "....")}
    for number, (schedule, (colour, hatch)) in enumerate(styles.items()):
        size = 1
        if schedule == "interleaved":
            size = 2  # its stages are half as large
        places, heights = [], []
        for rank, held in enumerate(most(schedule, 8)):
            places.append(rank + 0.27 * (number - 1))
            heights.append(held / size)
        above.bar(places, heights, 0.27, color=colour, hatch=hatch, label=schedule)
    above.set_xticks(range(4), ["rank 0", "rank 1", "rank 2", "rank 3"])
    above.set(ylabel="held at once, at most", title="8 micro-batches", ylim=(0, 11))
    above.legend(ncols=3, columnspacing=0.8, handlelength=1.2, loc="upper center")
    counts = [4, 8, 32]
    for schedule in ("gpipe", "1f1b"):
        held = [most(schedule, count)[0] for count in counts]
        below.plot(counts, held, "o-", color=styles[schedule][0], label=schedule)
    below.set(xlabel="micro-batches m", ylabel="held at once, at most", title="Rank 0, as m grows")
    below.set_xticks(counts)
    below.legend()
    gpipe, one_f_one_b, interleaved = most("gpipe", 8), most("1f1b", 8), most("interleaved", 8)
    picture(
        f"Above: with 8 micro-batches, the ranks hold {gpipe} under gpipe, {one_f_one_b} under "
        f"1f1b, and {interleaved} of half the size interleaved. Below: on rank 0, gpipe holds more "
        f"as the number of micro-batches grows; 1f1b always holds {one_f_one_b[0]}."
    )
