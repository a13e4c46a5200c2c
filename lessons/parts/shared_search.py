"""The search that the workers of lesson 14 share: its journal, its trials and their
outcomes, lost trials, and the budget.
"""

import fcntl
import os
import socket
import time
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path

# Creating an optimizer imports this module, which would cost the first trial a second or more.
import torch._dynamo  # noqa: F401

import workload
from parts import search_options

try:
    import optuna
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import TrialState
except ModuleNotFoundError:
    needed = os.path.relpath(Path(__file__).with_name("tuning.txt"))
    workload.refuse(f"this lesson needs Optuna: pip install -r {needed}")

optuna.logging.set_verbosity(optuna.logging.WARNING)  # the lesson prints its own line per trial


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
    if arguments.pruner == "median":
        pruner = optuna.pruners.MedianPruner(n_startup_trials=4)  # it starts after four complete trials
    else:
        pruner = optuna.pruners.NopPruner()
    journal = JournalFileBackend(str(path), Lock(path))
    study = optuna.create_study(
        study_name=arguments.lesson,
        storage=optuna.storages.JournalStorage(journal),
        sampler=ByNumber(arguments.seed),
        pruner=pruner,
        direction="maximize",
        load_if_exists=True,
    )
    own = search_options.settings(arguments)
    problem = workload.problem_with(path, study.user_attrs.get("settings", own), own)
    if problem:
        workload.refuse(problem)
    study.set_user_attr("settings", own)
    return study


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
    values = {
        "epoch": epoch,
        "loss": loss,
        "accuracy": accuracy,
        "images_per_second": images_per_second,
        "world_size": 1,
    }
    curve = trial.user_attrs.get("curve", [])
    trial.set_user_attr("curve", [*curve, values])
    trial.set_user_attr("seen", time.time())
    trial.report(accuracy, epoch)


# ---- how trials ended ----


def outcome(trial):
    if trial.state == TrialState.FAIL:
        return "unfinished" if "unfinished" in trial.user_attrs else "lost"
    return trial.state.name.lower()


def count_outcomes(study):
    return dict(Counter(outcome(trial) for trial in study.get_trials(deepcopy=False)))


# ---- the budget ----


def is_spent(study, arguments):
    seconds, dollars = spent(study, arguments)
    return seconds >= arguments.seconds or dollars >= arguments.dollars


def spent(study, arguments):
    """Return the seconds since the search started, and the cost in dollars of all time
    spent on trials.
    """
    first_start = time.time()
    worked = 0
    for trial in study.get_trials(deepcopy=False):
        if trial.datetime_start:  # a trial that waits to be tried again has no start
            start = trial.datetime_start.timestamp()
            first_start = min(first_start, start)
            # Add differences: a sum of large timestamps can be off by more seconds than a trial takes.
            worked += last_heard(trial) - start
    dollars = worked / 3600 * arguments.price
    return time.time() - first_start, dollars
