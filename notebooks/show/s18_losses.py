"""The pictures of notebook 18: losses and gradient norms, of both ranks and of a step."""

from math import isfinite
from statistics import median

import matplotlib.pyplot as plt

from show.pictures import GREY, INK, RANKS, RED, picture, tile


def column(rows, name):
    return [row[name] for row in rows]


def draw_own_norms(ranks, skipped):
    """The norm of each rank's own gradient, and the norm of the average, which all ranks compute."""
    _, axes = plt.subplots(figsize=(5, 3.4))
    steps = column(ranks[0], "step")
    for rank, rows in enumerate(ranks):
        axes.plot(steps, column(rows, "own_norm"), color=RANKS[rank], lw=1.2, label=f"rank {rank}'s own")
    axes.plot(steps, column(ranks[0], "norm"), color=INK, lw=2.4, label="of the average")
    limits, accepted = [], []
    for row in ranks[0]:
        limits.append(4 * median(accepted) if len(accepted) >= 10 else None)
        if row["taken"]:
            accepted = [*accepted, row["norm"]][-50:]
    known = [(step, limit) for step, limit in zip(steps, limits, strict=True) if limit is not None]
    axes.plot(*zip(*known, strict=True), color=RED, ls="--", lw=1.4, label="the guard's limit")
    highest = max(column(ranks[0], "own_norm") + column(ranks[1], "own_norm"))
    for step in skipped:
        axes.text(step, highest + 0.25, f"{step}", ha="center", color=RED, weight="bold")
    axes.set(xlabel="step", ylabel="norm of the gradient", ylim=(0, highest + 0.9))
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=2)
    found = []
    for step in skipped:
        own = [rows[step - 1]["own_norm"] for rows in ranks]
        norm = ranks[0][step - 1]["norm"]
        found.append(f"in step {step}, it is {norm:.1f}: {own[0]:.1f} on rank 0, and {own[1]:.1f} on rank 1")
    usual = median(column(ranks[0], "norm"))
    picture(
        f"The norm of the averaged gradient is usually {usual:.1f}. It exceeds the guard's limit in steps "
        f"{' and '.join(map(str, skipped))}: {'; '.join(found)}."
    )


def draw_loss_and_norm(ranks, marks, usual):
    """The mean loss of the ranks above, the norm below, and the damaged steps."""
    rows = ranks[0]
    steps = column(rows, "step")
    losses = [sum(column(pair, "loss")) / len(pair) for pair in zip(*ranks, strict=True)]
    norms = column(rows, "norm")
    _, (upper, lower) = plt.subplots(2, 1, figsize=(4.8, 4.4), sharex=True)
    upper.plot(steps, losses, color=INK, lw=1.8, marker=".")
    lower.semilogy(steps, norms, color=INK, lw=1.8, marker=".")
    lower.axhline(4 * usual, color=RED, ls="--", lw=1.4)
    lower.text(steps[-1], 4.4 * usual, "4 times the usual norm", color=RED, size=9.5, ha="right")
    for first, last, _ in marks:
        for axes in (upper, lower):
            axes.axvspan(first - 0.5, last + 0.5, color=tile(RED, 0.35), lw=0)
    for first, last, words in marks:
        upper.text(
            (first + last) / 2, 1.02, words, ha="center", transform=upper.get_xaxis_transform(), size=9.5
        )
    upper.set(ylabel="loss")
    lower.set(xlabel="step", ylabel="norm")
    lower.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    lower.set_yticks([], minor=True)
    highest = max(norm for norm in norms if isfinite(norm))
    lower.set_ylim(0.6, 1.4 * highest)  # after set_yticks, which makes room for its largest number
    lower.axhline(usual, color=GREY, lw=1, ls=":")
    lower.set_xlim(steps[0] - 1, steps[-1] + 1)
    said = []
    for first, last, words in marks:
        where = slice(steps.index(first), steps.index(last) + 1)
        values = [f"{value:.1f}" for value in (losses[where][0], losses[where][-1])]
        high = [f"{value:.1f}" for value in (norms[where][0], norms[where][-1])]
        if first == last:
            said.append(f"step {first} ({words}) has loss {values[0]} and norm {high[0]}")
        else:
            said.append(
                f"from step {first} to {last} ({words}), the loss goes from {values[0]} to {values[1]}, and "
                f"the norm from {high[0]} to {high[1]}"
            )
    picture(f"Loss and norm of {len(steps)} steps. The usual norm is {usual:.2f}; {'; '.join(said)}.")
