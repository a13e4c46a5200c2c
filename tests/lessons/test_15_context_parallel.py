"""Lesson 15: one curve on any number of processes, attention that none computes alone, and even work."""

import importlib
import itertools
import json
import re
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler

import launcher
import workload
from lines import refusal
from meshes import run_probe
from parts import limericks
from parts.ring_attention import positions_of

STEM = "15_context_parallel"
TRAIN, BATCH, TEST, LENGTH = 38, 12, 5, 48  # two texts fill no batch
SMALL = ("--train-size", TRAIN, "--batch-size", BATCH, "--test-size", TEST, "--length", LENGTH, "--epochs", 2)
TEXTS, HEADS, SIZE = 12, 4, 16  # of the lesson


def load():
    arguments = SimpleNamespace(data="limericks", train_size=TRAIN, test_size=TEST, length=LENGTH)
    return limericks.load(arguments)


@pytest.fixture(scope="module")
def plain():
    """The curve and the weights of a loop in one process, whose attention is torch's own."""
    workload.set_seed(0)
    characters, train_set, test_set = load()
    model, curve = importlib.import_module(STEM).build_model(len(characters), LENGTH), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.008)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.008, 6, pct_start=0.2)
    sampler = DistributedSampler(train_set, 1, 0, seed=0)
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        losses = []
        for rows in torch.tensor(list(sampler))[:36].split(BATCH):
            texts, following = train_set[rows]
            loss = cross_entropy(model(texts).flatten(0, 1), following.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        curve.append({"epoch": epoch, "loss": sum(losses) / 3, "accuracy": accuracy(model, test_set)})
    return curve, model.state_dict()


@torch.no_grad()
def accuracy(model, test_set):
    right = (model(test_set.images).argmax(dim=2) == test_set.labels).sum().item()
    return right / (TEST * LENGTH)


def work(processes, order, texts=BATCH, heads=HEADS, length=LENGTH, size=SIZE):
    """How many multiply-adds each process needs: by formula."""
    ranks = range(processes)
    blocks = [2 * processes + 1 if order == "zigzag" else 4 * rank + 3 for rank in ranks]
    products = 2 + 5  # forward scores and results; backward scores again, and a product for each gradient
    return [count * products * texts * heads * (length // (2 * processes)) ** 2 * size for count in blocks]


CASES = [(1, ()), (2, ()), (2, ("--order", "contiguous")), (3, ()), (4, ())]
CASES += [(4, ("--order", "contiguous")), (4, ("--context-parallel", 2)), (4, ("--context-parallel", 1))]


@pytest.mark.quick("2-options1")
@pytest.mark.long("3-options3", "4-options6")
@pytest.mark.night
@pytest.mark.parametrize(("processes", "options"), CASES)
def test_one_curve_and_the_same_bytes(fork, plain, processes, options):
    result = fork(STEM, processes, *SMALL, *options, folder="first")
    curve = launcher.read_curve(result.out, STEM)
    assert launcher.difference(curve, plain[0]) == ""
    assert [row["accuracy"] for row in curve] == [row["accuracy"] for row in plain[0]]
    assert {row["world_size"] for row in curve} == {processes}
    assert result.stderr == ""
    assert {path.name for path in result.out.iterdir()} == {
        f"{STEM}.jsonl",
        f"{STEM}.pt",
        *(f"{STEM}.epoch000{epoch}-step000000.snapshot" for epoch in (2, 3)),
    }
    weights = torch.load(result.out / f"{STEM}.pt", weights_only=True)
    assert {name: type(value) for name, value in weights.items()} == dict.fromkeys(plain[1], torch.Tensor)
    for name, value in plain[1].items():
        # A key's bias has no gradient but for rounding, of which AdamW makes steps of full size.
        if not name.endswith("key.bias"):
            torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-4)
    again = fork(STEM, processes, *SMALL, *options, folder="again")
    assert (again.out / f"{STEM}.pt").read_bytes() == (result.out / f"{STEM}.pt").read_bytes()


@pytest.mark.parametrize(("processes", "options"), [(1, ()), (4, ()), (4, ("--context-parallel", 2))])
def test_it_prints_what_each_process_multiplies(fork, processes, options):
    sizes = ("--train-size", 12, "--batch-size", 12, "--test-size", 1, "--length", 480, "--epochs", 1)
    printed = fork(STEM, processes, *sizes, *options).stdout
    rows = 2 if options else 1
    for order in ("contiguous", "zigzag"):
        counts = work(processes // rows, order, texts=12 // rows, length=480) * rows
        millions = " ".join(f"{count / 1e6:.0f}" for count in counts)
        assert re.search(rf"^{order} +\| \d+ ms \| multiply-adds: {millions} million$", printed, re.M), (
            printed
        )


def test_a_process_that_does_not_come_is_not_waited_for_for_ever(forks, tmp_path):
    """Where not all processes share a text, the ring has a group of its own."""
    run_probe(forks, tmp_path, "ring_limit", launcher.command(STEM, 4))
    said, seconds = json.loads((tmp_path / "done").read_text())
    assert "Timed out" in said and seconds < 20


@pytest.mark.quick("3")
@pytest.mark.night
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_ring_attention_is_attention(forks, tmp_path, processes):
    command = launcher.command(STEM, processes)
    result = run_probe(forks, tmp_path, "ring_steps", command)
    assert result.code == 0, result.stderr
    probes = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(processes)]
    shard = 48 // processes
    key_bytes = 2 * 3 * shard * 5 * 8  # texts, heads, positions, numbers, bytes
    for order in ("contiguous", "zigzag"):
        found = [probe[order] for probe in probes]
        assert all(each["off"] < 1e-13 for each in found)
        assert sorted(itertools.chain.from_iterable(each["positions"] for each in found)) == list(range(48))
        assert [each["work"] for each in found] == work(processes, order, 2, 3, 48, 5)
        assert [each["correct"] for each in found] == [4 * shard] * processes
        steps = processes - 1
        for each in found:
            # Keys and values there; back again, with gradients, which go one step further, to be at home.
            assert each["forward"] == [steps, 2 * steps * key_bytes]
            back = steps + processes if processes > 1 else 0
            assert each["sent"] == [steps + back, 2 * (steps + back) * key_bytes]
            assert each["longest"] == [shard, (shard // 2) ** 2]  # never all keys, never all scores


def test_the_orders():
    assert [positions_of(rank, 2, "zigzag", 8).tolist() for rank in (0, 1)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert [positions_of(rank, 2, "contiguous", 8).tolist() for rank in (0, 1)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    assert positions_of(1, 3, "zigzag", 12).tolist() == [2, 3, 8, 9]


@pytest.mark.quick("1")
@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 3])
def test_a_killed_run_goes_on_with_fewer_processes(fork, plain, processes):
    sizes = (*SMALL, "--snapshot-every", 1)
    killed = fork(STEM, 2, *sizes, "--crash-at", 2, folder="killed", refused=True)
    assert killed.code != 0
    assert [row["epoch"] for row in launcher.read_curve(killed.out, STEM)] == [1]
    resumed = fork(STEM, processes, *sizes, folder="killed")
    assert "resumed in epoch 2 after step 1\n" in resumed.stdout
    assert launcher.difference(launcher.read_curve(resumed.out, STEM), plain[0]) == ""


REFUSED = {
    "not in chunks": (
        ("--length", 50),
        2,
        "--length 50 does not divide into 4 chunks, two for each process: take 48",
    ),
    "no chunks of three": (
        ("--length", 64),
        3,
        "--length 64 does not divide into 6 chunks, two for each process: take 60",
    ),
    "shorter than its chunks": (
        ("--length", 2),
        2,
        "--length 2 does not divide into 4 chunks, two for each process: take 4",
    ),
    "no text": (("--length", 0), 1, "--length 0 does not divide into 2 chunks, two for each process: take 2"),
    "three in pairs": (
        ("--context-parallel", 2),
        3,
        "--context-parallel 2 does not divide 3 processes: take 1",
    ),
    "shared by none": (
        ("--context-parallel", 0),
        1,
        "--context-parallel 0 does not divide 1 processes: take 1",
    ),
    "long texts": (("--length", 34000), 1, "the limericks make 0 sequences of 34000 characters, not 38"),
    "digits": (("--data", "digits"), 1, "this lesson reads limericks, not digits: leave --data out"),
    "uneven shares": (("--batch-size", 13), 2, "--batch-size 13 does not divide by 2 processes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_in_one_line(fork, case):
    options, processes, message = REFUSED[case]
    assert message in refusal(fork(STEM, processes, *SMALL, *options, refused=True))


def test_a_snapshot_of_a_different_length_is_refused(fork):
    fork(STEM, 1, *SMALL, "--epochs", 1)
    result = fork(STEM, 2, *SMALL, "--epochs", 1, "--length", 96, refused=True)
    assert result.code != 0
    assert "remove it, or name another --out\n" in result.stderr
    assert not re.search(r'File ".*/lessons/', result.stderr)


@pytest.mark.long
def test_the_documented_command_learns(run):
    """As a reader starts it, only shorter."""
    result = run(STEM, 2, "--train-size", 48, "--test-size", 4, "--epochs", 2, "--length", 192)
    curve = launcher.read_curve(result.out, STEM)
    assert curve[1]["loss"] < curve[0]["loss"] < 4.2
    assert result.stderr == ""
