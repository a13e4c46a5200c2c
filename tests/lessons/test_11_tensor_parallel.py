"""Lesson 11: sharded in any way it is the same model, and the collectives are those that it prints."""

import pytest
import torch

from parts.transformer import ImageTransformer
from tests.helpers.probe_runs import total

STEM = "11_tensor_parallel"
WAYS = [(2, ()), (2, ("--sequence-parallel",)), (4, ()), (4, ("--sequence-parallel",))]


@pytest.mark.quick("2-options2", "2-options3")
@pytest.mark.long("4-options5")
@pytest.mark.night
@pytest.mark.parametrize(("processes", "options"), [(1, ()), (1, ("--sequence-parallel",)), *WAYS])
def test_it_prints_the_collectives_of_one_step(fork, processes, options):
    sizes = ("--train-size", 60, "--batch-size", 60, "--test-size", 10, "--epochs", 1)
    silent = ["no collective"] * 3
    reduced = ["4 all_reduce", "4 all_reduce", "no collective"]
    scattered = [*["4 reduce_scatter_tensor, 5 all_gather_into_tensor"] * 2, "10 all_reduce"]
    expected = silent if processes == 1 else scattered if options else reduced
    forward, backward, optimizer, *_ = fork(STEM, processes, *sizes, *options).stdout.splitlines()
    assert forward == f"forward   | {expected[0]}"
    assert backward == f"backward  | {expected[1]}"
    assert optimizer == f"optimizer | {expected[2]}"


@pytest.mark.quick("2-options0")
@pytest.mark.long("4-options3")
@pytest.mark.night
@pytest.mark.parametrize(("processes", "options"), WAYS)
def test_what_each_process_holds_and_sends(found, processes, options):
    probes = found("one_step", STEM, processes, 11, *options)
    for name, (shape, _) in probes[0]["held"].items():
        layer, _, part = name.rpartition(".")
        if layer.endswith(("query", "key", "value", "up")):
            assert shape[0] == (128 if layer.endswith("up") else 32) // processes
        elif layer.endswith(("project", "down")) and part == "weight":
            assert shape == [32, (128 if layer.endswith("down") else 32) // processes]
        else:  # after two steps still the same bytes everywhere
            for probe in probes[1:]:
                assert probe["held"][name] == probes[0]["held"][name], name
    whole = 24 * 28 * 32 * 4  # images, positions, numbers, bytes
    expected = {"all-reduce": [16, 16 * whole]}
    if options:
        expected = {"all-gather": [20, 20 * whole], "reduce-scatter": [16, 16 * whole]}
    for probe in probes:
        assert total(probe["sent"], "kind") == expected


def test_colour_images_have_a_position_for_each_row_of_each_channel():
    model = ImageTransformer((3, 32, 32))
    assert model.position.weight.shape == (96, 32)
    assert model(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 10)
