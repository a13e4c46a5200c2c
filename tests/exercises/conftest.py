"""`pytest tests/exercises --only 03`: one test for each check, in the order in which one would work.

The decision is the judge's, which runs nothing of the submission in this process.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr

sys.path.insert(0, str(Path(__file__).resolve().parent))
import judge

SESSION, WANTED = pytest.StashKey(), pytest.StashKey()


def pytest_addoption(parser):
    option = parser.getgroup("exercises").addoption
    option("--only", metavar="03", help="an exercise, a part or a check: 03, 03.2, 03.2a (default: all)")
    folder = "folder to check (default: lessons/exercises)"
    option("--submission", default=str(judge.STARTERS), help=folder)
    option("--hints", action="store_true", help="show all hints for a failed check, not only one")
    option("--out", default="out", help="folder for the output of your code (default: out)")
    option("--seed", default="0", help="another seed draws other inputs for the checks (default: 0)")


def pytest_configure(config):
    # One check after the other.
    if config.getoption("numprocesses", None):
        config.option.numprocesses, config.option.dist, config.option.tx = 0, "no", []
    only = config.getoption("--only")
    try:
        config.stash[WANTED] = judge.wanted(only) if only else None
    except SystemExit as error:
        raise pytest.UsageError(str(error).removeprefix("error: ")) from None
    # The report at the end says the same in the order in which one works. Whoever asks for pytest's own
    # failures or summary (--tb, -r) gets them too.
    asked = config.option.reportchars != "fE" or any("--tb" in word for word in config.invocation_params.args)
    if not asked:
        config.option.tbstyle, config.option.reportchars = "no", "N"


def pytest_sessionstart(session):
    """The nursery takes seconds to start: it begins while pytest looks for what it has to do."""
    if not session.config.option.collectonly:
        session.config.stash[SESSION] = Session(session.config)


# The same checks as plain pytest, for the grader that will replace this one: see grader/README.md.
collect_ignore_glob = ["*/test_*.py"]


def pytest_collect_file(file_path, parent):
    if file_path.name == "exercise.toml":
        return Exercise.from_parent(parent, path=file_path)
    return None


class Exercise(pytest.File):
    def collect(self):
        one = judge.exercise(self.path.parent.name.partition("_")[0])
        for entry in one["check"]:
            yield Check.from_parent(self, name=entry["id"], one=one, entry=entry)


class Check(pytest.Item):
    def __init__(self, one, entry, **more):
        super().__init__(**more)
        self.one, self.entry = one, entry

    def runtest(self):
        result = self.config.stash[SESSION].check(self.one, self.entry)
        self.user_properties += [("title", result.title), ("score", result.score), ("points", result.points)]
        if result.output:
            self.add_report_section("call", "stdout", result.output)
        # A check that was not reached fails, too. As a skip, the run would end with status 0, and a course
        # that goes by the status would give the points.
        if result.status != "passed":
            raise NotPassed(result)

    def repr_failure(self, excinfo):
        if not isinstance(excinfo.value, NotPassed):
            return super().repr_failure(excinfo)
        return Words(self.path, excinfo.value.args[0], 4 if self.config.getoption("--hints") else 1)

    def reportinfo(self):
        return self.path, None, f"{self.entry['id']} {self.entry['title']}"


class NotPassed(Exception):
    """With the Result."""


class Words(TerminalRepr):
    """What a check that is not passed says wherever pytest shows a traceback: on the terminal and in a JUnit
    file. `reprcrash` is where pytest looks for the one line of its summary."""

    def __init__(self, path, result, hints):
        not_reached = "not reached: " * (result.status == "not reached")
        self.reprcrash = ReprFileLocation(str(path), 0, not_reached + result.came)
        self.lines = judge.detail(result, hints)

    def toterminal(self, tw):
        for line in self.lines:
            tw.line(line)


class Session:
    def __init__(self, config):
        folder, why = Path(config.getoption("--submission")), ""
        if not folder.is_dir():
            why = f"there is no folder {folder}: choose another one with --submission"
        elif find_spec("torch") is None:
            why = "this Python has no torch: run make check, or activate .venv first"
        if why:
            pytest.exit(f"error: {why}", returncode=2)
        self.folder, self.seed = folder.resolve(), config.getoption("--seed")
        self.nursery, self.results = judge.Nursery(), {}
        self.nursery.start()

    def check(self, one, entry):
        results = self.results.setdefault(one["id"], {})
        # What comes before is run too if it was not asked for: `--only 03.2d` is a question about 03.2d.
        for need in entry.get("needs", []):
            if need not in results:
                self.check(one, next(other for other in one["check"] if other["id"] == need))
        passed = {identity for identity, result in results.items() if result.status == "passed"}
        result = judge.grade_one(one, entry, self.folder, self.nursery, self.seed, passed)
        results[entry["id"]] = result
        judge.said_before(list(results.values()))
        return result


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """`--only 3` means the checks of exercise 03, where `-k 3` means whatever has a 3 in its name."""
    wanted = config.stash[WANTED]
    kept = [item for item in items if wanted is None or item.entry["id"] in wanted]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
    # Also where a path, `::03.2b` or `-k` has chosen. What runs because one of these needs it does not count.
    config.stash[WANTED] = {item.entry["id"] for item in kept}


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_terminal_summary(terminalreporter, config):
    session = config.stash.get(SESSION, None)
    if session is not None:
        for identity, results in session.results.items():
            one = judge.exercise(identity)
            terminalreporter.section(f"exercise {identity}")
            hints, found = 4 if config.getoption("--hints") else 1, list(results.values())
            terminalreporter.write_line(judge.report(one, found, hints, config.stash[WANTED]))
            file = judge.printed.keep(identity, found, Path(config.getoption("--out")))
            if file:
                terminalreporter.write_line(file)
        level = f"contained at level {session.nursery.level} of 3 (see tests/README.md)"
        terminalreporter.write_line(f"\nchecked {session.folder} with seed {session.seed}, {level}")
    return (yield)


def pytest_unconfigure(config):
    session = config.stash.get(SESSION, None)
    if session is not None:
        session.nursery.close()
