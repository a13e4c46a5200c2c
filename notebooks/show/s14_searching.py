"""The pictures of notebook 14: workers and their journal, the trials of a search, what pruning saved, who
trained what, and one trial in two searches."""

import math
import statistics

import matplotlib.pyplot as plt

from parts import shared_search
from show.pictures import BLUE, DARK, GREY, INK, PAPER, RED, SKY, YELLOW, arrow, box, canvas, picture, tile
from show.rank_inks import RED_INK


def draw_search():
    """Two workers, and what each of them writes into the folder that they share."""
    axes = canvas(5, 4.6, across=16, down=14.7)
    box(axes, 0.1, 13, 4.2, 1.5, "worker 0", "", GREY, size=10)
    box(axes, 11.7, 13, 4.2, 1.5, "worker 1", "", GREY, size=10)
    axes.text(8, 13.75, "a shared folder", ha="center", va="center", size=10, weight="bold")
    box(axes, 4.9, 4.3, 6.2, 8.5, "the journal", " ", SKY, size=10)
    box(axes, 4.9, 0.2, 6.2, 3.6, "the weights", " ", SKY, size=10)
    entries = (
        (10.9, 0, "begins a trial", "trial 0: worker 0"),
        (9.7, 1, "begins a trial", "trial 1: worker 1"),
        (8.5, 0, "accuracy", "trial 0: epoch 1"),
        (7.3, 1, "heartbeat", "trial 1: alive"),
        (6.1, 1, "accuracy", "trial 1: epoch 1"),
        (4.9, 0, "ends a trial", "trial 0: complete"),
        (1.9, 0, "saves", "of trial 0"),
    )
    for y, worker, words, entry in entries:
        axes.text(5.2, y, entry, va="center", size=9, family="monospace")
        begin, end, middle = (0.4, 4.9, 2.5) if worker == 0 else (15.6, 11.1, 13.5)
        arrow(axes, (begin, y), (end, y))
        axes.text(middle, y + 0.5, words, ha="center", va="center", size=9)
    axes.text(5.2, 0.8, "of trial 1", va="center", size=9, family="monospace")
    arrow(axes, (11.1, 1.9), (15.6, 1.9))
    axes.text(13.5, 2.4, "tests the best", ha="center", va="center", size=9)
    picture(
        "Two workers and the folder that they share. Each worker writes into the journal, a file there, "
        "when it begins a trial, the accuracy of each epoch, a heartbeat, and how a trial ended. It saves "
        "the weights of its trials into the folder, and one worker reads the best weights to test them."
    )


def draw_trials(study):
    """Each trial: learning rate, accuracy, batch size (size of the mark) and how it ended (mark)."""
    axes = plt.figure(figsize=(5, 3.8)).add_subplot()
    for trial in study.trials:
        accuracy = 100 * trial.intermediate_values[trial.last_step]
        area = area_of(trial.params["batch_size"])
        if shared_search.outcome(trial) == "pruned":
            axes.scatter(trial.params["lr"], accuracy, s=area, c=RED, marker="x", lw=1.8)
        else:
            axes.scatter(trial.params["lr"], accuracy, s=area, color=SKY, edgecolor=GREY, lw=0.8)
    best = study.best_trial
    words = f"the best: trial {best.number}, {best.value:.0%}"
    axes.annotate(
        words,
        (best.params["lr"], 100 * best.value),
        xytext=(-10, 0),
        textcoords="offset points",
        ha="right",
        va="center",
        size=10,
    )
    handles = [plt.scatter([], [], s=45, color=SKY, edgecolor=GREY, lw=0.8)]
    handles += [plt.scatter([], [], s=45, c=RED, marker="x", lw=1.8)]
    names = ["complete", "pruned"]
    for size in (15, 30, 60, 120):
        handles.append(plt.scatter([], [], s=area_of(size), color=PAPER, edgecolor=GREY))
        names.append(f"batch {size}")
    axes.figure.legend(handles, names, loc="outside lower center", ncols=3, columnspacing=1)
    axes.set(xscale="log", xlabel="learning rate", ylabel="% of the validation images", ylim=(0, 90))
    axes.set_xticks([0.003, 0.01, 0.03, 0.1, 0.3], ["0.003", "0.01", "0.03", "0.1", "0.3"])
    axes.minorticks_off()
    ended = shared_search.count_outcomes(study)["pruned"]
    picture(
        f"{len(study.trials)} trials by learning rate (logarithmic) and validation accuracy; a larger mark "
        f"is a larger batch size. {ended} crosses were pruned. The best trial has learning rate "
        f"{best.params['lr']:.3f}, batch size {best.params['batch_size']} and {best.value:.0%}."
    )


def area_of(batch_size):
    return 20 + 1.2 * batch_size


def draw_saved(pruned, whole):
    """A row for each trial, a cell for each epoch with the accuracy after it. What pruning saved has dots. On
    the right is the median with which the search compares the first epoch."""
    axes = plt.figure(figsize=(5, 4.8)).add_subplot()
    names = []
    stopped = []
    saved = 0
    for row, (trial, untouched) in enumerate(zip(pruned, whole, strict=True)):
        for epoch, accuracy in untouched.intermediate_values.items():
            is_trained = epoch in trial.intermediate_values
            draw_cell(axes, epoch, -row, accuracy, is_trained)
        median = median_before(pruned, trial.number)
        words = "-" if median is None else f"{100 * median:.1f}"
        axes.text(5, -row, words, ha="center", va="center", size=9, weight="bold")
        lr, batch = trial.params["lr"], trial.params["batch_size"]
        names.append(f"trial {trial.number}: lr {lr:.3f}, batch {batch}")
        if len(trial.intermediate_values) < 4:
            stopped.append(untouched)
            saved += 4 - len(trial.intermediate_values)
    axes.set(xlim=(0.5, 5.5), ylim=(-len(whole) + 0.5, 0.5), xlabel="% right after epoch (validation)")
    axes.set_yticks([-row for row in range(len(names))], names)
    axes.set_xticks([1, 2, 3, 4, 5], ["1", "2", "3", "4", "median\nafter 1"])
    axes.tick_params(length=0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_title("Filled: trained.  Dotted: saved", x=0)
    best = max(whole, key=lambda trial: trial.value)
    missed = max((trial.value for trial in stopped), default=0)
    first = best.intermediate_values[1]
    median = median_before(pruned, best.number)
    compared = ""
    if median is not None:
        compared = f" After epoch 1, it has {first:.1%}, and the median is {median:.1%}."
    picture(
        f"{len(whole)} trials in rows, four epochs in columns, each cell with the validation accuracy. On "
        "the right is the median of the first epoch with which a trial was compared. "
        f"Pruning stopped {len(stopped)} trials and saved {saved} epochs. Without pruning, the best of the "
        f"stopped trials ends with {missed:.0%}; the winner, trial {best.number}, ends with {best.value:.0%}."
        f"{compared}"
    )


def median_before(trials, number):
    """The median accuracy after epoch 1 of the earlier trials that are complete. It needs at least four."""
    accuracies = []
    for trial in trials[:number]:
        if shared_search.outcome(trial) == "complete":
            accuracies.append(trial.intermediate_values[1])
    if len(accuracies) < 4:
        return None
    return statistics.median(accuracies)


def draw_cell(axes, x, y, accuracy, is_trained):
    if is_trained:
        looks = {"facecolor": tile(BLUE, 0.75 * accuracy), "ls": "-"}
    else:
        looks = {"facecolor": PAPER, "ls": ":"}
    axes.add_patch(plt.Rectangle((x - 0.46, y - 0.42), 0.92, 0.84, edgecolor=GREY, lw=0.8, **looks))
    ink = DARK if is_trained else INK
    axes.text(x, y, f"{100 * accuracy:.1f}", ha="center", va="center", color=ink, size=9)


LOOKS = {  # of a trial in the picture of two workers
    "complete": {"facecolor": tile(SKY, 0.7)},
    "pruned": {"facecolor": tile(GREY, 0.35)},
    "silent": {"facecolor": PAPER, "hatch": "////", "ls": ":"},
    "tried again": {"facecolor": tile(YELLOW, 0.8)},
}


def draw_workers(trials, again, killed_at):
    """Who trained what and when: a row for each worker, a bar for each trial, and a mark for the kill."""
    zero = min(trial.datetime_start.timestamp() for trial in trials)
    killed = killed_at - zero
    axes = plt.subplots(figsize=(5, 3.1))[1]
    rows = {}  # of each worker, by its name in the journal
    free_from = {}  # for each row, the end of its last trial
    waits = ""
    row_names = ["the other\nworker", "the other\nworker"]
    for trial in trials:
        row = rows.setdefault(trial.user_attrs["worker"], -len(rows))
        begin = trial.datetime_start.timestamp() - zero
        end = trial.datetime_complete.timestamp() - zero
        if shared_search.outcome(trial) == "lost":
            draw_lost(axes, row, begin, killed, end, trial.number)
            row_names[-row] = "the killed\nworker"
            marked = end
        elif trial is again:
            draw_bar(axes, row, begin, end, "tried again", trial.number)
            write(axes, (begin + end) / 2, row + 0.42, shared_search.outcome(trial))
            idle = free_from.get(row, begin)
            if begin - idle > 1.5:  # in a shorter gap, the words would have no room
                write(axes, (idle + begin) / 2, row, "waits for\nthe lost trial")
                waits = " While it waits for the lost trial, the other worker has no trial."
        else:
            draw_bar(axes, row, begin, end, shared_search.outcome(trial), trial.number)
        free_from[row] = end
    axes.set_yticks([0, -1], row_names)
    axes.set(xlabel="seconds", ylim=(-1.6, 0.75), xlim=(0, None))
    axes.tick_params(axis="y", length=0)
    handles = [plt.Rectangle((0, 0), 1, 1, edgecolor=GREY, lw=0.6, **looks) for looks in LOOKS.values()]
    axes.figure.legend(handles, list(LOOKS), loc="outside upper left", ncols=4, columnspacing=1)
    picture(
        "Two workers and their trials over time, each bar with the number of its trial. A mark shows the "
        f"kill, {killed:.1f} seconds after the start. The killed worker's trial stays silent for "
        f"{marked - killed:.1f} seconds, until the other worker marks it as lost.{waits} Then the other "
        f"worker tries its parameters again, as trial {again.number}."
    )


def draw_lost(axes, row, begin, killed, marked, number):
    """The lost trial: its bar, the silence after the kill, and a mark at each end of the silence."""
    axes.add_patch(plt.Rectangle((begin, row - 0.3), killed - begin, 0.6, facecolor=RED))
    draw_bar(axes, row, killed, marked, "silent", "")
    words = f"trial {number}, killed"  # below, because its bar may be too narrow for a number
    axes.text(begin, row - 0.45, words, va="center", color=RED_INK, size=10)
    axes.plot(killed, row + 0.5, "v", color=RED, ms=9)
    axes.text(killed + 0.12, row + 0.52, "SIGKILL", va="center", color=RED_INK, size=10)
    axes.plot(marked, row + 0.5, "v", color=GREY, ms=9)
    axes.text(marked - 0.12, row + 0.52, "marked as lost", ha="right", va="center", size=10)


def write(axes, x, y, words):
    axes.text(x, y, words, ha="center", va="center", size=9.5)


def draw_bar(axes, row, begin, end, kind, words):
    axes.add_patch(plt.Rectangle((begin, row - 0.3), end - begin, 0.6, edgecolor=GREY, lw=0.6, **LOOKS[kind]))
    axes.text((begin + end) / 2, row, words, ha="center", va="center", color=DARK, size=9.5)
    axes.update_datalim([(begin, row), (end, row)])
    axes.autoscale_view(scaley=False)


def draw_two_schedules(number, curves):
    """A trial in two searches: the learning rate of each epoch, and the accuracy after it. `curves` has
    the accuracies for each number of epochs."""
    upper, lower = plt.figure(figsize=(5, 4.2)).subplots(2, 1, sharex=True)
    said = []
    for (epochs, accuracies), colour, mark in zip(curves.items(), (SKY, RED), ("o", "s"), strict=True):
        at = range(1, epochs + 1)
        rates = []
        percent = []
        numbers = []
        for done, accuracy in enumerate(accuracies):
            rate = 50 * (1 + math.cos(math.pi * done / epochs))
            upper.text(done + 1, rate + 7, f"{rate:.0f}%", ha="center", size=9.5)
            lower.text(done + 1, 100 * accuracy + 5, f"{100 * accuracy:.0f}%", ha="center", size=9.5)
            rates.append(rate)
            percent.append(100 * accuracy)
            numbers.append(f"{100 * accuracy:.0f}%")
        upper.plot(at, rates, mark + "-", color=colour, lw=2, label=f"{epochs} epochs")
        lower.plot(at, percent, mark + "-", color=colour, lw=2)
        said.append(f"in the search with {epochs} epochs, its accuracies are {', '.join(numbers)}")
    upper.set(ylim=(0, 125), yticks=[0, 50, 100])
    upper.set_title("learning rate of an epoch, % of the first", size=10)
    upper.legend(loc="lower left")
    lower.set(ylim=(0, 85), xlabel="epoch", xlim=(0.8, 4.5), xticks=[1, 2, 3, 4])
    lower.set_title(f"trial {number}: % of the validation images", size=10)
    picture(
        f"Trial {number} in two searches. The learning rate falls to 0 along half a cosine, over two epochs "
        f"or over four: {'; '.join(said)}."
    )


def draw_rates(rates_by_sampler, turns):
    """The learning rates of six trials for each sampler, in a row. `turns` has the worker of each trial."""
    axes = plt.figure(figsize=(5, 2.9)).add_subplot()
    said = []
    for row, (sampler, rates) in enumerate(rates_by_sampler.items()):
        axes.text(0.0028, 0.36 - row, sampler, size=10, weight="bold")
        for worker, rate in zip(turns, rates, strict=True):
            if worker == 0:
                axes.plot(rate, -row, "o", color=SKY, ms=15)
            else:
                axes.plot(rate, -row, "x", color=RED, ms=8, mew=2.2, zorder=3)  # a dot would hide it
        said.append(f"with {sampler} they try {len(set(rates))} different rates")
    handles = [
        axes.plot([], [], "o", color=SKY, ms=11)[0],
        axes.plot([], [], "x", color=RED, ms=8, mew=2.2)[0],
    ]
    words = ["a trial of worker 0", "a trial of worker 1"]
    axes.figure.legend(handles, words, loc="outside upper left", ncols=2)
    axes.set(xscale="log", xlabel="learning rate", xlim=(0.0025, 0.33), ylim=(-1.4, 0.7), yticks=[])
    axes.set_xticks([0.003, 0.01, 0.03, 0.1, 0.3], ["0.003", "0.01", "0.03", "0.1", "0.3"])
    axes.minorticks_off()
    axes.spines["left"].set_visible(False)
    picture(f"The learning rates of two workers with three trials each: {'; '.join(said)}.")


def draw_images(train, validation, test):
    """Which images a search uses for what, as bars as long as their numbers."""
    axes = canvas(5, 3, across=16, down=9.4)
    longest = train + validation
    rows = (
        (6.6, 0, train, BLUE, "training", "in every step"),
        (
            3.7,
            9.5 * train / longest,
            validation,
            YELLOW,
            "validation",
            "after every epoch:\nprunes, chooses the best",
        ),
        (0.8, 0, test, GREY, "test", "once, for the best trial,\nwhen the search has ended"),
    )
    for bottom, left, count, colour, name, words in rows:
        width = 9.5 * count / longest
        axes.add_patch(plt.Rectangle((left, bottom), width, 1.5, facecolor=tile(colour, 0.6), edgecolor=GREY))
        axes.text(0, bottom + 2, f"{count:,} {name} images", va="center", size=10)
        axes.text(max(left + width, 3.4) + 0.3, bottom + 0.75, words, va="center", size=9)
    picture(
        f"{train:,} images train the models. After every epoch, {validation} images that are split off the "
        f"training set decide which trials are pruned and which is best. {test} test images are read once, "
        "for the best trial, when the search has ended."
    )
