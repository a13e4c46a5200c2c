"""`make gpu`: what it promises about children, stages and time, and all of its stages in small."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tools import launcher, speeds
from tools.gpu import harness, probes, seen, speed
from tools.testbed import pretending, surroundings
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

    return harness.Stage(name, seconds, seconds, work)


def test_what_fails_is_a_failed_row_and_the_rest_goes_on(check, tmp_path):
    """Also a child that hangs, with what it has started in another session, as torchrun does."""
    hangs = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(99)'], "
    hangs += "start_new_session=True)"
    check.end = check.began + 5
    faulty = harness.Stage("fault", 0.1, 0.1, lambda check: {}["nothing"])
    stages = [faulty, stage("a", hangs, "print('good')", "print('bad')", "1 / 0", seconds=3), stage("long")]
    assert check.go(stages) == 1
    assert [(row.name, row.verdict) for row in check.rows] == [
        ("the stage", "failed"),
        ("the whole stage", "ok"),
        ("a 0", "failed"),
        ("a 1", "ok"),
        ("a 2", "failed"),
        ("a 3", "failed"),
        ("the whole stage", "not run"),
        ("the stage", "not run"),
    ]
    hung, good = check.rows[2:4]
    assert hung.value.startswith("still ran after ") and hung.seconds > hung.limit - 0.2
    assert good.seconds < good.limit and good.limit == pytest.approx(hung.limit, abs=1)
    assert check.rows[5].value == "status 1: ZeroDivisionError: division by zero"
    assert check.rows[7].value.startswith("needs 5 s, and ")
    table = json.loads((tmp_path / "gpu.json").read_text())
    assert table["counts"] == {"failed": 4, "ok": 2, "not run": 2} and len(table["rows"]) == 8
    assert table["rows"][3]["seconds"] == good.seconds
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
        "def test_not_for_it(): pytest.skip('needs 2 GPUs')\n"
    )
    known = {"a good one[05_snapshots]": 9}

    def rows(**before):
        shutil.rmtree(tmp_path / "rows.failed", ignore_errors=True)
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
    assert [row[0] for row in rows(known=known)] == ["bad", "not begun", "not here", found[0][0]]
    assert [row[0] for row in rows(known=known, **{"only new": True})] == ["bad", "not begun", "not here"]


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
    mark = f"test-{tmp_path}"
    words = [*TOOL, "--rehearse", "--out", tmp_path / "out"]
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        keep_compiled(folder)
        environment = os.environ | {"MARK": mark, "TMPDIR": folder}
        run = subprocess.Popen(words, cwd=launcher.ROOT, env=environment, stdout=-3)
        wait_for(lambda: len(alive(mark)) > 1 and list(Path(folder).glob("gpu-check-*")), 60)
        for _ in range(20):  # as from a scheduler, and from `make`, which hands it on
            run.send_signal(signal.SIGTERM)
            time.sleep(0.02)
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
        {"ph": "M", "name": "process_name"},
    ]
    found = probes.busy(events, 0.001)
    assert found.pop("busy") == pytest.approx(0.85)
    assert found.pop("hidden") == pytest.approx(0.2)
    expected = {"products": 0.4, "NCCL": 0.4, "other kernels": 0.1, "attention": 0.05, "copies": 0.1}
    assert found == pytest.approx(expected)
    assert probes.busy(events[-2:], 0.001) == {}


# ---- time ----------------------------------------------------------------------------------------


def test_a_row_is_written_as_soon_as_its_child_has_ended(check, tmp_path):
    """Whoever started this may kill it. The second child looks for the row of the first."""
    sees = f"""
import pathlib, time
path, end = pathlib.Path({str(tmp_path / "gpu.json")!r}), time.time() + 20
while time.time() < end and not (path.exists() and "quick" in path.read_text()):
    time.sleep(0.05)
print("good" if time.time() < end else "nothing was written")
"""
    jobs = {name: harness.Job([sys.executable, "-c", text]) for name, text in (("slow", sees), ("quick", ""))}

    def look(name, child):
        check.judge(name, [child], lambda child: child.text())

    check.run(jobs, look)
    assert [(row.name, row.value) for row in check.rows] == [("quick", ""), ("slow", "good")]


def test_measurements_have_a_row_as_soon_as_they_have_ended(check, monkeypatch):
    def run(jobs, look=None):
        ended = []
        for name in jobs:
            look(name, None)
            ended.append(check.rows[-1].name)
        assert len(set(ended)) == len(jobs) > 1
        return dict.fromkeys(jobs)

    monkeypatch.setattr(check, "run", run)
    speed.alone(check)


def test_a_stage_of_a_rehearsal_fails_if_it_takes_longer_than_its_own_time(tmp_path):
    check = harness.Check(tmp_path, minutes=1, is_rehearsal=True, gpus=0)
    waits = "import time; time.sleep(99)"

    def work(check):
        job = harness.Job([sys.executable, "-c", waits], seconds=60)
        check.run({"it": job}, lambda name, child: check.judge(name, [child], lambda child: ""))

    assert (
        check.go([harness.Stage("long", 30, 1, work), harness.Stage("short", 30, 1, lambda check: None)]) == 1
    )
    assert [(row.name, row.verdict) for row in check.rows] == [
        ("it", "not run"),  # it had 1 s and needs 60
        ("the whole stage", "failed"),
        ("the whole stage", "ok"),
    ]


def test_an_nccl_that_hangs_is_ended_long_before_a_gpus_time_is_over(start, monkeypatch):
    files = (seen.RESULTS).glob("*.json")
    assert max(seen.before(files).values()) < conftest_of(start).SECONDS_ON_GPUS <= 11 * 60 / 5
    monkeypatch.setattr(pretending, "real", lambda: 1)
    monkeypatch.setitem(conftest_of(start).Started.finish.__globals__, "SECONDS_ON_GPUS", 1)
    with pytest.raises(pytest.fail.Exception, match="still running after 1 seconds"):
        start("", words=[sys.executable, "-c", "import time; time.sleep(99)"], gpus=1).finish()


def conftest_of(start):
    """tests/conftest.py, which has no name to import it by."""
    return sys.modules[type(start("", words=["true"])).__module__]


# ---- what is left behind, and what a machine may lack --------------------------------------------


def test_folders_of_notebooks_that_were_ended_are_removed(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (ended.pid, os.getpid(), "of-mine"):
        (tmp_path / f"test-{name}/deep").mkdir(parents=True)
    harness.clear_out(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"test-{os.getpid()}", "test-of-mine"}


@pytest.fixture(scope="module")
def tool():
    """tools/gpu/__main__.py, as a module."""
    spec = importlib.util.spec_from_file_location("gpu_tool", launcher.ROOT / "tools/gpu/__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tests_that_have_no_time_left_leave_no_folder(check, tool, tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text(
        "import os, time\n"
        "def test_a(): pass\n"
        "def test_b():\n"
        f"    os.makedirs({str(launcher.ROOT)!r} + f'/out/test-{{os.getpid()}}/made')\n"
        "    time.sleep(99)\n"
    )
    was_there = set((launcher.ROOT / "out").glob("test-*"))
    check.deadline = time.monotonic() + 8
    tool.tests(check, (path,))
    assert [(row.name, row.verdict) for row in check.rows] == [("a", "ok"), ("the other tests", "not run")]
    assert set((launcher.ROOT / "out").glob("test-*")) <= was_there


def test_sockets_have_short_paths_wherever_tmpdir_is(check, start, monkeypatch, tmp_path):
    """As DataLoader's workers make them."""
    text = "from multiprocessing.connection import Listener; Listener(family='AF_UNIX').close()"
    result = start("", words=[sys.executable, "-c", text], folder="f" * 60).finish()
    assert result.code == 0, result.stderr
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("deep" * 10)))
    found = surroundings.short_folder("gpu-check-")
    found.rmdir()
    assert len(str(found)) < 50


def test_the_readers_own_modules_are_kept_and_come_last(start, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", "/cluster/torch")
    check = harness.Check(tmp_path, minutes=1, is_rehearsal=False, gpus=0)
    shutil.rmtree(check.folder)
    assert check.on_gpus["PYTHONPATH"].endswith(f"{os.pathsep}/cluster/torch")
    words = [sys.executable, "-c", "import os; print(os.environ['PYTHONPATH'])"]
    assert start("", words=words).finish().stdout.endswith(f"{os.pathsep}/cluster/torch\n")


def test_torchrun_is_that_of_the_same_python(check, start, monkeypatch, tmp_path):
    (tmp_path / "torchrun").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert check.probe("sizes", ranks=2).words[:3] == [sys.executable, "-m", "torch.distributed.run"]
    monkeypatch.setattr(pretending, "real", lambda: 1)
    cases = ([tmp_path / "torchrun", "--help"], ["torchrun", "--help"], ["sh", "-c", "torchrun --help"])
    for number, words in enumerate(cases):
        result = start("", words=words, gpus=1, folder=str(number)).finish()
        assert result.code == 0 and "--nproc-per-node" in result.stdout, result.stderr


def names_of_measured(check, monkeypatch):
    """What `speed.alone` would run; and its rows, of what it would not."""
    asked = {}
    monkeypatch.setattr(check, "run", lambda jobs, look: asked.update(jobs))
    speed.alone(check)
    return asked, {row.name: (row.value, row.verdict) for row in check.rows}


def test_a_gpu_without_bf16_is_measured_in_32_bits_only(check, monkeypatch):
    check.facts["bf16"] = False
    asked, rows = names_of_measured(check, monkeypatch)
    assert list(asked) == ["repeatable", "plain", "input"]
    assert set(rows.values()) == {("this GPU has no bf16", "not run")} and "ResNet-18, with bf16" in rows
    check.gpus = 2
    jobs = {}
    monkeypatch.setattr(check, "run", lambda found: dict.fromkeys(jobs.update(found) or found))
    speed.several_gpus(check)
    assert all("bf16=0" in job.words for name, job in jobs.items() if name != "peers") and len(jobs) > 2
    assert any(row.name.startswith("ResNet-18 in fp32, ddp on 2") for row in check.rows)


@pytest.mark.parametrize(
    ("names", "said"),
    [(["gcc", "clang"], "gcc or clang"), (["Python.h"], "Python.h"), (["triton"], "triton")],
)
def test_without_a_compiler_nothing_is_compiled(check, monkeypatch, names, said):
    which, find = shutil.which, pretending.find_spec
    monkeypatch.setattr(shutil, "which", lambda name: None if name in names else which(name) or name)
    monkeypatch.setattr(pretending, "find_spec", lambda name: None if name in names else name or find(name))
    monkeypatch.setattr(pretending, "has_header", lambda: "Python.h" not in names)
    monkeypatch.delenv("CC", raising=False)
    asked, rows = names_of_measured(check, monkeypatch)
    assert list(asked) == [*list(speed.STEPS)[:-1], "gpt"]
    values = {value for value, _ in rows.values()}
    assert (
        len(values) == 1 and said in values.pop() and {verdict for _, verdict in rows.values()} == {"not run"}
    )
    monkeypatch.setattr(pretending, "has_header", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)  # a build for GPUs does not pretend any
    assert "Python.h" in pretending.missing(1)


def test_a_rehearsal_measures_all_but_what_is_compiled_in_small(check, monkeypatch):
    check.is_rehearsal = True
    asked, rows = names_of_measured(check, monkeypatch)
    assert list(asked) == [*list(speed.STEPS)[:-1], "gpt"] and not rows
    assert all("rounds=1" in job.words and job.memory == 0 for job in asked.values())


def test_what_runs_at_once_fits_into_a_card_of_24_gb(check, monkeypatch):
    check.room, check.at_once = 23e9, 6
    monkeypatch.setattr(pretending, "no_compiler", lambda: "")
    asked, rows = names_of_measured(check, monkeypatch)
    assert [name for name in asked if "gpt" in name] == ["gpt", "gpt, compiled"]
    assert rows["a large gpt, batches of 16"] == ("needs 29 GB, and 23 are free", "not run")
    assert check.has_room(asked["plain"], [asked["bf16"]])
    assert not check.has_room(asked["plain"], [asked["bf16"], asked["fused"]])
    assert not check.has_room(asked["gpt"], [asked["bf16"]]) and check.has_room(asked["gpt"], [])


class Answer:
    """A child that has ended."""

    problem, took, limit = "", 1.0, 60.0

    def __init__(self, **said):
        self.said = lambda: said


@pytest.mark.parametrize("same", [True, False])
def test_bytes_that_a_copy_changes_fail_and_without_p2p_nothing_runs_twice(check, monkeypatch, same):
    peer = {"P2P": False, "bytes/s": 2e9, "same": same}
    monkeypatch.setattr(
        check,
        "run",
        lambda jobs: {name: Answer(peers={"1": peer}) if name == "peers" else None for name in jobs},
    )
    check.gpus = 2
    speed.several_gpus(check)
    row, *others = check.rows
    assert row.verdict == ("ok" if same else "failed") and "through the host" in row.value
    assert ("NCCL_P2P_DISABLE=1" in row.value) != same
    assert others and not [row for row in others if "without P2P" in row.name]


@pytest.mark.parametrize(("gpus", "how"), [(1, " that share a GPU"), (2, ", a GPU each")])
def test_the_row_of_the_all_reduce_says_whether_its_ranks_share_a_gpu(check, monkeypatch, gpus, how):
    check.gpus = gpus
    monkeypatch.setattr(check, "run", lambda jobs, look=None: dict.fromkeys(jobs))
    speed.memory(check)
    assert check.rows[0].name == f"all-reduce on 2 ranks{how}"
    assert check.probe("sizes", ranks=2).environment["SHARE_GPU"] == int(gpus == 1)


# ---- what has been seen already ------------------------------------------------------------------


def test_what_no_gpu_has_shown_comes_first_and_then_the_longest():
    known = seen.before(seen.RESULTS.glob("*.json"))
    assert (
        known["a lesson has the cpus curve[13-1]"] == 37 and "a lesson has the cpus curve[17-1]" not in known
    )
    new = ["make run takes what gpus there are[1]", "a lesson has the cpus curve[17-4]"]
    new += ["a lesson has the cpus curve[13-4]", "its options have it too[10 --schedule gpipe]"]
    old = ["a kill costs no byte[06a_any_step]", "its options have it too[09 --offload]"]
    names = [*old, *reversed(new)]
    assert sorted(names, key=lambda name: seen.place(name, known)) == [*new, *old]
    assert seen.place(new[2], known)[2] == -37  # which it took on one GPU
    names = [f"a lesson has the cpus curve[{case}]" for case in ("17-1", "13-2", "04-4", "04-1-for-4")]
    assert sorted(names, key=lambda name: seen.place(name, {}, 4))[0] == names[2]
    notebooks = ["10a_stale_weights", "13_gpt", "03_ddp_spawn"]  # the short ones first
    names = [f"it runs on a gpu[{stem}]" for stem in notebooks]
    assert sorted(sorted(names), key=lambda name: seen.place(name, known)) == names


def test_only_what_is_new_is_measured(check, monkeypatch):
    check.before, check.only_new = seen.before(seen.RESULTS.glob("*.json")), True
    monkeypatch.setattr(pretending, "no_compiler", lambda: "")
    asked, _ = names_of_measured(check, monkeypatch)
    assert list(asked) == list(speed.GPTS)[2:]  # batches of 16 were compiled in another way
    check.only_new = False
    asked, _ = names_of_measured(check, monkeypatch)
    assert list(asked)[:5] == list(speed.GPTS)[2:] and len(asked) == len(speed.STEPS) + len(speed.GPTS)


def test_a_file_of_this_run_counts_but_not_one_of_a_rehearsal(check, tool, tmp_path):
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
    (tmp_path / "h100-2027-01-02.json").write_text(json.dumps({"facts": {"gpus": ["NVIDIA H100"]}}))
    assert (speeds.ladder(), speeds.gpt()) == tables and tables[1].count("\n") == 2 + 4
    row = old["gpt"]["gpt, compiled"] | {"kinds": ["compiled", "fused", "cudnn"], "size": 32}
    plain = old["ladder"]["plain"] | {"images/s": 12345.6}
    facts = {"ladder": {"plain": plain}, "gpt": {"new": row, "words": row | {"characters": 50304}}}
    (tmp_path / "h100-2027-01-03.json").write_text(json.dumps({"facts": facts}))
    how = "| 32 | compiled as a whole; one product for query, key and value; cuDNN's attention"
    added = speeds.gpt().removeprefix(tables[1]).splitlines()
    assert added[0].startswith(f"{how} | ") and added[1].startswith(f"{how}; 50,304 words | ")
    assert len(added) == 2
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
