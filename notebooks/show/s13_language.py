"""The pictures of notebook 13: what a step sends over each dimension, and the losses of a training run."""

import math

import matplotlib.pyplot as plt

from show.pictures import BLUE, GREY, ORANGE, picture


def draw_sent(sent):
    """Kilobytes that rank 0 sends in a step, for each kind of collective and dimension."""
    kinds = ["all-gather", "reduce-scatter", "all-reduce"]
    axes, totals = plt.figure(figsize=(5, 2.8)).add_subplot(), []
    for shift, (over, colour) in enumerate((("data", BLUE), ("tensor", ORANGE))):
        widths = [
            sum(size for (_, kind, way), size in sent.items() if (kind, way) == (wanted, over)) / 1e3
            for wanted in kinds
        ]
        places = [number + 0.4 * shift for number in range(3)]
        axes.barh(places, widths, 0.36, color=colour, label=f"over {over}")
        totals.append(f"{sum(widths):,.0f} kB over {over}")
    axes.set_yticks([0.2, 1.2, 2.2], kinds)
    axes.invert_yaxis()
    axes.set_xlabel("kB that rank 0 sends in a step")
    axes.legend()
    picture(
        f"In a step rank 0 sends {totals[0]}, in all-gathers and reduce-scatters, and {totals[1]}, most "
        "of it in all-reduces."
    )


def draw_losses(trained_on, held_back, characters):
    """The loss of each step on training text, and of every tenth step on text that is held back."""
    steps = len(trained_on)
    axes = plt.figure(figsize=(5, 3.4)).add_subplot()
    axes.plot(range(1, steps + 1), trained_on, color=BLUE, label="limericks that it trains on")
    axes.plot(range(10, steps + 1, 10), held_back, color=ORANGE, label="limericks held back")
    axes.axhline(math.log(characters), color=GREY, ls="--", label=f"guessing: log {characters}")
    axes.set(xlabel="step", ylabel="loss of a character", ylim=(0, 5.6))
    axes.legend()
    picture(
        f"The loss of {steps} steps. On limericks that the model trains on it falls to {trained_on[-1]:.2f}. "
        f"On limericks held back it falls to {min(held_back):.2f}, then rises to {held_back[-1]:.2f}."
    )
