"""Lesson 05's promises: a crash costs an epoch and no byte, whenever it comes."""

import re

import pytest
import torch

import chaos
import launcher
from weights import FORGETS, curve_of, run_changed

STEM, BEFORE = "05_snapshots", "04_ddp_torchrun"
SMALL = ("--train-size", 480, "--test-size", 20, "--batch-size", 24, "--epochs", 4)


def weights_of(result, stem):
    return torch.load(result.out / f"{stem}.pt", weights_only=True)


def check_crash(crashed, fork):
    """Killed in epoch 3, it prints each epoch once, and ends with what lesson 04 gives in peace."""
    whole = fork(BEFORE, 2, *SMALL, folder="lesson 04")
    assert crashed.stdout.count("resumed after epoch 2\n") == 1
    assert [int(epoch) for epoch in re.findall(r"^epoch +(\d+) ", crashed.stdout, re.M)] == [1, 2, 3, 4]
    assert curve_of(crashed.out, STEM) == curve_of(whole.out, BEFORE)
    expected, found = weights_of(whole, BEFORE), weights_of(crashed, STEM)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    names = {f"{STEM}.{ending}" for ending in ("jsonl", "pt", "snapshot")}
    assert {path.name for path in crashed.out.iterdir()} == names


def test_its_documented_command_survives_a_crash_with_the_weights_of_lesson_04(run, fork):
    check_crash(run(STEM, 2, *SMALL, "--crash-at", 3), fork)


def test_a_crash_in_the_first_epoch_is_survived_too(fork):
    result = fork(STEM, 2, *SMALL, "--crash-at", 1)
    assert [row["epoch"] for row in launcher.read_curve(result.out, STEM)] == [1, 2, 3, 4]
    assert "resumed" not in result.stdout


def test_a_finished_run_is_not_trained_again(fork):
    weights = (fork(STEM, 2, *SMALL).out / f"{STEM}.pt").read_bytes()
    again = fork(STEM, 2, *SMALL)
    assert (again.out / f"{STEM}.pt").read_bytes() == weights
    assert again.stdout == "resumed after epoch 4\n"
    assert again.stderr == ""


@pytest.mark.quick("2-3")
@pytest.mark.night
@pytest.mark.parametrize(("first", "then"), [(2, 1), (2, 3), (4, 2)])
def test_another_number_of_processes_goes_on_with_the_same_losses(fork, reference, first, then):
    crashed = fork(STEM, first, *SMALL, "--crash-at", 3, refused=True)
    assert crashed.code != 0
    result = fork(STEM, then, *SMALL)
    assert "resumed after epoch 2\n" in result.stdout
    for row, expected in zip(launcher.read_curve(result.out, STEM), reference(*SMALL), strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-6)


@pytest.mark.long
def test_on_three_processes_the_losses_are_the_same_within_a_rounding_error(fork):
    """The first backward pass after a start adds up in another order: what settle is for, in lesson 06a."""
    whole = fork(STEM, 3, *SMALL, folder="whole")
    crashed = fork(STEM, 3, *SMALL, "--crash-at", 3, folder="crashed")
    for row, expected in zip(curve_of(crashed.out, STEM), curve_of(whole.out, STEM), strict=True):
        assert row == pytest.approx(expected, rel=1e-6)


FORGETS = FORGETS | {"epoch": ('first = state["epoch"] + 1', "first = 1")}


@pytest.mark.quick("momentum", "nothing")
@pytest.mark.night
@pytest.mark.parametrize("part", FORGETS)
def test_whatever_the_snapshot_forgets_is_seen(forks, tmp_path, part):
    """It holds no random state. So the model is without dropout; lesson 06a's test has a model with it."""
    results = [
        run_changed(forks, tmp_path, STEM, 2, *FORGETS[part], *SMALL, *crash, folder=folder, DROPOUT="0")
        for folder, crash in (("peace", ()), ("crash", ("--crash-at", 3)))
    ]
    assert (results[0] == results[1]) == (part == "nothing")


def test_killed_with_half_a_snapshot_on_the_disk_it_ends_with_the_same_bytes(forks, tmp_path):
    """Rank 0 is killed in its first save, when half of the bytes are written."""
    order = tmp_path / "killed/.die-in-save"
    order.parent.mkdir()
    order.write_text("0.5")
    peace, killed = (
        run_changed(forks, tmp_path, STEM, 2, *FORGETS["nothing"], *SMALL, folder=folder, DROPOUT="0")
        for folder in ("peace", "killed")
    )
    assert killed == peace
    assert not order.exists()


def test_killed_at_random_moments_it_ends_with_the_same_bytes(forks, tmp_path):
    """One of each kind. In mid-save, rank 0 is killed when a part of the temporary file is on the disk."""
    kinds = dict.fromkeys(("one process", "all processes", "in mid-save", "SIGTERM"), 1)
    rows = chaos.chaos(len(kinds), tmp_path, processes=(2,), kinds=kinds, forks=forks, lesson=STEM)
    assert sorted(row["kind"] for row in rows) == sorted(kinds)


@pytest.mark.night
def test_killed_twelve_times_in_mid_save_it_ends_with_the_same_bytes(forks, tmp_path):
    rows = chaos.chaos(12, tmp_path, processes=(2,), kinds={"in mid-save": 1}, forks=forks, lesson=STEM)
    assert len(rows) == 12
