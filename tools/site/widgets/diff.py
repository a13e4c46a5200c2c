"""The diff of any lesson to any other, and the sentence that explains each line.

All of it is worked out here, from the lessons' files and from the sentences that the notebooks show. The
script beside this file only draws what it gets: rows of line numbers, lines in colours, sentences.
"""

import ast
import difflib
import json
import re

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

import lessons
import sources
from lessons import ROOT

TITLE = "The diff of any lesson to any other"
INTRODUCTION = """\
Which lines turn a single-GPU script into DDP, and DDP into FSDP? Pick a comparison, or any two lessons. A
sentence above each change says why the change is needed, and links to the notebook that explains it.
"""
PRESETS = {  # labels, and the numbers of two lessons; the first is what the page opens with
    "one GPU to DDP": ("01", "03"),
    "mp.spawn to torchrun": ("03", "04"),
    "add snapshots": ("04", "05"),
    "one machine to many": ("05", "06"),
    "DDP to FSDP": ("04", "09"),
    "DDP to pipeline": ("04", "10"),
    "DDP to tensor parallel": ("04", "11"),
}
PART = re.compile(r"(?ms)^(\S[^\n]*)\n\n```diff\n(.*?)^```$")


def data():
    """What the page needs of all lessons: their names, and the sentences."""
    why = sentences(texts())
    rows = [
        {
            "stem": lesson.stem,
            "name": f"{lesson.number}. {lesson.title}",
            "from": lesson.grown_from,
            "sentences": why[lesson.stem]["sentences"],
            "shown": why[lesson.stem]["shown"],
        }
        for lesson in lessons.LESSONS
    ]
    stem = {lesson.number: lesson.stem for lesson in lessons.LESSONS}
    pairs = [
        {"label": label, "from": stem[one], "to": stem[other]} for label, (one, other) in PRESETS.items()
    ]
    return {"lessons": rows, "presets": pairs}


def docstrings(text: str) -> list[tuple[int, int]]:
    """Where the docstrings of a file begin and end, as positions of lines: the page folds them."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    found = [node.body[0] for node in nodes if ast.get_docstring(node, clean=False) is not None]
    return sorted((node.lineno - 1, node.end_lineno) for node in found)


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
            "docstrings": docstrings(lesson.path.read_text()),
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


def parts_of(before: list[str], after: list[str], sentences: dict[str, str]):
    """The changes as notebooks/show/text.py has them: for each sentence its lines (sign, line, position).

    A sentence under words that begin with a sign stands above a further part of the change before it.
    """
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    hunks = iter([list(lines_of(hunk, before, after)) for hunk in matcher.get_grouped_opcodes(1)])
    found = []
    for words, sentence in sentences.items():
        if words[:2] in ("+ ", "- "):
            lines, beginning = found[-1][1], words[2:].strip()
            fits = [
                at
                for at, (sign, line, _) in enumerate(lines)
                if at and sign == words[0] and line.strip().startswith(beginning)
            ]
            at = fits[0] if fits else None
        else:
            lines, at = next(hunks, None), 0
        if lines is None or at is None:
            raise sources.Broken(f"notebooks/show/sentences.py: no change for {words!r}")
        found.append((sentence, lines[at:]))
        if at:
            del lines[at:]
    if next(hunks, None):
        raise sources.Broken("notebooks/show/sentences.py: a change has no sentence")
    return found


def lines_of(hunk, before, after):
    for kind, low, high, start, end in hunk:
        if kind == "equal":
            yield from ((" ", before[number], None) for number in range(low, high))
        else:
            yield from (("-", before[number], number) for number in range(low, high))
            yield from (("+", after[number], number) for number in range(start, end))


def sentences(texts):
    """For each lesson its sentences, and where its notebook shows them ("shown": a number, or nothing); for
    each of its lines the lesson, by its position, and the sentence that explain it, if there is one
    ("because"); for each line of the lesson that it grew from, why it is gone ("gone")."""
    found, written = {}, written_sentences()
    for position, lesson in enumerate(lessons.LESSONS):
        own = {"sentences": [], "shown": [], "because": [None] * len(texts[lesson.stem]), "gone": {}}
        found[lesson.stem] = own
        if not lesson.grown_from:
            continue
        before, after = texts[lesson.grown_from], texts[lesson.stem]
        for start, other, size in same(before, after):
            own["because"][other : other + size] = found[lesson.grown_from]["because"][start : start + size]
        changes = parts_of(before, after, written.get(lesson.stem, {}))
        own["shown"] = shown_at(lesson, [lines for _, lines in changes])
        for number, (sentence, lines) in enumerate(changes):
            own["sentences"].append(as_html(sentence))
            for sign, _, place in lines:
                if sign == "+":
                    own["because"][place] = [position, number]
                elif sign == "-":
                    own["gone"][place] = number
    return found


def written_sentences() -> dict[str, dict[str, str]]:
    """What notebooks/show/sentences.py says of each change."""
    space = {}
    exec((ROOT / "notebooks/show/sentences.py").read_text(), space)
    return space["SENTENCES"]


def shown_at(lesson, changes) -> list[int | None]:
    """Which of the changes the notebook shows, and as which of its own: it may leave some out."""
    fences, found, count = [stored.splitlines() for _, stored in PART.findall(stored_diff(lesson))], [], 0
    for lines in changes:
        is_next = fences[count : count + 1] == [[f"{sign} {line}".rstrip() for sign, line, _ in lines]]
        found.append(count if is_next else None)
        count += is_next
    if count < len(fences):
        first = next((line for line in fences[count] if line[:1] in "+-"), "")
        raise sources.Broken(
            f"notebooks/{lesson.stem}.ipynb has {first!r}, and the lessons do not: make diffs"
        )
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
    """A sentence on a change has inline code, and no other Markdown."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", sentence.replace("&", "&amp;").replace("<", "&lt;"))
