"""Every lesson on GPUs: the machine's own, which `make gpu` takes, or simulated ones (tools/testbed)."""

import json
import os
import re
import shutil
import signal
import sys
import time
from collections import Counter

import pytest

from tests.helpers.lines import column
from tools import launcher, lessons
from tools.testbed import pretending
from tools.testbed.processes import trained

MISSING = pretending.missing(1)
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
needs_pretended = pytest.mark.skipif(pretending.real() > 0, reason="has real GPUs")
EPOCHS = ("--epochs", 2)
# GPUs, and processes, which share them where there are too few.
SHAPES = [(1, 2), (2, 2), (3, 4), (4, 4)]
SHARED_BY_FOUR = ("04", "06", "06b", "09", "10", "11", "15", "16")
# With batch norm, small sets and 32 bits, rounding decides how this one goes on: see tools/lessons.toml.
ALWAYS = {"08_real_training": ("--double",), "18_language_model": ("--precision", "fp32")}
# A machine with one GPU has it for all ranks of what asks for two.
TWO = min(2, pretending.real() or 2)
# Without these, NCCL and cuBLAS may add up in another order in the next run.
SAME_BYTES = {"NCCL_NVLS_ENABLE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
# On an H100 these had their losses of one process within 1.7e-7, and 01 those of the CPU within 8.3e-8.
ON_H100 = ("01", "02", "03", "04", "05", "06", "06b", "09", "10", "11", "12")


def close(lesson, arguments):
    """How close its losses must be to the CPU's."""
    if pretending.real():
        if lesson.number in ON_H100 and "bf16" not in arguments:
            return launcher.THE_SAME
        # Its kernels round in other ways.
        return lessons.Curve(early=1e-3, late=1e-2, accuracy=0.02)
    if lesson.stem == "07_mixed_precision":  # CUDA's autocast computes other operators in 16 bits
        return lessons.Curve(early=2e-3, late=2e-3, accuracy=0.02)
    return lessons.Curve(early=1e-5, late=1e-5)


def is_repeatable(lesson):
    """Real GPUs may add up the backward pass of attention in another order each time: see variant.py."""
    return not pretending.real() or "parts.transformer" not in lesson.path.read_text()


def short(lesson):
    """A run of it that takes a second or two."""
    epochs = () if lesson.curve.of == "nothing" else EPOCHS
    return (*lesson.small.split(), *epochs, *ALWAYS.get(lesson.stem, ()))


@pytest.fixture
def on_gpus(fork, start, tmp_path):
    """Run a lesson on this many GPUs. With real ones, or DataParallel's threads, nothing can be forked."""

    def on_gpus(lesson, processes, *arguments, gpus=TWO, folder="gpus", truly=False, refused=False):
        if lesson.is_missing():
            pytest.skip(f"needs {lesson.needs.split()[-1]}: make tools installs it")
        environment = SAME_BYTES | ({"SHARE_GPU": "1"} if processes > gpus else {})
        options = {"gpus": gpus, "folder": folder, "environment": environment}
        if not (truly or pretending.real() or "data_parallel" in lesson.stem):
            result = fork(lesson.stem, processes, *arguments, refused=refused, **options)
            check_memory(tmp_path / folder / ".reports", gpus, processes)
            return result
        if refused:  # no restarts
            options["words"], _ = launcher.command(
                "04_ddp_torchrun", processes, *arguments, script=lesson.path
            )
        result = start(lesson.stem, processes, *arguments, **options).finish()
        if result.code and "error: this GPU has no bf16: " in result.stderr:
            pytest.skip("this GPU has no bf16, and the lesson refuses to start")
        assert refused or result.code == 0, f"status {result.code}\n{result.stdout}\n{result.stderr}"
        return result

    return on_gpus


def check_memory(reports, gpus, processes):
    """Each process allocates memory on its own GPU only."""
    for path in reports.iterdir():
        peaks = json.loads(path.read_text())["memory"]
        used = [number for number, peak in enumerate(peaks) if peak]
        assert len(used) <= 1, peaks
        assert set(used) <= set(range(min(gpus, processes))), peaks


@pytest.fixture
def compare(kept, record_property):
    """The curve of a run, with the CPU's for these arguments."""

    def compare(lesson, result, processes, *arguments):
        curve = launcher.read_curve(result.out, lesson.stem)
        expected = launcher.read_curve(kept(lesson.stem, processes, *arguments).out, lesson.stem)
        off = []
        for row, other in zip(curve, expected, strict=True):
            off.append(abs(row["loss"] / other["loss"] - 1))
        record_property("losses off the CPU's by", f"{max(off):.1e}")
        assert launcher.difference(curve, expected, close(lesson, arguments)) == ""
        assert set(column(curve, "world_size")) == {processes}

    return compare


def cases():
    """(lesson, GPUs, processes): 12 and 13 have four processes, 17 has eight."""
    found = []
    for lesson in lessons.LESSONS:
        for gpus, processes in SHAPES:
            many = 1 if lesson.is_one_process() else max(processes, lesson.processes)
            found.append(pytest.param(lesson, gpus, many, id=f"{lesson.number}-{gpus}"))
        if lesson.number in SHARED_BY_FOUR:
            found.append(pytest.param(lesson, 1, 4, id=f"{lesson.number}-1-for-4"))
    return found


@pytest.mark.long("02-2", "03-2", "04-2", "05-1", "06b-2", "07-2", "09-1", "09-4", "10-2", "11-2", "13-2")
@pytest.mark.night
@pytest.mark.parametrize(("lesson", "gpus", "processes"), cases())
def test_a_lesson_has_the_cpus_curve(on_gpus, compare, lesson, gpus, processes):
    """And where each process has a GPU of its own, one command gives the same bytes twice."""
    result = on_gpus(lesson, processes, *short(lesson), gpus=gpus)
    if lesson.curve.of != "nothing":
        compare(lesson, result, processes, *short(lesson))
        if is_repeatable(lesson) and (
            gpus == processes == 2 or (pretending.real() and lesson in lessons.LADDER)
        ):
            again = on_gpus(lesson, processes, *short(lesson), gpus=gpus, folder="again")
            name = f"{lesson.stem}.pt"
            assert (again.out / name).read_bytes() == (result.out / name).read_bytes()


@pytest.mark.long("06b --snapshot-every 3", "16 --capacity 1")
@pytest.mark.night
@pytest.mark.parametrize(
    ("stem", "options"),
    [
        pytest.param(stem, each, id=f"{lessons.get(stem).number} {each}")
        for stem in lessons.STEMS
        for each in lessons.get(stem).on_gpus
        if each != "--compile" or pretending.real()
    ],
)
def test_its_options_have_it_too(on_gpus, compare, stem, options):
    if "--compile" in options and (reason := pretending.no_compiler()):
        pytest.skip(reason)
    lesson = lessons.get(stem)
    arguments, processes = (*short(lesson), *options.split()), max(2, lesson.processes)
    result = on_gpus(lesson, processes, *arguments)
    compare(lesson, result, processes, *arguments)


@pytest.fixture
def run_script(start):
    """Run a script on two GPUs in a lesson's stead; where its files are."""

    def run_script(lesson, script, folder, gpus=TWO, **environment):
        words, _ = launcher.command(lesson.stem, 2, *short(lesson), script=launcher.ROOT / script)
        environment |= SAME_BYTES | {"SHARE_GPU": "1"}
        result = start("", words=words, gpus=gpus, folder=folder, environment=environment).finish()
        assert result.code == 0, result.stderr
        return result.out

    return run_script


@pytest.mark.long
def test_convolutions_and_products_have_32_bits_and_repeatable_kernels(start, record_property):
    """Winograd's convolutions round more than others; TF32 would be off by 3e-4."""
    words = [sys.executable, launcher.ROOT / "tests/probes/gpu_numerics.py"]
    environment = {"PYTHONPATH": f"{pretending.AT_EXIT}:{launcher.ROOT / 'lessons'}"}
    result = start("", words=words, gpus=1, environment=environment).finish()
    assert result.code == 0, result.stderr
    found = json.loads(result.stdout)
    for name in ("convolution", "product"):
        record_property(f"error of a {name}", f"{found[name]:.1e}")
    assert max(found.pop("convolution"), found.pop("product")) < 1e-5
    is_like = {"deterministic": True, "benchmark": False, "convolutions": "ieee", "products": "ieee"}
    assert found == {"device": "cuda"} | is_like


@pytest.mark.night
def test_lesson_13_has_the_same_bytes_twice_if_it_is_told_to(run_script):
    """On a GPU the backward of its attention is not deterministic by default: see variant.py."""
    lesson = lessons.get("13_gpt")
    variant = {"VARIANT": "deterministic", "VARIANT_OF": str(lesson.path)}
    once = run_script(lesson, "tools/makers/bench/variant.py", "a", **variant)
    again = run_script(lesson, "tools/makers/bench/variant.py", "b", **variant)
    assert (once / "13_gpt.pt").read_bytes() == (again / "13_gpt.pt").read_bytes()


@pytest.mark.night
def test_fp16_has_the_cpus_curve(run_script):
    lesson = lessons.get("07_mixed_precision")
    curves = []
    for gpus in (TWO, 0):
        out = run_script(lesson, "lessons/parts/fp16.py", str(gpus), gpus)
        curves.append(launcher.read_curve(out, "fp16"))
    on_gpus, on_cpus = curves
    assert launcher.difference(on_gpus, on_cpus, lesson.curve) == ""


# ---- as a reader starts them ---------------------------------------------------------------------


@needs_pretended  # on real GPUs, test_a_lesson_has_the_cpus_curve has started this command
@pytest.mark.long("06-1", "03-2")
@pytest.mark.night
@pytest.mark.parametrize(
    ("lesson", "gpus"),
    [pytest.param(each, gpus, id=f"{each.number}-{gpus}") for each in lessons.LADDER for gpus in (1, 2)],
)
def test_its_documented_command_runs_on_gpus(on_gpus, compare, lesson, gpus):
    """The launchers of 06 both count their GPUs from 0, and share one as two machines would."""
    processes = 1 if lesson.is_one_process() else 2
    result = on_gpus(lesson, processes, *short(lesson), gpus=gpus, truly=True)
    compare(lesson, result, processes, *short(lesson))


@pytest.mark.long
def test_copies_between_gpus_arrive(start):
    """`make run` copies a tensor from each GPU to each other one before it starts a lesson on them."""
    result = start("copies", words=[sys.executable, launcher.ROOT / "tools/copies.py"], gpus=2).finish()
    assert result.code == 0 and result.stdout == "", result.stdout + result.stderr


@pytest.mark.night
@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
def test_make_run_takes_what_gpus_there_are(start, tmp_path, gpus):
    """As the table of lessons/launch says, with two or four processes."""
    words = [sys.executable, "-m", "tools.run_lessons", "--epochs", 1, "--train-size", 480]
    environment = {"SHARE_GPU": "1", "MPLCONFIGDIR": str(tmp_path / "fonts")}
    environment["PYTHONPATH"] = f"{pretending.AT_EXIT}:{launcher.ROOT}"
    result = start("ladder", words=words, environment=environment, gpus=gpus).finish(600)
    assert result.code == 0, result.stdout + result.stderr
    assert f"This machine has {gpus} GPU" in result.stdout
    processes = re.findall(r"^0\d_\w+ .*?torchrun\D+(\d) ", result.stdout, re.M)
    assert set(processes) == {"4" if gpus == 4 else "2"}, result.stdout


@pytest.mark.night
def test_ddp_on_one_screen_runs_on_gpus(start):
    """README's own program, by README's command."""
    page = (launcher.ROOT / "README.md").read_text()
    words = re.search(r"```sh\n(torchrun .*?ddp\.py)\n", page)[1].split()
    words[-1] = str(launcher.ROOT / words[-1])
    words[0] = str(launcher.Path(sys.executable).parent / words[0])
    found = []
    for gpus in (2, 0):
        result = start("ddp", words=words, gpus=gpus, folder=str(gpus)).finish()
        assert result.code == 0, result.stderr
        found.append(re.findall(r"loss (\S+)", result.stdout))
    assert found[0] and found[0] == found[1]


# ---- kills, and what is saved --------------------------------------------------------------------

CRASHES = [lesson.stem for lesson in lessons.LESSONS if lesson.number in ("05", "06", "06a", "06b")]


@pytest.mark.long("05_snapshots", "06b_preemption")
@pytest.mark.night
@pytest.mark.parametrize("stem", CRASHES)
def test_a_kill_costs_no_byte(on_gpus, stem):
    """A rank ends itself with SIGKILL, torchrun starts all ranks again, and they resume."""
    lesson = lessons.get(stem)
    weights = []
    for folder, crash in (("peace", ()), ("crash", ("--crash-at", 2))):
        truly = bool(crash) and lesson.launcher == "two agents"
        result = on_gpus(lesson, 2, *short(lesson), *crash, folder=folder, truly=truly)
        assert ("resumed" in result.stdout) == bool(crash), result.stdout
        weights.append((result.out / f"{stem}.pt").read_bytes())
    assert weights[0] == weights[1]


STRUCK = {
    "SIGSTOP": r"Timed out waiting|Watchdog caught collective operation timeout",
    "SIGTERM": "told to stop: saved, and ending with status 75",
}


@pytest.mark.night
@pytest.mark.parametrize("name", STRUCK)
def test_a_rank_that_is_stopped_or_told_to_end_costs_no_byte_either(start, record_property, name):
    """From outside. What one reads of it are gloo's words, or NCCL's."""
    stem, weights, seconds = "06b_preemption", [], []
    sizes = ("--train-size", 1200, "--test-size", 60, "--batch-size", 24, "--snapshot-every", 5)
    sizes += ("--epochs", 6, "--time-limit", 5 if pretending.real() else 20)
    environment = SAME_BYTES | {"SHARE_GPU": str(int(TWO < 2)), "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000"}

    def begin(folder):
        return start(stem, 2, *sizes, gpus=TWO, folder=folder, environment=environment)

    for folder in ("peace", "struck"):
        began, run = time.monotonic(), begin(folder)
        if folder == "struck":
            ranks = trained(run, stem)
            if name == "SIGSTOP":
                os.kill(ranks[-1], signal.SIGSTOP)
            else:
                os.kill(run.process.pid, signal.SIGTERM)  # torchrun hands it on to its ranks
                said = run.finish().stderr
                run = begin(folder)
        result = run.finish()
        assert result.code == 0, result.stderr
        weights.append((result.out / f"{stem}.pt").read_bytes())
        seconds.append(time.monotonic() - began)
    said = result.stderr if name == "SIGSTOP" else said
    record_property("seconds lost", round(seconds[1] - seconds[0]))
    assert "resumed in epoch" in result.stdout and re.search(STRUCK[name], said), said
    assert weights[0] == weights[1]


@pytest.mark.long("GPU-05_snapshots", "CPU-09_fsdp")
@pytest.mark.night
@pytest.mark.parametrize("stem", ["05_snapshots", "09_fsdp", "13_gpt"])
@pytest.mark.parametrize("first", ["GPU", "CPU"])
def test_a_run_that_was_killed_resumes_on_the_other_device(on_gpus, fork, compare, stem, first):
    """What was saved on a GPU is read on a machine that has none, and the other way round."""
    lesson = lessons.get(stem)
    processes = max(2, lesson.processes)
    sizes = (*lesson.small.split(), *EPOCHS)
    crash = () if "fsdp" in stem else ("--crash-at", 2)

    def run(where, *more, refused=False):
        if where == "CPU":
            return fork(stem, processes, *sizes, *more, folder="run", refused=refused)
        return on_gpus(lesson, processes, *sizes, *more, folder="run", refused=refused)

    begun = run(first, *crash, refused=bool(crash))
    if not crash:  # as if it had been killed before its last checkpoint was there
        shutil.rmtree(begun.out / f"{stem}.epoch0002")
    kept = begun.out.rename(begun.out.parents[1] / "kept")  # the rest is not of the run that resumes
    shutil.rmtree(begun.out.parent)
    begun.out.parent.mkdir()
    kept.rename(begun.out)
    result = run("CPU" if first == "GPU" else "GPU")
    assert "resumed" in result.stdout, begun.stdout + result.stdout
    compare(lesson, result, processes, *sizes)


# ---- what makes the processor wait ---------------------------------------------------------------


# Of each step, for each lesson where there are any: those of 13 are loss_parallel's, those of 16 one for each
# layer of experts. 08 has a test of its own.
WAITS = {"13_gpt": 3, "16_experts": 2, "18_language_model": 1}


@needs_pretended
@pytest.mark.long("04", "09", "15")
@pytest.mark.night
@pytest.mark.parametrize(
    "lesson",
    [each for each in lessons.LESSONS if each.stem != "08_real_training"],
    ids=lambda lesson: lesson.number,
)
def test_no_step_waits_for_the_gpu(on_gpus, lesson):
    """With twice the steps, a run waits no more often: the processor stays ahead of the GPU."""
    words = lesson.small.split()
    sizes = dict(zip(words[::2], words[1::2], strict=True))
    images = int(sizes["--train-size"])
    processes = 1 if lesson.is_one_process() else max(2, lesson.processes)

    def waits(images):
        more = ("--train-size", images, "--epochs", 1, *ALWAYS.get(lesson.stem, ()))
        return Counter(on_gpus(lesson, processes, *words, *more, gpus=2, folder=str(images)).waits)

    fewer = waits(images)
    more = waits(2 * images)
    more.subtract(fewer)
    steps = images // int(sizes["--batch-size"])
    assert more.total() == WAITS.get(lesson.stem, 0) * steps, more
    page = (launcher.ROOT / "lessons/launch/on_gpus.md").read_text()
    rows = dict(re.findall(r"^\| (\w+) \| (\d+) \| ", page, re.M))
    assert int(rows.get(lesson.number, 0)) == WAITS.get(lesson.stem, 0)


@needs_pretended
@pytest.mark.night
def test_batch_norm_waits_for_the_gpu_as_often_as_the_page_says(fork, tmp_path):
    """240 and 480 images are 9 and 18 steps: a tenth of them is for validation."""
    stem = "08_real_training"
    waits = []
    broadcasts = []
    for images in (240, 480):
        sizes = ("--train-size", images, "--batch-size", 24, "--test-size", 60, "--epochs", 1)
        found = fork(stem, 2, *sizes, folder=str(images), gpus=2).waits
        waits.append(sum(count for place, count in found.items() if place.startswith("parts/resnet.py")))
        operations = []  # of all processes
        for path in (tmp_path / str(images) / ".reports").iterdir():
            operations += json.loads(path.read_text())["operations"]
        broadcasts.append(sum(" broadcast " in line for line in operations))
    assert waits[1] - waits[0] == 9 * 60
    assert broadcasts[1] == broadcasts[0] > 0  # DDP sends the buffers at the start only
    page = lessons.get(stem).page.read_text()
    assert "three times per layer, 60 times per step" in page and "In each of the 20 layers" in page
