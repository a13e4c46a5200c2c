"""Lesson 11: sharded in any way it is the same model, and the collectives are those that it prints."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import launcher
import workload
from meshes import total
from parts.transformer import ImageTransformer

STEM = "11_tensor_parallel"
WAYS = [(2, ()), (2, ("--sequence-parallel",)), (4, ()), (4, ("--sequence-parallel",))]
COUNTED = ["forward   | {}", "backward  | {}", "optimizer | {}"]


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
def test_what_each_process_holds_and_sends(found, processes, options):
    probes = found("one_step", STEM, processes, 11, *options)
    for name, (kind, shape, _) in probes[0]["held"].items():
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
            assert all(probe["held"][name] == probes[0]["held"][name] for probe in probes), name
    whole = 24 * 28 * 32 * 4  # images, positions, numbers, bytes
    times = {"all-gather": 20, "reduce-scatter": 16} if options else {"all-reduce": 16}
    for probe in probes:
        assert total(probe["sent"], "kind") == {kind: [n, n * whole] for kind, n in times.items()}


def test_a_batch_need_not_divide(fork):
    sizes = ("--train-size", 100, "--batch-size", 50, "--test-size", 10, "--epochs", 1)
    assert len(launcher.read_curve(fork(STEM, 4, *sizes).out, STEM)) == 1


def test_the_help_tells_this_lessons_own_settings(fork):
    text = fork(STEM, 1, "--help").stdout
    assert "(7)" in text and "(0.1)" in text


def test_colour_images_have_a_position_for_each_row_of_each_channel():
    model = ImageTransformer((3, 32, 32))
    assert model.position.weight.shape == (96, 32)
    assert model(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 10)
