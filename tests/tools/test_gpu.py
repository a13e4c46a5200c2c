"""`make gpu`: what it promises about children, stages and time, and all of its stages in small."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tools import launcher
from tools.gpu import harness, probes
from tools.testbed import pretending
from tools.testbed.processes import alive, wait_for

TOOL = (sys.executable, "-m", "tools.gpu")


@pytest.fixture
def check(tmp_path):
    check = harness.Check(tmp_path, minutes=1, is_rehearsal=False, gpus=0)
    check.at_once = 2
    yield check
    shutil.rmtree(check.folder, ignore_errors=True)


def stage(name, *texts, seconds=5.0):
    """A stage that runs these texts of Python and has a row for each."""

    def work(check):
        jobs = {f"{name} {n}": harness.Job([sys.executable, "-c", text]) for n, text in enumerate(texts)}
        for each, child in check.run(jobs).items():
            check.judge(each, [child], lambda child: (child.text(), "good" in child.text()))

    return harness.Stage(name, seconds, work)


def test_what_fails_is_a_failed_row_and_the_rest_goes_on(check, tmp_path):
    """Also a child that hangs, with what it has started in another session, as torchrun does."""
    hangs = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(99)'], "
    hangs += "start_new_session=True)"
    check.end = check.began + 5
    faulty = harness.Stage("fault", 0.1, lambda check: {}["nothing"])
    stages = [faulty, stage("a", hangs, "print('good')", "print('bad')", "1 / 0", seconds=3), stage("long")]
    assert check.go(stages) == 1
    assert [(row.name, row.verdict) for row in check.rows] == [
        ("the stage", "failed"),
        ("a 0", "failed"),
        ("a 1", "ok"),
        ("a 2", "failed"),
        ("a 3", "failed"),
        ("the stage", "not run"),
    ]
    assert check.rows[1].value.startswith("still ran after ")
    assert check.rows[4].value == "status 1: ZeroDivisionError: division by zero"
    assert check.rows[5].value.startswith("needs 5 s, and ")
    table = json.loads((tmp_path / "gpu.json").read_text())
    assert table["counts"] == {"failed": 4, "ok": 1, "not run": 1} and len(table["rows"]) == 6
    assert "a 0: still ran" in (tmp_path / "gpu.log").read_text()
    assert not check.folder.exists()
    wait_for(lambda: not any(alive(child.mark) for child in check.children), 10)


def test_a_test_that_fails_is_a_failed_row(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('stem', ['05_snapshots'])\n"
        "def test_a_good_one(stem, record_property): record_property('off by', 3)\n"
        "def test_bad(): assert 1 == 2\n"
        "@pytest.fixture\n"
        "def broken(): raise ValueError('no such thing')\n"
        "def test_not_begun(broken): pass\n"
        "def test_not_here(): pytest.skip('for a reason')\n"
    )
    environment = os.environ | {"ROWS": str(tmp_path / "rows"), "PYTHONPATH": str(launcher.ROOT)}
    words = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider"]
    words += ["-p", "tools.gpu.each_test"]
    subprocess.run([*words, tmp_path], cwd=tmp_path, env=environment, capture_output=True, timeout=120)
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert [(name, verdict) for name, _, _, verdict in rows] == [
        ("a good one[05_snapshots]", "ok"),
        ("bad", "failed"),
        ("not begun", "failed"),
    ]
    assert rows[0][1] == "off by 3; 0 s"
    said = (tmp_path / "rows.failed").read_text()
    assert said.count("==== ") == 2 and "ValueError: no such thing" in said


@pytest.mark.long
def test_no_one_is_measured_beside_one_that_prepares_or_is_measured(check, tmp_path):
    """And who is never prepared is ended: `slow` compiles for minutes, say."""
    text = f"""
import fcntl, os, time
from tools.gpu import probes
def wait_for_all(what):
    open("{tmp_path}/" + what + str(os.getpid()), "w")
    while sum(what in name for name in os.listdir({str(tmp_path)!r})) < 3:
        time.sleep(0.01)
wait_for_all("here-")
probes.lock(fcntl.LOCK_SH)
wait_for_all("locked-")
start = time.time()
time.sleep(SECONDS)
probes.wait_for_turn()
begun = time.time()
time.sleep(0.3)
probes.say({{"times": [start, begun, time.time()]}})
"""
    check.at_once, check.on_gpus["SECONDS_OF_TURN"] = 3, 8
    seconds = {"quick": 0, "slower": 3, "slow": 99}
    jobs = {
        name: harness.Job([sys.executable, "-c", text.replace("SECONDS", str(number))], check.on_gpus)
        for name, number in seconds.items()
    }
    found = check.run(jobs)
    assert found["slow"].problem == f"status {-signal.SIGALRM}: it said nothing"
    (start_a, begun_a, end_a), (start_b, begun_b, end_b) = (
        found[name].said()["times"] for name in ("quick", "slower")
    )
    assert min(begun_a, begun_b) - min(start_a, start_b) > 6, "both have waited for the third"
    assert end_a <= begun_b or end_b <= begun_a


def call(*words, **environment):
    words = [*TOOL, *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(launcher.ROOT)} | environment
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=3600)


def keep_compiled(folder):
    """A rehearsal whose temporary files lie in here would compile the pretended CUDA anew."""
    if not (pretending.missing(2) or pretending.real()):
        compiled = pretending.library().parents[1]
        (Path(folder) / compiled.name).symlink_to(compiled)


def test_without_a_gpu_it_says_so_before_anything_is_written(tmp_path):
    run = call("--out", tmp_path / "out", TMPDIR=str(tmp_path), CUDA_VISIBLE_DEVICES="")
    said = "error: there is no GPU here; with --rehearse, the same stages are tried without one\n"
    assert (run.returncode, run.stdout, run.stderr) == (1, "", said)
    assert not list(tmp_path.iterdir())


def test_sigterm_leaves_no_child_behind(tmp_path):
    keep_compiled(tmp_path)
    mark = f"test-{tmp_path}"
    words = [*TOOL, "--rehearse", "--out", tmp_path / "out"]
    environment = os.environ | {"MARK": mark, "TMPDIR": str(tmp_path)}
    run = subprocess.Popen(words, cwd=launcher.ROOT, env=environment, stdout=-3)
    wait_for(lambda: len(alive(mark)) > 1 and list(tmp_path.glob("gpu-check-*")), 60)
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=60) == 143
    wait_for(lambda: not alive(mark), 10)
    assert not list(tmp_path.glob("gpu-check-*"))


def test_how_busy_a_gpu_is_counts_no_moment_twice():
    def kernel(name, begin, duration, cat="kernel"):
        return {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": duration}

    events = [
        kernel("nvjet_hsh_256x128", 1000, 400),
        kernel("ncclDevKernel_AllReduce", 1200, 400),  # beside the product
        kernel("void at::native::elementwise_kernel", 1600, 100),
        kernel("pytorch_flash::flash_bwd_kernel", 1700, 50),
        kernel("Memcpy HtoD", 1800, 100, "gpu_memcpy"),
        kernel("Optimizer.step", 1000, 900, "gpu_user_annotation"),  # no work of its own
        {"ph": "M", "name": "process_name"},
    ]
    found = probes.busy(events, 0.001)
    assert found.pop("busy") == pytest.approx(0.85)
    assert found.pop("hidden") == pytest.approx(0.2)
    expected = {"products": 0.4, "NCCL": 0.4, "other kernels": 0.1, "attention": 0.05, "copies": 0.1}
    assert found == pytest.approx(expected)
    assert probes.busy(events[-2:], 0.001) == {}


@pytest.mark.skipif(
    bool(pretending.missing(2) or pretending.real()), reason=pretending.missing(2) or "has real GPUs"
)
@pytest.mark.long("1")
@pytest.mark.night
@pytest.mark.parametrize("stages", ["1", "12345"])
def test_the_rehearsal_is_green(tmp_path, stages):
    """On simulated GPUs, in an empty folder, where nothing may be left."""
    out = tmp_path / "out"
    # Not below tmp_path: a DataLoader's workers make sockets there, whose paths must be short.
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        keep_compiled(folder)
        run = call("--rehearse", "--out", out, "--stages", stages, TMPDIR=folder)
        left = list(Path(folder).glob("gpu-check-*"))
    table = json.loads((out / "gpu.json").read_text())
    assert run.returncode == 0 and run.stdout.splitlines()[-1].endswith("rows, 0 failed"), run.stdout
    assert {path.name for path in out.iterdir()} == {"gpu.json", "gpu.log", "gpu.png"}
    assert table["on"] == "a rehearsal on 2 simulated GPUs" == run.stdout.splitlines()[0]
    assert not left and len({row["stage"] for row in table["rows"]}) == len(stages)
    assert not [row for row in table["rows"] if row["verdict"] == "not run"]
    assert table["rows"][0]["value"].startswith("NVIDIA pretended, NVIDIA pretended, torch ")
    if len(stages) > 1:
        tests = [row["name"] for row in table["rows"] if row["stage"] == "the lessons"]
        assert "a lesson has the cpus curve[04-2]" in tests and "a kill costs no byte[05_snapshots]" in tests
