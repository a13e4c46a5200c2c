"""Test the tests of the exercises: the solution and the other solutions must get all points, the starter none
that it has not earned, and each mutant of the solution must fail the check that names it, and pass the checks
that this one needs. Other checks are not run.

    python tests/exercises/mutants.py 03 --jobs 2

tests/exercises/README.md explains `mutants.toml` and `other_solution.py` in the folder of an exercise.
"""

import argparse
import ast
import re
import tempfile
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from grader import batch
from grader.exercises import exercise, manifest, points_of
from grader.settings import HERE, SOLUTIONS, STARTERS
from grader.wording import number

MUTANTS, OTHERS = 8, 1  # what a finished exercise has at least


@dataclass(frozen=True)
class Case:
    """One submission. A mutant must fail the check `killed_by`. If it has the patterns `came` and `hint`, it
    shows what a student reads first."""

    identity: str
    kind: str
    name: str
    files: dict[str, str]
    killed_by: str = ""
    came: str = ""
    hint: str = ""


def cases(one):
    """Each submission with which an exercise is tested: solution, starter, other solutions, mutants."""
    solution = {}
    starter = {}
    for name in one["files"]:
        solution[name] = (SOLUTIONS / name).read_text()
        starter[name] = (STARTERS / name).read_text()
    found = [
        Case(one["id"], "solution", "solution", solution),
        Case(one["id"], "starter", "starter", starter),
    ]
    for name, files in overlays(one):
        found.append(Case(one["id"], "other", name, solution | files))
    for mutant in tomllib.loads((HERE / one["stem"] / "mutants.toml").read_text())["mutant"]:
        file = mutant.get("file", one["files"][0])
        text = (starter if mutant.get("of") == "starter" else solution)[file]
        if text.count(mutant["old"]) != 1:
            words = f"`old` is there {text.count(mutant['old'])} times"
            raise SystemExit(f"error: mutant {mutant['name']!r} of {one['id']}: {words}")
        files = solution | {file: text.replace(mutant["old"], mutant["new"])}
        patterns = mutant.get("came", ""), mutant.get("hint", "")
        found.append(Case(one["id"], "mutant", mutant["name"], files, mutant["killed_by"], *patterns))
    return found


def overlays(one):
    """The name and the files of each other solution of an exercise, which has only what differs from ours."""
    path = HERE / one["stem"] / "other_solution.py"
    if not path.exists():
        return
    functions = []
    common = []
    for node in ast.parse(path.read_text()).body[1:]:
        if isinstance(node, ast.FunctionDef):
            functions.append(node)
        else:
            common.append(node)
    for node in functions:
        parts = {}
        if len(one["files"]) > 1:
            for part in node.body[1:]:
                parts[f"{one['stem']}/{part.name}.py"] = part.body
        else:
            parts[one["files"][0]] = node.body
        files = {}
        for file, body in parts.items():
            files[file] = laid_over(SOLUTIONS / file, written(common), body)
        yield node.name, files


def laid_over(path, common, body):
    """The text of a file, then what all other solutions share, then this body without its docstring."""
    text = path.read_text()
    for part in body:
        if isinstance(part, ast.ClassDef) and f"\nclass {part.name}" in text:
            part.bases = part.bases or [ast.Name(part.name)]
    return f"{text}\n{common}\n{written(body[1:])}\n"


def written(nodes):
    return ast.unparse(ast.Module([*nodes], []))


def graded(case, seed):
    """The results of the checks, and what pytest has printed."""
    one = exercise(case.identity)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in case.files.items():
            Path(folder, name).parent.mkdir(exist_ok=True)
            Path(folder, name).write_text(text)
        # Of a mutant the check that is named, and what must pass before it: others would tell nothing.
        results, said = batch.grade(folder, case.killed_by or one["id"], seed)
    return results.get(one["id"], []), said


def verdict(case, seed):
    """Whether a submission is graded as it must be, and a line about it."""
    one = exercise(case.identity)
    begin = time.monotonic()
    results, said = graded(case, seed)
    score = 0
    total = 0
    failed = []
    is_broken = False
    for result in results:
        score += result["score"]
        total += result["points"]
        if result["status"] != "passed":
            failed.append(result)
        if result["status"] == "infrastructure":
            is_broken = True

    words = ""
    if failed:
        first = failed[0]
        words = f"{first['id']} {first['status']}: {first['came']} | {first['expected']}"
    if not results:
        right, words = False, f"pytest gave no results: {said[-900:]}"
    elif is_broken:
        right = False
    elif case.kind == "mutant":
        right = is_killed(case, failed)
        if case.hint:
            words += f" | hint: {hint_of(failed)}"
        words = words or f"nothing failed, and it must fail {case.killed_by}"
    elif case.kind == "starter":
        right = score == one.get("floor", 0)
    else:
        right = score == points_of(one)
    mark = "ok  " if right else "BAD "
    seconds = f"{time.monotonic() - begin:6.2f} s"
    points = f"{number(score):>3} of {number(total):3}"
    text = f"{mark}{case.identity} {case.kind:9}{case.name:44} {points}{seconds}  {words}"
    return right, text.rstrip()


def hint_of(failed):
    """What a student reads first about the first check that failed."""
    return failed[0]["hints"][0] if failed and failed[0]["hints"] else ""


def is_killed(case, failed):
    """Whether a mutant has failed the check that is to find it, and that alone, and in the words that it
    must."""
    if [result["id"] for result in failed] != [case.killed_by]:
        return False
    came = failed[0]["came"]
    if "check cannot read" in came:
        return False
    return bool(re.search(case.came, came) and re.search(case.hint, hint_of(failed)))


def unfinished(one):
    """What a finished exercise has and this one has not, in words. A new one falls short of all of it, and
    is graded all the same."""
    kinds = Counter()
    killers = set()
    for case in cases(one):
        kinds[case.kind] += 1
        killers.add(case.killed_by)
    words = []
    for kind, name, least in (("mutant", "mutants", MUTANTS), ("other", "other solutions", OTHERS)):
        if kinds[kind] < least:
            words.append(f"{kinds[kind]} {name} of at least {least}")
    for entry in one["check"]:
        if entry["id"] not in killers:
            words.append(f"no mutant fails {entry['id']}")
    # A bug hunt is tried by its own start.py.
    is_tried = f'"{one["id"]}": (try_' in (STARTERS / "try.py").read_text() or one["id"] == "04a"
    if not is_tried:
        words.append(f"no try_{one['id']} in lessons/exercises/try.py")
    return words


def sentence():
    """How much the grader is tested with, as tests/README.md says it: counted without running anything."""
    every = manifest()
    checks = 0
    points = 0
    kinds = Counter()
    for one in every:
        checks += len(one["check"])
        points += points_of(one)
        for case in cases(one):
            kinds[case.kind] += 1
    return (
        f"{len(every)} exercises, {checks} checks, {points} points. "
        f"The grader itself is tested with {kinds['mutant']} mutants of the solutions, each of which must "
        f"fail the check that names it, and {kinds['other']} alternative solutions that are correct."
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("exercises", nargs="*", metavar="03", help="exercises to test (default: all)")
    option("--jobs", type=int, default=2, help="number of submissions to grade at the same time (default: 2)")
    option("--grep", default="", help="only submissions with this in the name, or mutants of this check")
    option("--seed", default="0", help="seed for the inputs (default: 0)")
    arguments = parser.parse_args()
    if not SOLUTIONS.exists():
        raise SystemExit("error: this needs the folder solutions, which students do not get")
    exercises = [exercise(name) for name in arguments.exercises] or manifest()
    todo = []
    for one in exercises:
        for case in cases(one):
            if arguments.grep in case.name or arguments.grep == case.killed_by:
                todo.append(case)

    begin = time.monotonic()
    right = 0
    with batch.pool(arguments.jobs) as pool:
        for is_right, line in pool.map(partial(verdict, seed=arguments.seed), todo):
            right += is_right
            print(line, flush=True)
    print(f"{right} of {len(todo)} graded as required, {time.monotonic() - begin:.0f} s")
    lacking = []
    for one in exercises:
        words = unfinished(one)
        if words:
            lacking.append(f"{one['id']} has {', '.join(words)}")
    if lacking:
        print(f"not finished: {'; '.join(lacking)}")
    if right != len(todo):
        raise SystemExit("error: the tests of these exercises gave wrong results: see the lines with BAD")


if __name__ == "__main__":
    main()
