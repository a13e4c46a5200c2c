"""A deck of slides for instructors: one slide for each lesson, from the card on its page.

The site has it as slides.html. It needs nothing besides this one file. Arrow keys turn the slides, and
printing puts each slide on a page of its own, so the browser's "save as PDF" makes a PDF.
"""

import html
import re
import textwrap

import jinja2

from tools import lessons
from tools.lessons import ROOT

RUN, NEW, COPY = "**Run it:**", "**New here:**", "**Copy these lines:**"
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(ROOT / "tools/makers/site/theme"),
    undefined=jinja2.StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


def read(page: str):
    """A card: the command, the new ideas and the lines to copy. Each line may begin with > or not."""
    text = page.split("<!-- card -->")[1].split("<!-- end of card -->")[0]
    text = re.sub(r"^> ?", "", text, flags=re.M)
    run, new, copy = re.split("|".join(map(re.escape, (RUN, NEW, COPY))), text, maxsplit=3)[1:]
    command = re.search(r"```sh\n(.*?)```|`([^`]+)`", run, re.S)
    block = re.match(r"\s*```python\n(.*?)\n```", copy, re.S)
    assert command and block, "the command, or the lines to copy, are not in a block of code"
    ideas = re.findall(r"^\s*\d+\. (.+)", new, re.M)
    return command[1] or command[2], ideas, textwrap.dedent(block[1]).splitlines()


def escaped(text: str) -> str:
    return html.escape(text, quote=False)


def inline(text: str) -> str:
    """What a card's sentences have of Markdown: code, bold, and links, of which the words stay."""
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)


def deck(site) -> str:
    """The deck for the site in this folder, which may lack some pages."""
    slides = []
    for lesson in lessons.LESSONS:
        text, page = lesson.page.read_text(), f"lessons/pages/{lesson.page.stem}.html"
        if "<!-- card -->" in text:
            slides.append((lesson, read(text), page if (site / page).exists() else ""))
    TEMPLATES.filters.update(inline=inline, escaped=escaped)
    return TEMPLATES.get_template("slides.html.jinja").render(slides=slides)
