"""What the student's code has printed: some of it for the report, all of it for a file."""

import re
from pathlib import Path

from grader.results import Result

FAILED, PASSED = (4, 6), (2, 3)  # first and last lines of each rank
RAISED = (12, 4)  # of an exception's words
WIDTH = 150  # letters of a line
MOST = 16 << 20  # letters that are kept of all runs of a check

LEFT_OUT = re.compile(r"\.\.\. (\d{1,9}) lines left out")

Run = tuple[str, int, dict[int, str]]  # what was tried, how many ranks, what each has printed


def some(runs: list[Run], passed: bool) -> str:
    """The first and last lines of each rank. Of a check that is not passed: in the last run in which anything
    was printed; of one that is: in the run with the most ranks."""
    there = [run for run in runs if run[2]]
    if not there:
        return ""
    if passed:
        shown = max(reversed(there), key=lambda run: run[1])  # of those with the most ranks, the last
        first, last = PASSED
    else:
        shown = there[-1]
        first, last = FAILED
    tried, count, texts = shown
    lines = []
    if passed or there[-1] is not runs[-1]:
        lines.append(f"-- {tried}")
    for rank, text in texts.items():
        lines += by(rank, count, shortened(text.splitlines(), first, last))
    return "\n".join(lines)


def whole(runs: list[Run]) -> str:
    """All that was printed, with what was tried above it."""
    lines = []
    for tried, count, texts in runs:
        if texts and tried:
            lines.append(f"-- {tried}")
        for rank, text in texts.items():
            lines += by(rank, count, text.splitlines())
    return "\n".join(lines)[:MOST]


def shortened(lines: list[str], first: int, last: int) -> list[str]:
    found = []
    for line in lines:
        found.append(line if len(line) <= WIDTH else f"{line[: WIDTH - 4]} ...")
    return fewer(found, first, last)


def fewer(lines: list[str], first: int, last: int) -> list[str]:
    """The first and the last of them. A line may say of how many it stands in the place: the grader keeps
    no more than the beginning and the end of what is very long."""
    if len(lines) - first - last <= 1:
        return lines
    left = 0
    for line in lines[first:-last]:
        stands_for = LEFT_OUT.fullmatch(line)
        left += int(stands_for[1]) if stands_for else 1
    return [*lines[:first], f"... {left} lines left out", *lines[-last:]]


def by(rank: int, count: int, lines: list[str]) -> list[str]:
    """Each line with the rank that has printed it, where there are several."""
    if count == 1:
        return lines
    return [f"rank {rank} | {line}" for line in lines]


def keep(identity: str, results: list[Result], out: Path) -> str:
    """Write all that the checks of an exercise have printed into a file. Returns words that name it; none if
    there is nothing to write, or no place to write it."""
    path = out / "printed" / f"{identity}.txt"
    text = ""
    for one in results:
        if one.printed:
            text += f"== {one.id} {one.title}\n{one.printed}\n\n"
    try:
        path.unlink(missing_ok=True)  # what is there is of another run
        if text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError:
        return ""
    return f"\neverything that your code printed is in {path}" if text else ""
