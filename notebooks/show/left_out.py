"""Notebooks 05 and 06a leave out one part of a snapshot at a time. This draws how far the runs are off."""

import matplotlib.pyplot as plt

from show.pictures import GREY, RED, picture

PALE = GREY + "B0"  # paler than RED, and still visible on a dark page


def differing(distances):
    """The steps after which the weights differ, and by how much. A log axis has no place for 0."""
    steps, far = [], []
    for step, distance in enumerate(distances, 1):
        if distance > 0:
            steps.append(step)
            far.append(distance)
    return steps, far


def draw_left_out(runs, before, next_epoch, ticks):
    """A small picture for each part that was left out; its curve is red, the others are pale behind it.
    The next epoch begins `before` steps after the snapshot."""
    rows = (len(runs) + 1) // 2
    figure, grid = plt.subplots(rows, 2, figsize=(5, 1.6 * rows + 0.5), sharex=True, sharey=True)
    said = []
    for axes, left_out in zip(grid.flat, runs, strict=True):
        for other, distances in runs.items():
            if other != left_out:
                axes.plot(*differing(distances), color=PALE, lw=1)
        steps, far = differing(runs[left_out])
        axes.plot(steps, far, color=RED, lw=2.5)
        axes.plot(steps[0], far[0], "o", color=RED, ms=6)
        axes.axvline(before + 0.5, color=GREY, lw=1, ls=":")
        axes.set_title(left_out, size=10)
        axes.set(yscale="log", yticks=ticks)
        axes.minorticks_off()
        said.append(f"without {left_out}, from step {steps[0]} on, by up to {max(far):.1g}")
    first = grid.flat[0]
    place = first.get_xaxis_transform()  # steps across, and parts of the height
    # Above the line: inside, the label would lie on a curve.
    first.text(before + 0.5, 1.03, f"epoch {next_epoch}", size=9.5, ha="center", transform=place)
    marks = [plt.Line2D([], [], color=RED, lw=2.5), plt.Line2D([], [], color=PALE, lw=1)]
    names = ["without the part named", "without another part"]
    figure.legend(marks, names, loc="outside upper center", ncols=2)
    figure.supxlabel("steps since the snapshot", size=10)
    figure.supylabel("largest difference of a weight", size=10)
    picture(
        "How far the weights of a resumed run are from the weights of an uninterrupted run, after each step: "
        f"{'; '.join(said)}. The curves are drawn from the first difference on."
    )
