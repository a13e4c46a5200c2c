"""Lesson 06a's promises: what a snapshot in the middle of an epoch holds, and the same bytes."""

import importlib
import re

import pytest
import torch
import torch.distributed as dist

import launcher
from weights import FORGETS, curve_of, run_changed

STEM = "06a_any_step"
SMALL = ("--train-size", 480, "--test-size", 20, "--batch-size", 24, "--epochs", 3)  # 20 steps an epoch
EVERY = ("--snapshot-every", 3)


def check_crash(start, processes):
    """Killed after step 20 of epoch 2, it resumes after step 18, and ends with the same bytes."""
    whole = start(STEM, processes, *SMALL, *EVERY, folder="whole")
    crashed = start(STEM, processes, *SMALL, *EVERY, "--crash-at", 2, folder="crashed")
    assert crashed.stdout.count("resumed in epoch 2 after step 18\n") == 1
    assert [int(epoch) for epoch in re.findall(r"^epoch +(\d+) ", crashed.stdout, re.M)] == [1, 2, 3]
    assert (crashed.out / f"{STEM}.pt").read_bytes() == (whole.out / f"{STEM}.pt").read_bytes()
    assert curve_of(crashed.out, STEM) == curve_of(whole.out, STEM)
    assert {path.name for path in crashed.out.iterdir()} == {
        *(f"{STEM}.{ending}" for ending in ("jsonl", "pt", "snapshot")),
        "ticket",
    }


@pytest.mark.long
def test_its_documented_command_survives_a_crash_with_the_same_bytes(run):
    check_crash(run, 2)


@pytest.mark.quick("4")
@pytest.mark.night
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_a_crashed_run_ends_with_the_bytes_of_one_that_never_crashed(fork, processes):
    check_crash(fork, processes)


def test_an_interval_longer_than_an_epoch_saves_at_the_end_of_each(fork):
    result = fork(STEM, 2, *SMALL[:-1], 2, "--snapshot-every", 100, "--crash-at", 1)
    assert [row["epoch"] for row in launcher.read_curve(result.out, STEM)] == [1, 2]
    assert result.stdout.splitlines()[0] == "resumed in epoch 1 after step 20"


def test_a_finished_run_repeats_only_the_report_of_its_last_epoch(fork):
    first = fork(STEM, 2, *SMALL)
    weights, curve = (first.out / f"{STEM}.pt").read_bytes(), curve_of(first.out, STEM)
    again = fork(STEM, 2, *SMALL)
    assert (again.out / f"{STEM}.pt").read_bytes() == weights
    assert curve_of(again.out, STEM) == curve
    lines = again.stdout.splitlines()
    assert lines[0] == "resumed in epoch 3 after step 20"
    assert [line.partition(" |")[0] for line in lines[1:]] == ["epoch  3"]
    assert again.stderr == "", "PyTorch takes it for a scheduler that is stepped before the optimizer"


@pytest.mark.quick("4-2")
@pytest.mark.long
@pytest.mark.parametrize(("first", "then"), [(4, 2), (2, 3), (1, 4), (3, 1)])
def test_another_number_of_processes_goes_on_with_the_same_curve(fork, reference, first, then):
    """Stopped in the middle of an epoch, so that the order of the images and the loss so far must fit too."""
    sizes = ("--train-size", 1200, "--test-size", 300, "--epochs", 4)  # 10 steps an epoch
    crashed = fork(STEM, first, *sizes, *EVERY, "--crash-at", 2, refused=True)
    assert crashed.code != 0
    result = fork(STEM, then, *sizes, *EVERY)
    assert "resumed in epoch 2 after step 9\n" in result.stdout
    assert launcher.difference(launcher.read_curve(result.out, STEM), reference(*sizes)) == ""


FORGETS = FORGETS | {
    "random state": (
        '        workload.set_random_state(processes[rank % len(processes)]["random"], device)\n',
        "",
    ),
    "random state of the others": ("processes[rank % len(processes)]", "processes[0]"),
    "step": ('state["step"], state["processes"]', '0, state["processes"]'),
    "epoch": ('= state["epoch"],', '= state["epoch"] - 1,'),
    "loss so far": ("loss_sum += sum(", "0 * sum("),
    "order of the gradients": ("    settle(model, train_set.images[:1].to(device))\n", ""),
    "random number of the loader": ("    train_loader.generator", "    train_set.generator"),
}


@pytest.mark.quick("momentum", "nothing")
@pytest.mark.night
@pytest.mark.parametrize("part", FORGETS)
def test_whatever_a_snapshot_forgets_is_seen(forks, tmp_path, part):
    """A lesson that forgets this part does not end with the bytes of an uninterrupted run."""
    results = [
        run_changed(forks, tmp_path, STEM, 4, *FORGETS[part], *SMALL, *EVERY, *crash, folder=folder)
        for folder, crash in (("peace", ()), ("crash", ("--crash-at", 2)))
    ]
    assert (results[0] == results[1]) == (part == "nothing")


def test_the_pass_that_does_not_count_leaves_no_mark(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    layers = torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(), torch.nn.Linear(3, 1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    before = [tensor.clone() for tensor in (*model.state_dict().values(), torch.get_rng_state())]
    importlib.import_module(STEM).settle(model, torch.ones(4, 2))
    after = [*model.state_dict().values(), torch.get_rng_state()]
    assert all(torch.equal(was, now) for was, now in zip(before, after, strict=True))
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    dist.destroy_process_group()
