"""Write into lessons/README.md what can be read off the lessons: `make diffs`.

Under each lesson's heading stand two markers. What lies between them is written here: the command
from the lesson's docstring, and its diff from the lesson before. The table of what can go wrong in
lesson 06 stands between two more. A test runs this with --check.
"""

import argparse
import difflib
import re
import sys
import textwrap

import faults
from launcher import LESSONS, ROOT

PAGE = ROOT / "lessons" / "README.md"


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


def added(before, after):
    """How many lines the lesson adds to the one before it."""
    return sum(line.startswith("+") for line in diff(before, after).splitlines()[2:])


def block(path):
    text = f"```sh\n{command(path)}\n```\n"
    position = LESSONS.index(path)
    if position:
        before = LESSONS[position - 1]
        count = added(before, path)
        removed = sum(line.startswith("-") for line in diff(before, path).splitlines()[2:])
        text += (
            f"\n[{path.name}]({path.name}) adds {count} lines to {before.name} and takes {removed} away:\n\n"
            f"```diff\n{diff(before, path)}\n```\n"
        )
    return text


def written(page):
    blocks = {path.stem: block(path) for path in LESSONS} | {"faults": faults.table()}
    for name, text in blocks.items():
        start, end = f"<!-- {name}: written by `make diffs` -->", f"<!-- end of {name} -->"
        if page.count(start) != 1 or page.count(end) != 1:
            raise SystemExit(f"error: {PAGE} needs the line {start} and, after it, {end}, once each")
        head, rest = page.split(start)
        page = f"{head}{start}\n{text}{end}{rest.split(end)[1]}"
    return page


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    arguments = parser.parse_args()
    page = PAGE.read_text()
    if arguments.check:
        if page != written(page):
            sys.exit("error: lessons/README.md and the lessons disagree: run make diffs")
    else:
        PAGE.write_text(written(page))


if __name__ == "__main__":
    main()
