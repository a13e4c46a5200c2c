"""Notebooks 05, 06a and 06b kill runs. This module reads what the runs left, and draws it."""

import ast

import matplotlib.pyplot as plt
import torch

from show.pictures import GREEN, GREY, INK, RED, SKY, picture


def diary(path):
    """The values that a process wrote down for each step: the step of the run comes first, then the time."""
    steps = []
    for line in path.read_text().splitlines():
        steps.append(tuple(map(ast.literal_eval, line.split())))
    return steps


def size_of(value):
    """The bytes of the tensors in a part of a snapshot, and the characters of everything else."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    return len(str(value))


def root_cause(text):
    """The lines of torchrun's report that name the process that failed first."""
    head, *report = text.partition("Root Cause")[2].splitlines()
    lines = ["Root Cause" + head]
    for line in report:
        if "rank  " in line or "exitcode" in line:
            lines.append(line.split("(pid")[0].rstrip())
    return "\n".join(lines)


def columns(steps, *numbers):
    """These columns of a diary, for axes.plot."""
    found = []
    for number in numbers:
        found.append([step[number] for step in steps])
    return found


def repeated(before, after):
    """The steps that the killed run had taken, too, since the last snapshot."""
    killed_after = before[-1][0]
    return [step for step in after if step[0] <= killed_after]


def draw_over_time(whole, before, after, killed_at):
    """The step over time: of an uninterrupted run, and of one that was killed and resumed."""
    last = before[-1]
    again = repeated(before, after)
    began = before[0][1]
    pause = last[1] - began, after[0][1] - began

    def draw(steps, began, **looks):
        numbers, times = columns(steps, 0, 1)
        axes.plot([time - began for time in times], numbers, **looks)

    _, axes = plt.subplots(figsize=(5, 3.6))
    draw(whole, whole[0][1], color=SKY, lw=6, label="uninterrupted")
    draw(before, began, color=INK, lw=1.8, label="killed")
    draw(after, began, color=INK, lw=1.8)
    draw(again, began, color=RED, lw=5, label="repeated steps")
    axes.axvline(killed_at - began, color=RED, ls="--", lw=1, label="the kill")
    axes.axvspan(*pause, color=GREY, alpha=0.15, lw=0)
    words = "no steps: new processes\nimport torch and load\nthe snapshot"
    axes.text(sum(pause) / 2, 20, words, ha="center", va="center", size=9.5)
    axes.set(xlabel="seconds since the first step", ylabel="step of the run", title="One kill, over time")
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.2), ncols=2)
    picture(
        "The step of the run over time. The uninterrupted run climbs in one line. The killed run stops at "
        f"step {last[0]}, takes no step for {pause[1] - pause[0]:.1f} seconds, and resumes with step "
        f"{after[0][0]}. It repeats {len(again)} steps."
    )


def draw_loss(whole, before, after, same_bytes):
    """README shows this picture: the loss of a run that was killed and resumed, on an uninterrupted run's."""
    killed = before[-1][0]
    saved = after[0][0] - 1
    end = whole[-1][0]
    again = repeated(before, after)

    def draw(steps, **looks):
        axes.plot(*columns(steps, 0, 2), solid_capstyle="butt", **looks)

    _, axes = plt.subplots(figsize=(5, 3.7))
    draw(whole, color=SKY, lw=6, label="uninterrupted run")
    draw(again, color=RED, lw=6, label="repeated steps")
    draw(before, color=INK, lw=1.2, label="killed run")
    draw(after, color=INK, lw=1.2)
    axes.set_ylim(0, 2.75)
    for step, colour in ((saved, GREEN), (killed, RED)):
        axes.axvline(step, ymax=0.98, color=colour, ls="--", lw=1.2)
    axes.text(killed + 1.5, 2.52, f"killed after step {killed}", color=RED, weight="bold", va="center")
    axes.annotate(
        "",
        (saved, 0.9),
        (killed, 0.9),
        arrowprops={"arrowstyle": "-|>", "color": INK, "lw": 1.4, "shrinkA": 0},
    )
    words = f"resumed from\nthe snapshot\nof step {saved}"
    axes.text(saved - 2, 0.9, words, color=GREEN, weight="bold", ha="right", va="center")
    if same_bytes:
        axes.plot(*columns(whole[-1:], 0, 2), "o", color=INK, ms=7)
        axes.text(end, 0.27, "same bytes at the end", weight="bold", ha="right", va="center")
    axes.set(xlabel="step of the run", ylabel="loss")
    axes.set_title("Killed, resumed, and still the same run")
    axes.legend(loc="upper right", bbox_to_anchor=(1.0, 0.9))
    ends = "Both runs end with the same bytes. " if same_bytes else ""
    picture(
        f"The loss of each of {len(whole)} steps. A run is killed after step {killed} and resumes from the "
        f"snapshot of step {saved}, so it takes {len(again)} steps twice, with the same losses. Its thin "
        f"curve lies exactly on the thick curve of an uninterrupted run. {ends}"
    )
