"""Lesson 15: attention that no process computes alone, even work, kill and resume."""

import json
import re

import pytest

from tests.helpers.lines import column
from tests.helpers.promises import SMALL as ALL
from tools.testbed import pretending

STEM = "15_context_parallel"
SMALL = ALL[STEM]


def work(processes, order, texts, length, heads=4, size=16):
    """How many multiply-adds each process needs: by formula."""
    products = 2 + 5  # forward scores and results; backward scores again, and a product for each gradient
    block = products * texts * heads * (length // (2 * processes)) ** 2 * size
    if order == "zigzag":
        return [(2 * processes + 1) * block] * processes
    return [(4 * rank + 3) * block for rank in range(processes)]


@pytest.mark.parametrize(("processes", "options"), [(1, ()), (4, ()), (4, ("--context-parallel", 2))])
def test_it_prints_what_each_process_multiplies(fork, processes, options):
    sizes = ("--train-size", 12, "--batch-size", 12, "--test-size", 1, "--length", 480, "--epochs", 1)
    printed = fork(STEM, processes, *sizes, *options).stdout
    rows = 2 if options else 1
    for order in ("contiguous", "zigzag"):
        counts = work(processes // rows, order, 12 // rows, 480) * rows
        millions = " ".join(f"{count / 1e6:.0f}" for count in counts)
        said = rf"^{order} +\| \d+ ms \| multiply-adds: {millions} million$"
        assert re.search(said, printed, re.M), printed


@pytest.mark.quick("3")
@pytest.mark.night
@pytest.mark.parametrize("processes", [1, 3, 4])
def test_ring_attention_is_attention(found, processes):
    probes = found("one_step", STEM, processes, 15)
    shard = 48 // processes
    key_bytes = 2 * 3 * shard * 5 * 8  # texts, heads, positions, numbers, bytes
    for order in ("contiguous", "zigzag"):
        each_finds = column(probes, order)
        assert column(each_finds, "work") == work(processes, order, 2, 48, heads=3, size=5)
        positions = []
        steps = processes - 1
        for each in each_finds:
            assert each["off"] < 1e-13
            positions += each["positions"]
            # Keys and values there; back again, with gradients, which go one step further, to be at home.
            assert each["forward"] == [steps, 2 * steps * key_bytes]
            back = steps + processes if processes > 1 else 0
            assert each["sent"] == [steps + back, 2 * (steps + back) * key_bytes]
            assert each["longest"] == [shard, (shard // 2) ** 2]  # never all keys, never all scores
        assert sorted(positions) == list(range(48))


@pytest.mark.skipif(bool(pretending.missing(2)), reason=pretending.missing(2))
@pytest.mark.skipif(pretending.real() > 0, reason="has real GPUs")
@pytest.mark.long
def test_the_ring_shares_no_communicator_with_fsdp(fork, tmp_path):
    """NCCL runs the operations of a communicator one after the other."""
    fork(STEM, 2, *SMALL, gpus=2)
    for path in (tmp_path / "run/.reports").glob("*.json"):
        kinds = {}
        for line in json.loads(path.read_text())["operations"]:
            communicator, kind = line.split()[:2]
            kinds.setdefault(communicator, set()).add(kind)
        assert {"message"} in kinds.values() or not kinds
        for each in kinds.values():
            assert not each > {"message"}, kinds
