"""What the checks of several exercises need."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy

from judge.results import Verdict
from judge.trial import Trial


def megabytes(value: float) -> str:
    return f"{value / 1e6:.1f} MB"


def as_dict(value: Any) -> dict[Any, Any]:
    """What a driver hands back may be forged, and be anything."""
    return value if isinstance(value, dict) else {}


def pairs_of(world_size: int) -> Iterator[tuple[int, int]]:
    """Each rank with each other rank."""
    return itertools.permutations(range(world_size), 2)


def same_bits(got: Any, expected: Any) -> bool:
    return isinstance(got, numpy.ndarray) and numpy.array_equal(got, expected)


def run(trial: Trial, driver: str, inputs: list[Any], aborted: str, **more: Any) -> list[Any]:
    """Trial.run, with words for what gloo says by ending the process: it does this when ..."""
    try:
        return trial.run(driver, inputs, **more)
    except Verdict as verdict:
        if "SIGABRT" in verdict.came:
            verdict.came += f"; gloo does this when {aborted}"
        raise


def as_if(verdict: Verdict, known: list[str]) -> None:
    """Say in a verdict which mistake gives what came, if one is known."""
    verdict.came += f"; as if {', or '.join(known)}" if known else ""


def gates_of(trial: Trial, world_size: int, *names: str) -> list[dict[str, dict[str, Any]]]:
    """For each rank the gates of these names, each with a number that nobody knows before."""
    return [{name: {"value": trial.secret()} for name in names} for _ in range(world_size)]
