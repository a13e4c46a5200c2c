"""A page's card says how to run its lesson, what is new in it, and which of its lines to copy."""

import html
import re
import shlex

import pytest

import deck
import diffs
import lessons
from deck import read

HEAD = "<!-- card -->"
PAGES = {lesson.stem: lesson.page.read_text() for lesson in lessons.LESSONS}


def not_in(script, copied):
    """The first of the lines to copy that the script does not have after those before; None if it has all."""
    lines = iter([" ".join(line.split()) for line in script.splitlines()])
    wanted = filter(None, (" ".join(line.split()) for line in copied))
    return next((line for line in wanted if line not in lines), None)


@pytest.mark.parametrize("stem", PAGES)
def test_a_card_is_the_lessons_and_the_first_on_its_page(stem):
    """The lines to copy and the command are the lesson's, and few ideas are new."""
    script = lessons.get(stem).path
    command, ideas, copied = read(PAGES[stem])
    assert not_in(script.read_text(), copied) is None and 5 <= len(copied) <= 20
    assert not_in(script.read_text(), copied[::-1]) is not None, "their order counts"
    typed, documented = (text.replace("\\\n", " ") for text in (command, diffs.command(script)))
    assert shlex.split(typed) == shlex.split(documented)
    assert 1 <= len(ideas) <= (8 if stem == "03_ddp_spawn" else 3)  # the step from one process to several
    page = re.sub(r"(?s)<!-- way: .*?<!-- end of way -->\n*", "", PAGES[stem])  # it may come before
    assert re.match(rf"# .+\n\n{HEAD}\n> \*\*Run it:\*\*", page)


def test_the_slides_have_every_card(tmp_path):
    page = deck.deck(tmp_path)
    assert page.count("<section>") == 1 + len(PAGES)
    for stem in PAGES:
        command, ideas, copied = read(PAGES[stem])
        for text in (command.strip(), "\n".join(copied).strip()):
            assert f"<code>{html.escape(text, quote=False)}</code>" in page, stem
        assert page.count("<li>") >= len(ideas) > 0
    assert not re.search(r'<(script|img|link (?!rel="icon")) |href="http', page), (
        "it needs nothing from elsewhere"
    )
    assert "](" not in page and "**" not in re.sub(r"(?s)<pre.*?</pre>", "", page), "Markdown is left"
