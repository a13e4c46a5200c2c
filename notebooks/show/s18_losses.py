"""The pictures of notebook 18: losses and gradient norms, of both ranks and of a step."""

from math import isfinite
from statistics import median

import matplotlib.pyplot as plt
from matplotlib.ticker import MultipleLocator

from show.pictures import BLUE, GREEN, GREY, INK, ORANGE, PINK, RANKS, RED, picture, tile

BELOW = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.26)}


def column(rows, name):
    return [row[name] for row in rows]


def mean_losses(ranks):
    """The mean of the ranks' losses, for each step."""
    means = []
    for rows in zip(*ranks, strict=True):
        means.append(sum(column(rows, "loss")) / len(rows))
    return means


def limits_of(rows):
    """The guard's limit in each step, or None where it has accepted too few norms to have one."""
    limits = []
    accepted = []
    for row in rows:
        limits.append(4 * median(accepted) if len(accepted) >= 10 else None)
        if row["taken"]:
            accepted = [*accepted, row["norm"]][-50:]
    return limits


def times_usual(rows):
    """How many times the usual norm of its moment each norm is, as soon as the guard has a limit."""
    times = []
    for row, limit in zip(rows, limits_of(rows), strict=True):
        if limit is not None:
            times.append(4 * row["norm"] / limit)
    return times


def draw_own_norms(ranks, skipped):
    """The norm of each rank's own gradient, and the norm of the average, which all ranks compute."""
    _, axes = plt.subplots(figsize=(5, 3.4))
    steps = column(ranks[0], "step")
    norms = column(ranks[0], "norm")
    axes.plot(steps, norms, color=INK, lw=2.8, label="of the average")
    for rank, rows in enumerate(ranks):
        axes.plot(steps, column(rows, "own_norm"), color=RANKS[rank], lw=1.3, label=f"rank {rank}'s own")
    limits = limits_of(ranks[0])
    first = limits.count(None)  # the steps before have no limit
    axes.plot(steps[first:], limits[first:], color=RED, ls="--", lw=1.4, label="the guard's limit")
    highest = max(column(ranks[0], "own_norm") + column(ranks[1], "own_norm"))
    found = []
    for step in skipped:
        axes.text(step, highest + 0.25, f"{step}: skipped", ha="center", color=RED, weight="bold")
        on_rank_0, on_rank_1 = ranks[0][step - 1]["own_norm"], ranks[1][step - 1]["own_norm"]
        found.append(
            f"in step {step}, it is {norms[step - 1]:.1f} and the limit {limits[step - 1]:.1f}: "
            f"{on_rank_0:.1f} on rank 0, and {on_rank_1:.1f} on rank 1"
        )
    axes.set(xlabel="step", ylabel="norm of the gradient", ylim=(0, highest + 0.9))
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=2)
    picture(
        f"The norm of the averaged gradient is usually {median(norms):.1f}. The guard's limit is between "
        f"{min(limits[first:]):.1f} and {max(limits[first:]):.1f}. The norm exceeds it in steps "
        f"{' and '.join(map(str, skipped))}: {'; '.join(found)}."
    )


def two_axes(steps, usual, limit, highest, side):
    """For the loss above and the norm below, with the usual norm and, written on `side`, the limit."""
    _, (upper, lower) = plt.subplots(2, 1, figsize=(4.8, 4.8), sharex=True)
    lower.set_yscale("log")
    lower.axhline(limit, color=RED, ls="--", lw=1.4)
    where = steps[0] if side == "left" else steps[-1]
    lower.text(where, 1.12 * limit, "the guard's limit", color=RED, size=9.5, ha=side)
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
    there = steps.index(at)
    losses = {}
    norms = {}
    for kind, ranks in runs.items():
        losses[kind] = mean_losses(ranks)
        norms[kind] = column(ranks[0], "norm")
    upper, lower = two_axes(steps, usual, limit, 2 * highest_of(norms.values()), "left")
    said = []
    others = []  # the losses of all other steps
    for kind, colour, sign in zip(runs, (PINK, GREEN, BLUE), "os^", strict=True):
        looks = {"color": colour, "marker": sign, "ms": 4.5, "lw": 1.6, "label": kind}
        upper.plot(steps, losses[kind], **looks)
        lower.plot(steps, norms[kind], **looks)
        norm = norms[kind][there]
        said.append(f"with {kind}, loss {losses[kind][there]:.2f} and norm {norm:.2f}")
        others.append(losses[kind][:there] + losses[kind][there + 1 :])
        if isfinite(norm):
            lower.text(at + 0.9, norm, f"{norm / usual:.2g} times the usual norm", color=colour, va="bottom")
        else:
            mark_nan(upper, at, colour)
            mark_nan(lower, at, colour)
    upper.set_ylim(top=highest_of(losses.values()) + 0.5)
    lower.legend(**BELOW, ncols=3, columnspacing=1.2)
    picture(
        f"Loss and norm of steps {steps[0]} to {steps[-1]}. Step {at} has, {'; '.join(said)}. "
        f"In all other steps, the mean loss is at most {highest_of(others):.2f}."
    )


def highest_of(lists):
    """The largest number of several lists that is not NaN or infinite."""
    highest = 0.0
    for numbers in lists:
        for number in numbers:
            if isfinite(number):
                highest = max(highest, number)
    return highest


def mark_nan(axes, at, colour):
    """An arrow to the upper edge, where a run leaves the picture."""
    where = axes.get_xaxis_transform()
    arrow = {"arrowstyle": "->", "color": colour, "lw": 1.6}
    axes.annotate("", (at, 1), (at, 0.88), xycoords=where, textcoords=where, arrowprops=arrow)
    axes.text(at + 0.6, 0.95, "NaN from here on", color=colour, transform=where, va="center")


def draw_loss_and_norm(ranks, undamaged, first, last, usual, limit):
    """The losses of the ranks, their mean, and the norm, with damage on rank 1 from `first` to `last`; and
    the mean loss of the run without damage."""
    steps = column(ranks[0], "step")
    losses = mean_losses(ranks)
    calm = mean_losses(undamaged)
    norms = column(ranks[0], "norm")
    upper, lower = two_axes(steps, usual, limit, max(norms), "right")
    for axes in (upper, lower):
        axes.axvspan(first - 0.5, last + 0.5, color=tile(RED, 0.25), lw=0)
    for rank, rows in enumerate(ranks):
        upper.plot(steps, column(rows, "loss"), color=RANKS[rank], lw=1.3, label=f"rank {rank}")
    upper.plot(steps, losses, color=INK, lw=2.4, label="mean")
    upper.plot(steps, calm, color=PINK, lw=1.6, ls="--", label="mean without damage")
    upper.legend(loc="lower center", bbox_to_anchor=(0.45, 1), ncols=2)
    lower.plot(steps, norms, color=INK, lw=1.8, marker=".")
    begin = steps.index(first)
    end = steps.index(last)
    own = column(ranks[1], "loss")
    apart = 0.0  # after the damage
    for loss, calm_loss in zip(losses[end + 1 :], calm[end + 1 :], strict=True):
        apart = max(apart, abs(loss - calm_loss))
    picture(
        f"From step {first} to {last}, rank 1's loss goes from {own[begin]:.2f} to {own[end]:.2f}, the mean "
        f"loss from {losses[begin]:.2f} to {losses[end]:.2f} (lowest point: {min(losses):.1f}), and "
        f"the norm from {norms[begin]:.1f} to {norms[end]:.1f}. Without damage, the mean loss is "
        f"between {min(calm):.1f} and {max(calm):.1f}. After the damage, the two mean losses differ "
        f"by at most {apart:.2f}."
    )


def draw_ends(ways):
    """A row for each way, with the held-out loss of each order; lines join weights that are the same."""
    _, axes = plt.subplots(figsize=(4.8, 3))
    seen = {}  # for each checksum of weights, the height of its mark
    said = []
    for row, (way, ends) in enumerate(ways.items()):
        as_before = 0
        numbers = []
        for order, end in enumerate(ends):
            loss = end["held_out"]
            height = row + 0.2 * (order - 1)
            looks = {"color": (BLUE, ORANGE, GREEN)[order], "ls": "none", "marker": "os^"[order], "ms": 6}
            axes.plot(loss, height, label=f"order {order + 1}" if row == 0 else None, **looks)
            if end["checksum"] in seen:
                axes.plot([loss, loss], [seen[end["checksum"]], height], color=INK, lw=1, ls=":")
                as_before += 1
            seen[end["checksum"]] = height
            numbers.append(f"{loss:.3f}")
        if as_before == len(ends):
            axes.text(max(column(ends, "held_out")) + 0.01, row - 0.5, "same bits", va="center")
        said.append(f"{way} {', '.join(numbers)}")
    axes.set_yticks(range(len(ways)), list(ways))
    axes.set_ylim(len(ways) - 0.5, -0.5)  # the first way is on top
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("held-out loss after step 140")
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=3, handletextpad=0.1, columnspacing=1)
    picture(f"The held-out loss at the end of each way, in three orders: {'; '.join(said)}.")


def draw_apart(curves):
    """How far rank 1's weights are from rank 0's after each step."""
    _, axes = plt.subplots(figsize=(4.8, 3.4))
    looks = [(RED, "-", 2.4), (RED, ":", 1.8), (BLUE, "-.", 2), (GREEN, "--", 2)]
    said = []
    for (name, differences), (colour, style, width) in zip(curves.items(), looks, strict=True):
        steps = range(101, 101 + len(differences))
        axes.plot(steps, differences, color=colour, ls=style, lw=width, label=name)
        said.append(
            f"{name}: {differences[8]:.3f} after step 109, {differences[9]:.3f} after step 110, "
            f"{differences[27]:.4f} after step 128, and {differences[-1]:.4f} after step {steps[-1]}"
        )
    axes.set(xlabel="step", ylabel="difference between\nthe ranks' weights")
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=1)
    picture(f"The difference between the weights of rank 1 and of rank 0. {'; '.join(said)}.")
