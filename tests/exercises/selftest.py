"""The grader, graded. For each exercise: its solution gets all points, its starter none that it has not
earned, each mutant of the solution falls at the check that is named for it, and other correct solutions get
all points too.

`graded/NN/mutants.toml` names the mutants: `old` text of the solution, `new` text in its place, and the check
that must be the first to fail. With `of = "starter"`, it is the starter that is changed: a planted bug whose
symptom is hidden. `graded/NN/other_*` are solutions that are built differently: a file, or a
folder with some of the files of an exercise that has several.
"""

import shutil
import tempfile
import tomllib
from pathlib import Path
from string import ascii_lowercase

import judge

GRADED = judge.HERE / "graded"


def cases(one):
    """(kind, name, files, the check that must fail first or None) for each submission of the matrix."""
    solution = {name: (judge.SOLUTIONS / name).read_text() for name in one["files"]}
    starter = {name: (judge.STARTERS / name).read_text() for name in one["files"]}
    found = [("solution", "solution", solution, None), ("starter", "starter", starter, None)]
    folder = GRADED / one["id"]
    for path in sorted(folder.glob("other_*")):
        if path.is_dir():
            own = {name: path / Path(name).name for name in one["files"]}
            files = solution | {name: file.read_text() for name, file in own.items() if file.exists()}
        else:
            files = solution | {one["files"][0]: path.read_text()}
        found.append(("other", path.stem, files, None))
    for mutant in tomllib.loads((folder / "mutants.toml").read_text())["mutant"]:
        name = mutant.get("file", one["files"][0])
        text = (starter if mutant.get("of") == "starter" else solution)[name]
        count = text.count(mutant["old"])
        if count != 1:
            raise SystemExit(f"error: mutant {mutant['name']!r} of {one['id']}: `old` is there {count} times")
        changed = text.replace(mutant["old"], mutant["new"])
        found.append(("mutant", mutant["name"], solution | {name: changed}, mutant["killed_by"]))
    return found


def run_case(one, case, nursery, seed=0):
    """Grade one submission of the matrix. Returns a row with what came, and whether that is as it must be."""
    kind, name, files, killed_by = case
    only = None
    if kind == "mutant" and len(one["files"]) > 1:
        # The other files are the solution's: their checks need not be run for each mutant.
        part = killed_by.rstrip(ascii_lowercase)
        only = [entry["id"] for entry in one["check"] if entry["id"].rstrip(ascii_lowercase) == part]
    folder = Path(tempfile.mkdtemp(prefix="rungs-case-"))
    try:
        for file, text in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        results = judge.grade(one, folder, nursery, seed, only)
    finally:
        shutil.rmtree(folder)
    score = sum(result.score for result in results)
    run = [result for result in results if only is None or result.id in only]
    first = next((result for result in run if result.status != "passed"), None)
    full = judge.points_of(one)
    if any(result.status == "infrastructure" for result in results):
        right, wanted = False, "no infrastructure"
    elif kind in ("solution", "other"):
        right, wanted = score == full, f"{full} points"
    elif kind == "starter":
        right, wanted = score == one.get("floor", 0), f"{one.get('floor', 0)} points"
    else:
        right, wanted = first is not None and first.id == killed_by, f"falls at {killed_by}"
    return {
        "exercise": one["id"],
        "kind": kind,
        "name": name,
        "wanted": wanted,
        "score": score,
        "of": full,
        "fell_at": first and first.id,
        "status": first.status if first else "passed",
        "came": first.came if first else "",
        "expected": first.expected if first else "",
        "seconds": round(sum(result.seconds for result in results), 2),
        "right": right,
    }


def exercise_matrix(one, nursery, told=None, only=None):
    """All rows of one exercise."""
    rows = []
    for case in cases(one):
        if only and only not in case[1]:
            continue
        rows.append(run_case(one, case, nursery))
        if told:
            told(rows[-1])
    return rows


def line(row):
    mark = "ok  " if row["right"] else "BAD "
    score = f"{judge.number(row['score'])}/{judge.number(row['of'])}"
    text = f"{mark}{row['exercise']} {row['kind']:9}{row['name']:44} {score:>6} {row['seconds']:6.2f} s"
    if row["fell_at"]:
        text += f"  {row['fell_at']} {row['status']}: {row['came']} | {row['expected']}"
    return text


if __name__ == "__main__":
    import sys

    # python tests/exercises/selftest.py 03 [part of a name]: for whoever writes an exercise
    with judge.Nursery() as nursery:
        rows = exercise_matrix(
            judge.exercise(sys.argv[1]),
            nursery,
            lambda row: print(line(row), flush=True),
            *sys.argv[2:3] and [sys.argv[2]],
        )
    print(f"{sum(row['right'] for row in rows)} of {len(rows)} as they must be")
    sys.exit(not all(row["right"] for row in rows))
