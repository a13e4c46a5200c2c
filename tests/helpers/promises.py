"""What all lessons promise of every run, and the loops in one process that theirs are compared with."""

import functools
import importlib
import os
from types import SimpleNamespace

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler

import workload
from parts import limericks
from parts.transformer import ImageTransformer
from tests.helpers.lines import check_what_it_printed, column
from tools import launcher, lessons

SMALL = {lesson.stem: tuple(lesson.promise.split()) for lesson in lessons.LESSONS}
# Lessons 01 to 06b have one job.
STAIRS = [*(lesson.stem for lesson in lessons.LADDER), "06a_any_step", "06b_preemption"]


def reads_images(stem):
    return lessons.get(stem).items == "images"


def check_files(result, stem):
    names = {f"{stem}.jsonl", f"{stem}.pt"}
    for ending in lessons.get(stem).leaves:
        names.add(ending if ending == "ticket" else f"{stem}.{ending}")
    assert set(os.listdir(result.out)) == names


def check_run(result, stem, processes, expected):
    """This curve, every test image counted once, no warning, and no file but its own."""
    curve = launcher.read_curve(result.out, stem)
    assert launcher.difference(curve, expected) == ""
    assert column(curve, "accuracy") == column(expected, "accuracy")
    assert set(column(curve, "world_size")) == {processes}
    assert result.stderr == ""
    check_files(result, stem)
    model, (_, test_set) = model_and_data(stem)
    model.load_state_dict(torch.load(result.out / f"{stem}.pt", weights_only=True))
    assert curve[-1]["accuracy"] == accuracy(model, test_set)
    if reads_images(stem):
        check_what_it_printed(result.stdout, curve)


def check_weights(path, expected, atol):
    """Whole tensors of these names, with these values."""
    weights = torch.load(path, weights_only=True)
    assert {name: type(value) for name, value in weights.items()} == dict.fromkeys(expected, torch.Tensor)
    for name, value in expected.items():
        # A key's bias has no gradient but for rounding, of which AdamW makes steps of full size.
        if atol <= 1e-5 or not name.endswith("key.bias"):
            torch.testing.assert_close(weights[name], value, rtol=0, atol=atol)


def model_and_data(stem):
    """What a lesson trains, on what, and what it is tested on."""
    given = dict(zip(SMALL[stem][::2], SMALL[stem][1::2], strict=True))
    train, test = int(given["--train-size"]), int(given["--test-size"])
    if reads_images(stem):
        kind = ImageTransformer if stem in ("11_tensor_parallel", "12_mesh") else workload.ConvNet
        return kind((1, 28, 28)), (workload.draw_digits(train, seed=1), workload.draw_digits(test, seed=2))
    length = int(given.get("--length", limericks.LENGTH))
    characters, *data = limericks.load(
        SimpleNamespace(data="limericks", train_size=train, test_size=test, length=length)
    )
    more = [int(given[name]) for name in ("--length", "--width") if name in given]
    return importlib.import_module(stem).build_model(len(characters), *more), data


@torch.no_grad()
def accuracy(model, test_set):
    """The share of images, or of characters, that it has right, counted in one process."""
    right = (model(test_set.images).argmax(dim=-1) == test_set.labels).sum().item()
    return right / test_set.labels.numel()


@functools.cache
def trained_plainly(stem):
    """The curve and the weights of a loop in one process that knows nothing of meshes: of lessons 11, 13, 15
    and 17, whose model is not lesson 01's."""
    of_images = reads_images(stem)
    seed = 3 if of_images else 0
    sizes = SMALL[stem]
    batch = int(sizes[sizes.index("--batch-size") + 1])
    workload.set_seed(seed)
    model, (train_set, test_set) = model_and_data(stem)
    sampler = DistributedSampler(train_set, 1, 0, seed=seed)
    steps = len(train_set) // batch
    curve = []
    if of_images:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        every_epoch = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2).step
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.008)
        every_step = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.008, 2 * steps, pct_start=0.2).step
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        losses = []
        for rows in torch.tensor(list(sampler))[: steps * batch].split(batch):
            inputs, labels = train_set[rows]
            loss = cross_entropy(model(inputs).flatten(0, -2), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if not of_images:
                every_step()
        if of_images:
            every_epoch()
        curve.append({"epoch": epoch, "loss": sum(losses) / steps, "accuracy": accuracy(model, test_set)})
    return curve, model.state_dict()
