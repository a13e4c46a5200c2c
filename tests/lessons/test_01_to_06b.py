"""One job, one curve; one command, the same bytes; every test image counted once."""

import itertools

import pytest

from tests.helpers.lines import column
from tests.helpers.promises import SMALL, STAIRS, check_run
from tools import launcher, lessons


def counts(*processes):
    """(lesson, processes) for all steps: lessons 01 and 02 are one process, lesson 06 two agents."""
    found = []
    for lesson in map(lessons.get, STAIRS):
        for count in (1,) if lesson.is_one_process() else processes:
            found.append(pytest.param(lesson.stem, count, id=f"{lesson.number}-{count}"))
    return found


@pytest.mark.night
def test_the_default_run_learns_over_several_epochs(reference):
    accuracy = column(reference(), "accuracy")
    assert accuracy[0] < 0.90
    assert accuracy[-1] > 0.97
    better = 0
    for earlier, later in itertools.pairwise(accuracy):
        better += later > earlier
    assert better >= 4


@pytest.mark.quick("02-1", "03-2", "04-2", "05-2", "06-2", "06a-2", "06b-2")
@pytest.mark.night
@pytest.mark.parametrize(("stem", "processes"), [*counts(1)[2:], *counts(2, 3, 4)])
def test_one_curve_the_same_bytes_and_every_image_once(fork, reference, stem, processes):
    """On sizes that divide by nothing: 1,055 images lack one to a full batch, 997 make uneven shares."""
    sizes = SMALL["01_single_gpu"]
    result = fork(stem, processes, *sizes, folder="first")
    check_run(result, stem, processes, reference(*sizes))
    again = fork(stem, processes, *sizes, folder="again")
    assert (again.out / f"{stem}.pt").read_bytes() == (result.out / f"{stem}.pt").read_bytes()


@pytest.mark.quick("--seed")
@pytest.mark.long
@pytest.mark.parametrize("option", [("--seed", 1), ("--width", 24)], ids=lambda option: option[0])
def test_another_seed_or_width_is_another_curve_and_one_on_any_number_of_processes(fork, reference, option):
    stem, sizes = "04_ddp_torchrun", ("--train-size", 480, "--test-size", 60, "--epochs", 2)
    curve = launcher.read_curve(fork(stem, 2, *sizes, *option).out, stem)
    assert launcher.difference(curve, reference(*sizes, *option)) == ""
    assert launcher.difference(curve, reference(*sizes)) != ""


def test_a_second_run_starts_its_curve_anew(fork):
    for epochs in (3, 2):
        result = fork("01_single_gpu", 1, "--train-size", 240, "--epochs", epochs)
    assert column(launcher.read_curve(result.out, "01_single_gpu"), "epoch") == [1, 2]


@pytest.mark.quick("01_single_gpu")
@pytest.mark.long
@pytest.mark.parametrize("stem", ["01_single_gpu", "04_ddp_torchrun"])
def test_a_terminal_shows_a_progress_bar(run, stem):
    # `script` gives the run a terminal of its own.
    words, environment = launcher.command(stem, 2, "--train-size", 240, "--epochs", 1, "--test-size", 10)
    result = run(
        words=["script", "-qec", f"stty cols 80 rows 24; {' '.join(words)}", "/dev/null"],
        stem=stem,
        environment=environment,
    )
    assert "epoch  1:" in result.stdout
    assert "| 0/2 [" in result.stdout
