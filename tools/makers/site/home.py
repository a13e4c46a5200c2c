"""The pages that the repository has nowhere: the home page, the syllabus, and one for each widget.

The table of lessons and the pages have their facts, theme/*.jinja their words, and theme/navigation.toml the
order of the other pages.
"""

import re
import textwrap
import tomllib
from pathlib import PurePosixPath

from tools import lessons
from tools.lessons import ROOT
from tools.makers.site import live, to_markdown
from tools.makers.site.deck import TEMPLATES
from tools.makers.site.widgets import diff

EXERCISES = PurePosixPath("lessons/exercises")
PARTS = tomllib.loads((ROOT / "tools/makers/site/theme/navigation.toml").read_text())
NAMES = {  # else a page is listed by its title
    "README.md": "README",
    "lessons/pages/errors.md": "Error messages",
    "lessons/pages/words.md": "Glossary",
    "tools/makers/bench/README.md": "Benchmarks",
}
PICTURES = ("kill.png",)  # of the home page's cards


def toctree(entries, caption="") -> str:
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return f"```{{toctree}}\n{options}\n" + "\n".join(entries) + "\n```\n"


def is_in_navigation(page) -> bool:
    """Whether some list of pages has it; the theme would warn of one that none has."""
    listed = [*map(page_of, lessons.LESSONS), *map(notebook_page, lessons.NOTEBOOKS)]
    for names in PARTS.values():
        listed += map(PurePosixPath, names)
    return page in listed


def page_of(lesson) -> PurePosixPath:
    return PurePosixPath(str(lesson.page.relative_to(ROOT)))


def notebook_page(row) -> PurePosixPath:
    return PurePosixPath("notebooks") / row.path.name


def notebook_link(row) -> str:
    return f"[{row.number} {row.title}]({notebook_page(row)})"


def solve(lesson) -> list[PurePosixPath]:
    """The exercises of a lesson, as files or folders of the repository."""
    found = []
    for row in lesson.notebooks:
        for path in lessons.exercises(row.number):
            found.append(EXERCISES / path.name)
    return found


def below(book, lesson) -> str:
    """What follows a lesson's page in the navigation: its notebooks and exercises."""
    entries = []
    for row in lesson.notebooks:
        path = notebook_page(row)
        if path in book.pages:
            entries.append(f"{row.number} {row.title} </{book.page_of(path)}>")
    if book.is_whole:
        for path in solve(lesson):
            entries.append(f"Exercise {path.stem.replace('_', ' ')} </{book.page_of(path)}>")
    return toctree(entries) if entries else ""


def minutes(row) -> int:
    """How long a notebook takes to read, as it says itself."""
    return int(re.search(r"(\d+) minutes to read", row.path.read_text())[1])


def points(path) -> int:
    """How many points an exercise has, as the list of exercises says."""
    listed = (ROOT / EXERCISES / "README.md").read_text()
    return int(re.search(rf"^\| \[{re.escape(path.stem)}\]\([^)]*\) \| (\d+) \|", listed, re.M)[1])


def row_of(lesson) -> dict:
    """A lesson in the tables of the home page and of the syllabus."""
    tasks = solve(lesson)
    linked = [f"[{path.stem.replace('_', ' ')}]({path})" for path in tasks]
    return {
        "name": f"[{lesson.number}. {lesson.title}]({page_of(lesson)})",
        "idea": lesson.idea,
        "notebooks": "<br>".join(map(notebook_link, lesson.notebooks)),
        "minutes": sum(map(minutes, lesson.notebooks)),
        "exercises": "<br>".join(linked),
        "points": sum(map(points, tasks)),
    }


def rendered(book, name, **more) -> str:
    TEMPLATES.filters["relinked"] = lambda text: book.relinked(text, to_markdown.HOME)
    rows = []
    shortest = []
    for lesson in lessons.LESSONS:
        rows.append(row_of(lesson))
        if lesson.shortest:
            shortest.append(notebook_link(lesson.notebooks[0]))
    template = TEMPLATES.get_template(f"{name}.md.jinja")
    return template.render(book=book, rows=rows, shortest=", ".join(shortest), **more)


def home(book) -> str:
    def link(path):  # nothing on a small site that has no such page
        page = book.page_of(path)
        return str(page.with_suffix(".html")) if page else ""

    book.write("static/ring.svg", one_step((ROOT / "lessons/pictures/ring.svg").read_text()))
    return rendered(
        book,
        "home",
        notebooks=len(lessons.NOTEBOOKS),
        start=link(page_of(lessons.LESSONS[0])),
        kill=link(notebook_page(lessons.get("05_snapshots").notebooks[0])),
        curve=curve(book.widgets["planner"]),
        changed=changed_lines(),
        tested=tested(),
        first_minutes=first_minutes(book.address),
        navigation=navigation(book),
    )


def first_minutes(address) -> str:
    """The commands that README.md begins with, and what it says about them, up to what they print. With an
    address, the repository is cloned from there."""
    text = (ROOT / "README.md").read_text()
    shown = re.search(r"(?s)## Your first five minutes\n(.*?)\nOn two cores, `make run` ends with", text)[1]
    clone = f"```sh\ngit clone --depth 1 {address} rungs\ncd rungs\n```\n" if address else ""
    marked = r"(?s)<!-- clone: written by `make diffs` -->\n.*?<!-- end of clone -->\n"
    assert len(re.findall(marked, shown)) == 1, "README.md has no place for the command that clones"
    return re.sub(marked, lambda _: clone, shown)


def tested() -> str:
    """What README.md says about where all this has run, so that the home page cannot say something else."""
    return re.search(r"(?m)^> (\*\*Tested on\*\* .*)", (ROOT / "README.md").read_text())[1]


def curve(planner, model="Llama 3 405B", gpus="16,384") -> dict:
    """The planner's curve of one of its examples, in the coordinates of its picture."""
    found = planner.answer(**live.begin(planner) | planner.PRESETS[f"{model} on {gpus} GPUs"])
    shown = found["curve"]
    dots = []
    for dot in shown:
        dots.append((40 + 220 * dot["x"], 24 + 116 * (1 - dot["y"])))
    ticks = []
    for tick in found["ticks"][::2]:
        ticks.append((24 + 116 * (1 - tick["at"]), tick["words"]))
    return {
        "model": model,
        "first": shown[0]["words"],
        "last": shown[-1]["words"],
        "dots": dots,
        "ticks": ticks,
    }


def one_step(ring):
    """Of the picture of the ring: its row with the first step of reduce-scatter and of all-gather."""
    size = 'width="302.4pt" height="449.28pt" viewBox="0 0 302.4 449.28"'
    assert size in ring, "the picture of the ring has another size: look where its second row is now"
    return ring.replace(size, 'viewBox="0 129 302.4 105"')


def changed_lines(before="01_single_gpu", after="03_ddp_spawn", most=11):
    """The shorter of the changes between two lessons, without docstrings and imports: class, sign, line."""
    one, in_docstrings_of_one = lines_of(before)
    other, in_docstrings_of_other = lines_of(after)
    found = []
    for gone, come in diff.places(one, other):
        if not gone or not come or max(len(gone), len(come)) > 3:
            continue
        for at in gone:
            if at not in in_docstrings_of_one:
                found.append(("gone", "-", one[at]))
        for at in come:
            if at not in in_docstrings_of_other:
                found.append(("come", "+", other[at]))

    indented = [row for row in found if row[2].startswith(" ") and row[2].strip()][:most]
    # All lines move to the left together, so that their indentation stays what it is among one another.
    lines = textwrap.dedent("\n".join(row[2] for row in indented)).splitlines()
    moved = []
    for (kind, sign, _), line in zip(indented, lines, strict=True):
        moved.append((kind, sign, line))
    return moved


def lines_of(stem) -> tuple[list[str], set[int]]:
    """The lines of a lesson, and the positions of those that are in a docstring."""
    text = lessons.get(stem).path.read_text()
    in_docstrings = set()
    for begin, end in diff.docstrings(text):
        in_docstrings.update(range(begin, end))
    return text.splitlines(), in_docstrings


def navigation(book) -> str:
    """What the theme shows at the side, in the order in which pages follow one another."""
    found = {"Lessons": [], "Look up": [], "Planning": []}
    for lesson in lessons.LESSONS:
        if page_of(lesson) in book.pages:
            found["Lessons"].append(book.page_of(page_of(lesson)))
    for row in lessons.OTHER_NOTEBOOKS:
        if notebook_page(row) in book.pages:
            found["Planning"].append(f"{row.title} </notebooks/{row.stem}.md>")
    found["Try"] = [f"widgets/{name}.md" for name in book.widgets]
    for caption, paths in PARTS.items():
        found[caption] = []
        for path in paths:
            if PurePosixPath(path) in book.pages or path == "syllabus.md":
                found[caption].append(f"{NAMES[path]} </{path}>" if path in NAMES else path)

    lists = []
    for caption, entries in found.items():
        if entries:
            lists.append(toctree(map(str, entries), caption))
    return "\n".join(lists)


def widget(book, name) -> str:
    """The page of a widget: its introduction, and the place that its script fills."""
    part = book.widgets[name]
    where = PurePosixPath(f"widgets/{name}.md")
    introduction = book.relinked(part.INTRODUCTION, where)
    below = book.relinked(getattr(part, "BELOW", ""), where)
    for file, text in live.files(name, part).items():
        book.write(f"static/{file}", text)
    page = TEMPLATES.get_template("widget.md.jinja")
    return page.render(name=name, widget=part, introduction=introduction, below=below, still=live.still(part))
