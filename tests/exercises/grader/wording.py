"""Words for the student."""

import re

from grader.exercises import Exercise, points_of
from grader.results import Result


def so_many(count: int, one: str, more: str = "") -> str:
    """`1 image`, `2 images`, `3 processes`; `more` are words of which there are several."""
    several = more or one + ("es" if one.endswith(("s", "ch")) else "s")
    return f"{count} {one if count == 1 else several}"


def number(value: float) -> str:
    """Points, without a zero behind the point."""
    return f"{value:g}"


def report(one: Exercise, results: list[Result], hints: int = 1, wanted: set[str] | None = None) -> str:
    """What a student reads: what fails first, and at the end all checks in order. Those that are `wanted`
    count; others were run because one of these needs them."""
    asked = [result for result in results if wanted is None or result.id in wanted]
    score, total, skipped = 0, 0, 0  # points
    for result in asked:
        score += result.score
        total += result.points
        if result.status == "skipped":
            skipped += result.points
    of = f" of {so_many(len(asked), 'check')}"
    if len(asked) >= len(one["check"]):
        total, of = points_of(one), ""
    earned = f"{number(score)} of {number(total)} points"
    if skipped:
        earned += f" ({number(skipped)} cannot be checked on this system)"

    lines = [f"{one['id']} {one['title']}: {earned}{of}", ""]
    for result in results:
        if result.status not in ("passed", "not reached", "skipped"):
            lines += [*detail(result, hints), ""]
    for result in results:
        lines.append(line(result))
    return "\n".join(lines)


def line(result: Result) -> str:
    mark = {"passed": "ok  ", "not reached": "  - ", "skipped": "  - "}.get(result.status, "NOT ")
    points = f"{number(result.score):>4} of {number(result.points):<3}"
    status = "" if result.status in ("passed", "failed") else f" ({result.status})"
    if result.status == "not reached":  # nothing else in the report says which check comes first
        status = f" (not reached: {result.came})"
    if result.status == "skipped":
        status = f" (not checked: {result.came})"
    return f"  {mark} {result.id:7} {points} {result.title}{status}"


def helpful(result: Result, hints: int) -> list[str]:
    """As many hints as are asked for: none where the code was not looked at."""
    if result.status in ("infrastructure", "not reached") or result.about_file:
        return []
    return [hint for hint in result.hints[:hints] if hint]


def detail(result: Result, hints: int) -> list[str]:
    lines = [f"{result.id} {result.title}: {result.status}, 0 of {number(result.points)} points"]
    if result.tried:
        lines.append(f"  tried:    {result.tried}")
    if result.came:
        # Further lines of an exception's words are not to look like lines of ours.
        lines.append(f"  result:   {result.came.replace(chr(10), chr(10) + ' ' * 12)}")
    if result.expected:
        lines.append(f"  expected: {result.expected}")
    for place, hint in enumerate(helpful(result, hints)):
        lines.append(f"  hint:     {hint}" if place == 0 else f"  hint {place + 1}:   {hint}")
    if result.output:
        lines.append("  printed:")
        for printed in result.output.splitlines():
            lines.append(f"    {printed}")
    return lines


def visible(text: str) -> str:
    """Without what would move the cursor or change the colours of whoever reads it."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
