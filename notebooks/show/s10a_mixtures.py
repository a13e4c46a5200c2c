"""The pictures of notebook 10a: the order of work of two stages, and gradients of mixed weights."""

import matplotlib.pyplot as plt

from show.pictures import BLUE, DARK, ORANGE, RED, SKY, YELLOW, picture, tile


def is_mixed(event):
    """Whether this is a backward that met other weights than its forward."""
    return event.get("of_forward", event["version"]) != event["version"]


def mixed(log):
    return [event["batch"] for event in log if is_mixed(event)]


def draw_order(logs):
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
                colour = RED if is_mixed(event) else SKY if what == "forward" else YELLOW
                axes.barh(-stage, 0.9, 0.8, start + 0.05, color=tile(colour, 0.45))
                look = {"size": 9, "weight": "bold" if is_mixed(event) else "normal", "color": DARK}
                text = f"{what[0].upper()}{batch}\nv{version}"
                axes.text(start + 0.5, -stage, text, ha="center", va="center", **look)
    axes.set_yticks([0, -1], ["stage 0", "stage 1"])
    axes.margins(x=0)
    axes.set(xticks=[], xlabel="order of work", title="F: forward, B: backward, v: version")
    axes.tick_params(axis="y", length=0)


def draw_schedule(logs):
    draw_order(logs)
    marked = " and ".join(f"{mixed(log) or 'none'} in stage {stage}" for stage, log in enumerate(logs))
    picture(
        "The order of work of two stages on six batches. Marked are backwards that met newer weights than "
        f"their forward, those of batches {marked}."
    )


def draw_off(off):
    """For each comparison, how far the gradient of each batch is off, as a share of the true gradient."""
    styles = (RED, "s-"), (ORANGE, "^--"), (BLUE, "o-")
    _, axes = plt.subplots(figsize=(4.8, 3.4))
    for (label, values), (colour, style) in zip(off.items(), styles, strict=True):
        axes.plot(range(len(values)), [100 * value for value in values], style, color=colour, label=label)
    axes.set(xlabel="batch", ylabel="off by (%)", title="how wrong the first convolution's gradient is")
    axes.set_ylim(top=160 * max(max(values) for values in off.values()))  # room for the legend
    axes.legend()
    words = "; ".join(f"{label}: up to {max(values):.1%}" for label, values in off.items())
    picture(f"How far the gradient of the first convolution is from the true gradient, per batch. {words}.")
