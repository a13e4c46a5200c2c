"""The pictures of notebook 14: the trials of a search, what pruning saved, and who trained what."""

import matplotlib.pyplot as plt

from parts import tuning
from show.pictures import BLUE, GREY, ORANGE, RED, SKY, picture, timeline


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
    """The accuracies of each trial with pruning, over those of the same trial without."""
    axes = plt.figure(figsize=(5, 3.2)).add_subplot()
    for trials, colour, width in ((whole, GREY, 1), (pruned, BLUE, 2.5)):
        for trial in trials:
            epochs, values = zip(*trial.intermediate_values.items(), strict=True)
            percent = [100 * value for value in values]
            axes.plot(epochs, percent, ".-", color=colour, lw=width, alpha=0.8)
    axes.set(title="Blue was trained, grey was saved", xlabel="epoch", ylabel="% right, validation")
    axes.set_xticks([1, 2, 3, 4])
    early = sum(len(trial.intermediate_values) < 4 for trial in pruned)
    picture(
        f"The validation accuracy of {len(pruned)} trials over four epochs. The curves of {early} pruned "
        "trials are blue until they stop. Grey lines show how they continue without pruning."
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
