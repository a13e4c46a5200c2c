"""A deck of slides for instructors: one slide for each lesson, from the card on its page.

The site has it as slides.html. It needs nothing besides this one file. Arrow keys turn the slides, and
printing puts each slide on a page of its own, so the browser's "save as PDF" makes a PDF.
"""

import html
import re
import textwrap

import lessons

RUN, NEW, COPY = "**Run it:**", "**New here:**", "**Copy these lines:**"
STYLE = """
:root { color-scheme: light dark; font: 2.2vmin/1.5 system-ui, sans-serif; }
body { margin: 0; }
section { box-sizing: border-box; min-height: 100vh; padding: 5vmin 8vmin; break-after: page;
    display: flex; flex-direction: column; justify-content: center; }
h1 { font-size: 2em; margin: 0 0 .6em; }
li { margin: .3em 0; }
pre { overflow-x: auto; padding: .8em; border: 1px solid #8888; border-radius: .3em; font-size: .8em; }
footer { opacity: .75; font-size: .8em; }
"""
SCRIPT = """
const slides = [...document.querySelectorAll("section")];
const shown = () => slides.findIndex((slide) => slide.getBoundingClientRect().bottom > innerHeight / 2);
addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, PageDown: 1, " ": 1, ArrowLeft: -1, PageUp: -1 }[event.key];
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    slides[Math.min(slides.length - 1, Math.max(0, shown() + step))].scrollIntoView();
});
"""


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


def inline(text: str) -> str:
    """What a card's sentences have of Markdown: code, bold, and links, of which the words stay."""
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)


def block(text: str) -> str:
    return f'<pre tabindex="0"><code>{html.escape(text.strip(), quote=False)}</code></pre>'


def slide(title: str, *parts: str) -> str:
    return "\n".join(["<section>", f"<h1>{inline(title)}</h1>", *parts, "</section>"])


def of_lesson(lesson, site) -> str:
    command, ideas, copied = read(lesson.page.read_text())
    items = "".join(f"<li>{inline(idea)}</li>" for idea in ideas)
    page = f"lessons/pages/{lesson.page.stem}.html"
    link = f'<a href="{page}">page {lesson.number}</a>' if (site / page).exists() else ""
    return slide(
        f"{lesson.number}. {lesson.title}",
        f"<ol>{items}</ol>",
        block("\n".join(copied)),
        block(command),
        f"<footer>{link}</footer>",
    )


def deck(site) -> str:
    """The deck for the site in this folder, which may lack some pages."""
    shown = [lesson for lesson in lessons.LESSONS if "<!-- card -->" in lesson.page.read_text()]
    first = slide(
        "Distributed training with PyTorch, one small diff at a time",
        f"<p>{len(shown)} lessons: what is new in each, the lines to copy, and the command to run.</p>",
        '<p>Arrow keys turn the slides. Printing makes a PDF. <a href="index.html">The site</a></p>',
    )
    slides = "\n".join([first, *(of_lesson(lesson, site) for lesson in shown)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Rungs: slides</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{slides}\n</main>\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
