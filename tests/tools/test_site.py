"""The site says what the repository says, needs nothing from outside, and can be read by everybody."""

import contextlib
import difflib
import functools
import html
import itertools
import json
import os
import random
import re
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.helpers import browser, crawl
from tools import lessons
from tools.lessons import ROOT
from tools.site import build as builder
from tools.site import home
from tools.site.widgets import diff

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
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "Home": 36, "/": 191, "k": 75}
KEYS |= {"Delete": 46, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}
CTRL = 2
# What a page must not do while it is open.
COMPLAINTS = {
    "Runtime.exceptionThrown": lambda what: f"an exception: {what['exceptionDetails']}",
    "Runtime.consoleAPICalled": lambda what: (
        what["type"] in ("error", "warning") and f"the console: {what['args']}"
    ),
    "Log.entryAdded": lambda what: what["entry"]["level"] == "error" and f"an error: {what['entry']['text']}",
    "Network.loadingFailed": lambda what: (
        not what.get("canceled") and f"a request failed: {what['errorText']}"
    ),
}


def needs(is_there, what):
    if not is_there:
        pytest.skip(f"needs {what}: make tools installs it")


def built(once, name, *words, address=""):
    needs((VENV / "ready").exists(), "tools/site/requirements.txt")

    def build(out):
        command = [VENV / "bin/python", "-m", "tools.site.build", "--out", out, *words]
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
        """Since the page was opened: errors, and requests that failed, as those do that leave the site."""
        found = [event for event in self.events if event["method"] in COMPLAINTS]
        return list(filter(None, (COMPLAINTS[event["method"]](event["params"]) for event in found)))

    def set_viewport(self, width, colours="light", height=1000):
        self.resize(width, height)
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
        return [f"{row['id']}: {node['html'][:200]}" for row in found for node in row["nodes"]]


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
    pictures = [output for cell in cells for output in cell.get("outputs", []) if "image/png" in str(output)]
    assert page.count("<img") == len(pictures) >= 2
    answers = sum("<summary>Answer" in "".join(cell["source"]) for cell in cells)
    assert page.count("<summary>Answer") == answers and "minutes to read, " in page
    home = (site / "index.html").read_text()
    assert "In a hurry?" in home and "Ctrl+K" in home
    assert "In a hurry?" in (site / "syllabus.html").read_text()


SMART = "[\u2013\u2014\u2018\u2019\u201c\u201d]"  # dashes and quotes that a builder may put in place of ours


def article(page):
    """What a page says, without blocks of code, which nothing changes."""
    text = re.search(r"(?s)<article.*</article>", page.read_text())[0]
    text = re.sub(r"(?s)<pre.*?</pre>|<(?!/?(?:a|code|span|em|strong)\b)[^>]+>", " ", text)
    return html.unescape(re.sub(r"<[^>]+>", "", text))


@pytest.mark.quick("small")
@pytest.mark.long("whole")
@pytest.mark.parametrize("size", ["small", "whole"])
def test_dashes_and_quotes_are_copied_from_the_site_as_they_were_written(once, size):
    """A reader who copies an option that the builder wrote with a long dash gets an error."""
    out, count = small_site(once) if size == "small" else built(once, "whole_site"), 0
    for source in sorted((out / "site-sources").rglob("*.md")):
        name = source.relative_to(out / "site-sources").with_suffix(".html")
        text = article(out / "site" / name)
        count += len(re.findall(r"(?<![\w-])--[a-z]", text))
        assert {*re.findall(SMART, text)} <= {*source.read_text()}, name
    assert count >= 20


@pytest.mark.parametrize("address", ["", f"{ADDRESS}/"], ids=["no address", "address"])
def test_links_to_the_repository_and_the_pictures_of_cards_come_from_its_address(once, address):
    """Without one no page leads to a repository. Cards are what search engines and chats show of a page."""
    site = small_site(once, address) / "site"
    texts = {name: (site / f"{name}.html").read_text() for name in WITH_CARDS}
    for name, text in texts.items():
        tags = dict(re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)"', text))
        picture = f"{ADDRESS}/raw/main/lessons/pictures/kill.png"
        assert tags.get("og:image") == (picture if address else None), name
        assert tags["twitter:card"] == ("summary_large_image" if address else "summary")
        assert tags["og:title"] and 40 < len(tags["description"]) <= 200, name
        assert tags["og:description"] == tags["description"]
        leads = re.search(r'href="[^"]*(/edit/main/|colab\.research|/raw/main/)', text)
        assert bool(leads) == (bool(address) and name not in ("index", "widgets/planner")), name
        assert ("edit this page" in text) == bool(leads)
    links = re.findall(r'href="(https?://[^"]*)"', texts["index"])
    assert {link for link in links if "furo" not in link and "sphinx" not in link} == (
        {ADDRESS} if address else set()
    )
    if address:
        for page, links in {SOME[0]: ("edit",), SOME[1]: ("edit", "raw")}.items():
            text = texts[page.rpartition(".")[0]]
            assert all(f'href="{ADDRESS}/{link}/main/{page}"' in text for link in links), page
        colab = "https://colab.research.google.com/github/someone/rungs/blob/main/"
        assert f'href="{colab}{SOME[1]}"' in texts["notebooks/04_ddp_torchrun"]


# The theme lets what is in the middle scroll, and the page seems to be narrow.
WIDTH = "Math.max(...[...document.querySelectorAll('html, .content')].map((part) => part.scrollWidth))"


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_the_first_screen_says_what_it_is_and_what_to_do_next(page, width, height):
    page.set_viewport(width, height=height)
    page.open("index.html")
    bottoms = ".map((part) => part.getBoundingClientRect().bottom)"
    first, *_ = page.ask(every("article a:not(.headerlink)") + bottoms)
    parts = page.ask(every(".hero .tagline, .hero .actions") + bottoms)
    assert max(first, *parts) <= height, "below the fold"
    assert page.count(".cards > *") == page.count(".cards > * > :is(img, svg, .lines)") == 4
    page.until(f"{every('.cards img')}.every((one) => one.naturalWidth > 0)", "pictures")
    said = re.sub(r"\[([^]]*)\]\([^)]*\)|[*`]", r"\1", home.tested())
    assert said in page.ask(f"{one('.status-box')}.textContent") and "H100" in said
    assert page.ask(WIDTH) <= width


CUT = """[...document.querySelectorAll("article pre")].map((part) => [part.scrollWidth - part.clientWidth,
    Math.max(...part.textContent.split("\\n").map((line) => [...line].length))])"""


def test_code_of_110_letters_is_not_cut_on_a_desktop_and_scrolls_on_a_phone(page):
    page.set_viewport(1440)
    for name in ("lessons/pages/04.html", "notebooks/04_ddp_torchrun.html"):
        page.open(name)
        # The longest block has to fit, however long its lines are today.
        page.ask(f"{one('article .highlight pre')}.append('\\n' + 'x'.repeat(110) + '\\n')")
        page.ask(f"{every('details')}.forEach((part) => part.open = true)")
        blocks = page.ask(CUT)
        assert 110 in [letters for _, letters in blocks], name
        assert not [block for block in blocks if block[1] <= 110 and block[0] > 1], name
    page.set_viewport(390)
    page.open("notebooks/04_ddp_torchrun.html")
    assert page.ask(f"getComputedStyle({one('article .highlight pre')}).overflowX") == "auto"
    assert page.ask(WIDTH) <= 390


LISTED = """[...document.querySelectorAll("article .table-wrapper")].map((part) => [part.matches(".as-list"),
    part.scrollWidth - part.clientWidth])"""


def test_a_wide_table_is_a_list_on_a_phone(page):
    for name in ("syllabus.html", "widgets/planner.html", "widgets/sharding.html", "index.html"):
        page.set_viewport(390)
        page.open(name)
        tables = page.ask(LISTED)
        assert tables and any(is_list for is_list, _ in tables), name
        assert all(too_wide <= 1 for _, too_wide in tables), name
        page.set_viewport(1440)
        page.until(f"{LISTED}.every(([isList]) => !isList)", "tables again")
    page.set_viewport(390)
    page.open("index.html")
    assert "idea" in page.ask(
        f"getComputedStyle({one('.as-list tbody td:nth-child(2)')}, '::before').content"
    )


# ---- the diff of any lesson to any other ----

TEXTS = {lesson.stem: lesson.path.read_text().splitlines() for lesson in lessons.LESSONS}


def rows(before, after):
    """A diff in one column, of whole files: each line with its sign."""
    left, right = TEXTS[before], TEXTS[after]
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    for kind, low, high, start, end in matcher.get_opcodes():
        yield from (f"{' ' if kind == 'equal' else '-'}{line}" for line in left[low:high])
        yield from (f"+{line}" for line in right[start:end] if kind != "equal")


def test_every_line_that_a_lesson_adds_or_takes_away_has_its_sentence():
    parts = diff.parts()
    for position, lesson in enumerate(diff.data()["lessons"]):
        stem, before = lesson["stem"], lesson["from"]
        lesson |= parts[stem]
        if not before:
            assert lesson["because"] == [None] * len(lesson["lines"]) and not lesson["sentences"]
            continue
        own = {number: why[1] for number, why in enumerate(lesson["because"]) if why and why[0] == position}
        lines = list(rows(before, stem))
        assert [TEXTS[stem][number] for number in own] == [line[1:] for line in lines if line[0] == "+"]
        gone = [TEXTS[before][number] for number in lesson["gone"]]
        assert gone == [line[1:] for line in lines if line[0] == "-"]
        assert {*own.values(), *lesson["gone"].values()} == set(range(len(lesson["sentences"])))


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
    for before, after in random.Random(1).sample(PAIRS, count):
        page.ask(f"location.hash = '{before}..{after}'")
        head = f"{one('#widget th')}.textContent"
        page.until(f"{head} == '{before}.py to {after}.py'", f"the diff from {before} to {after}")
        lines = page.ask(SHOWN)
        assert [line[1:] for line in lines if line[0] != "+"] == TEXTS[before]
        assert [line[1:] for line in lines if line[0] != "-"] == TEXTS[after]
        same = [line for line in rows(*sorted((before, after))) if line[0] == " "]
        assert [line for line in lines if line[0] == " "] == same, (before, after)
        assert before > after or lines == list(rows(before, after))


CHOSEN = f"{every('#widget select')}.map((choice) => choice.value)"


def test_the_slider_walks_from_the_first_lesson_to_the_last_by_keyboard(page):
    page.open("widgets/diff.html?03_ddp_spawn..05_snapshots")
    assert page.ask(CHOSEN) == ["03_ddp_spawn", "05_snapshots"]
    page.until(f"{every('#widget .why')}.length", "a sentence")
    loaded = "performance.getEntriesByType('resource').map((entry) => entry.name.split('/').pop())"
    found = {name for name in page.ask(loaded) if name.startswith("diff.") and name[5].isdigit()}
    assert found == {"diff.03_ddp_spawn.js", "diff.05_snapshots.js"}, "not the lines of all lessons"
    page.ask(f"{one('[name=walk]')}.focus()")
    page.press("Home")
    for lesson in lessons.LESSONS[1:]:
        page.press("ArrowRight")
        assert page.ask(CHOSEN) == [lesson.grown_from, lesson.stem]
        # Its lines come from a file of their own, when they are asked for.
        why = f"#widget .why a[href^='../notebooks/{lesson.stem}.html']"
        page.until(f"{every(why)}.length", lesson.stem)
    moves = f"getComputedStyle({one('#widget td.come')}).animationName"
    assert page.ask(moves) == "none", "only what arrives in the ring moves"


def test_the_diff_opens_on_the_changed_lines_with_docstrings_folded(page):
    page.set_viewport(1440, height=900)
    page.open("widgets/diff.html")
    page.until(f"{every('#widget td.come')}.length", "a change")
    top = f"{one('#widget :is(td.gone, td.come)')}.getBoundingClientRect().top"
    assert page.ask(top) < 900, "the first change is below the fold"
    shown = f"{every('#widget td.line')}.map((cell) => cell.textContent)"
    first, second = (json.dumps(TEXTS[stem][0]) for stem in ("01_single_gpu", "04_ddp_torchrun"))
    assert not page.ask(f"{shown}.includes({first})")
    button = one("#widget .fold button")
    assert page.ask(f"{button}.textContent").startswith("docstring, ")
    page.ask(f"{button}.click()")
    page.until(f"{shown}.includes({first})", "the docstring")
    page.ask(f"{every('#widget .presets button')}[1].click()")
    page.until(f"{CHOSEN}.join() == '03_ddp_spawn,04_ddp_torchrun'", "the second example")
    page.until(f"{every('#widget .presets [aria-pressed=true]')}.length == 1", "its mark")
    page.ask(f"{one('[name=docstrings]')}.click()")
    page.until(f"{shown}.includes({second})", "docstrings")


@pytest.mark.parametrize("name", ["diff", "ring", "planner"])
def test_a_link_to_what_one_sees_is_copied(page, name):
    page.open(f"widgets/{name}.html")
    page.until(f"{one('#widget .copy button')} != null", "a button")
    page.ask("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    before = page.ask("location.hash")  # the page of diffs has one from the start
    page.ask(f"{one('#widget .presets button:nth-of-type(2)')}.click()")
    page.until(f"![{json.dumps(before)}, ''].includes(location.hash)", "another address")
    page.ask(f"{one('#widget .copy')}.scrollIntoView({{ block: 'center' }})")
    page.click("#widget .copy button", "Copy link")
    answer = f"{one('.copied')}.textContent"
    page.until(f"{answer}.startsWith('Copied')", "an answer")
    assert page.ask("copied") == page.ask("location.href") and "#" in page.ask("copied")
    # Where a browser allows no access to the clipboard, the address is there to be copied by hand.
    page.ask("navigator.clipboard.writeText = async () => { throw new Error('no') }")
    page.click("#widget .copy button", "Copy link")
    page.until(f"{answer}.includes(location.href)", "the address")


FOCUSED = """(() => {
    const { activeElement: found } = document;
    const { outlineStyle: style, outlineWidth: width } = getComputedStyle(found);
    const isFramed = style != "none" && parseFloat(width) > 0;
    const isThere = found.checkVisibility({ opacityProperty: true });
    return [CHOSEN.indexOf(found), isFramed && isThere];
})()"""


def tabbed(page, chosen, start="h1"):
    """Walk with Tab from the title to all that this selector names: its numbers, as they come."""
    page.ask(f"(start => {{ start.tabIndex ||= -1; start.focus(); }})({one(start)})")
    found, number = [], -1
    while number >= 0 or not found:
        page.press("Tab")
        page.ask("Promise.all(document.getAnimations().map((one) => one.finished)).then(() => 0)")
        number, can_be_seen = page.ask(FOCUSED.replace("CHOSEN", every(chosen)))
        if number >= 0:
            assert can_be_seen, f"the focus on number {number} is not to be seen"
            found.append(number)
    return found


@pytest.mark.parametrize("name", WIDGETS)
def test_every_control_of_a_widget_is_reached_and_seen_with_the_keyboard(page, name):
    page.open(f"widgets/{name}.html")
    if name == "diff":
        page.until(f"{every('#widget .fold')}.length", "folds")
    chosen = "#widget :is(input, select, button, a):not(:disabled)"
    count = page.count(chosen)
    assert tabbed(page, chosen) == list(range(count)) and count >= 5
    assert page.ask(WIDTH) <= 1280, "a wide table scrolls, and the page does not"


def test_whatever_a_page_has_can_be_used_with_the_keyboard(page):
    page.set_viewport(400)
    page.open("lessons/pages/04.html")
    kinds = ("a:not(.headerlink)", ".copybtn", "pre[tabindex]")
    assert [kind for kind in kinds if not page.count(f"article {kind}")] == []
    card = "article blockquote .copybtn"
    assert page.count(card) == 2, "a card's command and its lines can be copied"
    chosen = "article :is(a:not(.headerlink), button, pre, .table-wrapper[tabindex])"
    assert tabbed(page, chosen) == list(range(page.count(chosen)))
    page.ask(f"document.activeElement.blur(); scrollTo(0, 0); {one('.skip-to-content')}.focus()")
    for _ in range(5):
        page.press("Tab")
        in_view = "document.activeElement.getBoundingClientRect().right > 0"
        assert page.ask(in_view), page.ask("document.activeElement.outerHTML")
        if page.ask("document.activeElement.className") == "nav-overlay-icon":
            break
    page.press("Enter")
    assert page.ask("document.activeElement.ariaExpanded") == "true"
    page.until(f"{one('.sidebar-tree')}.getBoundingClientRect().left >= 0", "the menu")
    assert tabbed(page, ".sidebar-search", ".nav-overlay-icon") == [0]
    page.press("Escape")
    assert page.ask(f"{one('.sidebar-search')}.checkVisibility({{ visibilityProperty: true }})") is False


def test_groups_of_the_sidebar_can_be_opened_and_closed(page):
    page.set_viewport(1280)
    page.open("lessons/pages/04.html")
    group = (
        "(one) => [one.textContent, one.ariaExpanded, one.parentElement.nextElementSibling.checkVisibility()]"
    )
    groups = every(".sidebar-tree .caption button")
    opened = [["Lessons", "true", True], ["Look up", "true", True], ["Try", "false", False]]
    assert page.ask(f"{groups}.map({group})")[:3] == opened
    page.ask(f"{groups}.forEach((one) => one.click())")
    closed = [["Lessons", "false", False], ["Look up", "false", False], ["Try", "true", True]]
    assert page.ask(f"{groups}.map({group})")[:3] == closed


def test_keys_turn_pages_and_search_and_scroll_what_is_wide(page):
    page.set_viewport(400)
    page.open("lessons/pages/04.html")
    wide = one("pre[tabindex]")
    page.ask(f"{wide}.focus()")
    page.press("ArrowRight")
    page.until(f"{wide}.scrollLeft > 0", "the end of a line")
    page.press("/")
    page.press("k", CTRL)
    assert page.ask("document.activeElement.name") == "q"
    page.until("document.activeElement.getBoundingClientRect().left >= 0", "the search box")
    page.ask("document.activeElement.blur()")
    page.press("/")
    assert page.ask("document.activeElement.name") is None, "a letter alone is no shortcut"
    turns = {"ArrowRight": "notebooks/04_ddp_torchrun.html", "ArrowLeft": "lessons/pages/04.html"}
    for key, name in turns.items():
        page.press(key)
        page.until(f"location.pathname.endsWith('{name}')", name)
        page.until("document.readyState == 'complete'", "all of it")


def test_what_was_folded_can_be_scrolled_with_the_keyboard(page):
    needs(AXE.exists(), "axe-core")
    page.set_viewport(400)
    page.open("notebooks/10a_stale_weights.html")
    folded = f"{every('details pre')}.filter((part) => part.scrollWidth > part.clientWidth)"
    page.ask(f"{every('details')}.forEach((part) => part.open = true)")
    page.until(f"{folded}.length > 0 && {folded}.every((part) => part.tabIndex == 0)", "what was folded")
    assert page.violations(*ON_A_PHONE) == []


def test_the_syllabus_is_printed_without_what_is_for_the_screen(page):
    page.open("syllabus.html")
    page.call("Emulation.setEmulatedMedia", media="print")
    for chosen, count in {
        ".sidebar-drawer, .related-pages, button, .mobile-header": 0,
        "article table tr": 2 + len(lessons.LESSONS),
    }.items():
        assert page.ask(f"{every(chosen)}.filter((part) => part.checkVisibility()).length") == count


# ---- the whole site ----


@pytest.mark.long
def test_every_link_of_the_whole_site_leads_somewhere(whole):
    site = whole / "site"
    assert crawl.problems(site) == []
    pages = [f"lessons/pages/{lesson.page.stem}.html" for lesson in lessons.LESSONS]
    pages += [f"notebooks/{row.stem}.html" for lesson in lessons.LESSONS for row in lesson.notebooks]
    assert [name for name in (*pages, *KINDS) if not (site / name).exists()] == []


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
    for path in [site / name for name in KINDS] if part == "kinds" else sorted(site.rglob("*.html"))[part::4]:
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
    assert any("notebooks/03_ddp_spawn.html" in link for link in page.ask(found))


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
