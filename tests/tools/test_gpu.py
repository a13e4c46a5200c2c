"""`make gpu`: what it promises about children, stages and time, and all of its stages in small."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import correct
import drawing
import harness
import pytest
import speed
import turns

import launcher
import pretending
from processes import alive, wait_for

TOOL = launcher.ROOT / "tools" / "gpu"
PRETENDS = pytest.mark.skipif(
    bool(pretending.missing(2) or pretending.real()), reason=pretending.missing(2) or "has real GPUs"
)


def python(text, **options):
    return harness.Job([sys.executable, "-c", text], **options)


@pytest.fixture
def check(tmp_path):
    check = harness.Check(tmp_path, minutes=1, is_rehearsal=False, gpus=0)
    check.at_once = 2
    yield check
    check.end_children()
    shutil.rmtree(check.folder, ignore_errors=True)


def result(check, name="probe", **said):
    """As if a probe had said this."""
    folder = check.folder / name
    folder.mkdir(exist_ok=True)
    (folder / ".stdout").write_text(json.dumps({"probe": True} | said) + "\n")
    return harness.Result(folder)


def kept(folder):
    return json.loads((folder / "gpu.json").read_text())


def verdicts(check):
    return {row.name: row.verdict for row in check.rows}


@contextlib.contextmanager
def started(folder, *words):
    """A process that has started another one; and all that are left of them, as a function."""
    mark = f"test-{os.getpid()}-{time.time()}"
    environment = os.environ | {"MARK_OF_TEST": mark, "TMPDIR": str(folder)}
    words = [sys.executable, *map(str, words)]
    run = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(alive(mark)) > 1, 60)
        yield run, lambda: alive(mark)
    finally:
        for pid, _ in alive(mark):
            os.kill(pid, signal.SIGKILL)


def stage(name, *jobs, seconds=5.0):
    """A stage that runs these jobs and has a row for each."""

    def work(check):
        found = check.run({f"{name} {number}": job for number, job in enumerate(jobs)})
        for each, result in found.items():
            check.judge(each, [result], lambda result: (result.stdout, "good" in result.stdout))

    return harness.Stage(name, seconds, work)


def test_a_child_over_its_limit_is_a_failed_row_and_the_rest_goes_on(check, tmp_path):
    """With what it has started in another session, as torchrun does with its ranks."""
    words = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(99)'], "
    hangs = python(words + "start_new_session=True)", limit=1)
    status = check.go([stage("a", hangs, python("print('good')")), stage("b", python("print('good')"))])
    assert verdicts(check) == {"a 0": "failed", "a 1": "ok", "b 0": "ok"}
    assert check.rows[0].value == "still ran after 1 s, and was ended"
    assert status == 1 and kept(tmp_path)["counts"]["failed"] == 1
    wait_for(lambda: not alive(check.mark), 10)
    assert "a 0: still ran" in (tmp_path / "gpu.log").read_text()
    assert not check.folder.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ValueError('no such thing')", "status 1: ValueError: no such thing"),
        ("print('bad')", "bad"),
        ("import sys; sys.exit('error: refused')", "status 1: error: refused"),
    ],
)
def test_any_failed_row_makes_the_status_1(check, text, said):
    assert check.go([stage("a", python(text), python("print('good')"))]) == 1
    assert [(row.value, row.verdict) for row in check.rows] == [(said, "failed"), ("good", "ok")]


def test_a_fault_of_a_stage_does_not_take_the_others_with_it(check):
    faulty = harness.Stage("a", 1, lambda check: {}["nothing"])
    assert check.go([faulty, stage("b", python("print('good')"))]) == 1
    assert verdicts(check) == {"the stage": "failed", "b 0": "ok"}


def test_a_missed_goal_and_a_lesson_for_a_newer_torch_are_no_failures(check):
    def work(check):
        check.judge("goal", [harness.Result(check.folder)], lambda _: ("3 times", False), goal=True)
        refused = "status 1: error: this lesson needs torch 2.13, and this is 2.11.0"
        check.judge("10", [harness.Result(check.folder, refused)], lambda _: "")

    assert check.go([harness.Stage("a", 1, work)]) == 0
    assert verdicts(check) == {"goal": "missed", "10": "not here"}


def test_a_stage_that_does_not_fit_is_named_and_not_run(check, tmp_path):
    check.end = check.began + 20
    stages = [stage("first", python("print('good')")), stage("long", seconds=60), stage("short")]
    assert check.go(stages) == 0
    assert [row[:2] + row[4:] for row in check.rows] == [
        ("first", "first 0", "ok"),
        ("long", "the stage", "not run"),
    ]
    assert check.rows[1].value.startswith("needs 60 s, and ") and kept(tmp_path)["counts"]["not run"] == 1


def test_a_child_has_no_more_time_than_its_stage_and_later_ones_do_not_begin(check):
    check.end = check.began + 4
    sleeps = python("import time; time.sleep(30)", ranks=2)
    begun = time.monotonic()
    assert check.go([stage("a", sleeps, sleeps, seconds=3)]) == 1
    assert [row.verdict for row in check.rows] == ["failed", "not run"]
    assert time.monotonic() - begun < 15


def test_no_more_ranks_run_at_once_than_there_are_cores(check, tmp_path):
    """Each notes when it began and ended: with two cores, a job of two ranks is alone. The first two wait
    for each other, however long a busy machine takes to start them."""
    text = f"import os, time; print('good', time.time()); open(f'{tmp_path}/here-{{os.getpid()}}', 'w')\n"
    text += f"while sum('here-' in name for name in os.listdir('{tmp_path}')) < 2: time.sleep(0.01)\n"
    text += "time.sleep(0.5); print(time.time())"
    seen = []

    def work(check):
        jobs = {str(number): python(text, ranks=ranks) for number, ranks in enumerate((1, 1, 2))}
        seen.extend(result.stdout.split() for result in check.run(jobs).values())

    check.go([harness.Stage("a", 30, work)])
    (_, *first), (_, *second), (_, *both) = ([words[0], *map(float, words[1:])] for words in seen)
    assert max(first[0], second[0]) < min(first[1], second[1])
    assert both[0] > max(first[1], second[1])


@pytest.mark.long
def test_all_prepare_at_once_and_are_measured_one_after_the_other(check):
    text = (
        f"import sys, time; start = time.time(); sys.path.insert(0, {str(TOOL)!r}); import turns; "
        "time.sleep(1); prepared = time.time(); turns.wait_for_turn(); begun = time.time(); "
        "time.sleep(0.3); turns.say({'times': [start, prepared, begun, time.time()]})"
    )
    times = {}

    def work(check):
        found = check.take_turns({name: python(text) for name in "ab"})
        times.update({name: result.said()["times"] for name, result in found.items()})

    check.end = check.began + 200
    assert check.go([harness.Stage("a", 199, work)]) == 0
    (start_a, prepared_a, begun_a, ended_a), (start_b, prepared_b, begun_b, _) = times["a"], times["b"]
    assert max(start_a, start_b) < min(prepared_a, prepared_b)
    assert max(prepared_a, prepared_b) < begun_a and ended_a < begun_b


@pytest.mark.long
def test_who_is_not_prepared_in_time_is_ended_before_others_are_measured(check):
    """As one that compiles for minutes: this one writes the time into a file for as long as it lives."""
    compiles = "import time\nwhile True: open('now', 'w').write(f'{time.time():.3f}\\n'); time.sleep(0.1)"
    quick = (
        "import os, time; open('.ready', 'w')\n"
        "while not os.path.exists('.go'): time.sleep(0.01)\n"
        "print(time.time()); time.sleep(0.5)"
    )
    times = []

    def work(check):
        found = check.take_turns({"compiles": python(compiles), "quick": python(quick)})
        check.judge("compiles", [found["compiles"]], lambda result: "")
        check.judge("quick", [found["quick"]], lambda result: ("", True))
        times.extend([(found["compiles"].folder / "now").read_text() or 0, found["quick"].stdout])

    check.end = check.began + 12
    assert check.go([harness.Stage("a", 11, work)]) == 1
    assert [row.verdict for row in check.rows] == ["failed", "ok"]
    assert check.rows[0].value.startswith("not prepared after ")
    assert float(times[0]) < float(times[1])


def test_what_is_known_is_kept_when_it_is_killed(tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {str(TOOL)!r})\n"
        "import harness\n"
        "def work(check):\n"
        "    check.row('known', 42)\n"
        "    check.run({'sleeps': harness.Job([sys.executable, '-c', 'import time; time.sleep(60)'])})\n"
        "harness.Check(sys.argv[1], 5, False, 0).go([harness.Stage('a', 60, work)])\n"
    )
    with started(tmp_path, "-c", script, tmp_path) as (run, _):
        run.send_signal(signal.SIGKILL)
        run.wait()
        (row,) = kept(tmp_path)["rows"]
        assert (row["name"], row["value"], row["verdict"]) == ("known", "42", "measured")


def call(*words, **environment):
    words = [sys.executable, TOOL, *map(str, words)]
    environment = os.environ | environment
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=3600)


def keep_compiled(folder):
    """A rehearsal whose temporary files lie in here would compile the pretended CUDA anew."""
    if not (pretending.missing(2) or pretending.real()):
        compiled = pretending.library().parents[1]
        (Path(folder) / compiled.name).symlink_to(compiled)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rehearse", "--stages", "0,1,9,x"], "--stages are numbers from 1 to 8, not 0, 9, x"),
        ([], "there is no GPU here; with --rehearse, the same stages are tried without one"),
    ],
    ids=["no such stage", "no GPU"],
)
def test_what_cannot_run_is_refused_in_one_line_before_anything_is_written(tmp_path, words, said):
    run = call(*words, "--out", tmp_path / "out", TMPDIR=str(tmp_path), CUDA_VISIBLE_DEVICES="")
    assert (run.returncode, run.stdout, run.stderr) == (1, "", f"error: {said}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.night
def test_no_minutes_are_not_eight(tmp_path):
    keep_compiled(tmp_path)
    run = call("--rehearse", "--minutes", 0, "--stages", 1, "--out", tmp_path / "out", TMPDIR=str(tmp_path))
    assert run.returncode == 0, run.stderr
    assert [row["verdict"] for row in kept(tmp_path / "out")["rows"]] == ["not run"]


def test_sigterm_leaves_no_child_behind(tmp_path):
    keep_compiled(tmp_path)
    with started(tmp_path, TOOL, "--rehearse", "--stages", "2", "--out", tmp_path / "out") as (run, left):
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=60) == 143
        wait_for(lambda: not left(), 10)
    assert not list(tmp_path.glob("gpu-check-*"))


# ---- what is measured is what is meant ----------------------------------------------------------


@pytest.mark.parametrize(("gpus", "expected"), [(0, 64), (1, 6), (2, 12), (32, 64)])
def test_few_ranks_at_once_share_a_gpu(tmp_path, monkeypatch, gpus, expected):
    monkeypatch.setattr(harness.os, "sched_getaffinity", lambda pid: range(64))
    check = harness.Check(tmp_path, minutes=1, is_rehearsal=False, gpus=gpus)
    shutil.rmtree(check.folder)
    assert check.at_once == expected


MACHINE = {"gpus": [], "versions": {}, "flags": {}, "convolution": 0.0, "product": 0.0}


def rows_of_numerics(check, monkeypatch, **said):
    monkeypatch.setattr(check, "run_one", lambda job: result(check, **MACHINE | said))
    correct.numerics(check)
    return {row.name.partition(" in fp32")[0]: row for row in check.rows}


@pytest.mark.parametrize(("error", "verdict"), [(5e-6, "ok"), (2.9e-4, "failed")])
@pytest.mark.parametrize("name", ["convolution", "product"])
def test_winograds_convolution_is_right_and_that_of_tf32_is_not(check, monkeypatch, name, error, verdict):
    assert rows_of_numerics(check, monkeypatch, **{name: error})[f"a {name}"].verdict == verdict


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_run_on_gpus_that_are_not_seen_fails(check, monkeypatch, gpus):
    """The first row names what the machine is: children that fell back to the CPU would pass all others."""
    check.gpus = 2
    row = rows_of_numerics(check, monkeypatch, gpus=["NVIDIA H200"] * gpus)["the machine"]
    assert (row.expected, row.verdict) == ("2 GPUs", "ok" if gpus == 2 else "failed")


@pytest.mark.long
@pytest.mark.skipif(bool(pretending.missing(2)), reason=pretending.missing(2))
@pytest.mark.parametrize(
    ("probe", "options"),
    [
        ("sizes", ("largest=12", "times=1")),
        ("memory", ("ddp", "width=64", "layers=2")),
        ("memory", ("fsdp", "width=64", "layers=2")),
    ],
)
def test_a_group_knows_the_gpu_of_its_rank(start, probe, options):
    """Otherwise barrier() warns, and a warning is an error here."""
    words, _ = launcher.command("04_ddp_torchrun", 2)
    paths = os.pathsep.join(map(str, (pretending.WITNESS, launcher.ROOT / "lessons")))
    words = [*words[:-1], TOOL / "probes.py", probe, *options]
    result = start("", words=words, gpus=2, environment={"PYTHONPATH": paths}).finish()
    assert result.code == 0 and '{"probe": true' in result.stdout, result.stderr


@pytest.mark.parametrize(("gpus", "expected"), [(0, [1, 1]), (1, [0, 1]), (2, [0, 0])])
def test_ranks_share_a_gpu_only_where_there_are_too_few(check, gpus, expected):
    check.gpus = gpus
    jobs = [check.lesson("01_single_gpu", 1), check.lesson("04_ddp_torchrun", 2)]
    assert [job.environment["SHARE_GPU"] for job in jobs] == expected
    assert check.probe("sizes", ranks=2).environment["SHARE_GPU"] == expected[1]


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
    found = turns.busy(events, 0.001)
    assert found.pop("busy") == pytest.approx(0.85)
    expected = {"products": 0.4, "NCCL": 0.4, "other kernels": 0.1, "attention": 0.05, "copies": 0.1}
    assert found == pytest.approx(expected)
    assert turns.busy(events[-2:], 0.001) == {}
    assert speed.limits(turns.busy(events, 0.001)).startswith("GPU busy 85%: products 40%, NCCL 40%")


@pytest.mark.parametrize(("best", "standing", "verdict"), [(900, 0.02, "met"), (700, 0.08, "missed")])
def test_goals_are_met_or_missed_against_the_right_peak(check, best, standing, verdict):
    check.facts["gpus"] = ["NVIDIA H200"]

    def said(name, speed, standing):
        return result(check, name, flops=67e8, busy={}, **{"images/s": speed, "input": standing})

    speed.ladder(check, {"plain": said("plain", 100, 0.9), "compile": said("compile", best, standing)})
    rows = {row.name: row for row in check.rows}
    assert "1.0% of the fp32 peak" in rows["ResNet-18, a plain loop in fp32"].value  # of 67e12
    assert f"{best * 67e8 / 989e12:.1%} of the bf16 peak" in rows["ResNet-18, with torch.compile"].value
    assert rows["ResNet-18, the best step"].value.startswith(f"{best / 100:.1f} times")
    assert rows["ResNet-18, the best step"].verdict == verdict
    assert rows["its steps stand still for input"].verdict == verdict


def test_a_step_that_fails_leaves_the_others_their_rows(check):
    broken = harness.Result(check.folder / "none", "not prepared after 40 s, and ended")
    fine = result(check, flops=1e9, busy={}, **{"images/s": 100, "input": 0})
    speed.ladder(check, {"plain": fine, "input": fine, "compile": broken})
    assert [row.verdict for row in check.rows] == ["measured", "measured", "failed", "missed", "met"]


def test_a_picture_is_drawn_of_whatever_there_is(tmp_path):
    drawing.draw({}, tmp_path / "empty.png", "on the CPU")
    facts = {
        "ladder": {step: {"images/s": 100.0 * number} for number, step in enumerate(speed.STEPS, 1)},
        "lessons": {stem: {"120": {"images/s": 5.0}, "1200": {"images/s": 9.0}} for stem in speed.LESSONS},
        "all-reduce": {"1024": 1e-5, "4096": 2e-5},
        "memory": {"ddp": {"1": 1e6, "2": 1e6}, "fsdp": {"1": 1e6, "2": 5e5}},
    }
    drawing.draw(facts, tmp_path / "full.png", "on the CPU")
    assert (tmp_path / "full.png").stat().st_size > (tmp_path / "empty.png").stat().st_size > 1000


# ---- a rehearsal --------------------------------------------------------------------------------


SEES = (
    "import os; "
    "open(os.environ['PRETEND_REPORT'] + '/rank0.1.json', 'w').write('{\"gpus\": %d, \"waits\": {}}')"
)


@pytest.mark.skipif(pretending.real() > 0, reason="has real GPUs")
@pytest.mark.parametrize(
    ("text", "visible", "said"),
    [
        (SEES % 2, {}, ""),
        (SEES % 0, {}, "no process has seen 2 GPUs: [0]"),
        ("print('nothing of torch')", {}, "no process has seen 2 GPUs: []"),
        (SEES % 0, correct.CPU, ""),
        (SEES % 2, correct.CPU, "it was for the CPU, and saw GPUs: [2]"),
    ],
)
def test_a_child_that_does_not_see_its_gpus_fails(tmp_path, monkeypatch, text, visible, said):
    """It would have used the CPU, and passed."""
    monkeypatch.setattr(pretending, "library", lambda: "not compiled for this")
    check = harness.Check(tmp_path, minutes=1, is_rehearsal=True, gpus=2)

    def work(check):
        check.judge("a", check.run({"a": python(text, environment=visible)}).values(), lambda _: ("", True))

    assert check.go([harness.Stage("a", 5, work)]) == (1 if said else 0)
    assert check.rows[0].value == said
    assert kept(tmp_path)["rehearsal"] and kept(tmp_path)["on"] == "2 simulated GPUs"


def rehearse(out, *words, **environment):
    """In an empty folder; nothing may be left there."""
    # Not below tmp_path: a DataLoader's workers make sockets there, whose paths must be short.
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        keep_compiled(folder)
        run = call("--rehearse", "--out", out, *words, TMPDIR=folder, **environment)
        left = list(Path(folder).glob("gpu-check-*"))
    table = kept(out)
    bad = [row for row in table["rows"] if row["verdict"] in ("failed", "not run")]
    assert run.returncode == 0 and not bad, f"{bad}\n{run.stderr}\n{(out / 'gpu.log').read_text()}"
    assert {path.name for path in out.iterdir()} == {"gpu.json", "gpu.log", "gpu.png"}
    assert run.stdout.splitlines()[-1].endswith("gpu.json")
    assert table["rehearsal"] and not left
    return run.stdout.splitlines()[0], table


@PRETENDS
@pytest.mark.long
def test_a_rehearsal_says_that_its_gpus_are_pretended(tmp_path):
    first, table = rehearse(tmp_path / "out", "--stages", "1")
    assert first == "a rehearsal on 2 simulated GPUs" and table["on"] == "2 simulated GPUs"
    value = table["rows"][0]["value"]
    assert value.startswith("NVIDIA pretended, NVIDIA pretended; torch ")
    assert "NCCL 2." in value and value.endswith("driver pretended")


@PRETENDS
@pytest.mark.long
def test_a_rehearsal_refuses_more_ranks_than_gpus(tmp_path):
    """Its children take the path of a machine with two GPUs."""
    check = harness.Check(tmp_path, minutes=5, is_rehearsal=True, gpus=2)
    assert check.go([harness.Stage("refusals", 30, correct.refusals)]) == 0
    rows = {row.name: row for row in check.rows}
    assert "3 processes on this machine, but 2 GPUs" in rows["more ranks than GPUs"].value


@PRETENDS
@pytest.mark.night
def test_the_rehearsal_is_green(tmp_path):
    """All stages on simulated GPUs."""
    _, table = rehearse(tmp_path / "out")
    assert table["on"] == "2 simulated GPUs"
    assert len({row["stage"] for row in table["rows"]}) == 8
    missing = {row["name"] for row in table["rows"] if row["verdict"] == "not here"}
    assert missing == set(harness.ONLY_ON_GPUS)


@pytest.mark.night
def test_without_a_compiler_the_rehearsal_is_on_the_cpu(tmp_path):
    """The stages in which a GPU's path is another one."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for path in Path(folder).glob("*"):
            if path.name != "g++" and not (programs / path.name).exists():
                (programs / path.name).symlink_to(path)
    first, table = rehearse(tmp_path / "out", "--stages", "1,2,7,8", PATH=str(programs))
    assert first.startswith("a rehearsal on the CPU: ") and table["on"] == "the CPU"
    rows = {row["name"]: row["verdict"] for row in table["rows"]}
    assert (rows["the machine"], rows["more ranks than GPUs"], rows["P2P"]) == ("ok", "not here", "not here")
