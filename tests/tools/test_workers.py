"""What loader workers can do follows from what an image costs."""

import pytest
import workers


def test_what_an_image_costs():
    prepare, train = workers.cost()
    assert 0 < prepare < train < 0.1, "on a CPU, lesson 08's step costs more than its augmentation"


@pytest.mark.parametrize(
    ("prepare", "train", "cores", "expected"),
    [
        (1, 4, 1, (0, 1.0)),  # on one core there is nothing to win
        (1, 4, 2, (1, 1.25)),
        (1, 4, 8, (1, 1.25)),  # more than one would wait
        (4, 1, 2, (1, 1.25)),
        (4, 1, 8, (4, 5.0)),
        (4, 1, 3, (2, 2.5)),
    ],
)
def test_workers_and_cores(prepare, train, cores, expected):
    assert workers.advice(prepare, train, cores) == expected
