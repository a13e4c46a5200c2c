"""What a page of a widget is made of: its data, what it says where no script runs, and its scripts.

A widget that answers has `answer(**inputs)`, which runs here for what it begins with, and in the reader's
browser for all else: there Pyodide has the same files under the same names, of FILES. Where a file imports
more than a browser has, FILES names the functions that are needed, and only they are there.
"""

import functools
import json
from pathlib import Path

from tools.lessons import ROOT
from tools.makers.site import extract

WIDGETS = ROOT / "tools/makers/site/widgets"
# What every widget that answers imports. The first is the package, which knows the path to the planner.
HELPERS = {
    "tools/__init__.py": (),
    "tools/makers/site/extract.py": (),
    "tools/makers/site/controls.py": (),
}


def data(widget) -> dict:
    """What the widget's script gets."""
    if not hasattr(widget, "answer"):
        return widget.data()
    own = str(Path(widget.__file__).resolve().relative_to(ROOT))
    texts = {}
    for path, names in (widget.FILES | HELPERS | {own: ()}).items():
        if names:
            texts[path] = extract.source(ROOT / path, names)
        else:
            texts[path] = (ROOT / path).read_text()
    return {
        "controls": widget.CONTROLS,
        "presets": answered(widget),
        "note": widget.NOTE,
        "files": texts,
        "module": f"tools.makers.site.widgets.{Path(own).stem}",
    }


def begin(widget) -> dict:
    """What the controls show first."""
    return {control["name"]: control["start"] for control in widget.CONTROLS}


def presets(widget) -> list[dict]:
    """Examples: a label, and what all controls are set to."""
    found = []
    for label, changes in widget.PRESETS.items():
        found.append({"label": label, "inputs": begin(widget) | changes})
    return found


@functools.cache
def answered(widget) -> list[dict]:
    """The examples, each with its answer: who chooses one does not wait for Python. The first is what the
    controls show first."""
    found = presets(widget)
    assert found[0]["inputs"] == begin(widget), "the first example is what a page begins with"
    return [preset | {"answer": widget.answer(**preset["inputs"])} for preset in found]


def still(widget) -> dict | None:
    """What the widget shows first, for a page without scripts: words, tables and a note; or nothing."""
    if hasattr(widget, "answer"):
        return answered(widget)[0]["answer"] | {"note": widget.NOTE}
    return widget.still() if hasattr(widget, "still") else None


def files(name: str, widget) -> dict[str, str]:
    """What lies beside the theme's files: scripts, and the data that they get."""
    others = [f"{name}.js", "shared.js", "shared.css"]
    if hasattr(widget, "answer"):
        others.append("python.js")
    found = {file: (WIDGETS / file).read_text() for file in others}
    stored = f"{name}.data.js"
    found[stored] = f"const DATA = {as_json(data(widget))};\n"
    if hasattr(widget, "parts"):  # a script asks for those that it needs
        found[stored] += "const PARTS = {};\n"
        for part, content in widget.parts().items():
            found[f"{name}.{part}.js"] = f"PARTS[{json.dumps(part)}] = {as_json(content)};\n"
    return found


def as_json(found) -> str:
    """Without spaces: a page loads this."""
    return json.dumps(found, separators=(",", ":"))
