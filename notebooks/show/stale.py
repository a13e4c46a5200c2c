"""Who waits for whom, with and without an all_reduce; a straggler's timeline; a pipeline's schedule."""

import matplotlib.pyplot as plt

from show.pictures import BLUE, DARK, GREY, RANKS, RED, SKY, YELLOW, arrow, box, canvas, tile, timeline

WAITING = {"computes": BLUE, "held up": RED, "in all_reduce": GREY}


def draw_who_waits():
    """Above: weights in each process, which meet. Below: workers, and two servers that have the weights."""
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


def draw_straggler(phases):
    """For each title a timeline of all ranks: (start, computed, ready, end) of some steps, in seconds."""
    _, all_axes = plt.subplots(len(phases), 1, figsize=(4.8, 2.2 * len(phases)))
    for axes, (title, ranks) in zip(all_axes, phases.items(), strict=True):
        begin = min(steps[0][0] for steps in ranks)
        rows = {}
        for rank, steps in enumerate(ranks):
            rows[f"rank {rank}"] = row = []
            for moments in steps:
                marks = [1000 * (moment - begin) for moment in moments]
                row += zip(marks, marks[1:], WAITING, strict=False)
        timeline(axes, rows, WAITING)
        first = axes is all_axes[0]
        axes.set_title(title, pad=26 if first else 6)  # room for the legend
        axes.get_legend().set_visible(first)
        axes.set_xlim(left=0)


def draw_schedule(logs):
    """The recorded order of two stages. All are drawn equally long, and each begins when it can. Red are
    backwards that met other weights than their forward did."""
    _, axes = plt.subplots(figsize=(4.8, 2.2))
    ended, free, todo = {}, [0, 0], [list(log) for log in logs]
    while any(todo):
        for stage in (0, 1):
            while todo[stage]:
                event = todo[stage][0]
                what, batch, version = event["what"], event["batch"], event["version"]
                other = {("forward", 1): 0, ("backward", 0): 1}.get((what, stage))
                if other is not None and (what, batch, other) not in ended:
                    break
                todo[stage].pop(0)
                start = max(free[stage], ended.get((what, batch, other), 0))
                free[stage] = ended[what, batch, stage] = start + 1
                mixed = event.get("of_forward", version) != version
                colour = RED if mixed else SKY if what == "forward" else YELLOW
                axes.barh(-stage, 0.9, 0.8, start + 0.05, color=tile(colour, 0.45))
                text, weight = f"{what[0].upper()}{batch}\nv{version}", "bold" if mixed else "normal"
                axes.text(
                    start + 0.5, -stage, text, ha="center", va="center", size=9, weight=weight, color=DARK
                )
    axes.set_yticks([0, -1], ["stage 0", "stage 1"])
    axes.margins(x=0)
    axes.set(xticks=[], xlabel="order of work", title="F: forward, B: backward, v: version")
    axes.tick_params(axis="y", length=0)
