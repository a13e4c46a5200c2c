"""Lesson 12: each collective in the dimension it belongs to, and who holds what."""

import json

import pytest
import torch

from tests.helpers.probe_runs import run_probe, total
from tools import launcher

STEM = "12_mesh"
GATHERED_AND_REDUCED = {
    ("forward", "all-gather", "data"): 3,  # two blocks, and what is in none
    ("backward", "all-gather", "data"): 2,  # the blocks again
    ("backward", "reduce-scatter", "data"): 3,
}
TORCHS = {"all-gather": "_allgather_base_", "all-reduce": "all_reduce"}
TORCHS |= {"reduce-scatter": "_reduce_scatter_base_"}
ADDED_UP = {("forward", "all-reduce", "tensor"): 4, ("backward", "all-reduce", "tensor"): 4}


@pytest.mark.quick("2-expected1")
@pytest.mark.long
@pytest.mark.parametrize(
    ("tensor_size", "expected"),
    [(1, GATHERED_AND_REDUCED), (2, GATHERED_AND_REDUCED | ADDED_UP), (4, ADDED_UP)],
)
def test_what_a_step_sends_and_prints_and_who_holds_what(found, fork, tensor_size, expected):
    """Weights travel in "data", and what is computed in "tensor"."""
    sizes = ("--train-size", 48, "--batch-size", 24, "--test-size", 10, "--epochs", 1)
    printed = fork(STEM, 4, *sizes, "--tensor-parallel", tensor_size).stdout.splitlines()
    for line, name in zip(printed, ("forward", "backward"), strict=False):
        counts = []
        for (when, kind, _), times in expected.items():
            if when == name:
                counts.append(f"{times} {TORCHS[kind]}")
        assert line == f"{name:9} | {', '.join(counts)}"
    assert printed[2] == "optimizer | no collective"
    probes = found("one_step", STEM, 4, 12, tensor_size)
    for probe in probes:
        sent = total(probe["sent"], "when", "kind", "dimension")
        assert {place: times for place, (times, _) in sent.items()} == expected
        assert probe["off"] < 1e-5
    for name, shape in probes[0]["sizes"].items():
        held = 0
        for probe in probes:
            held += torch.Size(probe["held"][name]).numel()
        layer = name.rpartition(".")[0]
        by_columns = layer.endswith(("query", "key", "value", "up"))
        by_rows = layer.endswith(("project", "down")) and len(shape) == 2
        # What is not sharded in "tensor" is held by all processes of a row of the mesh.
        copies = 1 if by_columns or by_rows else tensor_size
        assert held == copies * torch.Size(shape).numel(), name


@pytest.mark.parametrize("kind", ["collective", "ring"])
def test_each_group_of_a_mesh_has_the_time_limit_of_the_process_group(forks, tmp_path, kind):
    """The ring is lesson 15's: where not all processes share a text, it has a group of its own."""
    run_probe(forks, tmp_path, "does_not_come", launcher.command(STEM, 4), kind)
    for dimension in ("first", "second"):
        said, seconds = json.loads((tmp_path / dimension).read_text())
        assert "Timed out" in said and 4 < seconds < 20
