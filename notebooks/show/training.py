"""The job of lessons 01 to 06 in pictures: its images, its curves, and the parts of a step."""

import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter

from show.pictures import RANKS, curves, picture


def draw_images(digits, rows=4):
    """Images of digits, each with its label above it."""
    columns = len(digits) // rows
    _, grid = plt.subplots(rows, columns, figsize=(4, 3.3))
    for axes, image, label in zip(grid.flat, digits.images, digits.labels, strict=True):
        axes.imshow(image[0], cmap="gray_r")
        axes.set_title(label.item(), size=9, loc="center", pad=2)
        axes.axis("off")
    picture(f"{len(digits)} images of digits in many fonts, rotated and noisy, each with its label above it.")


def draw_curves(runs):
    """The loss and the accuracy of runs over the epochs: {label: what show.curve returns}."""
    _, (upper, lower) = plt.subplots(2, 1, figsize=(4, 4.4 if len(runs) > 1 else 4), sharex=True)
    curves(upper, runs)
    curves(lower, runs, key="accuracy")
    upper.set(title="mean loss of the training batches", xlabel="")
    lower.set_title("accuracy on the test images")
    lower.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))  # as the lesson prints it
    lower.get_legend().remove()
    first, *others = runs.values()
    words = (
        f"in {len(first)} epochs, the loss falls from {first[0]['loss']:.2f} to {first[-1]['loss']:.3f}, "
        f"and the accuracy rises from {first[0]['accuracy']:.1%} to {first[-1]['accuracy']:.1%}"
    )
    if others:
        rows = [pair for other in others for pair in zip(first, other, strict=True)]
        off = max(abs(other["loss"] / own["loss"] - 1) for own, other in rows)
        words += f". The curves lie on one another: the losses differ by at most {off:.0e} of their value"
    picture(f"Loss and accuracy of {', '.join(runs)}: {words}.")


def draw_parts(seconds, steps, device):
    """Where the time of a step goes: {part: the seconds that it took in all steps}."""
    whole = sum(seconds.values())
    spent = {part: 1000 * of_part / steps for part, of_part in seconds.items()}
    _, axes = plt.subplots(figsize=(4, 2))
    for row, (part, colour) in enumerate(zip(spent, RANKS, strict=True)):
        axes.barh(row, spent[part], color=colour)
        axes.text(spent[part], row, f" {spent[part]:.1f} ms, {seconds[part] / whole:.1%}", va="center")
    axes.set_yticks(range(len(spent)), spent)
    axes.invert_yaxis()
    axes.set(xlabel=f"milliseconds (mean of {steps} steps)", xlim=(0, 1.4 * max(spent.values())))
    words = ", ".join(f"{part} {length:.1f} ms" for part, length in spent.items())
    picture(f"Where the time of a step goes on the {device}: {words}.")
