"""Each technical word is explained in words.md, and a notebook that uses it leads there."""

import copy
import pkgutil
import re

import nbformat
import pytest

import lessons
import words

WORDS = words.read()


# ---- the page


def test_each_word_is_explained_in_a_sentence_and_says_where_there_is_more():
    page = words.PAGE.read_text()
    sections = page.partition("\n---\n")[0].split("\n## ")[1:]
    assert len(sections) == len(WORDS) > 80
    for section in sections:
        word, text, last = (part.strip() for part in section.strip().split("\n\n"))
        assert len(text.split()) > 4 and text.endswith("."), word
        assert re.match(r"Explained in (lesson|notebook) \[\w+\]\(\S+\)", last), word
    names = [section.partition("\n")[0] for section in sections]
    assert names == sorted(names, key=str.lower)
    numbers = {words.number(row) for row in lessons.NOTEBOOKS}
    for word in WORDS:
        assert word.first_in and set(word.first_in) <= numbers, word.name
    forms = [form.lower() for word in WORDS for form in word.forms]
    assert len(forms) == len(set(forms))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_the_page_says_is_pytorchs_name_is_one():
    names = re.findall(r"PyTorch: \[`([\w.]+)`\]", words.PAGE.read_text())
    assert len(names) > 50
    for name in names:
        pkgutil.resolve_name(name)


def test_the_links_of_the_page_lead_to_the_documentation_of_pytorch():
    for target in re.findall(r"PyTorch: \[[^\]]+\]\(([^)]+)\)", words.PAGE.read_text()):
        place = r"(docs/stable|tutorials)/[\w./]+\.html(#[\w.-]+)?"
        assert re.fullmatch(rf"https://docs\.pytorch\.org/{place}", target)


# ---- the tool, on made-up cells


def word(name, *also, first_in=(), is_plain=False):
    return words.Word(name, (name, *also), first_in, is_plain)


KNOWN = [word("all-reduce"), word("rank"), word("ZeRO")]


def linked(*sources, number="09", known=KNOWN):
    """The cells after `link`, and after it once more: a second time must change nothing."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(source) for source in sources])
    lines = words.link(number, notebook, known)
    once = copy.deepcopy(notebook)
    assert words.link(number, notebook, known) == []
    assert notebook == once
    assert list(words.missing(number, notebook, known)) == []
    found = [cell.source for cell in once.cells]
    assert len(lines) == sum(
        after.count(words.LINK) - before.count(words.LINK)
        for after, before in zip(found, sources, strict=True)
    )
    return found


RANK = "[rank](../lessons/pages/words.md#rank)"


ALL_REDUCE = "[all-reduce](../lessons/pages/words.md#all-reduce)"


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        (["A rank, a rank.", "A rank."], [f"A {RANK}, a rank.", "A rank."]),
        (["Ranks do an all-reduce."], [f"{RANK.replace('rank', 'Ranks', 1)} do an {ALL_REDUCE}."]),
        # What is only a part of something bold is linked in it; an explanation may come too late.
        (["**Each rank waits.**"], [f"**Each {RANK} waits.**"]),
        (["A rank.", "The **rank** is a number."], [f"A {RANK}.", "The **rank** is a number."]),
        # Capitals count where a word has some.
        (["zero, Zero"], ["zero, Zero"]),
        (["ZeRO"], ["[ZeRO](../lessons/pages/words.md#zero)"]),
    ],
)
def test_the_first_use_is_linked_and_no_other(sources, expected):
    assert linked(*sources) == expected


@pytest.mark.parametrize(
    "other",
    [
        "`rank`",
        "## A rank\n",
        "```sh\n`echo rank`\n```\n",
        "[the rank](03_ddp_spawn.ipynb)",
        "![a rank](rank.png)",
        "<!-- way: written by `make diffs` -->\nrank\n<!-- end of way -->",
        "<details><summary>rank</summary>",
        "$rank$",
        "https://example.org/rank",
        "a rank-order",
        "ranking",
        "frank",
        "[this](https://docs.pytorch.org/rank.html)",
        "[ring](../lessons/pages/words.md#rank-order)",
    ],
)
def test_what_is_no_use_is_left_alone(other):
    assert linked(other) == [other]
    assert linked(f"{other} and a rank") == [f"{other} and a {RANK}"]


@pytest.mark.parametrize(
    "explained",
    [
        "The **rank** is a number.",
        "A *rank* is a number.",
        "**Ranks.** They are numbers.",
        f"A {RANK}.",
        "A [rank](https://docs.pytorch.org/docs/stable/distributed.html).",
    ],
)
def test_what_is_explained_or_linked_is_left_alone(explained):
    assert linked(f"{explained} A rank.") == [f"{explained} A rank."]


def test_a_long_word_goes_before_a_short_one_in_it():
    known = sorted((word("all-reduce"), word("ring all-reduce")), key=lambda one: -len(one.name))
    ring = "[ring all-reduce](../lessons/pages/words.md#ring-all-reduce)"
    found = linked("A ring all-reduce, an all-reduce.", known=known)
    assert found == [f"A {ring}, an {ALL_REDUCE}."]


def test_a_notebook_that_is_about_a_word_and_a_plain_word_are_left_alone():
    for one in (word("rank", first_in=("03", "09")), word("rank", is_plain=True)):
        assert linked("A rank.", known=[one]) == ["A rank."]
    assert linked("A rank.", known=[word("rank", first_in=("03",))]) == [f"A {RANK}."]


def test_code_cells_are_left_alone():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("rank = 1")])
    assert words.link("09", notebook, [word("rank")]) == []


def test_the_page_is_read(tmp_path):
    page = tmp_path / "words.md"
    page.write_text(
        "# Words\n\n## rank\n\nA number. Also: *number*, *who am I*.\n\nExplained in lesson [03](03.md), "
        "then in notebook [03a](x.ipynb). PyTorch: [`a`](b).\n\n## step\n\nOne.\n\n"
        "Explained in lesson [01](01.md). "
        "The lessons also use this word in its everyday sense.\n"
    )
    assert words.read(page) == [
        words.Word("rank", ("rank", "number", "who am I"), ("03", "03a"), False),
        words.Word("step", ("step",), ("01",), True),
    ]
