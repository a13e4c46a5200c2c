"""Lesson 11: sharded in any way it is the same model, and the collectives are those that it prints."""

import json
import sys

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler

import launcher
import workload
from lines import check_what_it_printed, refusal
from meshes import run_probe
from parts.transformer import ImageTransformer

STEM = "11_tensor_parallel"
SIZES = ("--train-size", 1055, "--batch-size", 96, "--test-size", 397, "--epochs", 2, "--seed", 3)
WAYS = [(2, ()), (2, ("--sequence-parallel",)), (4, ()), (4, ("--sequence-parallel",))]
COUNTED = ["forward   | {}", "backward  | {}", "optimizer | {}"]


@pytest.fixture(scope="module")
def plain():
    """The curve and the weights of a loop in one process that knows nothing of DTensors."""
    workload.set_seed(3)
    train_set, test_set = workload.draw_digits(1055, seed=1), workload.draw_digits(397, seed=2)
    model, curve = ImageTransformer((1, 28, 28)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2)
    sampler = DistributedSampler(train_set, 1, 0, seed=3)
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        losses = []
        for rows in torch.tensor(list(sampler))[:960].split(96):
            loss = cross_entropy(model(train_set.images[rows]), train_set.labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        curve.append({"epoch": epoch, "loss": sum(losses) / 10, "accuracy": accuracy(model, test_set)})
    return curve, model.state_dict()


@torch.no_grad()
def accuracy(model, test_set):
    return (model(test_set.images).argmax(dim=1) == test_set.labels).sum().item() / len(test_set)


@pytest.mark.quick("2-options1")
@pytest.mark.long("4-options4")
@pytest.mark.night
@pytest.mark.parametrize(("processes", "options"), [(1, ()), *WAYS])
def test_one_curve_the_same_bytes_and_every_image_once(fork, plain, processes, options):
    result = fork(STEM, processes, *SIZES, *options, folder="first")
    curve = launcher.read_curve(result.out, STEM)
    assert launcher.difference(curve, plain[0]) == ""
    assert [row["accuracy"] for row in curve] == [row["accuracy"] for row in plain[0]]
    assert {row["world_size"] for row in curve} == {processes}
    check_what_it_printed(result.stdout, curve)
    assert {path.name for path in result.out.iterdir()} == {f"{STEM}.jsonl", f"{STEM}.pt"}

    weights = torch.load(result.out / f"{STEM}.pt", weights_only=True)
    assert {name: type(value) for name, value in weights.items()} == dict.fromkeys(plain[1], torch.Tensor)
    for name, value in plain[1].items():
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-5)
    model = ImageTransformer((1, 28, 28))
    model.load_state_dict(weights)
    assert accuracy(model, workload.draw_digits(397, seed=2)) == curve[-1]["accuracy"]
    if processes == 2 or (processes == 4 and not options):
        again = fork(STEM, processes, *SIZES, *options, folder="again")
        assert (again.out / f"{STEM}.pt").read_bytes() == (result.out / f"{STEM}.pt").read_bytes()


@pytest.mark.quick("2-options2", "2-options3")
@pytest.mark.long("4-options5")
@pytest.mark.night
@pytest.mark.parametrize(("processes", "options"), [(1, ()), (1, ("--sequence-parallel",)), *WAYS])
def test_the_collectives_and_the_gradients_of_one_step(fork, processes, options):
    """One epoch of one batch is one step, and with a rate of 1 that step is the gradient itself."""
    sizes = ("--train-size", 60, "--batch-size", 60, "--test-size", 10, "--epochs", 1, "--lr", 1)
    result = fork(STEM, processes, *sizes, *options)
    silent = ["no collective"] * 3
    reduced = ["4 all_reduce", "4 all_reduce", "no collective"]
    scattered = [*["4 reduce_scatter_tensor, 5 all_gather_into_tensor"] * 2, "10 all_reduce"]
    expected = silent if processes == 1 else scattered if options else reduced
    assert result.stdout.splitlines()[:3] == [
        line.format(count) for line, count in zip(COUNTED, expected, strict=True)
    ]

    workload.set_seed(0)
    model, digits = ImageTransformer((1, 28, 28)), workload.draw_digits(60, seed=1)
    cross_entropy(model(digits.images), digits.labels).backward()
    after = torch.load(result.out / f"{STEM}.pt", weights_only=True)
    largest = max(value.grad.abs().max() for value in model.parameters())
    for name, value in model.named_parameters():
        off = (value.detach() - after[name] - value.grad).abs().max()
        # The loss does not depend on a key's bias: softmax takes no notice of what is the same everywhere.
        assert off <= 1e-5 * largest, f"{name}: {off:.1e} of {value.grad.abs().max():.1e}"
        assert value.grad.abs().max() > 1e-4 * largest or name.endswith("key.bias"), f"{name} does not learn"


@pytest.mark.quick("2-options0")
@pytest.mark.long("4-options3")
@pytest.mark.night
@pytest.mark.parametrize(("processes", "options"), WAYS)
def test_what_each_process_holds_and_sends(forks, tmp_path, processes, options):
    command = launcher.command(STEM, processes, *options)
    result = run_probe(forks, tmp_path, "tensor_parallel_steps", command)
    assert result.code == 0, result.stderr
    everyone, sent = json.loads((tmp_path / "held.json").read_text())
    for name, (kind, shape, value) in everyone[0].items():
        others = [held[name] for held in everyone[1:]]
        layer, _, part = name.rpartition(".")
        if layer.endswith(("query", "key", "value", "up")):
            assert kind == "S(0)", name
            assert shape[0] == (128 if layer.endswith("up") else 32) // processes
        elif layer.endswith(("project", "down")) and part == "weight":
            assert kind == "S(1)", name
            assert shape == [32, (128 if layer.endswith("down") else 32) // processes]
        else:  # after two steps still the same bytes everywhere
            replicated = layer.endswith(("project", "down")) or (options and "norm" in layer)
            assert kind == ("R" if replicated else "plain"), name
            assert others == [[kind, shape, value]] * (processes - 1), name
    whole = 24 * 28 * 32 * 4  # images, positions, numbers, bytes
    if options:
        expected = {("all_gather_into_tensor", whole // processes): 20, ("reduce_scatter_tensor", whole): 16}
    else:
        expected = {("all_reduce", whole): 16}
    assert {kind: sent.count(list(kind)) for kind in map(tuple, sent)} == expected


@pytest.mark.long
def test_the_documented_command_learns(run):
    """As a reader starts it, only shorter."""
    result = run(STEM, 2, "--train-size", 1200, "--test-size", 300, "--epochs", 2)
    curve = launcher.read_curve(result.out, STEM)
    assert curve[1]["loss"] < curve[0]["loss"] - 0.02
    assert result.stderr == "" or "torch/distributed/" in result.stderr
    assert {path.name for path in result.out.iterdir()} == {f"{STEM}.jsonl", f"{STEM}.pt"}


def test_a_batch_need_not_divide(fork):
    sizes = ("--train-size", 100, "--batch-size", 50, "--test-size", 10, "--epochs", 1)
    assert len(launcher.read_curve(fork(STEM, 4, *sizes).out, STEM)) == 1


@pytest.mark.parametrize("processes", [3, 8])
def test_heads_that_do_not_divide_are_refused(fork, processes):
    line = refusal(fork(STEM, processes, refused=True))
    assert line == f"error: {processes} processes cannot share 4 heads evenly: take 1, 2 or 4"


def test_plain_python_is_told_how_to_start_the_lesson(forked):
    line = refusal(forked([sys.executable, launcher.ROOT / f"lessons/{STEM}.py"]))
    assert "torchrun --standalone --nproc-per-node 2 " in line


def test_the_help_tells_this_lessons_own_settings(fork):
    text = fork(STEM, 1, "--help").stdout
    assert "(7)" in text and "(0.1)" in text


def test_colour_images_have_a_position_for_each_row_of_each_channel():
    model = ImageTransformer((3, 32, 32))
    assert model.position.weight.shape == (96, 32)
    assert model(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 10)
