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
SECONDS, BYTES = 300, 2_500_000
# Pictures that the README shows: from which notebook, and words of the cell that draws it last.
PICTURES = {"kill.png": ("05_snapshots", "crashes.draw_loss(")}
WIDGET = "application/vnd.jupyter.widget-view+json"


def read(path):
    return nbformat.read(path, as_version=4)


def execute(path, where=FOLDER, **environment):
    """Run a notebook in a new kernel, started in that folder. Returns it with its new outputs, tidied."""
    notebook = read(path)
    options = {"coalesce_streams": True, "store_widget_state": False}
    resources = {"metadata": {"path": str(where)}}
    client = NotebookClient(notebook, timeout=400, kernel_name="python3", resources=resources, **options)
    start = time.monotonic()
    with tempfile.NamedTemporaryFile("r", prefix="rungs-used-") as file:
        path = os.pathsep.join(filter(None, [str(ROOT / "tools/files_used"), os.environ.get("PYTHONPATH")]))
        client.execute(env=os.environ | {"PYTHONPATH": path, "USED": file.name} | environment)
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
        cell.metadata = {name: value for name, value in cell.metadata.items() if name == "tags"}
        if "hide-input" in cell.metadata.get("tags", []):
            cell.metadata["jupyter"] = {"source_hidden": True}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
            for output in [one for one in cell.outputs if one["output_type"] == "execute_result"]:
                output["metadata"] = {}
            for output in [one for one in cell.outputs if one.get("metadata", {}).get("rungs") == "diff"]:
                output["data"].pop("text/html", None)  # only JupyterLab shows its colours
    return notebook


def texts(cell):
    """What a cell's outputs say, as text."""
    for output in cell.get("outputs", []):
        if output["output_type"] == "stream":
            yield output["text"]
        elif output["output_type"] == "error":
            yield "\n".join(output["traceback"])
        else:
            yield from (str(text) for kind, text in output["data"].items() if not kind.startswith("image/"))


FORBIDDEN = {
    "a path of the machine": r"(?<![\w.])/(?:home|root|tmp|work|usr|var|opt|Users|mnt)/\S|site-packages",
    "a warning": r"(?i)\bwarn(?:ing)?s?\b[:(]|\w+Warning\b",
    "a process id": r"(?i)\b(?:pid|process id)\b\W{0,3}\d+|\bProcess \d{2,}",
    "a port or an address": r"\b(?:localhost|127\.0\.0\.1|\d+\.\d+\.\d+\.\d+)\]?:\d{4,5}\b",
}
STACK = r"Traceback \(most recent call last\)|^\s+File \"[^\"]+\", line \d+"


def complaints(path, notebook):
    """What breaks a rule in a notebook as it is stored, one line for each."""
    found = shown(path.name, notebook)
    if path.stat().st_size > BYTES:
        found.append(f"{path.name} has {path.stat().st_size:,} bytes, more than {BYTES:,}")
    seconds = notebook.metadata.get("rungs", {}).get("seconds")
    if seconds is None or seconds > SECONDS:
        shorter = "make it shorter, or execute it while nothing else runs"
        found.append(f"{path.name} took {seconds} seconds, more than {SECONDS}: {shorter}")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        found.append(f"{path.name} was not executed from top to bottom")
    return found


def shown(name, notebook):
    """What breaks a rule in what the cells show."""
    found = []
    for number, cell in enumerate(notebook.cells, 1):
        where = f"{name}, cell {number}"
        for text in texts(cell):
            for what, pattern in FORBIDDEN.items():
                if match := re.search(pattern, text):
                    found.append(f"{where} shows {what}: {match[0]}")
            if "stack-trace" not in cell.metadata.get("tags", []) and re.search(STACK, text, re.M):
                found.append(f"{where} shows a stack trace, and no tag says that this is the point")
        if cell.cell_type == "code" and len(cell.source.splitlines()) > 40:
            found.append(f"{where} has {len(cell.source.splitlines())} lines of code, more than 40")
        if any(output["output_type"] == "error" for output in cell.get("outputs", [])):
            found.append(f"{where} failed")
    return found


def sources(notebook, kind):
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == kind)


LEARN = r"\*\*You will learn\*\*.*\n\n?(- .+\n){3}\n\*\*You need\*\*"
FIVE = r"## In five sentences\n\n(\d\. .+\n){5}\n"


def missing(stem, notebook):
    """What every notebook has and this one lacks, one line for each."""
    prose, code = sources(notebook, "markdown"), sources(notebook, "code")
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    begin, _, end = prose.partition("## What to read next")
    name = "Planning:" if stem == lessons.OTHER_NOTEBOOKS[0].stem else stem.split("_")[0]
    rules = {
        f"a title that begins with '# {name}' and asks a question": re.match(rf"# {name} .+\?\n", prose),
        "'## What to read next' with an exercise": "xercise" in end,
        "a question to readers: 'Predict'": "predict" in prose.lower(),
        "three assertions": len(re.findall(r"^ *assert ", code, re.M)) >= 3,
        "two pictures": sum(map(bool, map(png, outputs))) >= 2,
        "**You will learn**, a list of three, and **You need**": re.search(LEARN, prose),
        "'## In five sentences', a numbered list of five": re.search(FIVE, prose),
        "an answer folded in <details> for each '**Predict": all(
            "<details>" in cell.source for cell in notebook.cells if "**Predict" in cell.source
        ),
    }
    if stem in lessons.STEMS:
        lesson = lessons.get(stem)
        started = "two_terminals.sh" if lesson.launcher == "two agents" else f"lessons/{stem}.py"
        rules["a heading on what people get wrong"] = re.search(r"(?i)^## .*(wrong|mistake)", begin, re.M)
        rules[f"a run of {started}"] = started in code
        if lesson.grown_from:
            kinds = [output for output in outputs if output.get("metadata", {}).get("rungs") == "diff"]
            shown = [output["data"]["text/markdown"] for output in kinds]
            names = f"`{lesson.grown_from}.py` to `{stem}.py`"
            rules[f"one show.diff, of {names}"] = len(shown) == 1 and names in shown[0]
    found = [f"{stem}.ipynb lacks {rule}" for rule, kept in rules.items() if not kept]
    return found + [f"{stem}.ipynb, {line}" for line in hard_to_read(notebook)]


LONG, IN_A_ROW = 25, 4


def hard_to_read(notebook):
    """What cannot be seen by everybody, and code that nobody would read, one line for each."""
    found, row = [], 0
    for number, cell in enumerate(notebook.cells, 1):
        row = row + 1 if cell.cell_type == "code" else 0
        if row == IN_A_ROW:
            found.append(f"cell {number}: {row} code cells in a row: put a sentence before each")
        if row > 1 and len(cell.source.splitlines()) > LONG:
            found.append(f"cell {number}: more than {LONG} lines, and no sentence before it")
        for output in cell.get("outputs", []):
            data, metadata = output.get("data", {}), output.get("metadata", {})
            if "image/png" in data and len(metadata.get("image/png", {}).get("alt", "")) < 20:
                found.append(f"cell {number}: a picture without an alt text: show.picture(alt)")
            if "text/html" in data:
                found.append(f"cell {number}: HTML, of which GitHub strips all style: show.table, show.diff")
    return found


def drift(stored, fresh):
    """Where what is stored is not what the cells show now. Times may differ, diffs not."""
    found = []
    for number, (old, new) in enumerate(zip(stored.cells, fresh.cells, strict=True), 1):
        before, after = (list(map(kind, cell.get("outputs", []))) for cell in (old, new))
        if set(before) != set(after):
            found.append(f"cell {number}: stored output is missing or odd: {before}, not {after}")
            continue
        one, other = (
            [out["data"] for out in cell.get("outputs", []) if is_exact(out)] for cell in (old, new)
        )
        if one != other:
            found.append(f"cell {number} shows source as it was: run make notebooks")
    return found


def kind(output):
    return output["output_type"] + (" with a picture" if "image/png" in output.get("data", {}) else "")


def is_exact(output):
    return output.get("metadata", {}).get("rungs") in ("diff", "source")


def picture(name):
    """A picture of PICTURES, as its notebook shows it."""
    stem, words = PICTURES[name]
    for cell in read(FOLDER / f"{stem}.ipynb").cells:
        if cell.cell_type == "code" and words in cell.source:
            return base64.b64decode(list(filter(None, map(png, cell.outputs)))[-1])
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
    row = next(row for row in lessons.NOTEBOOKS if row.path == path)
    words.link(words.number(row), notebook)
    temporary = path.with_suffix(".temporary")
    nbformat.write(diffs.with_way(row, notebook), temporary)
    found = [line.replace(temporary.name, path.name) for line in complaints(temporary, notebook)]
    found += missing(path.stem, notebook)
    temporary.replace(ROOT / "out" / f"{path.stem}.refused.ipynb" if found else path)
    state = "not written" if found else "written"
    print(f"{path.name:36} {time.monotonic() - start:4.0f} s  {state}", flush=True)
    return found, [f"{path.name}, {line}" for line in measured.unfounded(path, notebook)[0]]


def main(stems):
    there = [path.stem for path in NOTEBOOKS]
    if unknown := set(stems) - set(there):
        sys.exit(f"error: there is no notebook {', '.join(sorted(unknown))}: there are {', '.join(there)}")
    chosen = [FOLDER / f"{stem}.ipynb" for stem in stems] or NOTEBOOKS
    (ROOT / "out").mkdir(exist_ok=True)
    alone = [path for path in chosen if read(path).metadata.get("rungs", {}).get("alone")]
    bad, moved = [], []
    for group, jobs in (([path for path in chosen if path not in alone], 2), (alone, 1)):
        with ProcessPoolExecutor(jobs) as pool:
            for found, numbers in pool.map(make, group):
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
