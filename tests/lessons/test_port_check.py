"""check.py names what is wrong with a port, accuses no right one, and leaves nothing behind.

By true launches. test_port_cases.py has more cases, whose runs are forks.
"""

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from types import SimpleNamespace

import psutil
import pytest

from tools.lessons import ROOT
from tools.testbed.command_environment import short_folder

PORT = ROOT / "lessons/port"
WRONG = tomllib.loads((ROOT / "tests/lessons/wrong_ports.toml").read_text())
OPTIONS = ["--epochs", "2", "--batch-size", "320", "--workers", "0"]


@pytest.fixture
def temporary():
    """The folder for temporary files. check.py must leave it empty."""
    folder = short_folder("t-")
    yield folder
    assert not list(folder.iterdir())
    folder.rmdir()


@pytest.fixture
def command(tmp_path, temporary):
    """The command that checks a script in which `new` stands for `old`, and its environment."""

    def command(script, options, old="", new="", arguments=(), **environment):
        mine = tmp_path / "mine"
        mine.mkdir()
        text = re.sub(r"% \d+ == 0", "% 4 == 0", (PORT / script).read_text())  # it saves more often
        assert old in text, "the script has changed"
        (mine / "my.py").write_text(text.replace(old, new) if old else text)
        shutil.copy(PORT / "batch_norm.py", mine)
        shutil.copy(PORT / script.replace("after", "before"), mine / "before.py")
        words = [sys.executable, PORT / "check.py", *options, "--", "my.py", *arguments, "--resume"]
        ours = {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
        ours["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "cache")
        return words, mine, os.environ | ours | environment

    return command


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def check(command):
    """Check a script: the status, the verdicts, and all that was printed."""

    def check(*given, **more):
        words, mine, environment = command(*given, **more)
        before = content_of(mine)
        done = subprocess.run(words, cwd=mine, env=environment, capture_output=True, text=True, timeout=900)
        assert content_of(mine) == before
        verdicts = [line[:8].strip() for line in done.stdout.splitlines()[::2]]
        return done.returncode, verdicts, done.stdout + done.stderr

    return check


@pytest.mark.quick("no DDP")
@pytest.mark.long("a barrier for one rank", "an exception on one rank")
@pytest.mark.night
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_port_is_named(check, name):
    case = WRONG[name]
    promise = case["promise"]
    options = ["--only", promise, *(["--exact"] if promise in ("gradients", "numbers") else [])]
    code, verdicts, text = check("after.py", options, case["old"], case["new"], arguments=OPTIONS)
    assert verdicts == ["wrong"] and code == 1, text
    assert case.get("says", "") in text


@pytest.mark.long
def test_a_right_port_keeps_all_promises(check, tmp_path):
    """And a sitecustomize that was there before is still imported."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import os\nos.environ['THERE'] = 'yes'\n")
    options = ["--original", " ".join(["before.py", *OPTIONS])]
    new = "assert os.environ['THERE'] == 'yes'\nrank, local_rank"
    more = {"arguments": OPTIONS, "PYTHONPATH": str(other)}
    code, verdicts, text = check("after.py", options, "rank, local_rank", new, **more)
    assert code == 0 and verdicts == ["ok"] * 9, text


@pytest.mark.night
def test_a_loop_that_draws_its_batches_keeps_all_promises_that_can_be_compared(check):
    """The original draws other batches."""
    arguments = ["--iterations", "8"]
    options = ["--original", "before.py --iterations 8"]
    code, verdicts, text = check("after_iterations.py", options, arguments=arguments)
    assert code == 0 and verdicts == ["not seen"] + ["ok"] * 8, text
    assert "draw other examples" in text


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_it_is_stopped(command, temporary, number):
    words, mine, environment = command("after.py", [], arguments=["--epochs", "200", "--workers", "1"])
    running = subprocess.Popen(words, cwd=mine, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while not list(temporary.glob("port-*/*/seen/1.*.seen")) and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(3)
    started = psutil.Process(running.pid).children(recursive=True)
    assert len(started) >= 3, "a launcher and two ranks"
    running.send_signal(number)
    running.wait(60)
    for process in started:
        # Another process may have its number by now: is_running compares when the two began.
        assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, process


@pytest.fixture
def promises(monkeypatch):
    """The module, which finds what it imports in its own folder."""
    monkeypatch.syspath_prepend(PORT)
    return importlib.import_module("promises")


@pytest.mark.parametrize(
    "mine, its, variation, expected",
    [
        ("320", "320", 0, True),
        ("320", "160", 0, False),  # a count is not rounded
        ("320", "160", 1, True),  # it differs from run to run, too
        ("nan", "0.93", 0, False),
        ("0.9341", "0.9342", 0, True),
        ("0.9341", "0.9343", 0, False),
        ("1.2e-3", "1.3e-3", 0, True),
        ("1.2e-3", "1.4e-3", 0, False),
        ("0.9341", "0.9350", 1e-4, True),
    ],
)
def test_printed_numbers_may_differ_in_how_their_last_digit_was_rounded(
    promises, mine, its, variation, expected
):
    assert promises.is_near(mine, its, variation) is expected


def test_a_run_that_has_failed_does_not_show_that_the_batches_are_its_own(promises):
    many = SimpleNamespace(ranks={0: []}, rows=lambda rank, kind: ["a call of the model"], failed=True)
    runs = SimpleNamespace(many=many)
    assert promises.own_batches(runs) == ("not seen", "the run did not end", "")


@pytest.fixture
def runs(promises):
    """The module of one run, which promises.py has imported."""
    return sys.modules["runs"]


def test_a_run_leaves_what_was_seen_but_no_copy_of_the_folder(runs, monkeypatch, tmp_path):
    """A copy can take 1 GiB, and check.py makes several runs."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "my.py").write_text("print(1)\n")
    monkeypatch.chdir(mine)
    copied = []

    def wait(this):
        copied.append(content_of(this.work))
        return True

    monkeypatch.setattr(runs, "launch", lambda this: None)
    monkeypatch.setattr(runs, "wait", wait)
    monkeypatch.setattr(runs, "end", lambda this: None)
    this = runs.run([], label="one process", folder=tmp_path / "run", command=[])
    assert copied == [{"my.py": b"print(1)\n"}]
    assert this.seen.exists() and not this.work.exists()


def test_a_run_ends_its_own_processes_and_none_of_another_run(runs):
    started = []
    try:
        for seen in ("/one", "/other"):
            words = [sys.executable, "-c", "import time; time.sleep(60)"]
            started.append(subprocess.Popen(words, env=os.environ | {"PORT_SEEN": seen}))
        found = [process.pid for process in runs.processes_of("/one")]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert found == [started[0].pid]


STACK = """Fatal Python error: Aborted

Current thread 0x00007f0000000000 (most recent call first):
  File "/python/torch/{inner}", line 829 in inner
  File "{work}/my.py", line 46 in train
"""


@pytest.mark.parametrize(
    ("inner", "row"),
    [("_engine_run_backward.py", "an-incomplete-last-batch"), ("distributed.py", "evaluation")],
)
def test_a_process_that_a_signal_ended_has_a_line_and_a_row_of_the_page(runs, tmp_path, inner, row):
    this = runs.Run(label="", folder=tmp_path, command=[])
    this.seen.mkdir()
    (this.seen / "0.1.crash").write_text("")
    (this.seen / "1.2.crash").write_text(STACK.format(work=this.work, inner=inner))
    text = "rank 1 was ended by a signal (Aborted) in my.py:46"
    assert runs.signal_of(this) == (text, row)


def test_it_names_rows_that_the_page_has():
    text = (PORT / "promises.py").read_text() + (PORT / "runs.py").read_text()
    rows = set(re.findall(r'"([a-z]+(?:-[a-z]+)+|reducelronplateau|evaluation)"', text))
    headings = re.findall(r"^##+ (.*)", (ROOT / "lessons/pages/port.md").read_text(), re.M)
    there = set()
    for heading in headings:
        there.add(re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-"))
    assert len(rows) > 20 and rows <= there, rows - there
