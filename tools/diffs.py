"""Write into lessons/README.md what can be read off the lessons: `make diffs`.

Under each lesson's heading stand two markers. What lies between them is written here: the command
from the lesson's docstring, and its diff from the lesson before. The table of what can go wrong in
lesson 06 stands between two more. The page of lessons/frameworks has the diffs of its scripts from
lesson 04. A test runs this with --check.
"""

import argparse
import difflib
import re
import sys
import textwrap

import faults
from launcher import LESSONS, ROOT, grown_from

PAGE = ROOT / "lessons" / "README.md"
FRAMEWORKS = sorted((ROOT / "lessons" / "frameworks").glob("*.py"))


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


def pages():
    """What is written into each page: the text for each pair of markers."""
    lesson_04 = next(path for path in LESSONS if path.name.startswith("04"))
    return {
        PAGE: {path.stem: block(path, grown_from(path)) for path in LESSONS} | {"faults": faults.table()},
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
