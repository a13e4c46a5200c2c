"""Notebook 08a: what a picture costs, and how long clients wait."""

import matplotlib.pyplot as plt

from show.pictures import BLUE, ORANGE, picture


def draw_cost(cost):
    """Milliseconds for each picture, by the number of pictures in a forward pass."""
    axes = plt.subplots(figsize=(5, 2.4))[1]
    axes.bar([str(size) for size in cost], list(cost.values()), color=BLUE, width=0.6)
    axes.set(xlabel="pictures in a forward pass", ylabel="ms for each", title="What a picture costs")
    picture(f"The cost of a picture: {cost[1]:.2f} ms alone, {cost[32]:.2f} ms in a pass of 32.")


def draw_waits(seconds):
    """For each largest batch, the share of the requests that are answered after so many milliseconds."""
    axes = plt.subplots(figsize=(5, 2.8))[1]
    medians = {}
    for (largest, waits), colour in zip(seconds.items(), (ORANGE, BLUE), strict=True):
        times = sorted(1000 * wait for wait in waits)
        medians[largest] = times[len(times) // 2]
        share = [100 * (number + 1) / len(times) for number in range(len(times))]
        axes.plot(times, share, color=colour, lw=2, label=f"at most {largest} in a batch")
    axes.set(xlabel="ms until the answer", ylabel="% of the requests", title="How long clients wait")
    axes.set(xlim=(0, None), ylim=(0, 100))
    axes.legend()
    picture(
        f"The share of requests answered after so many milliseconds. Half have it after {medians[1]:.0f} ms "
        f"with one picture per pass, and after {medians[32]:.0f} ms with up to 32."
    )
