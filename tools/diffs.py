"""Write generated text into pages and notebooks: `make diffs`. A test runs this with --check.

It writes only between pairs of markers: commands, diffs, tables, and links to the neighboring pages. In
notebooks it writes the diffs that they show, without executing them; with an address in the table of lessons,
also badges for Colab and Kaggle, and the cell that fetches the repository there.
"""

import difflib
import re
import sys
import textwrap
from pathlib import Path

import nbformat

from tools import faults, lessons, links, words
from tools.lessons import LESSONS, ROOT, Lesson, Notebook

OLDER = ROOT / "lessons" / "older"
LESSON_04 = lessons.get("04_ddp_torchrun").path
FRAMEWORKS = sorted((ROOT / "lessons" / "frameworks").glob("*.py"))
SHARDED = ("accelerate_fsdp2", "deepspeed_zero")  # most of what they change counts bytes: no diff
HOPS = {  # the page's diffs, each from one script to another
    "local_rank": (OLDER / "local_rank.py", LESSON_04),
    "batch norm": (OLDER / "batch_norm.py", OLDER / "sync_batch_norm.py"),
    "apex": (OLDER / "apex_amp.py", OLDER / "autocast.py"),
    "fsdp": (OLDER / "fsdp1.py", OLDER / "fsdp2.py"),
    "horovod": (OLDER / "horovod_ddp.py", LESSON_04),
}
PORTS = [  # scripts for one process, and the same for several
    tuple(ROOT / f"lessons/port/{name}{kind}.py" for name in ("before", "after"))
    for kind in ("", "_iterations")
]
STARTED_BY = {
    "python": "`python`",
    "mp.spawn": "`python`, `mp.spawn`",
    "torchrun": "`torchrun`",
    "two agents": "a `torchrun` launcher on each",
}


def command(path):
    """The first indented block of the lesson's docstring."""
    docstring = path.read_text().split('"""')[1]
    block = re.search(r"\n\n((?: {4}.*\n)+)", docstring)
    if not block:
        raise SystemExit(f"error: the docstring of {path} has no indented command")
    return textwrap.dedent(block[1]).strip()


def code(path):
    """A script without its docstring."""
    return re.sub(r'\A""".*?"""\n+', "", path.read_text(), flags=re.S)


def diff(before, after, read=Path.read_text, around=2):
    one, other = (read(path).splitlines() for path in (before, after))
    return "\n".join(difflib.unified_diff(one, other, before.name, after.name, n=around, lineterm=""))


def count(sign, before, after):
    """How many lines a script adds to the one before it ("+"), or takes away ("-")."""
    return sum(line.startswith(sign) for line in diff(before, after).splitlines()[2:])


def changes(path, before, folder=""):
    """How many lines a script adds and removes, and its diff. `folder` leads from the page to the script."""
    more, less = (count(sign, before, path) for sign in "+-")
    words = f"adds {more} lines to {before.name} and takes {less} away"
    return f"[{path.name}]({folder}{path.name}) {words}:\n\n```diff\n{diff(before, path)}\n```\n"


def block(path, before, folder=""):
    """The command of a script, and its diff. The page lies in the same folder, or `folder` leads to it."""
    text = f"```sh\n{command(path)}\n```\n"
    return f"{text}\n{changes(path, before, folder)}" if before else text


def from_lesson(path) -> str:
    """The command of a script in lessons/frameworks, and the diff of its code from lesson 04's."""
    return f"```sh\n{command(path)}\n```\n\n```diff\n{diff(LESSON_04, path, code)}\n```\n"


def hop(before, after) -> str:
    """How an old script was started, how its successor is, and what becomes of its lines."""
    commands = f"```sh\n{command(before)}    # before\n{command(after)}    # after\n```\n"
    names = [f"[{path.name}]({'' if path.parent == OLDER else '../'}{path.name})" for path in (before, after)]
    shown = diff(before, after, code, around=1)
    return f"{commands}\nFrom {names[0]} to {names[1]}:\n\n```diff\n{shown}\n```\n"


def before(lesson: Lesson):
    """The script that a lesson's diff is taken against."""
    return lessons.get(lesson.grown_from).path if lesson.grown_from else None


def link_notebooks(lesson: Lesson, folder: str) -> list[str]:
    return [
        f"[{notebook.number if notebook.stem == lesson.stem else notebook.title.lower()}]"
        f"({folder}notebooks/{notebook.stem}.ipynb)"
        for notebook in lesson.notebooks
    ]


def link_exercises(lesson: Lesson, folder: str) -> list[str]:
    return [
        f"[{path.stem.replace('_', ' ')}]({folder}lessons/exercises/{path.name})"
        for notebook in lesson.notebooks
        for path in lessons.exercises(notebook.number)
    ]


def annotated(before, after) -> str:
    """The diff of two scripts, cut into its parts with a sentence on each. `patch` reads it too."""
    shown = sentences_on(f"{before.parent.name}/{before.stem}", f"{after.parent.name}/{after.stem}")
    more, less = (count(sign, before, after) for sign in "+-")
    links = [f"[{path.name}](../{path.parent.name}/{path.name})" for path in (before, after)]
    text = [
        f"```sh\n{command(after)}\n```\n",
        f"{links[1]} adds {more} lines to {links[0]} and takes {less} away.\n",
    ]
    lines = diff(before, after, around=1).splitlines()
    for number, (sentence, part) in enumerate(shown.parts):
        here = len(part) + (2 if number == 0 else 0)
        here += lines[2 if number == 0 else 0].startswith("@@")  # the first part of a place
        text.append(f"{sentence}\n\n```diff\n" + "\n".join(lines[:here]) + "\n```\n")
        del lines[:here]
    return "\n".join(text)


def grown_from(lesson: Lesson) -> str:
    """Which lesson it changes, and how many lines it adds to that."""
    if not lesson.grown_from:
        return f"{len(lesson.path.read_text().splitlines())} lines"
    return f"{lessons.get(lesson.grown_from).number}, +{count('+', before(lesson), lesson.path)} lines"


def ladder_table() -> str:
    """README's table: the lessons that lead to many machines, with the minutes that their notebooks take."""
    lines = ["| Lesson | What is new | Notebook |", "| --- | --- | --- |"]
    for lesson in [lesson for lesson in LESSONS if re.match(r"0[1-6]", lesson.number)]:
        row = lesson.notebooks[0]
        minutes = minutes_to_read(nbformat.read(row.path, as_version=4))
        page = f"[{lesson.number}](lessons/pages/{lesson.page.name})"
        notebook = f"[{row.title}](notebooks/{row.stem}.ipynb), {minutes} minutes"
        lines.append(f"| {page} | {lesson.idea} | {notebook} |")
    return "\n".join(lines) + "\n"


def one_screen() -> str:
    """lessons/ddp.py, which needs no other file, without its docstring, and the command that starts it."""
    program = (ROOT / "lessons/ddp.py").read_text().partition('"""\n\n')[2]
    command = "torchrun --standalone --nproc-per-node 2 lessons/ddp.py"
    return f"```python\n{program}```\n\n```sh\n{command}\n```\n"


def clone(address=lessons.ADDRESS) -> str:
    """The command that fetches the repository, if it is known where this is published."""
    return f"```sh\ngit clone --depth 1 {address} rungs\ncd rungs\n```\n" if address else ""


def clone_in_a_cell(address=lessons.ADDRESS) -> str:
    """The same in a cell of Colab or Kaggle; where the address is not known, the reader has to fill it in."""
    return f"```sh\n!git clone --depth 1 {address or '(address of your copy)'} rungs\n%cd rungs\n```\n"


def contents() -> str:
    """The table of lessons/README.md: all that belongs to a lesson, and which lesson it grew from."""
    head = ("lesson", "idea", "script, started by", "grown from", "notebooks", "exercises")
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for lesson in LESSONS:
        cells = [f"[{lesson.number}. {lesson.title}](pages/{lesson.page.name})", lesson.idea]
        cells += [f"[{lesson.path.name}]({lesson.path.name}), {STARTED_BY[lesson.launcher]}"]
        cells += [grown_from(lesson), "; ".join(link_notebooks(lesson, "../"))]
        cells += ["; ".join(link_exercises(lesson, "../")).replace("(../lessons/", "(")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def beside(rows, row):
    """What comes before this row, and what comes next."""
    place = rows.index(row)
    others = (("before", place - 1), ("next", place + 1))
    return [(word, rows[other]) for word, other in others if 0 <= other < len(rows)]


def way(lesson: Lesson) -> str:
    """The line that leads from a lesson's page to those beside it."""
    found = ["[Contents](../README.md)"]
    for word, other in beside(LESSONS, lesson):
        found.append(f"{word}: [{other.title}]({other.page.name})")
    found.append(f"script: [{lesson.path.name}](../{lesson.path.name})")
    found.append(f"notebook: {', '.join(link_notebooks(lesson, '../../'))}")
    if solve := link_exercises(lesson, "../../"):
        found.append(f"[exercise](../exercises/README.md): {', '.join(solve)}")
    return " | ".join(found) + "\n"


FETCH = """\
# On Colab and Kaggle a notebook arrives alone: this cell fetches the repository.
import os

RUNGS = os.environ.get("RUNGS", "{address}")
clone = f"git clone --quiet --depth 1 '{{RUNGS}}' rungs"
if not os.path.exists("show"):
    if not os.path.exists("rungs") and os.system(clone):
        raise RuntimeError(f"cannot fetch {{RUNGS}}: correct the address in this cell")
    os.chdir("rungs/notebooks")"""


def with_fetch(notebook, address=lessons.ADDRESS):
    """A notebook that fetches the repository, if it is known where this is published."""
    cells = [cell for cell in notebook.cells if cell.get("id") != "fetch"]
    if address:
        at = next(number for number, cell in enumerate(cells) if cell.cell_type == "code")
        cells.insert(at, nbformat.v4.new_code_cell(FETCH.format(address=address), id="fetch"))
    notebook.cells = cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, 1):
        cell.execution_count = number
    return notebook


def badges(stem, address=lessons.ADDRESS):
    """Links that open a notebook on Colab and on Kaggle, if the repository is on GitHub."""
    if not address.startswith("https://github.com/"):
        return ""
    colab = address.replace("https://github.com", "https://colab.research.google.com/github")
    place = f"blob/main/notebooks/{stem}.ipynb"
    return (
        f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab}/{place}) "
        "[![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]"
        f"(https://kaggle.com/kernels/welcome?src={address}/{place})\n\n"
    )


WORDS_A_MINUTE = 200  # of somebody who reads to understand
SECONDS = {"picture": 12, "line of code": 2, "line of a diff": 2, "question": 30}


def minutes_to_read(notebook) -> int:
    prose = " ".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    prose = re.sub(r"(?s)<!-- (.*?): .*?<!-- end of \1 -->", "", prose)  # nobody reads the way
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.get("id") != "fetch"]
    shown = [cell.source for cell in code if "hide-input" not in cell.metadata.get("tags", [])]
    diffs = [output for output in outputs if output.get("metadata", {}).get("rungs") == "diff"]
    numbers = {
        "picture": sum("image/png" in output.get("data", {}) for output in outputs),
        "line of code": sum(bool(line.strip()) for source in shown for line in source.splitlines()),
        "line of a diff": len(
            re.findall(r"(?m)^[-+ ] ", "".join(one["data"]["text/markdown"] for one in diffs))
        ),
        "question": prose.count("**Predict"),
    }
    seconds = sum(SECONDS[what] * number for what, number in numbers.items())
    return round(len(prose.split()) / WORDS_A_MINUTE + seconds / 60)


def full_name(row: Notebook) -> str:
    return f"{row.number} {row.title}".strip()


def notebook_way(row: Notebook) -> str:
    """The line that leads from a notebook to those beside it."""
    found = ["[Contents](README.md)"]
    for word, other in beside(lessons.NOTEBOOKS, row):
        found.append(f"{word}: [{full_name(other)}]({other.stem}.ipynb)")
    scripts = [lesson.path.name for lesson in LESSONS if row in lesson.notebooks]
    found += [f"script: [{name}](../lessons/{name})" for name in scripts]
    for path in lessons.exercises(row.number) if row.number else ():
        name = f"[{path.stem.replace('_', ' ')}](../lessons/exercises/{path.name})"
        found.append(f"[exercise](../lessons/exercises/README.md): {name}")
    return " | ".join(found) + "\n"


def read(row: Notebook):
    notebook = nbformat.read(row.path, as_version=4)
    if "seconds" not in notebook.metadata.get("rungs", {}):
        sys.exit(f"error: {row.path.name} was never executed: make notebooks ARGUMENTS={row.stem}")
    return notebook


def with_way(row: Notebook, notebook):
    """A notebook with its way at both ends, and how long it takes at the beginning."""
    first, last = notebook.cells[0], notebook.cells[-1]
    begin = badges(row.stem) + notebook_way(row)
    minutes, seconds = minutes_to_read(notebook), notebook.metadata["rungs"]["seconds"]
    card = f"\n{minutes} minutes to read; {seconds} seconds to run on two cores without a GPU.\n"
    for cell, text in ((first, begin + card), (last, notebook_way(row))):
        where = f"notebooks/{row.stem}.ipynb, in its {'first' if cell is first else 'last'} cell,"
        cell.source = written_between(cell.source, where, {"way": text})
    return with_fetch(notebook)


SHOWN = re.compile(r'show\.diff\(\s*"(\w+)",\s*"(\w+)"(?:,\s*places=\[([\d, ]+)\])?,?\s*\)')


def diff_of(cell):
    """What a cell that calls show.diff shows, of the lessons as they are."""
    before, after, places = SHOWN.search(cell.source).groups()
    return sentences_on(before, after, [int(place) for place in places.split(",")] if places else ())


def sentences_on(before, after, chosen=()):
    from show.sentences import SENTENCES  # what they import takes a second
    from show.text import Diff

    try:
        return Diff(before, after, SENTENCES.get(after, {}), chosen)
    except ValueError as error:
        sys.exit(f"error: notebooks/show/sentences.py, {after}: {error}")


def with_diffs(notebook):
    """A notebook that shows the diffs of the lessons as they are."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("metadata", {}).get("rungs") == "diff":
                shown = diff_of(cell)
                texts = {"text/markdown": shown._repr_markdown_(), "text/plain": repr(shown).rstrip("\n")}
                output["data"] = texts
    return notebook


def notebook_list() -> str:
    """The list of notebooks, with the question that each asks."""
    rows = [(full_name(row), row) for row in lessons.NOTEBOOKS]
    return "".join(f"- [{name}]({row.stem}.ipynb): {row.question}\n" for name, row in rows)


def pages():
    """What is written into each page: the text for each pair of markers."""
    found = {
        ROOT / "README.md": {"clone": clone(), "one screen": one_screen(), "ladder": ladder_table()},
        ROOT / "notebooks/README.md": {"notebooks": notebook_list()},
        ROOT / "lessons/README.md": {"contents": contents()},
    }
    for lesson in LESSONS:
        # The page's card has the command already.
        text = changes(lesson.path, before(lesson), "../") if before(lesson) else block(lesson.path, None)
        found[lesson.page] = {"way": way(lesson), lesson.stem: text}
        found[lesson.page]["way on"] = way(lesson)
    first, fp16 = LESSONS[0].path, ROOT / "lessons/parts/fp16.py"
    recipe = ROOT / "lessons/recipes/mixed_precision.py"
    lesson_03, lesson_06b, lesson_07, lesson_08 = map(
        lessons.get, ("03_ddp_spawn", "06b_preemption", "07_mixed_precision", "08_real_training")
    )
    found[lesson_03.page]["from lesson 01"] = changes(lesson_03.path, first, "../")  # for who skips lesson 02
    found[lesson_03.page]["one screen"] = one_screen()
    found[lesson_06b.page]["faults"] = faults.listed()
    found[lesson_07.page]["fp16"] = block(fp16, lesson_07.path, "../parts/")
    frameworks = [path for path in FRAMEWORKS if path.stem not in SHARDED]
    found |= {
        ROOT / "lessons/pages/recipes.md": {recipe.stem: block(recipe, lesson_08.path, "../recipes/")},
        ROOT / "lessons/launch/README.md": {"links": links.listed()},
        ROOT / "lessons/launch/free_gpus.md": {"clone": clone_in_a_cell()},
        words.PAGE: {"words": words.index()},
        ROOT / "lessons/pages/port.md": {after.stem: annotated(before, after) for before, after in PORTS},
        FRAMEWORKS[0].parent / "README.md": {path.stem: from_lesson(path) for path in frameworks},
        OLDER / "README.md": {name: hop(*scripts) for name, scripts in HOPS.items()},
    }
    return found


def written_between(page, where, blocks, command="make diffs"):
    """A page with its blocks as they must be."""
    for name, text in blocks.items():
        start, end = f"<!-- {name}: written by `{command}` -->", f"<!-- end of {name} -->"
        if page.count(start) != 1 or page.count(end) != 1:
            raise SystemExit(f"error: {where} needs the line {start} and, after it, {end}, once each")
        head, rest = page.split(start)
        page = f"{head}{start}\n{text}{end}{rest.split(end)[1]}"
    return page


def main(check):
    """Write it all; or write nothing, and fail if something would change."""
    new = {path: written_between(path.read_text(), path, blocks) for path, blocks in pages().items()}
    for row in lessons.NOTEBOOKS:
        new[row.path] = nbformat.writes(with_diffs(with_way(row, read(row)))) + "\n"
    for path, page in new.items():
        if not path.exists() or page != path.read_text():
            if check:
                sys.exit(f"error: {path} and the lessons disagree: run make diffs")
            path.write_text(page)


if __name__ == "__main__":
    main("--check" in sys.argv)
