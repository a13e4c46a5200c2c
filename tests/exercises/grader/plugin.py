"""Points, hints and a report for tests whose names say which check they are: in the folder of exercise 03,
`test_2a_the_mean` is a case of check 03.2a.

A check is passed if all its tests are. After the first of them that fails, the others are left out, and so
are checks that need this one.
"""

import json
import random
import re
import time
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
        self.folder, self.seed = Path(config.getoption("--submission")).resolve(), config.getoption("--seed")
        self.results, self.wanted, self.began = {}, None, time.monotonic()

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
    if not config.option.collectonly and ranks.BOX.process is None:
        ranks.BOX.begin()  # which takes seconds: torch can be imported here meanwhile


def pytest_ignore_collect(collection_path, config):
    """Read no file of an exercise that nobody asks for. Beside the exercises lies nothing to be collected."""
    name = collection_path.name
    if collection_path.parent == HERE and collection_path.is_dir():
        wanted = config.stash[STATE].wanted
        names = {identity.partition(".")[0] for identity in wanted} if wanted else None
        is_one = (collection_path / "exercise.toml").exists()
        return True if not is_one or (names and name.partition("_")[0] not in names) else None
    return None


def pytest_unconfigure(config):
    ranks.BOX.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Say which check each test belongs to, in the order in which one works; leave out what --only does not
    ask for. A check runs the checks that it needs, too, unless a path, `::test_2a` or `-k` has chosen."""
    state, order = config.stash[STATE], {}
    for item in items:
        one = exercises.exercise(item.path.parent.name.partition("_")[0])
        identity = f"{one['id']}.{NAME.match(item.name)[1]}"
        item.exercise = one
        item.entry = next((entry for entry in one["check"] if entry["id"] == identity), None)
        if item.entry is None:
            raise pytest.UsageError(
                f"{item.name} is a case of {identity}: {one['stem']}/exercise.toml lacks it"
            )
        for entry in one["check"]:
            order.setdefault(entry["id"], (len(order), entry))
    needed, todo = set(), list(order if state.wanted is None else state.wanted)
    while todo:
        name = todo.pop()
        if name in order and name not in needed:
            needed.add(name)
            todo += order[name][1].get("needs", [])
    config.hook.pytest_deselected(items=[item for item in items if item.entry["id"] not in needed])
    items[:] = sorted(
        (item for item in items if item.entry["id"] in needed), key=lambda item: order[item.entry["id"]][0]
    )
    state.wanted = {item.entry["id"] for item in items} & (state.wanted or set(order))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    state, entry = item.config.stash[STATE], item.entry
    result = state.result(entry)
    is_first = result.status == "not reached" and not result.came
    needed = [state.results[need] for need in entry.get("needs", []) if need in state.results]
    missing = [one.id for one in needed if one.status != "passed"]
    if result.status != "passed" and not is_first:
        pytest.skip("another case of this check has failed")
    if missing:
        result.came = f"{' and '.join(missing)} must pass first"
        raise Verdict("not reached", result.came)
    try:
        one = item.exercise | {"files": entry.get("files", item.exercise["files"])}
        prepare(one, read_files(one, state.folder))
    except Verdict as verdict:
        said = {other.came for other in state.results.values() if other.about_file}
        result.about_file = True
        fill_in(result, entry, verdict)
        result.status = "not reached" if result.came in said else result.status  # the first one failed
        raise
    seed_all(f"{state.seed}/{item.nodeid.rpartition('/')[2]}")
    try:
        if time.monotonic() - state.began > SUBMISSION_SECONDS:
            raise Verdict("timeout", f"the time limit of {SUBMISSION_SECONDS} s for a submission was reached")
        yield
        if not ranks.Submission.runs:
            raise RuntimeError(f"{item.name} has run nothing")
        result.status = "passed"
    except (pytest.skip.Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        verdict = error if isinstance(error, Verdict) else of_ours(item, error)
        if verdict is None:
            result.status = "passed"
            return None
        if verdict.status in ("failed", "timeout") and ranks.Submission.roots:
            verdict.came += f"; {ranks.Submission.roots}"
        if verdict.status != "infrastructure" and (ours := solution_fails(item)):
            words = f"with these inputs, the recorded solution does not pass it either ({ours})"
            verdict = Verdict("infrastructure", f"the check itself failed: {words}")
        fill_in(result, entry, verdict)
        result.tried = ranks.Submission.tried or tried_by(item)
        if verdict is not error:
            raise verdict from error
        raise
    finally:
        result.score = entry["points"] if result.status == "passed" else 0
        tried = ranks.Submission.tried or tried_by(item)
        runs = [(tried, *run) for run in ranks.Submission.printed]
        result.output = wording.visible(printed.some(runs, result.status == "passed")) or result.output
        result.printed += wording.visible(printed.whole(runs))
        ranks.wipe()


def prepare(one, files):
    """For the runs of one test."""
    about = ranks.Submission
    about.files, about.forbidden = files, one.get("forbidden", [])
    about.seconds, about.limits = one.get("seconds", RUN_SECONDS), LIMITS | one.get("limits", {})
    about.printed, about.runs, about.tried, about.given, about.roots = [], 0, "", [], ""


def seed_all(seed):
    import numpy
    import torch

    random.seed(seed)
    torch.manual_seed(random.getrandbits(48))
    numpy.random.seed(random.getrandbits(32))


def of_ours(item, error):
    """A Verdict for an error that is not the student's: a bare assert of a test is about the submission; for
    any other error, the recorded solution is asked. Only what no submission can cause is the machine's
    fault. None if the machine failed, and the test passes when it is repeated."""
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, AssertionError):
        return Verdict("failed", str(error).partition("\n")[0])
    trace = "".join(traceback.format_exception(error))[-3000:]
    is_theirs = isinstance(error, OF_VALUES) and ranks.Submission.runs
    if isinstance(error, ranks.Broken | OSError):
        if isinstance(error, ranks.Broken):
            ranks.BOX.close()
            ranks.BOX.process = None
        again = repeated(item, item.config.stash[STATE].folder)
        if again is None or isinstance(again, Verdict):
            return again
        is_theirs = False
    if SOLUTIONS.exists():
        is_theirs = repeated(item, SOLUTIONS) is None
    if is_theirs:
        return Verdict("error", f"your code sent something that the check cannot read ({words})")
    return Verdict("infrastructure", f"the check itself failed: {words}", trace)


def solution_fails(item):
    """Why the recorded solution does not pass this test either, if so: no student pays for a wrong check."""
    about = ranks.Submission
    kept = about.printed, about.runs, about.tried, about.given, about.roots
    is_ours = item.config.stash[STATE].folder == SOLUTIONS or not SOLUTIONS.exists()
    error = None if is_ours else repeated(item, SOLUTIONS)
    about.printed, about.runs, about.tried, about.given, about.roots = kept
    return error


def repeated(item, folder):
    """The error of this test with the files of this folder; None if it passes."""
    one = item.exercise | {"files": item.entry.get("files", item.exercise["files"])}
    ranks.wipe()  # or it would find the files of the first try
    prepare(one, read_files(one, folder))
    seed_all(f"{item.config.stash[STATE].seed}/{item.nodeid.rpartition('/')[2]}")
    try:
        item.runtest()
    except Exception as error:
        return error
    return None if ranks.Submission.runs else RuntimeError(f"{item.name} has run nothing")


def fill_in(result, entry, verdict):
    came = printed.fewer(wording.visible(verdict.came).split("\n"), *printed.RAISED)
    result.status, result.came = verdict.status, "\n".join(came)
    result.expected = wording.visible(verdict.expected)
    result.hints = hints.fitting(entry, result.came)


def tried_by(item):
    """The first paragraph of the docstring, and the parameters: `different gradients; 3 processes,
    transposed`."""
    words = " ".join((item.function.__doc__ or "").partition("\n\n")[0].split()).rstrip(".")
    parts = []
    for name, value in item.callspec.params.items() if hasattr(item, "callspec") else ():
        if name == "world_size":
            parts.append(f"{value} process{'es' * (value > 1)}")
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
    state, write = config.stash[STATE], terminalreporter.write_line
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
        level = f"contained at level {ranks.BOX.level} of 3 (see tests/README.md)"
        write(f"\nchecked {state.folder} with seed {state.seed}, {level}")
    if config.getoption("--results"):
        found = {identity: [one.as_dict() for one in results] for identity, results in by_exercise.items()}
        Path(config.getoption("--results")).write_text(json.dumps(found))
    return (yield)
