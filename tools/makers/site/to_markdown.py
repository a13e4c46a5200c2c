"""The pages of the repository, as the site's builder reads them: Markdown, in the same folders.

A page keeps its text; only its links change, so that they lead to pages of the site. A notebook becomes a
page with its stored outputs. A file or folder that some page links becomes a page of its own, which shows it.
"""

import ast
import base64
import html
import itertools
import json
import os
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tools import lessons
from tools.lessons import ROOT

HOME = PurePosixPath("index.md")
START = PurePosixPath("README.md")
# What must not be looked into for links: fences and inline code. The last alternative is a link's end.
LINK = re.compile(r"(?ms)^ *(`{3,}).*?^ *\1|`+[^`]+`+|\]\((?P<target>[^)\s]+)\)")
COMMENT = re.compile(r"(?s)^<!-- .*?-->\n|<!-- .*?-->")
WAY = re.compile(
    r"(?s)<!-- (?P<name>way|way on): written by `make diffs` -->\n(.*?)<!-- end of (?P=name) -->\n?"
)
PICTURES = (".png", ".svg")
LANGUAGES = {".py": "python", ".sbatch": "sh", ".yml": "yaml"}
LANGUAGES |= {f".{name}": name for name in ("sh", "toml", "json", "yaml")}
DIFF = re.compile(r"(?ms)^```diff\n(.*?)^```$")
SENTENCE = re.compile(r"(?m)^(?=\S.*\n\n```diff)")  # where a sentence on a place of a stored diff begins
WORDS_A_MINUTE = 200  # as tools/diffs.py has it for notebooks


class Broken(Exception):
    """A page says something that is not so."""


@dataclass
class Book:
    """The pages of a site, and what a page is to be written for, because some page links it."""

    folder: Path  # where the sources go
    pages: tuple[PurePosixPath, ...]  # pages of the repository which are pages of the site
    address: str = ""  # of the repository, where it has one
    is_whole: bool = True  # else a link to what is left out is only its text
    linked: set = field(default_factory=set)
    widgets: dict = field(default_factory=dict)

    def write(self, path, content):
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    def page_of(self, path: PurePosixPath) -> PurePosixPath | None:
        """The source of the page that shows a file or folder of the repository."""
        if path in self.pages:
            return path.with_suffix(".md")
        is_folder = (ROOT / path).is_dir()
        if is_folder and path / "README.md" in self.pages:
            return path / "README.md"
        if not self.is_whole:
            return None
        self.linked.add(path)
        return path / "index.md" if is_folder else path.with_name(path.name + ".md")

    def link(self, target: str, page: PurePosixPath) -> str | None:
        """A link of a page, as the site has it."""
        if re.match(r"https?:|mailto:", target):
            return target
        name, _, anchor = target.partition("#")
        anchor = anchor.lower()  # Jupyter keeps a heading's capitals in its name, the site and GitHub do not
        if not name:
            return f"#{anchor}"
        path = PurePosixPath(os.path.normpath(page.parent / name))
        if not (ROOT / path).exists():
            raise Broken(f"{page} links {target}, and there is no {path}")
        if path.suffix in PICTURES:  # they lie where they are in the repository
            return target
        source = self.page_of(path)
        if path == START and not anchor and page != START:
            source = HOME
        if source is None:
            return None
        anchor = f"#{anchor}" if anchor and source.suffix == ".md" and path in self.pages else ""
        return os.path.relpath(source, page.parent) + anchor

    def relinked(self, text: str, page: PurePosixPath) -> str:
        """A page's text with the site's links. To what is left out of a small site there is none."""

        def replace(match):
            if not match["target"]:
                return match[0]
            target = self.link(match["target"], page)
            return f"]({target})" if target else "](#)"

        text = LINK.sub(replace, text)
        return text if self.is_whole else re.sub(r"\[((?:`[^`]*`|[^\]`])*)\]\(#\)", r"\1", text)


def minutes(text: str) -> str:
    """How long it takes to read a page, without its fences."""
    prose = re.sub(r"(?ms)^```.*?^```|<!-- .*?-->", "", text)
    count = max(1, round(len(prose.split()) / WORDS_A_MINUTE))
    return "a minute to read" if count == 1 else f"{count} minutes to read"


def card(book, page, time: str, way: str) -> str:
    """The line under a page's title: how long it takes, and what belongs to it."""
    found = [time]
    for line in way.splitlines():
        for entry in line.split(" | "):
            if re.match(r"script|notebook|exercise", entry):
                found.append(entry)
    for lesson in lessons.LESSONS:
        if page.name in [notebook.path.name for notebook in lesson.notebooks]:
            found.insert(1, f"lesson: [{lesson.number}](../lessons/pages/{lesson.page.name})")
        if page.name == lesson.page.name and lesson.grown_from:
            pair = f"{lesson.grown_from}..{lesson.stem}"
            found.append(f'<a href="../../widgets/diff.html?{pair}">its diff side by side</a>')
    for name, widget in book.widgets.items():
        if f"(../{page})" in widget.INTRODUCTION:
            found.append(f'<a href="../widgets/{name}.html">{widget.TITLE}</a>')
    found += elsewhere(book.address, page)
    return f":::{{container}} card\n{' · '.join(found)}\n:::\n"


def elsewhere(address, page) -> list[str]:
    """Where else a page is, if the repository's address is known."""
    if not address:
        return []
    found = [f"[edit this page]({address}/edit/main/{page})"]
    if page.suffix == ".ipynb":
        name = address.removeprefix("https://github.com/")
        found.append(f"[open in Colab](https://colab.research.google.com/github/{name}/blob/main/{page})")
        found.append(f"[download the notebook]({address}/raw/main/{page})")
    return found


def markdown(book, page: PurePosixPath) -> str:
    """A page of the repository."""
    text = (ROOT / page).read_text()
    time = minutes(text)
    if not WAY.search(text):
        text += "\n" + " · ".join(elsewhere(book.address, page))
    text = WAY.sub(lambda way: card(book, page, time, way[2]) if way["name"] == "way" else "", text)
    return COMMENT.sub("", with_short_diffs(book.relinked(text, page)))


# ---- diffs ----


def with_short_diffs(text: str) -> str:
    """A page whose diffs have no indentation that all lines of a place share: a phone has 40 letters."""
    return DIFF.sub(lambda fence: f"```diff\n{short_diff(fence[1])}```", text)


def short_diff(text: str) -> str:
    """A diff, of which each place, which begins with @@, moves to the left as far as its lines allow. One
    space may stay between the sign and the line, as in the diffs of notebooks."""
    head, *places = re.split(r"(?m)^(?=@@ )", text)
    if not places:
        return moved_left(head)
    return head + "".join(map(moved_left, places))


def moved_left(place: str) -> str:
    lines = place.splitlines()
    moved = []
    if lines[0].startswith("@@ "):
        moved.append(lines.pop(0))
    indents = []
    for line in lines:
        own = line[1:]  # without the sign
        if own.strip():
            indents.append(len(own) - len(own.lstrip(" ")))
    cut = max(0, min(indents, default=0) - 1)
    for line in lines:
        moved.append(line[:1] + line[1 + cut :])
    return "\n".join(moved) + "\n"


# ---- notebooks ----


def fence(text: str, language: str, name: str) -> str:
    """A block of code or output, with a class, in a fence that is longer than any in it."""
    count = 3
    for run in re.findall(r"`{3,}", text):
        count = max(count, len(run) + 1)
    ticks = "`" * count
    return f"{ticks}{{code-block}} {language}\n:class: {name}\n\n{text.rstrip()}\n{ticks}\n"


def folded(text: str, summary: str) -> str:
    return f'<details class="plumbing"><summary>{summary}</summary>\n\n{text}\n</details>\n'


def plumbing(cell) -> str:
    """What to call a cell that a reader does not need, since it draws, or gets things ready."""
    if cell["id"] == "first" or "show.start(" in "".join(cell["source"]):
        return "Set-up"
    return "Code" if "hide-input" in cell["metadata"].get("tags", []) else ""


def notebook(book, page: PurePosixPath) -> str:
    """A notebook: its prose, its code, and what it showed when it was executed last."""
    cells = json.loads((ROOT / page).read_text())["cells"]
    text = []
    pictures = 0
    sentences = itertools.count()  # on the changes in all diffs of the notebook
    for number, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            source = WAY.sub(lambda way: notebook_card(book, page, way[2]), source)
            text.append(COMMENT.sub("", book.relinked(source, page)))
            continue
        code = fence(source, "python", "code")
        summary = plumbing(cell)
        text.append(folded(code, summary) if summary else code)

        for output in cell["outputs"]:
            data = output.get("data", {})
            if output["output_type"] == "stream":
                shown = re.sub(r"\x1b\[[0-9;]*m", "", "".join(output["text"]))
                text.append(fence(shown, "text", "output"))
            elif "image/png" in data:
                pictures += 1
                text.append(picture(book, page, output, pictures))
            elif "text/markdown" in data:
                shown = book.relinked("".join(data["text/markdown"]), page)
                if output["metadata"].get("rungs") == "diff":
                    shown = with_anchors(with_short_diffs(shown), sentences)
                text.append(shown)
            else:
                raise Broken(f"{page}, cell {number} shows {', '.join(data)}: to_markdown.py knows no way")
    return "\n\n".join(text) + "\n"


def notebook_card(book, page, way: str) -> str:
    """The way at a notebook's beginning says how long it takes; that at its end does not."""
    time = re.search(r"(\d+ minutes to read); (.*)\.", way)
    return card(book, page, f"{time[1]}, {time[2]}", way) if time else ""


def with_anchors(text: str, numbers: Iterator[int]) -> str:
    """A stored diff, with a name before each of its sentences: the page of diffs links them. The sentences of
    all diffs of a notebook are counted on."""
    return SENTENCE.sub(lambda _: f'<span id="sentence-{next(numbers)}"></span>', text)


# ---- files and folders that pages link ----


def file(path: PurePosixPath) -> str:
    """A page that shows a file."""
    # Who searches wants what a page says, or a lesson, and not each line of the tests.
    search = "" if path.parent == PurePosixPath("lessons") else "nosearch: true\n"
    code = fence((ROOT / path).read_text(), LANGUAGES.get(path.suffix, "text"), "code")
    return f"---\norphan: true\n{search}---\n\n# {path.name}\n\n`{path}`\n\n{code}"


def is_exercise(path) -> bool:
    return bool(lessons.number_of(path.stem)) and path.parent == PurePosixPath("lessons/exercises")


def exercise(path: PurePosixPath) -> str:
    """The page of an exercise: what its docstring asks, how to check an answer, and the file."""
    text = (ROOT / path).read_text()
    first, _, rest = ast.get_docstring(ast.parse(text)).partition("\n")
    title, points = re.match(r"(.*)\. (\d+ points.*)\.", first).groups()
    body = text.split('"""', 2)[2].lstrip("\n")
    return (
        f"# {title}\n\n:::{{container}} card\n{points} · `{path}`\n:::\n\n{docstring(rest)}\n\n"
        f"```sh\nmake check EX={lessons.number_of(path.stem)}\n```\n\n{fence(body, 'python', 'code')}\n"
        "What is allowed, and what the grader will say: [exercises](README.md).\n"
    )


def picture(book, page: PurePosixPath, output: dict, number: int) -> str:
    """A picture that a notebook shows: written beside its page, and the HTML that shows it."""
    name = f"{page.stem}.{number}.png"
    book.write(page.with_name(name), base64.b64decode("".join(output["data"]["image/png"])))
    more = output["metadata"].get("image/png", {})
    alt = html.escape(more.get("alt", ""))
    return f'<img src="{name}" width="{more.get("width", 550)}" alt="{alt}">'


def docstring(text: str) -> str:
    """Plain text as Markdown: what is indented stays as it is."""
    found = []
    # The pattern has one group, so every second part is one that it fits.
    parts = re.split(r"(?m)((?:^ {4}.*\n?|^\n(?= {4}))+)", text.strip("\n"))
    for index, part in enumerate(parts):
        if not part.strip():
            continue
        part = textwrap.dedent(part)
        is_indented = index % 2 == 1
        found.append(fence(part, "text", "output") if is_indented else part)
    return "\n\n".join(found)


def folder(book, path: PurePosixPath) -> str:
    """A page that lists a folder."""
    lines = []
    for child in sorted((ROOT / path).iterdir()):
        if is_shown(child):
            lines.append(f"- [{child.name}]({book.link(child.name, path / 'index.md')})")
    return f"---\norphan: true\n---\n\n# {path}\n\n" + "\n".join(lines) + "\n"


def is_shown(path: Path) -> bool:
    if path.name.startswith((".", "__pycache__")) or path.suffix in (*PICTURES, ".pyc"):
        return False
    return path.is_file() or any(child.suffix != ".pyc" for child in path.iterdir())
