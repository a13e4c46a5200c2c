"""The bench's pictures, bench.svg and scaling.svg."""

import json
import statistics
import zlib

from parts.colours import BLUE, GREEN, LIGHT_GREY, ORANGE, RED, SKY
from tools import ink
from tools.lessons import ROOT
from tools.makers.bench import scaling
from tools.makers.bench.formatting import sums

FOLDER = ROOT / "lessons/pictures"
COLOURS = (SKY, BLUE, LIGHT_GREY, GREEN, ORANGE, RED)
STEPS = {
    "usual\nloop": "usual loop",
    "01": "lesson 01",
    "07,\nbf16": "lesson 07 in bf16",
    "04, one\nprocess": "lesson 04, 1",
    "04, two\nprocesses": "lesson 04, 2",
}
STARTS = {
    "01": "lesson 01",
    "03,\nmp.spawn": "lesson 03",
    "04,\ntorchrun": "lesson 04",
    "06,\ntwo nodes": "lesson 06",
}
KINDS = {
    "alone": ("nothing sent", LIGHT_GREY),
    "after": ("sent after backward", ORANGE),
    "overlap": ("as DDP does it", BLUE),
}
LINES = {
    "copy": ("a copy in memory", LIGHT_GREY, "--"),
    "gloo": ("gloo's all_reduce", BLUE, "o-"),
    "ring": ("the ring of 03a", GREEN, "s-"),
    "in pieces": ("the ring in pieces", ORANGE, "v-"),
    "server": ("a server", RED, "^-"),
}


def mark(about, rows):
    """A picture carries this, so that a test can tell which numbers it shows."""
    return f"{zlib.crc32(json.dumps([about, rows]).encode()):08x}"


def draw(about, rows, folder):
    """Draw the pictures whose rows were measured."""
    if {"overlap", "all-reduce"} <= rows.keys() and "lesson 03" in rows.get("start", {}):
        figure, (first, second, third, fourth) = ink.pyplot().subplots(4, 1, figsize=(ink.WIDTH, 13))
        stack(first, STEPS, rows["step"], 1000)
        first.set(title="where the time of a step goes", ylabel="milliseconds, 120 images")
        draw_overlap(second, rows["overlap"])
        draw_reduce(third, rows["all-reduce"]["2"])
        stack(fourth, STARTS, rows["start"], 1)
        fourth.set(title="from the command to the end of the first step", ylabel="seconds")
        ink.save(figure, folder / "bench.svg", Source=mark(about, rows))
    if "scaling" in rows:
        figure, axes = ink.pyplot().subplots(2, 1, figsize=(ink.WIDTH, 6.5))
        draw_scaling(axes, rows["scaling"])
        ink.save(figure, folder / "scaling.svg", Source=mark(about, rows))


def stack(axes, names, found, scale):
    """A bar for each name: the run with the median time, and the parts of its time."""
    base = [0.0] * len(names)
    chosen = []
    for name in names.values():
        totals = sums(found[name])
        chosen.append(totals.index(statistics.median_low(totals)))
    parts = list(found[next(iter(names.values()))])
    for part, colour in zip(parts, COLOURS, strict=False):
        heights = []
        for name, repeat in zip(names.values(), chosen, strict=True):
            heights.append(scale * found[name][part][repeat])
        axes.bar(list(names), heights, bottom=base, color=colour, label=part, width=0.6)
        base = [below + height for below, height in zip(base, heights, strict=True)]
    axes.set_ylim(0, max(base) * 1.1)
    axes.legend(reverse=True, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def draw_overlap(axes, links):
    width = 0.25
    for place, (name, (label, colour)) in enumerate(KINDS.items(), -1):
        for number, found in enumerate(links.values()):
            seconds = found[f"{name}, seconds"]
            height = 1000 * statistics.median(seconds)
            reach = [[height - 1000 * min(seconds)], [1000 * max(seconds) - height]]
            look = {"color": colour, "ecolor": ink.INK, "label": label if number == 0 else None}
            axes.bar(number + width * place, height, width, yerr=reach, **look)
    axes.set_xticks(range(len(links)), [link.replace(", ", "\n") for link in links])
    axes.set(title="what backward hides, 8 million parameters", ylabel="milliseconds of a step")
    axes.legend()


def draw_reduce(axes, ways):
    for way, (label, colour, style) in LINES.items():
        sizes = []
        medians = []
        lowest = []
        highest = []
        for size, seconds in ways[way].items():
            sizes.append(int(size))
            rates = [int(size) / value / 1e6 for value in seconds]
            medians.append(statistics.median(rates))
            lowest.append(min(rates))
            highest.append(max(rates))
        axes.plot(sizes, medians, style, color=colour, label=label)
        axes.fill_between(sizes, lowest, highest, color=colour, alpha=0.15)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ink.plain(axes.yaxis)
    ticks = {2**10: "1 KiB", 2**14: "16 KiB", 2**18: "256 KiB", 2**22: "4 MiB", 2**26: "64 MiB"}
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set(title="an all-reduce on two processes", xlabel="size", ylabel="MB a second")
    axes.legend()


def draw_scaling(both, found):
    kinds = (("one batch for all", False, BLUE), ("a batch for each", True, RED))
    for label, is_weak, colour in kinds:
        lines = scaling.lines(found, is_weak)
        for axes, name in zip(both, scaling.NAMES.values(), strict=True):
            counts = []
            speeds = []
            independent = []
            for model, count, together, apart, _ in lines:
                if model == name:
                    counts.append(count)
                    speeds.append(statistics.median(together))
                    independent.append(statistics.median(apart or together))
            axes.plot(counts, speeds, "o-", color=colour, label=label)
            axes.plot(counts, independent, ":", color=colour, label=f"{label}, independent")
            axes.set(title=name, xlabel="processes", ylabel="images per second", xticks=scaling.COUNTS)
            axes.set_ylim(bottom=0)
    both[1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, fontsize=9)
