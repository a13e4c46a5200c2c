"""Functions and classes out of files that import what the site's builder and a browser lack."""

import ast
import textwrap
from types import SimpleNamespace


def source(path, names) -> str:
    """The text of these, and of nothing else that the file has."""
    text = path.read_text()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = textwrap.dedent(ast.get_source_segment(text, node))
    return "\n\n\n".join(found[name] for name in names) + "\n"


def functions(path, *names, **space) -> SimpleNamespace:
    """These, which may call one another and what `space` has."""
    exec(compile(source(path, names), str(path), "exec"), space)
    return SimpleNamespace(**{name: space[name] for name in names})
