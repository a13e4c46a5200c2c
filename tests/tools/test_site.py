"""The site says what the repository says, needs nothing from outside, and can be read by everybody."""

import difflib
import functools
import itertools
import json
import os
import random
import re
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath

import pytest

import browser
import crawl
import lessons
import sources
from lessons import ROOT
from widgets import diff, ring

PYTHON = ROOT / ".venv-site/bin/python"
AXE = ROOT / ".venv-site/axe.min.js"
SOME = (
    "lessons/pages/04.md",
    "notebooks/04_ddp_torchrun.ipynb",
    "lessons/pages/10.md",
    "notebooks/10a_stale_weights.ipynb",  # one of its cells is folded
    "lessons/pages/words.md",
)
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
WIDGETS = ("diff", "memory", "planner", "ring", "schedules", "sharding")
needs_the_builder = pytest.mark.skipif(
    not (ROOT / ".venv-site/ready").exists(),
    reason="needs tools/site/requirements.txt: make tools installs it",
)
needs_a_browser = pytest.mark.skipif(
    browser.CHROMIUM is None, reason="needs Chromium: make tools installs it"
)
needs_axe = pytest.mark.skipif(not AXE.exists(), reason="needs axe-core: make tools installs it")


def build(out, *words, address=""):
    words = [str(PYTHON), "tools/site/build.py", "--out", str(out), *words]
    environment = os.environ | {"ADDRESS": address}
    result = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return str(out)


@pytest.fixture
def small(once):
    """A site of five pages, the home page, the syllabus and the diffs."""
    return Path(once("small_site", lambda folder: build(folder, "--pages", *SOME)))


@pytest.fixture
def whole(once):
    return Path(once("whole_site", build))


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


class Reader(browser.Page):
    """A page, and a server that has the site in a folder below its root."""

    def __init__(self, chromium, out):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(out)))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.root = f"http://127.0.0.1:{self.server.server_port}/site/"
        try:
            super().__init__(chromium, "about:blank", width=1280)
        except BaseException:
            self.close_server()
            raise
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, name):
        self.call("Page.navigate", url="about:blank")  # else another place of the same page is no new page
        self.until("location.href == 'about:blank'", "an empty page")
        self.events.clear()
        self.call("Page.navigate", url=self.root + name)
        self.until(f"location.href.startsWith('{self.root}') && document.readyState == 'complete'", name)

    def complaints(self):
        """Since the page was opened: errors, requests that failed, requests that left the site."""
        found = []
        for event in self.events:
            what = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(f"an exception: {what['exceptionDetails']}")
            elif event["method"] == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning"):
                found.append(f"the console: {what['args']}")
            elif event["method"] == "Log.entryAdded" and what["entry"]["level"] == "error":
                found.append(f"an error: {what['entry']['text']}")
            elif event["method"] == "Network.loadingFailed" and not what.get("canceled"):
                found.append(f"a request failed: {what['errorText']}")
            elif event["method"] == "Network.requestWillBeSent":
                url = what["request"]["url"]
                if not url.startswith((self.root, "data:", "about:")):
                    found.append(f"a request left the site: {url}")
        return found

    def look(self, width, colours, height=1000):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": colours}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def violations(self, *only):
        """What axe-core finds against WCAG 2.2 AA and against headings in order; or against these rules."""
        if not self.ask("typeof axe == 'object'"):
            self.ask(AXE.read_text() + "; 1")
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
        rules = {"rules": {"heading-order": {"enabled": True}}}
        options = {"runOnly": list(only)} if only else {"runOnly": tags} | rules
        found = self.ask(f"axe.run(document, {json.dumps(options)}).then((result) => result.violations)")
        return [f"{row['id']}: {node['html'][:200]}" for row in found for node in row["nodes"]]

    def close(self):
        try:
            super().close()
        finally:
            self.close_server()

    def close_server(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def reader(chromium):
    opened = []

    def reader(out):
        opened.append(Reader(chromium, out))
        return opened[-1]

    yield reader
    for page in opened:
        page.close()


# ---- links ----


def test_links_lead_to_pages_of_the_site():
    page = PurePosixPath("lessons/pages/04.md")
    book = sources.Book(Path("nowhere"), tuple(map(PurePosixPath, SOME)))
    text = (
        "[a](words.md#DDP) [b](../../notebooks/04_ddp_torchrun.ipynb) [c](../04_ddp_torchrun.py) `[d](e)`\n"
    )
    text += "[f](https://pytorch.org) [g](../../README.md) [h](../exercises/04a_bug_hunt)\n```\n[i](j)\n```\n"
    expected = (
        "[a](words.md#ddp) [b](../../notebooks/04_ddp_torchrun.md) [c](../04_ddp_torchrun.py.md) `[d](e)`\n"
    )
    expected += "[f](https://pytorch.org) [g](../../index.md) [h](../exercises/04a_bug_hunt/index.md)\n"
    assert book.relinked(text, page) == expected + "```\n[i](j)\n```\n"
    assert PurePosixPath("lessons/04_ddp_torchrun.py") in book.linked, "there is to be a page for the script"
    with pytest.raises(sources.Broken, match=r"04.md links gone.md"):
        book.relinked("[x](gone.md)", page)


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "there.html").write_text('<h1 id="here"></h1><img src="p.png" alt="A picture">')
    (tmp_path / "p.png").touch()
    good = (
        '<a href="there.html#here"></a><a href="https://pytorch.org"></a><script src="there.html"></script>'
    )
    (tmp_path / "page.html").write_text(good)
    assert crawl.problems(tmp_path) == []
    for bad in (
        '<a href="gone.html"></a>',
        '<a href="there.html#gone"></a>',
        '<script src="https://example.org/a.js"></script>',
        '<link href="//example.org/a.css">',
        '<img src="p.png" alt="">',
    ):
        (tmp_path / "page.html").write_text(good + bad)
        assert len(crawl.problems(tmp_path)) == 1, bad


def test_with_an_address_pages_lead_to_the_repository():
    address, (page, notebook, *_) = "https://github.com/someone/rungs", map(PurePosixPath, SOME)
    assert sources.elsewhere("", notebook) == []
    assert sources.elsewhere(address, page) == [f"[edit this page]({address}/edit/main/{page})"]
    colab = f"https://colab.research.google.com/github/someone/rungs/blob/main/{notebook}"
    assert sources.elsewhere(address, notebook)[1] == f"[open in Colab]({colab})"


@needs_the_builder
def test_a_small_site_is_built(small):
    assert crawl.problems(small / "site") == []
    page = (small / "site/notebooks/04_ddp_torchrun.html").read_text()
    cells = json.loads((ROOT / SOME[1]).read_text())["cells"]
    pictures = [output for cell in cells for output in cell.get("outputs", []) if "image/png" in str(output)]
    assert page.count("<img") == len(pictures) >= 2
    assert page.count("<summary>Answer") == sum(
        "<summary>Answer" in "".join(cell["source"]) for cell in cells
    )
    assert "minutes to read, " in page and "edit this page" not in page
    home = (small / "site/index.html").read_text()
    assert "In a hurry?" in home and "Ctrl+K" in home
    assert "In a hurry?" in (small / "site/syllabus.html").read_text()


ADDRESS = "https://github.com/someone/rungs"


def cards(site, name):
    """What a page tells search engines and chats, by name."""
    text = (site / "site" / name).read_text()
    return dict(re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)"', text)), text


@needs_the_builder
def test_without_an_address_no_page_leads_to_a_repository_and_no_card_has_a_picture(small):
    for name in (
        "index.html",
        "lessons/pages/04.html",
        "notebooks/04_ddp_torchrun.html",
        "widgets/planner.html",
    ):
        tags, text = cards(small, name)
        assert "og:image" not in tags and tags["twitter:card"] == "summary", name
        assert tags["og:title"] and 40 < len(tags["description"]) <= 200, name
        assert tags["og:description"] == tags["description"]
        assert not re.search(r'href="[^"]*(/edit/main/|colab\.research|/raw/main/)', text), name
    links = re.findall(r'href="(https?://[^"]*)"', (small / "site/index.html").read_text())
    assert [link for link in links if "furo" not in link and "sphinx" not in link] == []


@needs_the_builder
def test_with_an_address_links_and_cards_come_from_it(once):
    site = Path(once("small_site_with_an_address", functools.partial(build_with_an_address)))
    for name in (
        "index.html",
        "lessons/pages/04.html",
        "notebooks/04_ddp_torchrun.html",
        "widgets/planner.html",
    ):
        tags, _ = cards(site, name)
        assert tags["og:image"] == f"{ADDRESS}/raw/main/lessons/pictures/kill.png", name
        assert tags["twitter:card"] == "summary_large_image"
    assert f'href="{ADDRESS}"' in (site / "site/index.html").read_text()
    notebook = (site / "site/notebooks/04_ddp_torchrun.html").read_text()
    assert f'href="{ADDRESS}/edit/main/notebooks/04_ddp_torchrun.ipynb"' in notebook
    assert 'href="https://colab.research.google.com/github/someone/rungs/' in notebook


def build_with_an_address(folder):
    return build(folder, "--pages", *SOME, address=f"{ADDRESS}/")


def test_the_address_is_the_one_of_the_table_unless_a_variable_has_another(monkeypatch):
    import build as builder

    monkeypatch.setattr(lessons, "ADDRESS", ADDRESS)
    monkeypatch.delenv("ADDRESS", raising=False)
    assert builder.address() == ADDRESS
    for other in ("https://github.com/other/rungs", ""):
        monkeypatch.setenv("ADDRESS", other)
        assert builder.address() == other


FOLD = """(() => {
    const links = [...document.querySelectorAll("article a:not(.headerlink)")];
    const seen = links.filter((link) => link.getBoundingClientRect().bottom <= innerHeight);
    return [links[0].textContent, seen.length, innerHeight];
})()"""


@needs_the_builder
@needs_a_browser
@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_the_first_screen_says_what_it_is_and_what_to_do_next(small, reader, width, height):
    page = reader(small)
    page.look(width, "light", height)
    page.open("index.html")
    first, seen, _ = page.ask(FOLD)
    assert seen >= 1, f"{first!r} is below the fold"
    bottom = "(part) => part.getBoundingClientRect().bottom"
    seen = f"(chosen => [...document.querySelectorAll(chosen)].map({bottom}))"
    assert all(bottom <= height for bottom in page.ask(f"{seen}('.hero .tagline, .hero .actions')"))
    pictures = ".cards > * > :is(img, svg, .lines)"
    assert len(page.ask(f"{seen}('.cards > *')")) == len(page.ask(f"{seen}('{pictures}')")) == 4
    page.until(
        "[...document.querySelectorAll('.cards img')].every((one) => one.naturalWidth > 0)", "pictures"
    )
    assert "has run on a real GPU yet" in page.ask("document.querySelector('.status-box').textContent")
    assert page.ask(WIDTH) <= width
    assert page.complaints() == []


CUT = """[...document.querySelectorAll("article pre")].map((part) => [part.scrollWidth - part.clientWidth,
    Math.max(...part.textContent.split("\\n").map((line) => [...line].length))])"""


@needs_the_builder
@needs_a_browser
def test_code_of_110_letters_is_not_cut_on_a_desktop_and_scrolls_on_a_phone(small, reader):
    page = reader(small)
    page.look(1440, "light")
    for name in ("notebooks/04_ddp_torchrun.html", "lessons/pages/04.html"):
        page.open(name)
        # The longest block has to fit, however long its lines are today.
        page.ask("document.querySelector('article .highlight pre').append('\\n' + 'x'.repeat(110) + '\\n')")
        page.ask("document.querySelectorAll('details').forEach((part) => part.open = true)")
        blocks = page.ask(CUT)
        assert 110 in [letters for _, letters in blocks], name
        assert not [block for block in blocks if block[1] <= 110 and block[0] > 1], name
    page.look(390, "light")
    page.open("notebooks/04_ddp_torchrun.html")
    style = "getComputedStyle(document.querySelector('article .highlight pre')).overflowX"
    assert page.ask(style) == "auto" and page.ask(WIDTH) <= 390


LISTED = """[...document.querySelectorAll("article .table-wrapper")].map((part) => [part.matches(".as-list"),
    part.scrollWidth - part.clientWidth])"""


@needs_the_builder
@needs_a_browser
def test_a_wide_table_is_a_list_on_a_phone(small, reader):
    page = reader(small)
    for name in ("index.html", "syllabus.html", "widgets/planner.html", "widgets/sharding.html"):
        page.look(390, "light")
        page.open(name)
        tables = page.ask(LISTED)
        assert tables and any(is_list for is_list, _ in tables), name
        assert all(too_wide <= 1 for _, too_wide in tables), name
        page.look(1440, "light")
        page.until(f"{LISTED}.every(([isList]) => !isList)", "tables again")
    label = "getComputedStyle(document.querySelector('.as-list tbody td:nth-child(2)'), '::before').content"
    page.look(390, "light")
    page.open("index.html")
    assert page.ask(label) == '"idea" ": "' or "idea" in page.ask(label)


def test_a_notebook_leads_to_the_page_on_which_its_pictures_move():
    book = sources.Book(Path("nowhere"), (), widgets={"ring": ring, "diff": diff})
    for stem, count in (("03a_how_gradients_travel", 1), ("04_ddp_torchrun", 0)):
        card = sources.card(book, PurePosixPath(f"notebooks/{stem}.ipynb"), "a minute", "")
        assert card.count('<a href="../widgets/ring.html">') == count and "widgets/diff" not in card


# ---- the diff of any lesson to any other ----


@functools.cache
def texts():
    return {lesson.stem: lesson.path.read_text().splitlines() for lesson in lessons.LESSONS}


def rows(before, after):
    """A diff in one column, of whole files: each line with its sign."""
    left, right = texts()[before], texts()[after]
    for kind, low, high, start, end in difflib.SequenceMatcher(
        None, left, right, autojunk=False
    ).get_opcodes():
        if kind == "equal":
            yield from (f" {line}" for line in left[low:high])
        else:
            yield from (f"-{line}" for line in left[low:high])
            yield from (f"+{line}" for line in right[start:end])


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
        assert [texts()[stem][number] for number in own] == [line[1:] for line in lines if line[0] == "+"]
        gone = [texts()[before][number] for number in lesson["gone"]]
        assert gone == [line[1:] for line in lines if line[0] == "-"]
        assert {*own.values(), *lesson["gone"].values()} == set(range(len(lesson["sentences"])))


def test_a_notebook_whose_diff_is_old_is_named(monkeypatch):
    stored = diff.stored_diff
    monkeypatch.setattr(
        diff, "stored_diff", lambda lesson: stored(lesson).replace("+ import os", "+ import so")
    )
    with pytest.raises(sources.Broken, match=r"04_ddp_torchrun.ipynb has '\+ import so', .*: make diffs"):
        diff.data()


def test_a_notebook_may_show_some_of_the_changes(monkeypatch):
    """Each sentence leads to its place in the notebook, if it is there, and else to the notebook."""
    stored, whole = diff.stored_diff, diff.data()["lessons"]

    def some(lesson):
        parts = diff.PART.split(stored(lesson))  # a head, then a sentence, its lines, what is between
        if lesson.stem != "05_snapshots":
            return stored(lesson)
        shown = [0, 2, 3]
        return "head\n\n" + "\n\n".join(
            f"{parts[1 + 3 * at]}\n\n```diff\n{parts[2 + 3 * at]}```" for at in shown
        )

    monkeypatch.setattr(diff, "stored_diff", some)
    part = diff.data()["lessons"]
    position = lessons.STEMS.index("05_snapshots")
    count = len(part[position]["sentences"])
    assert part[position]["shown"] == [0, None, 1, 2, *[None] * (count - 4)]
    assert part[position]["sentences"] == whole[position]["sentences"], "no sentence is lost"


def test_a_change_without_a_sentence_is_named():
    before, after = ["a", "b", "c", "d", "e", "f"], ["A", "b", "c", "d", "e", "F", "G"]
    found = diff.parts_of(before, after, {"A": "One.", "F": "Two.", "+ G": "Three."})
    assert [sentence for sentence, _ in found] == ["One.", "Two.", "Three."]
    assert found[2][1] == [("+", "G", 6)]
    with pytest.raises(sources.Broken, match="a change has no sentence"):
        diff.parts_of(before, after, {"A": "One."})
    with pytest.raises(sources.Broken, match=r"no change for '\+ H'"):
        diff.parts_of(before, after, {"A": "One.", "F": "Two.", "+ H": "Three."})


def test_docstrings_are_found():
    text = '"""One\n\nmore."""\n\ndef f():\n    """Two."""\n    return "no"\n'
    assert diff.docstrings(text) == [(0, 3), (5, 6)]


SHOWN = """[...document.querySelectorAll("#widget tbody tr:not(.why):not(.fold)")].map((row) =>
    row.querySelector(".sign").textContent + row.querySelector("code").textContent)"""


def drawn(page, before, after):
    """What the page of diffs draws for two lessons."""
    page.ask(f"location.hash = '{before}..{after}'")
    head = "document.querySelector('#widget th').textContent"
    page.until(f"{head} == '{before}.py to {after}.py'", f"the diff from {before} to {after}")
    return page.ask(SHOWN)


def compare_drawn_with_python(page, pairs):
    page.open("widgets/diff.html")
    for name, is_wanted in (("columns", False), ("whole", True)):
        box = f"document.querySelector('[name={name}]')"
        if page.ask(f"{box}.checked") != is_wanted:
            page.ask(f"{box}.click()")
    for before, after in pairs:
        lines = drawn(page, before, after)
        assert [line[1:] for line in lines if line[0] != "+"] == texts()[before]
        assert [line[1:] for line in lines if line[0] != "-"] == texts()[after]
        one, other = sorted((before, after))
        same = [line for line in rows(one, other) if line[0] == " "]
        assert [line for line in lines if line[0] == " "] == same, (before, after)
        assert before > after or lines == list(rows(before, after))
    assert page.complaints() == []


@needs_the_builder
@needs_a_browser
def test_the_page_draws_the_diffs_that_python_makes(small, reader):
    pairs = list(itertools.permutations(lessons.STEMS, 2))
    compare_drawn_with_python(reader(small), random.Random(1).sample(pairs, 8))


@needs_the_builder
@needs_a_browser
def test_the_slider_walks_from_the_first_lesson_to_the_last_by_keyboard(small, reader):
    page = reader(small)
    page.open("widgets/diff.html?03_ddp_spawn..05_snapshots")
    chosen = "[...document.querySelectorAll('#widget select')].map((choice) => choice.value)"
    assert page.ask(chosen) == ["03_ddp_spawn", "05_snapshots"]
    page.until("document.querySelectorAll('#widget .why').length", "a sentence")
    loaded = "performance.getEntriesByType('resource').map((entry) => entry.name.split('/').pop())"
    found = {name for name in page.ask(loaded) if name.startswith("diff.") and name[5].isdigit()}
    assert found == {"diff.03_ddp_spawn.js", "diff.05_snapshots.js"}, "not the lines of all lessons"
    page.ask("document.querySelector('[name=walk]').focus()")
    press(page, "Home", 36)
    for lesson in lessons.LESSONS[1:]:
        press(page, "ArrowRight", 39)
        assert page.ask(chosen) == [lesson.grown_from, lesson.stem]
        why = "[...document.querySelectorAll('#widget .why a')].map((link) => link.getAttribute('href'))"
        # Its lines come from a file of their own, when they are asked for.
        page.until(f"{why}.some((one) => one.startsWith('../notebooks/{lesson.stem}.html'))", lesson.stem)
    moves = "getComputedStyle(document.querySelector('#widget td.come')).animationName"
    assert page.ask(moves) == "none", "only what arrives in the ring moves"
    assert page.complaints() == []


@needs_the_builder
@needs_a_browser
def test_the_diff_opens_on_the_changed_lines_with_docstrings_folded(small, reader):
    page = reader(small)
    page.look(1440, "light", 900)
    page.open("widgets/diff.html")
    page.until("document.querySelectorAll('#widget td.come').length", "a change")
    top = "document.querySelector('#widget :is(td.gone, td.come)').getBoundingClientRect().top"
    assert page.ask(top) < 900, "the first change is below the fold"
    shown = "[...document.querySelectorAll('#widget td.line')].map((cell) => cell.textContent)"
    docstring = lessons.get("01_single_gpu").path.read_text().splitlines()[0]
    assert docstring not in page.ask(shown)
    button = "document.querySelector('#widget .fold button')"
    assert page.ask(f"{button}.textContent").startswith("docstring, ")
    page.ask(f"{button}.click()")
    page.until(f"{shown}.includes({json.dumps(docstring)})", "the docstring")
    page.ask("document.querySelectorAll('#widget .presets button')[1].click()")
    chosen = "[...document.querySelectorAll('#widget select')].map((choice) => choice.value).join()"
    page.until(f"{chosen} == '03_ddp_spawn,04_ddp_torchrun'", "the second example")
    page.until("document.querySelectorAll('#widget .presets [aria-pressed=true]').length == 1", "its mark")
    page.ask("document.querySelector('[name=docstrings]').click()")
    docstring = lessons.get("04_ddp_torchrun").path.read_text().splitlines()[0]
    page.until(f"{shown}.includes({json.dumps(docstring)})", "docstrings")
    assert page.complaints() == []


@needs_the_builder
@needs_a_browser
@pytest.mark.parametrize("name", ["diff", "ring", "planner"])
def test_a_link_to_what_one_sees_is_copied(small, reader, name):
    page = reader(small)
    page.open(f"widgets/{name}.html")
    page.until("document.querySelector('#widget .copy button') != null", "a button")
    page.ask("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.ask("document.querySelector('#widget .presets button:nth-of-type(2)').click()")
    page.until("location.hash.length > 1", "an address")
    page.ask("document.querySelector('#widget .copy').scrollIntoView({ block: 'center' })")
    page.click("#widget .copy button", "Copy link")
    page.until("document.querySelector('.copied').textContent.startsWith('Copied')", "an answer")
    assert page.ask("copied") == page.ask("location.href") and "#" in page.ask("copied")
    # Where a browser allows no access to the clipboard, the address is there to be copied by hand.
    page.ask("navigator.clipboard.writeText = async () => { throw new Error('no') }")
    page.click("#widget .copy button", "Copy link")
    page.until("document.querySelector('.copied').textContent.includes(location.href)", "the address")


def press(page, key, code, modifiers=0):
    for kind in ("keyDown", "keyUp"):
        keys = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        page.call("Input.dispatchKeyEvent", type=kind, **keys)


FOCUSED = """(() => {
    const { activeElement: found } = document;
    const { outlineStyle: style, outlineWidth: width } = getComputedStyle(found);
    const isFramed = style != "none" && parseFloat(width) > 0;
    const isThere = found.checkVisibility({ opacityProperty: true });
    return [[...document.querySelectorAll(CHOSEN)].indexOf(found), isFramed && isThere];
})()"""


def tabbed(page, chosen, start="document.querySelector('h1')"):
    """Walk with Tab from the title to all that this selector names: its numbers, as they come."""
    page.ask(f"(start => {{ start.tabIndex ||= -1; start.focus(); }})({start})")
    found, number = [], -1
    while number >= 0 or not found:
        press(page, "Tab", 9)
        page.ask("Promise.all(document.getAnimations().map((one) => one.finished)).then(() => 0)")
        number, can_be_seen = page.ask(FOCUSED.replace("CHOSEN", repr(chosen)))
        if number >= 0:
            assert can_be_seen, f"the focus on number {number} is not to be seen"
            found.append(number)
    return found


@needs_the_builder
@needs_a_browser
@pytest.mark.parametrize("name", WIDGETS)
def test_every_control_of_a_widget_is_reached_and_seen_with_the_keyboard(small, reader, name):
    page = reader(small)
    page.look(1280, "light")
    page.open(f"widgets/{name}.html")
    if name == "diff":
        page.until("document.querySelectorAll('#widget .fold').length", "folds")
    chosen = "#widget :is(input, select, button, a):not(:disabled)"
    count = page.ask(f"document.querySelectorAll({chosen!r}).length")
    assert tabbed(page, chosen) == list(range(count)) and count >= 5
    assert page.ask(WIDTH) <= 1280, "a wide table scrolls, and the page does not"
    assert page.complaints() == []


@needs_the_builder
@needs_a_browser
def test_whatever_a_page_has_can_be_used_with_the_keyboard(small, reader):
    page = reader(small)
    page.look(400, "light")
    page.open("lessons/pages/04.html")
    chosen = "article :is(a:not(.headerlink), button, pre, .table-wrapper[tabindex])"
    count = page.ask(f"document.querySelectorAll({chosen!r}).length")
    assert tabbed(page, chosen) == list(range(count)) and count >= 5
    assert page.ask("document.querySelectorAll('article .copybtn').length") >= 1
    in_view = "document.activeElement.getBoundingClientRect().right > 0"
    page.ask(
        "document.activeElement.blur(); scrollTo(0, 0); document.querySelector('.skip-to-content').focus()"
    )
    for _ in range(5):
        press(page, "Tab", 9)
        assert page.ask(in_view), page.ask("document.activeElement.outerHTML")
        if page.ask("document.activeElement.className") == "nav-overlay-icon":
            break
    press(page, "Enter", 13)
    assert page.ask("document.activeElement.ariaExpanded") == "true"
    page.until("document.querySelector('.sidebar-tree').getBoundingClientRect().left >= 0", "the menu")
    assert tabbed(page, ".sidebar-search", "document.querySelector('.nav-overlay-icon')") == [0]
    press(page, "Escape", 27)
    assert (
        page.ask("document.querySelector('.sidebar-search').checkVisibility({ visibilityProperty: true })")
        is False
    )


@needs_the_builder
@needs_a_browser
def test_keys_turn_pages_and_search_and_scroll_what_is_wide(small, reader):
    page = reader(small)
    page.look(400, "light")
    page.open("lessons/pages/04.html")
    wide = "document.querySelector('pre[tabindex]')"
    page.ask(f"{wide}.focus()")
    press(page, "ArrowRight", 39)
    page.until(f"{wide}.scrollLeft > 0", "the end of a line")
    press(page, "/", 191)
    press(page, "k", 75, modifiers=2)  # Ctrl
    assert page.ask("document.activeElement.name") == "q"
    page.until("document.activeElement.getBoundingClientRect().left >= 0", "the search box")
    page.ask("document.activeElement.blur()")
    press(page, "/", 191)
    assert page.ask("document.activeElement.name") is None, "a letter alone is no shortcut"
    press(page, "ArrowRight", 39)
    page.until("location.pathname.endsWith('notebooks/04_ddp_torchrun.html')", "the next page")
    page.until("document.readyState == 'complete'", "all of it")
    press(page, "ArrowLeft", 37)
    page.until("location.pathname.endsWith('lessons/pages/04.html')", "the page before")
    assert page.complaints() == []


@needs_the_builder
@needs_a_browser
@needs_axe
def test_what_was_folded_can_be_scrolled_with_the_keyboard(small, reader):
    page = reader(small)
    page.look(400, "light")
    page.open("notebooks/10a_stale_weights.html")
    folded = (
        "[...document.querySelectorAll('details pre')].filter((part) => part.scrollWidth > part.clientWidth)"
    )
    page.ask("document.querySelectorAll('details').forEach((part) => part.open = true)")
    page.until(f"{folded}.length > 0 && {folded}.every((part) => part.tabIndex == 0)", "what was folded")
    assert page.violations("scrollable-region-focusable", "target-size") == []


@needs_the_builder
@needs_a_browser
def test_the_syllabus_is_printed_without_what_is_for_the_screen(small, reader):
    page = reader(small)
    page.open("syllabus.html")
    page.call("Emulation.setEmulatedMedia", media="print")
    shown = "[...document.querySelectorAll({!r})].filter((part) => part.checkVisibility()).length"
    assert page.ask(shown.format(".sidebar-drawer, .related-pages, button, .mobile-header")) == 0
    assert page.ask(shown.format("article table tr")) == 2 + len(lessons.LESSONS)


# ---- the whole site ----


@pytest.mark.long
@needs_the_builder
def test_every_link_of_the_whole_site_leads_somewhere(whole):
    site = whole / "site"
    assert crawl.problems(site) == []
    for lesson in lessons.LESSONS:
        assert (site / f"lessons/pages/{lesson.page.stem}.html").exists()
        for row in lesson.notebooks:
            assert (site / f"notebooks/{row.stem}.html").exists()
    assert all((site / name).exists() for name in KINDS)


@pytest.mark.long("kinds")
@pytest.mark.night
@needs_the_builder
@needs_a_browser
@needs_axe
@pytest.mark.parametrize("part", ["kinds", 0, 1, 2, 3])
def test_every_page_opens_and_everybody_can_read_it(whole, reader, part):
    """No error, no request that fails or leaves, nothing wider than a phone, not too heavy; and no violation.
    That is looked for where the navigation leads: the other pages show a file, and are of one kind."""
    page, site, found = reader(whole), whole / "site", []
    listed = {*crawl.Page((site / "index.html").read_text()).links, *KINDS}
    pages = sorted(site.rglob("*.html"))
    for path in [site / name for name in KINDS] if part == "kinds" else pages[part::4]:
        name = str(path.relative_to(site))
        page.look(1280, "light")
        page.open(name)
        problems = page.complaints()
        if name in listed:
            problems += page.violations()
            page.look(1280, "dark")
            problems += [f"in the dark, {line}" for line in page.violations("color-contrast")]
        page.look(400, "light")
        if name in listed:
            page.ask(OPENED)
            problems += [f"on a phone, {line}" for line in page.violations(*ON_A_PHONE)]
        if (wide := page.ask(WIDTH)) > 400:
            problems.append(f"{wide} pixels wide on a phone")
        if (weight := page.ask(WEIGHT)) > BUDGET:
            problems.append(f"{weight} bytes before pictures")
        found += [f"{name}: {line}" for line in problems]
    assert not found, "\n".join(found)


ON_A_PHONE = ("scrollable-region-focusable", "target-size")
# All that is folded, and what the page then does in a frame or two.
OPENED = """document.querySelectorAll("details").forEach((part) => part.open = true);
    new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"""
# The theme lets what is in the middle scroll, and the page seems to be narrow.
WIDTH = "Math.max(...[...document.querySelectorAll('html, .content')].map((part) => part.scrollWidth))"
WEIGHT = """[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .filter((entry) => entry.initiatorType != "img").reduce((sum, entry) => sum + entry.decodedBodySize, 0)"""


@pytest.mark.long
@needs_the_builder
@needs_a_browser
def test_the_search_finds_a_word_of_the_code(whole, reader):
    page = reader(whole)
    page.open("search.html?q=set_epoch")
    found = "[...document.querySelectorAll('#search-results li a')].map((link) => link.getAttribute('href'))"
    page.until(f"{found}.length", "results")
    page.until(
        "document.querySelector('#search-results .search-summary').textContent.includes('found')", "the end"
    )
    assert any("notebooks/03_ddp_spawn.html" in link for link in page.ask(found))
    assert page.complaints() == []


@pytest.mark.night
@needs_the_builder
@needs_a_browser
def test_the_page_draws_every_diff_that_python_makes(whole, reader):
    compare_drawn_with_python(reader(whole), itertools.permutations(lessons.STEMS, 2))


@pytest.mark.long
@needs_the_builder
@needs_a_browser
def test_pages_that_were_read_are_remembered_until_they_are_forgotten(whole, reader):
    page = reader(whole)
    page.open("lessons/pages/04.html")
    page.ask("scrollTo(0, document.body.scrollHeight)")
    page.until("document.querySelectorAll('.sidebar-tree a.read').length == 1", "a mark on the page")
    page.open("index.html")
    page.until("document.querySelector('p.progress span').textContent.endsWith(': 1.')", "a count")
    assert page.ask("document.querySelector('article td a.read').textContent").startswith("04.")
    page.ask("document.querySelector('p.progress button').click()")
    assert page.ask("document.querySelectorAll('a.read').length") == 0
    assert page.ask("document.querySelector('p.progress').hidden")
