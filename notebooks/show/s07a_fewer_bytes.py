"""Notebook 07a: five ways to communicate, against steps, against bytes, and on slow links."""

import matplotlib.pyplot as plt

from show import slow_links
from show.pictures import GREEN, GREY, INK, ORANGE, PINK, SKY, picture


def draw_curves(found):
    """The loss of each run, above against steps, below against the bytes that a process has sent."""
    shapes = [(SKY, "-", 6), (INK, "-", 1.5), (ORANGE, "--", 2), (GREEN, "-", 2), (PINK, "-.", 2)]
    above, below = plt.subplots(2, 1, figsize=(4.8, 6))[1]
    for (name, rows), (colour, style, width) in zip(found.items(), shapes, strict=True):
        losses = [row["loss"] for row in rows]
        look = {"color": colour, "lw": width}
        above.plot([row["step"] for row in rows], losses, style, label=name, **look)
        if rows[-1]["sent"]:  # Linux counts them
            below.plot([row["sent"] / 1e6 for row in rows], losses, style, **look)
    above.set(xlabel="step", ylabel="loss", title="against steps")
    below.set(xlabel="MB that a process has sent", ylabel="loss", title="against bytes", xscale="log")
    above.legend(fontsize=9, ncols=2)
    ends = ", ".join(f"{name} {rows[-1]['loss']:.2f}" for name, rows in found.items())
    picture(
        f"The loss of five runs, against steps and against bytes that a process has sent. At the end: {ends}."
    )


def draw_winners(measured):
    """Seconds until a run has its accuracy: a group of bars for each rate, a bar for each way."""
    seconds = {(row["way"], row["rate"]): slow_links.seconds(row) for row in measured["rows"]}
    rates, names = slow_links.rates_of(measured), dict(list(slow_links.WAYS.items())[:5])
    axes = plt.subplots(figsize=(4.8, 3.6))[1]
    colours = (SKY, GREY, ORANGE, GREEN, PINK)
    for number, ((way, name), colour) in enumerate(zip(names.items(), colours, strict=True)):
        at = [place + 0.16 * (number - 2) for place in range(len(rates))]
        axes.bar(at, [seconds[way, rate] for rate in rates], 0.15, color=colour, label=name)
    axes.set_xticks(range(len(rates)), rates)
    axes.set(ylabel="seconds to 97%", title="Time to an accuracy of 97%")
    axes.set_ylim(top=1.4 * max(seconds[way, rate] for way in names for rate in rates))
    axes.legend(ncols=2, fontsize=9)
    said = [f"{name} {seconds[way, rate]:.0f} at {rate}" for rate in rates for way, name in names.items()]
    picture(f"Seconds until 97% of the test images are right, by the rate of the link: {', '.join(said)}.")
