"""`make gpu` and `make gpu-speed`: what they promise, without a GPU and on simulated ones."""

import os
import re
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

import workload
from parts import gpt, language_model
from tools import launcher, lessons
from tools.makers import result_files, running
from tools.makers.gpu import h100_page, measure, probes, run_tests
from tools.testbed import pretending
from tools.testbed.command_environment import python_path
from tools.testbed.processes import alive, wait_for

MISSING = pretending.missing(2) or ("has real GPUs" if pretending.real() else "")
needs_simulated = pytest.mark.skipif(bool(MISSING), reason=MISSING)
SMALL_LOOP = {"width": 4, "images": 32, "size": 8, "rounds": 1, "steps": 2}
SMALL_GPT = {"hidden": 32, "layers": 1, "heads": 2, "length": 16, "size": 2, "steps": 1, "rounds": 1}


def environment_of(tmp_path, gpus):
    """For a command that runs pytest: it must not take itself for a worker of this one."""
    environment = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    environment |= {"PYTHONPATH": python_path(pretending.AT_EXIT, launcher.ROOT)}
    return environment | pretending.environment(gpus, tmp_path, environment)


@pytest.mark.quick("measure")
@pytest.mark.long("run_tests")
@pytest.mark.parametrize("module", ["run_tests", "measure"])
def test_without_a_gpu_it_says_in_one_line_what_to_do(tmp_path, module):
    words = [sys.executable, "-m", f"tools.makers.gpu.{module}", "--out", tmp_path / "out"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}
    run = subprocess.run(words, cwd=launcher.ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 1 and run.stdout == ""
    assert run.stderr.startswith("error: there is no GPU here: make ") and run.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


# ---- the tests ----------------------------------------------------------------------------------


@needs_simulated
@pytest.mark.night
def test_what_is_new_comes_first_and_each_test_has_a_row(tmp_path):
    """On simulated GPUs; with the plain list of pytest, no test would be known the second time."""

    def run(chosen):
        words = [sys.executable, "-m", "tools.makers.gpu.run_tests", "--out", tmp_path / "out"]
        words += ["-v", "-n", "1", "-k", f"test_a_lesson_has_the_cpus_curve and ({chosen})"]
        environment = environment_of(tmp_path, 2)
        done = subprocess.run(words, cwd=launcher.ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return re.findall(r"PASSED.*\[(\S+)\] *$", done.stdout, re.M)

    assert run("02-2") == ["02-2"]
    assert run("02-2 or 04-2") == ["04-2", "02-2"]
    first, second = ElementTree.parse(tmp_path / "out/results/gpu-tests.xml").iter("testcase")
    assert float(first.get("time")) > 0 and float(second.get("time")) > 0
    (said,) = first.iter("property")
    assert said.get("name") == "losses off the CPU's by" and float(said.get("value")) < 1e-5
    assert (tmp_path / "out/results/gpu-cache/v/cache/nodeids").exists()


@pytest.mark.long
def test_a_test_that_hangs_is_ended_with_its_processes(tmp_path):
    """An NCCL that hangs would take the rest of a lent GPU's time."""
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_hangs(start):\n"
        "    start('', words=[sys.executable, '-c', 'import time; time.sleep(99)']).finish()\n"
        "def test_next(): pass\n"
    )
    arguments = SimpleNamespace(notebooks=False)
    words = run_tests.options(arguments, tmp_path, 1)
    assert f"--timeout={run_tests.SECONDS_OF_A_TEST}" in words
    ours = str(launcher.ROOT / "tests")
    words = [word for word in words if not word.startswith(ours)]
    words += ["-p", "tests.conftest", "--timeout=4", str(tmp_path / "test_it.py")]
    environment = environment_of(tmp_path, 0) | {"MARK_OF_TEST": str(tmp_path)}
    began = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=launcher.ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "Timeout (>4.0s)" in run.stdout and "1 failed, 1 passed" in run.stdout, run.stdout
    assert time.monotonic() - began < 90
    wait_for(lambda: not alive(str(tmp_path)), 10)


def test_the_tests_of_lessons_and_of_notebooks_have_their_own_limits(tmp_path):
    lessons = run_tests.options(SimpleNamespace(notebooks=False), tmp_path, 3)
    notebooks = run_tests.options(SimpleNamespace(notebooks=True), tmp_path, 3)
    assert str(launcher.ROOT / "tests/lessons/test_on_gpus.py") in lessons
    assert "notebooks" not in " ".join(lessons)
    assert notebooks[-1].endswith("test_it_runs_on_a_gpu")
    assert f"--timeout={run_tests.SECONDS_OF_A_NOTEBOOK}" in notebooks and "--nf" in notebooks


# ---- the measurements ---------------------------------------------------------------------------


def python(text):
    return [sys.executable, "-c", text]


def test_a_measurement_that_fails_or_hangs_is_a_row_and_leaves_no_process():
    good = measure.measure("loop", "a", python('print(\'{"probe": {"images/s": 5}}\')'), dict(os.environ))
    assert (good["kind"], good["name"], good["images/s"]) == ("loop", "a", 5) and good["took"] > 0
    bad = measure.measure("loop", "b", python("1 / 0"), dict(os.environ))
    assert bad["failed"] == "ZeroDivisionError: division by zero" and measure.line(bad) == bad["failed"]
    hangs = "__import__('subprocess').run(['sleep', '99'], start_new_session=True)"
    hung = measure.measure("loop", "c", python(hangs), dict(os.environ), limit=2)
    assert "still ran after 2 seconds" in hung["failed"]
    assert not alive(running.MARK)


@needs_simulated
@pytest.mark.long("loop", "sizes")
@pytest.mark.night
@pytest.mark.parametrize(
    ("words", "options"),
    [
        pytest.param(("loop", "fused"), SMALL_LOOP, id="loop"),
        pytest.param(("loop", "plain"), SMALL_LOOP, id="loop with workers"),
        pytest.param(("loop", "fsdp"), SMALL_LOOP | {"ranks": 2}, id="loop on two"),
        pytest.param(("gpt", "fused"), SMALL_GPT, id="gpt"),
        pytest.param(("sizes",), {"ranks": 2, "times": 2, "largest": 20}, id="sizes"),
        pytest.param(("memory", "ddp"), {"ranks": 2, "width": 128, "layers": 4}, id="ddp"),
        pytest.param(("memory", "fsdp"), {"ranks": 2, "width": 128, "layers": 4}, id="fsdp"),
        pytest.param(("peers",), {"power": 20}, id="peers"),
    ],
)
def test_a_probe_runs_in_small_on_simulated_gpus(tmp_path, monkeypatch, words, options):
    monkeypatch.setattr(measure.torch.cuda, "get_device_name", lambda number: "NVIDIA pretended")
    command, environment = measure.job(*words, **options)
    environment |= pretending.environment(2, tmp_path, environment)
    environment["PYTHONPATH"] = python_path(pretending.AT_EXIT, *environment["PYTHONPATH"].split(os.pathsep))
    environment.pop("SHARE_GPU", None)
    row = measure.measure("small", "it", command, environment)
    assert "failed" not in row and measure.line(row), row
    assert pretending.waits(2, tmp_path) is not None  # it fails if no process has found a GPU


@needs_simulated
@pytest.mark.long("1")
@pytest.mark.night
@pytest.mark.parametrize("ranks", [1, 2], ids=str)
def test_lesson_18_is_measured_in_small_on_simulated_gpus(tmp_path, monkeypatch, ranks):
    """Without --compile, which simulated GPUs cannot do."""
    monkeypatch.setattr(measure, "LANGUAGE", measure.LANGUAGE.replace("--compile ", ""))
    small = "--steps 6 --validate-every 3 --warm-up 1 --heads 2 --width 16"
    small = f"{lessons.get('18_language_model').small} {small}"
    words, environment = measure.language(ranks, small)
    environment |= pretending.environment(2, tmp_path, environment)
    environment["PYTHONPATH"] = python_path(pretending.AT_EXIT, *environment["PYTHONPATH"].split(os.pathsep))
    environment.pop("SHARE_GPU", None)
    row = measure.measure("language", "small", words, environment)
    assert "failed" not in row, row
    assert row["tokens/s"] > 0 and row["MFU"] is None and 1 < row["bits per byte"] < 8
    assert re.fullmatch(r"[\d,]+ parameters: [\d,]+ tokens/s; .* \(xz \d\.\d+\)", measure.line(row))
    assert pretending.waits(2, tmp_path) is not None


def test_lesson_18s_rows_have_the_sizes_that_they_name(tmp_path):
    """The model's parameters, to a tenth; and all options are the lesson's."""
    for name, (_, options) in measure.LANGUAGES.items():
        parser = workload.parser("18_language_model.py", "")
        language_model.options(parser)
        arguments = parser.parse_args([*measure.LANGUAGE.split(), *options.split()])
        language_model.check(arguments)
        with torch.device("meta"):
            model = gpt.GPT(arguments.tokens, arguments.width, arguments.heads, arguments.layers)
        millions = sum(weight.numel() for weight in model.parameters()) / 1e6
        assert millions == pytest.approx(int(name.split("M")[0]), rel=0.1), name
    assert "124M" not in measure.languages()
    words, _ = measure.languages(tmp_path)["124M"]
    assert words[-2:] == ["--text", tmp_path]


def test_what_lesson_18_prints_is_a_row(monkeypatch):
    stdout = """held out, bits per byte: gzip 1.853, xz 1.510
model of 10,424,832 parameters, 5,630 steps of 16,384 tokens
step   500 | bits per byte 1.631, held out 1.650 | norm 0.99 | 10,121 tokens/s | MFU 1.0%
step  1000 | bits per byte 1.431, held out 1.450 | norm 0.99 | 1,010,121 tokens/s | MFU 21.5%
    def f(tokens/s):
all held-out files: 1.301 bits per byte; skipped steps: none
"""
    row = measure.read_language(stdout)
    said = "10,424,832 parameters: 1,010,121 tokens/s, MFU 21.5%; 1.301 bits per byte of all held-out files"
    assert measure.line(row) == f"{said} (xz 1.510)"


@needs_simulated
@pytest.mark.night
def test_each_row_is_kept_as_soon_as_it_ends_and_a_second_run_adds_its_own(tmp_path):
    words = [sys.executable, "-m", "tools.makers.gpu.measure", "--out", tmp_path, "--only", "all-reduce"]
    for rows in (1, 2):
        environment = environment_of(tmp_path, 2)
        run = subprocess.run(words, cwd=launcher.ROOT, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr
        (path,) = (tmp_path / "results").glob("gpu-nvidia-pretended-*.jsonl")
        about, found = result_files.read(path)
        assert about["machine"]["gpus"] and len(found) == rows
    run = subprocess.run([*words, "--minutes", "0"], cwd=launcher.ROOT, env=environment, capture_output=True)
    assert run.returncode == 0 and b"not begun after 0 minutes" in run.stdout


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


@pytest.mark.long
def test_modules_and_torchrun_are_those_of_the_readers_python(start, monkeypatch, tmp_path):
    """`module load` has put torch into PYTHONPATH, and another torchrun comes first in PATH."""
    (tmp_path / "torchrun").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", "/cluster/torch")
    monkeypatch.setenv("RANK", "3")
    words, environment = measure.job("sizes", ranks=2)
    assert environment["PYTHONPATH"].endswith(f"{os.pathsep}/cluster/torch")
    assert words[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert environment["SHARE_GPU"] == "1" and "RANK" not in environment
    monkeypatch.setattr(pretending, "real", lambda: 1)
    for number, words in enumerate((["torchrun", "--help"], ["sh", "-c", "torchrun --help"])):
        result = start("", words=words, gpus=1, folder=str(number)).finish()
        assert result.code == 0 and "--nproc-per-node" in result.stdout, result.stderr


def test_what_the_machine_lacks_is_said(monkeypatch):
    monkeypatch.setattr(measure.torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert measure.lacks("loop", "bf16") == measure.lacks("gpt", "gpt") == "this GPU has no bf16"
    assert measure.lacks("loop", "plain") == measure.lacks("memory", "ddp on 2") == ""
    monkeypatch.setattr(measure.torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    monkeypatch.setattr(pretending, "find_spec", lambda name: True)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    said = "no compiler: torch.compile needs gcc or clang"
    assert measure.lacks("loop", "compile") == measure.lacks("gpt", "gpt, batches of 16") == said
    assert measure.lacks("gpt", "gpt") == measure.lacks("loop", "fused") == ""


def test_a_row_in_words(monkeypatch):
    monkeypatch.setattr(measure.torch.cuda, "get_device_name", lambda number: "NVIDIA H100 80GB HBM3")
    busy = {"busy": 0.9, "products": 0.3, "NCCL": 0.5, "hidden": 0.2}
    row = {"name": "compile", "images/s": 80_000.0, "flops": 3.33e9, "busy": busy}
    said = "80,000 images/s, 26.9% of the peak in bf16"
    assert measure.line(row) == f"{said}; GPU busy 90%: NCCL 50%, products 30%; NCCL beside other kernels 20%"
    assert "peak" not in measure.line(row | {"name": "plain"})
    monkeypatch.setattr(measure.torch.cuda, "get_device_name", lambda number: "NVIDIA GeForce RTX 3090 Ti")
    assert "peak" not in measure.line(row)
    said = measure.line({"name": "", "peers": {"1": {"P2P": False, "bytes/s": 2e9, "same": False}}})
    assert "2 GB/s through the host" in said and "NCCL_P2P_DISABLE=1" in said


# ---- what the page shows ------------------------------------------------------------------------


def test_the_page_and_its_picture_show_what_the_files_hold(tmp_path):
    assert h100_page.PAGE.read_text() == h100_page.page(), h100_page.COMMAND
    h100_page.draw(tmp_path / "picture.svg")
    assert (tmp_path / "picture.svg").read_text() == h100_page.PICTURE.read_text(), h100_page.COMMAND


def test_the_tables_have_each_row_from_the_newest_file_that_has_it(monkeypatch, tmp_path):
    """A file of `make gpu-speed`, whose name has the GPU's whole name, beside the older files."""
    tables = (h100_page.ladder(), h100_page.gpt())
    gpt = h100_page.measured("gpt")["gpt, compiled"] | {"kinds": ["compiled", "fused", "cudnn"], "size": 32}
    plain = h100_page.measured("loop")["plain"] | {"images/s": 12345.6}
    for path in h100_page.FOLDER.glob("gpu-*.jsonl"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(h100_page, "FOLDER", tmp_path)
    rows = [plain, gpt | {"name": "new"}, gpt | {"name": "words", "characters": 50304}]
    rows.append({"kind": "loop", "name": "compile", "failed": "OutOfMemoryError"})
    path = tmp_path / "gpu-nvidia-h100-80gb-hbm3-2027-01-03.jsonl"
    result_files.write(path, {"date": "2027-01-03"}, rows)
    how = "| 32 | compiled as a whole; one product for query, key and value; cuDNN's attention"
    first, second = h100_page.gpt().removeprefix(tables[1]).splitlines()
    assert first.startswith(f"{how} | ") and second.startswith(f"{how}; 50,304 words | ")
    changed = set(h100_page.ladder().splitlines()) - set(tables[0].splitlines())
    assert len(changed) == 1 and " | 12,346 | " in changed.pop()
