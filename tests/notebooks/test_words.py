"""Each technical word is explained in words.md, and a notebook that uses it leads there."""

import pkgutil
import re

import nbformat
import pytest

from tools import lessons, words

WORDS = words.read()


# ---- the page


def test_each_word_is_explained_in_a_sentence_and_says_where_there_is_more():
    page = words.PAGE.read_text()
    sections = page.partition("\n---\n")[0].split("\n## ")[1:]
    assert len(sections) == len(WORDS) > 80
    names = []
    for section in sections:
        word, text, last = section.strip().split("\n\n")
        text = text.strip()
        assert len(text.split()) > 4, word
        assert text.endswith("."), word
        assert re.match(r"Explained in (lesson|notebook) \[\w+\]\(\S+\)", last.strip()), word
        names.append(section.partition("\n")[0])
    assert names == sorted(names, key=str.lower)
    numbers = {words.number(row) for row in lessons.NOTEBOOKS}
    forms = []
    for word in WORDS:
        assert word.first_in, word.name
        assert set(word.first_in) <= numbers, word.name
        forms += [form.lower() for form in word.forms]
    assert len(forms) == len(set(forms))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_the_page_says_is_pytorchs_name_is_one_and_its_link_leads_to_the_documentation():
    links = re.findall(r"PyTorch: \[(?:`([\w.]+)`|[^\]]+)\]\(([^)]+)\)", words.PAGE.read_text())
    assert sum(bool(name) for name, _ in links) > 50
    for name, target in links:
        pkgutil.resolve_name(name or "torch")
        place = r"(docs/stable|tutorials)/[\w./]+\.html(#[\w.-]+)?"
        assert re.fullmatch(rf"https://docs\.pytorch\.org/{place}", target)


# ---- the tool, on made-up cells


def word(name, first_in=(), is_plain=False):
    return words.Word(name, (name,), first_in, is_plain)


# As they are read: the long ones first.
KNOWN = [word("ring all-reduce"), word("all-reduce"), word("rank"), word("ZeRO")]
KNOWN += [word("step", is_plain=True), word("loss", first_in=("03", "09"))]
PAGE = "../lessons/pages/words.md#"
RANK, RING = f"[rank]({PAGE}rank)", f"[ring all-reduce]({PAGE}ring-all-reduce)"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("A rank, a rank.", f"A {RANK}, a rank."),
        ("A ring all-reduce.", f"A {RING}."),
        # What is only a part of something bold is linked in it; an explanation may come too late.
        ("**Each rank waits.** A **rank** is a number.", f"**Each {RANK} waits.** A **rank** is a number."),
        ("zero, ZeRO", f"zero, [ZeRO]({PAGE}zero)"),
        ("`rank`, ranking, a rank-order: ranks", f"`rank`, ranking, a rank-order: [ranks]({PAGE}rank)"),
        ("## A rank\n\n```sh\n`rank`\n```\nA rank.", f"## A rank\n\n```sh\n`rank`\n```\nA {RANK}."),
        ("[the rank](03.ipynb), rank", f"[the rank](03.ipynb), {RANK}"),
        ("**Ranks.** A rank.", "**Ranks.** A rank."),
        (f"A {RANK}, a rank.", f"A {RANK}, a rank."),
        ("A plain step; the loss that the notebook explains.",) * 2,
    ],
)
def test_the_first_use_is_linked_and_no_other(source, expected):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(source)])
    for _ in ("once", "a second time"):
        words.link("09", notebook, KNOWN)
        assert notebook.cells[0].source == expected
