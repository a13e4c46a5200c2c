"""The grader, graded. For each exercise: its solution gets all points, its starter none that it has not
earned, each mutant of the solution falls at the check that is named for it, and other correct solutions get
all points too.

README.md explains `mutants.toml`, `others.py` and `cheats.py` in the folder of an exercise.
"""

import ast
import contextlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import jobs
import judge

import pages

CACHES = shutil.ignore_patterns("__pycache__")
# What a finished exercise has at least.
MUTANTS, OTHERS = 8, 2
# What a cheat raises where a module, or something in one, has another name now.
MISSED = re.compile(r"raised (KeyError|NameError|AttributeError: module)")


@dataclass(frozen=True)
class Case:
    """One submission of the matrix. A mutant must fall at the check `killed_by`. A cheat may get `most`
    points; if it `harms`, it would end or change real things without a wall; what holds it back is there from
    this `level` of containment on."""

    exercise: judge.exercises.Exercise
    kind: str
    name: str
    files: dict[str, str]
    killed_by: str = ""
    most: float = 0
    harms: bool = False
    level: int = 1


def cases(one):
    """Each submission of the matrix: solution, starter, other solutions, mutants."""
    solution = {name: (judge.SOLUTIONS / name).read_text() for name in one["files"]}
    starter = {name: (judge.STARTERS / name).read_text() for name in one["files"]}
    found = [Case(one, "solution", "solution", solution), Case(one, "starter", "starter", starter)]
    folder = judge.HERE / one["stem"]
    found += [Case(one, "other", name, solution | files) for name, files, _ in overlays(one, "others.py")]
    for mutant in tomllib.loads((folder / "mutants.toml").read_text())["mutant"]:
        name = mutant.get("file", one["files"][0])
        text = (starter if mutant.get("of") == "starter" else solution)[name]
        count = text.count(mutant["old"])
        if count != 1:
            raise SystemExit(f"error: mutant {mutant['name']!r} of {one['id']}: `old` is there {count} times")
        changed = text.replace(mutant["old"], mutant["new"])
        found.append(Case(one, "mutant", mutant["name"], solution | {name: changed}, mutant["killed_by"]))
    return found


def before(one, identity, depth="all"):
    """The checks that must pass before this one: all, those that it names (next), or none of them."""
    if depth == "none":
        return set()
    entry = next(entry for entry in one["check"] if entry["id"] == identity)
    needs = set(entry.get("needs", []))
    return needs.union(*(before(one, need) for need in needs)) if depth == "all" else needs


def run_case(case, nursery, depth="all"):
    """Grade one submission of the matrix. Returns a row with what came, and whether that is as it must be."""
    one, kind, killed_by = case.exercise, case.kind, case.killed_by
    if kind == "mutant":
        # The check that is named, and what must pass before it: the others would tell nothing.
        wanted = before(one, killed_by, depth) | {killed_by}
        checks = [entry for entry in one["check"] if entry["id"] in wanted]
        # Nothing may wait for what is left out: it would only be "not reached", which proves nothing.
        needs = [[name for name in entry.get("needs", []) if name in wanted] for entry in checks]
        checks = [entry | {"needs": some} for entry, some in zip(checks, needs, strict=True)]
        one = one | {"check": checks}
    results = graded(one, case.files, nursery)
    score = sum(result.score for result in results)
    first = first_not_passed(results)
    full = judge.points_of(one)
    if any(result.status == "infrastructure" for result in results):
        right, wanted = False, "no infrastructure"
    elif kind in ("solution", "other"):
        right, wanted = score == full, f"{full} points"
    elif kind == "starter":
        right, wanted = score == one.get("floor", 0), f"{one.get('floor', 0)} points"
    else:
        right = first is not None and first.id == killed_by and first.status != "not reached"
        wanted = f"falls at {killed_by}"
    return row_of(case, results, wanted, right)


def graded(one, files, nursery):
    with tempfile.TemporaryDirectory(prefix="rungs-case-") as folder:
        for file, text in files.items():
            path = Path(folder) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, errors="surrogateescape")
        return judge.grade(one, folder, nursery)


def first_not_passed(results):
    return next((result for result in results if result.status != "passed"), None)


def row_of(case, results, wanted, right):
    first = first_not_passed(results)
    return {
        "exercise": case.exercise["id"],
        "kind": case.kind,
        "name": case.name,
        "wanted": wanted,
        "right": right,
        "score": sum(result.score for result in results),
        "of": sum(result.points for result in results),
        "fell_at": first and first.id,
        "status": first.status if first else "passed",
        "came": first.came if first else "",
        "expected": first.expected if first else "",
        "seconds": round(sum(result.seconds for result in results), 2),
    }


def line(row):
    mark = "ok  " if row["right"] else "BAD "
    score = f"{judge.number(row['score'])}/{judge.number(row['of'])}"
    text = f"{mark}{row['exercise']} {row['kind']:9}{row['name']:44} {score:>6} {row['seconds']:6.2f} s"
    if row["fell_at"]:
        text += f"  {row['fell_at']} {row['status']}: {row['came']} | {row['expected']}"
    return text


def unfinished(one):
    """What a finished exercise has and this one has not, in words. A new one (`make exercise`) falls short of
    all of it, and is graded all the same."""
    rows = cases(one)
    kinds, killers = Counter(case.kind for case in rows), {case.killed_by for case in rows}
    words = [
        f"{kinds[kind]} {name} of at least {least}"
        for kind, name, least in (("mutant", "mutants", MUTANTS), ("other", "other solutions", OTHERS))
        if kinds[kind] < least
    ]
    words += [f"no mutant falls at {entry['id']}" for entry in one["check"] if entry["id"] not in killers]
    # A bug hunt is tried by its own start.py.
    tried = f'"{one["id"]}": (try_' in (judge.STARTERS / "try.py").read_text() or one["id"] == "04a"
    return words if tried else [*words, f"no try_{one['id']} in lessons/exercises/try.py"]


# ---- cheats -----------------------------------------------------------------------------------


class Canary:
    """A folder, a process and a port that nobody may touch."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="rungs-canary-"))
        self.folder.chmod(0o755)
        shutil.copytree(judge.SOLUTIONS, self.folder / "solutions", ignore=CACHES)
        shutil.copytree(judge.HERE, self.folder / "checks", ignore=CACHES)
        (self.folder / "results").mkdir()
        (self.folder / "results" / "results.json").write_text('{"score": 0}')
        self.before = self.digest()
        self.victim = subprocess.Popen(["sleep", "100000"], start_new_session=True)
        self.door = socket.create_server(("127.0.0.1", 0))
        self.door.setblocking(False)

    def fill(self, text):
        text = text.replace("{canary}", str(self.folder)).replace("{victim}", str(self.victim.pid))
        return text.replace("{port}", str(self.door.getsockname()[1]))

    def digest(self):
        def facts(path):
            return path.read_bytes() if path.is_file() else None, path.lstat().st_mode

        return {path.relative_to(self.folder): facts(path) for path in self.folder.rglob("*")}

    def harm(self):
        found = []
        if self.digest() != self.before:
            found.append("files outside were changed")
        state = Path(f"/proc/{self.victim.pid}/stat")
        if self.victim.poll() is not None:
            found.append("a process outside was ended")
        elif state.exists() and state.read_text().rpartition(")")[2].split()[0] == "T":
            found.append("a process outside was stopped")
        with contextlib.suppress(BlockingIOError):
            self.door.accept()
            found.append("somebody called from inside")
        return found

    def close(self):
        self.victim.kill()
        self.victim.wait()
        self.door.close()
        shutil.rmtree(self.folder)


def written(nodes):
    return ast.unparse(ast.Module([*nodes], []))


def overlays(one, file):
    """Yield the name, the files and the arguments of each submission in `others.py` or `cheats.py`: how they
    are written is explained in README.md. If some functions have an argument `earns`, only these are one."""
    path = judge.HERE / one["stem"] / file
    if not path.exists():
        return
    tree = ast.parse(path.read_text()).body[1:]
    functions = [node for node in tree if isinstance(node, ast.FunctionDef)]
    found = [node for node in functions if "earns" in [word.arg for word in node.args.args]] or functions
    common = written(node for node in tree if node not in found)
    for node in found:
        words = zip(node.args.args, node.args.defaults, strict=True)
        own = {word.arg: eval(ast.unparse(value)) for word, value in words}
        if len(one["files"]) > 1:
            parts = {f"{one['stem']}/{part.name}.py": part.body for part in node.body[1:]}
        else:
            parts = {one["files"][0]: node.body}
        folder = judge.STARTERS if own.get("on") == "starter" else judge.SOLUTIONS
        files = {
            name: own.get("text", laid_over(folder / name, common, body)) for name, body in parts.items()
        }
        yield node.name, files, own


def laid_over(path, common, body):
    """The text of a file, followed by what all submissions share and by this body without its docstring."""
    text = path.read_text()
    for part in body:
        if isinstance(part, ast.ClassDef) and f"\nclass {part.name}" in text:
            part.bases = part.bases or [ast.Name(part.name)]
    return f"{text}\n{common}\n{written(body[1:])}\n"


def cheat_cases(one):
    """What ends the process at the top of the solution, and the cheats in the folder of the exercise."""
    texts, found = {name: (judge.SOLUTIONS / name).read_text() for name in one["files"]}, []
    for call in ("import os\nos._exit(0)\n", "import sys\nsys.exit(0)\n"):
        title = f"{call.split()[-1]} at the top of the solution"
        found.append(Case(one, "cheat", title, {name: call + text for name, text in texts.items()}))
    for name, files, own in overlays(one, "cheats.py"):
        data = {word: own[word] for word in ("harms", "level") if word in own}
        found.append(Case(one, "cheat", name, texts | files, most=own["earns"], **data))
    return found


def left_over(nursery):
    """Processes of the user that only workers have."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if nursery.uid is not None and folder.stat().st_uid == nursery.uid:
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    found.append(f"process {folder.name} is left")
    return found


def run_cheat(case, nursery, canary):
    """Grade one cheat; look for harm; then an honest check in the same nursery must still pass."""
    one, most = case.exercise, case.most
    nursery.ready()
    process = nursery.process
    # Some never end: they need not be given as long as an honest one.
    files = {name: canary.fill(text) for name, text in case.files.items()}
    results = graded(one | {"seconds": 5}, files, nursery)
    score = sum(result.score for result in results)
    trouble = canary.harm() + left_over(nursery)
    if score > most:
        trouble.append(f"{judge.number(score)} points")
    if any(result.status == "infrastructure" for result in results):
        trouble.append("counted as a fault of the machine")
    # The judge ends one in good order when it asks whether the machine has failed.
    if process.poll() not in (None, 0):
        trouble.append("the nursery was ended")
    if any(MISSED.search(result.came) for result in results):
        trouble.append("what it attacks is not there")
    honest = judge.grade_one(one, one["check"][0], judge.SOLUTIONS, nursery, 0, set())
    if honest.status != "passed":
        trouble.append(f"an honest check after it: {honest.status}: {honest.came}")
    row = row_of(case, results, f"at most {judge.number(most)} points", not trouble)
    return row | {"came": "; ".join(trouble) or row["came"]}


def cheat_rows(found, nursery):
    """The row of each of these cheats. What would harm this machine is left out without a wall."""
    wall = nursery.level > 1 or judge.machine()["landlock"] >= 6
    canary = Canary()
    try:
        for case in found:
            if (wall or not case.harms) and case.level <= nursery.level:
                yield run_cheat(case, nursery, canary)
                if canary.harm():
                    canary.close()
                    canary = Canary()
    finally:
        canary.close()


# ---- all of it --------------------------------------------------------------------------------


def sentence():
    """How much the grader is graded with, as tests/README.md says it: counted without running anything."""
    every = judge.manifest()
    kinds = Counter(case.kind for one in every for case in (*cases(one), *cheat_cases(one)))
    return (
        f"{len(every)} exercises, {sum(len(one['check']) for one in every)} checks, "
        f"{sum(map(judge.points_of, every))} points. "
        f"The grader itself is tested with {kinds['mutant']} mutants of the solutions, each of which must "
        f"fail the check that names it, {kinds['other']} alternative solutions that are correct, "
        f"and {kinds['cheat']} hostile or broken submissions."
    )


def matrix_of(one):
    """In a process of the pool: the rows of an exercise."""

    def told(row):
        print(line(row), flush=True)
        return row

    rows = [told(run_case(case, jobs.NURSERY)) for case in cases(one)]
    return rows + [told(row) for row in cheat_rows(cheat_cases(one), jobs.NURSERY)]


def main(exercises, arguments):
    """The whole matrix, on `jobs` nurseries at once. Writes out/selftest.html."""
    began = time.monotonic()
    with jobs.pool(arguments.jobs, arguments.level) as pool:
        rows = [row for some in pool.map(matrix_of, exercises) for row in some]
    level = judge.containment(arguments.level or judge.machine()["level"])
    path = arguments.out.parent / "selftest.html" if arguments.out.name == "grades" else arguments.out
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(pages.matrix(rows, level))
    right = sum(row["right"] for row in rows)
    print(f"{right} of {len(rows)} graded as required, {level}, {time.monotonic() - began:.0f} s: see {path}")
    lacking = [f"{one['id']} has {', '.join(unfinished(one))}" for one in exercises if unfinished(one)]
    if lacking:
        print(f"not finished: {'; '.join(lacking)}")
    if right != len(rows):
        raise SystemExit("error: the grader gave wrong results: see the lines with BAD")


if __name__ == "__main__":  # for whoever writes an exercise: python tests/exercises/selftest.py 03
    import sys

    import grade

    sys.argv[1:] = ["--selftest", "--only", *sys.argv[1:]]
    grade.main()
