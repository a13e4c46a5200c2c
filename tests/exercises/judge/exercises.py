"""What the exercises are: a folder for each, named as its solution is, with `exercise.toml` in it."""

import functools
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import by_path

from judge.settings import HERE

Exercise = dict[str, Any]  # what exercise.toml says, and "stem", the name of its folder
Entry = dict[str, Any]  # one check in it

CHECKS: dict[str, Callable] = {}


@functools.cache
def manifest() -> list[Exercise]:
    """All exercises, in order: 03, 03a, 03b, 04. What is worth how much stands there and nowhere else."""
    return sorted((read(path) for path in HERE.glob("*/exercise.toml")), key=lambda one: one["id"])


def read(path: Path) -> Exercise:
    """One exercise. Its number stands in the name of its folder, too: two that differ would be two truths."""
    try:
        one = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise SystemExit(f"error: {path.relative_to(HERE.parent.parent)} is no TOML: {error}") from None
    if one["id"] != path.parent.name.partition("_")[0]:
        raise SystemExit(f"error: the id in {path.parent.name}/exercise.toml is {one['id']}: make them agree")
    return one | {"stem": path.parent.name}


def exercise(identity: str) -> Exercise:
    """The exercise of this number. Its number may come without the zero: 3, 3a."""
    for one in manifest():
        if one["id"] == identity or one["id"] == f"0{identity}":
            return one
    lines = [f"  {one['id']:4} {one['title']}" for one in manifest()]
    raise SystemExit("\n".join([f"error: there is no exercise {identity}. There are:", *lines]))


def wanted(words: str) -> set[str]:
    """The checks that are meant by `03`, `3a`, `03.2` or `03.2a`, or several of these with commas between.
    Not by how a name begins: 03 is not 03a, and 04a.1 is not 04a.10."""
    found = set()
    for word in words.split(","):
        identity, _, part = word.strip().partition(".")
        one = exercise(identity)
        every = [entry["id"] for entry in one["check"]]
        name = re.escape(f"{one['id']}.{part}")
        meant = {check for check in every if not part or re.fullmatch(f"{name}[a-z]?", check)}
        if not meant:
            there = ", ".join(every)
            raise SystemExit(f"error: there is no check {one['id']}.{part}. Exercise {one['id']} has {there}")
        found |= meant
    return found


def points_of(one: Exercise) -> float:
    return sum(entry["points"] for entry in one["check"])


def check(identity: str) -> Callable[[Callable], Callable]:
    """Mark a function as the check that has this name in exercise.toml."""

    def mark(function):
        CHECKS[identity] = function
        return function

    return mark


def check_function(identity: str) -> Callable:
    if identity not in CHECKS:
        stem = exercise(identity.partition(".")[0])["stem"]
        by_path.load(HERE / stem / "check.py", f"check_{stem}")
    return CHECKS[identity]
