"""Check an exercise again whenever you save it: `make check EX=03 WATCH=1`. Stop with Ctrl-C."""

import argparse
import sys
import time
from pathlib import Path

import judge


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    option = parser.add_argument
    option("--only", dest="exercise", required=True, metavar="03", help="the exercise")
    folder = "folder to check (default: lessons/exercises)"
    option("--submission", type=Path, default=judge.STARTERS, help=folder)
    option("--hints", action="store_true", help="show all hints for each failed check")
    option("--seed", default="0", help="draws the inputs of the checks (default: 0)")
    out = "folder for the output of your code (default: out)"
    option("--out", type=Path, default=Path("out"), help=out)
    arguments = parser.parse_args()
    try:
        (one,) = {check.partition(".")[0] for check in judge.wanted(arguments.exercise)}
    except ValueError:
        sys.exit(f"error: WATCH works with one exercise at a time, not with {arguments.exercise}")
    one = judge.exercise(one)
    with judge.Nursery() as nursery:
        nursery.start()
        before = None
        while True:
            while (now := saved(one, arguments.submission)) == before:
                time.sleep(0.2)
            before = now
            clear = "\033[2J\033[3J\033[H" if sys.stdout.isatty() else ""
            print(f"{clear}checking {one['id']} {one['title']} ...", flush=True)
            results = judge.grade(one, arguments.submission, nursery, arguments.seed)
            print(clear + judge.report(one, results, 4 if arguments.hints else 1))
            file = judge.printed.keep(one["id"], results, arguments.out)
            names = " or ".join(one["files"][:3])
            print(f"{file}\nwaiting for changes in {names} (stop with Ctrl-C)", flush=True)


def saved(one, folder):
    """When each file was last written; None for one that is not there, or is being written."""
    paths = [Path(folder) / name for name in one["files"]]
    return [path.stat().st_mtime_ns if path.exists() else None for path in paths]


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print()
