"""Link the words of lessons/pages/words.md where a notebook first uses them.

    python -m tools.words

You will see one line for each link that is written: the notebook, the word, and the words around it. Each
word is linked once in a notebook, in the first sentence where it is plain text. A second run writes nothing.
`make notebooks` does the same to each notebook that it executes.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import nbformat

from tools import lessons
from tools.lessons import ROOT

PAGE = ROOT / "lessons/pages/words.md"
LINK = "../lessons/pages/words.md#"  # from a notebook
DOCUMENTATION = "https://docs.pytorch.org/"
PLAIN = "Also an everyday word."  # in words.md: there it is not linked
# What is no sentence: the way to other pages, code, headings, formulas, HTML. Links are looked into.
OTHER = re.compile(
    r"(?ms)<!-- (?P<name>[^>]*?): written by.*?<!-- end of (?P=name) -->|^```.*?^```|^#+ .*?$|`+[^`]+`+"
    r"|!?\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]*)\)|<summary>.*?</summary>|<[^>]+>|\$[^$]+\$|https?://\S+"
)
EXPLAINED = re.compile(r"(\*\*|\*|_)$"), re.compile(r"^[.:,]?(\*\*|\*|_)")


@dataclass(frozen=True)
class Word:
    name: str
    forms: tuple[str, ...]
    first_in: tuple[str, ...]  # numbers of lessons and notebooks, which explain it
    is_plain: bool

    @property
    def anchor(self) -> str:
        return re.sub(r"[^\w\- ]", "", self.name.lower()).replace(" ", "-")

    @property
    def pattern(self) -> re.Pattern:
        """The word and its plural. Capitals count where the word has some: ZeRO is not zero."""
        forms = []
        for form in self.forms:
            has_capitals = form != form.lower()
            forms.append(re.escape(form) if has_capitals else f"(?i:{re.escape(form)})")
        return re.compile(rf"(?<![\w-])(?:{'|'.join(forms)})(?:e?s)?(?![\w-])")


def read(page: Path = PAGE) -> list[Word]:
    """The words of the page; long ones first, since "ring all-reduce" has "all-reduce" in it."""
    found = []
    for section in page.read_text().partition("\n---\n")[0].split("\n## ")[1:]:
        name, _, text = section.partition("\n")
        also = re.search(r"Also: (.*)\.$", text, re.M)
        forms = [name]
        if also:
            forms += re.findall(r"\*([^*]+)\*", also[1])
        last = text.strip().splitlines()[-1]
        first_in = tuple(re.findall(r"(?:lesson|notebook) \[(\w+)\]", last))
        found.append(Word(name, tuple(forms), first_in, last.endswith(PLAIN)))
    return sorted(found, key=lambda word: (-len(word.name), word.name))


def index() -> str:
    """All words of the page, each leading to its place."""
    links = []
    for word in sorted(read(), key=lambda word: word.name.lower()):
        links.append(f"[{word.name}](#{word.anchor})")
    return " | ".join(links) + "\n"


def number(row: lessons.Notebook) -> str:
    """03a; of the notebook that belongs to no lesson, its name."""
    return row.stem.split("_")[0]


def first_use(word: Word, sources: list[str]) -> tuple[int, int, int] | None:
    """The cell, the begin and the end of the first use, if it is neither linked nor explained; else None.

    A use is linked where the link leads to the word's place in words.md, or to PyTorch's documentation. It is
    explained where it is the whole of something **bold** or *italic*. Code, headings and links to other pages
    are no uses.
    """
    for at, source in enumerate(sources):
        others = list(OTHER.finditer(source))
        for use in word.pattern.finditer(source):
            around = [other for other in others if other.start() <= use.start() < other.end()]
            if around:
                if is_linked(word, use, around[0]):
                    return None
                continue
            before, after = EXPLAINED
            if before.search(source[: use.start()]) and after.search(source[use.end() :]):
                return None
            return at, use.start(), use.end()
    return None


def is_linked(word: Word, use: re.Match, link: re.Match) -> bool:
    """Whether a use is in the text of a link, and the link leads to where the word is explained."""
    if link["text"] is None or use.start() > link.start("target"):
        return False
    target = link["target"]
    return target.endswith(f"words.md#{word.anchor}") or target.startswith(DOCUMENTATION)


def missing(own: str, notebook, words: list[Word] | None = None):
    """The words that a notebook uses before it links or explains them, with cell, begin and end of that use.

    Not those that are first in this notebook, which is about them, nor those that elsewhere are plain words.
    """
    sources = [cell.source if cell.cell_type == "markdown" else "" for cell in notebook.cells]
    for word in read() if words is None else words:
        if word.is_plain or own in word.first_in:
            continue
        use = first_use(word, sources)
        if use is not None:
            yield word, use


def link(own: str, notebook, words: list[Word] | None = None) -> list[str]:
    """Link what is missing. Returns a line for each link."""
    found = []
    for word in read() if words is None else words:
        for _, (at, start, end) in list(missing(own, notebook, [word])):
            cell = notebook.cells[at]
            head = cell.source[:start]
            text = cell.source[start:end]
            rest = cell.source[end:]
            cell.source = f"{head}[{text}]({LINK}{word.anchor}){rest}"
            found.append(f"{word.name}: ...{head[-30:]}[{text}]{rest[:30]}...".replace("\n", " "))
    return found


def main():
    for row in lessons.NOTEBOOKS:
        notebook = nbformat.read(row.path, as_version=4)
        found = link(number(row), notebook)
        for line in found:
            print(f"{row.stem}  {line}")
        if found:
            row.path.write_text(nbformat.writes(notebook) + "\n")


if __name__ == "__main__":
    main()
