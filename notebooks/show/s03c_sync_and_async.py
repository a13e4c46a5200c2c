"""What it costs to wait for the slowest process, and what happens without waiting: notebook 03c."""

import matplotlib.pyplot as plt
import numpy

from show.pictures import BLUE, GREEN, GREY, ORANGE, RANKS, RED, SKY, arrow, box, canvas, picture, timeline

WAITING = {"computes": BLUE, "held up": RED, "in all_reduce": GREY}


def draw_who_waits():
    axes = canvas(4.7, 5, across=10, down=11)
    for rank in range(3):
        left = 0.1 + 3.4 * rank
        box(axes, left, 8.4, 3, 1.4, f"process {rank}", "its own weights", RANKS[rank])
        arrow(axes, (left + 1.5, 8.35), (left + 1.5, 7.65), both=True)
        box(axes, left, 2.7, 3, 1.1, f"worker {rank}", "", RANKS[rank])
        arrow(axes, (left + 1.0, 1.65), (left + 1.0, 2.65), "pull", at=(-0.55, -0.25), size=9)
        arrow(axes, (left + 2.0, 2.65), (left + 2.0, 1.65), "push", at=(0.6, -0.25), size=9)
    box(axes, 0.1, 6.6, 9.8, 1, "all_reduce", "", GREY)
    for server, half in enumerate(("half of the weights", "the other half")):
        box(axes, 0.1 + 5 * server, 0.2, 4.8, 1.4, f"server {server}", half, GREY)
    axes.text(0.1, 10.3, "synchronous: all wait for the slowest", weight="bold", size=10)
    axes.text(0.1, 4.4, "asynchronous: no process waits", weight="bold", size=10)
    picture(
        "Above, synchronous: three processes, each with its own weights, meet in an all_reduce, and all wait "
        "for the slowest. Below, asynchronous: three workers pull weights from two servers and push "
        "gradients to them, and no worker waits for another."
    )


def seconds(times):
    """From the first start of a step to the last end, over all ranks: they share the machine's clock."""
    starts = [own[0][0] for own in times]
    ends = [own[-1][-1] for own in times]
    return max(ends) - min(starts)


def draw_straggler(results, shown):
    """For each title the timelines of all ranks: of which phase, from which step, up to which."""
    phases = {}
    for title, (phase, first, last) in shown.items():
        phases[title] = [result[phase][first:last] for result in results]
    _, all_axes = plt.subplots(len(phases), 1, figsize=(4.8, 2.2 * len(phases)))
    for axes, (title, ranks) in zip(all_axes, phases.items(), strict=True):
        begin = min(steps[0][0] for steps in ranks)
        rows = {}
        for rank, steps in enumerate(ranks):
            row = []
            for moments in steps:
                marks = [1000 * (moment - begin) for moment in moments]
                row += zip(marks, marks[1:], WAITING, strict=False)
            rows[f"rank {rank}"] = row
        timeline(axes, rows, WAITING)
        first = axes is all_axes[0]
        axes.set_title(title, pad=26 if first else 6)  # room for the legend
        axes.get_legend().set_visible(first)
        axes.set_xlim(left=0)
    said = []
    for title, ranks in phases.items():
        parts = []
        for rank, steps in enumerate(ranks):
            parts.append(f"rank {rank} {part_in_all_reduce(steps):.0%}")
        said.append(f"{title}, time in all_reduce: {', '.join(parts)}")
    picture(f"Timelines of {len(results)} ranks. {'. '.join(said)}.")


def part_in_all_reduce(steps):
    inside = 0
    for _, _, ready, end in steps:
        inside += end - ready
    return inside / (steps[-1][-1] - steps[0][0])


def logs_of(found, names):
    """(second, batch, loss) of each gradient, from all workers, in the order of the batches."""
    logs = {}
    for name in names:
        entries = []
        for result in found:
            entries += result[name]["log"]
        logs[name] = sorted(entries, key=lambda entry: entry[1])
    return logs


def draw_loads(counted):
    """Bytes through a server in a step: what the formula says, and what was counted."""
    _, axes = plt.subplots(figsize=(4.6, 3.2))
    sizes = numpy.arange(1, 9)
    axes.plot(sizes, 2 * sizes, color=RED, label="one server")
    axes.plot(sizes, sizes, color=ORANGE, label="two")
    axes.plot(sizes, 2 + 0 * sizes, color=BLUE, label="as many as workers")
    said = []
    for (servers, workers), load in counted.items():
        axes.plot(workers, load, "o", color=GREY, ms=6, mfc="none", mew=1.6)
        said.append(f"{load:.2f} K with {servers} server(s) and {workers} worker(s)")
    axes.set(xlabel="workers, N", ylabel="bytes through a server, in K", ylim=(0, 13))
    axes.set_title("A step. Lines: 2 K N / S. Marks: counted")
    axes.legend()
    picture(
        "Bytes through a server in a step. With one server they rise with each worker, with two half as "
        f"much; with a server for each worker they stay at 2 K. Counted: {', '.join(said) or 'nothing'}."
    )


STYLES = ((SKY, "-", 6), (RED, "--", 2.2), (GREEN, "-", 2.2))


def draw_runs(logs, size):
    """The loss of each run against the time and against the images, `size` in a batch. Returns images/s."""
    _, (above, below) = plt.subplots(2, 1, figsize=(4.8, 5.4))
    speeds = {}
    ends = []
    for (label, log), (colour, style, width) in zip(logs.items(), STYLES, strict=True):
        times, _, values = numpy.array(log).T
        smooth = numpy.convolve(values, numpy.ones(30) / 30, mode="valid")  # 30 batches: ten steps
        order = numpy.argsort(times[29:])
        look = {"color": colour, "lw": width, "label": label}
        above.plot(times[29:][order] - times.min(), smooth[order], style, **look)
        below.plot(size * numpy.arange(30, len(values) + 1) / 1000, smooth, style, **look)
        whole = times.max() - times.min()
        speeds[label] = size * len(values) / whole
        ends.append(f"{label} {smooth[-1]:.2f} after {whole:.1f} s")
    above.set(xlabel="seconds", ylabel="loss", title="against time")
    below.set(xlabel="thousands of images", ylabel="loss", title="against images")
    below.legend(fontsize=9)
    picture(f"The loss of three runs, against time and against images. At the end: {'; '.join(ends)}.")
    return speeds


def draw_ages(ages):
    """For each worker, how many of its gradients had which age. The last worker is the slow one."""
    longest = max(map(max, ages))
    _, panels = plt.subplots(len(ages), 1, figsize=(4.8, 4.6), sharex=True)
    said = []
    for worker, (axes, own) in enumerate(zip(panels, ages, strict=True)):
        axes.bar(range(longest + 1), numpy.bincount(own, minlength=longest + 1), color=RANKS[worker])
        name = f"worker {worker}"
        if worker == len(ages) - 1:
            name += " (slow)"
        said.append(f"{name}: {len(own)} gradients, mean age {numpy.mean(own):.1f}")
        axes.set_title(said[-1])
    panels[1].set_ylabel("gradients")
    panels[-1].set_xlabel("updates between its pull and its push")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    picture(f"How old the gradients of each worker were, in updates. {'; '.join(said)}.")
