"""Words for the student."""

import re

from judge.exercises import Exercise, points_of
from judge.results import Result


def number(value: float) -> str:
    """Points, without a zero behind the point."""
    return f"{value:g}"


def report(one: Exercise, results: list[Result], hints: int = 1) -> str:
    """What a student reads: what fails first, and at the end all checks in order."""
    some = len(results) < len(one["check"])
    total = sum(result.points for result in results) if some else points_of(one)
    earned = f"{number(sum(result.score for result in results))} of {number(total)} points"
    of = f" of {len(results)} checks" if some else ""
    lines = [f"{one['id']} {one['title']}: {earned}{of}", ""]
    for result in results:
        if result.status not in ("passed", "not reached"):
            lines += [*detail(result, hints), ""]
    return "\n".join(lines + [line(result) for result in results])


def line(result: Result) -> str:
    """One check in the list of all."""
    mark = {"passed": "ok  ", "not reached": "  - "}.get(result.status, "NOT ")
    points = f"{number(result.score):>4} of {number(result.points):<3}"
    status = "" if result.status in ("passed", "failed") else f" ({result.status})"
    return f"  {mark} {result.id:7} {points} {result.title}{status}"


def helpful(result: Result, hints: int) -> list[str]:
    """As many hints as fit: none where the code was not looked at, or is not written yet."""
    if result.status == "infrastructure" or result.about_file:
        return []
    return [] if hints == 1 and result.came.startswith("not written yet") else result.hints[:hints]


def detail(result: Result, hints: int) -> list[str]:
    """The lines about a check that is not passed."""
    lines = [f"{result.id} {result.title}: {result.status}, 0 of {number(result.points)} points"]
    if result.tried:
        lines.append(f"  tried:    {result.tried}")
    if result.came:
        lines.append(f"  came:     {result.came}")
    if result.expected:
        lines.append(f"  expected: {result.expected}")
    for place, hint in enumerate(helpful(result, hints)):
        lines.append(f"  hint:     {hint}" if place == 0 else f"  hint {place + 1}:   {hint}")
    if result.output.strip():
        lines.append("  printed:")
        lines += [f"    {line[:160]}" for line in result.output.strip().splitlines()[-8:]]
    return lines


def visible(text: str) -> str:
    """Without what would move the cursor or change the colours of whoever reads it."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
