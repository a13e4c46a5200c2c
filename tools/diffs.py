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

from tools import faults, gpu_links, lessons, words
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
    (ROOT / "lessons/port/before.py", ROOT / "lessons/port/after.py"),
    (ROOT / "lessons/port/before_iterations.py", ROOT / "lessons/port/after_iterations.py"),
]
RECIPE = ROOT / "lessons/recipes/mixed_precision.py"
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
    one = read(before).splitlines()
    other = read(after).splitlines()
    return "\n".join(difflib.unified_diff(one, other, before.name, after.name, n=around, lineterm=""))


def changed_lines(sign, before, after):
    """The lines that a script adds to the one before it ("+"), or takes away ("-")."""
    found = []
    for line in diff(before, after).splitlines()[2:]:  # after the names of the two files
        if line.startswith(sign):
            found.append(line[1:])
    return found


def count(sign, before, after):
    return len(changed_lines(sign, before, after))


def changes(path, before, folder=""):
    """How many lines a script adds and removes, and its diff. `folder` leads from the page to the script."""
    more = count("+", before, path)
    less = count("-", before, path)
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
    shown = diff(before, after, code, around=1)
    return (
        f"{commands}\nFrom {link_from_older(before)} to {link_from_older(after)}:\n\n```diff\n{shown}\n```\n"
    )


def before(lesson: Lesson):
    """The script that a lesson's diff is taken against."""
    return lessons.get(lesson.grown_from).path if lesson.grown_from else None


def link_from_older(path) -> str:
    """The link of a script on the page in lessons/older."""
    folder = "" if path.parent == OLDER else "../"
    return f"[{path.name}]({folder}{path.name})"


def link_notebooks(lesson: Lesson, folder: str) -> list[str]:
    found = []
    for notebook in lesson.notebooks:
        name = notebook.number if notebook.stem == lesson.stem else notebook.title.lower()
        found.append(f"[{name}]({folder}notebooks/{notebook.stem}.ipynb)")
    return found


def link_exercises(lesson: Lesson, folder: str) -> list[str]:
    found = []
    for notebook in lesson.notebooks:
        for path in lessons.exercises(notebook.number):
            found.append(f"[{path.stem.replace('_', ' ')}]({folder}lessons/exercises/{path.name})")
    return found


def annotated(before, after) -> str:
    """The diff of two scripts, cut into its parts with a sentence on each. `patch` reads it too."""
    more = count("+", before, after)
    less = count("-", before, after)
    old = f"[{before.name}](../{before.parent.name}/{before.name})"
    new = f"[{after.name}](../{after.parent.name}/{after.name})"
    text = [f"```sh\n{command(after)}\n```\n", f"{new} adds {more} lines to {old} and takes {less} away.\n"]

    shown = sentences_on(f"{before.parent.name}/{before.stem}", f"{after.parent.name}/{after.stem}")
    lines = diff(before, after, around=1).splitlines()
    names = 2  # the lines at the top that name the two files: they go with the first part
    for sentence, part in shown.parts:
        length = names + len(part)
        if lines[names].startswith("@@"):  # the first part of a place
            length += 1
        text.append(f"{sentence}\n\n```diff\n" + "\n".join(lines[:length]) + "\n```\n")
        del lines[:length]
        names = 0
    return "\n".join(text)


def grown_from(lesson: Lesson) -> str:
    """Which lesson it changes, and how many lines it adds to that."""
    if not lesson.grown_from:
        return f"{len(lesson.path.read_text().splitlines())} lines"
    return f"{lessons.get(lesson.grown_from).number}, +{count('+', before(lesson), lesson.path)} lines"


def ladder_table() -> str:
    """README's table: the lessons that lead to many machines, with the minutes that their notebooks take."""
    lines = ["| Lesson | What is new | Notebook |", "| --- | --- | --- |"]
    for lesson in LESSONS:
        if not re.match(r"0[1-6]", lesson.number):
            continue
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
        exercises = "; ".join(link_exercises(lesson, "../"))
        cells = [
            f"[{lesson.number}. {lesson.title}](pages/{lesson.page.name})",
            lesson.idea,
            f"[{lesson.path.name}]({lesson.path.name}), {STARTED_BY[lesson.launcher]}",
            grown_from(lesson),
            "; ".join(link_notebooks(lesson, "../")),
            exercises.replace("(../lessons/", "("),  # the page lies in this folder
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def beside(rows, row):
    """What comes before this row, and what comes next."""
    place = rows.index(row)
    found = []
    if place > 0:
        found.append(("before", rows[place - 1]))
    if place + 1 < len(rows):
        found.append(("next", rows[place + 1]))
    return found


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
    cells = []
    for cell in notebook.cells:
        if cell.get("id") == "fetch":
            continue
        if cell.cell_type == "code" and address:
            cells.append(nbformat.v4.new_code_cell(FETCH.format(address=address), id="fetch"))
            address = ""  # only before the first cell of code
        cells.append(cell)
    notebook.cells = cells

    number = 0
    for cell in cells:
        if cell.cell_type == "code":
            number += 1
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
    numbers = dict.fromkeys(SECONDS, 0)
    numbers["question"] = prose.count("**Predict")
    for cell in notebook.cells:
        is_folded = "hide-input" in cell.metadata.get("tags", [])
        if cell.cell_type == "code" and cell.get("id") != "fetch" and not is_folded:
            for line in cell.source.splitlines():
                if line.strip():
                    numbers["line of code"] += 1
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                numbers["picture"] += 1
            if output.get("metadata", {}).get("rungs") == "diff":
                lines = re.findall(r"(?m)^[-+ ] ", output["data"]["text/markdown"])
                numbers["line of a diff"] += len(lines)
    seconds = sum(SECONDS[what] * number for what, number in numbers.items())
    return round(len(prose.split()) / WORDS_A_MINUTE + seconds / 60)


def full_name(row: Notebook) -> str:
    return f"{row.number} {row.title}".strip()


def notebook_way(row: Notebook) -> str:
    """The line that leads from a notebook to those beside it."""
    found = ["[Contents](README.md)"]
    for word, other in beside(lessons.NOTEBOOKS, row):
        found.append(f"{word}: [{full_name(other)}]({other.stem}.ipynb)")
    for lesson in LESSONS:
        if row in lesson.notebooks:
            found.append(f"script: [{lesson.path.name}](../lessons/{lesson.path.name})")
    if row.number:
        for path in lessons.exercises(row.number):
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
    way = notebook_way(row)
    minutes = minutes_to_read(notebook)
    seconds = notebook.metadata["rungs"]["seconds"]
    card = f"\n{minutes} minutes to read; {seconds} seconds to run on two cores without a GPU.\n"
    name = f"notebooks/{row.stem}.ipynb"

    first = notebook.cells[0]
    begin = badges(row.stem) + way + card
    first.source = written_between(first.source, f"{name}, in its first cell,", {"way": begin})
    last = notebook.cells[-1]
    last.source = written_between(last.source, f"{name}, in its last cell,", {"way": way})
    return with_fetch(notebook)


SHOWN = re.compile(r'show\.diff\(\s*"(\w+)",\s*"(\w+)"(?:,\s*places=\[([\d, ]+)\])?,?\s*\)')


def diff_of(cell):
    """What a cell that calls show.diff shows, of the lessons as they are."""
    before, after, places = SHOWN.search(cell.source).groups()
    chosen = [int(place) for place in places.split(",")] if places else ()
    return sentences_on(before, after, chosen)


def sentences_on(before, after, chosen=()):
    from show.sentences import SENTENCES  # what they import takes a second
    from show.text import Diff

    try:
        return Diff(before, after, SENTENCES.get(after, {}), chosen)
    except ValueError as error:
        sys.exit(f"error: {error}")


def check_sentences(notebook):
    """Exit with a message if a diff that the notebook will show lacks a sentence, or has an old one."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and SHOWN.search(cell.source):
            diff_of(cell)


def with_diffs(notebook):
    """A notebook that shows the diffs of the lessons as they are."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("metadata", {}).get("rungs") == "diff":
                shown = diff_of(cell)
                output["data"] = {
                    "text/markdown": shown._repr_markdown_(),
                    "text/plain": repr(shown).rstrip("\n"),
                }
    return notebook


def notebook_list() -> str:
    """The list of notebooks, with the question that each asks."""
    lines = []
    for row in lessons.NOTEBOOKS:
        lines.append(f"- [{full_name(row)}]({row.stem}.ipynb): {row.question}\n")
    return "".join(lines)


def pages():
    """What is written into each page: the text for each pair of markers."""
    return pages_of_lessons() | {
        ROOT / "README.md": {"clone": clone(), "one screen": one_screen(), "ladder": ladder_table()},
        ROOT / "notebooks/README.md": {"notebooks": notebook_list()},
        ROOT / "lessons/README.md": {"contents": contents()},
        ROOT / "lessons/pages/recipes.md": {RECIPE.stem: recipe()},
        ROOT / "lessons/launch/README.md": {"links": gpu_links.listed()},
        ROOT / "lessons/launch/free_gpus.md": {"clone": clone_in_a_cell()},
        words.PAGE: {"words": words.index()},
        ROOT / "lessons/pages/port.md": {after.stem: annotated(before, after) for before, after in PORTS},
        FRAMEWORKS[0].parent / "README.md": frameworks(),
        OLDER / "README.md": {name: hop(*scripts) for name, scripts in HOPS.items()},
    }


def pages_of_lessons():
    found = {}
    for lesson in LESSONS:
        # The page's card has the command already.
        text = changes(lesson.path, before(lesson), "../") if before(lesson) else block(lesson.path, None)
        found[lesson.page] = {"way": way(lesson), lesson.stem: text, "way on": way(lesson)}

    first = LESSONS[0].path
    lesson_03 = lessons.get("03_ddp_spawn")
    found[lesson_03.page]["from lesson 01"] = changes(lesson_03.path, first, "../")  # for who skips lesson 02
    found[lesson_03.page]["one screen"] = one_screen()
    lesson_06b = lessons.get("06b_preemption")
    found[lesson_06b.page]["faults"] = faults.listed()
    lesson_07 = lessons.get("07_mixed_precision")
    fp16 = ROOT / "lessons/parts/fp16.py"
    found[lesson_07.page]["fp16"] = block(fp16, lesson_07.path, "../parts/")
    return found


def recipe() -> str:
    return block(RECIPE, lessons.get("08_real_training").path, "../recipes/")


def frameworks() -> dict[str, str]:
    found = {}
    for path in FRAMEWORKS:
        if path.stem not in SHARDED:
            found[path.stem] = from_lesson(path)
    return found


def written_between(page, where, blocks, command="make diffs"):
    """A page with its blocks as they must be."""
    for name, text in blocks.items():
        start = f"<!-- {name}: written by `{command}` -->"
        end = f"<!-- end of {name} -->"
        if page.count(start) != 1 or page.count(end) != 1:
            raise SystemExit(f"error: {where} needs the line {start} and, after it, {end}, once each")
        head, rest = page.split(start)
        page = f"{head}{start}\n{text}{end}{rest.split(end)[1]}"
    return page


def main(check):
    """Write it all; or write nothing, and fail if something would change."""
    new = {}
    for path, blocks in pages().items():
        new[path] = written_between(path.read_text(), path, blocks)
    for row in lessons.NOTEBOOKS:
        new[row.path] = nbformat.writes(with_diffs(with_way(row, read(row)))) + "\n"

    for path, page in new.items():
        if path.exists() and page == path.read_text():
            continue
        if check:
            sys.exit(f"error: {path} and the lessons disagree: run make diffs")
        path.write_text(page)


if __name__ == "__main__":
    main("--check" in sys.argv)
