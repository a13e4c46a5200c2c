"""`make gpu`: what it promises about children, stages and time, and all of its stages in small."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import launcher, speeds
from tools.gpu import __main__ as tool
from tools.gpu import harness, probes, seen, speed
from tools.testbed import pretending
from tools.testbed.processes import alive, wait_for

TOOL = (sys.executable, "-m", "tools.gpu")


@pytest.fixture
def check(tmp_path):
    check = harness.Check(tmp_path, minutes=1, is_rehearsal=False, gpus=0)
    check.at_once = 2
    yield check
    shutil.rmtree(check.folder, ignore_errors=True)


def stage(name, *texts, seconds=5.0, needs=0.0):
    """A stage that evaluates these texts of Python and has a row for each, as soon as it has ended."""

    def work(check):
        jobs = {}
        for number, text in enumerate(texts):
            words = [sys.executable, "-c", f"import json; print(json.dumps({{'probe': {text}}}))"]
            jobs[f"{name} {number}"] = harness.Job(words, seconds=needs)
        check.run(jobs, lambda each, child: check.judge(each, [child], look))

    def look(said):
        return said["probe"], said["probe"] == "good"

    return harness.Stage(name, seconds, seconds, work)


def verdicts(check):
    return [(row.name, row.verdict) for row in check.rows]


def test_what_fails_is_a_failed_row_and_the_rest_goes_on(check, tmp_path):
    """Also a child that hangs, with what it has started in another session, as torchrun does."""
    hangs = "__import__('subprocess').run(['sleep', '99'], start_new_session=True)"
    sees = f"'good' if 'a 1' in open({str(tmp_path / 'gpu.json')!r}).read() else 'no row yet'"
    check.end = check.began + 6
    faulty = harness.Stage("fault", 0.1, 0.1, lambda check: {}["nothing"])
    a = stage("a", hangs, "'good'", sees, "'bad'", "1 / 0", seconds=4)
    assert check.go([faulty, a, stage("long")]) == 1
    assert verdicts(check) == [
        ("the stage", "failed"),
        ("the whole stage", "ok"),
        ("a 1", "ok"),
        ("a 2", "ok"),
        ("a 3", "failed"),
        ("a 4", "failed"),
        ("a 0", "failed"),
        ("the whole stage", "not run"),
        ("the stage", "not run"),
    ]
    good, hung = check.rows[2], check.rows[6]
    assert hung.value.startswith("still ran after ") and hung.seconds > hung.limit - 0.2
    assert good.seconds < good.limit
    assert check.rows[5].value == "status 1: ZeroDivisionError: division by zero"
    assert check.rows[8].value.startswith("needs 5 s, and ")
    table = json.loads((tmp_path / "gpu.json").read_text())
    assert table["counts"] == {"failed": 4, "ok": 3, "not run": 2}
    assert table["rows"][2]["seconds"] == good.seconds
    assert "a 0: still ran" in (tmp_path / "gpu.log").read_text()
    assert not check.folder.exists()
    wait_for(lambda: not any(alive(child.mark) for child in check.children), 10)


def test_a_stage_of_a_rehearsal_fails_if_it_takes_longer_than_its_own_time(tmp_path):
    check = harness.Check(tmp_path, minutes=1, is_rehearsal=True, gpus=0)
    slow = stage("it", "__import__('time').sleep(99)", seconds=1, needs=60)
    assert check.go([slow, stage("short")]) == 1
    # It had 1 s and needs 60.
    assert verdicts(check) == [("it 0", "not run"), ("the whole stage", "failed"), ("the whole stage", "ok")]


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
        "def test_not_for_it(): pytest.skip('needs 2 GPUs')\n"
    )

    def rows(**before):
        (tmp_path / "rows").write_text("")
        (tmp_path / "before").write_text(json.dumps(before))
        environment = os.environ | {"PYTHONPATH": str(launcher.ROOT)}
        environment |= {name.upper(): str(tmp_path / name) for name in ("rows", "before")}
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "1"]
        words += ["-p", "tools.gpu.each_test"]
        subprocess.run([*words, tmp_path], cwd=tmp_path, env=environment, capture_output=True, timeout=120)
        return [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]

    found = rows()
    assert [(name, verdict) for name, _, _, verdict, *_ in found] == [
        ("a good one[05_snapshots]", "ok"),
        ("bad", "failed"),
        ("not begun", "failed"),
        ("not here", "not run"),
    ]
    assert found[0][1] == "off by 3" and 0 <= found[0][4] < 1 and found[3][1] == "for a reason"
    said = (tmp_path / "rows.failed").read_text()
    assert said.count("==== ") == 2 and "ValueError: no such thing" in said
    known = {"a good one[05_snapshots]": 9}
    assert [row[0] for row in rows(known=known)] == ["bad", "not begun", "not here", found[0][0]]
    assert [row[0] for row in rows(known=known, **{"only new": True})] == ["bad", "not begun", "not here"]


def test_what_has_no_time_left_is_a_row(check, tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text("import time\ndef test_a(): pass\ndef test_b(): time.sleep(99)\n")
    check.deadline = time.monotonic() + 8
    tool.tests(check, (path,))
    assert verdicts(check) == [("a", "ok"), ("the other tests", "not run")]


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
    jobs = {
        name: harness.Job([sys.executable, "-c", text.replace("SECONDS", str(number))], check.on_gpus)
        for name, number in {"quick": 0, "slower": 3, "slow": 99}.items()
    }
    found = check.run(jobs)
    assert found["slow"].problem == f"status {-signal.SIGALRM}: it said nothing"
    times = [found[name].said()["times"] for name in ("quick", "slower")]
    (start_a, begun_a, end_a), (start_b, begun_b, end_b) = times
    assert min(begun_a, begun_b) - min(start_a, start_b) > 6, "both have waited for the third"
    assert end_a <= begun_b or end_b <= begun_a


def keep_compiled(folder):
    """A rehearsal whose temporary files lie in here would compile the pretended CUDA anew."""
    if not (pretending.missing(2) or pretending.real()):
        compiled = pretending.library().parents[1]
        (Path(folder) / compiled.name).symlink_to(compiled)


def test_without_a_gpu_it_says_so_before_anything_is_written(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    words = [*TOOL, "--out", tmp_path / "out"]
    run = subprocess.run(words, cwd=launcher.ROOT, env=environment, capture_output=True, text=True)
    said = "error: there is no GPU here; with --rehearse, the same stages are tried without one\n"
    assert (run.returncode, run.stdout, run.stderr) == (1, "", said)
    assert not list(tmp_path.iterdir())


def test_sigterm_leaves_no_child_behind(tmp_path):
    mark = f"test-{tmp_path}"
    words = [*TOOL, "--rehearse", "--out", tmp_path / "out"]
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        keep_compiled(folder)
        environment = os.environ | {"MARK": mark, "TMPDIR": folder}
        run = subprocess.Popen(words, cwd=launcher.ROOT, env=environment, stdout=subprocess.DEVNULL)
        wait_for(lambda: len(alive(mark)) > 1 and list(Path(folder).glob("gpu-check-*")), 60)
        for _ in range(20):  # as from a scheduler, and from `make`, which hands it on
            run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=60) == 143
        wait_for(lambda: not alive(mark), 10)
        assert not list(Path(folder).glob("gpu-check-*"))


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
    ]
    expected = {"products": 0.4, "NCCL": 0.4, "other kernels": 0.1, "attention": 0.05, "copies": 0.1}
    assert probes.busy(events, 0.001) == pytest.approx(expected | {"busy": 0.85, "hidden": 0.2})
    assert probes.busy(events[-1:], 0.001) == {}


def test_an_nccl_that_hangs_is_ended_long_before_a_gpus_time_is_over(start, monkeypatch):
    conftest = sys.modules[type(start("", words=["true"])).__module__]  # it has no name to import it by
    longest = max(seen.before(seen.RESULTS.glob("gpu-*.json")).values())
    assert longest < conftest.SECONDS_ON_GPUS <= 11 * 60 / 5
    monkeypatch.setattr(pretending, "real", lambda: 1)
    monkeypatch.setattr(conftest, "SECONDS_ON_GPUS", 1)
    with pytest.raises(pytest.fail.Exception, match="still running after 1 seconds"):
        start("", words=[sys.executable, "-c", "import time; time.sleep(99)"], gpus=1).finish()


# ---- what a machine may lack ---------------------------------------------------------------------


def test_modules_and_torchrun_are_those_of_the_readers_python(start, monkeypatch, tmp_path):
    """`module load` has put torch into PYTHONPATH, and another torchrun comes first in PATH."""
    (tmp_path / "torchrun").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", "/cluster/torch")
    check = harness.Check(tmp_path, minutes=1, is_rehearsal=False, gpus=1)
    shutil.rmtree(check.folder)
    assert check.on_gpus["PYTHONPATH"].endswith(f"{os.pathsep}/cluster/torch")
    probe = check.probe("sizes", ranks=2)
    assert probe.words[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert probe.environment["SHARE_GPU"] == 1
    monkeypatch.setattr(pretending, "real", lambda: 1)
    for number, words in enumerate((["torchrun", "--help"], ["sh", "-c", "torchrun --help"])):
        result = start("", words=words, gpus=1, folder=str(number)).finish()
        assert result.code == 0 and "--nproc-per-node" in result.stdout, result.stderr


def measured(check, monkeypatch):
    """What `speed.alone` would run."""
    asked = {}
    monkeypatch.setattr(check, "run", lambda jobs, look: asked.update(jobs))
    speed.alone(check)
    return asked


@pytest.mark.parametrize(
    ("lacking", "left", "said"),
    [
        ("bf16", ["repeatable", "plain", "input"], "this GPU has no bf16"),
        ("gcc", [*list(speed.STEPS)[:-1], "gpt"], "no compiler: torch.compile needs gcc or clang"),
        ("memory", [*speed.STEPS, "gpt", "gpt, compiled"], "needs 29 GB, and 23 are free"),
    ],
)
def test_what_the_machine_lacks_is_said_in_rows(check, monkeypatch, lacking, left, said):
    """The memory is that of a card of 24 GB."""
    monkeypatch.setattr(pretending, "find_spec", lambda name: True)
    monkeypatch.setattr(pretending, "has_header", lambda: True)
    monkeypatch.setattr(shutil, "which", lambda name: None if lacking == "gcc" else name)
    check.facts["bf16"], check.at_once = lacking != "bf16", 6
    check.room = 23e9 if lacking == "memory" else check.room
    asked = measured(check, monkeypatch)
    assert list(asked) == left and {row.verdict for row in check.rows} == {"not run"}
    assert check.rows[0].value == said
    if lacking == "memory":
        assert check.has_room(asked["plain"], [asked["bf16"]])
        assert not check.has_room(asked["plain"], [asked["bf16"], asked["fused"]])


def test_bytes_that_a_copy_changes_fail_and_without_p2p_nothing_runs_twice(check, monkeypatch):
    said = {"peers": {"1": {"P2P": False, "bytes/s": 2e9, "same": False}}}
    child = SimpleNamespace(problem="", took=1.0, limit=60.0, said=lambda: said)
    children = {"peers": child}
    monkeypatch.setattr(check, "run", lambda jobs: {name: children.get(name) for name in jobs})
    check.gpus = 2
    speed.several_gpus(check)
    row, *others = check.rows
    assert row.verdict == "failed" and "through the host" in row.value and "NCCL_P2P_DISABLE=1" in row.value
    assert others and not [row for row in others if "without P2P" in row.name]


# ---- what has been seen already ------------------------------------------------------------------


def test_what_no_gpu_has_shown_comes_first_and_then_the_longest():
    known = seen.before(seen.RESULTS.glob("gpu-*.json"))
    names = ["a kill costs no byte[06a_any_step]", "its options have it too[10 --schedule gpipe]"]
    names += ["a lesson has the cpus curve[17-4]", "make run takes what gpus there are[1]"]
    assert sorted(names, key=lambda name: seen.place(name, known)) == names[::-1]
    names = ["it runs on a gpu[13_gpt]", "it runs on a gpu[10a_stale_weights]"]  # the short ones first
    assert sorted(names, key=lambda name: seen.place(name, known)) == names[::-1]


@pytest.mark.parametrize("only_new", [True, False])
def test_only_what_is_new_is_measured_or_what_is_new_comes_first(check, monkeypatch, only_new):
    check.before, check.only_new = seen.before(seen.RESULTS.glob("gpu-*.json")), only_new
    monkeypatch.setattr(pretending, "no_compiler", lambda: "")
    asked = list(measured(check, monkeypatch))
    assert asked[:5] == list(speed.GPTS)[2:]  # batches of 16 were compiled in another way
    assert len(asked) == (5 if only_new else len(speed.STEPS) + len(speed.GPTS))


def test_a_file_of_this_run_counts_but_not_one_of_a_rehearsal(check, tmp_path):
    check.row("a new thing", "right", "", "ok", 12.0, 60.0)
    check.row("a bad thing", "wrong", "", "failed", 12.0, 60.0)
    (first,) = tool.without_overwriting(tmp_path)
    assert first.name == "gpu-1.json" and seen.before([first]) == {"a new thing": 12.0}
    check.is_rehearsal = True
    check.save()
    first, second = tool.without_overwriting(tmp_path)
    assert second.name == "gpu-2.json" and seen.before([second]) == {}


def test_the_tables_have_each_row_from_the_newest_file_that_has_it(monkeypatch, tmp_path):
    """As `make gpu` writes it, which with --only-new leaves out most; and as it was put together by hand."""
    old, tables = speeds.measured(), (speeds.ladder(), speeds.gpt())
    for path in speeds.FOLDER.glob("*.json"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(speeds, "FOLDER", tmp_path)
    row = old["gpt"]["gpt, compiled"] | {"kinds": ["compiled", "fused", "cudnn"], "size": 32}
    plain = old["ladder"]["plain"] | {"images/s": 12345.6}
    facts = {"ladder": {"plain": plain}, "gpt": {"new": row, "words": row | {"characters": 50304}}}
    (tmp_path / "h100-2027-01-03.json").write_text(json.dumps({"facts": facts}))
    how = "| 32 | compiled as a whole; one product for query, key and value; cuDNN's attention"
    first, second = speeds.gpt().removeprefix(tables[1]).splitlines()
    assert first.startswith(f"{how} | ") and second.startswith(f"{how}; 50,304 words | ")
    changed = set(speeds.ladder().splitlines()) - set(tables[0].splitlines())
    assert len(changed) == 1 and " | 12,346 | " in changed.pop()
    speeds.draw(tmp_path / "picture.svg")
    assert "32 texts" in (tmp_path / "picture.svg").read_text()


# ---- all of it -----------------------------------------------------------------------------------


@pytest.mark.skipif(
    bool(pretending.missing(2) or pretending.real()), reason=pretending.missing(2) or "has real GPUs"
)
@pytest.mark.alone  # a stage that takes longer than its own time fails
@pytest.mark.long("1")
@pytest.mark.night
@pytest.mark.parametrize("stages", ["1", "123456"])
def test_the_rehearsal_is_green(tmp_path, stages):
    """On simulated GPUs, in an empty folder, where nothing may be left."""
    out = tmp_path / "out"
    # Not below tmp_path: a DataLoader's workers make sockets there, whose paths must be short.
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        keep_compiled(folder)
        words = [*TOOL, "--rehearse", "--out", out, "--stages", stages, "--patience", "1"]
        environment = os.environ | {"TMPDIR": folder}
        run = subprocess.run(words, cwd=launcher.ROOT, env=environment, capture_output=True, text=True)
        left = list(Path(folder).glob("gpu-check-*"))
    table = json.loads((out / "gpu.json").read_text())
    assert run.returncode == 0 and run.stdout.splitlines()[-1].endswith("rows, 0 failed"), run.stdout
    assert {path.name for path in out.iterdir()} == {"gpu.json", "gpu.log"}
    assert table["on"] == "a rehearsal on 2 simulated GPUs" == run.stdout.splitlines()[0]
    assert not left and len({row["stage"] for row in table["rows"]}) == len(stages)
    assert not [row for row in table["rows"] if row["verdict"] == "not run"]
    assert table["rows"][0]["value"].startswith("NVIDIA pretended, NVIDIA pretended, torch ")
    if len(stages) > 1:
        tests = [row["name"] for row in table["rows"] if row["stage"] == "the lessons"]
        assert "a lesson has the cpus curve[04-2]" in tests and "a kill costs no byte[05_snapshots]" in tests
