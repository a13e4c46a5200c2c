"""Runs with different batch sizes: to train them side by side, and to draw how they end."""

import matplotlib.pyplot as plt

import show
from show.pictures import GREY, RANKS, picture
from show.processes import launch


def train(out, options, *runs, quiet=False):
    """Run scripts side by side, each with a batch size and a learning rate. Returns their curves."""
    started = []
    for script, size, rate in runs:
        folder = out / f"{script.stem}_{size}_{rate:g}"
        command = f"python {script} {options} --batch-size {size} --lr {rate:g} --out {folder}"
        started.append((launch(command, {"OMP_NUM_THREADS": "1"}, quiet=quiet), folder, script.stem))
    for running, _, _ in started:
        running.reader.join(300)
        running.end()
        if running.code != 0:
            raise RuntimeError(f"a run ended with exit code {running.code}:\n{running.text}")
    return [show.curve(folder, stem) for _, folder, stem in started]


def end(curve):
    """The accuracy after the last epoch."""
    return curve[-1]["accuracy"]


def draw_accuracies(curves, images):
    """Accuracy by epoch, for each batch size. `images`: how many there are in an epoch."""
    ends = []
    for (size, curve), colour in zip(curves.items(), RANKS, strict=True):
        ends.append(f"{end(curve):.1%} with batch size {size}")
        label = f"batch {size}: {images // size * len(curve):,} steps"
        accuracy = [100 * row["accuracy"] for row in curve]
        plt.plot(range(1, len(curve) + 1), accuracy, color=colour, lw=2, label=label)
    plt.gca().set(xlabel="epoch", ylabel="accuracy (%)", title="the same learning rate", ylim=(0, 100))
    plt.legend()
    picture(
        f"Accuracy by epoch at the same learning rate. The larger the batch, the slower: {', '.join(ends)}."
    )


def draw_ends(kinds):
    """Accuracy at the end by batch size, for each kind of run; above, the same from 88% on."""
    sizes = sorted(set().union(*kinds.values()))
    best = 100 * end(next(iter(kinds.values()))[sizes[0]])
    _, (near, whole) = plt.subplots(2, 1, figsize=(5, 5), sharex=True)
    said = []
    for (name, curves), style, colour in zip(kinds.items(), ("^:", "s--", "o-"), RANKS, strict=False):
        accuracy = [100 * end(curve) for curve in curves.values()]
        said.append(f"{name}: {ends_in_words(curves)}")
        for axes in (near, whole):
            axes.plot(curves.keys(), accuracy, style, color=colour, lw=2, label=name)
    near.axhspan(best - 1, best, color=GREY, alpha=0.4, lw=0)
    near.text(sizes[-1], best + 0.3, f"grey: at most 1 point below batch size {sizes[0]}", ha="right", size=9)
    near.set(title="accuracy at the end (%), from 88 on", ylim=(88, 98))
    whole.set(title="the same runs, from 0 on", xscale="log", xlabel="batch size", ylim=(0, 100))
    whole.set_xticks(sizes, list(map(str, sizes)))
    whole.minorticks_off()
    whole.legend(loc="lower left")
    picture(
        "Accuracy at the end by batch size, one run a point, above from 88 to 98%, below from 0 to 100%. "
        f"{'; '.join(said)}. A grey band is one point wide, below the accuracy of batch size {sizes[0]}."
    )


def ends_in_words(curves):
    return ", ".join([f"{end(curve):.0%} at {size}" for size, curve in curves.items()])


def draw_losses(curves, title):
    """The loss by epoch of a few runs, on a logarithmic axis."""
    said = []
    for (name, curve), style, colour in zip(curves.items(), ("-", "--", "-.", ":"), RANKS, strict=False):
        losses = [row["loss"] for row in curve]
        said.append(f"{name} ends at {losses[-1]:.2f}, with a highest loss of {max(losses):.2f}")
        plt.plot(range(1, len(curve) + 1), losses, style, color=colour, lw=2, label=name)
    plt.yscale("log")
    plt.yticks([0.1, 1, 10], ["0.1", "1", "10"])
    plt.gca().set(xlabel="epoch", ylabel="loss", title=title)
    plt.legend()
    picture(f"The loss by epoch, on a logarithmic axis. {'; '.join(said)}.")
