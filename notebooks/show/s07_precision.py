"""Notebook 07: jobs in one process group, and pictures of what 16 bits can hold and what a step takes."""

import json
import shutil
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from show.paths import RANK_SCRIPTS
from show.pictures import BLUE, GREY, INK, ORANGE, PINK, SKY, curves, picture
from show.processes import ranks

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
COLOURS = {"fp32": SKY, "bf16": ORANGE, "fp16": INK}


def train(jobs, out):
    """Train all jobs on two processes: for each its curve, and the lines that each rank printed."""
    script = shutil.copy(RANK_SCRIPTS / "s07_trainings.py", out)
    started = ranks(script, 2, limit=300, environment={"JOBS": json.dumps(jobs), "OUT": str(out)})
    for one in started:
        if one.code != 0:
            raise RuntimeError("a job failed: see what the ranks printed above")
    done = {}
    for name in jobs:
        lines = (out / name / "07_mixed_precision.jsonl").read_text().splitlines()
        epochs = [json.loads(line) for line in lines]
        printed = [one.result[name] for one in started]
        done[name] = epochs, printed
    return done


def cpu_has(name):
    """Whether this CPU has instructions for a format, as far as Linux says."""
    about = Path("/proc/cpuinfo")
    return about.exists() and f"avx512_{name}" in about.read_text()


def rounding_error(sizes, dtype):
    """The worst relative error of rounding numbers of about these sizes."""
    numbers = sizes[:, None] * torch.linspace(1, 2, 301)[:-1]
    error = (numbers.to(dtype).float() - numbers).abs() / numbers
    return error.max(dim=1).values.clamp(2.0**-25, 1)


def draw_errors(axes):
    sizes = 2.0 ** torch.arange(-40, 20)
    for name, dtype in FORMATS.items():
        error = rounding_error(sizes, dtype)
        axes.step(sizes, error, where="post", color=COLOURS[name], lw=2.5, label=name)
    axes.axhline(2**-24, color=COLOURS["fp32"], lw=2.5, label="fp32")
    axes.set(xscale="log", yscale="log", ylabel="worst relative error")
    axes.legend(loc="lower center", ncols=3, bbox_to_anchor=(0.5, 0.08))


def draw_rounding():
    axes = plt.figure(figsize=(5, 3)).add_subplot()
    draw_errors(axes)
    axes.set(xlabel="size of the number", title="What rounding to 16 bits costs")
    picture(
        "The worst relative error of rounding, by the size of the number. fp32 is a low line. bf16 is a "
        "flat line at a few thousandths for all sizes. fp16 is lower, but rises in steps below a "
        "ten-thousandth, and reaches 1 at both ends of its range, where the number becomes 0 or infinite."
    )


def draw_runs(losses):
    """The losses of each precision, and by how many per cent they differ from the losses of fp32."""
    upper, lower = plt.subplots(2, 1, figsize=(5, 5))[1]
    runs = {}
    for name, values in losses.items():
        runs[name] = []
        for epoch, loss in enumerate(values, 1):
            runs[name].append({"epoch": epoch, "loss": loss})
    curves(upper, runs)
    upper.set(title="Three precisions", ylabel="loss")

    lower.axhline(0, color=COLOURS["fp32"], lw=5)  # below the others: one of them lies on it
    off = {}
    for name in ("bf16", "fp16"):
        percent = []
        for loss, expected in zip(losses[name], losses["fp32"], strict=True):
            percent.append(100 * (loss / expected - 1))
        lower.plot(range(1, len(percent) + 1), percent, "o-", color=COLOURS[name], lw=2, label=name)
        off[name] = max(abs(value) for value in percent)
    lower.set(title="Loss against that of fp32", xlabel="epoch", ylabel="%")
    lower.xaxis.get_major_locator().set_params(integer=True)
    lower.legend()
    picture(
        "Above, the losses of fp32, bf16 and fp16 over three epochs: all fall. Below, their distance from "
        f"fp32: at most {off['bf16']:.1f}% for bf16 and {off['fp16']:.1f}% for fp16."
    )


def draw_times(milliseconds, title):
    axes = plt.figure(figsize=(5, 2)).add_subplot()
    colours, labels, said = [], [], []
    for name, value in milliseconds.items():
        colours.append(COLOURS[name])
        labels.append(f" {value:.1f} ms")
        said.append(f"{name} {value:.1f} ms")
    bars = axes.barh(list(milliseconds), list(milliseconds.values()), color=colours)
    axes.bar_label(bars, labels, color=INK)
    axes.margins(x=0.2)
    axes.invert_yaxis()
    axes.set(title=title, xlabel="ms")
    picture(f"The time of a step in each precision, in the fastest epoch of each: {', '.join(said)}.")


def draw_gradients(sizes, lost):
    """The rounding errors, and below them how many gradients have which size, for two scales."""
    upper, lower = plt.subplots(2, 1, figsize=(5, 5.2), sharex=True, height_ratios=(2, 3))[1]
    draw_errors(upper)
    edges = 2.0 ** torch.arange(-40, 20)
    for (scale, found), colour in zip(sizes.items(), (PINK, BLUE), strict=True):
        label = f"times {scale:,}: {100 * lost[scale]:.1f}% are 0 or inf in fp16"
        lower.hist(found, edges, color=colour, alpha=0.7, label=label)
    for axes in (upper, lower):
        axes.axvspan(edges[0], 2**-25, color=GREY, alpha=0.2)
        axes.axvspan(65_504, edges[-1], color=GREY, alpha=0.2)
    lower.set(xlabel="size of the gradient (grey: not in fp16)", ylabel="how many")
    lower.set_ylim(0, 1.4 * lower.get_ylim()[1])
    lower.legend(loc="upper center")
    picture(
        "Above, fp16's rounding error by size. Below, how many gradients have which size. As they are, "
        f"{100 * lost[1]:.1f}% lie where fp16 has only 0; multiplied by 65,536, {100 * lost[2**16]:.1f}% do."
    )
