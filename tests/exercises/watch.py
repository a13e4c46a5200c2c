"""Check an exercise again whenever you save it: `make check EX=03 WATCH=1`. Stop with Ctrl-C."""

import argparse
import sys
import time
from pathlib import Path

from grader import batch, exercises
from grader.settings import STARTERS


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    option = parser.add_argument
    option("--only", required=True, metavar="03", help="the exercise, or a part of it: 03, 03.2, 03.2a")
    folder = "folder to check (default: lessons/exercises)"
    option("--submission", type=Path, default=STARTERS, help=folder)
    option("--hints", action="store_true", help="show all hints for each failed check")
    option("--seed", default="0", help="draws the inputs of the checks (default: 0)")
    out = "folder for the output of your code (default: out)"
    option("--out", type=Path, default=Path("out"), help=out)
    arguments = parser.parse_args()
    wanted = {check.partition(".")[0] for check in exercises.wanted(arguments.only)}
    if len(wanted) > 1:
        sys.exit(f"error: WATCH works with one exercise at a time, not with {arguments.only}")
    one = exercises.exercise(wanted.pop())
    batch.begin()
    more = ["--out", str(arguments.out)]
    if arguments.hints:
        more.append("--hints")
    before = None
    while True:
        while (now := saved(one, arguments.submission)) == before:
            time.sleep(0.2)
        before = now
        clear = "\033[2J\033[3J\033[H" if sys.stdout.isatty() else ""
        print(f"{clear}checking {one['id']} {one['title']} ...", flush=True)
        _, printed = batch.grade(arguments.submission, arguments.only, arguments.seed, more)
        print(clear + printed)
        names = " or ".join(one["files"][:3])
        print(f"waiting for changes in {names} (stop with Ctrl-C)", flush=True)


def saved(one, folder):
    """When each file was last written; None for one that is not there, or is being written."""
    paths = [Path(folder) / name for name in one["files"]]
    return [path.stat().st_mtime_ns if path.exists() else None for path in paths]


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print()
