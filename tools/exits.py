"""Counts how lessons end: starts one many times by its documented command, and keeps each exit status.

A process that ends with a worker thread of gloo aborts only now and then. So each process also says whether
it had one when it ended (tests/helpers/witness): one that had none cannot abort in this way.

    python tools/exits.py 11 --processes 2 --times 300 --at-once 1 --label after --log exits.jsonl

It goes on where it was stopped, and prints a table of all that the log has.
"""

import argparse
import collections
import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import launcher
import lessons
from lessons import Lesson

WITNESS = launcher.ROOT / "tests/helpers/witness"


def start(lesson: Lesson, processes: int) -> dict:
    """The exit status of one run, its last lines if that is not 0, and what each process ended with."""
    with tempfile.TemporaryDirectory() as folder:
        seen = Path(folder, "seen")
        seen.mkdir()
        small = ("--epochs", 1, *lesson.small.split(), "--out", f"{folder}/out")
        words, environment = launcher.command(lesson.stem, processes, *small)
        run = subprocess.run(
            words,
            cwd=folder,
            env=os.environ
            | environment
            | {"OMP_NUM_THREADS": "1", "TMPDIR": folder, "PYTHONPATH": str(WITNESS), "SEEN": str(seen)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        ended_with = [path.read_text() for path in seen.iterdir()]
    said = run.stdout[-2000:] if run.returncode else ""
    return {"status": run.returncode, "said": said, "ended_with": ended_with}


def table(log: Path) -> collections.Counter:
    counts = collections.Counter()
    for line in log.read_text().splitlines() if log.exists() else ():
        row = json.loads(line)
        key = row["label"], row["lesson"], row["processes"]
        counts[(*key, "runs")] += 1
        counts[(*key, "failed")] += row["status"] != 0
        counts[(*key, "aborted")] += "SIGABRT" in row["said"] or row["status"] == -6
        counts[(*key, "looked at")] += len(row.get("ended_with", ()))
        counts[(*key, "left a thread")] += sum(found != "" for found in row.get("ended_with", ()))
    kinds = ("runs", "failed", "aborted", "looked at", "left a thread")
    print(f"| label | lesson | processes | {' | '.join(kinds)} |\n|---|---|---|{'---|' * len(kinds)}")
    for key in sorted({key[:3] for key in counts}):
        cells = (*key, *(counts[(*key, kind)] for kind in kinds))
        print(f"| {' | '.join(map(str, cells))} |")
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("lessons", help="all, or some by their numbers: 03,11")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--label", default="now")
    parser.add_argument("--log", type=Path, default=Path("exits.jsonl"))
    options = parser.parse_args()
    counts = table(options.log)
    for lesson in lessons.chosen(options.lessons):
        key = {"label": options.label, "lesson": lesson.number, "processes": options.processes}
        left = options.times - counts[(*key.values(), "runs")]
        with ThreadPoolExecutor(options.at_once) as pool, options.log.open("a") as log:
            for found in pool.map(lambda _, lesson=lesson: start(lesson, options.processes), range(left)):
                log.write(json.dumps(key | found) + "\n")
                log.flush()
    table(options.log)
