"""The job of lessons 01 to 06 in pictures: its images, its curves, and the parts of a step."""

import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter

from show.pictures import curves, picture


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
        off = max(off_by(first, other) for other in others)
        words += f". The curves lie on one another: the losses differ by at most {off:.0e} of their value"
    picture(f"Loss and accuracy of {', '.join(runs)}: {words}.")


def off_by(rows, other_rows):
    """How far the losses of two runs are apart at most, as a part of their value."""
    largest = 0
    for row, other in zip(rows, other_rows, strict=True):
        largest = max(largest, abs(other["loss"] / row["loss"] - 1))
    return largest
