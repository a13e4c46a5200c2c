"""Runs lessons as a reader would, in an empty folder. After each run nothing may be alive or lie about."""

import contextlib
import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import uuid
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.helpers import probe_runs
from tools import launcher, lessons
from tools.testbed import pretending
from tools.testbed.command_environment import own_torchrun, python_path, short_folder
from tools.testbed.forks import Forks, start_server
from tools.testbed.processes import alive, wait_for

EXERCISES = Path(__file__).resolve().parent / "exercises"
TIERS = ("quick", "long", "night")
PASSED = "rungs/passed"  # the name, in pytest's cache, of the tests that passed


def pytest_addoption(parser):
    parser.addoption("--allowed-skips", help="a file of reasons, one a line; a skip for any other one fails")
    words = "leave out the tests that passed in the last run without this option"
    parser.addoption("--not-again", action="store_true", help=words)


def pytest_configure(config):
    """For all that the tests start: one thread each, since five workers that compute with two wait for cores;
    no mixed lines of ranks; nothing that `make test` was given; and Ctrl-C, which a script that was started
    in the background ignores."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in ("PYTHONUNBUFFERED", "ARGUMENTS", "TIER"):
        os.environ.pop(name, None)
    if launcher.local_address():  # torchrun --standalone would wait for minutes: see pages/errors.md
        os.environ["PET_LOCAL_ADDR"] = "127.0.0.1"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", launcher.loopback())  # or gloo prints a warning
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config):
    """Five, since they wait more than they compute. Fewer where memory is small, as in WSL: each has a fork
    server with torch, and runs lessons on up to eight processes."""
    return max(1, min(5, int(psutil.virtual_memory().available // 1.5e9)))


def pytest_ignore_collect(collection_path, config):
    """The exercises are a student's: they are only checked by whoever names their folder."""
    for word in config.args:
        named = (config.invocation_params.dir / word.partition("::")[0]).resolve()
        if EXERCISES in (named, *named.parents):
            return None
    return True if collection_path == EXERCISES else None


def skips(config):
    """How often each reason was given for a skip, and which of them are not allowed on this machine."""
    reports = config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    if not config.getoption("--allowed-skips"):
        return reasons, []
    allowed = set()
    for line in Path(config.getoption("--allowed-skips")).read_text().splitlines():
        if not line.startswith("#"):
            allowed.add(line)
    return reasons, sorted(set(reasons) - allowed)


def keep_one_tier(items, is_whole):
    """Leave each test one mark of `quick`, `long` and `night`, so that `-m "not night"` chooses by case, too.
    A mark may name cases of a parametrized test; one without names takes the rest."""
    cases = {}  # of each test
    named = {}  # those that its marks name
    for item in items:
        test = item.nodeid.partition("[")[0]
        case = item.callspec.id if hasattr(item, "callspec") else None
        cases.setdefault(test, set()).add(case)

        with_case = []
        without_names = []
        for mark in item.iter_markers():
            if mark.name in TIERS:
                named.setdefault(test, set()).update(mark.args)
                if case in mark.args:
                    with_case.append(mark.name)
                elif not mark.args:
                    without_names.append(mark.name)
        tiers = with_case or without_names or ["quick"]
        item.own_markers = [mark for mark in item.own_markers if mark.name not in TIERS]
        item.add_marker(min(tiers, key=TIERS.index))
    for test, names in named.items():
        # A name that fits no case would leave out more than is meant. (Who asks for cases gets these alone.)
        if is_whole and names - cases[test]:
            raise pytest.UsageError(f"{test} has no case {', '.join(sorted(names - cases[test]))}")


@pytest.hookimpl(tryfirst=True)  # before -m
def pytest_collection_modifyitems(config, items):
    keep_one_tier(items, is_whole=not any("::" in word for word in config.args))
    if config.getoption("--not-again"):
        passed = set(config.cache.get(PASSED, []))
        left_out = []
        chosen = []
        for item in items:
            if item.nodeid in passed:
                left_out.append(item)
            else:
                chosen.append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen
    # These wait most of their time: begun last, they would end long after all others.
    waits = ("test_hosts", "test_chaos", "test_slurm", "test_launch", "test_jupyterlab")
    items.sort(key=lambda item: item.path.stem not in waits)
    # While one of these waits for the others to end, its worker does nothing.
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """A test with the mark `alone` waits until no other worker runs a test, and the others wait for it."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with open(__file__) as file:
        fcntl.flock(file, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        try:
            return (yield)
        finally:  # closing it is not enough where a test has forked: the child has it open too
            fcntl.flock(file, fcntl.LOCK_UN)


def pytest_sessionfinish(session):
    is_main = not hasattr(session.config, "workerinput")
    cache = getattr(session.config, "cache", None)  # `make check` runs without it
    if is_main and cache and not session.config.getoption("--not-again"):
        reports = session.config.pluginmanager.get_plugin("terminalreporter").stats.get("passed", [])
        cache.set(PASSED, [report.nodeid for report in reports])
    if is_main and skips(session.config)[1] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter, config):
    result = yield  # all other parts of the summary come first
    if config.getoption("--submission", None):  # exercises: a check that is not reached counts as a skip
        return result
    reasons, forbidden = skips(config)
    terminalreporter.section("skipped, by reason" if reasons else "nothing was skipped")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:4}  {reason}")
    if marks := config.getoption("markexpr"):
        terminalreporter.write_line(f'left out: what is not "{marks}"; make test-all runs all tests')
    for reason in forbidden:
        terminalreporter.write_line(f"error: on this machine no test may be skipped because: {reason}")
    return result


# A lesson that calls what torch has deprecated fails. Files left open at the end are the system's to close.
WARNINGS = "error,ignore::ResourceWarning"
# Of lessons 17 and 08, on real GPUs only: lessons/pages/errors.md says what they mean.
ON_GPUS = ",ignore:Attempting to run cuBLAS:UserWarning,ignore:Grad strides do not match:UserWarning"


def with_own_torchrun(words, environment, folder):
    """A torchrun that is started by its name or by a script is this Python's: see command_environment.py."""
    folder.mkdir()
    program = folder / "torchrun"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(own_torchrun())} "$@"\n')
    program.chmod(0o755)
    if Path(words[0]).name == "torchrun":
        words = own_torchrun(*words[1:])
    return words, environment | {"PATH": f"{folder}{os.pathsep}{environment['PATH']}"}


class Started:
    """A command that runs in a folder of its own, on this many GPUs: see pretending.py."""

    def __init__(self, folder, words, environment, gpus=0):
        self.folder, self.mark, self.gpus = folder, f"rungs-{uuid.uuid4().hex}", gpus
        if reason := pretending.missing(gpus) if gpus else "":
            pytest.skip(reason)
        self.out, self.home, self.temporary = folder / "out", folder / ".home", folder / ".tmp"
        self.seen, self.reports = folder / ".seen", folder / ".reports"
        for path in (folder, self.home, self.temporary, self.seen, self.reports):
            path.mkdir(parents=True, exist_ok=True)
        # Workers of a DataLoader make sockets in TMPDIR, whose paths may have 107 characters.
        self.short = short_folder("t-")
        (self.short / "t").symlink_to(self.temporary)
        ours = {
            "HOME": str(self.home),
            "TMPDIR": str(self.short / "t"),
            "PYTHONWARNINGS": WARNINGS + (ON_GPUS if gpus and pretending.real() else ""),
            "RUNGS_MARK": self.mark,
            "SEEN": str(self.seen),
            "PYTHONPATH": python_path(pretending.AT_EXIT),
        }
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | ours | environment
        environment |= pretending.environment(gpus, self.reports, environment)
        self.compiled = folder / ".compiled"  # for a real GPU, CUDA and torch.compile keep what they compile
        folders = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
        environment |= dict.fromkeys(folders, str(self.compiled)) if gpus and pretending.real() else {}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            environment.pop(name, None)
        self.log = open(folder / ".log", "w+")  # noqa: SIM115
        if gpus and pretending.real():
            words, environment = with_own_torchrun(words, environment, self.short / "bin")
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            start_new_session=True,
        )

    def finish(self, limit=240):
        """Wait for it to end, and check what it leaves behind."""
        try:
            stdout, _ = self.process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            self.end()
            pytest.fail(f"still running after {limit} seconds; so far it wrote:\n{self.stderr()}")
        with contextlib.suppress(AssertionError):  # those that it has just killed are being taken down
            wait_for(lambda: not alive(self.mark), 20)
        left = alive(self.mark)
        self.end()
        assert not left, f"still alive after the run: {left}"
        # torchrun and mp.spawn leave the error of a process that failed where temporary files go.
        threads = {path.read_text() for path in self.seen.iterdir()} - {""}
        # A process that another one's death has ended leaves its group: the run has failed already. Where
        # NCCL is pretended, gloo carries it, and has threads that NCCL would not have.
        is_left = threads and self.gpus <= pretending.real()
        assert self.process.returncode != 0 or not is_left, f"a process ended with {threads}: it may abort"
        ours = {self.out, self.seen, self.reports, self.compiled}
        ends = re.compile(r"(error\.json|\.log)$|pytorch-errorfile-")
        outside = []
        for path in self.folder.rglob("*"):
            if path.is_file() and ours.isdisjoint(path.parents) and not ends.match(path.name):
                outside.append(str(path.relative_to(self.folder)))
        assert not outside, f"files outside OUT: {outside}"
        code, stderr = self.process.returncode, self.stderr()
        waits = pretending.waits(self.gpus, self.reports) if self.gpus and code == 0 else {}
        return SimpleNamespace(code=code, stdout=stdout, stderr=stderr, out=self.out, waits=waits)

    def wait_for(self, condition, seconds=120):
        """While it runs: a run that has ended does nothing more, and what it wrote says why."""
        try:
            wait_for(lambda: condition() or self.process.poll() is not None, seconds)
            assert condition(), f"it ended with {self.process.returncode}"
        except AssertionError as error:
            pytest.fail(f"{error}; it wrote:\n{self.stderr()}")

    def stderr(self):
        return (self.folder / ".log").read_text()

    def end(self):
        for pid, _ in alive(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        self.log.close()
        shutil.rmtree(self.short, ignore_errors=True)


@pytest.fixture
def start(tmp_path):
    """Start a lesson: start("04_ddp_torchrun", 2, "--epochs", 1). End it with .finish()."""
    started = []

    def start(stem, processes=2, *arguments, folder="run", environment=None, words=None, gpus=0):
        if words is None:
            words, more = launcher.command(stem, processes, *arguments)
        else:
            words, more = list(map(str, words)), {}
        started.append(Started(tmp_path / folder, words, more | (environment or {}), gpus))
        return started[-1]

    yield start
    for run in started:  # also one whose test failed while it ran: its open files would fail another test
        run.end()


@pytest.fixture
def run(start):
    """Run a lesson to its end; it must succeed."""

    def run(*arguments, **options):
        result = start(*arguments, **options).finish()
        assert result.code == 0, f"status {result.code}\n{result.stdout}\n{result.stderr}"
        return result

    return run


@pytest.fixture(scope="session")
def forks():
    forks = start_server()
    yield forks
    forks.close()


@pytest.fixture(scope="session")
def forks_on_gpus():
    """The same on GPUs, whose number each run says. With real ones there are no forks: CUDA cannot fork."""
    more = pretending.environment(64, "", os.environ) | {"PYTHONPATH": python_path(pretending.AT_EXIT)}
    del more["PRETEND_REPORT"]
    forks = Forks(more)
    yield forks
    forks.close()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    from tests.helpers import browser  # what it imports is not there on every machine

    chromium = browser.Chromium(tmp_path_factory.mktemp("chromium"))
    yield chromium
    chromium.close()


@pytest.fixture
def forked(request, tmp_path):
    """Run a command to its end from a process that has imported torch: see forks.py."""

    def forked(words, environment=None, folder="run", gpus=0):
        folder, environment = tmp_path / folder, environment or {}
        if reason := pretending.missing(gpus) if gpus else "":
            pytest.skip(reason)
        server = request.getfixturevalue("forks_on_gpus" if gpus else "forks")
        if gpus:
            reports = folder / ".reports"
            reports.mkdir(parents=True)
            environment = environment | {"PRETEND_GPUS": str(gpus), "PRETEND_REPORT": str(reports)}
        result = server.finish(words, folder, environment)
        result.waits = pretending.waits(gpus, folder / ".reports") if gpus and result.code == 0 else {}
        return result

    return forked


@pytest.fixture
def fork(forked):
    """Run a lesson so; it must succeed, or be refused."""

    def fork(stem, processes, *arguments, folder="run", refused=False, gpus=0, environment=None):
        words, more = launcher.in_one_agent(stem, processes, *arguments)
        if refused:  # no restarts
            path = lessons.get(stem).path
            words, more = launcher.command("04_ddp_torchrun", processes, *arguments, script=path)
        result = forked(words, more | (environment or {}), folder, gpus)
        assert refused or result.code == 0, f"status {result.code}\n{result.stdout}\n{result.stderr}"
        return result

    return fork


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Make something once for all the test processes: once(name, make) is what make(folder) returned in the
    one that came first. It must be what JSON can hold."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def once(name, make):
        folder = shared / name
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = shared / f"{name}.json"
            if not kept.exists():
                folder.mkdir(exist_ok=True)
                kept.write_text(json.dumps(make(folder)))
        return json.loads(kept.read_text())

    return once


@pytest.fixture(scope="session")
def kept(once, forks):
    """A run of a lesson that more than one test looks at. It is made once, and must succeed."""

    def kept(stem, processes, *arguments):
        def make(folder):
            words, environment = launcher.in_one_agent(stem, processes, *arguments)
            result = forks.finish(words, folder, environment)
            assert result.code == 0, result.stderr
            return vars(result) | {"out": str(result.out)}

        words = [stem, str(processes), *(str(argument).strip("-") for argument in arguments)]
        found = SimpleNamespace(**once("_".join(words), make))
        found.out = Path(found.out)
        return found

    return kept


@pytest.fixture(scope="session")
def reference(kept):
    """Lesson 01's curve for these arguments."""

    def reference(*arguments):
        return launcher.read_curve(kept("01_single_gpu", 1, *arguments).out, "01_single_gpu")

    return reference


@pytest.fixture(scope="session")
def found(once, forks):
    """What a probe finds that is started in a lesson's stead: of each rank, its RANK.json. Made once."""

    def found(name, stem, processes, *words):
        def make(folder):
            result = probe_runs.run_probe(forks, folder, name, launcher.command(stem, processes), *words)
            assert result.code == 0, result.stderr
            return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]

        return once("_".join([name, str(processes), *map(str, words)]), make)

    return found
