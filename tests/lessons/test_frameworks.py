"""Lesson 04 in Accelerate, Fabric and DeepSpeed: lesson 01's curve, on one process and on many."""

import itertools
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

import diffs
import launcher
from forks import Forks
from lines import check_what_it_printed
from weights import recount

FOLDER = launcher.ROOT / "lessons/frameworks"
SCRIPTS = [path.stem for path in diffs.FRAMEWORKS]
PORTS = itertools.count()
# 1,223 images lack one to a full batch, 997 make uneven shares; a hundred steps, for what begins late.
SIZES = ("--train-size", 1223, "--batch-size", 24, "--test-size", 997, "--epochs", 2, "--seed", 3)

needs_them = pytest.mark.skipif(
    not all(map(find_spec, ("accelerate", "lightning_fabric", "deepspeed"))),
    reason="needs lessons/frameworks/requirements.txt: make tools installs it",
)


class Frameworks(Forks):
    """A fork server that has imported the three packages too. It takes 5 seconds, and each run 0.5."""

    def __init__(self):
        imports = "import torch, accelerate, lightning_fabric.strategies, deepspeed, forks; forks.serve()"
        environment = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
            text=True,
        )


@pytest.fixture(scope="module")
def server():
    server = Frameworks()
    yield server
    server.close()


@pytest.fixture
def fork(server, tmp_path):
    """Run a script to its end: what `fabric run` and `deepspeed` do beside torchrun is in true launches."""

    def fork(script, processes, *arguments, path=None, folder="run", refused=False):
        words, _ = launcher.command("04_ddp_torchrun", processes, *arguments)
        path = path or FOLDER / f"{script}.py"
        words = [str(path) if word.endswith("04_ddp_torchrun.py") else word for word in words]
        if processes == 0:  # no launcher
            words = [sys.executable, *words[words.index(str(path)) :]]
        folder = tmp_path / folder
        environment = {}
        if processes and script.startswith("fabric"):
            environment |= {"LT_CLI_USED": "1", "LT_DEVICES": str(processes), "LT_NUM_NODES": "1"}
        code, left = server.run(words, folder, environment, limit=240)
        stdout, stderr = ((folder / name).read_text() for name in (".out", ".err"))
        assert refused or code == 0, f"status {code}\n{stdout}\n{stderr}"
        assert not left, f"still alive after the run: {left}"
        return SimpleNamespace(code=code, stdout=stdout, stderr=stderr, out=folder / "out")

    return fork


def test_all_three_are_here():
    assert SCRIPTS == ["accelerate_ddp", "deepspeed_ddp", "fabric_ddp"]
    for path in diffs.FRAMEWORKS:
        assert len(path.read_text().splitlines()) <= 95


@pytest.mark.quick("accelerate_ddp-2")
@needs_them
@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("script", SCRIPTS)
def test_it_has_lesson_01s_curve_and_counts_every_image_once(fork, reference, script, processes):
    result = fork(script, processes, *SIZES)
    curve = launcher.read_curve(result.out, script)
    assert launcher.difference(curve, reference(*SIZES)) == ""
    assert [row["accuracy"] for row in curve] == [row["accuracy"] for row in reference(*SIZES)]
    assert {row["world_size"] for row in curve} == {processes}
    assert curve[-1]["accuracy"] == recount(result.out / f"{script}.pt", 997)
    check_what_it_printed(result.stdout, curve)
    assert {path.name for path in result.out.iterdir()} == {f"{script}.jsonl", f"{script}.pt"}
    if processes == 2:
        again = fork(script, processes, *SIZES, folder="again")
        assert (again.out / f"{script}.pt").read_bytes() == (result.out / f"{script}.pt").read_bytes()


@pytest.mark.long
@needs_them
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_command_in_its_docstring_starts_it(start, reference, script):
    words = shlex.split(diffs.command(FOLDER / f"{script}.py").replace("\\\n", " "))
    environment = {}
    while "=" in words[0]:
        environment |= [words.pop(0).split("=")]
    # A free port in place of the one that all use, below those that the system hands out by itself.
    port = str(20000 + (os.getpid() + next(PORTS)) % 10000)
    if words[0] == "fabric":
        words[2:2] = ["--main-port", port]
    elif words[0] == "deepspeed":
        words[1:1] = ["--master_port", port]
    words[0] = str(Path(sys.executable).parent / words[0])
    words = [str(launcher.ROOT / word) if word.endswith(".py") else word for word in words]
    result = start(script, words=[*words, *SIZES], environment=environment).finish()
    assert result.code == 0, result.stdout + result.stderr
    curve = launcher.read_curve(result.out, script)
    assert launcher.difference(curve, reference(*SIZES)) == ""
    assert {row["world_size"] for row in curve} == {2}


@pytest.mark.quick("accelerate_ddp")
@needs_them
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_start_without_launcher_is_refused(fork, script):
    result = fork(script, 0, refused=True)
    command = "fabric run --devices 2" if script.startswith("fabric") else "torchrun --standalone"
    assert result.code == 2
    assert re.fullmatch(rf"error: this lesson is started by.* {command} .*{script}\.py\n", result.stderr)


@pytest.mark.quick("fabric_ddp")
@needs_them
@pytest.mark.parametrize("script", SCRIPTS)
def test_bad_input_is_refused_in_one_line(fork, script):
    result = fork(script, 2, "--batch-size", 25, refused=True)
    assert result.code != 0
    said = [line for line in result.stderr.splitlines() if "error:" in line or "Traceback" in line]
    assert said[0] == "error: --batch-size 25 does not divide by 2 processes: take 26, for instance"
    assert not [line for line in said[1:] if line.startswith("error:")]


# What the page says of each, and what a reader would not see at once: without our line, another curve.
TRAPS = [
    ("accelerate_ddp", "train_loader.set_epoch(epoch)", "pass"),
    (
        "accelerate_ddp",
        "accelerator.prepare(\n        model, optimizer, train_loader, test_loader\n    )",
        "accelerator.prepare(\n        model, optimizer, train_loader, test_loader\n    )\n"
        "    scheduler = accelerator.prepare(scheduler)",
    ),
    ("accelerate_ddp", "accelerator.gather_for_metrics", "accelerator.gather"),
    ("fabric_ddp", "arguments.seed + 1", "arguments.seed"),
    ("fabric_ddp", "use_distributed_sampler=False", "use_distributed_sampler=True"),
    ("deepspeed_ddp", ', "gradient_clipping": 0.0', ""),
]


@pytest.mark.long
@needs_them
@pytest.mark.parametrize(("script", "right", "wrong"), TRAPS)
def test_what_the_page_warns_of_is_so(fork, reference, tmp_path, script, right, wrong):
    text = (FOLDER / f"{script}.py").read_text()
    assert right in text
    path = tmp_path / f"{script}.py"
    path.write_text(text.replace(right, wrong))
    curve = launcher.read_curve(fork(script, 2, *SIZES, path=path).out, script)
    same = [row["accuracy"] for row in curve] == [row["accuracy"] for row in reference(*SIZES)]
    assert launcher.difference(curve, reference(*SIZES)) != "" or not same


def test_the_page_has_the_diffs(tmp_path):
    page = (FOLDER / "README.md").read_text()
    found = re.findall(r"```diff\n(.*?)```", page, re.S)
    assert len(found) == len(SCRIPTS)
    for text in found:
        after = FOLDER / re.search(r"^\+\+\+ (\S+)", text, re.M)[1]
        copy = tmp_path / "04.py"
        copy.write_text((launcher.ROOT / "lessons/04_ddp_torchrun.py").read_text())
        subprocess.run(["patch", "-s", copy], input=text, text=True, check=True)
        assert copy.read_text() == after.read_text()


def test_every_link_leads_to_a_file():
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", (FOLDER / "README.md").read_text()):
        assert target.startswith("http") or (FOLDER / target).exists(), target


def test_the_requirements_are_pinned():
    lines = (FOLDER / "requirements.txt").read_text().splitlines()
    assert all(re.fullmatch(r"#.*|[\w-]+==[\d.]+", line) for line in lines)
