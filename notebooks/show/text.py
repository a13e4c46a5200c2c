"""What changed from one lesson to the next, a function as it stands in its file, a table."""

import ast
import difflib
import html
import inspect
import re
from pathlib import Path

from IPython.display import display

from show.paths import LESSONS
from show.sentences import SENTENCES


class Diff:
    """Two files, and a sentence on each place where they differ.

    A place that is long is shown in parts, each with a sentence. That of a further part stands under "+ " or
    "- " and the beginning of its first line. With `places`, only these are shown, counted from 1.
    """

    def __init__(self, before, after, sentences, places=()):
        self.sentences_of = f"notebooks/show/sentences.py, {after}"  # for messages: where to correct them
        paths = [LESSONS / f"{before}.py", LESSONS / f"{after}.py"]
        self.names = [path.name for path in paths]
        self.before, self.after = [path.read_text().splitlines() for path in paths]
        self.hunks = self.compare()
        self.require_one_sentence_each(sentences)

        self.places = sorted(places) or list(range(1, len(self.hunks) + 1))
        if not 1 <= self.places[0] <= self.places[-1] <= len(self.hunks):
            raise ValueError(f"there are places 1 to {len(self.hunks)}, not {self.places}")

        self.parts = []  # a sentence, and its lines with their signs
        for place, sentence, lines in self.cut(sentences):
            if place in self.places:
                self.parts.append((sentence, lines))

    def compare(self):
        """The places that differ: of each, its lines with their signs, and one line around them."""
        hunks = []
        for changes in compared(self.before, self.after).get_grouped_opcodes(1):
            hunk = []
            for kind, low, high, start, end in changes:
                if kind == "equal":
                    hunk += with_sign(" ", self.before[low:high])
                else:
                    hunk += with_sign("-", self.before[low:high])
                    hunk += with_sign("+", self.after[start:end])
            hunks.append(hunk)
        return hunks

    def require_one_sentence_each(self, sentences):
        count = 0
        for key in sentences:
            if not begins_a_further_part(key):
                count += 1
        if count == len(self.hunks):
            return

        places = []
        for number, hunk in enumerate(self.hunks, 1):
            places.append(f"\n  {number}: {first_change(hunk)}")
        raise ValueError(
            f"{self.sentences_of}: {len(self.hunks)} places differ, but there are {count} sentences. "
            f"Places:{''.join(places)}"
        )

    def cut(self, sentences):
        """All parts, in the order of the file: the number of the place, the sentence, and the lines."""
        parts = []
        place = 0
        lines = []
        for key, sentence in sentences.items():
            if begins_a_further_part(key):
                lines = self.split(lines, key)
            else:
                place += 1
                lines = list(self.hunks[place - 1])
                self.require_words(place, key)
            parts.append((place, sentence, lines))
        return parts

    def require_words(self, place, key):
        hunk = self.hunks[place - 1]
        lines = [line for _, line in changed(hunk)]
        if key not in "\n".join(lines):
            raise ValueError(
                f"{self.sentences_of}: place {place}, which begins with {first_change(hunk)!r}, does not "
                f"change {key!r}"
            )

    def split(self, lines, key):
        """Take from the last part the lines from the one that begins so."""
        sign, beginning = key[0], key[2:].strip()
        for number, (own, line) in enumerate(lines):
            if number > 0 and own == sign and line.strip().startswith(beginning):
                rest = lines[number:]
                del lines[number:]
                return rest
        raise ValueError(f"{self.sentences_of}: no line before the next place begins with {key!r}")

    def in_order(self):
        return sorted(self.parts, key=self.order)

    def order(self, part):
        """Code comes first, because it is what a lesson teaches; then imports, then the docstrings."""
        _, lines = part
        if self.changes_only(ast.Import | ast.ImportFrom, lines):
            return 1
        if self.changes_only(ast.Expr, lines):
            return 2
        return 0

    def changes_only(self, kind, lines):
        """Whether the changed lines all belong to statements of this kind."""
        statements = {"-": lines_of(kind, self.before), "+": lines_of(kind, self.after)}
        return all(line in statements[sign] for sign, line in changed(lines) if line)

    def head(self):
        text = f"`{self.names[0]}` to `{self.names[1]}`"
        if len(self.places) < len(self.hunks):
            text += f": {len(self.places)} of {len(self.hunks)} changes"
        return text

    def __repr__(self):
        text = []
        for sentence, lines in self.in_order():
            text.append(f"# {sentence}")
            for sign, line in changed(lines):
                text.append(f"{sign} {line}")
            text.append("")
        return "\n".join(text)

    def _repr_html_(self):
        """For JupyterLab, which colours no lines of a fence. `make notebooks` drops it, because GitHub
        would show it without colours."""
        colours = {"+": "rgba(46, 160, 67, 0.2)", "-": "rgba(248, 81, 73, 0.2)", " ": "transparent"}
        style = "overflow-x: auto; white-space: pre"  # a wrapped line would look like two
        text = [f"<p>{marked(self.head())}</p>"]
        for sentence, lines in self.in_order():
            rows = []
            for sign, line in lines:
                code = html.escape(f"{sign} {line}")
                rows.append(f'<div style="background: {colours[sign]}">{code}</div>')
            text.append(f'<p>{marked(sentence)}</p><pre style="{style}">{"".join(rows)}</pre>')
        return "\n".join(text)

    def _repr_markdown_(self):
        """GitHub shows no colours of ours and no columns, but it colours the lines of a fence."""
        text = [self.head()]
        for sentence, lines in self.in_order():
            fence = []
            for sign, line in lines:
                fence.append(f"{sign} {line}".rstrip())
            text.append("\n".join([escaped(sentence), "", "```diff", *fence, "```"]))
        return "\n\n".join(text)


def compared(before, after):
    """What two lists of lines have in common. With autojunk, lines that a long script has often would count
    as changed."""
    return difflib.SequenceMatcher(None, before, after, autojunk=False)


def begins_a_further_part(key):
    return key.startswith(("+ ", "- "))


def with_sign(sign, lines):
    return [(sign, line) for line in lines]


def changed(lines):
    """Without the lines around a change, which have no sign."""
    return [(sign, line) for sign, line in lines if sign != " "]


def first_change(hunk):
    return changed(hunk)[0][1].strip()


def lines_of(kind, lines):
    """The lines of a script's statements of this kind. An expression there is the docstring."""
    found = set()
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, kind):
            found.update(lines[node.lineno - 1 : node.end_lineno])
    return found


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
        script = (LESSONS / f"{what}.py").read_text()
        text = code_of(name, script)
    display(Source(text.rstrip()), metadata={"rungs": "source"})


def code_of(name, script):
    """A function or a class of a script, with its decorators."""
    for node in ast.parse(script).body:
        if getattr(node, "name", None) == name:
            first = node.decorator_list[0] if node.decorator_list else node
            return "\n".join(script.splitlines()[first.lineno - 1 : node.end_lineno])
    raise ValueError(f"the script has nothing that is called {name}")


class Table:
    def __init__(self, head, rows):
        self.rows = []
        for row in (head, *rows):
            self.rows.append(list(map(str, row)))

    def __repr__(self):
        widths = []
        for column in zip(*self.rows, strict=True):
            widths.append(max(map(len, column)))
        lines = []
        for row in self.rows:
            cells = map(str.ljust, row, widths)
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _repr_markdown_(self):
        lines = []
        for row in self.rows:
            lines.append(f"| {' | '.join(map(escaped, row))} |")
        lines.insert(1, f"| {' | '.join(['---'] * len(self.rows[0]))} |")
        return "\n".join(lines)


def marked(text):
    """Text as HTML, in which backquotes mark code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def escaped(text):
    """Text of which Markdown understands nothing but its backquotes."""
    parts = []
    for number, part in enumerate(re.split(r"(`[^`]*`)", text)):
        if number % 2 == 0:  # the others are code, in backquotes
            part = re.sub(r"([\\*_<>\[\]$~])", r"\\\1", part)
        parts.append(part)
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
