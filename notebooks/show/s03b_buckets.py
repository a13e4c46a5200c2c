"""Notebook 03b's picture of two buckets that fill while backward runs."""

import matplotlib.pyplot as plt

from show.pictures import BLUE, DARK, GREEN, HATCHES, INK, ORANGE, canvas, picture, tile
from show.s03b_overlap import imagine


def filling(room, layers, done):
    """Each bucket when backward has finished `done` layers: how many gradients it has, and what it does."""
    rows = imagine(room, layers)
    ends = [end for _, end, kind in rows["computes"] if kind == "backward"]
    now = ends[done - 1] if done <= layers else rows["computes"][-1][0]  # after the last layer: the update
    found = []
    for bucket, (begin, end, _) in enumerate(rows["sends"]):
        inside = min(max(0, done - bucket * room), room)
        if now >= end:
            does = "averaged"
        elif now > begin:
            does = "on its way"
        else:
            does = "sent" if now == begin else "waits"
        found.append((inside, does))
    return found


STATES = {"waits": BLUE, "sent": ORANGE, "on its way": ORANGE, "averaged": GREEN}


def draw_bucket(axes, left, bottom, gradients, room, does):
    """A place for each gradient that the bucket has room for, filled if the gradient is there."""
    hatch = HATCHES.get(STATES[does])
    for place in range(room):
        corner = (left + 2.6 * place, bottom)
        middle = (left + 2.6 * place + 1.2, bottom + 0.9)
        if place >= len(gradients):
            axes.add_patch(plt.Rectangle(corner, 2.4, 1.8, facecolor="none", edgecolor=INK, ls=":"))
            continue
        ground = tile(STATES[does], 0.45)
        edge = STATES[does]
        axes.add_patch(plt.Rectangle(corner, 2.4, 1.8, facecolor=ground, edgecolor=edge, hatch=hatch))
        behind = {"facecolor": ground, "edgecolor": "none", "pad": 1}  # no hatch behind the number
        axes.text(*middle, gradients[place], ha="center", va="center", color=DARK, bbox=behind)


def draw_filling(room=3, layers=6, moments=(2, 3, 5, 6, 7)):
    """Buckets at some moments of backward: when so many layers are done; one more means the update."""
    axes = canvas(4.8, 4.7, across=24, down=5 * len(moments) + 2.5)
    titles = ["backward", "bucket 0", "bucket 1"]
    for left, title in zip((0, 7, 16), titles, strict=True):
        axes.text(left, 5 * len(moments) + 1.6, title, weight="bold", size=10)
    said = []
    for number, done in enumerate(moments, 1):
        bottom = 5 * (len(moments) - number) + 2.8
        when = f"layer {layers + 1 - done}\nis done" if done <= layers else "is over:\nupdate"
        axes.text(0, bottom + 0.9, when, va="center", size=10)
        states = []
        for bucket, (inside, does) in enumerate(filling(room, layers, done)):
            left = 7 + 9 * bucket
            last = layers - room * bucket
            draw_bucket(axes, left, bottom, range(last, last - inside, -1), room, does)
            words = {"waits": f"waits for {room - inside} more", "sent": "full: it is sent"}.get(does, does)
            words = words if inside else "empty"
            axes.text(left, bottom - 1, words, va="center", size=9.5)
            states.append(f"bucket {bucket} {words}")
        said.append(f"backward {when}: {', '.join(states)}".replace("\n", " "))
    picture(
        f"The gradients of {layers} layers fill two buckets while backward runs, last layer first. A bucket "
        f"is sent when it is full, and travels while backward fills the next one. {'. '.join(said)}."
    )
