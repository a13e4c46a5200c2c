"""Lesson 16: one curve on 1, 2 and 4 processes, each token at its expert and back, and what balances them."""

import re

import pytest
import torch

from tests.helpers.lines import column
from tests.helpers.promises import SMALL as ALL
from tests.helpers.promises import check_files
from tools import launcher, lessons

STEM = "16_experts"
SMALL = ALL[STEM]
TWO = ("--experts-per-token", 2)


@pytest.fixture
def one(kept):
    """The job in one process, with one expert a token or two: its curve, and what it prints."""

    def one(*options):
        result = kept(STEM, 1, *SMALL, *options)
        return launcher.read_curve(result.out, STEM), result.stdout

    return one


def loads(stdout):
    """For each epoch, the load of each expert in each block, in percent."""
    found = re.findall(r"^block (\d)  \| load of its experts((?: +\d+%)+)$", stdout, re.M)
    epochs = []
    for (first, one), (second, other) in zip(found[::2], found[1::2], strict=True):
        assert (first, second) == ("1", "2")
        epochs.append([percents(one), percents(other)])
    return epochs


def percents(line):
    return [int(share) for share in re.findall(r"\d+", line)]


def close(curve, expected):
    """In 64 bits: what is reported has been added up in 32, which is as much as can be seen of it."""
    return column(curve, "loss") == pytest.approx(column(expected, "loss"), rel=1e-6)


@pytest.mark.long("2-options1", "4-options1")
@pytest.mark.night
@pytest.mark.parametrize("options", [(), TWO])
@pytest.mark.parametrize("processes", [2, 4])
def test_one_curve_on_any_number_of_processes(fork, one, processes, options):
    expected, stdout = one("--double", *options)
    result = fork(STEM, processes, *SMALL, "--double", *options)
    curve = launcher.read_curve(result.out, STEM)
    assert len(curve) == 2 and close(curve, expected)
    assert column(curve, "accuracy") == column(expected, "accuracy")
    assert set(column(curve, "world_size")) == {processes}
    assert loads(result.stdout) == loads(stdout)
    # What it writes, too: all but the speeds is what one process printed.
    speed = r"\S+ texts/s"
    assert re.sub(speed, "", result.stdout) == re.sub(speed, "", stdout)
    check_files(result, STEM)
    experts = torch.load(result.out / f"{STEM}.pt", weights_only=True)["blocks.0.feed_forward.up"]
    assert (experts.shape, experts.dtype) == ((4, 64, 256), torch.float64)


def test_in_32_bits_it_is_one_curve_but_for_ties(fork, one):
    """Where two experts tie, the last digit decides who gets the token: the curves may be that far apart."""
    curve = launcher.read_curve(fork(STEM, 2, *SMALL, *TWO).out, STEM)
    assert launcher.difference(curve, one(*TWO)[0], lessons.get(STEM).curve) == ""


@pytest.mark.night
def test_the_same_command_gives_the_same_bytes(fork):
    first = fork(STEM, 4, *SMALL, *TWO, folder="first")
    again = fork(STEM, 4, *SMALL, *TWO, folder="again")
    assert (first.out / f"{STEM}.pt").read_bytes() == (again.out / f"{STEM}.pt").read_bytes()


# ---- the layer, beside one that knows of no process ---------------------------------------------


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_answers_and_gradients_are_those_of_a_layer_that_sends_nothing(found, processes):
    """And for each token that leaves, or comes, hidden x 4 bytes leave: and again in the backward pass."""
    all_cases = found("one_step", STEM, processes, 16)
    for case in all_cases[0]:
        probes = [cases[case] for cases in all_cases]
        for probe in probes:
            for name, off in probe["off"].items():
                assert off <= 1e-5 * probe["sizes"][name] + 1e-12, (case, name)
            assert probe["held"] == 4 // processes
            assert (probe["dropped"] > 0) == (case == "limited")
        assert column(probes, "sent") == column(probes, "expected"), case
        has_sent = any(any(probe["sent"]) for probe in probes)
        assert has_sent == (processes > 1)


# ---- who is at work -----------------------------------------------------------------------------

# Many short steps: 176 of them, with 4 texts each.
STEPS = ("--train-size", 352, "--batch-size", 4, "--epochs", 2, "--test-size", 2, "--characters", 12)


@pytest.mark.night
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_without_the_balancing_loss_one_expert_has_most_of_the_work(fork, seed):
    loads_of = {}
    for balance in (0, 0.01):
        result = fork(STEM, 1, *STEPS, "--seed", seed, "--balance", balance, folder=str(balance))
        first, second = loads(result.stdout)[-1]
        loads_of[balance] = first + second
    assert max(loads_of[0]) > 45
    assert min(loads_of[0]) < 9
    assert max(loads_of[0.01]) < 40
    assert min(loads_of[0.01]) > 9
