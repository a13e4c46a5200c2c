"""What of torch a file uses that an exercise is to be done without, found by reading. What is only called
like it is not meant: a function of the file's own, or functools.reduce."""

import ast

LONGEST = 200  # letters of a path of names


def used(tree: ast.Module, forbidden: list[str]) -> tuple[int, str] | None:
    """The first line that uses one of these, and its name. What cannot be told counts as torch's."""
    words = {path.rpartition(".")[2] for path in forbidden}
    imports, own, prints = imported(tree), defined(tree), printed(tree)
    found = []
    for node in ast.walk(tree):
        if node in prints:
            continue
        for path in named(node, imports, own):
            module, _, word = path.rpartition(".")
            # torch.gather is not torch.distributed.gather.
            if word in words and (not module or module.startswith("torch.")):
                found.append((node.lineno, word))
    return min(found, default=None)


def named(node: ast.AST, imports: dict[str, str], own: set[str]) -> list[str]:
    """What this part of a file names: with its module where that is known, else the last name alone."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Name):
        return [imports[node.id]] if node.id in imports else [] if node.id in own else [node.id]
    if isinstance(node, ast.Attribute):
        first, rest = node.value, node.attr
        # It may be one of one of one, a thousand times: no path of torch is as long.
        while isinstance(first, ast.Attribute) and len(rest) < LONGEST:
            first, rest = first.value, f"{first.attr}.{rest}"
        if isinstance(first, ast.Name) and first.id in imports:
            return [f"{imports[first.id]}.{rest}"]
        return [] if node.attr in own else [node.attr]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 80:
        return [node.value]  # getattr(dist, "all_reduce")
    return []


def imported(tree: ast.Module) -> dict[str, str]:
    """What the names stand for that imports have brought: {"dist": "torch.distributed"}."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def defined(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return names


def printed(tree: ast.Module) -> set[ast.AST]:
    """What is handed to print: words for a reader."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {word for call in calls if getattr(call.func, "id", "") == "print" for word in call.args}
