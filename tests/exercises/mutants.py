"""Test the tests of an exercise: each mutant must fail the check that names it, all other solutions must
pass.

python tests/exercises/mutants.py 03 --jobs 2
"""

import argparse
import sys
import tempfile
import time
import tomllib
from functools import partial
from pathlib import Path

import selftest
from grader import batch, exercises
from grader.settings import HERE, SOLUTIONS, STARTERS


def cases(identity):
    """Name, files, and the check that must fail; none if all must pass."""
    one = exercises.exercise(identity)
    solution = {name: (SOLUTIONS / name).read_text() for name in one["files"]}
    starter = {name: (STARTERS / name).read_text() for name in one["files"]}
    yield "solution", solution, ""
    for name, files, _ in selftest.overlays(one, "others.py"):
        yield f"other: {name}", solution | files, ""
    for mutant in tomllib.loads((HERE / one["stem"] / "mutants.toml").read_text())["mutant"]:
        name = mutant.get("file", one["files"][0])
        text = (starter if mutant.get("of") == "starter" else solution)[name]
        assert text.count(mutant["old"]) == 1, mutant["name"]
        yield (
            mutant["name"],
            solution | {name: text.replace(mutant["old"], mutant["new"])},
            mutant["killed_by"],
        )


def verdict(case, identity, seed):
    name, files, killer = case
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for file, text in files.items():
            Path(folder, file).parent.mkdir(exist_ok=True)
            Path(folder, file).write_text(text)
        found, said = batch.grade(folder, killer or identity, seed)
    results = {one["id"]: one for some in found.values() for one in some}
    seconds = time.monotonic() - begin
    if not results:
        return name, killer, "NO RESULT", said[-900:], seconds
    bad = {
        one["id"]: f"{one['status']}: {one['came']} (expected: {one['expected']})"
        for one in results.values()
        if one["status"] != "passed"
    }
    if not killer:
        return name, killer, "REFUSED" if bad else "accepted", str(bad or ""), seconds
    good = (
        list(bad) == [killer]
        and not bad[killer].startswith("infrastructure")
        and "check cannot read" not in bad[killer]
    )
    what = "killed" if good else "OTHERWISE" if bad else "SURVIVES"
    return name, killer, what, bad.get(killer, "") if good else str(bad), seconds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("exercise")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--grep", default="", help="only cases with this in the name, or of this check")
    parser.add_argument("--seed", default="0")
    given = parser.parse_args()
    todo = [case for case in cases(given.exercise) if given.grep in case[0] or given.grep == case[2]]
    counts = {}
    with batch.pool(min(given.jobs, len(todo))) as pool:
        for name, killer, what, came, seconds in pool.map(
            partial(verdict, identity=given.exercise, seed=given.seed), todo
        ):
            counts[what] = counts.get(what, 0) + 1
            print(f"{what:9} {seconds:5.1f}s {killer:7} {name}: {came[:400]}", flush=True)
    print(counts)
    sys.exit(bool(set(counts) - {"killed", "accepted"}))


if __name__ == "__main__":
    main()
