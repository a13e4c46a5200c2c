"""Rooms: which files belong together (tests/rooms.toml), and what their tests cost (tests/costs.json).

`python tools/rooms.py lessons/05_snapshots.py` prints the rooms of a file.
"""

import json
import re
import subprocess
import sys
import tomllib

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
    """The rooms of the files that have changed since this clone left `base`: none, where it has not."""
    left = git("merge-base", "HEAD", base, root=root)
    if not left or left == git("rev-parse", "HEAD", root=root):
        return []
    found = {room for path in git("diff", "--name-only", left[0], root=root) for room in of_file(path)}
    return [name for name in ROOMS if name in found]


def costs():
    """Of each test that was measured: its core seconds, its seconds, and its tier at that time."""
    return json.loads((ROOT / "tests/costs.json").read_text())


def table() -> str:
    """CONTRIBUTING's table: the core seconds of each room, by tier."""
    # A test whose file has another name now is measured by the next `make costs`.
    known = {nodeid: cost for nodeid, cost in costs().items() if of_test(nodeid)}
    sums = {name: dict.fromkeys(TIERS, 0) for name in (*ROOMS, "all")}
    for nodeid, (core_seconds, _, tier) in known.items():
        for name in (of_test(nodeid), "all"):
            sums[name][tier] += core_seconds
    lines = [f"| room | {' | '.join(f'`{tier}`' for tier in TIERS)} |", f"| ---{' | ---:' * len(TIERS)} |"]
    for name, row in sums.items():
        lines.append(f"| {name} | {' | '.join(f'{row[tier]:,.0f}' for tier in TIERS)} |")
    return "\n".join([*lines, "", f"{len(known):,} tests were measured."]) + "\n"


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(f"{path}: {', '.join(of_file(path))}")
