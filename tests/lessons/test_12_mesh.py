"""Lesson 12: lesson 11's curve on every mesh, and each collective in the dimension it belongs to."""

import json
import re
from types import SimpleNamespace

import pytest
import torch

import launcher
import workload
from lines import check_what_it_printed, refusal
from meshes import run_probe
from parts.transformer import ImageTransformer

STEM = "12_mesh"
# 1,055 images lack one to a full batch; 997 test images are two batches of uneven size.
SIZES = ("--train-size", 1055, "--batch-size", 96, "--test-size", 997, "--epochs", 2, "--seed", 3)
MESHES = [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1), (4, 2), (4, 4)]  # processes, and how many in "tensor"


@pytest.fixture(scope="module")
def lesson_11(forks, tmp_path_factory):
    """Lesson 11 on one process: its curve and its weights."""
    folder = tmp_path_factory.mktemp("lesson_11")
    words, environment = launcher.command("11_tensor_parallel", 1, *SIZES)
    code, left = forks.run(words, folder, environment, limit=240)
    assert (code, left) == (0, []), (folder / ".err").read_text()
    weights = torch.load(folder / "out/11_tensor_parallel.pt", weights_only=True)
    return SimpleNamespace(curve=launcher.read_curve(folder / "out", "11_tensor_parallel"), weights=weights)


def tensor_parallel(processes, size):
    """The option, but where its default will do."""
    return () if size == 2 - processes % 2 else ("--tensor-parallel", size)


@pytest.mark.quick("2-2")
@pytest.mark.long("4-2", "4-4")
@pytest.mark.night
@pytest.mark.parametrize(("processes", "tensor_size"), MESHES)
def test_lesson_11s_curve_on_every_mesh(fork, lesson_11, processes, tensor_size):
    options = (*SIZES, *tensor_parallel(processes, tensor_size))
    result = fork(STEM, processes, *options, folder="first")
    curve = launcher.read_curve(result.out, STEM)
    assert launcher.difference(curve, lesson_11.curve) == ""
    assert [row["accuracy"] for row in curve] == [row["accuracy"] for row in lesson_11.curve]
    assert {row["world_size"] for row in curve} == {processes}
    check_what_it_printed(result.stdout, curve)
    assert result.stderr == ""
    assert {path.name for path in result.out.iterdir()} == {f"{STEM}.jsonl", f"{STEM}.pt"}

    weights = torch.load(result.out / f"{STEM}.pt", weights_only=True)
    assert weights.keys() == lesson_11.weights.keys()
    for name, value in lesson_11.weights.items():
        assert type(weights[name]) is torch.Tensor
        torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-5)
    if processes == 1:
        assert [row["loss"] for row in curve] == [row["loss"] for row in lesson_11.curve]
    assert curve[-1]["accuracy"] == recount(weights, 997)
    if (processes, tensor_size) == (4, 2):
        again = fork(STEM, processes, *options, folder="again")
        assert (again.out / f"{STEM}.pt").read_bytes() == (result.out / f"{STEM}.pt").read_bytes()


@torch.no_grad()
def recount(weights, test_size):
    """The accuracy of these weights, counted in one process."""
    model = ImageTransformer((1, 28, 28))
    model.load_state_dict(weights)
    digits = workload.draw_digits(test_size, seed=2)
    return (model(digits.images).argmax(dim=1) == digits.labels).sum().item() / test_size


# ---- who holds what, and who talks to whom ------------------------------------------------------

GATHERED_AND_REDUCED = [
    ["forward", "all-gather", "data", 3],  # two blocks, and what is in none
    ["backward", "all-gather", "data", 2],  # the blocks again
    ["backward", "reduce-scatter", "data", 3],
]
ADDED_UP = [["forward", "all-reduce", "tensor", 4], ["backward", "all-reduce", "tensor", 4]]


@pytest.fixture(scope="module")
def probes(forks, tmp_path_factory):
    """What the four processes of a mesh find, for each size of "tensor". Made once."""
    made = {}

    def probes(tensor_size):
        if tensor_size not in made:
            folder = tmp_path_factory.mktemp(f"tensor{tensor_size}")
            result = run_probe(forks, folder, "mesh_step", launcher.command(STEM, 4), tensor_size)
            assert result.code == 0, result.stderr
            made[tensor_size] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]
        return made[tensor_size]

    return probes


@pytest.mark.parametrize(
    ("tensor_size", "expected"),
    [(1, GATHERED_AND_REDUCED), (2, GATHERED_AND_REDUCED + ADDED_UP), (4, ADDED_UP)],
)
def test_weights_travel_in_data_and_what_is_computed_in_tensor(probes, tensor_size, expected):
    for probe in probes(tensor_size):
        assert sorted(probe["sent"]) == sorted(expected)


@pytest.mark.parametrize("tensor_size", [1, 2, 4])
def test_gradients_are_those_of_one_process(probes, tensor_size):
    assert all(probe["off"] < 1e-5 for probe in probes(tensor_size))


@pytest.mark.parametrize("tensor_size", [1, 2, 4])
def test_each_process_holds_its_part_of_every_weight(probes, tensor_size):
    found = probes(tensor_size)
    for name, shape in found[0]["sizes"].items():
        held = sum(torch.Size(probe["held"][name]).numel() for probe in found)
        layer = name.rpartition(".")[0]
        by_columns = layer.endswith(("query", "key", "value", "up"))
        by_rows = layer.endswith(("project", "down")) and len(shape) == 2
        # What is not sharded in "tensor" is held by all processes of a row of the mesh.
        copies = 1 if by_columns or by_rows else tensor_size
        assert held == copies * torch.Size(shape).numel(), name
        for probe in found:
            kinds = probe["placements"][name]
            assert kinds["data"] in ("Shard", "_StridedShard"), name
            if by_columns or by_rows:
                assert kinds["tensor"] == "Shard", name
            else:
                assert kinds.get("tensor", "Replicate") == "Replicate", name


@pytest.mark.quick("4-4 all_reduce-4 all_reduce")
@pytest.mark.night
@pytest.mark.parametrize(
    ("tensor_size", "forward", "backward"),
    [
        (1, "3 _allgather_base_", "2 _allgather_base_, 3 _reduce_scatter_base_"),
        (2, "3 _allgather_base_, 4 all_reduce", "2 _allgather_base_, 3 _reduce_scatter_base_, 4 all_reduce"),
        (4, "4 all_reduce", "4 all_reduce"),
    ],
)
def test_it_prints_the_collectives_of_a_step(fork, tensor_size, forward, backward):
    sizes = ("--train-size", 48, "--batch-size", 24, "--test-size", 10, "--epochs", 1)
    result = fork(STEM, 4, *sizes, *tensor_parallel(4, tensor_size))
    assert result.stdout.splitlines()[:3] == [
        f"forward   | {forward}",
        f"backward  | {backward}",
        "optimizer | no collective",
    ]


@pytest.mark.parametrize("kind", ["collective", "message"])
def test_each_group_of_a_mesh_has_the_time_limit_of_the_process_group(forks, tmp_path, kind):
    run_probe(forks, tmp_path, "mesh_limit", launcher.command(STEM, 4), kind)
    for dimension in ("data", "tensor"):
        said, seconds = json.loads((tmp_path / dimension).read_text())
        assert "Timed out" in said and 4 < seconds < 20


# ---- what it refuses, and a true launch ---------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "options", "message"),
    [
        (3, ("--tensor-parallel", 3), "--tensor-parallel 3 does not divide 4 heads and 3 processes: take 1"),
        (3, ("--tensor-parallel", 2), "--tensor-parallel 2 does not divide 4 heads and 3 processes: take 1"),
        (1, ("--tensor-parallel", 0), "--tensor-parallel 0 does not divide 4 heads and 1 processes: take 1"),
        (2, ("--tensor-parallel", -1), "--tensor-parallel -1 does not divide 4 heads"),
        (2, ("--batch-size", 51), "--batch-size 51 does not divide by 2 processes: take 52"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(fork, processes, options, message):
    assert message in refusal(fork(STEM, processes, *options, refused=True))


@pytest.mark.night
def test_the_documented_command_learns(run):
    """As a reader starts it, only shorter."""
    result = run(STEM, 4, "--train-size", 1200, "--test-size", 300, "--epochs", 2)
    curve = launcher.read_curve(result.out, STEM)
    assert curve[1]["loss"] < curve[0]["loss"] - 0.02
    assert result.stderr == "" or "torch/distributed/" in result.stderr
    assert not re.search("(?i)warning", result.stderr)
