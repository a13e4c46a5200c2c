"""Lesson 14: trials that workers share, prune, lose and try again; budgets; test images seen once."""

import fcntl
import importlib
import json
import os
import re
import signal
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import pytest
import torch

import workload
from tests.helpers.lines import column, refusal
from tests.helpers.outcomes import recount
from tools import launcher
from tools.testbed.processes import wait_for

STEM = "14_tuning"
NEEDS = "lessons/parts/tuning.txt"
SMALL = ("--train-size", 600, "--test-size", 200, "--epochs", 3, "--batch-size", 10, 20, 40, "--seconds", 900)
TRIALS = ("--trials", 10)
REFUSED = tomllib.loads(Path(__file__).with_name("refused.toml").read_text())["tuning"]
TINY = (*SMALL, "--train-size", 240, "--epochs", 1)  # on a busy machine, too, a second is enough for one


def trials_of(out):
    """What the journal has of each trial, by its number."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    storage = optuna.storages.JournalStorage(JournalFileBackend(str(out / f"{STEM}.journal")))
    return optuna.load_study(study_name=STEM, storage=storage).trials


def table(trials):
    """What must be the same whenever and wherever they are trained."""
    return [(trial.params, trial.intermediate_values, trial.state.name) for trial in trials]


def named(trials, state):
    return [trial for trial in trials if trial.state.name == state]


@pytest.fixture
def needs_optuna():
    if find_spec("optuna") is None:
        pytest.skip(f"needs {NEEDS}: make tools installs it")


@pytest.fixture
def fork(needs_optuna, fork):
    return fork


@pytest.fixture
def begin(needs_optuna, start):
    """Start a worker in a folder of its own. It draws, and matplotlib keeps a list of fonts."""

    def begin(out, folder, *options):
        environment = {"MPLCONFIGDIR": matplotlib.get_configdir()}
        run = start(STEM, 1, *SMALL, *options, "--out", out, folder=folder, environment=environment)
        return SimpleNamespace(run=run, pid=run.process.pid, journal=out / f"{STEM}.journal", out=out)

    return begin


def running(worker):
    """The trial that a worker has now, if it has one and knows its parameters."""
    if not worker.journal.exists() or not worker.journal.read_bytes():
        return None
    for trial in named(trials_of(worker.out), "RUNNING"):
        if len(trial.params) < 2:
            continue  # it has just begun, and may not yet say whose it is
        if trial.user_attrs["worker"].endswith(f" {worker.pid}"):
            return trial
    return None


def stop_in_a_trial(worker):
    """Send SIGSTOP when it has a trial. It may have ended in between: then again."""

    def stopped():
        os.kill(worker.pid, signal.SIGSTOP)
        if is_free(worker.journal) and (trial := running(worker)):
            return trial
        os.kill(worker.pid, signal.SIGCONT)
        return None

    wait_for(lambda: running(worker))
    return wait_for(stopped)


def is_free(journal):
    """Whether no worker is writing: one that was stopped while it does would hold up the others."""
    with open(f"{journal}.lock") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def both_at_work(begin, tmp_path, *options):
    """Two workers that have a trial each, and are stopped: neither can end before the other begins."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "mount").symlink_to("disk")  # on the second machine, the disk has another path
    first = begin(tmp_path / "disk", "one", *options)
    second = begin(tmp_path / "mount", "two", *options)
    stop_in_a_trial(first)
    trial = stop_in_a_trial(second)
    return first, second, trial


def finished(*workers):
    results = [worker.run.finish() for worker in workers]
    for result in results:
        assert result.code == 0, result.stderr
    return results


# ---- one worker ----


@pytest.mark.night
def test_one_worker_finds_the_same_every_time_and_prunes(fork):
    first = fork(STEM, 1, *SMALL, *TRIALS, folder="first")
    again = fork(STEM, 1, *SMALL, *TRIALS, folder="again")
    whole = fork(STEM, 1, *SMALL, *TRIALS, "--pruner", "none", folder="whole")
    trials = trials_of(first.out)
    assert table(trials) == table(trials_of(again.out))
    assert (first.out / f"{STEM}.pt").read_bytes() == (again.out / f"{STEM}.pt").read_bytes()

    pruned = len(named(trials, "PRUNED"))
    assert pruned >= 2 and len(named(trials, "COMPLETE")) == 10 - pruned
    assert f"\n10 trials: {10 - pruned} complete, {pruned} pruned | $0.00\n" in first.stdout
    assert first.stdout.count("| pruned\n") == pruned

    result = json.loads((first.out / f"{STEM}.json").read_text())
    expected = json.loads((whole.out / f"{STEM}.json").read_text())
    assert expected["complete"] == 10 and result["validation"] <= expected["validation"]
    for trial, untouched in zip(trials, trials_of(whole.out), strict=True):
        reached = list(trial.intermediate_values.items())
        assert trial.params == untouched.params
        assert reached == list(untouched.intermediate_values.items())[: len(reached)]
    # So small a search shows what pruning may cost: the trial that wins without it began slowly.
    assert trials[expected["trial"]].state.name == "PRUNED"
    assert result["test"] == recount(first.out / f"{STEM}.pt", 200)
    assert result["validation"] == max(t.value for t in named(trials, "COMPLETE"))
    assert result["validation"] == on_validation_images(first.out / f"{STEM}.pt")
    curve = launcher.read_curve(first.out, STEM)
    assert column(curve, "accuracy") == list(trials[result["trial"]].intermediate_values.values())
    assert f"\ntest: {result['test']:.1%} of the test images\n" in first.stdout
    assert (first.out / f"{STEM}.png").read_bytes().startswith(b"\x89PNG")


def on_validation_images(weights):
    digits = workload.draw_digits(600, seed=1)
    aside = torch.randperm(600, generator=torch.Generator().manual_seed(0))[:60]
    model = workload.ConvNet((1, 28, 28))
    model.load_state_dict(torch.load(weights, weights_only=True))
    with torch.no_grad():
        right = model(digits.images[aside]).argmax(dim=1) == digits.labels[aside]
    return right.sum().item() / 60


def test_the_seconds_end_the_search_with_what_it_has(fork):
    result = fork(STEM, 1, *TINY, "--seconds", 4)
    trials = trials_of(result.out)
    begun = trials[0].datetime_start.timestamp()
    assert trials[-1].datetime_start.timestamp() - begun < 4, "begun too late"
    assert len(named(trials, "FAIL")) <= 1, "only the last one may be unfinished"
    found = json.loads((result.out / f"{STEM}.json").read_text())
    assert 4 <= found["seconds"] < 20 and found["complete"] >= 1
    assert found["test"] == recount(result.out / f"{STEM}.pt", 200)


def test_the_dollars_end_it_too(fork):
    """At a dollar a second of work, three of them."""
    result = fork(STEM, 1, *TINY, "--price", 3600, "--dollars", 3)
    found = json.loads((result.out / f"{STEM}.json").read_text())
    assert 3 <= found["dollars"] < 10 and found["complete"] >= 1
    seconds = 0
    for trial in trials_of(result.out):
        seconds += trial.user_attrs["seen"] - trial.datetime_start.timestamp()
    assert found["dollars"] == pytest.approx(seconds)
    assert f"| ${found['dollars']:.2f}\n" in result.stdout


@pytest.fixture
def inside(needs_optuna, tmp_path, monkeypatch):
    """The lesson in this process, with options."""
    monkeypatch.setattr(workload, "set_seed", torch.manual_seed)
    lesson = importlib.import_module(STEM)

    def inside(*options):
        parser = workload.parser(f"{STEM}.py", "")
        lesson.search_options.add(parser)
        words = (*SMALL, "--out", tmp_path / "out", *options)
        arguments = parser.parse_args(list(map(str, words)))
        lesson.search_options.check(arguments)
        return lesson, arguments

    return inside


def test_test_images_are_read_once_and_after_all_trials(inside, monkeypatch):
    lesson, arguments = inside("--trials", 2)
    read = []

    class Watched(workload.Images):
        def __getitems__(self, indices):
            read.append((len(indices), named(trials_of(arguments.out), "RUNNING")))
            return super().__getitems__(indices)

    train_set, test_set = workload.load_images(arguments)
    watched = Watched(test_set.images, test_set.labels)
    monkeypatch.setattr(workload, "load_images", lambda *_: (train_set, watched))
    lesson.search(arguments)
    assert read == [(200, [])]
    assert len(trials_of(arguments.out)) == 2


def test_a_trial_that_kills_its_workers_is_tried_twice_and_no_more(inside):
    lesson, arguments = inside()
    arguments.time_limit = 0
    study = lesson.optuna.create_study(sampler=lesson.shared_search.ByNumber(0))
    for _ in range(2):
        study.ask().suggest_float("lr", 0.1, 1)
        lesson.shared_search.mark_the_lost(study, arguments)
    first, second = study.trials
    assert first.state.name == second.state.name == "FAIL"
    assert "again" not in first.user_attrs and second.user_attrs["again"] == 0
    assert first.params == second.params


def epochs_of(out):
    """How many epochs all trials of a search have trained."""
    return sum(len(trial.intermediate_values) for trial in trials_of(out))


@pytest.mark.night
def test_pruning_spares_ten_default_trials_14_epochs_and_finds_the_same(fork):
    """What the page says of it."""
    words = (*TRIALS, "--seconds", 900, "--pruner")
    pruned = fork(STEM, 1, *words, "median", folder="median").out
    whole = fork(STEM, 1, *words, "none", folder="none").out
    found = json.loads((pruned / f"{STEM}.json").read_text())
    expected = json.loads((whole / f"{STEM}.json").read_text())
    for name in ("trial", "lr", "batch_size", "validation", "test"):
        assert found[name] == expected[name], name
    assert (found["pruned"], found["complete"], expected["complete"]) == (5, 5, 10)
    assert epochs_of(pruned) == 26
    assert epochs_of(whole) == 40


# ---- several workers ----


@pytest.mark.night
def test_a_second_machine_joins_and_trials_have_the_parameters_of_their_number(begin, fork, tmp_path):
    first, second, _ = both_at_work(begin, tmp_path, *TRIALS, "--time-limit", 200)
    for worker in (first, second):
        os.kill(worker.pid, signal.SIGCONT)
    results = finished(first, second)
    alone = trials_of(fork(STEM, 1, *SMALL, *TRIALS, "--pruner", "none", folder="alone").out)
    trials = trials_of(first.out)
    assert len({trial.user_attrs["worker"] for trial in trials}) == 2
    assert 10 <= len(trials) <= 11, "two that ask at the same moment may begin one more"
    for trial, expected in zip(trials, alone, strict=False):
        assert trial.params == expected.params
        reached = list(trial.intermediate_values.items())
        assert reached == list(expected.intermediate_values.items())[: len(reached)]
    last_lines = [result.stdout.splitlines()[-1] for result in results]
    another, tested = sorted(last_lines)
    assert another.startswith("anothe") and tested.startswith("test: ")


def tried_again(trials):
    """The one trial that has the parameters of a trial that was lost."""
    (found,) = [trial for trial in trials if "again" in trial.user_attrs]
    return found


@pytest.mark.long
def test_kill_9_of_a_worker_loses_one_trial_and_nothing_else(begin, tmp_path):
    first, second, lost = both_at_work(begin, tmp_path, "--trials", 6, "--time-limit", 24)
    before = [trial for trial in trials_of(first.out) if trial.state.is_finished()]
    os.kill(second.pid, signal.SIGKILL)
    os.kill(first.pid, signal.SIGCONT)
    (result,) = finished(first)
    trials = trials_of(first.out)
    (failed,) = named(trials, "FAIL")
    assert failed.number == lost.number
    assert f"trial {lost.number:3} | lost: its worker is silent\n" in result.stdout
    again = tried_again(trials)
    assert again.user_attrs["again"] == lost.number and again.params == lost.params
    assert again.state.name in ("COMPLETE", "PRUNED")
    kept = named(trials, "COMPLETE") + named(trials, "PRUNED")
    assert len(kept) == len(trials) - 1 >= 6
    for trial in before:
        assert table([trials[trial.number]]) == table([trial])
    second.run.end()
    assert second.run.process.returncode == -signal.SIGKILL
    found = json.loads((first.out / f"{STEM}.json").read_text())
    assert found["test"] == recount(first.out / f"{STEM}.pt", 200) and found["lost"] == 1


@pytest.mark.night
def test_a_worker_that_was_only_slow_drops_its_trial_and_goes_on(begin, tmp_path):
    first, second, late = both_at_work(begin, tmp_path, "--trials", 12, "--time-limit", 24)
    os.kill(first.pid, signal.SIGCONT)
    wait_for(lambda: trials_of(first.out)[late.number].state.name == "FAIL")
    os.kill(second.pid, signal.SIGCONT)
    results = finished(first, second)
    assert re.search(rf"(?m)^trial +{late.number} \|.*\| lost$", results[1].stdout)
    assert tried_again(trials_of(first.out)).user_attrs["again"] == late.number


def test_the_lock_of_a_worker_that_died_while_it_wrote_is_free(inside):
    lesson, arguments = inside()
    path = arguments.out / f"{STEM}.journal"
    lock = lesson.shared_search.Lock(path)
    lock.acquire()
    assert not is_free(path)
    lock.release()
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # if nobody gives the lock up
        lock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert is_free(path)
    lesson.shared_search.open_study(arguments).ask()  # writes


# ---- what it refuses ----


def test_without_optuna_it_says_how_to_install_it(start, tmp_path):
    (tmp_path / "optuna.py").write_text("raise ModuleNotFoundError('as where it is not installed')")
    result = start(STEM, 1, environment={"PYTHONPATH": str(tmp_path)}).finish()
    line = refusal(result)
    assert re.fullmatch(rf"error: this lesson needs Optuna: pip install -r \S*{NEEDS}", line), line
    assert (launcher.ROOT / NEEDS).exists()


def test_other_settings_and_a_search_that_has_ended_are_refused(inside, capsys):
    lesson, arguments = inside("--trials", 1)
    lesson.search(arguments)
    ended = "has ended: to start a new one, choose another --out"
    other = f"{STEM}.journal has epochs 3, not 2: remove it, or name another --out"
    for options, message in (((), ended), (("--epochs", 2), other)):
        capsys.readouterr()
        with pytest.raises(SystemExit):
            lesson.search(inside("--trials", 1, *options)[1])
        assert capsys.readouterr().err.endswith(f"{message}\n")
        (arguments.out / f"{STEM}.json").unlink(missing_ok=True)


@pytest.mark.parametrize("words", REFUSED)
def test_bad_options_are_refused(inside, capsys, words):
    with pytest.raises(SystemExit):
        lesson, arguments = inside(*words.split())
        lesson.search(arguments)
    assert capsys.readouterr().err == f"error: {REFUSED[words]}\n"


def test_a_budget_in_which_nothing_is_completed_is_an_error_of_one_line(inside, capsys):
    """And the epoch is not waited for: here it takes seconds."""
    lesson, arguments = inside("--epochs", 1, "--batch-size", 4, "--train-size", 12000, "--seconds", 1.5)
    with pytest.raises(SystemExit):
        lesson.search(arguments)
    said = capsys.readouterr()
    assert said.err == "error: no trial was completed: give the search more seconds, dollars or trials\n"
    assert said.out.endswith("after epoch 0 | unfinished\n1 trials: 1 unfinished | $0.00\n")
