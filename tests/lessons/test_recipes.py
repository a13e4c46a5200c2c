"""The recipes: what the page quotes is what the scripts print, and the cures have one process's numbers."""

import json
import math
import random
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import workload
from parts import loading
from recipes import faults, skip, streaming
from tests.helpers.lines import check_curve, column
from tools import launcher
from tools.lessons import ROOT, Curve
from tools.testbed import pretending

PAGE = (ROOT / "lessons/pages/recipes.md").read_text()


@pytest.fixture
def recipe(forked, start):
    """Run a recipe by torchrun; answers with the lines that it printed."""

    def recipe(name, processes, *arguments, restarts=0, folder="run", environment=None, gpus=0):
        words = ["torchrun", "--standalone", "--nproc-per-node", processes, "--max-restarts", restarts]
        words += [ROOT / f"lessons/recipes/{name}.py", *arguments]
        if gpus and pretending.real():  # CUDA cannot fork
            words[0] = Path(sys.executable).parent / "torchrun"
            result = start("", words=words, folder=folder, environment=environment, gpus=gpus).finish()
        else:
            result = forked(words, environment, folder, gpus)
        if result.code and "error: this GPU has no bf16: " in result.stderr:
            pytest.skip("this GPU has no bf16, and the recipe refuses to start")
        assert result.code == 0, f"status {result.code}\n{result.stdout}\n{result.stderr}"
        return result.stdout.splitlines()

    return recipe


def quoted(name):
    """The blocks of output that follow a recipe's command on the page."""
    after = PAGE[PAGE.index(f"lessons/recipes/{name}.py\n```") :]
    return re.search(r"```text\n(.*?)```", after, re.S)[1].splitlines()


@pytest.mark.quick("2")
@pytest.mark.night
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_each_model_fails_as_the_page_says_and_its_cure_has_one_processs_gradients(recipe, processes):
    lines = recipe("your_model", processes)
    if processes == 2:
        assert lines == quoted("your_model")
    results = [line.partition(" | ")[2] for line in lines]
    mistakes, cures = results[0::2], results[1::2]
    mistakes[1], cures[1] = cures[1], mistakes[1]  # in torch 2.13, two forward passes are no mistake
    assert cures == ["same"] * 6
    assert not any(result == "same" for result in mistakes)


# ---- streaming

FEW = ("--train-size", 1200, "--test-size", 300, "--epochs", 2, "--lr", 0.3)  # 9 steps each


@pytest.fixture
def one_process(recipe, tmp_path):
    """The curve of streaming.py on one process."""
    recipe("streaming", 1, *FEW, folder="one")
    return launcher.read_curve(tmp_path / "one/out", "streaming")


@pytest.fixture
def images():
    return workload.draw_digits(1200, seed=1)


def test_an_epoch_has_no_image_twice_and_an_order_of_its_own(tmp_path, images):
    streaming.write_shards(tmp_path / "shards", images)
    stream = streaming.Stream(tmp_path / "shards", 0, list(range(12)), 10)
    found = []
    for epoch in (1, 2):
        stream.begin(epoch, 0)
        seen = []
        for chunk, _ in stream:
            for image in chunk:
                seen.append(tuple(image.flatten().tolist()))
        assert len(seen) == len(set(seen)) > 900
        found.append(seen)
    assert found[0] != found[1]


@pytest.mark.quick("2-0")
@pytest.mark.night
@pytest.mark.parametrize(("processes", "workers"), [(2, 0), (3, 0), (12, 0), (2, 2)])
def test_streaming_has_the_curve_of_one_process(recipe, one_process, tmp_path, processes, workers):
    recipe("streaming", processes, *FEW, "--workers", workers)
    check_curve(tmp_path / "run/out", "streaming", one_process, processes)


@pytest.mark.long
def test_a_stopped_run_goes_on_without_the_shards_that_are_finished(recipe, one_process, tmp_path):
    assert recipe("streaming", 2, *FEW, "--stop-after", 6) == []
    shards = tmp_path / "run/out/shards"
    stream = streaming.Stream(shards, 0, list(range(12)), 10)
    finished = set()
    for lane in stream.shards:
        end = 0
        for shard in lane:
            end += stream.sizes[shard]
            if end <= 60:
                finished.add(shard)
    assert len(finished) > 20
    for shard in finished:
        (shards / f"{shard:02}.pt").unlink()
    assert len(recipe("streaming", 3, *FEW, "--epochs", 1)) == 1
    check_curve(tmp_path / "run/out", "streaming", one_process[:1])


@pytest.mark.night
def test_with_join_each_process_reads_its_lanes_to_their_end(recipe, one_process, tmp_path):
    recipe("streaming", 2, *FEW, "--join")
    curve = launcher.read_curve(tmp_path / "run/out", "streaming")
    assert column(curve, "epoch") == [1, 2]
    assert curve[0]["loss"] != one_process[0]["loss"]  # it has taken steps more


def test_skipped_indices_are_not_loaded_and_the_same_batch_follows(images):
    class Counted(loading.Augmented):
        loaded = 0

        def __getitems__(self, pairs):
            self.loaded += len(pairs)
            return super().__getitems__(pairs)

    batches = []
    for way, expected in (skip.skip_batches, 360), (skip.skip_indices, 60):
        counted = Counted(images, 0, "digits")
        sampler = loading.Sampler(images, num_replicas=1, rank=0)
        sampler.set_epoch(3)
        batches.append(next(way(counted, sampler, 5)))
        assert counted.loaded == expected
    (one, labels), (two, same_labels) = batches
    assert one.equal(two) and labels.equal(same_labels)


# ---- mixed precision

SMALL = ("--train-size", 144, "--validation-size", 24, "--test-size", 50, "--batch-size", 24, "--width", 2)


@pytest.fixture
def mixed(recipe, tmp_path):
    """Run mixed_precision.py, which may be killed once; answers with its losses and its last line."""

    def mixed(precision, *arguments, folder):
        words = (*SMALL, "--epochs", 3, "--precision", precision, *arguments)
        more = {"restarts": 1, "environment": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}}
        *_, last = recipe("mixed_precision", 2, *words, folder=folder, **more)
        curve = launcher.read_curve(tmp_path / folder / "out", "mixed_precision")
        return column(curve, "loss"), last

    return mixed


@pytest.mark.long
def test_a_resumed_fp16_run_skips_no_more_steps_if_it_has_the_scalers_state(mixed):
    high = ("--first-scale", 2**19)
    losses, last = mixed("fp16", *high, folder="uninterrupted")
    assert last == "skipped 3 steps since the last start, scale 65,536"
    resumed, last = mixed("fp16", *high, "--crash-at", 2, folder="resumed")
    assert last == "skipped 0 steps since the last start, scale 65,536"
    assert resumed == losses
    resumed, last = mixed("fp16", *high, "--crash-at", 2, "--forget-scaler", folder="forgotten")
    assert last == "skipped 3 steps since the last start, scale 65,536"
    assert resumed[:2] == losses[:2] and resumed[2] != losses[2]


@pytest.mark.night
def test_bf16_resumes_with_the_same_losses_and_is_close_to_fp32(mixed):
    exact, _ = mixed("fp32", folder="fp32")
    losses, last = mixed("bf16", folder="bf16")
    assert last.startswith("best: ")
    assert losses != exact and losses == pytest.approx(exact, rel=0.02)
    assert mixed("bf16", "--crash-at", 2, folder="resumed")[0] == losses


# ---- LoRA


@pytest.mark.skipif(
    not find_spec("safetensors"), reason="needs lessons/parts/fine_tuning.txt: make tools installs it"
)
@pytest.mark.long("2")
@pytest.mark.night
@pytest.mark.parametrize("processes", [2, 3])
def test_lora_has_one_processs_losses_and_its_file_the_names_it_began_with(recipe, tmp_path, processes):
    from safetensors.torch import load_file

    few = ("--epochs", 2, "--train-size", 192, "--test-size", 100)
    one = recipe("lora", 1, *few, folder="one")
    lines = recipe("lora", processes, *few, folder="run")
    curve = launcher.read_curve(tmp_path / "run/out", "lora")
    expected = launcher.read_curve(tmp_path / "one/out", "lora")
    assert launcher.difference(curve, expected) == ""
    assert one[-2] == lines[-2] == "trained 1,024 of 27,754 parameters"
    accuracy = re.search(r"accuracy +(.*?%)", lines[1])[1]
    assert lines[-1] == f"the merged file, read by one process: accuracy {accuracy}"

    files = {path.stem: load_file(path) for path in (tmp_path / "run/out/lora").glob("*.safetensors")}
    base, merged, adapters = files["base"], files["model"], files["adapter_model"]
    assert base.keys() == merged.keys()
    changed = {name for name in base if not base[name].equal(merged[name])}
    projections = ["layers.0.self_attn.q_proj", "layers.0.self_attn.v_proj"]
    projections += ["layers.1.self_attn.q_proj", "layers.1.self_attn.v_proj"]
    assert changed == {f"model.{name}.weight" for name in projections}
    expected = set()
    for name in projections:
        expected.add(f"base_model.model.model.{name}.lora_A.weight")
        expected.add(f"base_model.model.model.{name}.lora_B.weight")
    assert adapters.keys() == expected
    name = "model.layers.1.self_attn.q_proj"
    a = adapters[f"base_model.model.{name}.lora_A.weight"]
    b = adapters[f"base_model.model.{name}.lora_B.weight"]
    assert torch.allclose(merged[f"{name}.weight"], base[f"{name}.weight"] + b @ a * 2, atol=1e-6)


# ---- Muon


@pytest.mark.long("gather-2-2")
@pytest.mark.night
@pytest.mark.parametrize(
    ("how", "processes", "collectives"),
    [("gather", 2, 2), ("gather", 3, 2), ("torch", 2, 27), ("shards", 2, 0)],
)
def test_muon_needs_whole_matrices(recipe, tmp_path, how, processes, collectives):
    few = ("--train-size", 1200, "--test-size", 100, "--epochs", 2)
    recipe("muon", 1, *few, "--how", "torch", folder="one")  # torch.optim.Muon itself
    lines = recipe("muon", processes, *few, "--how", how)
    assert lines[-1] == f"collectives in a step of Muon, for 2 matrices: {collectives}"
    expected = launcher.read_curve(tmp_path / "one/out", "muon")
    curve = launcher.read_curve(tmp_path / "run/out", "muon")
    off = 0
    for one, other in zip(expected, curve, strict=True):
        off = max(off, abs(other["loss"] / one["loss"] - 1))
    if how == "shards":
        assert off > 0.005
    else:
        assert off < 0.002


# ---- GPUs of different speeds, failures, torch.compile


@pytest.mark.long("two")
@pytest.mark.night
@pytest.mark.parametrize("speeds", [(3, 1), (3, 1, 2.5)], ids=["two", "three"])
def test_unequal_shares_have_one_processs_losses_and_the_mean_of_means_has_not(recipe, tmp_path, speeds):
    few = ("--train-size", 600, "--test-size", 100, "--epochs", 2, "--lr", 0.3)
    recipe("unequal", 1, *few, folder="one")
    lines = recipe("unequal", len(speeds), *few, "--speeds", *speeds)
    assert lines[0].endswith("[90, 30]" if len(speeds) == 2 else "[55, 19, 46]")
    recipe("unequal", len(speeds), *few, "--speeds", *speeds, "--mean-of-means", folder="mistake")
    expected = launcher.read_curve(tmp_path / "one/out", "unequal")
    assert launcher.difference(launcher.read_curve(tmp_path / "run/out", "unequal"), expected) == ""
    assert launcher.difference(launcher.read_curve(tmp_path / "mistake/out", "unequal"), expected) != ""


def test_the_simulation_of_failures_agrees_with_the_arithmetic(monkeypatch, capsys):
    hours, between, step, restart = 100_000, 4.0, 10 / 3600, 1 / 6
    whole = faults.full_restart(hours, between, 0.5, restart, random.Random(1))
    # Half a snapshot's time is lost per failure, and the restart.
    kept = 0.5 / (math.exp(0.5 / between) - 1)
    assert whole == pytest.approx(kept / (between + restart), rel=0.01)
    part = faults.one_group(hours, between, 16, step, restart, random.Random(1))
    assert part == pytest.approx(1 - (restart / 16 + step) / between, rel=0.001)
    monkeypatch.setattr("sys.argv", ["faults.py"])
    faults.main()
    printed = re.findall(r"[0-9.]+(?=%| hours)", capsys.readouterr().out)
    assert f"| 16,384, 30 minutes | {printed[0]} hours | {printed[1]}% | {printed[2]}% |" in PAGE


def without_shares(lines):
    return [re.sub(r"at +\d+%", "at some share", line) for line in lines]


@pytest.mark.night
def test_what_torch_compile_compiles_is_what_the_page_says(recipe):
    # Dynamo warns of its own code, and the fork server takes a warning for an error.
    lines = recipe("compile", 2, environment={"PYTHONWARNINGS": "default"})
    assert without_shares(lines) == without_shares(quoted("compile"))
    shares = {line.split(" | ")[1].strip(): int(re.search(r"at +(\d+)%", line)[1]) for line in lines[:4]}
    whole = shares.pop("before, one graph")
    assert whole > 1.5 * max(shares.values())


# ---- GPUs: the machine's own, or simulated ones

needs_gpus = pytest.mark.skipif(bool(pretending.missing()), reason=pretending.missing())
FEW_ON_GPUS = {
    "lora": ("--epochs", 2, "--train-size", 192, "--test-size", 100),
    "mixed_precision": (*SMALL, "--epochs", 2),
    "muon": ("--epochs", 2, "--train-size", 1200, "--test-size", 100),
    "streaming": FEW,
    "unequal": ("--epochs", 2, "--train-size", 600, "--test-size", 100, "--speeds", 3, 1),
}


@needs_gpus
@pytest.mark.long("1-unequal", "2-lora", "2-muon", "2-streaming")
@pytest.mark.night
@pytest.mark.parametrize("name", FEW_ON_GPUS)
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_recipe_has_the_cpus_curve_on_gpus(recipe, tmp_path, name, gpus):
    """On one GPU, the two processes share it, as in the lessons."""
    if name == "lora" and not find_spec("safetensors"):
        pytest.skip("needs lessons/parts/fine_tuning.txt: make tools installs it")
    few = FEW_ON_GPUS[name]
    recipe(name, 2, *few, folder="cpu")
    recipe(name, 2, *few, folder="gpus", gpus=gpus, environment={"SHARE_GPU": "1"})
    cpu = launcher.read_curve(tmp_path / "cpu/out", name)
    on_gpus = launcher.read_curve(tmp_path / "gpus/out", name)
    limits = Curve(early=1e-5, late=1e-5)
    if pretending.real() or name == "mixed_precision":
        limits = Curve(early=1e-2, late=1e-2, accuracy=0.05)
    assert launcher.difference(on_gpus, cpu, limits) == ""
    if not pretending.real():
        memory = []  # of all processes on all GPUs
        for path in (tmp_path / "gpus/.reports").iterdir():
            memory += json.loads(path.read_text())["memory"]
        assert any(memory), "it has used the CPU"


@needs_gpus
@pytest.mark.long("your_model")
@pytest.mark.night
@pytest.mark.parametrize("name", ["your_model", "compile"])
def test_a_recipe_that_computes_on_the_cpu_does_so_where_there_is_a_gpu(recipe, name):
    lines = recipe(name, 2, gpus=1, environment={"PYTHONWARNINGS": "default"})
    assert without_shares(lines) == without_shares(quoted(name))
