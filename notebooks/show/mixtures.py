"""The pictures of notebook 10a: the order of work of two stages, and gradients of mixed weights."""

import matplotlib.pyplot as plt

from show import stale
from show.pictures import BLUE, ORANGE, RED, picture


def mixed(log):
    """The batches whose backward met other weights than their forward."""
    backwards = [event for event in log if event["what"] == "backward"]
    return [event["batch"] for event in backwards if event["of_forward"] != event["version"]]


def draw_schedule(logs):
    """The recorded order of two stages; backwards with other weights than their forward are marked."""
    stale.draw_schedule(logs)
    marked = " and ".join(f"{mixed(log) or 'none'} in stage {stage}" for stage, log in enumerate(logs))
    picture(
        "The order of work of two stages on six batches. Marked are backwards that met newer weights than "
        f"their forward, those of batches {marked}."
    )


def draw_off(off):
    """For each comparison, how far the gradient of each batch is off, as a share of the true gradient."""
    styles = (RED, "s-"), (ORANGE, "^--"), (BLUE, "o-")
    _, axes = plt.subplots(figsize=(4.8, 3.4))
    for (label, values), (colour, style) in zip(off.items(), styles, strict=True):
        axes.plot(range(len(values)), [100 * value for value in values], style, color=colour, label=label)
    axes.set(xlabel="batch", ylabel="off by (%)", title="how wrong the first convolution's gradient is")
    axes.set_ylim(top=160 * max(max(values) for values in off.values()))  # room for the legend
    axes.legend()
    words = "; ".join(f"{label}: up to {max(values):.1%}" for label, values in off.items())
    picture(f"How far the gradient of the first convolution is from the true gradient, per batch. {words}.")
