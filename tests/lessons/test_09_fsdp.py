"""Lesson 09: who holds how many bytes, what a step sends, and checkpoints that outlive their run."""

import json
import os
import re
import shutil

import pytest
import torch

import workload
from tests.helpers.lines import column, refusal
from tests.helpers.probe_runs import run_probe
from tests.helpers.promises import SMALL as ALL
from tools import launcher

LESSON = launcher.ROOT / "lessons/09_fsdp.py"
SIZES = ALL["09_fsdp"]
SMALL = ("--train-size", 240, "--test-size", 1, "--epochs", 1)  # 2 steps
PARAMETERS = 32_282


def curve_of(result):
    return launcher.read_curve(result.out, "09_fsdp")


def weights_of(result):
    return (result.out / "09_fsdp.pt").read_bytes()


@pytest.fixture
def altered(forks, tmp_path):
    """Run the lesson inside a probe, as `fork` does: a measurement, or an accident."""

    def altered(what, processes, *arguments, words=(), folder="run", code=0):
        command = launcher.command("09_fsdp", processes, *arguments)
        result = run_probe(forks, tmp_path / folder, "in_a_run", command, "09_fsdp", what, *words)
        assert result.code == code, f"status {result.code}\n{result.stdout}\n{result.stderr}"
        return result

    return altered


@pytest.fixture
def whole(kept):
    """A run that nobody disturbed, on so many processes. Look at it, or copy it."""
    return lambda processes: kept("09_fsdp", processes, *SIZES)


def copy_until(result, epoch, folder):
    """What was there of a run after this epoch. `folder` is that of a run which is to go on with it."""
    shutil.copytree(result.out, folder / "out")
    (folder / "out/09_fsdp.pt").unlink()
    for path in (folder / "out").glob("09_fsdp.epoch*"):
        if int(path.name[-4:]) > epoch:
            shutil.rmtree(path)


# ---- one curve, and what each process holds ----


def part(rows, processes, rank):
    """How many rows of a tensor a process holds: what torch.chunk gives it."""
    pieces = list(map(len, torch.arange(rows).chunk(processes)))
    return pieces[rank] if rank < len(pieces) else 0


def bytes_of_parts(processes, rank):
    found = 0
    for parameter in workload.ConvNet((1, 28, 28)).parameters():
        found += 4 * part(len(parameter), processes, rank) * parameter[0].numel()
    return found


@pytest.mark.quick("2")
@pytest.mark.long("4")
@pytest.mark.night
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_a_process_holds_the_bytes_that_the_formula_says(whole, processes):
    said = whole(processes).stdout
    held = re.findall(r"^rank (\d) holds (\S+) bytes of weights, (\S+) of .+, (\S+) of", said, re.M)
    total = 0
    for rank in range(processes):
        size = bytes_of_parts(processes, rank)
        assert held[rank] == (str(rank), *[f"{size:,}"] * 3)
        total += size
    assert len(held) == processes
    assert total == 4 * PARAMETERS


def test_no_process_has_the_whole_model_at_any_time(altered):
    """While it is built: the shards of the layers before, and one layer that is about to be sharded."""
    result = altered("held", 2, *SMALL, folder="held")
    largest = 0  # bytes of a layer
    for layer in workload.ConvNet((1, 28, 28)):
        largest = max(largest, sum(4 * parameter.numel() for parameter in layer.parameters()))
    for rank in (0, 1):
        seen = json.loads((result.out.parent / f"{rank}.held.json").read_text())
        assert seen[-1] == bytes_of_parts(2, rank)
        assert max(seen) <= min(seen[-1] + largest, 4 * PARAMETERS - 1)


# ---- what the options change, and what they leave ----


def counted(result):
    """A step's collectives, the tensors it keeps for backward, the kinds it sends: the same in every step."""
    lines = re.findall("^counted (.*)", result.stdout, re.M)
    assert len(lines) >= 2 and len(set(lines)) == 1
    return json.loads(lines[0])


def activations(kept):
    """Of what backward keeps, that which has a row for each image. The rest are weights, and the loss."""
    return sum(size for shape, _, size in kept if shape[:1] == [60])


@pytest.mark.long
def test_what_the_options_save_and_that_they_change_no_byte(altered):
    plain = altered("counted", 2, *SMALL)
    sent, kept, kinds = counted(plain)
    assert sent == {"allgather": 8, "reduce": 4}  # 4 layers: forward, backward, and their gradients
    assert kinds == ["gather torch.float32", "scatter torch.float32"]
    assert activations(kept) == 2_843_040

    fewer = altered("counted", 2, *SMALL, "--checkpoint-activations", folder="fewer")
    assert counted(fewer)[0] == sent
    # Of the first five layers it keeps the 60 images, as bytes; not as floats, and not three times 16 maps.
    pixels, maps = 60 * 28 * 28, 60 * 16 * 14 * 14
    assert activations(counted(fewer)[1]) == 2_843_040 - 4 * (pixels + 3 * maps) + pixels

    whole_layers = altered("counted", 2, *SMALL, "--no-reshard", folder="whole_layers")
    assert counted(whole_layers)[0] == {"allgather": 4, "reduce": 4}

    offloaded = altered("policies", 2, *SMALL, "--offload", folder="offloaded")
    assert offloaded.stdout.count("policy: CPUOffloadPolicy(pin_memory=False)") == 8
    for result in (fewer, whole_layers, offloaded):
        assert weights_of(result) == weights_of(plain)
        # Rank 1 may print its policies after rank 0 has printed its bytes.
        lines = re.sub("(?m)^policy: .*\n", "", result.stdout).splitlines()
        assert lines[-2:] == plain.stdout.splitlines()[-2:]


@pytest.mark.long
def test_bf16_computes_in_16_bits_holds_32_and_stays_close(altered, reference):
    result = altered("counted", 2, *SIZES, "--precision", "bf16")
    sent, kept, kinds = counted(result)
    assert sent == {"allgather": 8, "reduce": 4}
    assert kinds == ["gather torch.bfloat16", "scatter torch.float32"]
    large = []
    of_the_loss = []
    for shape, kind, _ in kept:
        if len(shape) > 1 and shape[1] >= 16:
            large.append(kind)
        if shape[1:] == [10]:
            of_the_loss.append(kind)
    assert len(large) == 9 and set(large) == {"torch.bfloat16"}
    assert of_the_loss[-1] == "torch.float32"
    assert f"rank 1 holds {bytes_of_parts(2, 1):,} bytes of weights" in result.stdout
    for row, expected in zip(curve_of(result), reference(*SIZES), strict=True):
        assert 0 < abs(row["loss"] - expected["loss"]) < 5e-3 * expected["loss"]
    assert {one.dtype for one in torch.load(result.out / "09_fsdp.pt").values()} == {torch.float32}


# ---- checkpoints ----


@pytest.mark.long
def test_a_run_of_4_processes_goes_on_on_any_other_number(fork, whole, reference, tmp_path):
    results = {}
    for processes in (2, 3, 4):
        copy_until(whole(4), 1, tmp_path / f"on{processes}")
        results[processes] = result = fork("09_fsdp", processes, *SIZES, folder=f"on{processes}")
        assert "resumed after epoch 1\n" in result.stdout
        assert column(curve_of(result), "world_size") == [4, processes, processes]
        assert launcher.difference(curve_of(result), reference(*SIZES)) == ""
    assert weights_of(results[4]) == weights_of(whole(4))
    copy_until(results[3], 2, tmp_path / "again")  # and what 3 went on with, 2 finish
    result = fork("09_fsdp", 2, *SIZES, folder="again")
    assert column(curve_of(result), "world_size") == [4, 3, 2]
    assert launcher.difference(curve_of(result), reference(*SIZES)) == ""


def test_a_finished_run_is_not_trained_again(fork, whole, tmp_path):
    shutil.copytree(whole(2).out, tmp_path / "run/out")
    again = fork("09_fsdp", 2, *SIZES)
    assert again.stdout == "resumed after epoch 3\n"
    assert weights_of(again) == weights_of(whole(2))


@pytest.mark.long
def test_a_run_that_is_killed_while_it_saves_goes_on_from_the_checkpoint_before(altered, fork, whole):
    in_a_file = ("write_data", "epoch0002", "__0_0.distcp")
    killed = altered("killed", 2, *SIZES, words=in_a_file, code=1)
    assert (killed.out / "09_fsdp.epoch0002/__0_0.distcp").stat().st_size == 198
    before_it_counts = ("finish", "epoch0003", ".metadata.tmp")
    killed = altered("killed", 2, *SIZES, words=before_it_counts, code=1)
    assert "resumed after epoch 1\n" in killed.stdout
    assert (killed.out / "09_fsdp.epoch0003/__1_0.distcp").exists()
    result = fork("09_fsdp", 2, *SIZES)
    assert "resumed after epoch 2\n" in result.stdout
    assert weights_of(result) == weights_of(whole(2))
    assert column(curve_of(result), "loss") == column(curve_of(whole(2)), "loss")


@pytest.mark.night
def test_training_goes_on_while_a_checkpoint_is_written_and_does_not_change_it(
    altered, fork, whole, tmp_path
):
    late = altered("slow_disk", 2, *SIZES)
    copy_until(late, 1, tmp_path / "resumed")
    assert weights_of(fork("09_fsdp", 2, *SIZES, folder="resumed")) == weights_of(whole(2))


@pytest.mark.quick("1")
@pytest.mark.long
@pytest.mark.parametrize("epochs", [1, 3])  # at the end, or when the next one is to be saved
def test_a_checkpoint_that_cannot_be_written_ends_the_run(altered, epochs):
    result = altered("full_disk", 1, *SMALL[:-1], epochs, code=1)
    assert "No space left on device" in result.stderr and result.stdout.count("loss") <= 2


# ---- what it refuses, and a true launch ----


def test_a_checkpoint_of_other_settings_is_refused(fork, whole, tmp_path):
    copy_until(whole(2), 1, tmp_path / "run")
    line = refusal(fork("09_fsdp", 2, *SIZES, "--seed", 1, "--precision", "bf16", refused=True))
    words = "has seed 0, not 1; precision fp32, not bf16: remove it, or name another --out"
    assert line == f"error: out/09_fsdp.epoch0001 {words}"


@pytest.mark.long
def test_the_command_from_nothing_gives_the_same_bytes_and_leaves_nothing_behind(run, whole):
    result = run("09_fsdp", 2, *SIZES)
    assert weights_of(result) == weights_of(whole(2))
    files = set(os.listdir(result.out / "09_fsdp.epoch0003"))
    assert files == {".metadata", "__0_0.distcp", "__1_0.distcp"}
