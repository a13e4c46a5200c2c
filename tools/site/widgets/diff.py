"""The diff of any lesson to any other, and the sentence that explains each line.

All of it is worked out here, from the lessons' files and from the diffs that the notebooks have stored. The
script beside this file only draws what it gets: rows of line numbers, lines in colours, sentences.
"""

import difflib
import json
import re

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

import lessons
import sources

TITLE = "The diff of any lesson to any other"
INTRODUCTION = """\
Choose two lessons, or move the slider: it walks from lesson 01 to the last, and shows each beside the lesson
that it grew from. Above the lines that differ is the sentence that explains them, linked to its notebook.
"""
PART = re.compile(r"(?ms)^(\S[^\n]*)\n\n```diff\n(.*?)^```$")


def data():
    """What the page needs of all lessons: their names, and the sentences."""
    why = sentences(texts())
    return {
        "lessons": [
            {
                "stem": lesson.stem,
                "name": f"{lesson.number}. {lesson.title}",
                "from": lesson.grown_from,
                "sentences": why[lesson.stem]["sentences"],
            }
            for lesson in lessons.LESSONS
        ],
    }


def parts():
    """What it needs of the two that are chosen, by stem: the lines, which of them each earlier lesson has,
    and why they have come or gone. In one file, all of it would grow with every lesson."""
    lines = texts()
    why = sentences(lines)
    return {
        lesson.stem: {
            "lines": coloured(lesson.path.read_text()),
            "because": why[lesson.stem]["because"],
            "gone": why[lesson.stem]["gone"],
            "same": {
                before.stem: same(lines[before.stem], lines[lesson.stem])
                for before in lessons.LESSONS[:position]
            },
        }
        for position, lesson in enumerate(lessons.LESSONS)
    }


def texts():
    return {lesson.stem: lesson.path.read_text().splitlines() for lesson in lessons.LESSONS}


def coloured(text: str) -> list[str]:
    """Each line as HTML; the theme has the colours."""
    return highlight(text, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).splitlines()


def same(before: list[str], after: list[str]) -> list[tuple[int, int, int]]:
    """The runs of lines that two files have in common: where in the one, where in the other, how many."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [(block.a, block.b, block.size) for block in matcher.get_matching_blocks() if block.size]


def signed(before: list[str], after: list[str]):
    """The lines of a diff as notebooks show it: the sign, the line, and where it is in its file."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for hunk in matcher.get_grouped_opcodes(1):
        for kind, low, high, start, end in hunk:
            if kind == "equal":
                yield from ((" ", before[number], None) for number in range(low, high))
            else:
                yield from (("-", before[number], number) for number in range(low, high))
                yield from (("+", after[number], number) for number in range(start, end))


def sentences(texts):
    """For each lesson its sentences; for each of its lines the lesson, by its position, and the sentence that
    explain it, if there is one ("because"); for each line of the lesson that it grew from, why it is gone
    ("gone")."""
    found = {}
    for position, lesson in enumerate(lessons.LESSONS):
        own = found[lesson.stem] = {"sentences": [], "because": [None] * len(texts[lesson.stem]), "gone": {}}
        if not lesson.grown_from:
            continue
        before, after = texts[lesson.grown_from], texts[lesson.stem]
        for start, other, size in same(before, after):
            own["because"][other : other + size] = found[lesson.grown_from]["because"][start : start + size]
        lines = signed(before, after)
        for number, (sentence, stored) in enumerate(PART.findall(stored_diff(lesson))):
            own["sentences"].append(as_html(sentence))
            for shown in stored.splitlines():
                sign, line, place = next(lines, (" ", "", None))
                if f"{sign} {line}".rstrip() != shown:
                    raise sources.Broken(
                        f"notebooks/{lesson.stem}.ipynb has {shown!r}, and the lessons have "
                        f"{sign} {line!r}: make diffs"
                    )
                if sign == "+":
                    own["because"][place] = [position, number]
                elif sign == "-":
                    own["gone"][place] = number
    return found


def stored_diff(lesson) -> str:
    """What the lesson's notebook shows of the difference to the lesson that it grew from."""
    notebook = next(row for row in lesson.notebooks if row.stem == lesson.stem)
    for cell in json.loads(notebook.path.read_text())["cells"]:
        for output in cell.get("outputs", []):
            if output.get("metadata", {}).get("rungs") == "diff":
                return "".join(output["data"]["text/markdown"])
    raise sources.Broken(f"notebooks/{lesson.stem}.ipynb shows no diff")


def as_html(sentence: str) -> str:
    """A sentence of a diff has inline code and escapes, and no other Markdown."""
    sentence = re.sub(r"\\([\\*_<>\[\]$~|])", r"\1", sentence)
    sentence = sentence.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", sentence)
