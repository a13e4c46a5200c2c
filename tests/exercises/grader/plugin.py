"""Points, hints and a report for tests whose names say which check they are: in the folder of exercise 03,
`test_2a_the_mean` is a case of check 03.2a.

A check is passed if all its tests are. After the first of them that fails, the others are left out, and so
are checks that need this one.
"""

import contextlib
import json
import os
import random
import re
import traceback
from importlib.util import find_spec
from pathlib import Path

import pytest

from grader import exercises, hints, printed, ranks, wording
from grader.results import Result, Verdict
from grader.settings import HERE, LIMITS, RUN_SECONDS, SOLUTIONS, STARTERS, SUBMISSION_SECONDS
from grader.submissions import read_files

NAME = re.compile(r"test_(\d+[a-z]?)_")
STATE = pytest.StashKey()
# What a check raises for values that it did not expect.
OF_VALUES = (TypeError, AttributeError, LookupError, ValueError, ArithmeticError, RuntimeError)


def pytest_addoption(parser):
    option = parser.getgroup("exercises").addoption
    option("--only", metavar="03", help="an exercise, a part or a check: 03, 03.2, 03.2a (default: all)")
    folder = "folder to check (default: lessons/exercises)"
    option("--submission", default=str(STARTERS), help=folder)
    option("--hints", action="store_true", help="show all hints for a failed check, not only one")
    option("--out", default="out", help="folder for the output of your code (default: out)")
    option("--seed", default="0", help="another seed draws other inputs for the checks (default: 0)")
    option("--results", help="a file for the results of all checks, as JSON")


class State:
    """What has come of the checks so far."""

    def __init__(self, config):
        self.folder = Path(config.getoption("--submission")).resolve()
        self.seed = config.getoption("--seed")
        self.results = {}
        self.wanted = None
        self.used = 0.0  # seconds of all runs of the submission

    def result(self, entry):
        if entry["id"] not in self.results:
            found = Result(entry["id"], entry["title"], entry["points"], hints=entry["hints"])
            self.results[entry["id"]] = found
        return self.results[entry["id"]]


def pytest_configure(config):
    if config.getoption("numprocesses", None):  # one check after the other
        config.option.numprocesses, config.option.dist, config.option.tx = 0, "no", []
    state = config.stash[STATE] = State(config)
    if not state.folder.is_dir():
        raise pytest.UsageError(f"there is no folder {state.folder}: choose another one with --submission")
    if find_spec("torch") is None:
        raise pytest.UsageError("this Python has no torch: run make check, or activate .venv first")
    only = config.getoption("--only")
    try:
        exercises.manifest()  # refuses a file that cannot be read
        state.wanted = exercises.wanted(only) if only else None
    except SystemExit as error:
        raise pytest.UsageError(str(error).removeprefix("error: ")) from None
    # The report at the end says it all. Whoever asks for pytest's own failures (--tb, -r) gets them too.
    asked = any("--tb" in word for word in config.invocation_params.args)
    if config.option.reportchars == "fE" and not asked:
        config.option.tbstyle, config.option.reportchars = "no", "N"
    if not config.option.collectonly and ranks.SERVER.process is None:
        ranks.SERVER.begin()  # which takes seconds: torch can be imported here meanwhile


def pytest_ignore_collect(collection_path, config):
    """Read no file of an exercise that nobody asks for. Beside the exercises lies nothing to be collected."""
    if collection_path.parent != HERE or not collection_path.is_dir():
        return None
    asked_for = set()  # all exercises, if there are none
    for identity in config.stash[STATE].wanted or ():
        asked_for.add(identity.partition(".")[0])
    number = collection_path.name.partition("_")[0]
    is_exercise = (collection_path / "exercise.toml").exists()
    is_ignored = not is_exercise or (asked_for and number not in asked_for)
    return True if is_ignored else None


def pytest_unconfigure(config):
    if ranks.SERVER.owner == os.getpid():  # else the process from which this one was forked still needs it
        ranks.SERVER.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Say which check each test belongs to, in the order in which one works; leave out what --only does not
    ask for. A check runs the checks that it needs, too, unless a path, `::test_2a` or `-k` has chosen."""
    state = config.stash[STATE]
    order = {}  # for each check its place, and what exercise.toml says about it
    for item in items:
        item.exercise = exercises.exercise(item.path.parent.name.partition("_")[0])
        for entry in item.exercise["check"]:
            order.setdefault(entry["id"], (len(order), entry))
        identity = f"{item.exercise['id']}.{NAME.match(item.name)[1]}"
        if identity not in order:
            stem = item.exercise["stem"]
            raise pytest.UsageError(f"{item.name} is a case of {identity}: {stem}/exercise.toml lacks it")
        _, item.entry = order[identity]

    needed = set()
    todo = list(order if state.wanted is None else state.wanted)
    while todo:
        name = todo.pop()
        if name in order and name not in needed:
            needed.add(name)
            todo += order[name][1].get("needs", [])

    chosen, left_out = [], []
    for item in items:
        if item.entry["id"] in needed:
            chosen.append(item)
        else:
            left_out.append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = sorted(chosen, key=lambda item: order[item.entry["id"]][0])
    there = {item.entry["id"] for item in chosen}
    state.wanted = there & (state.wanted or set(order))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """In place of pytest's own call of the test function."""
    item = pyfuncitem
    result = item.config.stash[STATE].result(item.entry)
    if result.status not in ("passed", "skipped") and result.came:
        pytest.skip("another case of this check has failed")
    verdict = None
    try:
        check(item, result)
    except Verdict as error:
        verdict = error
    except pytest.skip.Exception as error:  # it cannot be looked at on this system
        if result.status == "not reached":
            result.status, result.came = "skipped", str(error)
        raise
    if verdict is None:
        result.status, result.came = "passed", ""
        result.score = item.entry["points"]
        return True
    result.status, result.score = verdict.status, 0
    came = printed.fewer(wording.visible(verdict.came).split("\n"), *printed.RAISED)
    result.came = "\n".join(came)
    result.expected = wording.visible(verdict.expected)
    result.hints = hints.fitting(item.entry, result.came)
    raise verdict


def check(item, result):
    """Run one test with the files of the submission. Raises Verdict unless it passes."""
    state = item.config.stash[STATE]
    check_needed(item, state)
    attempt = first_attempt(item, result, state)
    if state.used > SUBMISSION_SECONDS:
        raise Verdict("timeout", f"the time limit of {SUBMISSION_SECONDS} s for a submission was reached")
    error, attempt = tried_again(item, attempt, state.folder)
    state.used += attempt.used
    result.tried = attempt.tried or tried_by(item)
    runs = [(result.tried, *run) for run in attempt.printed]
    result.output = wording.visible(printed.some(runs, error is None)) or result.output
    result.printed += wording.visible(printed.whole(runs))
    if error is not None:
        raise verdict_on(item, error, attempt)


def check_needed(item, state):
    """The checks that this one needs have passed, as far as they were run."""
    missing = []
    for need in item.entry.get("needs", []):
        if need in state.results and state.results[need].status not in ("passed", "skipped"):
            missing.append(need)
    if missing:
        raise Verdict("not reached", f"{' and '.join(missing)} must pass first")


def first_attempt(item, result, state):
    """Of checks that cannot begin for one reason, the first has failed, and the others are not reached."""
    try:
        return prepared(item, state.folder)
    except Verdict as verdict:
        said = {other.came for other in state.results.values() if other.about_file}
        result.about_file = True
        if verdict.came in said:
            raise Verdict("not reached", verdict.came) from None
        raise


def verdict_on(item, error, attempt):
    """What the student reads about a test that has raised this error."""
    verdict = as_verdict(item, error, attempt)
    if verdict.status in ("failed", "timeout") and attempt.roots:
        verdict.came += f"; {attempt.roots}"
    if verdict.status != "infrastructure":
        ours = solution_fails(item)
        if ours:
            words = f"with these inputs, the recorded solution does not pass it either ({ours})"
            return Verdict("infrastructure", f"the check itself failed: {words}")
    return verdict


def prepared(item, folder):
    """An attempt at this test with the files of this folder. Raises Verdict."""
    one = item.exercise
    files = read_files(one | {"files": item.entry.get("files", one["files"])}, folder)
    limits = LIMITS | one.get("limits", {})
    return ranks.Attempt(files, one.get("forbidden", []), one.get("seconds", RUN_SECONDS), limits)


def tried_with(item, attempt):
    """What the test raises in this attempt; None if it passes."""
    seed_all(f"{item.config.stash[STATE].seed}/{item.nodeid.rpartition('/')[2]}")
    token = ranks.CURRENT.set(attempt)
    try:
        arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
        item.obj(**arguments)
    except Exception as error:
        return error
    finally:
        ranks.CURRENT.reset(token)
        with contextlib.suppress(ranks.Broken):  # then the next run gets another sandbox
            ranks.wipe()
    return None if attempt.runs else RuntimeError(f"{item.name} has run nothing")


def tried_again(item, attempt, folder):
    """What the test raises, and the attempt in which it did. What may come from a machine that is busy or
    fails for a moment is tried a second time."""
    error = tried_with(item, attempt)
    is_ours = isinstance(error, ranks.Broken | OSError)
    is_late = isinstance(error, Verdict) and error.status in ("timeout", "infrastructure")
    if is_ours or (is_late and "used up" not in error.came):
        used = attempt.used
        attempt = prepared(item, folder)
        attempt.used = used
        error = tried_with(item, attempt)
    return error, attempt


def seed_all(seed):
    import numpy
    import torch

    random.seed(seed)
    torch.manual_seed(random.getrandbits(48))
    numpy.random.seed(random.getrandbits(32))


def as_verdict(item, error, attempt):
    """What a test has raised, as a Verdict. A bare assert of a test is about the submission; for any other
    error that is not a Verdict, the recorded solution is asked. Only what no submission can cause is the
    machine's fault."""
    if isinstance(error, Verdict):
        return error
    if isinstance(error, AssertionError):
        return Verdict("failed", str(error).partition("\n")[0])
    words = f"{type(error).__name__}: {error}"
    if is_theirs(item, error, attempt):
        verdict = Verdict("error", f"your code sent something that the check cannot read ({words})")
    else:
        trace = "".join(traceback.format_exception(error))[-3000:]
        verdict = Verdict("infrastructure", f"the check itself failed: {words}", trace)
    return verdict


def is_theirs(item, error, attempt):
    """Whether an error that is no Verdict comes from what the submission has sent."""
    if isinstance(error, ranks.Broken | OSError):
        return False
    if SOLUTIONS.exists():
        return tried_with(item, prepared(item, SOLUTIONS)) is None
    return isinstance(error, OF_VALUES) and attempt.runs > 0


def solution_fails(item):
    """Why the recorded solution does not pass this test either, if so: no student pays for a wrong check."""
    if item.config.stash[STATE].folder == SOLUTIONS or not SOLUTIONS.exists():
        return None
    error, _ = tried_again(item, prepared(item, SOLUTIONS), SOLUTIONS)
    return error


def tried_by(item):
    """The first paragraph of the docstring, and the parameters: `different gradients; 3 processes,
    transposed`."""
    words = " ".join((item.function.__doc__ or "").partition("\n\n")[0].split()).rstrip(".")
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    parts = []
    for name, value in parameters.items():
        if name == "world_size":
            parts.append("1 process" if value == 1 else f"{value} processes")
        elif value is True:
            parts.append(name.replace("_", " "))
        elif value not in (False, None, ""):
            parts.append(f"{name.replace('_', ' ')} {value}")
    return "; ".join(filter(None, [words, ", ".join(parts)]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    result = item.config.stash[STATE].result(item.entry)
    if call.when == "call":  # kept with the test, because a JUnit file has those of its teardown
        of_check = ("title", result.title), ("score", result.score), ("points", result.points)
        item.user_properties += of_check
    report = yield
    if call.when == "call" and result.output:
        report.sections.append(("Captured stdout call", result.output))
    if report.failed and isinstance(call.excinfo.value, Verdict) and item.config.option.tbstyle == "no":
        report.longrepr = "\n".join(wording.detail(result, 4 if item.config.getoption("--hints") else 1))
    return report


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_terminal_summary(terminalreporter, config):
    state = config.stash[STATE]
    write = terminalreporter.write_line
    by_exercise = {}
    for result in state.results.values():
        by_exercise.setdefault(result.id.partition(".")[0], []).append(result)
    for identity, results in by_exercise.items():
        one = exercises.exercise(identity)
        terminalreporter.section(f"exercise {identity}")
        write(wording.report(one, results, 4 if config.getoption("--hints") else 1, state.wanted))
        if file := printed.keep(identity, results, Path(config.getoption("--out"))):
            write(file)
    if by_exercise:
        level = f"contained at level {ranks.SERVER.level} of 3 (see tests/README.md)"
        write(f"\nchecked {state.folder} with seed {state.seed}, {level}")
    if config.getoption("--results"):
        found = {}
        for identity, results in by_exercise.items():
            found[identity] = [one.as_dict() for one in results]
        Path(config.getoption("--results")).write_text(json.dumps(found))
    return (yield)
