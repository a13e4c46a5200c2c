"""What lesson 14 prints and saves: a line for each trial, the best trial with its weights
and curve, and the plot of all trials.
"""

import json
import shutil
from pathlib import Path

import workload
from parts.colours import GREY, LINES
from parts.shared_search import count_outcomes, outcome, result_of, spent, weights_of


def show_trial(study, number):
    trial = study.get_trials(deepcopy=False)[number]
    accuracy = trial.intermediate_values.get(trial.last_step, 0)
    print(
        f"trial {number:3} | lr {trial.params['lr']:.4f} | batch {trial.params['batch_size']:3} | "
        f"{accuracy:5.1%} after epoch {trial.last_step or 0} | {outcome(trial)}",
        flush=True,
    )


def find_best(study, arguments):
    """Return the complete trial with the highest accuracy on the validation images."""
    _, dollars = spent(study, arguments)
    counts = count_outcomes(study)
    counted = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{sum(counts.values())} trials: {counted} | ${dollars:.2f}", flush=True)
    if not counts.get("complete"):
        workload.refuse("no trial was completed: give the search more seconds, dollars or trials")
    best = study.best_trial
    print(f"best: trial {best.number}, {best.value:.1%} of the validation images", flush=True)
    return best


def is_first_to_test(arguments):
    """Return whether this worker is the first to test the best model: only one worker
    can create the result file.
    """
    try:
        result_of(arguments).touch(exist_ok=False)
    except FileExistsError:
        print("another worker tests the best model", flush=True)
        return False
    return True


def finish(study, best, test, arguments):
    """Save the best trial with its weights and curve, and draw all trials."""
    print(f"test: {test:.1%} of the test images", flush=True)
    seconds, dollars = spent(study, arguments)
    stem = arguments.out / arguments.lesson
    shutil.copy(weights_of(arguments, best.number), f"{stem}.pt")
    lines = [json.dumps(values) + "\n" for values in best.user_attrs["curve"]]
    Path(f"{stem}.jsonl").write_text("".join(lines))
    draw(study, f"{stem}.png")

    result = {
        "trial": best.number,
        **best.params,
        "validation": best.value,
        "test": test,
        "seconds": seconds,
        "dollars": dollars,
        **count_outcomes(study),
    }
    result_of(arguments).write_text(json.dumps(result, indent=1))


def draw(study, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(layout="constrained")
    plot(axes, study)
    figure.savefig(path)


def plot(axes, study):
    """Plot the learning rate, batch size, validation accuracy and outcome of all trials."""
    colour_of = {}
    for number, batch_size in enumerate(study.user_attrs["settings"]["batch_size"]):
        colour_of[batch_size] = LINES[number % len(LINES)]
    marks = {"complete": "o", "pruned": "x", "unfinished": "1", "lost": "+"}
    for trial in study.get_trials(deepcopy=False):
        ended = outcome(trial)
        if ended in marks and trial.last_step:
            accuracy = 100 * trial.intermediate_values[trial.last_step]
            colour = colour_of[trial.params["batch_size"]]
            axes.scatter(trial.params["lr"], accuracy, s=45, c=colour, marker=marks[ended])
    for batch_size, colour in colour_of.items():
        axes.scatter([], [], c=colour, label=f"batch size {batch_size}")
    for name in count_outcomes(study):
        axes.scatter([], [], c=GREY, marker=marks[name], label=name)
    axes.set(xscale="log", xlabel="learning rate", ylabel="% of the validation images")
    axes.figure.legend(loc="outside lower center", ncols=2)
