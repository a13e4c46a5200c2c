"""Lesson 04 in frameworks: lesson 01's curve, on one process and on many, and what each process holds."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.lines import check_curve, check_what_it_printed, column
from tests.helpers.outcomes import recount
from tests.helpers.patches import patched
from tests.helpers.probe_runs import run_probe
from tools import diffs, launcher
from tools.testbed import pretending
from tools.testbed.forks import Forks
from tools.testbed.processes import alive, free_port, trained

FOLDER = launcher.ROOT / "lessons/frameworks"
SCRIPTS = [path.stem for path in diffs.FRAMEWORKS]
FORKED = [script for script in SCRIPTS if script != "ray_ddp"]  # Ray's processes are no forks of ours
# 1,223 images lack one to a full batch, 997 make uneven shares; a hundred steps, for what begins late.
SIZES = ("--train-size", 1223, "--batch-size", 24, "--test-size", 997, "--epochs", 2, "--seed", 3)

LONGER = ("--test-size", 100, "--epochs", 3)
FEW = ("--train-size", 240, "--test-size", 10, "--epochs", 1)

# These call what torch has deprecated, which is no matter of ours.
WARN = ("deepspeed_zero", "lightning_ddp", "ray_ddp")

NEEDED = ("accelerate", "lightning_fabric", "deepspeed", "pytorch_lightning")
INSTALLS = "needs lessons/frameworks/{}.txt: make tools installs it"
needs_them = pytest.mark.skipif(
    not all(map(find_spec, NEEDED)), reason=INSTALLS.format("{requirements,deepspeed}")
)
needs_ray = pytest.mark.skipif(not find_spec("ray"), reason=INSTALLS.format("ray"))
WITH_RAY = [pytest.param(script, id=script) for script in FORKED]
WITH_RAY.append(pytest.param("ray_ddp", marks=needs_ray, id="ray_ddp"))


class Frameworks(Forks):
    """A fork server that has imported the packages too, but for Ray. It takes 6 seconds, and each run 0.5."""

    def __init__(self):
        imports = (
            "import torch, accelerate, lightning_fabric.strategies, deepspeed, workload; "
            "workload.import_torchvision(); import pytorch_lightning; "
            "from tools.testbed import forks; forks.serve()"
        )
        environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1", "DS_ACCELERATOR": "cpu"}
        environment |= {"PYTHONPATH": os.pathsep.join(sys.path)}
        more = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        words = [sys.executable, "-c", imports]
        self.process = subprocess.Popen(words, env=os.environ | environment, **more)


@pytest.fixture(scope="module")
def server():
    if not all(map(find_spec, NEEDED)):
        pytest.skip(INSTALLS.format("{requirements,deepspeed}"))
    server = Frameworks()
    yield server
    server.close()


@pytest.fixture
def fork(server, tmp_path):
    """Run a script to its end: what `fabric run` and `deepspeed` do beside torchrun is in true launches."""

    def fork(script, processes, *arguments, path=None, folder="run", refused=False):
        if script == "lightning_ddp":
            arguments = ["--devices", processes, *arguments]
        path = path or FOLDER / f"{script}.py"
        words, _ = launcher.command("04_ddp_torchrun", processes, *arguments, script=path)
        if processes == 0:  # no launcher
            words = [sys.executable, *words[words.index(str(path)) :]]
        folder = tmp_path / folder
        environment = {"PYTHONWARNINGS": "default"} if script in WARN else {}
        if processes and script.startswith("fabric"):
            environment |= {"LT_CLI_USED": "1", "LT_DEVICES": str(processes), "LT_NUM_NODES": "1"}
        code, left = server.run(words, folder, environment, limit=240)
        stdout = (folder / ".out").read_text()
        stderr = (folder / ".err").read_text()
        assert refused or code == 0, f"status {code}\n{stdout}\n{stderr}"
        assert not left, f"still alive after the run: {left}"
        return SimpleNamespace(code=code, stdout=stdout, stderr=stderr, out=folder / "out")

    return fork


@pytest.mark.long(*[f"{script}-2" for script in FORKED])
@pytest.mark.night
@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("script", FORKED)
def test_it_has_lesson_01s_curve_and_counts_every_image_once(fork, reference, script, processes):
    result = fork(script, processes, *SIZES)
    curve = check_curve(result.out, script, reference(*SIZES), processes)
    assert column(curve, "accuracy") == column(reference(*SIZES), "accuracy")
    assert curve[-1]["accuracy"] == recount(result.out / f"{script}.pt", 997)
    check_what_it_printed(result.stdout, curve)
    assert set(os.listdir(result.out)) == {f"{script}.jsonl", f"{script}.pt"}
    if processes == 2:
        again = fork(script, processes, *SIZES, folder="again")
        assert (again.out / f"{script}.pt").read_bytes() == (result.out / f"{script}.pt").read_bytes()


ON_A_MAC = """
import runpy, sys
from unittest import mock
with mock.patch("lightning_fabric.accelerators.mps.MPSAccelerator.is_available", lambda: True):
    runpy.run_path({path!r}, run_name="__main__")
"""


@pytest.mark.parametrize("script", ["fabric_ddp", "lightning_ddp"])
def test_lightning_leaves_apples_gpu_alone(fork, tmp_path, script):
    """It would choose that GPU, and refuse DDP there."""
    on_a_mac = tmp_path / f"{script}.py"
    on_a_mac.write_text(ON_A_MAC.format(path=str(FOLDER / f"{script}.py")))
    result = fork(script, 1, *FEW, path=on_a_mac)
    assert result.stdout.count("epoch  1 | loss") == 1


# ---- what each process holds ----


def held(stdout):
    """For each rank: bytes of weights, gradients, momentum, and what else its line says."""
    return list(map(numbers, re.findall(r"^rank \d holds (.*)", stdout, re.M)))


def numbers(line):
    return [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", line)]


PARAMETERS = 32_282
SHARE = 4 * PARAMETERS // 2  # bytes of one of two


@pytest.mark.long
def test_fsdp2_of_accelerate_holds_what_lesson_09_holds(fork, forks, tmp_path):
    words, environment = launcher.command("09_fsdp", 2, *FEW)
    code, _ = forks.run(words, tmp_path / "09", environment, limit=240)
    lesson_09 = held((tmp_path / "09/.out").read_text())
    assert code == 0 and lesson_09 == [[SHARE] * 3] * 2
    assert held(fork("accelerate_fsdp2", 2, *FEW).stdout) == lesson_09


# The whole of a tensor that lies on the border between two shares is kept by both.
ON_BOTH = 784 * 32
# Of 32,282 numbers, weights before that tensor and after it: two convolutions, and the last layer.
BEFORE, AFTER = 25 * 16 + 16 + 25 * 256 + 16, 32 + 10 * 32 + 10
PADDED = PARAMETERS + 2  # to a multiple of four, for two processes


@pytest.mark.long("2")
@pytest.mark.night
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_each_stage_of_zero_has_the_curve_and_the_bytes_of_the_page(fork, reference, stage):
    result = fork("deepspeed_zero", 2, *SIZES, "--stage", stage)
    curve = check_curve(result.out, "deepspeed_zero", reference(*SIZES))
    assert curve[-1]["accuracy"] == recount(result.out / "deepspeed_zero.pt", 997)
    if stage == 3:
        assert held(result.stdout) == [[SHARE, SHARE, SHARE, SHARE, 4_000_000]] * 2
    else:
        share = 4 * PADDED // 2
        assert held(result.stdout) == [
            [4 * PADDED, 4 * (BEFORE + ON_BOTH), share, share, 0],
            [4 * PADDED, 4 * (ON_BOTH + AFTER + 2), share, share, 0],
        ]
    page = (FOLDER / "README.md").read_text()
    row = re.search(rf"^\| ZeRO, stage {stage} \|(.*)\|$", page, re.M)[1]
    cells, _, buckets = row.rpartition("|")
    assert numbers(cells) == held(result.stdout)[0][:4]
    assert not buckets.strip()  # these are DDP's


# ---- true launches ----


def true_launch(script, tmp_path):
    """The command in a script's docstring, and the environment that it is run in."""
    words = shlex.split(diffs.command(FOLDER / f"{script}.py").replace("\\\n", " "))
    # What two of them would leave in the reader's home: a list of fonts, and a token.
    environment = {"MPLCONFIGDIR": str(tmp_path / "fonts"), "RAY_AUTH_TOKEN": "0" * 32}
    # Beside other tests Ray comes too late: it gives its workers the priority 15, and they train after nine
    # minutes; and it ends when a process of its own has not started within a minute.
    environment |= {"RAY_worker_niceness": "0", "RAY_raylet_start_wait_time_s": "300"}
    if script in WARN:
        environment["PYTHONWARNINGS"] = "default"
    while "=" in words[0]:
        environment |= [words.pop(0).split("=")]
    # A free port in place of the one that all use, below those that the system hands out by itself.
    port = str(free_port())
    if words[0] == "fabric":
        words[2:2] = ["--main-port", port]
    elif words[0] == "deepspeed":
        words[1:1] = ["--master_port", port]
    words[0] = str(Path(sys.executable).parent / words[0])
    for place, word in enumerate(words):
        if word.endswith(".py"):
            words[place] = str(launcher.ROOT / word)
    return words, environment


@pytest.mark.long("accelerate_ddp")
@pytest.mark.night
@needs_them
@pytest.mark.parametrize("script", FORKED)  # Ray: see below
def test_the_command_in_its_docstring_starts_it(start, reference, tmp_path, script):
    words, environment = true_launch(script, tmp_path)
    result = start(script, words=[*words, *SIZES], environment=environment).finish()
    assert result.code == 0, result.stdout + result.stderr
    check_curve(result.out, script, reference(*SIZES), 2)


ON_GPUS = [
    needs_them,
    pytest.mark.skipif(bool(pretending.missing()), reason=pretending.missing()),
    pytest.mark.skipif(pretending.real() > 0, reason="has real GPUs"),
]
ON_GPUS_SIZES = ("--train-size", 240, "--batch-size", 24, "--test-size", 60, "--epochs", 2)
TOO_FEW = (
    "error: 2 processes on this machine, but 1 GPU: start fewer processes, or put CUDA_VISIBLE_DEVICES=-1 "
    "(with DeepSpeed: DS_ACCELERATOR=cpu) in front of the command to use the CPU"
)


def on_gpus(start, script, tmp_path, gpus, folder="run", **environment):
    """Its command on pretended GPUs, in small, and without what keeps it on the CPU."""
    words, before = true_launch(script, tmp_path)
    before.pop("DS_ACCELERATOR", None)
    words = [*words, *map(str, ON_GPUS_SIZES)]
    run = start(script, words=words, environment=before | environment, gpus=gpus, folder=folder)
    return run.finish(400)


@pytest.mark.night
@pytest.mark.parametrize(
    "script",
    # `fabric run` looks for the GPUs itself, before the script begins.
    [pytest.param(*row.values, marks=[*ON_GPUS, *row.marks]) for row in WITH_RAY if row.id != "fabric_ddp"],
)
def test_two_processes_do_not_share_a_gpu(start, tmp_path, script):
    """Whether they may or not: a library gives each process a GPU of its own."""
    for share in ("", "1"):
        result = on_gpus(start, script, tmp_path, 1, folder=f"run{share}", SHARE_GPU=share)
        lines = re.findall(r"^error:.*", f"{result.stdout}\n{result.stderr}", re.M)
        assert result.code != 0 and lines == [TOO_FEW]


@pytest.mark.long("accelerate_ddp")
@pytest.mark.night
@pytest.mark.parametrize("script", [pytest.param(script, marks=ON_GPUS) for script in FORKED])
def test_on_gpus_it_has_lesson_01s_curve(start, reference, tmp_path, script):
    """By NCCL. Accelerate calls more there than on a CPU, and a warning is an error here."""
    result = on_gpus(start, script, tmp_path, 2)
    assert result.code == 0, result.stdout + result.stderr
    check_curve(result.out, script, reference(*ON_GPUS_SIZES), 2)


# What each says when rank 1 is killed. Of the Trainer's processes, rank 0 is the one that we start.
KILLED = [
    ("accelerate_ddp", 1, r"exitcode  : -9 \(pid: \d+\)"),
    ("deepspeed_ddp", 247, r"exits with return code = -9"),
    ("lightning_ddp", 1, r"RuntimeError: .*gloo.*[Cc]onnection"),
]


@pytest.mark.night
@needs_them
@pytest.mark.parametrize(("script", "code", "says"), KILLED)
def test_what_is_said_of_a_process_that_is_killed(start, tmp_path, script, code, says):
    words, environment = true_launch(script, tmp_path)
    run = start(script, words=[*words, *LONGER], environment=environment)
    os.kill(max(trained(run, script)), signal.SIGKILL)
    result = run.finish()
    said = result.stdout + result.stderr
    assert result.code == code and re.search(says, said), said
    named = re.search(r"SIGKILL|exitcode|return code = -9|Child process", said)
    assert bool(named) == (script != "lightning_ddp")


@pytest.mark.night
@pytest.mark.alone
@needs_ray
def test_ray_starts_by_its_command_and_begins_again_when_a_worker_is_killed(start, reference, tmp_path):
    """From the beginning, since the script saves nothing: the curve is whole. Alone, since Ray ends if a
    process of its own has not come within 15 seconds, which no option changes (its issue 65983)."""
    words, environment = true_launch("ray_ddp", tmp_path)
    run = start("ray_ddp", words=[*words, "--max-failures", 1, *LONGER], environment=environment)
    run.wait_for(lambda: (run.out / "ray_ddp.jsonl").exists(), 400)
    workers = []
    for pid, command in alive(run.mark):
        if command.startswith("ray::RayTrainWorker"):
            workers.append(pid)
    os.kill(max(workers), signal.SIGKILL)
    result = run.finish(400)
    assert result.code == 0, result.stdout + result.stderr
    check_curve(result.out, "ray_ddp", reference(*LONGER), 2)
    assert len(re.findall(r"epoch  1 \|", result.stderr + result.stdout)) == 2


@pytest.mark.long("fabric_ddp")
@pytest.mark.night
@pytest.mark.parametrize("script", [name for name in FORKED if name != "lightning_ddp"])
def test_a_start_without_launcher_is_refused(fork, script):
    result = fork(script, 0, refused=True)
    command = "fabric run --devices 2" if script.startswith("fabric") else "torchrun --standalone"
    assert result.code == 2
    assert re.fullmatch(rf"error: this lesson is started by.* {command} .*{script}\.py\n", result.stderr)


@pytest.mark.long("accelerate_ddp")
@pytest.mark.night
@pytest.mark.parametrize("script", WITH_RAY)
def test_bad_input_is_refused_in_one_line(fork, script):
    start = (0, "--workers", 2) if script == "ray_ddp" else (2,)
    result = fork(script, *start, "--batch-size", 25, refused=True)
    assert result.code != 0
    first, *others = re.findall(r"^.*(?:error:|Traceback).*$", result.stderr, re.M)
    assert first == "error: --batch-size 25 does not divide by 2 processes: take 26, for instance"
    for line in others:
        assert not line.startswith("error:")


def changed(script, right, wrong, folder):
    """A copy of a script, with other words in place of these."""
    text, path = (FOLDER / f"{script}.py").read_text(), folder / f"{script}.py"
    assert right in text
    path.write_text(text.replace(right, wrong))
    return path


PREPARED = "accelerator.prepare(\n        model, optimizer, train_loader, test_loader\n    )"
# What the page says of each, and what a reader would not see at once: without our line, another curve.
TRAPS = [
    ("accelerate_ddp", "train_loader.set_epoch(epoch)", "pass"),
    ("accelerate_ddp", "use_seedable_sampler=True", "use_seedable_sampler=False"),
    ("accelerate_ddp", PREPARED, f"{PREPARED}\n    scheduler = accelerator.prepare(scheduler)"),
    ("accelerate_ddp", "accelerator.gather_for_metrics", "accelerator.gather"),
    ("fabric_ddp", "arguments.seed + 1", "arguments.seed"),
    ("fabric_ddp", "use_distributed_sampler=False", "use_distributed_sampler=True"),
    ("deepspeed_ddp", ', "gradient_clipping": 0.0', ""),
    ("lightning_ddp", "self.arguments.seed + 1", "self.arguments.seed"),
    ("lightning_ddp", "use_distributed_sampler=False", "use_distributed_sampler=True"),
    ("lightning_ddp", "sync_dist=True, ", ""),
]


@pytest.mark.night
@pytest.mark.parametrize(("script", "right", "wrong"), TRAPS)
def test_what_the_page_warns_of_is_so(fork, reference, tmp_path, script, right, wrong):
    path = changed(script, right, wrong, tmp_path)
    curve = launcher.read_curve(fork(script, 2, *SIZES, path=path).out, script)
    same = column(curve, "accuracy") == column(reference(*SIZES), "accuracy")
    assert launcher.difference(curve, reference(*SIZES)) != "" or not same


HELD = [  # a line of ours, and what rank 0 holds if a reader leaves it out
    ('"stage3_param_persistence_threshold": 0', [SHARE * 3, SHARE, SHARE, SHARE, 4_000_000]),
    ('"reduce_bucket_size": 1_000_000', [SHARE, SHARE, SHARE, SHARE, 2_000_000_000]),
]


@pytest.mark.night
@pytest.mark.parametrize(("right", "bytes_of_rank_0"), HELD)
def test_what_the_page_says_of_memory_is_so(fork, tmp_path, right, bytes_of_rank_0):
    path = changed("deepspeed_zero", right, '"offload_param": None', tmp_path)
    stdout = fork("deepspeed_zero", 2, *FEW, path=path).stdout
    assert held(stdout)[0] == bytes_of_rank_0


@pytest.mark.long
def test_without_a_gpu_accelerate_takes_ddp_in_place_of_fsdp(fork, tmp_path):
    wrong = "print(accelerator.distributed_type)\n    if False:"
    path = changed("accelerate_fsdp2", 'if accelerator.device.type == "cpu":', wrong, tmp_path)
    result = fork("accelerate_fsdp2", 2, *SIZES, path=path, refused=True)
    assert "MULTI_CPU" in result.stdout and "'Parameter' object has no attribute 'to_local'" in result.stderr


def test_gradients_lie_in_ddps_buckets_only_if_it_is_told_so(forks, tmp_path):
    """As the page says: without gradient_as_bucket_view, they take as much memory again."""
    result = run_probe(forks, tmp_path, "ddp_buckets", launcher.command("04_ddp_torchrun", 2))
    assert result.code == 0, result.stderr
    page = (FOLDER / "README.md").read_text()
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == [[129_128, 258_256], [129_128, 129_128]]
    assert "| DDP | 129,128 | 129,128 | 129,128 | | 129,128 |" in page
    assert "| DDP, `gradient_as_bucket_view=True` | 129,128 | in the buckets | 129,128 | | 129,128 |" in page


HOPS = {
    FOLDER: [(diffs.LESSON_04, path) for path in diffs.FRAMEWORKS if path.stem not in diffs.SHARDED],
    diffs.OLDER: diffs.HOPS.values(),
}


@pytest.mark.parametrize("folder", HOPS, ids=lambda folder: folder.name)
def test_the_page_has_the_diffs(tmp_path, folder):
    found = re.findall(r"```diff\n(.*?)```", (folder / "README.md").read_text(), re.S)
    hops = {}
    for before, after in HOPS[folder]:
        hops[before.name, after.name] = before, after
    assert len(found) == len(hops)
    for text in found:
        named, also_named = re.findall(r"^(?:---|\+\+\+) (\S+)", text, re.M)
        before, after = hops.pop((Path(named).name, Path(also_named).name))
        assert patched(diffs.code(before), text, tmp_path) == diffs.code(after)


@pytest.mark.parametrize("script", diffs.SHARDED)
def test_the_page_shows_lines_of_the_scripts_that_shard(script):
    page = (FOLDER / "README.md").read_text()
    text = (FOLDER / f"{script}.py").read_text()
    (shown,) = re.findall(rf"\({script}\.py\)(?:(?!```).)*```python\n(.*?)```", page, re.S)
    lines = list(filter(None, map(str.strip, shown.splitlines())))
    assert len(lines) > 5
    for line in lines:
        assert line in text
