"""Lesson 10: one curve under every schedule, and timelines that are the schedules."""

import importlib
import itertools
import json
from argparse import Namespace

import pytest
import torch

import workload
from parts import timeline
from tests.helpers.lines import column
from tests.helpers.promises import SMALL, check_run

STEM = "10_pipeline"
SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved")
ODD = SMALL[STEM]
ONE_STEP = ("--train-size", 16, "--batch-size", 16, "--test-size", 3, "--epochs", 1, "--timeline")


def load(path):
    return torch.load(path, weights_only=True)


def same(weights, others):
    """The same names in the same order, and the same bits."""
    assert list(weights) == list(others)
    return all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.long
def test_the_weights_are_the_same_bits_under_every_schedule_and_on_any_number(fork, kept, reference):
    curve = reference(*ODD)
    expected = {1: load(kept("01_single_gpu", 1, *ODD).out / "01_single_gpu.pt")}
    cases = [("naive", 1), ("naive", 2), ("naive", 4), ("gpipe", 1), ("gpipe", 3), ("gpipe", 4)]
    cases += [("1f1b", 1), ("1f1b", 2), ("1f1b", 4)]
    cases += [("interleaved", 1), ("interleaved", 2), ("interleaved", 3), ("interleaved", 4)]
    for schedule, processes in cases:
        words = ("--microbatches", 12, "--schedule", schedule)
        result = fork(STEM, processes, *ODD, *words, folder=f"{schedule}{processes}")
        check_run(result, STEM, processes, curve)
        assert len(result.stdout.splitlines()) == 2
        weights = load(result.out / f"{STEM}.pt")
        # One micro-batch is lesson 01's computation, to the bit. Twelve are added up in another order,
        # but in the same one wherever the stages are, and whoever comes first.
        count = 1 if schedule == "naive" else 12
        assert same(weights, expected.setdefault(count, weights)), (schedule, processes)
    assert not same(expected[1], expected[12])


@pytest.mark.quick("interleaved-2-3-45")
@pytest.mark.long("1f1b-3-4-44")
@pytest.mark.night
@pytest.mark.parametrize(
    ("schedule", "processes", "microbatches", "size"),
    # Rounds of another length than the number of processes: 3, and 5 twice.
    [("1f1b", 3, 4, 44), ("interleaved", 2, 3, 45), ("interleaved", 4, 10, 50)],
)
def test_few_micro_batches_and_a_batch_that_no_number_of_processes_divides(
    fork, reference, schedule, processes, microbatches, size
):
    sizes = (*ODD, "--batch-size", size)
    words = ("--microbatches", microbatches, "--schedule", schedule)
    check_run(fork(STEM, processes, *sizes, *words), STEM, processes, reference(*sizes))


def test_images_that_fill_the_last_micro_batch_do_not_count():
    class AlwaysRight:
        def eval(self, images, target):
            assert len(images) == 8
            return torch.nn.functional.one_hot(target, 10)

    lesson, digits = importlib.import_module(STEM), workload.draw_digits(3, seed=2)
    assert lesson.count_correct(AlwaysRight(), digits, torch.device("cpu"), Namespace(microbatches=8)) == 3


# ---- the timeline ----


def expected_order(schedule, rank, processes, microbatches):
    """What a process works on, in order: (kind, stage, micro-batch)."""
    chunks = 1
    rounds = [range(microbatches)]
    if schedule == "interleaved":
        chunks = 2
        rounds = [range(first, first + processes) for first in range(0, microbatches, processes)]
    forward = []
    backward = []
    for numbers in rounds:  # each round visits one of the process's stages after the other
        for chunk in range(chunks):
            for number in numbers:
                forward.append(("forward", rank + chunk * processes, number))
                backward.append(("backward", rank + (chunks - 1 - chunk) * processes, number))
    before = {  # forwards before the first backward
        "naive": 1,
        "gpipe": microbatches,
        "1f1b": processes - rank,
        "interleaved": processes + 2 * (processes - 1 - rank) + 1,
    }[schedule]
    before = min(before, len(forward))
    order = forward[:before]
    for number, event in enumerate(backward):
        order += [event, *forward[before + number : before + number + 1]]
    return order, before


def needed(stage, kind, number, stages):
    if kind == "forward":
        return [(stage - 1, "forward", number)] if stage else []
    return [(stage + 1, "backward", number)] if stage < stages - 1 else [(stage, "forward", number)]


@pytest.mark.quick("1f1b-2")
@pytest.mark.long("gpipe-2", "interleaved-4")
@pytest.mark.night
@pytest.mark.parametrize(
    ("schedule", "processes"),
    [
        ("naive", 2),
        ("naive", 4),
        ("gpipe", 2),
        ("gpipe", 4),
        ("1f1b", 2),
        ("1f1b", 4),
        ("interleaved", 1),
        ("interleaved", 2),
        ("interleaved", 4),
    ],
)
def test_the_timeline_of_a_real_run_is_the_schedule(fork, schedule, processes):
    result = fork(STEM, processes, *ONE_STEP, "--schedule", schedule, "--pretend-milliseconds", 50)
    values = json.loads((result.out / f"{STEM}.timeline.json").read_text())
    microbatches = 1 if schedule == "naive" else 8
    chunks = 2 if schedule == "interleaved" and processes > 1 else 1
    events = values.pop("events")
    assert values == {
        "schedule": schedule,
        "world_size": processes,
        "stages": chunks * processes,
        "microbatches": microbatches,
        "pretend_milliseconds": 50,
    }
    values["events"] = events
    check_order(values, schedule, processes, microbatches)
    check_times(values)
    # On an ideal machine this order comes to it: test_idle_shares_are_those_of_torchs_lists.
    formula = (processes - 1) / (microbatches * chunks + processes - 1)
    assert timeline.idle_in_theory(values) == pytest.approx(formula, abs=1e-12)
    held = []
    for row in events:
        held.append(str(max(event["held"] for event in row)))
    assert result.stdout.splitlines()[-1] == (
        f"last step: idle {timeline.idle(values):.1%}, in theory {formula:.1%}; "
        f"micro-batches held by each process at most: {', '.join(held)}"
    )


def check_order(values, schedule, processes, microbatches):
    if schedule == "interleaved" and processes == 1:
        schedule = "1f1b"
    for rank, row in enumerate(values["events"]):
        order, before = expected_order(schedule, rank, processes, microbatches)
        assert [(event["kind"], event["stage"], event["microbatch"]) for event in row] == order
        # A stage holds a micro-batch from its forward to its backward.
        held = 0
        steps = []
        for kind, _, _ in order:
            held += 1 if kind == "forward" else -1
            steps.append(held)
        assert column(row, "held") == steps
        assert max(steps) == before


def check_times(values):
    """A clock: nobody does two things at once, or begins before what he needs has ended."""
    ended = {}
    for row in values["events"]:
        for event, later in itertools.pairwise(row):
            assert event["end"] <= later["begin"]
        for event in row:
            ended[event["stage"], event["kind"], event["microbatch"]] = event["end"]
    parts = values["stages"] * values["microbatches"]
    seconds = values["pretend_milliseconds"] / 1000 / parts
    begins = []
    for event in itertools.chain(*values["events"]):
        least = seconds if event["kind"] == "forward" else 2 * seconds
        assert event["end"] - event["begin"] >= least - 1e-6
        for need in needed(event["stage"], event["kind"], event["microbatch"], values["stages"]):
            assert ended[need] <= event["begin"]
        begins.append(event["begin"])
    assert min(begins) == 0


def test_a_timeline_shows_the_last_of_many_steps_and_changes_no_number(fork):
    words = (*ODD, "--microbatches", 12)
    plain = fork(STEM, 2, *words, folder="plain")
    seen = fork(STEM, 2, *words, "--timeline", folder="seen")
    assert (plain.out / f"{STEM}.pt").read_bytes() == (seen.out / f"{STEM}.pt").read_bytes()
    values = json.loads((seen.out / f"{STEM}.timeline.json").read_text())
    check_order(values, "1f1b", 2, 12)
    check_times(values)
