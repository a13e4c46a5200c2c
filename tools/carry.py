"""Carry a change of a lesson into all scripts that grew from it: `make carry LESSON=03`.

    make carry LESSON=03

Change the lesson's script first, and don't commit it yet: what is carried is the difference between the file
and the last commit. You will see a line for each script that the change fits into. The command stops at the
first script that has other lines in that place: make the change there by hand, and go on from that script.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tools import lessons
from tools.lessons import ROOT


def children(path: Path) -> list[Path]:
    """The scripts that grew from this one, lessons first."""
    found = []
    for lesson in lessons.LESSONS:
        if lesson.grown_from and lessons.get(lesson.grown_from).path == path:
            found.append(lesson.path)
    for script, parent in lessons.GROWN.items():
        if parent == path:
            found.append(script)
    return found


def committed(path: Path) -> str:
    """The text of a file in the last commit."""
    name = path.relative_to(ROOT).as_posix()
    result = subprocess.run(["git", "show", f"HEAD:{name}"], cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"error: {name} is in no commit yet, so there is nothing to compare it with")
    return result.stdout


def merge(own: str, before: str, after: str) -> tuple[str, int]:
    """What `own` becomes if what changed from `before` to `after` changes there too, and how many places
    do not fit.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, text in (("own", own), ("before", before), ("after", after)):
            path = Path(folder, name)
            path.write_text(text)
            paths.append(path)
        words = ["git", "merge-file", "--stdout", *paths]
        result = subprocess.run(words, capture_output=True, text=True)
    return result.stdout, result.returncode


def carry(path: Path) -> None:
    before = committed(path)
    after = path.read_text()
    for child in children(path):
        own = child.read_text()
        merged, conflicts = merge(own, before, after)
        name = child.relative_to(ROOT)
        if conflicts:
            line = merged[: merged.index("<<<<<<< ")].count("\n") + 1
            sys.exit(
                f"error: {name}:{line} has other lines there: make the change by hand, then "
                f"make carry LESSON={name}"
            )
        if merged == own:
            continue  # it has no such line, or somebody has changed it already
        child.write_text(merged)
        print(f"{name} follows {path.relative_to(ROOT)}")
        carry(child)


def script_of(name: str) -> Path:
    """A lesson's script by its number, or any script by its path."""
    for lesson in lessons.LESSONS:
        if name in (lesson.number, lesson.stem):
            return lesson.path
    path = ROOT / name
    if not path.is_file():
        sys.exit(f"error: there is no lesson {name!r}: name a lesson by its number, such as LESSON=03")
    return path


def main() -> None:
    if len(sys.argv) != 2 or not sys.argv[1]:
        sys.exit("error: which lesson has changed? make carry LESSON=03")
    path = script_of(sys.argv[1])
    if committed(path) == path.read_text():
        sys.exit(f"error: {path.relative_to(ROOT)} has not changed since the last commit")
    carry(path)


if __name__ == "__main__":
    main()
