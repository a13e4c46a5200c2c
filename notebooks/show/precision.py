"""Notebook 07: what 16 bits can hold, how far apart the runs are, and what a step takes."""

import matplotlib.pyplot as plt
import torch

from show.pictures import BLUE, GREY, INK, ORANGE, PINK, SKY, curves

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
COLOURS = {"fp32": SKY, "bf16": ORANGE, "fp16": INK}


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


def draw_runs(runs, apart):
    """The losses, and by how many per cent those of `apart` differ from fp32's."""
    upper, lower = plt.subplots(2, 1, figsize=(5, 5))[1]
    curves(upper, runs)
    upper.set(title="Three precisions", ylabel="loss")
    lower.axhline(0, color=COLOURS["fp32"], lw=5)  # below the others: one of them lies on it
    for name, percent in apart.items():
        lower.plot(range(1, len(percent) + 1), percent, "o-", color=COLOURS[name], lw=2, label=name)
    lower.set(title="Loss against that of fp32", xlabel="epoch", ylabel="%")
    lower.xaxis.get_major_locator().set_params(integer=True)
    lower.legend()


def draw_times(milliseconds, title):
    axes = plt.figure(figsize=(5, 2)).add_subplot()
    colours = [COLOURS[name] for name in milliseconds]
    bars = axes.barh(list(milliseconds), list(milliseconds.values()), color=colours)
    axes.bar_label(bars, [f" {value:.1f} ms" for value in milliseconds.values()], color=INK)
    axes.margins(x=0.2)
    axes.invert_yaxis()
    axes.set(title=title, xlabel="ms")


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
