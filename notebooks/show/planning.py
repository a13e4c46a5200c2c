"""The pictures of the planning notebook."""

import textwrap

import matplotlib.pyplot as plt
import numpy as np

from planner import formulas, plans, report
from show.pictures import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    RANKS,
    RED,
    SKY,
    YELLOW,
    arrow,
    box,
    canvas,
    picture,
)

PARTS = {"parameters": BLUE, "gradients": SKY, "optimizer": GREEN, "activations": PINK}
COLOURS = (BLUE, YELLOW, SKY, ORANGE, RED)
HATCHES = (None, "....", None, "////", "xxxx")


def draw_wires():
    """Four processes in a ring, and four that share the cores and the memory of one machine."""
    axes = canvas(5, 2.9, 16, 9.3)
    for left, title in ((0.1, "a wire each"), (8.7, "one machine for all")):
        axes.text(left + 3.5, 8.4, title, ha="center", weight="bold", size=10)
        corners = [(left, 5.8), (left + 4.7, 5.8), (left + 4.7, 0.4), (left, 0.4)]
        for rank, (x, y) in enumerate(corners):
            box(axes, x, y, 2.4, 1.6, f"rank {rank}", colour=RANKS[rank])
    for start, end in (((2.6, 6.6), (4.7, 6.6)), ((6, 5.7), (6, 2.1)), ((4.7, 1.2), (2.6, 1.2))):
        arrow(axes, start, end)
    arrow(axes, (1.3, 2.1), (1.3, 5.7))
    box(axes, 10.3, 3.2, 3.8, 1.4, "cores, memory", colour=GREY)
    arrow(axes, (9.9, 5.8), (11.2, 4.6), both=True)
    arrow(axes, (14.6, 5.8), (13.2, 4.6), both=True)
    arrow(axes, (14.6, 2.0), (13.2, 3.2), both=True)
    arrow(axes, (9.9, 2.0), (11.2, 3.2), both=True)
    picture(
        "Two models of four processes. On the left a ring, in which each process has its own wire to the "
        "next. On the right, all four exchange messages through the same cores and the same memory."
    )


def draw_fit(measured, fitted, seconds_of):
    """Measured times and the lines of both models, one below the other."""
    grid = plt.subplots(2, sharex=True, figsize=(5, 6.4))[1]
    sizes = np.geomspace(2**12, 2**24, 60)
    looks = {2: (BLUE, "-", "o"), 3: (GREEN, "-", "s"), 4: (RED, "--", "D")}  # of each number of processes
    largest, largest_takes = list(measured[4].items())[-1]
    said = []
    for axes, (model, constants) in zip(grid, fitted.items(), strict=True):
        for ranks, times in measured.items():
            colour, style, marker = looks[ranks]
            kind = "predicted" if ranks == 4 else "fitted"
            line = [1e3 * seconds_of(model, size, ranks, **constants) for size in sizes]
            axes.plot(sizes, line, style, color=colour, label=f"{ranks} processes, {kind}")
            points = [1e3 * seconds for seconds in times.values()]
            axes.plot(list(times), points, marker, color=colour, label=f"{ranks} processes, measured")
        axes.set_xscale("log", base=2)
        axes.set(yscale="log", ylabel="milliseconds", title=model)
        axes.set_xticks([2**12, 2**16, 2**20, 2**24], ["4 KB", "64 KB", "1 MB", "16 MB"])
        predicted = seconds_of(model, largest, 4, **constants)
        said.append(f"{model} predicts {1e3 * predicted:.1f}")
    grid[-1].set_xlabel("size of the tensor")

    handles, names = grid[0].get_legend_handles_labels()
    # The lines come first, then the points, so that each kind has a column of the legend.
    handles = [*handles[::2], *handles[1::2]]
    names = [*names[::2], *names[1::2]]
    grid[0].figure.legend(handles, names, loc="outside lower center", ncols=2)
    picture(
        "The time of an all-reduce against its size, both on logarithmic axes. Points are measured, solid "
        "lines are fitted to 2 and 3 processes, dashed lines are predicted for 4. The largest tensor takes "
        f"{1e3 * largest_takes:.1f} ms on 4 processes: {', '.join(said)}."
    )


def draw_memory(axes, found, labels, limit):
    """A bar for each plan in `found`, and a line at the memory that a GPU has."""
    bottom = np.zeros(len(found))
    for part, colour in PARTS.items():
        sizes = np.array([one["memory_bytes"][part] for one in found]) / 1e9
        hatch = "////" if part == "activations" else None
        axes.bar(labels, sizes, 0.6, bottom, color=colour, label=part, hatch=hatch, edgecolor=INK, lw=0.3)
        bottom += sizes
    axes.axhline(limit / 1e9, color=RED, ls="--", label="memory of a GPU")
    axes.set(ylabel="GB on each GPU", ylim=(0, max(*bottom, limit / 1e9) * 1.08))


def draw_stages(job, billions):
    """For the slider: the memory under each ZeRO stage. Returns the alt text."""
    layers = {"layers": None, "hidden": None, "heads": None}  # the planner guesses them again
    found = []
    labels = []
    needs = []
    for stage in range(4):
        one = plans.plan(job | layers | {"params": billions * 1e9, "stage": stage})
        found.append(one)
        labels.append(f"stage {stage}")
        needs.append(f"{sum(one['memory_bytes'].values()) / 1e9:.0f}")
    axes = plt.figure(figsize=(5, 3.4)).add_subplot()
    draw_memory(axes, found, labels, job["memory"])
    axes.set_title(f"{billions:g} billion parameters, {job['gpus']} GPUs")
    axes.legend(loc="upper right")
    return (
        f"The memory that {billions:g} billion parameters need on each of {job['gpus']} GPUs under ZeRO's "
        f"stages 0 to 3: {', '.join(needs)} GB. A GPU has {job['memory'] / 1e9:.0f}."
    )


def draw_growth(found):
    """Throughput against the number of GPUs, and where the time of a GPU goes."""
    figure, (above, below) = plt.subplots(2, sharex=True, figsize=(5, 6.6))
    gpus = []
    speeds = []
    perfect = []
    shares = {}  # of each part of the time, a list
    for one in found:
        gpus.append(one["job"]["gpus"])
        speeds.append(one["tokens_per_second"])
        perfect.append(speeds[0] * gpus[-1] / gpus[0])
        for name, share in report.shares(one).items():
            shares.setdefault(name, []).append(share)
    above.plot(gpus, perfect, "--", color=GREY, label="perfect scaling")
    above.plot(gpus, speeds, "o-", color=BLUE, label="planned")
    above.set(yscale="log", ylabel="tokens per second", title="Throughput")
    above.legend()
    areas = below.stackplot(gpus, list(shares.values()), labels=list(shares), colors=COLOURS, lw=0)
    for area, hatch in zip(areas, HATCHES, strict=True):
        area.set(hatch=hatch, edgecolor=GREY)
    below.set(xlabel="GPUs", ylim=(0, 1), xlim=(gpus[0], gpus[-1]), title="Where the time of a GPU goes")
    below.set_xscale("log", base=2)
    below.set_xticks(gpus[::3], [f"{number:,}" for number in gpus[::3]])
    below.yaxis.set_major_formatter("{x:.0%}")
    figure.legend(*below.get_legend_handles_labels(), loc="outside lower center", ncols=1)
    picture(
        "Above: the planned throughput falls behind the line of perfect scaling. Below: compute takes "
        f"{shares['compute'][0]:.0%} of a GPU's time on {gpus[0]} GPUs, and {shares['compute'][-1]:.0%} on "
        f"{gpus[-1]:,}. The pipeline bubble, communication, checkpoints and failures take the rest."
    )


def draw_price(job, price):
    """For the slider: dollars against days, a point for each number of GPUs. Returns the alt text."""
    found, _ = plans.sweep(job)
    gpus = []
    days = []
    dollars = []  # in millions
    for one in found:
        gpus.append(f"{one['job']['gpus']:,} GPUs")
        days.append(one["days"])
        dollars.append(one["days"] * 24 * one["job"]["gpus"] * price / 1e6)
    axes = plt.figure(figsize=(5, 3.2)).add_subplot()
    axes.plot(days, dollars, "o-", color=BLUE)
    for label, x, y in zip(gpus[::3], days[::3], dollars[::3], strict=True):
        axes.annotate(label, (x, y), (6, 6), textcoords="offset points", size=9, color=INK)
    unit = "dollar" if price == 1 else "dollars"
    title = f"{job['params'] / 1e9:g} billion parameters at {price:g} {unit} an hour"
    axes.set(xscale="log", xlabel="days", ylabel="million dollars", title=title)
    shortest = days[-1] / 1.5
    longest = days[0] * 3
    axes.set(ylim=(0, max(dollars) * 1.15), xlim=(shortest, longest))
    ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000) if shortest <= tick <= longest]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    return (
        f"Dollars against days at {price:g} dollars an hour: {gpus[0]} take {days[0]:,.0f} days and "
        f"{dollars[0]:.1f} million dollars, {gpus[-1]} take {days[-1]:.1f} days and "
        f"{dollars[-1]:.1f} million."
    )


def draw_rates(rates, points):
    """Hours between interruptions: lines are published rates, diamonds are published jobs."""
    axes = plt.figure(figsize=(5, 3.6)).add_subplot()
    gpus = np.geomspace(128, 131072, 50)
    looks = (("-", BLUE), ("--", ORANGE), (":", GREEN))
    for (name, rate), (style, colour) in zip(rates.items(), looks, strict=True):
        hours = [formulas.seconds_between_failures(number, rate) / 3600 for number in gpus]
        axes.plot(gpus, hours, style, color=colour, label=name)
    said = []
    for name, (number, hours) in points.items():
        axes.plot(number, hours, "D", color=INK)
        if name == "Llama 3":
            shift = (-10, -22)  # it is on a line, so its name goes below all lines
        elif name == "OPT-175B":
            shift = (-8, 4)
        else:
            shift = (-8, -4)
        style = {"textcoords": "offset points", "ha": "right", "va": "center", "size": 9}
        axes.annotate(name, (number, hours), shift, **style)
        said.append(f"{name}: {number:,} GPUs, {hours:.1f} hours")
    axes.set(yscale="log", xlabel="GPUs", ylabel="hours between interruptions")
    axes.set_yticks([0.3, 1, 3, 10, 30, 100, 300], [0.3, 1, 3, 10, 30, 100, 300])
    axes.minorticks_off()
    axes.set_xscale("log", base=2)
    axes.set_xticks([2**power for power in range(7, 18, 2)], ["128", "512", "2k", "8k", "32k", "128k"])
    axes.legend()
    picture(f"Hours between two interruptions against the number of GPUs. {'; '.join(said)}.")


def draw_checkpoints(curves, dots, best):
    """The share of the time that is training progress, against the interval between checkpoints."""
    axes = plt.figure(figsize=(5, 4)).add_subplot()
    said = []
    for (number, curve), colour in zip(curves.items(), (GREEN, ORANGE, BLUE), strict=True):
        tried = dots[number]
        draw_against_minutes(axes, curve, color=colour, label=f"{number:,} GPUs")
        draw_against_minutes(axes, tried, marker="o", ls="", ms=4, color=colour)
        axes.axvline(best[number] / 60, color=colour, ls=":", lw=1)
        said.append(f"{best[number] / 60:.0f} minutes for {number:,} GPUs")
    axes.plot([], [], ":", color=INK, label="Young's interval")
    axes.plot([], [], "o", ms=4, color=INK, label="experiment")
    axes.set(xscale="log", xlabel="minutes between checkpoints", ylim=(0.5, 1.01))
    axes.set_title("Share of the time that is progress")
    axes.set_xticks([2, 10, 60, 300, 1440], [2, 10, 60, 300, 1440])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.figure.legend(loc="outside lower center", ncols=3, columnspacing=1)
    picture(
        "The share of the time that is training progress, against the minutes between checkpoints. Each "
        f"curve is flat at its top, at Young's interval: {', '.join(said)}. The dots of the experiment are "
        "close to the curves."
    )


def draw_against_minutes(axes, by_seconds, **looks):
    minutes = [seconds / 60 for seconds in by_seconds]
    axes.plot(minutes, list(by_seconds.values()), **looks)


def draw_plan(job, gpus):
    """For the slider: the memory, where the time goes and the five answers. Returns the alt text."""
    try:
        one = plans.plan(job | {"gpus": gpus})
    except ValueError as error:  # it cannot run; the planner says why and what to do
        box(canvas(5, 2.4), 0.2, 0.2, 15.6, 5.6, "no plan", textwrap.fill(str(error), 52), RED)
        return f"No plan for {gpus} GPUs: {error}"
    upper, lower = plt.figure(figsize=(5, 5)).subfigures(2, height_ratios=[1.6, 1])
    left, right = upper.subplots(1, 2, width_ratios=[1, 1.3])
    below = lower.add_subplot()

    draw_memory(left, [one], [""], one["job"]["memory"])
    left.tick_params(axis="x", length=0)
    lines = [f"{gpus:,} GPUs"]
    lines.append("fits: yes" if one["fits"] else "fits: NO")
    lines.append(f"{one['tokens_per_second']:,.0f} tokens/s")
    lines.append(f"{one['days']:,.1f} days")
    lines.append(f"{one['dollars']:,.0f} dollars")
    lines.append(f"{one['interruptions']:,.1f} interruptions")
    lines.append(f"save every {report.duration(one['checkpoint_interval_seconds'])}")
    right.text(0, 1, "\n".join(lines), va="top", size=10, linespacing=1.35)
    right.axis("off")
    start = 0
    for (name, part), colour, hatch in zip(report.shares(one).items(), COLOURS, HATCHES, strict=True):
        below.barh([""], part, 0.6, start, color=colour, hatch=hatch, edgecolor=INK, lw=0.3, label=name)
        start += part
    below.set(xlim=(0, 1), ylim=(-0.4, 0.4), title="An hour of a GPU")
    below.xaxis.set_major_formatter("{x:.0%}")
    right.legend(*left.get_legend_handles_labels(), loc="lower left", bbox_to_anchor=(-0.05, 0))
    handles, names = below.get_legend_handles_labels()
    short = [name.replace(" communication", "") for name in names]
    lower.legend(handles, short, loc="outside lower center", ncols=2)
    return f"The plan for {', '.join(lines)}."
