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
    ended = {}  # when a stage has ended its forward or backward of a batch
    free = [0, 0]  # when each stage can begin its next event
    waiting = [list(log) for log in logs]
    while waiting[0] or waiting[1]:
        for stage in (0, 1):
            while waiting[stage] and has_input(waiting[stage][0], stage, ended):
                event = waiting[stage].pop(0)
                start = max(free[stage], ended.get(input_of(event, stage), 0))
                draw_event(axes, event, stage, start)
                free[stage] = start + 1
                ended[event["what"], event["batch"], stage] = start + 1
    axes.set_yticks([0, -1], ["stage 0", "stage 1"])
    axes.margins(x=0)
    axes.set(xticks=[], xlabel="order of work", title="F: forward, B: backward, v: version")
    axes.tick_params(axis="y", length=0)


def input_of(event, stage):
    """The work of the other stage that this event waits for. None: it waits for no other stage."""
    if event["what"] == "forward" and stage == 1:
        return "forward", event["batch"], 0
    if event["what"] == "backward" and stage == 0:
        return "backward", event["batch"], 1
    return None


def has_input(event, stage, ended):
    needed = input_of(event, stage)
    return needed is None or needed in ended


def draw_event(axes, event, stage, start):
    weight = "normal"
    if is_mixed(event):
        colour, weight = RED, "bold"
    elif event["what"] == "forward":
        colour = SKY
    else:
        colour = YELLOW
    axes.barh(-stage, 0.9, 0.8, start + 0.05, color=tile(colour, 0.45))
    text = f"{event['what'][0].upper()}{event['batch']}\nv{event['version']}"
    axes.text(start + 0.5, -stage, text, ha="center", va="center", size=9, weight=weight, color=DARK)


def draw_schedule(logs):
    draw_order(logs)
    marked = []
    for stage, log in enumerate(logs):
        marked.append(f"{mixed(log) or 'none'} in stage {stage}")
    picture(
        "The order of work of two stages on six batches. Marked are backwards that met newer weights than "
        f"their forward, those of batches {' and '.join(marked)}."
    )


def draw_off(off):
    """For each comparison, how far the gradient of each batch is off, as a share of the true gradient."""
    styles = (RED, "s-"), (ORANGE, "^--"), (BLUE, "o-")
    _, axes = plt.subplots(figsize=(4.8, 3.4))
    largest, said = 0, []
    for (label, values), (colour, style) in zip(off.items(), styles, strict=True):
        percent = [100 * value for value in values]
        axes.plot(range(len(values)), percent, style, color=colour, label=label)
        largest = max(largest, *percent)
        said.append(f"{label}: up to {max(values):.1%}")
    axes.set(xlabel="batch", ylabel="off by (%)", title="how wrong the first convolution's gradient is")
    axes.set_ylim(top=1.6 * largest)  # room for the legend
    axes.legend()
    picture(
        "How far the gradient of the first convolution is from the true gradient, per batch. "
        f"{'; '.join(said)}."
    )
