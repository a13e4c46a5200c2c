"""What the lessons do where there are GPUs, as far as one can see it without one: see test_on_gpus.py too."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext

import pytest
from torch.utils.data import DataLoader

import workload
from tests.helpers.probe_runs import run_probe
from tools import launcher, lessons
from tools.testbed import pretending

TOGETHER = [lesson for lesson in lessons.LESSONS if lesson.launcher in ("torchrun", "two agents")]


@pytest.mark.quick("04", "09", "13")
@pytest.mark.long
@pytest.mark.parametrize("lesson", TOGETHER, ids=lambda lesson: lesson.number)
def test_a_lesson_takes_the_gpu_of_its_local_rank_and_waits_two_minutes_for_others(forks, tmp_path, lesson):
    """And takes it before it makes the group: or all processes of a machine would take GPU 0."""
    options = ("--epochs", 1, *lesson.small.split())
    command = launcher.command("04_ddp_torchrun", 2, *options)
    result = run_probe(forks, tmp_path, "groups_and_device", command, lesson.path)
    assert result.code == 0, result.stderr
    for rank in (0, 1):
        seen = json.loads((tmp_path / f"{rank}.json").read_text())
        assert seen["asked"] == [7]
        limit = 1800 if lesson.patient else 120
        if lesson.saving:
            seen["seconds"].remove(1800)
        assert max(seen["seconds"]) <= limit, "it waits as PyTorch does: `patient` in lessons.toml"


def test_all_images_are_kept_on_the_device():
    """Where a batch is taken from them by a GPU. This device computes nothing, and has its images too."""
    arguments = workload.parser("01.py", "").parse_args(["--train-size", "20", "--test-size", "10"])
    for images in workload.load_images(arguments, "meta"):
        loader = DataLoader(images, 5, collate_fn=workload.collate)
        for pictures, labels in loader:
            assert pictures.device.type == labels.device.type == "meta"


@pytest.fixture
def gpus(monkeypatch):
    """As if the machine had so many."""

    def gpus(count):
        for module in (workload.options, workload.machine):
            monkeypatch.setattr(module, "gpu_count", lambda: count)
        # Without a driver, a build of torch for CUDA cannot be asked what the GPU is.
        monkeypatch.setattr(workload.machine, "require_kernels", lambda device: None)

    return gpus


def test_a_gpu_that_is_not_there_is_refused(gpus, capsys, monkeypatch):
    """Where a script asks for the GPU of its rank, which counts over all machines."""
    gpus(2)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(SystemExit):
        workload.pick_device(2)
    line = "error: there are 2 GPUs here, and none for process 2: start fewer processes\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(("on_node", "is_refused"), [(2, False), (1, True)])
def test_a_gpu_that_slurm_gives_to_each_task_is_not_shared(gpus, monkeypatch, capsys, on_node, is_refused):
    """With NCCL_HOSTID, NCCL would take the two for two machines, and use sockets between their GPUs."""
    gpus(1)
    environment = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "SLURM_STEP_NUM_TASKS": 2}
    for name, value in (environment | {"SLURM_GPUS_ON_NODE": on_node}).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    torch, taken = workload.machine.torch, []
    monkeypatch.setattr(torch.accelerator, "set_device_index", taken.append)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    with pytest.raises(SystemExit) if is_refused else nullcontext():
        workload.check(workload.parser("04_ddp_torchrun.py", "").parse_args([]))
        workload.pick_device(1)
    assert taken == ([] if is_refused else [0]) and "NCCL_HOSTID" not in os.environ


def test_a_gpu_that_torch_cannot_take_is_spoken_of(tmp_path, monkeypatch, capsys):
    """A driver's program that lists one is all that there is of it here."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-0)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(workload.machine.torch.version, "cuda", None)
    arguments = workload.parser("03_ddp_spawn.py", "").parse_args(["--out", str(tmp_path)])
    workload.check(arguments)
    note = capsys.readouterr().err
    assert note.startswith("note: this machine has a GPU, but the run uses the CPU: ")
    assert "was built without CUDA" in note
    assert note.count("\n") == 1
    monkeypatch.setenv("RANK", "1")
    workload.check(arguments)
    assert capsys.readouterr().err == ""


WHEEL = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]  # of torch 2.13 for CUDA 13


@pytest.mark.parametrize(
    ("built_for", "capability", "cure"),
    [
        (WHEEL, (8, 9), None),  # by the code for 8.6
        (WHEEL, (13, 0), None),  # by compute_120, which the driver compiles
        (WHEEL, (7, 0), "torch's build for CUDA 12.6"),
        (WHEEL, (11, 0), "a build that does"),
        (["sm_50", "sm_70", "sm_86", "sm_90a"], (9, 0), None),
    ],
)
def test_a_gpu_that_torch_was_not_built_for_is_refused(monkeypatch, capsys, built_for, capability, cure):
    torch = workload.machine.torch
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built_for)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(SystemExit) if cure else nullcontext():
        workload.machine.require_kernels(torch.device("cuda", 0))
    line = (
        f"error: torch {torch.__version__} does not support this GPU (Old, compute capability "
        f"{capability[0]}.{capability[1]}): install {cure}, or put CUDA_VISIBLE_DEVICES=-1 in front of the "
        "command to use the CPU\n"
    )
    assert capsys.readouterr().err == (line if cure else "")


def test_convolutions_and_products_have_32_bits_also_in_older_torch():
    """In a process of its own: a flag of the old kind that is read after one of the new kind raises."""
    look = (
        "import torch, workload; workload.set_seed(0); backends = torch.backends; "
        "print(backends.cudnn.conv.fp32_precision, backends.cuda.matmul.fp32_precision, "
        "torch._C._get_cudnn_allow_tf32())"
    )
    words = [sys.executable, "-W", "error", "-c", look]
    run = subprocess.run(words, cwd=launcher.ROOT / "lessons", capture_output=True, text=True)
    assert (run.stdout.split(), run.stderr) == (["ieee", "ieee", "False"], "")


@pytest.mark.parametrize(
    ("version", "needed"), [("2.8.0+cu126", "2.9"), ("2.11.0", "2.13"), ("2.14.0.dev20261101+cpu", None)]
)
def test_a_torch_that_is_too_old_is_refused(monkeypatch, capsys, version, needed):
    """Any lesson by the oldest that they have in common, 10 by the one that it names."""
    monkeypatch.setattr(workload.options.metadata, "version", lambda name: version)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(SystemExit) if needed else nullcontext():
        workload.parser("10_pipeline.py", "")
        workload.require_torchrun("04_ddp_torchrun.py")
        workload.require_torchrun("10_pipeline.py", torch="2.13")
    here = version.partition("+")[0]
    line = f"error: this lesson needs torch {needed}, and this is {here}: pip install torch=={needed}.0\n"
    assert capsys.readouterr().err == (line if needed else "")


TRAIN = [lesson for lesson in lessons.LESSONS if not lesson.is_one_process()]


@pytest.mark.parametrize(
    ("gpus", "expected"), [(0, {2, 4, 8}), (1, {2, 4, 8}), (3, {2, 4, 8}), (6, {4, 8}), (9, {4, 8})]
)
def test_any_number_of_gpus_runs_all_lessons(gpus, expected):
    """On a power of two: 11 cannot shard four heads over three. On too few GPUs they share."""
    assert {lesson.processes_for(gpus) for lesson in TRAIN} == expected
    assert {lesson.processes_for(gpus) for lesson in lessons.LESSONS if lesson.is_one_process()} == {1}


@pytest.mark.skipif(bool(pretending.missing()), reason=pretending.missing())
@pytest.mark.long(
    "08_real_training", "10_pipeline", "11_tensor_parallel", "15_context_parallel", "16_experts"
)
@pytest.mark.night
@pytest.mark.parametrize("stem", [lesson.stem for lesson in TRAIN])
def test_on_eight_gpus_each_lesson_takes_the_processes_that_make_run_starts(fork, stem):
    """With its own batch size and its own sizes of what it shards, which decide."""
    lesson = lessons.get(stem)
    sizes = lesson.small.split()
    if "--batch-size" in sizes:
        at = sizes.index("--batch-size")
        del sizes[at : at + 2]
    sizes = [size for size in sizes if size not in ("--width", "16")]
    fork(stem, lesson.processes_for(8), *sizes, "--epochs", 1, gpus=8)


@pytest.mark.parametrize(
    ("visible", "driver", "expected"),
    [
        ("2,3", "nvidia-smi", ["2 None", "3 None"]),
        (None, "nvidia-smi", ["0 None", "1 None"]),  # torch counts them, NVIDIA's as well as AMD's
        ("-1", "nvidia-smi", ["-1 None", "-1 None"]),
        (None, "no-driver", ["-1 None", "-1 None"]),
    ],
)
def test_two_launchers_take_gpus_that_one_may_see(tmp_path, monkeypatch, visible, driver, expected):
    for name, text in (
        (driver, "exit 1"),
        ("python", "echo 0,1,2,3"),
        ("torchrun", "echo $CUDA_VISIBLE_DEVICES ${NCCL_HOSTID-None}"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    words = ["bash", launcher.ROOT / "lessons/launch/two_terminals.sh"]
    seen = [subprocess.check_output([*words, node], text=True).strip() for node in ("0", "1")]
    assert seen == expected
