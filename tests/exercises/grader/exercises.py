"""What the exercises are: a folder for each, named as its solution is, with `exercise.toml` in it."""

import functools
import re
import tomllib
from pathlib import Path
from typing import Any

from grader.settings import HERE

Exercise = dict[str, Any]  # what exercise.toml says, and "stem", the name of its folder
Entry = dict[str, Any]  # one check in it


@functools.cache
def manifest() -> list[Exercise]:
    """All exercises, in order: 03, 03a, 03b, 04. What is worth how much stands there and nowhere else."""
    found = []
    for path in HERE.glob("*/exercise.toml"):
        try:
            one = tomllib.loads(path.read_text()) | {"stem": path.parent.name}
        except tomllib.TOMLDecodeError as error:
            raise SystemExit(f"error: {path.relative_to(HERE)}: {error}") from None
        for entry in one["check"]:
            lacking = {"id", "title", "points", "hints"} - set(entry)
            if lacking:
                name = entry.get("id", "a check without an id")
                words = f"{name} lacks {', '.join(sorted(lacking))}"
                raise SystemExit(f"error: {path.relative_to(HERE)}: {words}")
        found.append(one)
    return sorted(found, key=lambda one: one["id"])


def exercise(identity: str) -> Exercise:
    """The exercise that is meant: 03, 3, 3A, or 03_average_gradients."""
    there = []
    for one in manifest():
        if identity.lower() in (one["id"], one["id"].removeprefix("0"), one["stem"]):
            return one
        there.append(one["id"])
    raise SystemExit(f"error: there is no exercise {identity}; the exercises are {', '.join(there)}")


def wanted(words: str) -> set[str]:
    """The checks that are meant by `03`, `3a`, `03.2` or `03.2a`, by a name or a path (`03b_ddp`,
    `lessons/exercises/03b_ddp.py`, `bug_03.py`), or several of these with commas between. Not by how a name
    begins: 03 is not 03a, and 04a.1 is not 04a.10."""
    found = set()
    for word in words.split(","):
        name = word.strip().rstrip("/").rpartition("/")[2].lower()
        in_file = of_file(name.removesuffix(".py"))
        if in_file:
            found |= in_file
            continue
        identity, _, part = name.removesuffix(".py").partition(".")
        one = exercise(identity)
        every = [entry["id"] for entry in one["check"]]
        name = re.escape(f"{one['id']}.{part}")
        meant = set()
        for check in every:
            if not part or re.fullmatch(f"{name}[a-z]?", check):
                meant.add(check)
        if not meant:
            there = ", ".join(every)
            raise SystemExit(f"error: there is no check {one['id']}.{part}. Exercise {one['id']} has {there}")
        found |= meant
    return found


def of_file(stem: str) -> set[str]:
    """The checks that look at the file of this name, where an exercise has several."""
    found = set()
    for one in manifest():
        for entry in one["check"]:
            stems = [Path(file).stem for file in entry.get("files", [])]
            if stem in stems:
                found.add(entry["id"])
    return found


def points_of(one: Exercise) -> float:
    return sum(entry["points"] for entry in one["check"])
