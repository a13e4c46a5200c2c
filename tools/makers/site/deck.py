"""A deck of slides for instructors, from what pages and notebooks have already.

For each lesson: its idea with the first picture of its notebook, what is new, a few sentences on a slide, and
the lines to copy with the command. The site has it as slides.html, beside the pictures in _static/slides.
Arrow keys turn the slides, and printing puts each slide on a page of its own, so the browser's "save as PDF"
makes a PDF.
"""

import base64
import html
import json
import re
import textwrap
from pathlib import Path

import jinja2

from tools import lessons
from tools.lessons import ROOT

ON_A_SLIDE = 3  # sentences on what is new: more than that nobody reads while somebody talks
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
    """What a card's sentences have of Markdown: code, bold, italics, and links, of which the words stay."""
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped(text))
    text = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"(?<![\w*])\*(\w[^*<]*)\*(?![\w*])", r"<em>\1</em>", text)


def picture(lesson) -> tuple[bytes, str]:
    """The first picture of a lesson's notebook, which shows who does what, and its alt text."""
    for cell in json.loads(lesson.notebooks[0].path.read_text())["cells"]:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                content = base64.b64decode("".join(output["data"]["image/png"]))
                return content, output["metadata"]["image/png"]["alt"]
    raise ValueError(f"{lesson.notebooks[0].stem} has no picture")


def slides_of(lesson, site: Path) -> dict:
    """What the slides of a lesson show. Its picture is written into the site."""
    command, ideas, copied = read(lesson.page.read_text())
    command = command.strip()
    code = "\n".join(copied).strip()
    lines = [*code.splitlines(), *command.splitlines()]
    on_slides = []
    for at in range(0, len(ideas), ON_A_SLIDE):
        on_slides.append((1 + at, ideas[at : at + ON_A_SLIDE]))

    name = f"_static/slides/{lesson.stem}.png"
    content, alt = picture(lesson)
    (site / name).parent.mkdir(parents=True, exist_ok=True)
    (site / name).write_bytes(content)
    page = f"lessons/pages/{lesson.page.stem}.html"
    return {
        "number": lesson.number,
        "title": lesson.title,
        "idea": f"{lesson.idea[0].upper()}{lesson.idea[1:]}",
        "page": page if (site / page).exists() else "",
        "picture": name,
        "alt": alt,
        "ideas": on_slides,
        "copied": code,
        "command": command,
        "lines": len(lines),
        "columns": max(map(len, lines)),
    }


def deck(site) -> str:
    """The deck for the site in this folder, which may lack some pages."""
    found = [slides_of(lesson, site) for lesson in lessons.LESSONS if has_card(lesson)]
    TEMPLATES.filters.update(inline=inline, escaped=escaped)
    return TEMPLATES.get_template("slides.html.jinja").render(lessons=found)


def has_card(lesson) -> bool:
    return "<!-- card -->" in lesson.page.read_text()
