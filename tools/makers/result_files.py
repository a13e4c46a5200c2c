"""The files in results: the first line is about the run, and each other line is a row, all in JSON.

`make bench` and `make gpu-speed` write such a file into OUT/results. The numbers of the pages come from
the files that were copied from there into the folder results beside this file.
"""

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "results"


def read(path):
    """What the file says about the run, and its rows."""
    run, *rows = [json.loads(line) for line in path.read_text().splitlines()]
    return run, rows


def write(path, run, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    # All lines before the first is written: rows that are there already must survive one that is no JSON.
    lines = [json.dumps(line) + "\n" for line in (run, *rows)]
    path.write_text("".join(lines))


def nested(rows):
    """{"speed": {"lesson 01": repeats}} for a row of ["speed", "lesson 01"]."""
    found = {}
    for row in rows:
        *folders, name = row["row"]
        place = found
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = row["repeats"]
    return found


def flat(found, names=()):
    """The rows that `nested` makes this of."""
    rows = []
    for name, value in found.items():
        if isinstance(value, dict):
            rows += flat(value, (*names, name))
        else:
            rows.append({"row": [*names, name], "repeats": value})
    return rows
