"""What a page of a widget is made of: its data, its words where no script runs, and its scripts.

A widget that answers has `answer(**inputs)`, which runs here for what it begins with, and in the reader's
browser for all else: there Pyodide has the same files under the same names, of FILES. Where a file imports
more than a browser has, FILES names the functions that are needed, and only they are there.
"""

import html
import json
from pathlib import Path

import taken
from lessons import ROOT

WIDGETS = ROOT / "tools/site/widgets"


def data(widget) -> dict:
    """What the widget's script gets."""
    if not hasattr(widget, "answer"):
        return widget.data()
    own = str(Path(widget.__file__).resolve().relative_to(ROOT))
    files = {
        path: taken.source(ROOT / path, names) if names else text(path) for path, names in files_of(widget)
    }
    return {
        "controls": widget.CONTROLS,
        "presets": presets(widget),
        "answer": widget.answer(**begin(widget)),
        "note": widget.NOTE,
        "files": files | {own: text(own)},
        "module": f"widgets.{Path(own).stem}",
    }


def written(found) -> str:
    return json.dumps(found, separators=(",", ":"))


def text(path: str) -> str:
    return (ROOT / path).read_text()


def files_of(widget):
    return [*widget.FILES.items(), ("tools/site/taken.py", ()), ("tools/site/controls.py", ())]


def begin(widget) -> dict:
    """What the controls show first."""
    return {control["name"]: control["start"] for control in widget.CONTROLS}


def presets(widget) -> list[dict]:
    """Examples: a label, and what all controls are set to."""
    return [{"label": label, "inputs": begin(widget) | changes} for label, changes in widget.PRESETS.items()]


def still(widget) -> str:
    """The words and tables of what the widget shows first, as HTML: scripts put theirs into its place."""
    if hasattr(widget, "answer"):
        found = widget.answer(**begin(widget)) | {"note": widget.NOTE}
    elif hasattr(widget, "still"):
        found = widget.still()
    else:
        return (
            "<noscript>This page needs JavaScript. The page of each lesson has its diff to the lesson "
            "that it grew from.</noscript>"
        )
    said = html.escape(found["said"])
    noscript = "<noscript><p>With JavaScript, the page has controls and a drawing.</p></noscript>"
    return "".join(
        [f"<p>{said}</p>", *map(table, found["tables"]), noscript, f"<p>{html.escape(found['note'])}</p>"]
    )


def table(found) -> str:
    def row(cells, name):
        return f"<tr>{''.join(f'<{name}>{html.escape(cell)}</{name}>' for cell in cells)}</tr>"

    return (
        f'<div class="table-wrapper"><table><caption>{html.escape(found["caption"])}</caption>'
        f"<thead>{row(found['head'], 'th')}</thead>"
        f"<tbody>{''.join(row(cells, 'td') for cells in found['rows'])}</tbody></table></div>"
    )


def page(name: str, widget, introduction: str) -> tuple[str, dict[str, str]]:
    """The Markdown of the widget's page, and the files that lie beside the theme's."""
    others = [f"{name}.js", "shared.js", "shared.css", *(["python.js"] if hasattr(widget, "answer") else [])]
    files = {file: (WIDGETS / file).read_text() for file in others}
    stored = f"{name}.data.js"
    files[stored] = f"const DATA = {written(data(widget))};\n"
    if hasattr(widget, "parts"):  # a script asks for those that it needs
        files[stored] += "const PARTS = {};\n"
        for part, found in widget.parts().items():
            files[f"{name}.{part}.js"] = f"PARTS[{json.dumps(part)}] = {written(found)};\n"
    tags = [
        '<link rel="stylesheet" href="../_static/shared.css">',
        f'<div id="widget" class="{name}">{still(widget)}</div>',
        f'<script src="../_static/{stored}"></script>',
        f'<script type="module" src="../_static/{name}.js"></script>',
    ]
    head = f"---\nhide-toc: true\n---\n\n# {widget.TITLE}\n\n{introduction}\n"
    return head + "\n".join(tags) + "\n", files
