"""Execute the notebooks from top to bottom, and keep what they show: `make notebooks`.

    make notebooks
    make notebooks ARGUMENTS="03_ddp_spawn 05_snapshots"

You will see one line for each notebook, with the seconds it took. Two at a time; those that measure
something (marked "alone" in their metadata) one after the other, when the others are done.
A notebook that fails, or breaks a rule that test_notebooks.py checks, is not written. Where one is written
whose prose has numbers that its new outputs lack, the last lines name the sentences: see measured.py.
"""

import base64
import os
import re
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tools import diffs, digests, lessons, measured, words
from tools.lessons import ROOT

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
SECONDS = 300
BYTES = 2_500_000
# Pictures that the README shows: from which notebook, and words of the cell that draws it last.
PICTURES = {"kill.png": ("05_snapshots", "crashes.draw_loss(")}
WIDGET = "application/vnd.jupyter.widget-view+json"


def read(path):
    return nbformat.read(path, as_version=4)


def execute(path, where=FOLDER, **environment):
    """Run a notebook in a new kernel, started in that folder. Returns it with its new outputs, tidied."""
    notebook = read(path)
    client = NotebookClient(
        notebook,
        timeout=400,
        kernel_name="python3",
        resources={"metadata": {"path": str(where)}},
        coalesce_streams=True,
        store_widget_state=False,
    )
    start = time.monotonic()
    with tempfile.NamedTemporaryFile("r", prefix="rungs-used-") as file:
        folders = [str(ROOT / "tools/files_used")]
        if os.environ.get("PYTHONPATH"):
            folders.append(os.environ["PYTHONPATH"])
        more = {"PYTHONPATH": os.pathsep.join(folders), "USED": file.name}
        client.execute(env=os.environ | more | environment)
        used = digests.used(file.read().splitlines())
    tidy(notebook, time.monotonic() - start)
    notebook.metadata["rungs"] |= {"code": digests.of_code(notebook), "used": used}
    return notebook


def tidy(notebook, seconds):
    """Drop what is not for a reader: when a cell ran, and widgets, which need a kernel behind them. In
    JupyterLab, as on the site, the code of cells with the tag "hide-input" is folded."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "rungs": notebook.metadata.get("rungs", {}) | {"seconds": round(seconds)},
    }
    for cell in notebook.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = {} if tags is None else {"tags": tags}
        if "hide-input" in cell.metadata.get("tags", []):
            cell.metadata["jupyter"] = {"source_hidden": True}
        if cell.cell_type != "code":
            continue
        cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
        for output in cell.outputs:
            if output["output_type"] == "execute_result":
                output["metadata"] = {}
            if label(output) == "diff":
                output["data"].pop("text/html", None)  # only JupyterLab shows its colours
    return notebook


def label(output):
    """What show has marked an output as: "diff", "source", or nothing."""
    return output.get("metadata", {}).get("rungs")


def texts(cell):
    """What a cell's outputs say, as text."""
    for output in cell.get("outputs", []):
        if output["output_type"] == "stream":
            yield output["text"]
        elif output["output_type"] == "error":
            yield "\n".join(output["traceback"])
        else:
            for kind, text in output["data"].items():
                if not kind.startswith("image/"):
                    yield str(text)


FORBIDDEN = {
    "a path of the machine": r"(?<![\w.])/(?:home|root|tmp|work|usr|var|opt|Users|mnt)/\S|site-packages",
    "a warning": r"(?i)\bwarn(?:ing)?s?\b[:(]|\w+Warning\b",
    "a process id": r"(?i)\b(?:pid|process id)\b\W{0,3}\d+|\bProcess \d{2,}",
    "a port or an address": r"\b(?:localhost|127\.0\.0\.1|\d+\.\d+\.\d+\.\d+)\]?:\d{4,5}\b",
}
STACK = r"Traceback \(most recent call last\)|^\s+File \"[^\"]+\", line \d+"


def complaints(path, notebook):
    """What breaks a rule in a notebook as it is stored, one line for each."""
    found = shown(path.name, notebook) + too_long(path.name, notebook)
    if path.stat().st_size > BYTES:
        found.append(f"{path.name} has {path.stat().st_size:,} bytes, more than {BYTES:,}")
    seconds = notebook.metadata.get("rungs", {}).get("seconds")
    if seconds is None or seconds > SECONDS:
        shorter = "make it shorter, or execute it while nothing else runs"
        found.append(f"{path.name} took {seconds} seconds, more than {SECONDS}: {shorter}")
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    if counts != list(range(1, len(counts) + 1)):
        found.append(f"{path.name} was not executed from top to bottom")
    return found


def shown(name, notebook):
    """What breaks a rule in what the cells show."""
    found = []
    for number, cell in enumerate(notebook.cells, 1):
        where = f"{name}, cell {number}"
        may_show_a_stack = "stack-trace" in cell.metadata.get("tags", [])
        for text in texts(cell):
            for what, pattern in FORBIDDEN.items():
                if match := re.search(pattern, text):
                    found.append(f"{where} shows {what}: {match[0]}")
            if not may_show_a_stack and re.search(STACK, text, re.M):
                found.append(f"{where} shows a stack trace, and no tag says that this is the point")
        if any(output["output_type"] == "error" for output in cell.get("outputs", [])):
            found.append(f"{where} failed")
    return found


def too_long(name, notebook):
    found = []
    for number, cell in enumerate(notebook.cells, 1):
        lines = len(cell.source.splitlines())
        if cell.cell_type == "code" and lines > LONGEST:
            found.append(f"{name}, cell {number} has {lines} lines of code, more than {LONGEST}")
    return found


def sources(notebook, kind):
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == kind)


LEARN = r"\*\*You will learn\*\*.*\n\n?(- .+\n){3}\n\*\*You need\*\*"
FIVE = r"## In five sentences\n\n(\d\. .+\n){5}\n"


def missing(stem, notebook):
    """What every notebook has and this one lacks, one line for each."""
    rules = rules_for_all(stem, notebook)
    if stem in lessons.STEMS:
        rules |= rules_for_lessons(stem, notebook)
    found = []
    for rule, is_kept in rules.items():
        if not is_kept:
            found.append(f"{stem}.ipynb lacks {rule}")
    for line in hard_to_read(notebook):
        found.append(f"{stem}.ipynb, {line}")
    return found


LONG = 25  # lines of a cell
LONGEST = 40
IN_A_ROW = 4  # cells


def rules_for_all(stem, notebook):
    """What every notebook must have, in words, and whether this one has it."""
    prose = sources(notebook, "markdown")
    code = sources(notebook, "code")
    end = prose.partition("## What to read next")[2]
    name = "Planning:" if stem == lessons.OTHER_NOTEBOOKS[0].stem else stem.split("_")[0]
    pictures = 0
    is_answered = True
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if png(output):
                pictures += 1
        if "**Predict" in cell.source and "<details>" not in cell.source:
            is_answered = False
    return {
        f"a title that begins with '# {name}' and asks a question": re.match(rf"# {name} .+\?\n", prose),
        "'## What to read next' with an exercise": "xercise" in end,
        "a question to readers: 'Predict'": "predict" in prose.lower(),
        "three assertions": len(re.findall(r"^ *assert ", code, re.M)) >= 3,
        "two pictures": pictures >= 2,
        "**You will learn**, a list of three, and **You need**": re.search(LEARN, prose),
        "'## In five sentences', a numbered list of five": re.search(FIVE, prose),
        "an answer folded in <details> for each '**Predict": is_answered,
    }


def rules_for_lessons(stem, notebook):
    """What the notebook of a lesson must have in addition, and whether this one has it."""
    lesson = lessons.get(stem)
    begin = sources(notebook, "markdown").partition("## What to read next")[0]
    started = "two_terminals.sh" if lesson.launcher == "two agents" else f"lessons/{stem}.py"
    rules = {
        "a heading on what people get wrong": re.search(r"(?i)^## .*(wrong|mistake)", begin, re.M),
        f"a run of {started}": started in sources(notebook, "code"),
    }
    if lesson.grown_from:
        names = f"`{lesson.grown_from}.py` to `{stem}.py`"
        diffs_shown = []
        for cell in notebook.cells:
            for output in cell.get("outputs", []):
                if label(output) == "diff":
                    diffs_shown.append(output["data"]["text/markdown"])
        of_others = [text for text in diffs_shown if names not in text]
        rules[f"a show.diff of {names}, and of no other scripts"] = diffs_shown and not of_others
    return rules


def hard_to_read(notebook):
    """What cannot be seen by everybody, and code that nobody would read, one line for each."""
    found = []
    row = 0
    for number, cell in enumerate(notebook.cells, 1):
        row = row + 1 if cell.cell_type == "code" else 0
        if row == IN_A_ROW:
            found.append(f"cell {number}: {row} code cells in a row: put a sentence before each")
        if row > 1 and len(cell.source.splitlines()) > LONG:
            found.append(f"cell {number}: more than {LONG} lines, and no sentence before it")
        for output in cell.get("outputs", []):
            alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
            if "image/png" in output.get("data", {}) and len(alt) < 20:
                found.append(f"cell {number}: a picture without an alt text: show.picture(alt)")
            if "text/html" in output.get("data", {}):
                found.append(f"cell {number}: HTML, of which GitHub strips all style: show.table, show.diff")
    return found


def drift(stored, fresh):
    """Where what is stored is not what the cells show now. Times may differ, diffs not."""
    found = []
    for number, (old, new) in enumerate(zip(stored.cells, fresh.cells, strict=True), 1):
        before, exact_before = kinds_and_exact(old)
        after, exact_after = kinds_and_exact(new)
        if set(before) != set(after):
            found.append(f"cell {number}: stored output is missing or odd: {before}, not {after}")
        elif exact_before != exact_after:
            found.append(f"cell {number} shows source as it was: run make notebooks")
    return found


def kinds_and_exact(cell):
    """The kinds of a cell's outputs, and the content of those that may not differ at all."""
    kinds = []
    exact = []
    for output in cell.get("outputs", []):
        has_picture = "image/png" in output.get("data", {})
        kinds.append(output["output_type"] + (" with a picture" if has_picture else ""))
        if label(output) in ("diff", "source"):
            exact.append(output["data"])
    return kinds, exact


def picture(name):
    """A picture of PICTURES, as its notebook shows it."""
    stem, words = PICTURES[name]
    for cell in read(FOLDER / f"{stem}.ipynb").cells:
        if cell.cell_type == "code" and words in cell.source:
            pictures = list(filter(None, map(png, cell.outputs)))
            return base64.b64decode(pictures[-1])
    raise SystemExit(f"error: no cell of {stem}.ipynb has the words {words!r}")


def png(output):
    return output.get("data", {}).get("image/png")


def make(path):
    """Execute one notebook and write it, if it is in order. Returns what is not, and which numbers moved."""
    start = time.monotonic()
    try:
        notebook = execute(path)
    except CellExecutionError as error:
        return [f"{path.name}: {error}"], []
    row = row_of(path)
    words.link(words.number(row), notebook)

    # The size of the file is one of the rules, so it is written before they are checked.
    temporary = path.with_suffix(".temporary")
    nbformat.write(diffs.with_way(row, notebook), temporary)
    found = []
    for line in complaints(temporary, notebook):
        found.append(line.replace(temporary.name, path.name))
    found += missing(path.stem, notebook)
    if found:
        state = "not written"
        temporary.replace(ROOT / "out" / f"{path.stem}.refused.ipynb")
    else:
        state = "written"
        temporary.replace(path)
    print(f"{path.name:36} {time.monotonic() - start:4.0f} s  {state}", flush=True)

    moved = []
    for line in measured.unfounded(path, notebook)[0]:
        moved.append(f"{path.name}, {line}")
    return found, moved


def row_of(path):
    for row in lessons.NOTEBOOKS:
        if row.path == path:
            return row
    raise SystemExit(f"error: lessons.toml has no row for {path.name}")


def main(stems):
    there = [path.stem for path in NOTEBOOKS]
    if unknown := set(stems) - set(there):
        sys.exit(f"error: there is no notebook {', '.join(sorted(unknown))}: there are {', '.join(there)}")
    chosen = [FOLDER / f"{stem}.ipynb" for stem in stems] or NOTEBOOKS
    (ROOT / "out").mkdir(exist_ok=True)
    together = []
    alone = []
    for path in chosen:
        notebook = read(path)
        # Before minutes are spent on executing cells.
        diffs.check_sentences(notebook)
        if found := too_long(path.name, notebook):
            sys.exit("error: " + "\n".join(found))
        if notebook.metadata.get("rungs", {}).get("alone"):
            alone.append(path)
        else:
            together.append(path)

    bad = []
    moved = []
    for paths, at_once in ((together, 2), (alone, 1)):
        with ProcessPoolExecutor(at_once) as pool:
            for found, numbers in pool.map(make, paths):
                bad += found
                moved += numbers
    for name, (stem, _) in PICTURES.items():
        if FOLDER / f"{stem}.ipynb" in chosen:
            (ROOT / "lessons/pictures" / name).write_bytes(picture(name))

    if bad:
        bad.append("What was not written is in out, as NAME.refused.ipynb")
    if moved:
        bad += ["correct these sentences, or print their numbers:", *moved]
    if bad:
        sys.exit("error: " + "\n".join(bad))


if __name__ == "__main__":
    main(sys.argv[1:])
