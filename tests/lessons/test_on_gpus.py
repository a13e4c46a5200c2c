"""Every lesson on GPUs: the machine's own, or pretended ones (tests/pretend)."""

import re
import shlex
import subprocess
import sys

import pytest

import launcher
import lessons
import pretending

MISSING = pretending.missing(1)
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
EPOCHS = ("--epochs", 2)
# GPUs, and processes, which share them where there are too few.
SHAPES = [(1, 2), (2, 2), (3, 4), (4, 4)]
OPTIONS = {
    "06a_any_step": ["--snapshot-every 3"],
    "06b_preemption": ["--snapshot-every 3"],
    "07_mixed_precision": ["--precision fp32"],
    "08_real_training": ["--double --workers 2"],
    "09_fsdp": ["--precision bf16", "--checkpoint-activations", "--offload", "--no-reshard"],
    "10_pipeline": ["--schedule naive", "--schedule gpipe", "--schedule interleaved", "--timeline"],
    "11_tensor_parallel": ["--sequence-parallel"],
    "13_gpt": ["--snapshot-every 3"],
    "15_context_parallel": ["--order contiguous"],
    "16_experts": ["--capacity 1"],
}
# With batch norm, small sets and 32 bits, rounding decides how this one goes on: see tools/lessons.toml.
ALWAYS = {"08_real_training": ("--double",)}


def close(lesson):
    """How close its losses must be to the CPU's."""
    if (
        lesson.stem == "07_mixed_precision"
    ):  # autocast computes other operators in 16 bits on CUDA than on the CPU
        return lessons.Curve(early=2e-3, late=2e-3, accuracy=0.02)
    return lessons.Curve(early=1e-5, late=1e-5)


def short(lesson):
    """A run of it that takes a second or two."""
    epochs = () if lesson.curve.of == "nothing" else EPOCHS
    return (*lesson.small.split(), *epochs, *ALWAYS.get(lesson.stem, ()))


@pytest.fixture
def on_gpus(fork, run):
    """Run a lesson on this many GPUs. With real ones, or DataParallel's threads, nothing can be forked."""

    def on_gpus(lesson, processes, *arguments, gpus, folder="gpus", truly=False):
        environment = {"SHARE_GPU": "1"} if processes > gpus else {}
        if reason := pretending.missing(gpus):
            pytest.skip(reason)
        start = run if truly or pretending.real() or "data_parallel" in lesson.stem else fork
        return start(lesson.stem, processes, *arguments, gpus=gpus, folder=folder, environment=environment)

    return on_gpus


@pytest.fixture
def on_cpu(once, forks):
    """Its curve and the bytes of its weights, as hexadecimal digits, on the CPU."""

    def on_cpu(lesson, processes, *arguments):
        def make(folder):
            # One agent, where true launches have two.
            words, environment = launcher.command("04_ddp_torchrun", processes, *arguments)
            if lesson.launcher != "two agents":
                words, environment = launcher.command(lesson.stem, processes, *arguments)
            words = [word.replace("04_ddp_torchrun.py", lesson.path.name) for word in words]
            code, left = forks.run(words, folder, environment, limit=240)
            assert (code, left) == (0, []), (folder / ".err").read_text()
            weights = folder / "out" / f"{lesson.stem}.pt"
            found = weights.read_bytes().hex() if weights.exists() else ""
            return [launcher.read_curve(folder / "out", lesson.stem), found]

        words = [lesson.stem, str(processes), *(str(argument).lstrip("-") for argument in arguments)]
        return once("_".join(["on_cpu", *words]), make)

    return on_cpu


def compare(lesson, result, expected, processes):
    curve = launcher.read_curve(result.out, lesson.stem)
    assert launcher.difference(curve, expected[0], close(lesson)) == ""
    assert {row["world_size"] for row in curve} == {processes}


def cases():
    """(lesson, GPUs, processes): 12 and 13 have four processes, 17 has eight."""
    found = []
    for lesson in lessons.LESSONS:
        for gpus, processes in SHAPES:
            many = 1 if lesson.is_one_process() else max(processes, lesson.processes)
            found.append(pytest.param(lesson, gpus, many, id=f"{lesson.number}-{gpus}"))
    return found


@pytest.mark.quick("02-2", "04-2", "09-1", "10-2")
@pytest.mark.night("05-3", "06-3", "06a-3", "06b-3", "07-3", "08-1", "08-3", "08-4", "11-3", "12-1", "12-3")
@pytest.mark.night("13-1", "13-3", "15-3", "16-1", "16-3", "17-1", "17-3", "17-4", "14-3", "14-4", "02-3")
@pytest.mark.long
@pytest.mark.parametrize(("lesson", "gpus", "processes"), cases())
def test_a_lesson_has_the_cpus_curve(on_gpus, on_cpu, lesson, gpus, processes):
    """And where each process has a GPU of its own, one command gives the same bytes twice."""
    result = on_gpus(lesson, processes, *short(lesson), gpus=gpus)
    if lesson.curve.of != "nothing":
        compare(lesson, result, on_cpu(lesson, processes, *short(lesson)), processes)
        if gpus == processes == 2:
            again = on_gpus(lesson, processes, *short(lesson), gpus=gpus, folder="again")
            weights = [(each.out / f"{lesson.stem}.pt").read_bytes() for each in (result, again)]
            assert weights[0] == weights[1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("stem", "options"),
    [pytest.param(stem, each, id=f"{stem[:3]} {each}") for stem in OPTIONS for each in OPTIONS[stem]],
)
def test_its_options_have_it_too(on_gpus, on_cpu, stem, options):
    lesson = lessons.get(stem)
    arguments, processes = (*short(lesson), *options.split()), max(2, lesson.processes)
    result = on_gpus(lesson, processes, *arguments, gpus=2)
    compare(lesson, result, on_cpu(lesson, processes, *arguments), processes)


# ---- as a reader starts them ---------------------------------------------------------------------


@pytest.mark.quick("06-1")
@pytest.mark.long("01-1", "03-2", "06-2")
@pytest.mark.night
@pytest.mark.parametrize(
    ("lesson", "gpus"),
    [pytest.param(each, gpus, id=f"{each.number}-{gpus}") for each in lessons.LADDER for gpus in (1, 2)],
)
def test_its_documented_command_runs_on_gpus(on_gpus, on_cpu, lesson, gpus):
    """The launchers of 06 both count their GPUs from 0, and share one as two machines would."""
    processes = 1 if lesson.is_one_process() else 2
    result = on_gpus(lesson, processes, *short(lesson), gpus=gpus, truly=True)
    compare(lesson, result, on_cpu(lesson, processes, *short(lesson)), processes)


@pytest.mark.long("1")
@pytest.mark.night
@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
def test_make_run_takes_what_gpus_there_are(start, gpus):
    """As the table of lessons/launch says, with two or four processes."""
    words = [sys.executable, launcher.ROOT / "tools/ladder.py", "--epochs", 1, "--train-size", 480]
    result = start("ladder", words=words, environment={"SHARE_GPU": "1"}, gpus=gpus).finish(600)
    assert result.code == 0, result.stdout + result.stderr
    assert f"This machine has {gpus} GPU" in result.stdout
    processes = re.findall(r"^0\d_\w+ .*?torchrun\D+(\d) ", result.stdout, re.M)
    assert set(processes) == {"4" if gpus == 4 else "2"}, result.stdout


@pytest.mark.long
def test_ddp_on_one_screen_runs_on_gpus(start, tmp_path):
    """README's own program, by README's command."""
    page = (launcher.ROOT / "README.md").read_text()
    text, command = re.search(
        r"```python\n(import .*?)```.*?```sh\n(torchrun .*?ddp\.py)\n", page, re.S
    ).groups()
    (tmp_path / "ddp.py").write_text(text)
    words = shlex.split(command.replace("ddp.py", str(tmp_path / "ddp.py")))
    words[0] = str(launcher.Path(sys.executable).parent / words[0])
    found = []
    for gpus in (2, 0):
        result = start("ddp", words=words, gpus=gpus, folder=str(gpus)).finish()
        assert result.code == 0, result.stderr
        found.append(re.findall(r"loss (\S+)", result.stdout))
    assert found[0] and found[0] == found[1]


# ---- kills, and what is saved --------------------------------------------------------------------

CRASHES = ["05_snapshots", "06_multinode", "06a_any_step", "06b_preemption", "13_gpt"]
OTHER_DEVICE = ["05_snapshots", "09_fsdp", "13_gpt"]


@pytest.mark.quick("05_snapshots")
@pytest.mark.long
@pytest.mark.parametrize("stem", CRASHES)
def test_a_kill_costs_no_byte(on_gpus, stem):
    """A rank ends itself with SIGKILL, torchrun starts all ranks again, and they resume."""
    lesson = lessons.get(stem)
    processes = max(2, lesson.processes)
    weights = []
    for folder, crash in (("peace", ()), ("crash", ("--crash-at", 2))):
        result = on_gpus(lesson, processes, *short(lesson), *crash, gpus=2, folder=folder)
        assert ("resumed" in result.stdout) == bool(crash), result.stdout
        weights.append((result.out / f"{lesson.stem}.pt").read_bytes())
    assert weights[0] == weights[1]


@pytest.mark.long
@pytest.mark.parametrize("stem", OTHER_DEVICE)
@pytest.mark.parametrize("first", ["GPU", "CPU"])
def test_a_run_resumes_on_the_other_device(on_gpus, fork, on_cpu, stem, first):
    """From a snapshot of GPU tensors on a machine without a GPU, and the other way round."""
    lesson = lessons.get(stem)
    processes = max(2, lesson.processes)
    sizes = (*lesson.small.split(), "--epochs")

    def begin(where, epochs):
        if where == "CPU":
            return fork(lesson.stem, processes, *sizes, epochs)
        return on_gpus(lesson, processes, *sizes, epochs, gpus=2, folder="run")

    whole = on_cpu(lesson, processes, *sizes, 2)
    crash = start_of(lesson, begin, first)
    other = begin("CPU" if first == "GPU" else "GPU", 2)
    assert "resumed" in other.stdout, crash.stdout + other.stdout
    compare(lesson, other, whole, processes)


def start_of(lesson, begin, first):
    """A whole run, without what it has saved at its end."""
    result = begin(first, 2)
    saved = sorted(path for path in result.out.iterdir() if "epoch0002" in path.name)
    for path in saved or result.out.glob("*.snapshot"):
        subprocess.run(["rm", "-r", path], check=True)
    return result


# ---- what makes the processor wait ---------------------------------------------------------------


# Of each step, for each lesson where there are any. Those of 08 are nn.SyncBatchNorm's, three for each of its
# 18 layers; those of 13 are loss_parallel's. lessons/launch says so.
WAITS = {"08_real_training": 54, "13_gpt": 3, "16_experts": 2}
needs_pretended = pytest.mark.skipif(pretending.real() > 0, reason="has real GPUs")


def difference(on_gpus, lesson, sizes, other):
    """The waits that the second of two runs has in addition, by line."""
    processes = 1 if lesson.is_one_process() else max(2, lesson.processes)
    found = []
    for folder, each in (("a", sizes), ("b", sizes | other)):
        arguments = (*(word for pair in each.items() for word in pair), *ALWAYS.get(lesson.stem, ()))
        found.append(on_gpus(lesson, processes, *arguments, gpus=2, folder=folder).waits)
    return {place: n - found[0].get(place, 0) for place, n in found[1].items() if n != found[0].get(place, 0)}


@needs_pretended
@pytest.mark.quick("04")
@pytest.mark.long
@pytest.mark.parametrize(
    "lesson",
    [each for each in lessons.LESSONS if "data_parallel" not in each.stem and each.curve.of != "nothing"],
    ids=lambda lesson: lesson.number,
)
def test_no_step_waits_for_the_gpu(on_gpus, lesson):
    """With twice the steps, a run waits no more often: the processor stays ahead of the GPU."""
    words = [*lesson.small.split(), "--epochs", "1"]
    sizes = dict(zip(words[::2], words[1::2], strict=True))
    images = int(sizes["--train-size"])
    more = difference(on_gpus, lesson, sizes, {"--train-size": str(2 * images)})
    steps = images // int(sizes["--batch-size"])
    assert sum(more.values()) == WAITS.get(lesson.stem, 0) * steps, more


@needs_pretended
@pytest.mark.long("04", "05", "06a")
@pytest.mark.night
@pytest.mark.parametrize(
    "lesson",
    [*lessons.LADDER, lessons.get("06a_any_step"), lessons.get("06b_preemption")],
    ids=lambda lesson: lesson.number,
)
def test_an_epoch_waits_once_in_addition_to_its_report_and_its_snapshot(on_gpus, lesson):
    words = [*lesson.small.split(), "--epochs", "1"]
    sizes = dict(zip(words[::2], words[1::2], strict=True))
    lines = lesson.path.read_text().splitlines()
    others = {}
    for place, n in difference(on_gpus, lesson, sizes, {"--epochs": "2"}).items():
        name, number = place.split(" ")[0].split(":")
        line = lines[int(number) - 1] if name.endswith(lesson.path.name) else name
        if not re.search(r"report\(|save|snapshot", line):
            others[place] = n
    assert sum(others.values()) <= 1, others
