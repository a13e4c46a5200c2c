"""The pictures of notebook 18: losses and gradient norms, of both ranks and of a step."""

from math import isfinite
from statistics import median

import matplotlib.pyplot as plt
from matplotlib.ticker import MultipleLocator

from show.pictures import BLUE, GREEN, GREY, INK, PINK, RANKS, RED, picture, tile

BELOW = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.26)}


def column(rows, name):
    return [row[name] for row in rows]


def mean_losses(ranks):
    return [sum(column(rows, "loss")) / len(rows) for rows in zip(*ranks, strict=True)]


def draw_own_norms(ranks, skipped):
    """The norm of each rank's own gradient, and the norm of the average, which all ranks compute."""
    _, axes = plt.subplots(figsize=(5, 3.4))
    steps = column(ranks[0], "step")
    axes.plot(steps, column(ranks[0], "norm"), color=INK, lw=2.8, label="of the average")
    for rank, rows in enumerate(ranks):
        axes.plot(steps, column(rows, "own_norm"), color=RANKS[rank], lw=1.3, label=f"rank {rank}'s own")
    limits, accepted = [], []
    for row in ranks[0]:
        limits.append(4 * median(accepted) if len(accepted) >= 10 else None)
        if row["taken"]:
            accepted = [*accepted, row["norm"]][-50:]
    known = [(step, limit) for step, limit in zip(steps, limits, strict=True) if limit is not None]
    axes.plot(*zip(*known, strict=True), color=RED, ls="--", lw=1.4, label="the guard's limit")
    highest = max(column(ranks[0], "own_norm") + column(ranks[1], "own_norm"))
    for step in skipped:
        axes.text(step, highest + 0.25, f"{step}: skipped", ha="center", color=RED, weight="bold")
    axes.set(xlabel="step", ylabel="norm of the gradient", ylim=(0, highest + 0.9))
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=2)
    found = []
    for step in skipped:
        own = [rows[step - 1]["own_norm"] for rows in ranks]
        norm, limit = ranks[0][step - 1]["norm"], limits[step - 1]
        found.append(
            f"in step {step}, it is {norm:.1f} and the limit {limit:.1f}: "
            f"{own[0]:.1f} on rank 0, and {own[1]:.1f} on rank 1"
        )
    usual = median(column(ranks[0], "norm"))
    known = [limit for limit in limits if limit is not None]
    picture(
        f"The norm of the averaged gradient is usually {usual:.1f}. The guard's limit is between "
        f"{min(known):.1f} and {max(known):.1f}. The norm exceeds it in steps "
        f"{' and '.join(map(str, skipped))}: {'; '.join(found)}."
    )


def two_axes(steps, usual, limit, highest):
    """For the loss above, and for the norm below, with the usual norm and the guard's limit."""
    _, (upper, lower) = plt.subplots(2, 1, figsize=(4.8, 4.8), sharex=True)
    lower.set_yscale("log")
    lower.axhline(limit, color=RED, ls="--", lw=1.4)
    lower.text(steps[-1], 1.12 * limit, "the guard's limit", color=RED, size=9.5, ha="right")
    lower.axhline(usual, color=GREY, lw=1, ls=":")
    lower.text(steps[-1], 0.85 * usual, "the usual norm", size=9.5, ha="right", va="top")
    upper.set(ylabel="loss")
    lower.set(xlabel="step", ylabel="norm (log scale)")
    lower.xaxis.set_major_locator(MultipleLocator(5))
    lower.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    lower.set_yticks([], minor=True)
    lower.set_ylim(0.4, 1.5 * highest)  # after set_yticks, which makes room for its largest number
    lower.set_xlim(steps[0] - 1, steps[-1] + 1)
    return upper, lower


def draw_damages(runs, at, usual, limit):
    """The mean loss and the norm of several runs, which differ only in the damage in step `at`."""
    steps = column(next(iter(runs.values()))[0], "step")
    norms = {kind: column(ranks[0], "norm") for kind, ranks in runs.items()}
    highest = max(norm for run in norms.values() for norm in run if isfinite(norm))
    upper, lower = two_axes(steps, usual, limit, highest)
    said = []
    for (kind, ranks), colour, sign in zip(runs.items(), (PINK, GREEN, BLUE), "os^", strict=True):
        losses = mean_losses(ranks)
        looks = {"color": colour, "marker": sign, "ms": 4.5, "lw": 1.6, "label": kind}
        upper.plot(steps, losses, **looks)
        lower.plot(steps, norms[kind], **looks)
        loss, norm = losses[steps.index(at)], norms[kind][steps.index(at)]
        said.append(f"with {kind}, loss {loss:.2f} and norm {norm:.2f}")
        if not isfinite(loss):
            for axes in (upper, lower):
                where = axes.get_xaxis_transform()
                axes.axvline(at, color=colour, ls=":", lw=1.6)
                axes.text(at + 1.3, 0.85, "NaN from here on", color=colour, transform=where, va="center")
    lower.legend(**BELOW, ncols=3, columnspacing=1.2)
    picture(f"Loss and norm of steps {steps[0]} to {steps[-1]}. Step {at} has, {'; '.join(said)}.")


def draw_loss_and_norm(ranks, first, last, usual, limit):
    """The losses of the ranks, their mean, and the norm, with damage on rank 1 from `first` to `last`."""
    steps = column(ranks[0], "step")
    losses, norms = mean_losses(ranks), column(ranks[0], "norm")
    upper, lower = two_axes(steps, usual, limit, max(norms))
    for axes in (upper, lower):
        axes.axvspan(first - 0.5, last + 0.5, color=tile(RED, 0.25), lw=0)
    for rank, rows in enumerate(ranks):
        upper.plot(steps, column(rows, "loss"), color=RANKS[rank], lw=1.3, label=f"rank {rank}")
    upper.plot(steps, losses, color=INK, lw=2.4, label="mean")
    upper.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3)
    lower.plot(steps, norms, color=INK, lw=1.8, marker=".")
    where = slice(steps.index(first), steps.index(last) + 1)
    own = column(ranks[1], "loss")[where]
    picture(
        f"From step {first} to {last}, rank 1's loss goes from {own[0]:.2f} to {own[-1]:.2f}, the mean loss "
        f"from {losses[where][0]:.2f} to {losses[where][-1]:.2f} (lowest point: {min(losses):.1f}), and "
        f"the norm from {norms[where][0]:.1f} to {norms[where][-1]:.1f}. In the nine steps before, the mean "
        f"loss is between {min(losses[:9]):.1f} and {max(losses[:9]):.1f}; afterwards, it is between "
        f"{min(losses[where.stop :]):.1f} and {max(losses[where.stop :]):.1f}."
    )


def draw_ways(ways):
    """A row for each way: which steps were taken, and with which batches."""
    _, axes = plt.subplots(figsize=(4.8, 2.6))
    looks = {
        "a step with an ordinary batch": {"color": tile(BLUE, 0.6)},
        "a step with a bad batch": {"color": tile(RED, 0.9), "hatch": "////"},
        "no step": {"color": "none"},
    }
    said = []
    for height, (way, rows) in enumerate(ways.items()):
        for row in rows:
            word = "no step"
            if row["taken"]:
                word = "a step with a bad batch" if row["damaged"] else "a step with an ordinary batch"
            axes.bar(row["step"], 0.62, 0.8, height - 0.31, edgecolor=GREY, lw=0.6, label=word, **looks[word])
        taken = sum(column(rows, "taken"))
        said.append(f"{way}: {taken} of {len(rows)} computed steps are taken")
    axes.set_yticks(range(len(ways)), list(ways))
    axes.set_ylim(len(ways) - 0.5, -0.5)  # the first way is on top
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set(xlabel="step", xlim=(104.4, 125.6), xticks=[105, 110, 115, 120, 125])
    handles, words = axes.get_legend_handles_labels()
    known = dict(zip(words, handles, strict=True))
    axes.legend(known.values(), known.keys(), loc="upper center", bbox_to_anchor=(0.35, -0.32))
    picture(f"Which steps from 105 to 125 are taken. {'; '.join(said)}.")


def draw_apart(far):
    """How far rank 1's weights are from rank 0's after each step, with each guard."""
    _, axes = plt.subplots(figsize=(4.8, 2.6))
    for (guard, differences), colour, style in zip(far.items(), (GREEN, RED), ("--", "-"), strict=True):
        steps = range(101, 101 + len(differences))
        axes.plot(steps, differences, color=colour, ls=style, lw=2, label=f"guard: {guard}")
    axes.set(xlabel="step", ylabel="largest difference")
    axes.legend(loc="upper left", bbox_to_anchor=(0, 1.3))
    said = [
        f"with the {guard}, {differences[8]:.3f} after step 109, {differences[9]:.3f} after step 110, and "
        f"{differences[-1]:.3f} after step {100 + len(differences)}"
        for guard, differences in far.items()
    ]
    picture(f"The largest difference between a weight of rank 1 and of rank 0: {'; '.join(said)}.")
