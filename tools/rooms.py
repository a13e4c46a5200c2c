"""Rooms: which files belong together (tests/rooms.toml), and what their tests cost (tests/costs.json).

`python tools/rooms.py lessons/05_snapshots.py` prints the rooms of a file, and without a file, what the
tests of each room cost.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter

from lessons import ROOT

TABLE = tomllib.loads((ROOT / "tests/rooms.toml").read_text())
ROOMS = TABLE["room"]
TIERS = ("quick", "long", "night")


def fits(path, glob):
    """Whether a path fits a glob, in which ** stands for folders too, and * does not."""
    means = {".": r"\.", "*": "[^/]*", "**": ".*"}
    return re.fullmatch(re.sub(r"\*\*|[.*]", lambda found: means[found[0]], glob), path) is not None


def of_file(path):
    """The rooms of a file, by its path from the root."""
    globs = {name: room["tests"] + room["files"] for name, room in ROOMS.items()}
    return [name for name in ROOMS if any(fits(path, glob) for glob in globs[name])]


def of_test(nodeid):
    """The room of a test; nothing if it has none."""
    path = nodeid.partition("::")[0]
    return next((name for name, room in ROOMS.items() if any(fits(path, glob) for glob in room["tests"])), "")


def git(*words, root=ROOT):
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed(base, root=ROOT):
    """The rooms of the files that have changed since this clone left `base`."""
    paths = git("diff", "--name-only", "--merge-base", base, root=root)
    found = {room for path in paths for room in of_file(path)}
    return [name for name in ROOMS if name in found]


def costs():
    """Of each test that was measured: its core seconds, its seconds, and its tier at that time."""
    return json.loads((ROOT / "tests/costs.json").read_text())


def show_costs():
    """The core seconds of each room, by tier."""
    sums = Counter()
    for nodeid, (core_seconds, _, tier) in costs().items():
        sums[of_test(nodeid), tier] += core_seconds
        sums["all", tier] += core_seconds
    print("core seconds", *(f"{tier:>7}" for tier in TIERS))
    for name in (*ROOMS, "all"):
        print(f"{name:12}", *(f"{sums[name, tier]:7,.0f}" for tier in TIERS))


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(f"{path}: {', '.join(of_file(path)) or 'in no room: add it to tests/rooms.toml'}")
    if not sys.argv[1:]:
        show_costs()
