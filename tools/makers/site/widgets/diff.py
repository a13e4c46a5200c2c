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
from tools.makers.site import extract

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
show = extract.functions(
    ROOT / "notebooks/show/text.py",
    "Diff",
    "compared",
    "begins_a_further_part",
    "with_sign",
    "changed",
    "first_change",
    "escaped",
    LESSONS=ROOT / "lessons",
    difflib=difflib,
    re=re,
)


def data():
    """What the page needs of all lessons: their names, and the sentences."""
    why = sentences(texts())
    rows = []
    stem_of = {}
    for lesson in lessons.LESSONS:
        stem_of[lesson.number] = lesson.stem
        rows.append(
            {
                "stem": lesson.stem,
                "name": f"{lesson.number}. {lesson.title}",
                "from": lesson.grown_from,
                "sentences": why[lesson.stem]["sentences"],
                "shown": why[lesson.stem]["shown"],
            }
        )
    pairs = []
    for label, (one, other) in PRESETS.items():
        pairs.append({"label": label, "from": stem_of[one], "to": stem_of[other]})
    return {"lessons": rows, "presets": pairs}


def docstrings(text: str) -> list[tuple[int, int]]:
    """Where the docstrings of a file begin and end, as positions of lines: the page folds them."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            found.append((docstring.lineno - 1, docstring.end_lineno))
    return sorted(found)


def parts():
    """What it needs of the two that are chosen, by stem: the lines, which of them each earlier lesson has,
    and why they have come or gone. In one file, all of it would grow with every lesson."""
    lines = texts()
    why = sentences(lines)
    found = {}
    for position, lesson in enumerate(lessons.LESSONS):
        in_common = {}
        for before in lessons.LESSONS[:position]:
            in_common[before.stem] = same(lines[before.stem], lines[lesson.stem])
        text = lesson.path.read_text()
        found[lesson.stem] = {
            "lines": coloured(text),
            "because": why[lesson.stem]["because"],
            "gone": why[lesson.stem]["gone"],
            "docstrings": docstrings(text),
            "same": in_common,
        }
    return found


def texts():
    return {lesson.stem: lesson.path.read_text().splitlines() for lesson in lessons.LESSONS}


def coloured(text: str) -> list[str]:
    """Each line as HTML; the theme has the colours."""
    return highlight(text, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).splitlines()


def same(before: list[str], after: list[str]) -> list[tuple[int, int, int]]:
    """The runs of lines that two files have in common: where in the one, where in the other, how many."""
    found = []
    for block in show.compared(before, after).get_matching_blocks():
        if block.size:
            found.append((block.a, block.b, block.size))
    return found


def sentences(texts):
    """For each lesson its sentences, and where its notebook shows them ("shown": a number, or nothing); for
    each of its lines the lesson, by its position, and the sentence that explain it, if there is one
    ("because"); for each line of the lesson that it grew from, why it is gone ("gone")."""
    named = written_sentences()
    written = []  # for each lesson, by its position, its lines and its sentences
    for lesson in lessons.LESSONS:
        written.append((texts[lesson.stem], list(named.get(lesson.stem, {}).values())))

    found = {}
    for position, lesson in enumerate(lessons.LESSONS):
        own = {"sentences": [], "shown": [], "because": [None] * len(texts[lesson.stem]), "gone": {}}
        found[lesson.stem] = own
        if not lesson.grown_from:
            continue
        before = texts[lesson.grown_from]
        after = texts[lesson.stem]
        inherit(own["because"], found[lesson.grown_from]["because"], written, before, after)

        shown = SENTENCE.findall(stored_diff(lesson))
        gone, come = changed(before, after)
        changes = show.Diff(lesson.grown_from, lesson.stem, named[lesson.stem])
        for number, (sentence, lines) in enumerate(changes.parts):
            own["sentences"].append(as_html(sentence))
            words = show.escaped(sentence)
            own["shown"].append(shown.index(words) if words in shown else None)
            for sign, _ in lines:
                if sign == "+":
                    own["because"][come.pop(0)] = [position, number]
                elif sign == "-":
                    own["gone"][gone.pop(0)] = number
    return found


def inherit(because, because_before, written, before, after):
    """Note for each line that a lesson keeps why it is there, where the sentence on it is still true."""
    for start, other, size in same(before, after):
        for step in range(size):
            why = because_before[start + step]
            if why is None:
                continue
            origin, number = why
            if is_still_true(written[origin], number, after):
                because[other + step] = why


def places(before, after) -> list[tuple[range, range]]:
    """Where two files differ: of each place, the lines of the one that are gone and those of the other that
    have come, as positions."""
    found = []
    for kind, low, high, start, end in show.compared(before, after).get_opcodes():
        if kind != "equal":
            found.append((range(low, high), range(start, end)))
    return found


def changed(before, after) -> tuple[list[int], list[int]]:
    """The lines of the one that are gone in the other, and the lines of the other that have come."""
    all_gone = []
    all_come = []
    for gone, come in places(before, after):
        all_gone += gone
        all_come += come
    return all_gone, all_come


def is_still_true(origin, number, lines) -> bool:
    """Whether a sentence, written where a line came, explains it in a later lesson, too. Where that lesson no
    longer has what the sentence names, the line is there for another reason."""
    first_lines, first_sentences = origin
    first = "\n".join(first_lines)
    now = "\n".join(lines)
    for name in re.findall(r"`(?:\w+\.)*(\w+)`", first_sentences[number]):
        word = re.compile(rf"\b{name}\b")
        if word.search(first) and not word.search(now):
            return False
    return True


def written_sentences() -> dict[str, dict[str, str]]:
    """What notebooks/show/sentences.py says of each change."""
    space = {}
    exec((ROOT / "notebooks/show/sentences.py").read_text(), space)
    return space["SENTENCES"]


def stored_diff(lesson) -> str:
    """What the cells of the lesson's notebook show of the difference to the lesson that it grew from."""
    (notebook,) = [row for row in lesson.notebooks if row.stem == lesson.stem]
    found = []
    for cell in json.loads(notebook.path.read_text())["cells"]:
        for output in cell.get("outputs", []):
            if output.get("metadata", {}).get("rungs") == "diff":
                found.append("".join(output["data"]["text/markdown"]))
    if not found:
        raise ValueError(f"{notebook.path} shows no diff")
    return "\n\n".join(found)


def as_html(sentence: str) -> str:
    """A sentence on a change has inline code, and no other Markdown."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", sentence.replace("&", "&amp;").replace("<", "&lt;"))
