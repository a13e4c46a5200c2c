"""The pages that the repository has nowhere: the home page, the syllabus, and one for each widget.

What they say is read off README, the table of lessons and the pages.
"""

import re

import lessons
import live
import sources
from lessons import ROOT
from sources import Broken, PurePosixPath

NOTEBOOKS = PurePosixPath("notebooks")
EXERCISES = PurePosixPath("lessons/exercises")
# The parts of the navigation below the lessons: pages in the order in which they are read.
PARTS = {
    "Look up": (
        "lessons/README.md",
        "lessons/pages/words.md",
        "lessons/exercises/README.md",
        "notebooks/README.md",
    ),
    "Go on": (
        "lessons/launch/README.md",
        "lessons/launch/free_gpus.md",
        "lessons/frameworks/README.md",
        "lessons/older/README.md",
    ),
    "For instructors": ("syllabus.md", "tests/README.md", "tests/exercises/README.md"),
    "The house": (
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "tools/bench/README.md",
        "tools/site/README.md",
        "solutions/README.md",
    ),
}

NAMES = {"README.md": "All that README says"}  # else a page is listed by its title, which is the home page's


def toctree(entries, caption="") -> str:
    options = ":hidden:\n" + (f":caption: {caption}\n" if caption else "")
    return f"```{{toctree}}\n{options}\n" + "\n".join(entries) + "\n```\n"


def is_in_navigation(page) -> bool:
    """Whether some list of pages has it; the theme would warn of one that none has."""
    listed = [page_of(lesson) for lesson in lessons.LESSONS]
    listed += [notebook_page(row) for row in lessons.NOTEBOOKS]
    return page in listed or str(page) in [name for names in PARTS.values() for name in names]


def notebook_page(row) -> PurePosixPath:
    return NOTEBOOKS / row.path.name


def solve(lesson) -> list[PurePosixPath]:
    """The exercises of a lesson, as files or folders of the repository."""
    found = [path for row in lesson.notebooks for path in lessons.exercises(row.number)]
    return [EXERCISES / path.name for path in found]


def below(book, lesson) -> str:
    """What follows a lesson's page in the navigation: its notebooks and exercises."""
    pages = {notebook_page(row): f"{row.number} {row.title}" for row in lesson.notebooks}
    pages = {path: name for path, name in pages.items() if path in book.pages}
    if book.is_whole:
        pages |= {path: f"Exercise {path.stem.replace('_', ' ')}" for path in solve(lesson)}
    return toctree(f"{name} </{book.page_of(path)}>" for path, name in pages.items()) if pages else ""


def minutes(row) -> int:
    """How long a notebook takes to read, as it says itself."""
    return int(re.search(r"(\d+) minutes to read", row.path.read_text())[1])


def points(path) -> int:
    """How many points an exercise has, as the list of exercises says."""
    listed = (ROOT / EXERCISES / "README.md").read_text()
    found = re.search(
        rf"^\| \[{re.escape(PurePosixPath(path.name).stem)}\]\([^)]*\) \| (\d+) \|", listed, re.M
    )
    if not found:
        raise Broken(f"lessons/exercises/README.md has no points for {path.name}: make starters")
    return int(found[1])


def readme():
    """README's first paragraph, its picture of the ladder, its first two commands, and all of it."""
    text = (ROOT / "README.md").read_text()
    first = text.split("\n\n")[1]
    picture = re.search(r'<img src="lessons/pictures/ladder.svg".*?>', text)[0]
    commands = re.findall(r"(?m)^(make \w+) +(# .*)$", text)[:2]
    return first, picture, [line for command, why in commands for line in (why, command)], text


def shortest(text) -> str:
    """What README says to those who have no time for all."""
    return re.search(r"(?m)^- (\*\*A shortest path .*)$", text)[1] + "\n"


def home(book) -> str:
    first, picture, commands, text = readme()
    sentence, _, who = first.partition(". ")
    ladder = re.search(r"(?m)^It climbs .*$", text)[0]
    first = lessons.LESSONS[0]
    begin = f"[Begin with lesson {first.number}]({page_of(first)}). The notebooks hold all that they show, "
    begin += "and need not be run to be read.\n"
    copy = f"[a copy of the repository]({book.address})" if book.address else "a copy of the repository"
    lines = [
        "---\nhide-toc: true\n---\n",
        f"# {text.splitlines()[0].removeprefix('# ')}\n",
        f":::{{container}} lead\n{sentence}.\n:::\n",
        re.sub(r'width="\d+"', 'width="400"', picture) + "\n",
        f"{ladder}\n",
        "## Read\n",
        book.relinked(begin, sources.HOME),
        book.relinked(shortest(text), sources.HOME),
        "## Run\n",
        f"In {copy}:\n",
        "```{code-block} sh\n:class: code\n\n" + "\n".join(commands) + "\n```\n",
        "## Try\n",
        *(f"- [{widget.TITLE}](widgets/{name}.md)\n" for name, widget in book.widgets.items()),
        f"## Who it is for\n\n{who}\n",
        "## The lessons\n",
        table(book),
        '<p class="progress" hidden><span></span> '
        '<button type="button">Forget which pages I have read</button></p>\n',
        "Keys: ← and → turn the pages, Ctrl+K searches.\n",
    ]
    return "\n".join(lines) + "\n" + navigation(book)


def page_of(lesson) -> PurePosixPath:
    return PurePosixPath(str(lesson.page.relative_to(ROOT)))


def table(book) -> str:
    """The lessons, with the minutes that their notebooks take to read."""
    lines = [
        "| lesson | its one idea | notebooks | minutes | exercises |",
        "| --- | --- | --- | ---: | --- |",
    ]
    for lesson in lessons.LESSONS:
        rows = [f"[{row.number} {row.title}](notebooks/{row.path.name})" for row in lesson.notebooks]
        tasks = [f"[{path.stem.replace('_', ' ')}]({path})" for path in solve(lesson)]
        name = f"[{lesson.number}. {lesson.title}]({page_of(lesson)})"
        time = sum(map(minutes, lesson.notebooks))
        lines.append(f"| {name} | {lesson.idea} | {'<br>'.join(rows)} | {time} | {'<br>'.join(tasks)} |")
    return book.relinked("\n".join(lines) + "\n", sources.HOME)


def navigation(book) -> str:
    """What the theme shows at the side, in the order in which pages follow one another."""
    pages = [book.page_of(page_of(lesson)) for lesson in lessons.LESSONS if page_of(lesson) in book.pages]
    rows = [row for row in lessons.OTHER_NOTEBOOKS if notebook_page(row) in book.pages]
    found = {"Lessons": pages, "Planning": [f"{row.title} </notebooks/{row.stem}.md>" for row in rows]}
    found["Try"] = [f"widgets/{name}.md" for name in book.widgets]
    for caption, paths in PARTS.items():
        there = [path for path in paths if PurePosixPath(path) in book.pages or path == "syllabus.md"]
        found[caption] = [f"{NAMES[path]} </{path}>" if path in NAMES else path for path in there]
    return "\n".join(toctree(map(str, paths), caption) for caption, paths in found.items() if paths)


def syllabus(book) -> str:
    """A course of a lesson a week, to be printed."""
    lines = [
        "| week | lesson | to read | minutes | exercises | points |",
        "| ---: | --- | --- | ---: | --- | ---: |",
    ]
    total, all_points = 0, 0
    for week, lesson in enumerate(lessons.LESSONS, 1):
        rows = [f"[{row.number} {row.title}](notebooks/{row.path.name})" for row in lesson.notebooks]
        tasks = solve(lesson)
        time, worth = sum(map(minutes, lesson.notebooks)), sum(map(points, tasks))
        total, all_points = total + time, all_points + worth
        cells = [
            str(week),
            f"[{lesson.number}. {lesson.title}]({page_of(lesson)})",
            "<br>".join(rows),
            str(time),
        ]
        cells.append("<br>".join(f"[{path.stem.replace('_', ' ')}]({path})" for path in tasks))
        lines.append(f"| {' | '.join([*cells, str(worth or '')])} |")
    lines.append(f"| | **{len(lessons.LESSONS)} weeks** | | **{total}** | | **{all_points}** |")
    text = (
        "# Syllabus\n\nA lesson a week: read the diff, predict what changes, run it, break it. Minutes are "
        "those of reading. How to give the exercises to a class and grade them: "
        "[for instructors](tests/README.md).\n\n"
        + shortest((ROOT / "README.md").read_text())
        + "\n"
        + "\n".join(lines)
        + '\n\n<p><button type="button" class="print">Print this page</button></p>\n'
    )
    return book.relinked(text, sources.HOME)


def widget(book, name) -> str:
    """The page of a widget: its introduction, and the place that its script fills."""
    part = book.widgets[name]
    introduction = book.relinked(part.INTRODUCTION, PurePosixPath(f"widgets/{name}.md"))
    page, files = live.page(name, part, introduction)
    for file, text in files.items():
        book.write(f"static/{file}", text)
    return page
