"""The pictures of notebook 14: the trials of a search, what pruning saved, and who trained what."""

import matplotlib.pyplot as plt

from parts import tuning
from show.pictures import BLUE, DARK, GREY, INK, ORANGE, PAPER, RED, SKY, picture, tile, timeline


def draw_trials(study):
    """Each trial: learning rate, accuracy, batch size (colour) and how it ended (mark)."""
    axes = plt.figure(figsize=(5, 3.6)).add_subplot()
    tuning.plot(axes, study)
    axes.set(title="All trials, with pruning")
    best, ended = study.best_trial, tuning.count_outcomes(study)["pruned"]
    picture(
        f"{len(study.trials)} trials by learning rate (logarithmic) and validation accuracy, one colour per "
        f"batch size. {ended} crosses were pruned. The best trial has learning rate "
        f"{best.params['lr']:.3f}, batch size {best.params['batch_size']} and {best.value:.0%}."
    )


def draw_saved(pruned, whole):
    """A row for each trial, a cell for each epoch with the accuracy after it. What pruning saved is empty."""
    axes = plt.figure(figsize=(4.6, 4.6)).add_subplot()
    names = []
    for row, (trial, untouched) in enumerate(zip(pruned, whole, strict=True)):
        for epoch, accuracy in untouched.intermediate_values.items():
            is_trained = epoch in trial.intermediate_values
            fill, colour, line = (tile(BLUE, 0.75 * accuracy), DARK, "-") if is_trained else (PAPER, INK, ":")
            corner = epoch - 0.46, -row - 0.42
            axes.add_patch(plt.Rectangle(corner, 0.92, 0.84, facecolor=fill, edgecolor=GREY, ls=line, lw=0.8))
            axes.text(epoch, -row, f"{accuracy:.0%}", ha="center", va="center", color=colour, size=9)
        lr, batch = trial.params["lr"], trial.params["batch_size"]
        names.append(f"trial {trial.number}: lr {lr:.3f}, batch {batch}")
    axes.set(xlim=(0.5, 4.5), ylim=(-len(whole) + 0.5, 0.5), xlabel="% right after epoch (validation)")
    axes.set_yticks([-row for row in range(len(names))], names)
    axes.set_xticks([1, 2, 3, 4])
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_title("Filled: trained.  Empty: saved", x=0)
    early = [trial for trial in whole if len(pruned[trial.number].intermediate_values) < 4]
    saved = sum(4 - len(trial.intermediate_values) for trial in pruned)
    best = max(whole, key=lambda trial: trial.value)
    missed = max((trial.value for trial in early), default=0)
    picture(
        f"{len(whole)} trials in rows, four epochs in columns, each cell with the validation accuracy. "
        f"Pruning stopped {len(early)} trials and saved {saved} epochs. Without pruning, the best of the "
        f"stopped trials ends with {missed:.0%}; the winner, trial {best.number}, ends with {best.value:.0%}."
    )


def draw_workers(trials, again):
    """Who trained what and when: a row for each worker, a bar for each trial."""
    first = min(trial.datetime_start.timestamp() for trial in trials)
    names = list(dict.fromkeys(trial.user_attrs["worker"] for trial in trials))
    rows = {f"worker {number}": [] for number in range(len(names))}
    for trial in trials:
        times = trial.datetime_start, trial.datetime_complete
        begin, end = (time.timestamp() - first for time in times)
        row = rows[f"worker {names.index(trial.user_attrs['worker'])}"]
        row.append((begin, end, "tried again" if trial is again else tuning.outcome(trial)))
    figure, axes = plt.subplots(figsize=(5, 2.4))
    colours = {"complete": BLUE, "pruned": SKY, "lost": RED, "tried again": ORANGE}
    timeline(axes, rows, colours, unit="s")
    axes.get_legend().remove()
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
    figure.legend(handles, colours, loc="outside upper left", ncols=4, columnspacing=1)
    picture(
        "Two workers and their trials over time. The killed worker ends with a dark orange bar, the lost "
        "trial, which lasts until the other worker marks it. The other worker then tries its parameters "
        "again, in orange."
    )
