"""The other half of lesson 14: validation images, journal, lost trials, budget and plot."""

import fcntl
import json
import math
import os
import shutil
import socket
import time
import zlib
from argparse import Namespace
from collections import Counter
from contextlib import suppress
from pathlib import Path

# Creating an optimizer imports this module, which would cost the first trial a second or more.
import torch._dynamo  # noqa: F401

import workload

try:
    import optuna
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState
except ModuleNotFoundError:
    needed = os.path.relpath(Path(__file__).with_suffix(".txt"))
    workload.refuse(f"this lesson needs Optuna: pip install -r {needed}")

optuna.logging.set_verbosity(optuna.logging.WARNING)  # the lesson prints its own line per trial


def options(parser):
    title = "options of this lesson, or with a different default"
    group = parser.add_argument_group(title, conflict_handler="resolve")
    option = group.add_argument
    option("--epochs", type=int, default=4, help="passes over the images in each trial (4)")
    option("--lr", type=float, nargs=2, default=(0.003, 0.3), help="lowest and highest (0.003 0.3)")
    sizes = (15, 30, 60, 120)
    option("--batch-size", type=int, nargs="+", default=sizes, help="batch sizes to try (15 30 60 120)")
    option("--train-size", type=int, help="images, validation included (digits: 2400; other data: all)")
    option("--validation-size", type=int, help="training images kept for validation (a tenth)")
    option("--trials", type=int, default=1000, help="stop after this many trials (1000)")
    option("--seconds", type=float, default=60, help="stop this long after the first trial started (60)")
    option("--price", type=float, default=0, help="dollars per hour and worker (0)")
    option("--dollars", type=float, default=math.inf, help="stop when all workers together cost this much")
    option("--pruner", choices=("median", "none"), default="median", help="what ends trials early")
    option("--time-limit", type=float, default=30, help="seconds of silence after which a trial is lost (30)")


def check(arguments):
    if arguments.train_size is None and arguments.data == "digits":
        arguments.train_size = 2400
    low, high = arguments.lr
    sizes = min(arguments.batch_size), max(arguments.batch_size)
    for lr, size in zip((low, high), sizes, strict=True):
        workload.check(Namespace(**vars(arguments) | {"lr": lr, "batch_size": size}), replicas=1)
    for name in ("validation-size", "trials"):
        value = getattr(arguments, name.replace("-", "_"))
        if value is not None and value < 1:
            workload.refuse(f"--{name} must be at least 1, not {value}")
    for name in ("seconds", "dollars"):
        if not getattr(arguments, name) > 0:
            workload.refuse(f"--{name} must be above 0, not {getattr(arguments, name)}")
    if low > high:
        workload.refuse(f"--lr needs the lowest rate first, then the highest, not {low} {high}")
    if arguments.price < 0 or (arguments.dollars < math.inf and not arguments.price):
        workload.refuse("--dollars needs a --price above 0: the dollars that one worker costs per hour")


def split(train_set, arguments):
    """Return the training images and the validation images."""
    size = arguments.validation_size or len(train_set) // 10
    left = len(train_set) - size
    if left < max(arguments.batch_size):
        workload.refuse(
            f"only {left} training images are left, less than one --batch-size: take more --train-size"
        )
    return workload.split(train_set, size)


class ByNumber(optuna.samplers.RandomSampler):
    """Derive the parameters from the trial's number: trial 7, for example, gets the same
    parameters however many workers there are and whichever worker runs it.

    With RandomSampler(seed), all workers would draw the same parameters in the same
    order.
    """

    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def sample_independent(self, study, trial, name, distribution):
        seed = zlib.crc32(f"{self.seed} {trial.number} {name}".encode())
        one = optuna.samplers.RandomSampler(seed)
        return one.sample_independent(study, trial, name, distribution)


class Lock:
    """A worker holds this lock while it writes to the journal. If the worker dies, the
    kernel releases the lock.

    Optuna's own locks are files, which remain if their owner dies. After 30 seconds,
    another worker removes such a file. An owner that is merely slow then fails. If
    the journal has a relative path, Optuna's default lock is a link that points
    nowhere: no worker removes this link, so the other workers wait forever.
    """

    def __init__(self, path):
        self.path = f"{path}.lock"

    def acquire(self):
        self.file = open(self.path, "w")  # noqa: SIM115
        fcntl.flock(self.file, fcntl.LOCK_EX)
        return True

    def release(self):
        self.file.close()


def open_study(arguments):
    """Return the search in this folder. The first worker creates the search, and later
    workers join it.
    """
    path = arguments.out / f"{arguments.lesson}.journal"
    if result_of(arguments).exists():
        workload.refuse(f"the search in {path} has ended: to start a new one, choose another --out")
    median = optuna.pruners.MedianPruner(n_startup_trials=4)  # it starts pruning after four complete trials
    study = optuna.create_study(
        study_name=arguments.lesson,
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(path), Lock(path))),
        sampler=ByNumber(arguments.seed),
        pruner=median if arguments.pruner == "median" else optuna.pruners.NopPruner(),
        direction="maximize",
        load_if_exists=True,
    )
    own = settings(arguments)
    if problem := workload.problem_with(path, study.user_attrs.get("settings", own), own):
        workload.refuse(problem)
    study.set_user_attr("settings", own)
    return study


def settings(arguments):
    """The settings that must be equal on all workers, so that their trials can be
    compared.
    """
    names = "data train_size validation_size test_size batch_size lr epochs width seed pruner"
    names = f"{names} trials seconds price dollars time_limit".split()
    return json.loads(json.dumps({name: getattr(arguments, name) for name in names}))


def result_of(arguments):
    return arguments.out / f"{arguments.lesson}.json"


def weights_of(arguments, number):
    return arguments.out / f"{arguments.lesson}.trial-{number:04}.pt"


# ---- a trial, from its beginning to its end ----


class OutOfBudget(Exception):
    """The seconds or dollars are spent, so the current trial ends unfinished."""


def next_trial(study, arguments):
    """Return the next trial, or None when the search is over and no trial is running."""
    while True:
        mark_the_lost(study, arguments)
        counts = count_outcomes(study)
        begun = sum(counts.values()) - counts.get("waiting", 0) - counts.get("lost", 0)
        if begun < arguments.trials and not is_spent(study, arguments):
            trial = study.ask()
            trial.set_user_attr("worker", f"{socket.gethostname()} {os.getpid()}")
            return trial
        if not study.get_trials(states=[TrialState.RUNNING]):
            return None
        time.sleep(0.2)  # if another worker dies, this worker can take over its trial


def mark_the_lost(study, arguments):
    """Mark the running trials of killed workers as failed, and try each of them once
    more.
    """
    for trial in study.get_trials(states=[TrialState.RUNNING]):
        if time.time() - last_heard(trial) > arguments.time_limit:
            # If two workers mark the same trial, the journal accepts only the first mark.
            with suppress(ValueError, optuna.exceptions.UpdateFinishedTrialError):
                study.tell(trial.number, state=TrialState.FAIL)
                if trial.params and "again" not in trial.user_attrs:  # retry once: a trial may kill workers
                    study.enqueue_trial(trial.params, user_attrs={"again": trial.number})
                print(f"trial {trial.number:3} | lost: its worker is silent", flush=True)


def beat(study, trial, arguments):
    """Called at each step. Once a second, write a heartbeat and check the budget."""
    if time.time() - last_heard(trial) > 1:
        trial.set_user_attr("seen", time.time())
        if is_spent(study, arguments):
            trial.set_user_attr("unfinished", True)
            raise OutOfBudget


def last_heard(trial):
    return trial.user_attrs.get("seen", trial.datetime_start.timestamp())


def report(trial, epoch, loss, accuracy, images_per_second):
    """Record the epoch, as workload.report does, and report its accuracy to the pruner."""
    values = {"epoch": epoch, "loss": loss, "accuracy": accuracy}
    values |= {"images_per_second": images_per_second, "world_size": 1}
    trial.set_user_attr("curve", [*trial.user_attrs.get("curve", []), values])
    trial.set_user_attr("seen", time.time())
    trial.report(accuracy, epoch)


# ---- the budget ----


def is_spent(study, arguments):
    seconds, dollars = spent(study, arguments)
    return seconds >= arguments.seconds or dollars >= arguments.dollars


def spent(study, arguments):
    """Return the seconds since the search started, and the cost in dollars of all time
    spent on trials.
    """
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.datetime_start]
    starts = [trial.datetime_start.timestamp() for trial in trials]
    # Sum differences, because a sum of large timestamps can be off by more seconds than a trial takes.
    worked = [last_heard(trial) - start for trial, start in zip(trials, starts, strict=True)]
    hours = sum(worked) / 3600
    return time.time() - min(starts, default=time.time()), hours * arguments.price


# ---- output and files ----


def outcome(trial):
    if trial.state == TrialState.FAIL:
        return "unfinished" if "unfinished" in trial.user_attrs else "lost"
    return trial.state.name.lower()


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
    (_, dollars), counts = spent(study, arguments), count_outcomes(study)
    counted = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{sum(counts.values())} trials: {counted} | ${dollars:.2f}", flush=True)
    if not counts.get("complete"):
        workload.refuse("no trial was completed: give the search more seconds, dollars or trials")
    best = study.best_trial
    print(f"best: trial {best.number}, {best.value:.1%} of the validation images", flush=True)
    return best


def count_outcomes(study):
    return dict(Counter(outcome(trial) for trial in study.get_trials(deepcopy=False)))


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
    result = {"trial": best.number, **best.params, "validation": best.value, "test": test}
    result |= {"seconds": seconds, "dollars": dollars, **count_outcomes(study)}
    stem = arguments.out / arguments.lesson
    shutil.copy(weights_of(arguments, best.number), f"{stem}.pt")
    lines = [json.dumps(values) + "\n" for values in best.user_attrs["curve"]]
    Path(f"{stem}.jsonl").write_text("".join(lines))
    draw(study, f"{stem}.png")
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
    sizes = study.user_attrs["settings"]["batch_size"]
    tones = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9"]
    colours = {size: tones[number % len(tones)] for number, size in enumerate(sizes)}
    marks = {"complete": "o", "pruned": "x", "unfinished": "1", "lost": "+"}
    for trial in study.get_trials(deepcopy=False):
        ended = outcome(trial)
        if ended in marks and trial.last_step:
            accuracy = 100 * trial.intermediate_values[trial.last_step]
            colour = colours[trial.params["batch_size"]]
            axes.scatter(trial.params["lr"], accuracy, s=45, c=colour, marker=marks[ended])
    for size, colour in colours.items():
        axes.scatter([], [], c=colour, label=f"batch size {size}")
    for name in count_outcomes(study):
        axes.scatter([], [], c="#767676", marker=marks[name], label=name)
    axes.set(xscale="log", xlabel="learning rate", ylabel="% of the validation images")
    axes.figure.legend(loc="outside lower center", ncols=2)
