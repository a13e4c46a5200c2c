"""The pictures of notebook 10: who worked when, how long the others waited, what they held."""

import os
import time

import matplotlib.pyplot as plt
import torch

from parts import timeline
from show.pictures import BLUE, GREEN, GREY, INK, ORANGE, RANKS, RED, SKY, YELLOW, arrow, box, canvas

COLOURS = {("forward", 0): BLUE, ("backward", 0): ORANGE, ("forward", 1): SKY, ("backward", 1): YELLOW}


def draw_stages(model, borders):
    """A box for each process with the layers of its stage, and what goes to and fro between them."""
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


def profile_layers(model, values, repeats=5):
    """Milliseconds in the operators of each layer, forward and backward, the shortest of so many."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler writes of itself
    found, gradient = [], False  # nobody asks for the gradient of images
    for layer in model:
        times = []
        for _ in range(repeats):
            held = values.clone().requires_grad_(gradient)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                result = layer(held)
                if result.requires_grad:
                    result.sum().backward()
            times.append(sum(operator.self_cpu_time_total for operator in profiler.key_averages()))
        found.append(min(times) / 1000)
        values, gradient = result.detach(), result.requires_grad
    return found


def noting(moments, devices):
    """A function that adds the moment to a list, once the devices have done all that they were given."""

    def note(*_):
        for device in devices:
            timeline.finish_queued_work(torch.device(device))
        moments.append(time.perf_counter())

    return note


def draw_rows(axes, values, title, numbers=True):
    """A row for each process, its forwards and backwards in it. The second stage has lighter colours."""
    count = values["world_size"]
    whole = 1000 * max(event["end"] for row in values["events"] for event in row)
    for rank, row in enumerate(values["events"]):
        for event in row:
            begin, length = 1000 * event["begin"], 1000 * (event["end"] - event["begin"])
            colour = COLOURS[event["kind"], event["stage"] // count]
            axes.barh(-rank, length, left=begin, height=0.8, color=colour, edgecolor=INK, lw=0.4)
            if numbers and length > 0.017 * whole:  # on the bar, whose colour is the same on every page
                style = {"color": "#ffffff" if colour == BLUE else "#1f1f1f", "size": 9, "clip_on": True}
                axes.text(begin + length / 2, -rank, event["microbatch"], ha="center", va="center", **style)
    axes.set_yticks([-rank for rank in range(count)], [f"rank {rank}" for rank in range(count)])
    axes.tick_params(axis="y", length=0)
    axes.set_title(f"{title}: idle {timeline.idle(values):.0%}")


def draw_timelines(runs, numbers=True):
    """One below the other, on one axis of time. Returns in words how long the processes waited."""
    rows = sum(values["world_size"] for values in runs.values())
    height = 0.9 + 0.35 * len(runs) + 0.28 * rows
    grid = plt.subplots(len(runs), squeeze=False, sharex=True, figsize=(5, height))[1][:, 0]
    for axes, (title, values) in zip(grid, runs.items(), strict=True):
        draw_rows(axes, values, title, numbers and values["schedule"] != "interleaved")
    grid[-1].set_xlabel("ms")
    kinds = {"forward": BLUE, "backward": ORANGE}
    if any(values["stages"] > values["world_size"] for values in runs.values()):
        kinds |= {"forward, 2nd stage": SKY, "backward, 2nd": YELLOW}
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in kinds.values()]
    grid[-1].figure.legend(
        handles, kinds, loc="outside lower center", ncols=4, columnspacing=0.8, handlelength=1
    )
    return ", ".join(f"{title} {timeline.idle(values):.0%}" for title, values in runs.items())


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


def draw_held(most):
    """How many micro-batches a process holds at most. most(schedule, count) has a number for each rank."""
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
