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
    lines, full = text.splitlines(), set()
    layout = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    try:
        tree = ast.parse(text)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
            elif token.type not in layout:
                full.update(range(token.start[0], token.end[0] + 1))
    except (SyntaxError, tokenize.TokenError):
        return text  # a notebook's line for a shell
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            docstring = node.body[0]
            full.difference_update(range(docstring.lineno, docstring.end_lineno + 1))
    return "\n".join(lines[number - 1].rstrip() for number in sorted(full))


def digest(content):
    return hashlib.sha256(content).hexdigest()[:12]


@functools.cache
def of_file(name):
    """The digest of a file, by its path from the root; nothing if it is gone."""
    path = ROOT / name
    if not path.exists():
        return ""
    return digest(bare(path.read_text()).encode() if path.suffix == ".py" else path.read_bytes())


def of_code(notebook):
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.get("id") != "fetch"]
    code = [bare(cell.source) for cell in cells]
    return digest(json.dumps(code).encode())


def used(lines):
    """The digest of each file of the repository among those that processes have opened: see used/."""
    # A new lesson is not tracked yet when its notebook is executed for the first time.
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = {importlib.util.source_from_cache(line) if "__pycache__" in line else line for line in lines}
    names = {path.removeprefix(f"{ROOT}/") for path in paths} & set(listed.stdout.splitlines())
    return {name: of_file(name) for name in sorted(names - LEFT_OUT) if not name.endswith(".ipynb")}


def stale(notebook):
    """What has changed since a notebook was executed, in words."""
    kept = notebook.metadata.get("rungs", {})
    if "used" not in kept:
        return []  # it was executed before there were digests: a test that runs at night names it
    found = [] if of_code(notebook) == kept["code"] else ["its code has changed"]
    found += [f"{name} has changed" for name, known in kept["used"].items() if of_file(name) != known]
    texts = [(ROOT / name).read_text() for name in kept["used"] if name.endswith(".py") and of_file(name)]
    for number, cell in enumerate(notebook.cells, 1):
        for output in cell.get("outputs", []):
            # With its comments, and these are not in the digests.
            is_source = output.get("metadata", {}).get("rungs") == "source"
            if is_source and not any(output["data"]["text/plain"] in text for text in texts):
                found.append(f"cell {number} shows source that is nowhere")
    return found
