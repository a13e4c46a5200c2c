"""Bad input gets one line that says what to do, and a non-zero exit; a failed run leaves nothing behind."""

import os
import pickle
import re
import signal
import struct
import sys
import tomllib
from pathlib import Path

import numpy
import pytest
import torch

import workload
from tests.helpers.lines import column, is_like, refusal
from tools import launcher
from tools.testbed import pretending
from tools.testbed.processes import trained

SMALL = ("--train-size", 240, "--test-size", 10, "--epochs", 1)
OFFLINE = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
REFUSED = tomllib.loads(Path(__file__).with_name("refused.toml").read_text())
BAD = REFUSED["lessons"] | REFUSED["processes"]


@pytest.mark.parametrize(
    ("stem", "bad"), [("02_data_parallel", "zero-epochs"), ("03_ddp_spawn", "few-images")]
)
def test_bad_input_is_refused_with_one_line(start, stem, bad):
    words, message = BAD[bad]
    assert is_like(refusal(start(stem, 2, *words.split()).finish()), f"error: {message}")


@pytest.mark.parametrize(
    ("stem", "processes", "bad"),
    [
        *(("01_single_gpu", 1, bad) for bad in REFUSED["lessons"]),
        *(("03_ddp_spawn", 2, bad) for bad in ("zero-epochs", "unwritable-out")),
        ("03_ddp_spawn", 0, "none"),
        ("03_ddp_spawn", 3, "a-batch-for-three"),
        ("04_ddp_torchrun", 2, "unknown-option"),
        ("05_snapshots", 1, "zero-epochs"),  # once, although torchrun restarts it
        ("06_multinode", 3, "a-batch-for-three"),
    ],
)
def test_all_bad_input_is(forked, stem, processes, bad):
    words, message = BAD[bad]
    line = refusal(forked(*launcher.command(stem, processes, *words.split())))
    assert is_like(line, f"error: {message}")


@pytest.mark.parametrize("words", REFUSED["06b_preemption"])
def test_bad_options_of_lesson_06b_are_refused(fork, words):
    line = refusal(fork("06b_preemption", 2, *SMALL, *words.split(), refused=True))
    assert line == f"error: {REFUSED['06b_preemption'][words]}"


@pytest.mark.long
@pytest.mark.skipif(bool(pretending.missing(2)), reason=pretending.missing(2))
@pytest.mark.parametrize("stem", ["03_ddp_spawn", "04_ddp_torchrun"])
def test_more_processes_than_gpus_are_refused(start, stem):
    line = refusal(start(stem, 3, gpus=2).finish())
    assert line.startswith("error: 3 processes on this machine, but 2 GPUs: put SHARE_GPU=1 in front of")


def test_a_batch_that_fits_no_more_after_a_restart_is_refused_aloud(tmp_path, monkeypatch, capsys):
    """Fewer machines may be left. Other refusals are those of the first attempt, which has said them."""
    arguments = workload.parser("06_multinode.py", "").parse_args(["--out", str(tmp_path)])
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    arguments.world_size = 7
    with pytest.raises(SystemExit):
        workload.check(arguments)
    assert "error: --batch-size 120 does not divide by 7 processes: take 126" in capsys.readouterr().err
    arguments.epochs = 0
    with pytest.raises(SystemExit):
        workload.check(arguments)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("stem", ["04_ddp_torchrun", "05_snapshots", "06_multinode", "06b_preemption"])
def test_plain_python_is_told_how_to_start_the_lesson(forked, stem):
    line = refusal(forked([sys.executable, launcher.ROOT / f"lessons/{stem}.py"]))
    assert "started by torchrun: torchrun --standalone --nproc-per-node 2 " in line
    assert line.endswith(f"lessons/{stem}.py")


@pytest.mark.parametrize(("stem", "data"), [("01_single_gpu", "mnist"), ("04_ddp_torchrun", "cifar10")])
def test_without_a_network_real_data_is_refused_with_one_line(forked, stem, data):
    files = {"mnist": "MNIST/raw", "cifar10": "cifar-10-batches-py"}[data]
    words, environment = launcher.command(stem, 2, "--data", data)
    line = refusal(forked(words, environment | OFFLINE))
    reason, _, cure = line.partition("): ")
    assert re.match(rf"error: cannot load {data} \(\w*Error: .*(urlopen|download)", reason), reason
    assert cure == f"use --data digits, or put the files at out/data/{files}"


def idx(path, array):
    """A file as MNIST has them: magic number, sizes, bytes."""
    path.write_bytes(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


@pytest.mark.long
def test_mnist_is_read_from_files_without_a_network(run, tmp_path):
    raw = tmp_path / "run/out/data/MNIST/raw"
    raw.mkdir(parents=True)
    for split, count in (("train", 240), ("t10k", 30)):
        digits = workload.draw_digits(count, seed=3)
        idx(raw / f"{split}-images-idx3-ubyte", digits.images.squeeze(1).numpy())
        idx(raw / f"{split}-labels-idx1-ubyte", digits.labels.numpy().astype(numpy.uint8))
    arguments = ("--epochs", 1, "--batch-size", 60, "--train-size", 200)
    result = run("03_ddp_spawn", 2, "--data", "mnist", *arguments, environment=OFFLINE)
    (row,) = launcher.read_curve(result.out, "03_ddp_spawn")
    assert row["accuracy"] * 30 % 1 == pytest.approx(0, abs=1e-9)


def test_cifar10_is_read_from_files(tmp_path, monkeypatch):
    folder = tmp_path / "data/cifar-10-batches-py"
    folder.mkdir(parents=True)
    pixels = numpy.random.default_rng(0).integers(0, 256, (10, 3072), dtype=numpy.uint8)
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": list(range(10))}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    cifar = workload.import_torchvision().datasets.cifar
    monkeypatch.setattr(cifar, "check_integrity", lambda path, md5: True)  # these are not the real files
    arguments = workload.parser("01.py", "").parse_args(["--data", "cifar10", "--out", str(tmp_path)])
    train_set, test_set = workload.load_images(arguments)
    assert (len(train_set), len(test_set)) == (50, 10)
    assert torch.equal(test_set.images, torch.from_numpy(pixels).view(10, 3, 32, 32))
    images, labels = train_set.__getitems__([3, 47])
    assert labels.tolist() == [3, 7]
    assert workload.ConvNet(images.shape[1:])(images).shape == (2, 10)


@pytest.mark.long("04_ddp_torchrun")
@pytest.mark.night
@pytest.mark.parametrize("stem", ["03_ddp_spawn", "04_ddp_torchrun"])
def test_a_killed_process_ends_the_run_and_all_the_others(start, stem):
    run = start(stem, 3, "--epochs", 1000, "--train-size", 1200)
    pids = trained(run, stem)
    assert len(pids) == 3
    os.kill(pids[-1], signal.SIGKILL)
    assert run.finish(120).code != 0


@pytest.mark.long("04_ddp_torchrun")
@pytest.mark.night
@pytest.mark.parametrize("stem", ["01_single_gpu", "03_ddp_spawn", "04_ddp_torchrun"])
def test_an_ended_launcher_leaves_no_process_behind(start, stem):
    run = start(stem, 2, "--epochs", 1000, "--train-size", 1200)
    trained(run, stem)
    run.process.terminate()
    assert run.finish(120).code != 0


@pytest.mark.night
@pytest.mark.parametrize("stem", ["03_ddp_spawn", "04_ddp_torchrun"])
def test_two_runs_at_once_do_not_meet(start, stem):
    one = start(stem, 2, *SMALL, folder="one")
    other = start(stem, 2, *SMALL, folder="other")
    assert one.finish().code == 0
    assert other.finish().code == 0


def test_a_crash_without_restarts_fails(forked):
    words, environment = launcher.command("05_snapshots", 2, *SMALL[:-1], 2, "--crash-at", 2)
    del words[words.index("--max-restarts") : words.index("--max-restarts") + 2]
    result = forked(words, environment)
    assert result.code != 0
    assert column(launcher.read_curve(result.out, "05_snapshots"), "epoch") == [1]
