"""The picture of notebook 06b: one process gets a signal, and both stop after the same step."""

import matplotlib.pyplot as plt

from show.pictures import DARK, GREY, INK, RANKS, RED, picture, tile


def draw_stop(diaries, told_at, shown=5):
    """The last steps of each process as bars, the signal, and when the processes vote and read the vote."""
    _, axes = plt.subplots(figsize=(5, 2.7))
    for rank, steps in enumerate(diaries):
        for before, after in zip(steps[-shown - 1 : -1], steps[-shown:], strict=True):
            begin = before[1] - told_at
            end = after[1] - told_at
            fill = tile(RANKS[rank], 0.6)
            axes.barh(-rank, end - begin, left=begin, height=0.5, color=fill, edgecolor=GREY, linewidth=0.8)
            axes.text((begin + end) / 2, -rank, after[0], ha="center", va="center", color=DARK, size=9)
    axes.plot((0, 0), (-1.4, -0.64), color=RED, ls="--", lw=1.4)
    axes.text(0, -0.5, "SIGTERM to process 1", ha="center", va="center", color=RED, size=10)
    *_, votes, reads = [when - told_at for _, when, *_ in diaries[1]]
    places = ((votes, -1.75, "process 1 votes for a stop"), (reads, -2.2, "both read the vote, save, end"))
    for moment, bottom, words in places:
        axes.plot((moment, moment), (bottom, -1.25), color=INK, lw=1)
        axes.text(moment, bottom, f"{words} ", ha="right", va="center", size=10)
    axes.set_yticks([0, -1], ["process 0", "process 1"])
    axes.set(xlabel="seconds since the signal", ylim=(-2.5, 0.4))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    last = diaries[0][-1][0]
    picture(
        f"The last {shown} steps of both processes. SIGTERM reaches process 1 in step {last - 1}. At the end "
        f"of this step, process 1 votes for a stop. At the end of step {last}, both processes read the vote "
        "and end."
    )
