"""Lesson 08's promises: one batch norm, one augmentation and one curve on any number of processes; the best
epoch, the early end, the resumption; what the boards show and the hardware does."""

import gzip
import json
import math
import os
import platform
import re
import signal
from argparse import Namespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler

import workload
from parts import loading, resnet
from parts.best import Best
from parts.board import Board, count_flops
from parts.snapshot import unseal
from tests.helpers.lines import refusal
from tests.helpers.outcomes import curve_of
from tests.helpers.promises import SMALL as ALL
from tools import launcher

STEM = "08_real_training"
SMALL = ALL[STEM]


def small_sets():
    """The images of the small runs: to train on, to validate on, to test on."""
    split = workload.split(workload.draw_digits(219, seed=1), 97)
    return *split, workload.draw_digits(61, seed=2)


def curve(result):
    return curve_of(result.out, STEM)


def recount(path, images, width=2):
    """The accuracy of these weights on these images, in one process, with plain batch norm."""
    weights = torch.load(path)
    model = resnet.ResNet18((1, 28, 28), width, nn.BatchNorm2d).to(next(iter(weights.values())).dtype)
    model.load_state_dict(weights)
    with torch.no_grad():
        right = model.eval()(images.images).argmax(dim=1) == images.labels
        return right.sum().item() / len(images)


def board(out):
    """What TensorBoard shows: for each name, the values of all epochs."""
    events = EventAccumulator(str(out / f"{STEM}.tensorboard")).Reload()
    shown = {}
    for name in events.Tags()["scalars"]:
        shown[name] = [(event.step, event.value) for event in events.Scalars(name)]
    return shown


def test_the_compilers_step_changes_nothing(monkeypatch):
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random, steps = torch.get_rng_state(), []
    model.register_forward_hook(lambda *_: steps.append(model.training))
    monkeypatch.setattr(model, "compile", lambda: steps.append("compile"))
    resnet.compile_now(nn.DataParallel(model), torch.rand(5, 1, 8, 8, generator=torch.Generator()))
    assert steps == ["compile", True]
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    for parameter in model.parameters():
        assert parameter.grad is None
    assert torch.equal(torch.get_rng_state(), random)


# ---- the model ---------------------------------------------------------------------------------


def test_the_model_is_torchvisions_resnet_18_but_for_its_first_layers():
    torch.manual_seed(0)
    theirs = workload.import_torchvision().models.resnet18(num_classes=10)
    theirs.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
    theirs.maxpool = nn.Identity()
    ours = resnet.ResNet18((3, 32, 32), 64, nn.BatchNorm2d)
    for (name, a), b in zip(theirs.state_dict().items(), ours.state_dict().values(), strict=True):
        assert a.shape == b.shape
        if a.numel() > 10_000 and name != "fc.weight":  # they begin alike
            assert b.std() / a.std() == pytest.approx(1, abs=0.05), name
        a.copy_(b)
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.allclose(theirs((images - 48.0) / 64), ours(images), atol=1e-5)


def test_flops_are_counted_as_one_would_by_hand():
    """Forward, and backward once for the weights and once for the input; the images need no gradient."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    before = model.state_dict()["2.running_mean"].clone()
    assert count_flops(model, torch.ones(5, 1, 2, 2)) == 2 * (2 * 4 * 3) + 3 * (2 * 3 * 2)
    assert torch.equal(model.state_dict()["2.running_mean"], before) and model.training
    for parameter in model.parameters():
        assert parameter.grad is None


# ---- images and the learning rate -------------------------------------------------------------


def in_epoch(epoch, indices):
    """What a sampler gives: each index with the epoch, which decides how the image is augmented."""
    return [(epoch, index) for index in indices]


def test_an_augmented_image_depends_on_the_seed_the_epoch_and_itself_only():
    images = workload.draw_digits(40, seed=1)
    augmented = loading.Augmented(images, 0, "digits")
    state, before = torch.get_rng_state(), images.images.clone()
    together, labels = augmented.__getitems__(in_epoch(3, range(40)))
    assert torch.equal(torch.get_rng_state(), state), "the training's own random numbers must not change"
    assert torch.equal(images.images, before), "the originals must not change"
    assert torch.equal(labels, images.labels)
    torch.manual_seed(1234)
    for index in (39, 7, 22):
        assert torch.equal(augmented.__getitems__([(3, index)])[0][0], together[index])
    assert len({image.numpy().tobytes() for image in together}) == 40
    assert not torch.equal(together[0], images.images[0])
    for seed, epoch in ((0, 4), (1, 3)):
        other = loading.Augmented(images, seed, "digits").__getitems__([(epoch, 0)])
        assert not torch.equal(other[0][0], together[0])


def test_only_cifar10_is_flipped():
    picture = torch.zeros(200, 1, 28, 28, dtype=torch.uint8)
    picture[:, :, 8:20, 4:12] = 255  # in the left half
    for data, flipped in (("digits", 0), ("mnist", 0), ("cifar10", 100)):
        augmented = loading.Augmented(workload.Images(picture, torch.zeros(200)), 0, data)
        images, _ = augmented.__getitems__(in_epoch(1, range(200)))
        left_half = images[..., :14].sum(dim=(1, 2, 3), dtype=int)
        right_half = images[..., 14:].sum(dim=(1, 2, 3), dtype=int)
        right = (right_half > left_half).sum()
        assert abs(right - flipped) <= (25 if flipped else 0)
        assert torch.equal(images != 0, images == 255) == (data == "cifar10")  # turned ones have soft edges


# ---- the run ----------------------------------------------------------------------------------


@pytest.fixture
def alone(kept):
    """The small run in 64 bits on one process: the curve and the weights of all others."""
    return kept(STEM, 1, *SMALL, "--double")


@pytest.mark.quick("2")
@pytest.mark.night
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_one_curve_in_64_bits(fork, alone, processes):
    """With augmentation, batch norm (which is torch's on one process), weight decay and warm-up."""
    result = fork(STEM, processes, *SMALL, "--double")
    for ours, one in zip(curve(result), curve(alone), strict=True):
        assert ours[1] == pytest.approx(one[1], rel=1e-12)
        assert (ours[0], ours[2]) == (one[0], one[2])
    weights = torch.load(result.out / f"{STEM}.pt")
    expected = torch.load(alone.out / f"{STEM}.pt")
    for name, value in weights.items():
        assert torch.allclose(value, expected[name], rtol=1e-9, atol=1e-9), name


@pytest.mark.quick("2")
@pytest.mark.long("4")
@pytest.mark.night
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_in_32_bits_the_first_steps_agree_and_every_image_counts_once(fork, processes):
    """With a low learning rate: at 0.1, ReLU's kinks made 2e-4 of five steps' rounding (six seeds)."""
    slow = (*SMALL, "--lr", 0.01)
    result = fork(STEM, processes, *slow)
    (_, loss, _), *_, (_, _, accuracy) = curve(result)
    double = fork(STEM, 1, *slow, "--double", folder="double")
    assert loss == pytest.approx(curve(double)[0][1], rel=1e-4)
    _, validation_set, test_set = small_sets()
    best = max(curve(result), key=lambda row: row[2])
    assert best[2] != accuracy or best[0] == 2, "the weights of the last epoch would pass as the best"
    assert recount(result.out / f"{STEM}.pt", validation_set) == best[2]
    tested = recount(result.out / f"{STEM}.pt", test_set)
    said = f"best: epoch {best[0]}, accuracy {best[2]:.1%}; on the test images {tested:.1%}\n"
    assert said in result.stdout
    run = json.loads((result.out / f"{STEM}.run.json").read_text())
    assert run["results"] == {"best_epoch": best[0], "test_accuracy": tested}
    assert run["settings"]["world_size"] == processes and run["settings"]["validation_size"] == 97
    assert run["versions"]["torch"] == torch.__version__ and run["machine"]["host"] == platform.node()
    weights = torch.load(result.out / f"{STEM}.pt")
    for name, value in weights.items():
        assert value.dtype in (torch.float32, torch.int64), name
    if processes == 2:
        again = fork(STEM, processes, *slow, folder="again")
        assert (again.out / f"{STEM}.pt").read_bytes() == (result.out / f"{STEM}.pt").read_bytes()


def test_an_image_is_trained_on_or_validated_on_and_the_seed_changes_nothing():
    numbered = workload.Images(torch.arange(300).view(300, 1, 1, 1), torch.arange(300))
    train_set, validation_set = workload.split(numbered, 30)
    both = torch.cat([train_set.labels, validation_set.labels])
    assert len(validation_set) == 30 and sorted(both.tolist()) == list(range(300))
    for images in (train_set, validation_set):
        assert torch.equal(images.images.flatten(), images.labels)
    assert validation_set.labels.float().mean() < 250, "of a sorted data set it would be the last class"
    torch.manual_seed(5)
    again = workload.split(numbered, 30)[1]
    assert torch.equal(validation_set.labels, again.labels)


def test_the_first_epoch_is_trained_as_it_says(alone):
    """The same epoch by hand: plain batch norm, the whole batch, the formulas of the schedule."""
    workload.set_seed(0)
    images, _, _ = small_sets()
    model = resnet.ResNet18((1, 28, 28), 2, nn.BatchNorm2d).double().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    sampler = DistributedSampler(images, num_replicas=1, rank=0, seed=0, drop_last=True)
    augmented, losses, step = loading.Augmented(images, 0, "digits"), [], 0
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        places = in_epoch(epoch, sampler)
        for first in range(0, 120, 24):
            pixels, labels = augmented.__getitems__(places[first : first + 24])
            falls = (1 + math.cos(math.pi * (step - 2.5) / 7.5)) / 2
            warm = min(1, (step + 1) / 2.5) if step < 2.5 else falls
            optimizer.param_groups[0]["lr"] = 0.1 * 24 / 60 * warm
            loss = cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
    expected = [sum(losses[:5]) / 5, sum(losses[5:]) / 5]
    printed = [loss for _, loss, _ in curve(alone)]
    assert printed == pytest.approx(expected, rel=1e-12)
    assert board(alone.out)["lr"] == [
        (1, pytest.approx(0.02 + 0.02 / 2, abs=1e-8)),
        (2, pytest.approx(0, abs=1e-8)),
    ]


@pytest.mark.long
def test_a_killed_run_ends_with_the_bytes_and_the_board_of_one_in_peace(fork):
    sizes = (*SMALL, "--epochs", 3, "--snapshot-every", 3)
    whole = fork(STEM, 2, *sizes, folder="whole")
    crashed = fork(STEM, 2, *sizes, "--crash-at", 2, folder="crashed")
    assert crashed.stdout.count("resumed in epoch 2 after step 3\n") == 1
    assert (whole.out / f"{STEM}.pt").read_bytes() == (crashed.out / f"{STEM}.pt").read_bytes()
    assert curve(whole) == curve(crashed)
    shown = board(crashed.out)
    expected = board(whole.out)
    del shown["images_per_second"], expected["images_per_second"]
    assert shown == expected
    (first, _), (second, _), (third, _) = shown["accuracy"]
    assert (first, second, third) == (1, 2, 3)


@pytest.mark.night
def test_the_run_ends_when_it_gets_no_better_and_not_otherwise(fork):
    """One validation image: the count can rise from 0 to 1, once, and then never."""
    sizes = (*SMALL, "--validation-size", 1, "--patience", 2, "--epochs", 9)
    result = fork(STEM, 2, *sizes, folder="whole")
    rows = curve(result)
    best = 1  # the first epoch with the highest accuracy
    for epoch, _, accuracy in reversed(rows):
        if accuracy == 1:
            best = epoch
    assert f"best: epoch {best}, " in result.stdout
    assert rows[-1][0] == best + 2 < 9
    crashed = fork(STEM, 2, *sizes, "--crash-at", rows[-1][0], folder="crashed")
    assert curve(crashed) == rows
    assert (crashed.out / f"{STEM}.pt").read_bytes() == (result.out / f"{STEM}.pt").read_bytes()
    last = unseal(max(result.out.glob("*.snapshot")).read_bytes())["model"]
    weights = torch.load(result.out / f"{STEM}.pt")
    assert not torch.equal(weights["13.weight"], last["13.weight"]), "those of the last epoch, not the best"
    again = fork(STEM, 2, *sizes, folder="whole")
    # The newest snapshot is from before the end of the last epoch, and only this end is repeated.
    assert again.stdout.count("loss") == 1 and curve(again) == rows
    assert f"best: epoch {best}, " in again.stdout
    other = fork(STEM, 2, *sizes, "--patience", 3, "--validation-size", 2, folder="whole", refused=True)
    assert {"patience 2, not 3", "validation_size 1, not 2"} <= set(re.split(" has |; |: ", refusal(other)))


def test_the_best_epoch_is_the_first_of_those_that_are_as_good():
    best, model = Best(), nn.Linear(1, 1)
    for epoch, correct in enumerate((0, 5, 5, 4), 1):
        model.weight.data.fill_(epoch)
        best.see(epoch, correct, model)
    assert (best.epoch, best.correct, best.weights["weight"].item()) == (2, 5, 2)
    other = Best()
    other.load_state_dict(best.state_dict())
    assert (other.epoch, other.correct, other.weights["weight"].item()) == (2, 5, 2)


@pytest.mark.night
def test_with_workers(run, fork):
    """By a true launch. Workers change nothing in the weights, and end with a process that is killed.

    They meet at a socket whose path has the name of this test in it, and 108 characters at most.
    """
    options = ("--workers", 1, "--crash-at", 3, "--profile", "--peak-tflops", 0.1)
    result = run(STEM, 2, *SMALL, "--epochs", 3, *options, folder="true")
    assert "resumed in epoch 3 after step 5\n" in result.stdout
    assert set(os.listdir(result.out)) == {
        f"{STEM}.jsonl",
        f"{STEM}.pt",
        f"{STEM}.run.json",
        f"{STEM}.lock",
        f"{STEM}.tensorboard",
        f"{STEM}.trace.json.gz",
        f"{STEM}.epoch0002-step000000005.snapshot",
        f"{STEM}.epoch0003-step000000005.snapshot",
        "ticket",
    }
    plain = fork(STEM, 2, *SMALL, "--epochs", 3, folder="plain")
    assert curve(plain) == curve(result)
    assert (plain.out / f"{STEM}.pt").read_bytes() == (result.out / f"{STEM}.pt").read_bytes()
    shown, rows = board(result.out), launcher.read_curve(result.out, STEM)
    assert shown.keys() == {"loss", "accuracy", "lr", "images_per_second", "mfu"}
    images = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    flops = count_flops(resnet.ResNet18((1, 28, 28), 2, nn.BatchNorm2d), images)
    for row, (_, loss), (_, mfu) in zip(rows, shown["loss"], shown["mfu"], strict=True):
        assert loss == pytest.approx(row["loss"])
        assert mfu == pytest.approx(row["images_per_second"] * flops / 0.2e12, rel=1e-5)
    assert len(re.findall(r"^ +\| MFU \d+\.\d% of 0.1 TFLOP/s for each process$", result.stdout, re.M)) == 3
    assert "MFU" not in plain.stdout and "mfu" not in board(plain.out)
    trace = json.loads(gzip.decompress((result.out / f"{STEM}.trace.json.gz").read_bytes()))
    names = [event.get("name", "") for event in trace["traceEvents"]]
    assert names.count("DistributedDataParallel.forward") == 5
    assert "all_reduce" in "\n".join(names)


@pytest.mark.long
def test_a_worker_prepares_on_when_all_are_told_to_stop():
    """A scheduler, or Ctrl-C, tells every process. The trainer takes a step more, and needs its images."""
    images = workload.draw_digits(240, seed=1)
    loader = loading.make_loader(images, 12, None, workers=1, device=torch.device("cpu"))
    batches = iter(loader)
    next(batches)
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(batches._workers[0].pid, number)
    assert len(list(batches)) == 19  # many more than had been prepared before


def test_the_board_is_on_the_disk_as_soon_as_it_is_shown(tmp_path):
    given = Namespace(out=tmp_path, lesson=STEM, items="images", world_size=1)
    given.profile, given.peak_tflops = False, None
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.5)
    shown = Board(given, rank=0, first=1, model=None, optimizer=optimizer, image=None)
    shown.show(1, 2.5, 0.25, 60.0)
    assert board(tmp_path) == {
        "loss": [(1, 2.5)],
        "accuracy": [(1, 0.25)],
        "images_per_second": [(1, 60.0)],
        "lr": [(1, 0.5)],
    }
    shown.writer.close()
