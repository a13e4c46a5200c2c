"""The pictures of notebook 10: who worked when, how long the processes waited, and what they held."""

import os
import time

import matplotlib.pyplot as plt
import torch

from parts import timeline
from show.pictures import (
    BLUE,
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
    for rank, first in enumerate(borders):
        layers = "\n".join(names[first : [*borders, len(names)][rank + 1]])
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
    begin, middle, turn, back, end = (1000 * (moment - moments[0]) for moment in moments)
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
    times = [[] for _ in model]
    for _ in range(repeats):
        held, gradient = values, False  # images need no gradient
        for layer, found in zip(model, times, strict=True):
            held = held.detach().clone().requires_grad_(gradient)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                result = layer(held)
                if result.requires_grad:
                    result.sum().backward()
            found.append(sum(operator.self_cpu_time_total for operator in profiler.key_averages()))
            held, gradient = result, result.requires_grad
    return [min(found) / 1000 for found in times]


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
    whole = 1000 * max(event["end"] for row in values["events"] for event in row)
    for rank, row in enumerate(values["events"]):
        for event in row:
            begin, length = 1000 * event["begin"], 1000 * (event["end"] - event["begin"])
            colour = COLOURS[event["kind"], event["stage"] // count]
            axes.barh(-rank, length, left=begin, height=0.8, color=colour, edgecolor=INK, lw=0.4)
            if numbers and length > 0.017 * whole:  # the bar has the same colour on a dark page
                style = {"color": "#ffffff" if colour == BLUE else "#1f1f1f", "size": 9, "clip_on": True}
                axes.text(begin + length / 2, -rank, event["microbatch"], ha="center", va="center", **style)
    axes.set_yticks([-rank for rank in range(count)], [f"rank {rank}" for rank in range(count)])
    axes.tick_params(axis="y", length=0)
    axes.set_title(f"{title}: idle {timeline.idle(values):.0%}")


def draw_timelines(runs, numbers=True):
    """One timeline below the other, on one axis of time."""
    rows = sum(values["world_size"] for values in runs.values())
    height = 0.9 + 0.35 * len(runs) + 0.28 * rows
    grid = plt.subplots(len(runs), squeeze=False, sharex=True, figsize=(5, height))[1][:, 0]
    for axes, (title, values) in zip(grid, runs.items(), strict=True):
        draw_rows(axes, values, title, numbers and values["schedule"] != "interleaved")
    grid[-1].set_xlabel("ms")
    kinds = {"forward": BLUE, "backward": ORANGE}
    if any(values["stages"] > values["world_size"] for values in runs.values()):
        kinds |= {"forward, 2nd stage": SKY, "backward, 2nd stage": YELLOW}
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in kinds.values()]
    grid[-1].figure.legend(
        handles, kinds, loc="outside lower center", ncols=2, columnspacing=0.8, handlelength=1
    )
    sentences = (
        f"{title}: {LOOKS[values['schedule']]}; idle for {timeline.idle(values):.0%} of the time."
        for title, values in runs.items()
    )
    picture("For each rank a row of bars, the forwards and backwards of its stage. " + " ".join(sentences))


def draw_idle(runs):
    """The idle share against the number of micro-batches, and of each schedule on four processes."""
    above, below = plt.subplots(2, figsize=(5, 6))[1]
    counts = range(1, 65)
    for processes, colour in ((2, BLUE), (4, ORANGE), (8, GREEN)):
        shares = [100 * (processes - 1) / (count + processes - 1) for count in counts]
        above.plot(counts, shares, color=colour, label=f"{processes} processes")
    for (schedule, processes, count), values in runs.items():
        if schedule in ("naive", "gpipe"):
            above.plot(count, 100 * timeline.idle(values), "o", color=BLUE if processes == 2 else ORANGE)
    above.set(xlabel="micro-batches m", ylabel="idle, %", title="Formula (lines), measured gpipe (dots)")
    above.set(xscale="log", xticks=[1, 2, 4, 8, 16, 32, 64], xticklabels=[1, 2, 4, 8, 16, 32, 64])
    above.legend()
    names = ["naive", "gpipe", "1f1b", "interleaved"]
    four = [runs[name, 4, 1 if name == "naive" else 8] for name in names]
    for shift, colour, hatch, label, function in (
        (-0.2, GREY, None, "formula", timeline.idle_in_theory),
        (0.2, ORANGE, "////", "measured", timeline.idle),
    ):
        heights = [100 * function(values) for values in four]
        below.bar([place + shift for place in range(4)], heights, 0.4, color=colour, hatch=hatch, label=label)
    below.set_xticks(range(4), names)
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
    for place, (schedule, (colour, hatch)) in enumerate(styles.items()):
        size = 2 if schedule == "interleaved" else 1  # its stages are half as large
        held = [number / size for number in most(schedule, 8)]
        places = [rank + 0.27 * (place - 1) for rank in range(4)]
        above.bar(places, held, 0.27, color=colour, hatch=hatch, label=schedule)
    above.set_xticks(range(4), [f"rank {rank}" for rank in range(4)])
    above.set(ylabel="held at once, at most", title="8 micro-batches", ylim=(0, 11))
    above.legend(ncols=3, columnspacing=0.8, handlelength=1.2, loc="upper center")
    counts = [4, 8, 32]
    for schedule in ("gpipe", "1f1b"):
        held = [most(schedule, count)[0] for count in counts]
        below.plot(counts, held, "o-", color=styles[schedule][0], label=schedule)
    below.set(xlabel="micro-batches m", ylabel="held at once, at most", title="Rank 0, as m grows")
    below.set_xticks(counts)
    below.legend()
    eight = {schedule: most(schedule, 8) for schedule in styles}
    picture(
        f"Above: with 8 micro-batches, the ranks hold {eight['gpipe']} under gpipe, {eight['1f1b']} under "
        f"1f1b, and {eight['interleaved']} of half the size interleaved. Below: on rank 0, gpipe holds more "
        f"as the number of micro-batches grows; 1f1b always holds {eight['1f1b'][0]}."
    )
