"""Write a tiny exercise to begin from: `make exercise ID=14 NAME=toy`.

    python -m tools.exercise 14 toy

It is complete: a solution with one cut, a test, a mutant that the test must find, and another solution.
`make exercise` also cuts its starter. Replace one file after another (tests/exercises/README.md), and run
mutants.py after each.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXERCISES = Path("tests", "exercises")

SOLUTION = '''"""Exercise {id}: {words}. 2 points.

Say here what the exercise is for, and what one has to know to begin.

    {id}.1 (2 points)  the sum over all processes

The grader calls the function on several processes, with a different number on each.
"""

import torch
import torch.distributed as dist


def total(number):
    """The sum of all processes' numbers, a float, on each process."""
    # cut {id}.1: the sum over all processes
    found = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(found)
    return found.item()
    # end
'''

EXERCISE = """id = "{id}"
title = "{title}"
files = ["{stem}.py"]

[[check]]
id = "{id}.1a"
title = "the sum of all numbers, on each process"
points = 2
hints = [
    "Which collective gives every process the sum?",
    "dist.all_reduce works on a tensor, and writes the sum into it.",
    "Make a tensor of the number, call dist.all_reduce with it, and return tensor.item().",
]
"""

TEST = '''"""Exercise {id}: {words}.

| axis | checked in |
| --- | --- |
| world size 1 to 3 | 1a |
| calls | 1a: two calls with other numbers |
"""

import pytest
from grader.testing import close, floats, run


# ---- what runs in each rank: a body, and what it mentions of this file


def totals(student, me, numbers):
    return [student.total(number) for number in numbers]


# ---- what is drawn, and what is right


@pytest.mark.parametrize("world_size", [2, 3, 1])
def test_1a_the_sum_on_each_process(world_size):
    """Different numbers on each process, and two calls"""
    given = floats(world_size, 2).double()
    for rank, came in enumerate(run(totals, given.tolist())):
        for number, total in enumerate(came, 1):
            expected = given[:, number - 1].sum().item()
            close(f"the sum of call {{number}} on rank {{rank}}", total, expected, scale=1.0)
'''

MUTANTS = '''[[mutant]]
name = "nothing is exchanged"
killed_by = "{id}.1a"
old = """    dist.all_reduce(found)
"""
new = ""
'''

OTHERS = '''"""Other solutions of exercise {id}."""

import torch.distributed as dist


def gathered():
    """All numbers gathered, and added up on each process."""

    def total(number):
        numbers = [None] * dist.get_world_size()
        dist.all_gather_object(numbers, number)
        return float(sum(numbers))
'''


NEEDS = """\
error: an exercise needs a number (two digits, and a letter after a notebook with one) and a name \
(small letters and numbers, with _ between words): make exercise ID=14 NAME=toy"""


def main(identity: str, name: str) -> None:
    if not re.fullmatch(r"\d\d[a-z]?", identity) or not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        sys.exit(NEEDS)
    for folder in (EXERCISES, Path("solutions"), Path("lessons", "exercises")):
        for taken in (ROOT / folder).glob(f"{identity}_*"):
            sys.exit(f"error: {identity} is taken, by {folder / taken.name}: choose another number")
    stem, words = f"{identity}_{name}", name.replace("_", " ")
    folder = EXERCISES / stem
    templates = {
        Path("solutions", f"{stem}.py"): SOLUTION,
        folder / "exercise.toml": EXERCISE,
        folder / f"test_{identity}.py": TEST,
        folder / "mutants.toml": MUTANTS,
        folder / "others.py": OTHERS,
    }
    (ROOT / folder).mkdir()
    for path, text in templates.items():
        filled = text.format(id=identity, stem=stem, words=words, title=words.capitalize())
        (ROOT / path).write_text(filled)
        print(path)
    print(f"Now replace what is in them, and run python {EXERCISES / 'mutants.py'} {identity}")


if __name__ == "__main__":
    main(*sys.argv[1:])
