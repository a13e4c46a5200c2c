"""The site says what the repository says, needs nothing from outside, and can be read by everybody."""

import base64
import contextlib
import difflib
import functools
import html
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest

from tests.helpers import browser, crawl
from tools import diffs, lessons
from tools.lessons import ROOT
from tools.makers.site import build as builder
from tools.makers.site import deck, home, to_markdown
from tools.makers.site.widgets import diff

VENV = ROOT / ".venv-site"
AXE = VENV / "axe.min.js"
ADDRESS = "https://github.com/someone/rungs"
SOME = (
    "lessons/pages/04.md",
    "notebooks/04_ddp_torchrun.ipynb",
    "lessons/pages/10.md",
    "notebooks/10a_stale_weights.ipynb",  # one of its cells is folded
    "lessons/pages/words.md",
)
WITH_CARDS = ("index", "lessons/pages/04", "notebooks/04_ddp_torchrun", "widgets/planner")
# A page of each kind.
KINDS = (
    "index.html",
    "notebooks/04_ddp_torchrun.html",
    "notebooks/10a_stale_weights.html",
    "lessons/pages/04.html",
    "lessons/exercises/03_average_gradients.py.html",
    "lessons/04_ddp_torchrun.py.html",
    "lessons/pages/words.html",
    "syllabus.html",
    "widgets/diff.html",
)
BUDGET = 500_000  # bytes of a page before its pictures
WIDGETS = builder.WIDGETS
ON_A_PHONE = ("scrollable-region-focusable", "target-size")
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}
KEYS |= {"Delete": 46, "k": 75}
CTRL = 2


def needs(is_there, what):
    if not is_there:
        pytest.skip(f"needs {what}: make tools installs it")


def built(once, name, *words, address=""):
    needs((VENV / "ready").exists(), "tools/makers/site/requirements.txt")

    def build(out):
        command = [VENV / "bin/python", "-m", "tools.makers.site.build", "--out", out, *words]
        more = {"env": os.environ | {"ADDRESS": address}, "text": True, "timeout": 600}
        result = subprocess.run(command, cwd=ROOT, capture_output=True, **more)
        assert result.returncode == 0, result.stdout + result.stderr
        return str(out)

    return Path(once(name, build))


def small_site(once, address=""):
    """A site of five pages, the home page, the syllabus and the diffs."""
    name = "small_site_with_an_address" if address else "small_site"
    return built(once, name, "--pages", *SOME, address=address)


@pytest.fixture
def whole(once):
    return built(once, "whole_site")


class Strict(SimpleHTTPRequestHandler):
    """The browser refuses whatever a page or its worker asks of another server: both must do without."""

    def end_headers(self):
        allowed = "default-src 'self' data: 'unsafe-inline' 'wasm-unsafe-eval'"
        self.send_header("Content-Security-Policy", allowed)
        super().end_headers()

    def log_message(self, *words):
        pass


def one(chosen):
    return f"document.querySelector({chosen!r})"


def every(chosen):
    return f"[...document.querySelectorAll({chosen!r})]"


class Reader(browser.Page):
    """A page, beside a server that has the site in a folder below its root."""

    def __init__(self, chromium, port):
        self.root = f"http://127.0.0.1:{port}/site/"
        super().__init__(chromium, "about:blank", width=1280)
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, name):
        self.call("Page.navigate", url="about:blank")  # else another place of the same page is no new page
        self.until("location.href == 'about:blank'", "an empty page")
        self.events.clear()
        self.call("Page.navigate", url=self.root + name)
        self.until(f"location.href.startsWith('{self.root}') && document.readyState == 'complete'", name)

    def complaints(self):
        """Since the page was opened: errors, also of requests that failed or left the site."""
        found = []
        for event in self.events:
            what = event["params"].get("entry", event["params"])
            is_printed = event["method"] == "Runtime.consoleAPICalled" and what["type"] in (
                "error",
                "warning",
            )
            if is_printed or event["method"] == "Runtime.exceptionThrown" or what.get("level") == "error":
                found.append(f"{event['method']}: {what}")
        return found

    def set_viewport(self, width, colours="light"):
        self.resize(width, 1000)
        scheme = {"name": "prefers-color-scheme", "value": colours}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def count(self, chosen):
        return self.ask(f"{every(chosen)}.length")

    def press(self, key, modifiers=0):
        for kind in ("keyDown", "keyUp"):
            keys = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": modifiers}
            self.call("Input.dispatchKeyEvent", type=kind, **keys)

    def violations(self, *only):
        """What axe-core finds against WCAG 2.2 AA and against headings in order; or against these rules."""
        if not self.ask("typeof axe == 'object'"):
            self.ask(AXE.read_text() + "; 1")
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
        rules = {"rules": {"heading-order": {"enabled": True}}}
        options = {"runOnly": list(only)} if only else {"runOnly": tags} | rules
        found = self.ask(f"axe.run(document, {json.dumps(options)}).then((result) => result.violations)")
        lines = []
        for row in found:
            for node in row["nodes"]:
                lines.append(f"{row['id']}: {node['html'][:200]}")
        return lines


def opened(request, out):
    """A page beside the site in this folder, which in the end must have nothing to complain of."""
    needs(browser.CHROMIUM, "Chromium")
    chromium, handler = request.getfixturevalue("chromium"), functools.partial(Strict, directory=str(out))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with contextlib.closing(Reader(chromium, server.server_port)) as page:
                page.set_viewport(1280)
                yield page
                assert page.complaints() == []
        finally:
            server.shutdown()


@pytest.fixture
def page(request, once):
    yield from opened(request, small_site(once))


@pytest.fixture
def page_of_the_whole(request, whole):
    yield from opened(request, whole)


# ---- links ----


def test_a_small_site_is_built(once):
    site = small_site(once) / "site"
    assert crawl.problems(site) == []
    page = (site / "notebooks/04_ddp_torchrun.html").read_text()
    cells = json.loads((ROOT / SOME[1]).read_text())["cells"]
    pictures = 0
    answers = 0
    for cell in cells:
        answers += "<summary>Answer" in "".join(cell["source"])
        for output in cell.get("outputs", []):
            pictures += "image/png" in str(output)
    assert page.count("<img") == pictures >= 2
    assert page.count("<summary>Answer") == answers
    assert "minutes to read, " in page
    assert "\u2019" not in page, "who copies an option that the builder wrote with a long dash gets an error"


@pytest.mark.parametrize("address", ["", f"{ADDRESS}/"], ids=["no address", "address"])
def test_links_to_the_repository_and_the_pictures_of_cards_come_from_its_address(once, address):
    """Without one no page leads to a repository. Cards are what search engines and chats show of a page."""
    site = small_site(once, address) / "site"
    for name in WITH_CARDS:
        text = (site / f"{name}.html").read_text()
        tags = dict(re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)"', text))
        picture = f"{ADDRESS}/raw/main/lessons/pictures/kill.png"
        assert tags.get("og:image") == (picture if address else None), name
        assert tags["og:title"] and 40 < len(tags["description"]) <= 200, name
    text = (site / "notebooks/04_ddp_torchrun.html").read_text()
    colab = "https://colab.research.google.com/github/someone/rungs/blob/main"
    for start in (f"{ADDRESS}/edit/main", f"{ADDRESS}/raw/main", colab):
        assert (f'href="{start}/{SOME[1]}"' in text) == bool(address), start


# The theme lets what is in the middle scroll, and the page seems to be narrow.
WIDTH = "Math.max(...[...document.querySelectorAll('html, .content')].map((part) => part.scrollWidth))"


LISTED = """[...document.querySelectorAll("article .table-wrapper")].map((part) => [part.matches(".as-list"),
    part.scrollWidth - part.clientWidth])"""


def test_a_wide_table_is_a_list_on_a_phone(page):
    page.set_viewport(390)
    for name in ("widgets/planner.html", "index.html"):
        page.open(name)
        lists = 0
        for is_list, too_wide in page.ask(LISTED):
            lists += is_list
            assert too_wide <= 1, name
        assert lists > 0, name
    label = f"getComputedStyle({one('.as-list tbody td:nth-child(2)')}, '::before').content"
    assert "idea" in page.ask(label)
    page.set_viewport(1440)
    page.until(f"{LISTED}.every(([isList]) => !isList)", "tables again")


def test_the_home_page_starts_as_the_readme_does():
    """The same commands in the same order, from the clone on."""
    for address in ("", ADDRESS):
        shown = re.findall(r"(?ms)^```sh\n(.*?)^```", home.first_minutes(address))
        readme = re.findall(r"(?ms)^```sh\n(.*?)^```", (ROOT / "README.md").read_text())
        after_clone = [text for text in readme if "git clone" not in text]
        if address:
            assert shown.pop(0) == diffs.clone(address).removeprefix("```sh\n").removesuffix("```\n")
        assert shown == after_clone[: len(shown)]
        assert "whl/cpu" in "".join(shown)
        assert shown[-1] == "make run\n"


# ---- the diff of any lesson to any other ----

TEXTS = {lesson.stem: lesson.path.read_text().splitlines() for lesson in lessons.LESSONS}


def rows(before, after):
    """A diff in one column, of whole files: each line with its sign."""
    left, right = TEXTS[before], TEXTS[after]
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    for kind, low, high, start, end in matcher.get_opcodes():
        for line in left[low:high]:
            yield f" {line}" if kind == "equal" else f"-{line}"
        if kind != "equal":
            for line in right[start:end]:
                yield f"+{line}"


def test_every_line_that_a_lesson_adds_or_takes_away_has_its_sentence():
    parts = diff.parts()
    for position, lesson in enumerate(diff.data()["lessons"]):
        stem, before = lesson["stem"], lesson["from"]
        lesson |= parts[stem]
        if not before:
            assert lesson["because"] == [None] * len(lesson["lines"]) and not lesson["sentences"]
            continue
        told = set()  # the numbers of the sentences that a line has
        signed = {"+": [], "-": [], " ": []}
        for line in rows(before, stem):
            signed[line[0]].append(line[1:])
        added = []
        for number, why in enumerate(lesson["because"]):
            if why and why[0] == position:
                added.append(TEXTS[stem][number])
                told.add(why[1])
        gone = []
        for number, sentence in lesson["gone"].items():
            gone.append(TEXTS[before][number])
            told.add(sentence)
        assert added == signed["+"]
        assert gone == signed["-"]
        assert told == set(range(len(lesson["sentences"])))


def test_no_sentence_speaks_of_what_a_lesson_no_longer_has():
    """The import of torch.nn came for DataParallel, which lesson 03 does not use."""
    rows, parts = diff.data()["lessons"], diff.parts()
    line = TEXTS["03_ddp_spawn"].index("from torch import nn")
    assert parts["03_ddp_spawn"]["because"][line] is None
    position, number = parts["02_data_parallel"]["because"][
        TEXTS["02_data_parallel"].index("from torch import nn")
    ]
    assert "<code>DataParallel</code>" in rows[position]["sentences"][number]
    for stem in lessons.STEMS[2:]:
        for why in parts[stem]["because"]:
            if why:
                position, number = why
                assert "<code>DataParallel</code>" not in rows[position]["sentences"][number], stem
    kept = 0
    for why in parts["05_snapshots"]["because"]:
        if why and why[0] < 4:
            kept += 1
    assert kept > 20, "most sentences of earlier lessons are still true"


@pytest.mark.parametrize("name", ["notebooks/18a_memory_and_time.ipynb", "lessons/pages/port.md"])
def test_no_page_shows_a_comment_that_is_for_our_tools(tmp_path, name):
    page = PurePosixPath(name)
    book = to_markdown.Book(tmp_path, (page,), is_whole=False)
    write = to_markdown.notebook if page.suffix == ".ipynb" else to_markdown.markdown
    assert (ROOT / page).read_text().count("<!-- ") > 20
    assert "<!--" not in write(book, page)


def test_diffs_of_pages_have_no_indentation_that_all_their_lines_share():
    names, second = "--- a.py\n+++ b.py\n", "@@ -9 +9 @@\n-y\n+    z\n"
    text = f"{names}@@ -1 +1 @@\n         x\n-        y\n+            z\n \n{second}"
    short = f"{names}@@ -1 +1 @@\n  x\n- y\n+     z\n \n{second}"
    assert to_markdown.short_diff(text) == short == to_markdown.short_diff(short)
    assert to_markdown.short_diff("-         y\n+         z\n") == "- y\n+ z\n"
    page = to_markdown.with_short_diffs(f"Text.\n\n```diff\n{text}```\n\n```python\n        y\n```\n")
    assert page == f"Text.\n\n```diff\n{short}```\n\n```python\n        y\n```\n"


ROWS = """[...document.querySelectorAll(".highlight-diff :is(.gd, .gi)")].map((row) => {
    const [inner, outer] = [row.getBoundingClientRect(), row.closest("pre").getBoundingClientRect()];
    return [inner.left - outer.left, outer.right - inner.right, inner.top, inner.bottom, row.textContent];
})"""
COPY = """[...document.querySelectorAll("button.copybtn")].filter((one) => one.offsetParent).map((one) => {
    const code = one.parentElement.querySelector("pre").getBoundingClientRect();
    return one.getBoundingClientRect().left - code.right;
})"""


@pytest.mark.parametrize("width", [1280, 400])
def test_whole_rows_of_a_diff_are_coloured_and_the_copy_icon_covers_no_code(page, width):
    page.set_viewport(width)
    for name in ("lessons/pages/04.html", "notebooks/04_ddp_torchrun.html"):
        page.open(name)
        page.ask(OPENED)
        rows = page.ask(ROWS)
        assert len(rows) > 15
        for left, right, *_, text in rows:
            assert abs(left) < 1 and abs(right) < 1, f"the colour does not reach the edges: {text}"
        without_gap = 0
        for (*_, bottom, _), (_, _, top, *_) in itertools.pairwise(rows):
            if abs(top - bottom) < 1:
                without_gap += 1
        assert without_gap > 10, "lines that follow one another have no gap"
        assert min(page.ask(COPY)) >= 0


SHOWN = """[...document.querySelectorAll("#widget tbody tr:not(.why):not(.fold)")].map((row) =>
    row.querySelector(".sign").textContent + row.querySelector("code").textContent)"""


PAIRS = list(itertools.permutations(lessons.STEMS, 2))


@pytest.mark.quick("some")
@pytest.mark.night
@pytest.mark.parametrize("count", [8, len(PAIRS)], ids=["some", "all"])
def test_the_page_draws_the_diffs_that_python_makes(page, count):
    page.open("widgets/diff.html")
    for name, is_wanted in (("columns", False), ("whole", True)):
        box = one(f"[name={name}]")
        page.ask(f"if ({box}.checked != {json.dumps(is_wanted)}) {box}.click()")
    numbers = """[...document.querySelectorAll("#widget tbody tr:not(.why):not(.fold)")].map((row) =>
        [...row.querySelectorAll(".number")].map((cell) => cell.textContent))"""
    for before, after in random.Random(1).sample(PAIRS, count):
        page.ask(f"location.hash = '{before}..{after}'")
        head = f"{one('#widget th')}.textContent"
        page.until(f"{head} == '{before}.py to {after}.py'", f"the diff from {before} to {after}")
        lines = page.ask(SHOWN)
        left = []
        right = []
        same = []
        # Two columns: where the line is in each of the two files.
        for line, (old, new) in zip(lines, page.ask(numbers), strict=True):
            sign, text = line[0], line[1:]
            if sign != "+":
                left.append(text)
            if sign != "-":
                right.append(text)
            if sign == " ":
                same.append(line)
            assert old == (str(len(left)) if sign != "+" else "")
            assert new == (str(len(right)) if sign != "-" else "")
        assert left == TEXTS[before]
        assert right == TEXTS[after]
        assert same == [line for line in rows(*sorted((before, after))) if line[0] == " "], (before, after)
        assert before > after or lines == list(rows(before, after))


CHOSEN = f"{every('#widget select')}.map((choice) => choice.value)"


def test_the_slider_walks_from_the_first_lesson_to_the_last_by_keyboard(page):
    page.open("widgets/diff.html?03_ddp_spawn..05_snapshots")
    assert page.ask(CHOSEN) == ["03_ddp_spawn", "05_snapshots"]
    page.ask(f"{one('[name=walk]')}.focus()")
    page.press("Home")
    for lesson in lessons.LESSONS[1:]:
        page.press("ArrowRight")
        assert page.ask(CHOSEN) == [lesson.grown_from, lesson.stem]
        # Its lines come from a file of their own, when they are asked for.
        why = f"#widget .why a[href^='../notebooks/{lesson.stem}.html']"
        page.until(f"{every(why)}.length", lesson.stem)


def test_the_diff_opens_with_docstrings_folded_and_examples_lead_to_others(page):
    page.open("widgets/diff.html")
    page.until(f"{every('#widget .fold')}.length", "a fold")
    shown = f"{every('#widget td.line')}.map((cell) => cell.textContent)"
    first = json.dumps(TEXTS["01_single_gpu"][0])
    assert not page.ask(f"{shown}.includes({first})")
    page.ask(f"{one('#widget .fold button')}.click()")
    page.until(f"{shown}.includes({first})", "the docstring")
    page.ask(f"{every('#widget .presets button')}[1].click()")
    page.until(f"{CHOSEN}.join() == '03_ddp_spawn,04_ddp_torchrun'", "the second example")


@pytest.mark.parametrize("name", ["diff", "ring", "planner"])
def test_a_link_to_what_one_sees_is_copied(page, name):
    page.open(f"widgets/{name}.html")
    page.until(f"{one('#widget .copy button')} != null", "a button")
    page.ask("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    before = page.ask("location.hash")  # the page of diffs has one from the start
    page.ask(f"{one('#widget .presets button:nth-of-type(2)')}.click()")
    page.until(f"![{json.dumps(before)}, ''].includes(location.hash)", "another address")
    # The theme scrolls smoothly, and a click would miss a button that still moves.
    page.ask(f"{one('#widget .copy')}.scrollIntoView({{ block: 'center', behavior: 'instant' }})")
    page.click("#widget .copy button", "Copy link")
    page.until(f"{one('.copied')}.textContent.startsWith('Copied')", "an answer")
    assert page.ask("copied") == page.ask("location.href") and "#" in page.ask("copied")


FOCUSED = """(() => {
    const { activeElement: found } = document;
    const { outlineStyle: style, outlineWidth: width } = getComputedStyle(found);
    const isFramed = style != "none" && parseFloat(width) > 0;
    const isThere = found.checkVisibility({ opacityProperty: true });
    const controls = CONTROLS;
    return [controls.length, controls.indexOf(found), isFramed && isThere];
})()""".replace("CONTROLS", every("#widget :is(input, select, button, a):not(:disabled)"))


@pytest.mark.parametrize("name", WIDGETS)
def test_every_control_of_a_widget_is_reached_and_seen_with_the_keyboard(page, name):
    page.open(f"widgets/{name}.html")
    if name == "diff":
        page.until(f"{every('#widget .fold')}.length", "folds")
    page.ask(f"(start => {{ start.tabIndex = -1; start.focus(); }})({one('#widget')})")
    count = page.ask(FOCUSED)[0]
    assert count >= 5
    for number in range(count):
        page.press("Tab")
        page.ask("Promise.all(document.getAnimations().map((one) => one.finished)).then(() => 0)")
        assert page.ask(FOCUSED) == [count, number, True], "the next control, and one sees that it is"
    assert page.ask(WIDTH) <= 1280, "a wide table scrolls, and the page does not"


def test_keys_turn_pages_and_search_and_open_the_menu_and_scroll_what_is_wide(page):
    page.set_viewport(400)
    page.open("lessons/pages/04.html")
    wide = one("pre[tabindex]")
    page.ask(f"{wide}.focus()")
    page.press("ArrowRight")
    page.until(f"{wide}.scrollLeft > 0", "the end of a line")
    page.press("k", CTRL)
    assert page.ask("document.activeElement.name") == "q"
    page.press("Escape")
    page.ask(f"{one('label.nav-overlay-icon')}.focus()")
    page.press("Enter")
    page.until(f"{one('.sidebar-tree')}.getBoundingClientRect().left >= 0", "the menu")
    page.press("Escape")
    turns = {"ArrowRight": "notebooks/04_ddp_torchrun.html", "ArrowLeft": "lessons/pages/04.html"}
    for key, name in turns.items():
        page.press(key)
        page.until(f"location.pathname.endsWith('{name}')", name)
        page.until("document.readyState == 'complete'", "all of it")


# ---- the whole site ----


@pytest.mark.long
def test_every_link_of_the_whole_site_leads_somewhere(whole):
    site = whole / "site"
    assert crawl.problems(site) == []
    pages = list(KINDS)
    for lesson in lessons.LESSONS:
        pages.append(f"lessons/pages/{lesson.page.stem}.html")
        for notebook in lesson.notebooks:
            pages.append(f"notebooks/{notebook.stem}.html")
    for name in pages:
        assert (site / name).exists(), name


# All that is folded, and what the page then does in a frame or two.
OPENED = """document.querySelectorAll("details").forEach((part) => part.open = true);
    new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"""
WEIGHT = """[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .filter((entry) => entry.initiatorType != "img").reduce((sum, entry) => sum + entry.decodedBodySize, 0)"""


@pytest.mark.long("kinds")
@pytest.mark.night
@pytest.mark.parametrize("part", ["kinds", 0, 1, 2, 3])
def test_every_page_opens_and_everybody_can_read_it(whole, page_of_the_whole, part):
    """No error, no request that fails or leaves, nothing wider than a phone, not too heavy; and no violation.
    That is looked for where the navigation leads: the other pages show a file, and are of one kind."""
    needs(AXE.exists(), "axe-core")
    page, site, found = page_of_the_whole, whole / "site", []
    listed = {*crawl.Page((site / "index.html").read_text()).links, *KINDS}
    paths = [site / name for name in KINDS]
    if part != "kinds":
        paths = sorted(site.rglob("*.html"))[part::4]
    for path in paths:
        name = str(path.relative_to(site))
        page.set_viewport(1280)
        page.open(name)
        problems = page.complaints()
        if name in listed:
            problems += page.violations()
            page.set_viewport(1280, "dark")
            problems += [f"in the dark, {line}" for line in page.violations("color-contrast")]
        page.set_viewport(400)
        if name in listed:
            page.ask(OPENED)
            problems += [f"on a phone, {line}" for line in page.violations(*ON_A_PHONE)]
        if (wide := page.ask(WIDTH)) > 400:
            problems.append(f"{wide} pixels wide on a phone")
        if (weight := page.ask(WEIGHT)) > BUDGET:
            problems.append(f"{weight} bytes before pictures")
        found += [f"{name}: {line}" for line in problems]
    assert not found, "\n".join(found)


@pytest.mark.long
def test_the_search_finds_a_word_of_the_code_and_a_message(page_of_the_whole):
    page = page_of_the_whole
    page.open("search.html?q=out+of+memory")
    first = one("#search-results li a")
    page.until(f"{first}?.getAttribute('href').includes('pages/errors.html')", "the page of errors, first")
    page.open("search.html?q=set_epoch")
    found = f"{every('#search-results li a')}.map((link) => link.getAttribute('href'))"
    page.until(f"{found}.length", "results")
    page.until(f"{one('#search-results .search-summary')}.textContent.includes('found')", "the end")
    assert "notebooks/03_ddp_spawn.html" in " ".join(page.ask(found))


@pytest.mark.long
def test_pages_that_were_read_are_remembered_until_they_are_forgotten(page_of_the_whole):
    page = page_of_the_whole
    page.open("lessons/pages/04.html")
    page.ask("scrollTo(0, document.body.scrollHeight)")
    page.until(f"{every('.sidebar-tree a.read')}.length == 1", "a mark on the page")
    page.open("index.html")
    page.until(f"{one('p.progress span')}.textContent.endsWith(': 1.')", "a count")
    assert page.ask(f"{one('article td a.read')}.textContent").startswith("04.")
    page.ask(f"{one('p.progress button')}.click()")
    assert page.count("a.read") == 0
    assert page.ask(f"{one('p.progress')}.hidden")


# ---- slides ----


def test_the_slides_have_every_card_and_a_picture_for_each_idea(tmp_path):
    page = deck.deck(tmp_path)
    for lesson in lessons.LESSONS:
        command, ideas, copied = deck.read(lesson.page.read_text())
        for text in (command.strip(), "\n".join(copied).strip()):
            assert f"<code>{html.escape(text, quote=False)}</code>" in page, lesson.stem
        for idea in ideas:
            assert f"<li>{deck.inline(idea)}</li>" in page, lesson.stem
        assert (tmp_path / f"_static/slides/{lesson.stem}.png").read_bytes().startswith(b"\x89PNG")
        assert f'<img src="_static/slides/{lesson.stem}.png" alt="' in page
    assert deck.inline("its *rank*, **new**, `a * b * c`") == (
        "its <em>rank</em>, <strong>new</strong>, <code>a * b * c</code>"
    )
    loaded = r'<script |<img (?!src="_static/slides/)|<link (?!rel="icon" href="_static/)|href="http'
    assert not re.search(loaded, page), "it needs nothing from elsewhere"


def test_a_slide_shows_the_first_picture_of_the_notebook(tmp_path):
    cells = [{"source": "a cell of text"}, {"outputs": [{"data": {"text/plain": "1"}}]}]
    for number in (1, 2):
        data = {"image/png": [base64.b64encode(f"picture {number}".encode()).decode()]}
        output = {"data": data, "metadata": {"image/png": {"alt": f"Picture {number}."}}}
        cells.append({"outputs": [output]})
    path = tmp_path / "some.ipynb"
    lesson = SimpleNamespace(notebooks=[SimpleNamespace(path=path, stem="some")])
    path.write_text(json.dumps({"cells": cells}))
    assert deck.picture(lesson) == (b"picture 1", "Picture 1.")
    path.write_text(json.dumps({"cells": cells[:2]}))
    with pytest.raises(ValueError, match="some has no picture"):
        deck.picture(lesson)


SIZES = """[...document.querySelectorAll("section")].map((slide) => {
    const parts = [slide, ...slide.querySelectorAll("h1, p, ol, pre, img, footer")];
    const middle = slide.querySelector("div");
    const { top, bottom } = middle.getBoundingClientRect();
    const tall = parts.some((part) => part.scrollHeight > part.clientHeight + 1) ||
        [...middle.children].some((part) => part.getBoundingClientRect().top < top - 1 ||
            part.getBoundingClientRect().bottom > bottom + 1);
    const wide = parts.some((part) => part.scrollWidth > part.clientWidth + 1);
    const picture = slide.querySelector("img");
    const title = slide.querySelector("h1").textContent;
    return [title, tall, wide, picture ? picture.height : null, slide.clientHeight];
})"""


@pytest.fixture
def slides(request, tmp_path):
    site = tmp_path / "site"
    (site / "_static").mkdir(parents=True)
    shutil.copy(ROOT / "tools/makers/site/theme/favicon.svg", site / "_static")
    text = deck.deck(site).replace(' loading="lazy"', "")
    (site / "slides.html").write_text(text)
    yield from opened(request, tmp_path)


@pytest.mark.parametrize("size", [(1400, 857), (1280, 720), (1024, 768)], ids=str)
def test_no_slide_is_taller_than_the_window(slides, size):
    slides.resize(*size)
    slides.open("slides.html")
    found = slides.ask(SIZES)
    assert len(found) > 2 * len(lessons.LESSONS)
    for title, is_tall, is_wide, picture, height in found:
        assert not is_tall and not is_wide and height <= size[1], title
        assert picture is None or picture > 0.5 * size[1], f"{title}: the picture is small"
    slides.resize(400, 800)
    assert slides.ask("document.documentElement.scrollWidth") <= 400
