"""What changed from one lesson to the next, a function as it stands in its file, a table."""

import ast
import difflib
import html
import inspect
import re
from pathlib import Path

from IPython.display import display

from show.folders import LESSONS
from show.sentences import SENTENCES

LONGEST = 12  # lines of a fence: more than that nobody reads at once


class Diff:
    """Two files, and a sentence on each place where they differ.

    A place that is long is shown in parts, each with a sentence. That of a further part stands under "+ " or
    "- " and the beginning of its first line. With `places`, only these are shown, counted from 1.
    """

    def __init__(self, before, after, sentences, places=()):
        names = [LESSONS / f"{stem}.py" for stem in (before, after)]
        self.names = [path.name for path in names]
        self.lines = [path.read_text().splitlines() for path in names]
        matcher = difflib.SequenceMatcher(None, *self.lines, autojunk=False)
        self.hunks = list(matcher.get_grouped_opcodes(1))
        firsts = [anchor for anchor in sentences if anchor[:2] not in ("+ ", "- ")]
        if len(self.hunks) != len(firsts):
            places = "".join(
                f"\n  {number}: {self.changed(hunk)[0][1].strip()}"
                for number, hunk in enumerate(self.hunks, 1)
            )
            raise ValueError(
                f"{len(self.hunks)} places differ, but there are {len(firsts)} sentences. Places:{places}"
            )
        self.parts = []  # a sentence, and its lines with their signs
        number_of_parts = []
        hunks = iter(enumerate(self.hunks, 1))
        for anchor, sentence in sentences.items():
            if anchor in firsts:
                number, hunk = next(hunks)
                self.check(number, hunk, anchor)
                self.parts.append((sentence, list(self.all(hunk))))
            else:
                self.parts.append((sentence, self.split(anchor)))
            number_of_parts.append(number)
        self.places = sorted(places) or list(range(1, len(self.hunks) + 1))
        if not 1 <= self.places[0] <= self.places[-1] <= len(self.hunks):
            raise ValueError(f"there are places 1 to {len(self.hunks)}, not {self.places}")
        self.parts = [part for part, of in zip(self.parts, number_of_parts, strict=True) if of in self.places]

    def in_order(self):
        return sorted(self.parts, key=self.order)

    def order(self, part):
        """Code comes first, because it is what a lesson teaches; then imports, then the docstrings."""
        for number, kind in enumerate((ast.Import | ast.ImportFrom, ast.Expr), 1):
            tops = {sign: lines_of(kind, lines) for sign, lines in zip("-+", self.lines, strict=True)}
            if all(line in tops[sign] for sign, line in part[1] if sign != " " and line):
                return number
        return 0

    def check(self, number, hunk, anchor):
        if anchor not in "\n".join(line for _, line in self.changed(hunk)):
            first = self.changed(hunk)[0][1].strip()
            raise ValueError(f"place {number}, which begins with {first!r}, does not change {anchor!r}")

    def split(self, anchor):
        """Take from the last part the lines from the one that begins so."""
        sign, beginning = anchor[0], anchor[2:].strip()
        lines = self.parts[-1][1]
        for number, (own, line) in enumerate(lines[1:], 1):
            if own == sign and line.strip().startswith(beginning):
                rest = lines[number:]
                del lines[number:]
                return rest
        raise ValueError(f"no line before the next place begins with {anchor!r}")

    def too_long(self):
        """The first lines of the parts that have too many."""
        return [lines[0][1].strip() for _, lines in self.parts if len(lines) > LONGEST]

    def all(self, hunk):
        """The lines of a place, each with its sign; those around it have none."""
        before, after = self.lines
        for kind, low, high, start, end in hunk:
            if kind == "equal":
                yield from ((" ", line) for line in before[low:high])
            else:
                yield from (("-", line) for line in before[low:high])
                yield from (("+", line) for line in after[start:end])

    def changed(self, hunk):
        return [(sign, line) for sign, line in self.all(hunk) if sign != " "]

    def head(self):
        text = f"`{self.names[0]}` to `{self.names[1]}`"
        if len(self.places) < len(self.hunks):
            text += f": {len(self.places)} of {len(self.hunks)} changes"
        return text

    def __repr__(self):
        text = []
        for sentence, lines in self.in_order():
            changed = [f"{sign} {line}" for sign, line in lines if sign != " "]
            text += [f"# {sentence}", *changed, ""]
        return "\n".join(text)

    def _repr_html_(self):
        """For JupyterLab, which colours no lines of a fence. `make notebooks` drops it, because GitHub
        would show it without colours."""
        colours = {"+": "rgba(46, 160, 67, 0.2)", "-": "rgba(248, 81, 73, 0.2)", " ": "transparent"}
        text = [f"<p>{marked(self.head())}</p>"]
        for sentence, lines in self.in_order():
            rows = "".join(
                f'<div style="background: {colours[sign]}">{html.escape(f"{sign} {line}")}</div>'
                for sign, line in lines
            )
            style = "overflow-x: auto; white-space: pre"  # a wrapped line would look like two
            text.append(f'<p>{marked(sentence)}</p><pre style="{style}">{rows}</pre>')
        return "\n".join(text)

    def _repr_markdown_(self):
        """GitHub shows no colours of ours and no columns, but it colours the lines of a fence."""
        text = [self.head()]
        for sentence, lines in self.in_order():
            fence = [f"{sign} {line}".rstrip() for sign, line in lines]
            text.append("\n".join([escaped(sentence), "", "```diff", *fence, "```"]))
        return "\n\n".join(text)


def lines_of(kind, lines):
    """The lines of a script's statements of this kind. An expression there is the docstring."""
    nodes = [node for node in ast.parse("\n".join(lines)).body if isinstance(node, kind)]
    return {line for node in nodes for line in lines[node.lineno - 1 : node.end_lineno]}


def diff(before, after, places=()):
    """The changes from one lesson to the next, or some of them. SENTENCES has one for each place, under some
    words of the changed lines: when a lesson changes and the sentences do not, this is an error."""
    display(Diff(before, after, SENTENCES.get(after, {}), places), metadata={"rungs": "diff"})


class Source:
    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text

    def _repr_markdown_(self):
        return f"```python\n{self.text}\n```"


def source(what, name=None):
    """Show the code of a function, or of a function by its name in a lesson."""
    if name is None:
        text = inspect.getsource(what)
    else:
        whole = (LESSONS / f"{what}.py").read_text()
        found = next(node for node in ast.parse(whole).body if getattr(node, "name", None) == name)
        first = min([found.lineno, *(line.lineno for line in found.decorator_list)])
        text = "\n".join(whole.splitlines()[first - 1 : found.end_lineno])
    display(Source(text.rstrip()), metadata={"rungs": "source"})


class Table:
    def __init__(self, head, rows):
        self.rows = [[str(cell) for cell in row] for row in [head, *rows]]

    def __repr__(self):
        widths = [max(len(cell) for cell in column) for column in zip(*self.rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in self.rows
        ]
        return "\n".join(line.rstrip() for line in lines)

    def _repr_markdown_(self):
        rows = [[escaped(cell) for cell in row] for row in self.rows]
        rows.insert(1, ["---"] * len(rows[0]))
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def marked(text):
    """Text as HTML, in which backquotes mark code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def escaped(text):
    """Text of which Markdown understands nothing but its backquotes."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"([\\*_<>\[\]$~])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts).replace("|", r"\|").replace("\n", " ")


def table(head, rows):
    display(Table(head, rows))


def variant(stem, out, name, changes):
    """Write a copy of a lesson with some lines changed, and show what was changed."""
    text = (LESSONS / f"{stem}.py").read_text()
    for old, new in changes.items():
        if text.count(old) != 1:
            raise ValueError(f"{stem}.py has {text.count(old)} times, not once: {old}")
        text = text.replace(old, new)
    path = Path(out) / f"{name}.py"
    path.write_text(text)
    before = (LESSONS / f"{stem}.py").read_text().splitlines()
    for line in difflib.unified_diff(before, text.splitlines(), n=0, lineterm=""):
        if line[0] in "+-" and line[:3] not in ("+++", "---"):
            print(line)
    return path
