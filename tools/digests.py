"""What the outputs of a notebook come from: its code, and the files that it used when it was executed.

`make notebooks` keeps a digest of each in the notebook's metadata. A notebook is stale when one of them is no
longer what it was: what it shows may not be what its code does now.
"""

import ast
import functools
import hashlib
import importlib.util
import io
import json
import subprocess
import tokenize

from tools.lessons import ROOT

# `make diffs` writes the sentences into the notebooks, and a new lesson's row in the table changes nothing in
# the others: nobody has to execute notebooks for these two.
LEFT_OUT = {"notebooks/show/sentences.py", "tools/lessons.toml"}


def bare(text):
    """Python without its comments, docstrings and empty lines, which change nothing that it does."""
    lines = text.splitlines()
    kept = set()  # numbers of lines
    layout = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    try:
        tree = ast.parse(text)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            first, column = token.start
            if token.type == tokenize.COMMENT:
                lines[first - 1] = lines[first - 1][:column]
            elif token.type not in layout:
                kept.update(range(first, token.end[0] + 1))
    except (SyntaxError, tokenize.TokenError):
        return text  # a notebook's line for a shell
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            docstring = node.body[0]
            kept.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return "\n".join(lines[number - 1].rstrip() for number in sorted(kept))


def digest(content):
    return hashlib.sha256(content).hexdigest()[:12]


@functools.cache
def of_file(name):
    """The digest of a file, by its path from the root; nothing if it is gone."""
    path = ROOT / name
    if not path.exists():
        return ""
    if path.suffix == ".py":
        return digest(bare(path.read_text()).encode())
    return digest(path.read_bytes())


def of_code(notebook):
    code = []
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.get("id") != "fetch":
            code.append(bare(cell.source))
    return digest(json.dumps(code).encode())


def used(lines):
    """The digest of each file of the repository among those that processes have opened: see files_used."""
    # A new lesson is not tracked yet when its notebook is executed for the first time.
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    ours = set(listed.stdout.splitlines())
    names = set()
    for path in lines:
        if "__pycache__" in path:  # Python opens only this if it has compiled the file before
            path = importlib.util.source_from_cache(path)
        name = path.removeprefix(f"{ROOT}/")
        if name in ours and name not in LEFT_OUT and not name.endswith(".ipynb"):
            names.add(name)
    return {name: of_file(name) for name in sorted(names)}


def stale(notebook):
    """What has changed since a notebook was executed, in words."""
    stored = notebook.metadata.get("rungs", {})
    if "used" not in stored:
        return []  # it was executed before there were digests: a test that runs at night names it
    found = []
    if of_code(notebook) != stored["code"]:
        found.append("its code has changed")
    texts = []
    for name, known in stored["used"].items():
        if of_file(name) != known:
            found.append(f"{name} has changed")
        if name.endswith(".py") and (ROOT / name).exists():
            texts.append((ROOT / name).read_text())

    # A notebook shows source with its comments, and these are not in the digests.
    for number, cell in enumerate(notebook.cells, 1):
        for output in cell.get("outputs", []):
            if output.get("metadata", {}).get("rungs") != "source":
                continue
            source = output["data"]["text/plain"]
            if not any(source in text for text in texts):
                found.append(f"cell {number} shows source that is nowhere")
    return found
