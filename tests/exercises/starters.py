"""Cut the starters of the exercises out of their solutions: `make starters`.

In a solution, an answer stands between two lines, `# cut 03.2: average the gradients over all processes` and
`# end`. In the starter, one line stands in its place: it raises NotImplementedError with the same words. If
lines `# instead: code` stand in the answer, that code stands in its place: a bug to be found. The solution is
the only source. What does not agree after a change of a check is named. A test runs this with --check.
"""

import re
import sys
from collections import Counter

from grader.exercises import manifest, points_of
from grader.settings import HERE, ROOT, SOLUTIONS, STARTERS

NUMBERED = re.compile(r"\d\d[a-z]?_[^/]+(\.py|/[^/]+\.(py|md))$")
CUT = re.compile(r"^( *)# cut (\d\d[a-z]?\.\d+: .+)\n((?:.*\n)*?)\1# end\n", re.M)
INSTEAD = re.compile(r"^ *# instead:(?: (.*))?\n", re.M)


def hole(found):
    """What stands in the starter where the solution has an answer."""
    instead = INSTEAD.findall(found[3])
    if not instead:
        return f'{found[1]}raise NotImplementedError("{found[2]}")\n'
    lines = ""
    for line in instead:
        if line:
            lines += f"{found[1]}{line}\n"
    return lines


def starter(text):
    """What students get of a solution."""
    cut = CUT.sub(hole, text)
    if "# cut" in cut or re.search(r"^ *# (end$|instead:)", cut, re.M):
        raise SystemExit("error: a cut without its end, or an end without its cut")
    return cut


def answers(text):
    """The lines of a solution that no student may find anywhere: those that its starter has not."""
    known = {line.strip() for line in starter(text).splitlines()}
    found = []
    for cut in CUT.finditer(text):
        for line in INSTEAD.sub("", cut[3]).splitlines():
            if line.strip() not in known:
                found.append(line.strip())
    return found


def sources():
    """All that students get a copy of."""
    found = []
    for path in sorted(SOLUTIONS.rglob("*.*")):
        if NUMBERED.match(str(path.relative_to(SOLUTIONS))):
            found.append(path)
    return found


def table():
    """The exercises, for the students' page."""
    lines = ["| exercise | points | what you build |", "| --- | ---: | --- |"]
    for one in manifest():
        link = one["files"][0].split("/")[0]
        lines.append(f"| [{link.removesuffix('.py')}]({link}) | {points_of(one)} | {one['title']} |")
    return "\n".join(lines) + "\n"


def graded():
    """How the grader itself is tested, for the instructors' page."""
    import mutants

    return mutants.sentence() + "\n"


def forgotten():
    """What does not agree in an exercise, one line for each."""
    known = set()
    for one in manifest():
        stem = one["stem"]
        tests = f"test_{one['id']}.py"
        text = ""
        for name in one["files"]:
            text += (SOLUTIONS / name).read_text()
        listed = set()
        counted = Counter()
        for entry in one["check"]:
            listed.add(entry["id"])
            for need in set(entry.get("needs", [])) - known:
                yield f"{stem}/exercise.toml: {entry['id']} needs {need}, and no check above it has this id"
            if len(entry["hints"]) != 3:
                yield f"{stem}/exercise.toml: {entry['id']} has {len(entry['hints'])} hints and needs three"
            known.add(entry["id"])
            counted[re.match(r"[^.]+\.\d+", entry["id"])[0]] += entry["points"]
        written = dict(re.findall(r"^ +(\d\d[a-z]?\.\d+) \((\d+) points?\)", text, re.M))
        if written:
            for part, points in counted.items():
                if written.get(part) != str(points):
                    yield f"solutions/{stem}.py: the docstring must say that {part} has {points} points"
        if len(one["files"]) == 1 and f"{points_of(one)} points" not in text:
            yield f"solutions/{stem}.py: the docstring must say {points_of(one)} points in its first line"
        text = (HERE / stem / tests).read_text()
        if one["id"] == "04a":  # its checks "b" are all alike
            for number in range(1, 11):
                text += f"\ndef test_{number}b_"
        tested = set()
        for name in re.findall(r"\bdef test_(\d+[a-z]?)_", text):
            tested.add(f"{one['id']}.{name}")
        for name in sorted(tested ^ listed):
            has, lacks = (tests, "exercise.toml") if name in tested else ("exercise.toml", tests)
            yield f"{stem}: {has} has the check {name}, and {lacks} has not"


def main(check):
    """Write what has changed, and say what; or write nothing, and fail if something would change."""
    if not SOLUTIONS.exists():
        sys.exit("error: starters are cut out of the folder solutions, which students do not get")

    errors = [f"error: {line}" for line in forgotten()]
    if errors:
        sys.exit("\n".join(errors))
    written = []

    def put(path, text):
        if path.exists() and path.read_text() == text:
            return
        written.append(str(path.relative_to(ROOT)))
        if check:
            sys.exit(f"error: {written[0]} is not what the solutions say: run make starters")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    # The starters first: the pages count what is graded, and a new exercise has no starter yet.
    for path in sources():
        text = path.read_text()
        put(STARTERS / path.relative_to(SOLUTIONS), starter(text) if path.suffix == ".py" else text)
    for page, name, words in (
        (STARTERS / "README.md", "exercises", table),
        (ROOT / "tests/README.md", "selftest", graded),
    ):
        before, _, rest = page.read_text().partition(f"<!-- {name} -->\n")
        put(page, f"{before}<!-- {name} -->\n{words()}{rest[rest.index('<!-- end -->') :]}")
    if not check:
        print(f"wrote {', '.join(written)}" if written else "all starters agree with their solutions already")


if __name__ == "__main__":
    main("--check" in sys.argv)
