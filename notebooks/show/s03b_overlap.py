"""When DDP computes and when it sends: an imagined step, and real ones from PyTorch's profiler."""

import json
import statistics

import matplotlib.pyplot as plt

from parts import spans
from show.pictures import BLUE, GREEN, INK, ORANGE, RED, SKY, picture, timeline

COLOURS = {"forward": SKY, "backward": BLUE, "all_reduce": ORANGE, "update": GREEN}
FORWARD, BACKWARD, MESSAGE, LAYER = 1, 2, 0.8, 1.3  # time for a layer; for any message; for a layer in it


def imagine(layers_a_bucket, layers=6):
    """The bars of a step: what is computed, and what is sent."""
    computes = []
    for layer in range(layers):
        computes.append((layer * FORWARD, (layer + 1) * FORWARD, "forward"))
    sends = []
    now = layers * FORWARD
    link_free = 0
    for layer in range(1, layers + 1):
        computes.append((now, now + BACKWARD, "backward"))
        now += BACKWARD
        if layer % layers_a_bucket == 0:
            begin = max(now, link_free)
            link_free = begin + MESSAGE + LAYER * layers_a_bucket
            sends.append((begin, link_free, "all_reduce"))
    computes.append((link_free, link_free + 1, "update"))
    return {"computes": computes, "sends": sends}


def draw_imagined(sizes):
    """A step for each size of the buckets, counted in layers."""
    _, panels = plt.subplots(len(sizes), sharex=True, figsize=(4.8, 0.7 + 1.55 * len(sizes)))
    words = []
    for axes, number in zip(panels, sizes, strict=True):
        rows = imagine(number)
        words.append(f"with {number} in a bucket at {rows['computes'][-1][1]:.1f}")
        timeline(axes, rows, COLOURS, unit="")
        for bucket, (begin, end, _) in enumerate(rows["sends"]):
            axes.text((begin + end) / 2, -1.55, bucket, ha="center", va="center", size=9, weight="bold")
        axes.set_ylim(-1.85, 0.6)
        layers = "1 layer" if number == 1 else f"{number} layers"
        title = f"{layers} a bucket: {len(rows['sends'])} all_reduce"
        axes.set_title(title, pad=26 if axes is panels[0] else 6)  # room for the legend
        axes.get_legend().set_visible(axes is panels[0])
    legend_above(panels[0], -0.2)
    panels[-1].set_xlabel("time (a drawing, not a measurement)")
    picture(
        "Imagined steps of a model of six layers. The smaller the buckets, the earlier the first all-reduce "
        f"begins, and the more of the sending overlaps with backward. The step ends {', '.join(words)}."
    )


TIGHT = {"fontsize": 9, "handlelength": 1, "handletextpad": 0.4, "columnspacing": 0.9, "borderaxespad": 0.2}


def legend_above(axes, left):
    """A timeline's legend in one row, which begins left of the axes: it is as wide as the picture."""
    legend = axes.get_legend()
    names = [text.get_text() for text in legend.get_texts()]
    axes.legend(
        legend.legend_handles, names, loc="lower left", bbox_to_anchor=(left, 1), ncols=len(names), **TIGHT
    )


def read_trace(running):
    """All bars of a trace: begin and end in milliseconds of the machine's clock, name, thread."""
    trace = json.loads(running.where.with_suffix(".trace").read_text())
    found = []
    for event in trace["traceEvents"]:
        if event.get("ph") == "X":
            end = event["ts"] + event["dur"]
            found.append((event["ts"] / 1000, end / 1000, event["name"], event["tid"]))
    return sorted(found)


def kind_of(name):
    """Which of COLOURS a bar of the profiler belongs to, or "handed over". None: it lies inside another."""
    if name.startswith("autograd::engine::evaluate_function"):
        return None if name.endswith("AccumulateGrad") else "backward"  # that one hands gradients to DDP
    kinds = {"gloo:all_reduce": "all_reduce", "c10d::allreduce_": "handed over"}
    return kinds.get(name, name if name in ("forward", "update") else None)


def steps_of(trace, setting):
    """For each step of this setting: its begin, its length, and {thread: bars}, counted from the begin."""
    steps = []
    for first, last, name, main in trace:
        if name == setting:
            threads = {main: []}
            for begin, end, inner, thread in trace:
                if first <= begin < last and kind_of(inner):
                    threads.setdefault(thread, []).append((begin - first, end - first, kind_of(inner)))
            steps.append({"begin": first, "ms": last - first, "threads": threads})
    return steps


def read_steps(ranks):
    """The steps of each setting, by rank, from the traces of all ranks. Each rank returned the settings."""
    traces = list(map(read_trace, ranks))
    steps = {}
    for setting in ranks[0].result:
        steps[setting] = [steps_of(trace, setting) for trace in traces]
    return steps


def bars(step, *kinds):
    found = []
    for row in step["threads"].values():
        for bar in row:
            if bar[2] in kinds:
                found.append(bar)
    return found


def covered(bars):
    """The time under these bars."""
    return spans.covered((begin, end) for begin, end, _ in bars)


def hidden(step):
    """The time in which a bucket was on its way and the same process computed."""
    computing = bars(step, "forward", "backward")
    sending = bars(step, "all_reduce")
    return covered(computing) + covered(sending) - covered(computing + sending)


def medians(steps):
    """Of these steps, in ms: the time of a bucket on its way, how much of that is hidden, the whole step."""
    sending = []
    sending_hidden = []
    whole = []
    for step in steps:
        sending.append(covered(bars(step, "all_reduce")))
        sending_hidden.append(hidden(step))
        whole.append(step["ms"])
    return tuple(map(statistics.median, (sending, sending_hidden, whole)))


def draw_steps(steps):
    """For each setting the step that has the median length on rank 0, of all ranks. Rank 0 begins it at 0."""
    said = []
    _, halves = plt.subplots(len(steps), sharex=True, figsize=(4.8, 2.7 * len(steps)))
    for axes, (setting, ranks) in zip(halves, steps.items(), strict=True):
        lengths = [step["ms"] for step in ranks[0]]
        middle = lengths.index(statistics.median(lengths))
        step = ranks[0][middle]
        rows = {}
        for rank, of_rank in enumerate(ranks):
            shift = of_rank[middle]["begin"] - step["begin"]
            threads = [*of_rank[middle]["threads"].values(), [], []]
            names = (f"rank {rank}", f"rank {rank}, gloo 1", f"rank {rank}, gloo 2")
            for name, row in zip(names, threads, strict=False):
                rows[name] = shifted(row, shift)
            for begin, _, _ in bars(of_rank[middle], "handed over"):
                axes.plot(begin + shift, -3 * rank, "|", color=INK, markersize=18, markeredgewidth=1.5)
        timeline(axes, rows, COLOURS)
        first = min(bars(step, "handed over"))[0]
        begin = min(bars(step, "backward"))[0]
        end = max(bars(step, "backward"))[1]
        said.append(
            f"With {setting}, rank 0 computes backward from {begin:.0f} to {end:.0f} ms, hands over the "
            f"first of {len(bars(step, 'all_reduce'))} bucket(s) at {first:.0f} ms, and ends the step at "
            f"{step['ms']:.0f} ms"
        )
        axes.set_title(setting, pad=26 if axes is halves[0] else 6)  # room for the legend
        axes.get_legend().set_visible(axes is halves[0])
    legend_above(halves[0], -0.3)
    halves[0].set(xlabel="")
    picture(f"Timelines of a real step of {len(ranks)} ranks. {'. '.join(said)}.")


def shifted(row, shift):
    """The bars of a thread that have a colour, later by this time."""
    drawn = []
    for begin, end, kind in row:
        if kind in COLOURS:
            drawn.append((begin + shift, end + shift, kind))
    return drawn


def draw_distances(distances):
    """How far apart the weights of two ranks are, after each step, for two ways to call the model."""
    _, axes = plt.subplots(figsize=(4.8, 2.8))
    said = []
    for (call, values), colour, mark in zip(distances.items(), (RED, BLUE), "so", strict=True):
        axes.plot(range(1, len(values) + 1), values, marker=mark, color=colour, label=call)
        ends = f"{values[0]:.3f} after the first step and {values[-1]:.3f} after the last"
        said.append(f"with {call}, it is {ends}")
    axes.set(xlabel="step", ylabel="largest distance", title="How far apart the ranks' weights are")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    picture(f"The largest distance between a weight and its mean over the ranks: {'; '.join(said)}.")
