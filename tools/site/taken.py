"""Single functions out of files of the repository that import what the site's builder and a browser lack."""

import ast
import textwrap
from types import SimpleNamespace


def source(path, names) -> str:
    """The text of these functions, and of nothing else that the file has."""
    text = path.read_text()
    found = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{path} has no function {', '.join(missing)}: name the one that took its part")
    return "\n\n\n".join(textwrap.dedent(ast.get_source_segment(text, found[name])) for name in names) + "\n"


def functions(path, *names) -> SimpleNamespace:
    """These functions. They may call one another."""
    space = {}
    exec(compile(source(path, names), str(path), "exec"), space)
    return SimpleNamespace(**{name: space[name] for name in names})
