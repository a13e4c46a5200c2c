"""Write into the pages what can be read off the lessons and their table: `make diffs`.

Between two markers in a page stands what is written here: in lessons/README.md the command from each lesson's
docstring, its diff from the lesson that it grew from, and the table of what can go wrong in lesson 06; in
lessons/frameworks/README.md the diffs of its scripts from lesson 04; in README.md and notebooks/README.md the
lists of lessons, notebooks and exercises. A test runs this with --check.
"""

import argparse
import difflib
import re
import sys
import textwrap

import faults
import lessons
from lessons import LESSONS, ROOT, Lesson

PAGE = ROOT / "lessons" / "README.md"
FRAMEWORKS = sorted((ROOT / "lessons" / "frameworks").glob("*.py"))
STARTED_BY = {
    "python": "`python`",
    "mp.spawn": "`python`, `mp.spawn`",
    "torchrun": "`torchrun --standalone`",
    "two agents": "a `torchrun` agent on each",
}


def command(path):
    """The first indented block of the lesson's docstring."""
    docstring = path.read_text().split('"""')[1].replace("\\\\\n", "\\\n")
    block = re.search(r"\n\n((?: {4}.*\n)+)", docstring)
    if not block:
        raise SystemExit(f"error: the docstring of {path} has no indented command")
    return textwrap.dedent(block[1]).strip()


def diff(before, after):
    lines = difflib.unified_diff(
        before.read_text().splitlines(),
        after.read_text().splitlines(),
        before.name,
        after.name,
        n=2,
        lineterm="",
    )
    return "\n".join(lines)


def count(sign, before, after):
    return sum(line.startswith(sign) for line in diff(before, after).splitlines()[2:])


def added(before, after):
    """How many lines the lesson adds to the one before it."""
    return count("+", before, after)


def block(path, before):
    text = f"```sh\n{command(path)}\n```\n"
    if before:
        text += (
            f"\n[{path.name}]({path.name}) adds {added(before, path)} lines to {before.name} and takes "
            f"{count('-', before, path)} away:\n\n```diff\n{diff(before, path)}\n```\n"
        )
    return text


def before(lesson: Lesson):
    """The script that a lesson's diff is taken against."""
    return lessons.get(lesson.grown_from).path if lesson.grown_from else None


def lesson_table() -> str:
    """README's table: each lesson with its notebooks and exercises."""
    lines = ["| lesson | its one idea | started by | notebooks | exercises |", "| --- " * 5 + "|"]
    for lesson in LESSONS:
        started = "`torchrun --max-restarts`" if lesson.restarts else STARTED_BY[lesson.launcher]
        read = [
            f"[{notebook.number if notebook.stem == lesson.stem else notebook.title.lower()}]"
            f"(notebooks/{notebook.stem}.ipynb)"
            for notebook in lesson.notebooks
        ]
        solve = [
            f"[{path.stem.replace('_', ' ')}](lessons/exercises/{path.name})"
            for notebook in lesson.notebooks
            for path in lessons.exercises(notebook.number)
        ]
        cells = (f"[{lesson.path.name}](lessons/{lesson.path.name})", lesson.idea, started)
        lines.append(f"| {' | '.join(cells)} | {'; '.join(read)} | {'; '.join(solve)} |")
    return "\n".join(lines) + "\n"


def notebook_list() -> str:
    """The list of notebooks, with the question that each asks."""
    lines = []
    for notebook in lessons.NOTEBOOKS:
        name = f"{notebook.number} {notebook.title}".strip()
        lines.append(f"- [{name}]({notebook.stem}.ipynb): {notebook.question}")
    return "\n".join(lines) + "\n"


def pages():
    """What is written into each page: the text for each pair of markers."""
    diffs = {lesson.stem: block(lesson.path, before(lesson)) for lesson in LESSONS}
    lesson_04 = lessons.get("04_ddp_torchrun").path
    return {
        ROOT / "README.md": {"lessons": lesson_table()},
        ROOT / "notebooks/README.md": {"notebooks": notebook_list()},
        PAGE: diffs | {"faults": faults.table()},
        FRAMEWORKS[0].parent / "README.md": {path.stem: block(path, lesson_04) for path in FRAMEWORKS},
    }


def written(path, blocks):
    page = path.read_text()
    for name, text in blocks.items():
        start, end = f"<!-- {name}: written by `make diffs` -->", f"<!-- end of {name} -->"
        if page.count(start) != 1 or page.count(end) != 1:
            raise SystemExit(f"error: {path} needs the line {start} and, after it, {end}, once each")
        head, rest = page.split(start)
        page = f"{head}{start}\n{text}{end}{rest.split(end)[1]}"
    return page


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    arguments = parser.parse_args()
    for path, blocks in pages().items():
        page = written(path, blocks)
        if page != path.read_text():
            if arguments.check:
                sys.exit(f"error: {path} and the lessons disagree: run make diffs")
            path.write_text(page)


if __name__ == "__main__":
    main()
