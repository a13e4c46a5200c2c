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

from tools import lessons
from tools.lessons import ROOT
from tools.makers.site import taken

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
SENTENCE = re.compile(r"(?m)^(\S.*)\n\n```diff")
show = taken.functions(
    ROOT / "notebooks/show/text.py", "Diff", "escaped", LESSONS=ROOT / "lessons", difflib=difflib, re=re
)


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


def sentences(texts):
    """For each lesson its sentences, and where its notebook shows them ("shown": a number, or nothing); for
    each of its lines the lesson, by its position, and the sentence that explain it, if there is one
    ("because"); for each line of the lesson that it grew from, why it is gone ("gone")."""
    found, named = {}, written_sentences()
    # For each lesson, by its position, its lines and its sentences.
    written = [(texts[lesson.stem], [*named.get(lesson.stem, {}).values()]) for lesson in lessons.LESSONS]
    for position, lesson in enumerate(lessons.LESSONS):
        own = {"sentences": [], "shown": [], "because": [None] * len(texts[lesson.stem]), "gone": {}}
        found[lesson.stem] = own
        if not lesson.grown_from:
            continue
        before, after = texts[lesson.grown_from], texts[lesson.stem]
        for start, other, size in same(before, after):
            for step in range(size):
                why = found[lesson.grown_from]["because"][start + step]
                if why and is_still_true(written[why[0]], why[1], after):
                    own["because"][other + step] = why
        changes = show.Diff(lesson.grown_from, lesson.stem, named[lesson.stem])
        shown = SENTENCE.findall(stored_diff(lesson))
        matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
        places = [code for code in matcher.get_opcodes() if code[0] != "equal"]
        gone = (place for _, low, high, _, _ in places for place in range(low, high))
        come = (place for *_, start, end in places for place in range(start, end))
        for number, (sentence, lines) in enumerate(changes.parts):
            own["sentences"].append(as_html(sentence))
            words = show.escaped(sentence)
            own["shown"].append(shown.index(words) if words in shown else None)
            for sign, _ in lines:
                if sign == "+":
                    own["because"][next(come)] = [position, number]
                elif sign == "-":
                    own["gone"][next(gone)] = number
    return found


def is_still_true(origin, number, lines) -> bool:
    """Whether a sentence, written where a line came, explains it in a later lesson, too. Where that lesson no
    longer has what the sentence names, the line is there for another reason."""
    first_lines, first_sentences = origin
    first, now = "\n".join(first_lines), "\n".join(lines)
    names = re.findall(r"`(?:\w+\.)*(\w+)`", first_sentences[number])
    return all(re.search(rf"\b{name}\b", now) for name in names if re.search(rf"\b{name}\b", first))


def written_sentences() -> dict[str, dict[str, str]]:
    """What notebooks/show/sentences.py says of each change."""
    space = {}
    exec((ROOT / "notebooks/show/sentences.py").read_text(), space)
    return space["SENTENCES"]


def stored_diff(lesson) -> str:
    """What the lesson's notebook shows of the difference to the lesson that it grew from."""
    notebook = next(row for row in lesson.notebooks if row.stem == lesson.stem)
    cells = json.loads(notebook.path.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    shown = next(output for output in outputs if output.get("metadata", {}).get("rungs") == "diff")
    return "".join(shown["data"]["text/markdown"])


def as_html(sentence: str) -> str:
    """A sentence on a change has inline code, and no other Markdown."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", sentence.replace("&", "&amp;").replace("<", "&lt;"))
