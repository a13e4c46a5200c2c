"""The pages that the repository has nowhere: the home page, the syllabus, and one for each widget.

The table of lessons and the pages have their facts; the words are here.
"""

import difflib
import html
import re

import lessons
import live
import sources
from lessons import ROOT
from sources import Broken, PurePosixPath
from widgets import diff

NOTEBOOKS = PurePosixPath("notebooks")
EXERCISES = PurePosixPath("lessons/exercises")
# The parts of the navigation below the lessons: pages in the order in which they are read.
PARTS = {
    "Look up": (
        "lessons/README.md",
        "lessons/pages/errors.md",
        "lessons/pages/words.md",
        "lessons/exercises/README.md",
        "notebooks/README.md",
    ),
    "Go on": (
        "lessons/pages/recipes.md",
        "lessons/launch/README.md",
        "lessons/launch/free_gpus.md",
        "lessons/launch/nccl.md",
        "lessons/frameworks/README.md",
        "lessons/older/README.md",
    ),
    "For instructors": ("syllabus.md", "tests/README.md", "tests/exercises/README.md"),
    "About": (
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "tools/bench/README.md",
        "tools/site/README.md",
        "solutions/README.md",
        "lessons/LICENSE.md",
    ),
}

NAMES = {"README.md": "README"}  # else a page is listed by its title, which is the home page's


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


# What the home page says first. Each of it is shown by the page that it links.
TAGLINE = "PyTorch distributed training on your laptop: from one process to a dry run of 16,384 ranks."
MORE = (
    "Kill a run halfway: it resumes and ends with the same bytes. The tutorial has {scripts} scripts, each "
    "with a few lines changed from an earlier script, and {notebooks} notebooks that explain them. You don't "
    "need a GPU or a cluster."
)
DESCRIPTION = (
    "A PyTorch tutorial on distributed training: DDP, torchrun, snapshots, FSDP, pipeline and tensor "
    "parallelism. Everything runs on a laptop, without a GPU."
)
PICTURES = ("kill.png", "ring.svg")  # of its cards
CARD = "PyTorch distributed training on your laptop"
KILL = NOTEBOOKS / "05_snapshots.ipynb"
# What was tested, and what was not: README.md, lessons/launch/README.md.
STATUS = (
    "**Status.** Tested on CPUs (Linux, 2 cores) with real processes that communicate over gloo. The SLURM "
    "script runs on a real SLURM with two nodes on one machine. The Kubernetes and SageMaker recipes are "
    "validated against their schemas and their commands run, but never on a cluster or at Amazon. The 16,384 "
    "ranks are a dry run on one CPU.",
    "**GPU code paths:** exercised on a simulated CUDA device (semantics, not speed). No lesson has run on a "
    "real GPU yet: `make gpu` tests them on yours.",
)
SHORTEST = ("01_single_gpu", "03_ddp_spawn", "04_ddp_torchrun", "05_snapshots", "06_multinode")
COMMANDS = (
    "# run lessons 01 to 06: a table and a plot of their curves",
    "make run",
    "# open the notebooks in JupyterLab",
    "make lab",
    "# test the lessons on your GPUs",
    "make gpu",
)


def shortest() -> str:
    """The way for those who have no time for all."""
    rows = [row for row in lessons.NOTEBOOKS if row.stem in SHORTEST]
    links = [f"[{row.number} {row.title}]({notebook_page(row)})" for row in rows]
    return f"**In a hurry?** Read these notebooks: {', '.join(links)}.\n"


def page_link(book, path) -> str:
    """Where the home page finds the page of a file; nothing on a small site that has none."""
    page = book.page_of(PurePosixPath(path))
    return str(page.with_suffix(".html")) if page else ""


def hero(book) -> str:
    """The first screen: what it is, what to do next, and four things to see."""
    first = page_link(book, page_of(lessons.LESSONS[0]))
    more = MORE.format(scripts=len(lessons.LESSONS), notebooks=len(lessons.NOTEBOOKS))
    actions = [("Start with lesson 01", first), ("Run it on your laptop", "#run-it")]
    buttons = "".join(f'<a href="{target}">{words}</a>' for words, target in actions if target)
    cards = "".join(card(*row) for row in cards_of(book))
    return (
        f'<div class="hero">\n<p class="tagline">{TAGLINE}</p>\n<p class="more">{more}</p>\n'
        f'<p class="actions">{buttons}</p>\n<div class="cards">{cards}</div>\n</div>\n'
    )


def cards_of(book):
    """For each card: where it leads, its picture, its title, and why to click."""
    kill = "The loss of a run that was killed and went on, over the loss of a run that was not"
    ring = "Chunks of gradients on their way around a ring of four processes"
    return [
        (
            page_link(book, KILL),
            f'<img src="_static/kill.png" alt="{kill}">',
            "Kill it: same bytes",
            "SIGKILL a run in the middle. It resumes from its snapshot and ends with the very same bytes.",
        ),
        (
            "widgets/ring.html",
            f'<img class="part" src="_static/ring.svg" alt="{ring}">',
            "Step through an all-reduce",
            "Watch gradients travel around a ring, and count the bytes against a parameter server.",
        ),
        (
            "widgets/planner.html",
            curve(book),
            "Plan a job before you rent",
            "Does it fit, how long does it take, what does it cost, and how far does it scale?",
        ),
        (
            "widgets/diff.html",
            changed_lines(),
            "Diff any two lessons",
            "See which lines turn one GPU into DDP, or DDP into FSDP, with a sentence on each change.",
        ),
    ]


def card(target, picture, title, why) -> str:
    name, link = ("a", f' href="{target}"') if target else ("div", "")
    return f'<{name}{link}>{picture}<strong>{title}</strong><span class="why">{why}</span></{name}>'


def curve(book, preset="Llama 3 405B on 16,384 GPUs") -> str:
    """The planner's curve of one of its examples."""
    part = book.widgets["planner"]
    found = part.answer(**live.begin(part) | part.PRESETS[preset])
    dots = [(40 + 220 * dot["x"], 24 + 116 * (1 - dot["y"])) for dot in found["curve"]]
    ink, shown = 'fill="currentColor" font-size="11"', found["curve"]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
    circles = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#0072B2"/>' for x, y in dots)
    ticks = "".join(
        f'<path d="M34 {24 + 116 * (1 - tick["at"]):.1f}h232" stroke="currentColor" stroke-opacity=".25"/>'
        f'<text x="30" y="{28 + 116 * (1 - tick["at"]):.1f}" {ink} text-anchor="end">{tick["words"]}</text>'
        for tick in found["ticks"][::2]
    )
    first, last = shown[0]["words"], shown[-1]["words"]
    title = f"Speedup of {preset.split(' on ')[0]} on {first} to {last} GPUs, in % of linear"
    return (
        f'<svg viewBox="0 0 280 176" role="img" aria-label="{title}">'
        f'<text x="34" y="9" {ink}>% of linear speedup</text>'
        f'{ticks}<polyline points="{line}" fill="none" stroke="#0072B2" stroke-width="2"/>{circles}'
        f'<text x="34" y="157" {ink}>{shown[0]["words"]}</text>'
        f'<text x="270" y="157" {ink} text-anchor="end">{shown[-1]["words"]} GPUs</text></svg>'
    )


def changed_lines(before="01_single_gpu", after="03_ddp_spawn", most=11) -> str:
    """The shorter of the changes between two lessons, docstrings left out, as a picture."""
    one, other = (lessons.get(stem).path.read_text() for stem in (before, after))
    spans = [
        [line for low, high in diff.docstrings(text) for line in range(low, high)] for text in (one, other)
    ]
    one, other = one.splitlines(), other.splitlines()
    found = []
    for kind, low, high, start, end in difflib.SequenceMatcher(
        None, one, other, autojunk=False
    ).get_opcodes():
        if kind != "replace" or max(high - low, end - start) > 3:
            continue
        found += [("gone", "-", one[at]) for at in range(low, high) if at not in spans[0]]
        found += [("come", "+", other[at]) for at in range(start, end) if at not in spans[1]]
    lines = [row for row in found if row[2].strip()][:most]
    rows = "".join(f'<span class="{name}">{sign} {html.escape(line)}</span>' for name, sign, line in lines)
    label = f"Changed lines from {before}.py to {after}.py"
    return f'<span class="lines" role="img" aria-label="{label}">{rows}</span>'


def home(book) -> str:
    copy = f"[a copy of the repository]({book.address})" if book.address else "a copy of the repository"
    lines = [
        f'---\nhide-toc: true\ndescription: "{DESCRIPTION}"\ncard: "Rungs: {CARD}"\n---\n',
        "# Rungs\n",
        hero(book),
        ":::{container} status-box\n" + "\n\n".join(STATUS) + "\n:::\n",
        "## Read\n",
        "You have trained a PyTorch model on one device, and you want to train on several GPUs or on several "
        "machines. The first six lessons form a ladder; every later lesson names the one that it builds on. "
        "The notebooks contain their "
        "outputs, so you can read them without running anything.\n",
        book.relinked(shortest(), sources.HOME),
        table(book),
        '<p class="progress" hidden><span></span> '
        '<button type="button">Forget which pages I have read</button></p>\n',
        "(run-it)=\n## Run it\n",
        f"You need Python 3.11 to 3.13, and no GPU. In {copy}:\n",
        "```{code-block} sh\n:class: code\n\n" + "\n".join(COMMANDS) + "\n```\n",
        "## Try it in the browser\n",
        "\n".join(f"- [{widget.TITLE}](widgets/{name}.md)" for name, widget in book.widgets.items()) + "\n",
        "Keys: ← and → turn the pages, Ctrl+K searches.\n",
    ]
    return "\n".join(lines) + "\n" + navigation(book)


def page_of(lesson) -> PurePosixPath:
    return PurePosixPath(str(lesson.page.relative_to(ROOT)))


def table(book) -> str:
    """The lessons, with the minutes that their notebooks take to read."""
    lines = [
        "| lesson | idea | notebooks | minutes | exercises |",
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
        "# Syllabus\n\nOne lesson a week: read the diff, predict what changes, run it, break it. The minutes "
        "are reading time. [For instructors](tests/README.md) explains how to give the exercises to a class "
        'and grade them. <a href="slides.html">The slides</a> have a slide for each lesson.\n\n'
        + shortest()
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
