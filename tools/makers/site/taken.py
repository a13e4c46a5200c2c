"""Functions and classes out of files that import what the site's builder and a browser lack."""

import ast
import textwrap
from types import SimpleNamespace


def source(path, names) -> str:
    """The text of these, and of nothing else that the file has."""
    text = path.read_text()
    kinds = ast.FunctionDef | ast.ClassDef
    found = {node.name: node for node in ast.parse(text).body if isinstance(node, kinds)}
    return "\n\n\n".join(textwrap.dedent(ast.get_source_segment(text, found[name])) for name in names) + "\n"


def functions(path, *names, **space) -> SimpleNamespace:
    """These, which may call one another and what `space` has."""
    exec(compile(source(path, names), str(path), "exec"), space)
    return SimpleNamespace(**{name: space[name] for name in names})
