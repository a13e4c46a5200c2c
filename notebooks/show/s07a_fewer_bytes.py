"""Notebook 07a: five ways to communicate, against steps, against bytes, and on slow links."""

import matplotlib.pyplot as plt

from show import slow_links
from show.pictures import GREEN, GREY, INK, ORANGE, PINK, SKY, picture


def draw_curves(found):
    """The loss of each run, above against steps, below against the bytes that a process has sent."""
    shapes = [(SKY, "-", 6), (INK, "-", 1.5), (ORANGE, "--", 2), (GREEN, "-", 2), (PINK, "-.", 2)]
    above, below = plt.subplots(2, 1, figsize=(4.8, 6))[1]
    ends = []
    for (name, rows), (colour, style, width) in zip(found.items(), shapes, strict=True):
        steps, losses, megabytes = [], [], []
        for row in rows:
            steps.append(row["step"])
            losses.append(row["loss"])
            megabytes.append(row["sent"] / 1e6)
        above.plot(steps, losses, style, label=name, color=colour, lw=width)
        if rows[-1]["sent"]:  # only Linux counts the bytes
            below.plot(megabytes, losses, style, color=colour, lw=width)
        ends.append(f"{name} {losses[-1]:.2f}")
    above.set(xlabel="step", ylabel="loss", title="against steps")
    below.set(xlabel="MB that a process has sent", ylabel="loss", title="against bytes", xscale="log")
    above.legend(fontsize=9, ncols=2)
    picture(
        "The loss of five runs, against steps and against bytes that a process has sent. "
        f"At the end: {', '.join(ends)}."
    )


def draw_winners(measured):
    """Seconds until a run has its accuracy: a group of bars for each rate, a bar for each way."""
    seconds = {}
    for row in measured["rows"]:
        seconds[row["way"], row["rate"]] = slow_links.seconds(row)
    rates = slow_links.rates_of(measured)
    ways = list(slow_links.WAYS.items())[:5]

    axes = plt.subplots(figsize=(4.8, 3.6))[1]
    colours = (SKY, GREY, ORANGE, GREEN, PINK)
    longest = 0
    for number, (way, name) in enumerate(ways):
        places, heights = [], []
        for place, rate in enumerate(rates):
            places.append(place + 0.16 * (number - 2))
            heights.append(seconds[way, rate])
        axes.bar(places, heights, 0.15, color=colours[number], label=name)
        longest = max(longest, *heights)
    axes.set_xticks(range(len(rates)), rates)
    axes.set(ylabel="seconds to 97%", title="Time to an accuracy of 97%")
    axes.set_ylim(top=1.4 * longest)  # room for the legend
    axes.legend(ncols=2, fontsize=9)

    said = []
    for rate in rates:
        for way, name in ways:
            said.append(f"{name} {seconds[way, rate]:.0f} at {rate}")
    picture(f"Seconds until 97% of the test images are right, by the rate of the link: {', '.join(said)}.")
