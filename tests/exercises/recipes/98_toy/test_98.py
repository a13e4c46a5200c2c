"""Exercise 98: toy.

| axis | checked in |
| --- | --- |
| world size 1 to 3 | 1a |
| calls | 1a: two calls with other numbers |
"""

import pytest
from grader.testing import close, floats, run, same

# ---- what runs in each rank: a body, and what it mentions of this file


def totals(student, me, numbers):
    return [student.total(number) for number in numbers]


# ---- what is drawn, and what is right


@pytest.mark.parametrize("world_size", [2, 3, 1])
def test_1a_the_sum_on_each_process(world_size):
    """Different numbers on each process, and two calls"""
    given = floats(world_size, 2).double()
    expected = given.sum(dim=0).tolist()
    for rank, came in enumerate(run(totals, given.tolist())):
        # A submission may have sent a list of its own: go through what is expected, never through what came.
        same(f"the number of results on rank {rank}", len(came), len(expected))
        for number, total in enumerate(expected):
            close(f"the sum of call {number + 1} on rank {rank}", came[number], total, scale=1.0)
