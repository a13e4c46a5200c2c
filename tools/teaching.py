"""Which lines of a notebook's code teach, and which set up, draw or check: `python tools/teaching.py`.

    python tools/teaching.py
    python tools/teaching.py 03_ddp_spawn --lines

You will see a row for each notebook, with the share of its lines of code that teach. Lines are counted by
statement; comments and empty lines are not counted.

- "set up": the cell that calls show.start, and imports of `show` and of matplotlib in other cells.
- "draw": a call of something in `show` that ends in a picture, anything done to a figure or to axes, and
  what is computed only for these.
- "check": assertions.
- "teach": everything else.

test_notebooks.py asks for 75% in each notebook.
"""

import argparse
import ast
import re

import nbformat

import lessons
from lessons import ROOT

SHARE = 0.75
SHOW = ROOT / "notebooks/show"
DRAWING = {"matplotlib", "plt"}
FIGURE_MAKERS = {"subplots", "subplot_mosaic", "figure", "canvas", "add_subplot"}
KINDS = ("teach", "draw", "check", "set up")


def called(node):
    """The last name of each function that is called: `picture` of show.picture(...)."""
    for call in ast.walk(node):
        match call:
            case ast.Call(ast.Attribute(attr=name) | ast.Name(name)):
                yield name


def functions_that_draw():
    """What in `show` ends in a picture, directly or through another function there."""
    calls = {}
    for path in SHOW.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                calls.setdefault(node.name, set()).update(called(node))
    drawing = {"picture", "slider"} | FIGURE_MAKERS
    while more := {name for name, inner in calls.items() if inner & drawing} - drawing:
        drawing |= more
    return drawing


def names(node, kind):
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, kind)}


COMPOUND = ast.For | ast.While | ast.With | ast.If | ast.Try


def inside(node):
    return [inner for field in ("body", "orelse", "finalbody") for inner in getattr(node, field, [])]


def flat(nodes):
    """All simple statements, those in loops and branches too; a function is one statement."""
    for node in nodes:
        yield from flat(inside(node)) if isinstance(node, COMPOUND) else [node]


def heads(nodes):
    """What each loop or branch reads before its body, and the loop or branch."""
    for node in [node for node in nodes if isinstance(node, COMPOUND)]:
        found = [getattr(node, "iter", None), getattr(node, "test", None)]
        found += [item.context_expr for item in getattr(node, "items", [])]
        yield set().union(*(names(part, ast.Load) for part in found if part)), node
        yield from heads(inside(node))


def parsed(source):
    """A cell without its lines for IPython and for a shell."""
    if source.startswith("%%"):
        return ast.parse("")  # all of it goes into a file
    return ast.parse(re.sub(r"(?m)^( *)[%!].*$", r"\1pass", source))


class Count:
    def __init__(self, cells, drawing):
        self.drawing = drawing
        self.trees = [parsed(source) for source in cells]
        self.lines = [source.splitlines() for source in cells]
        simple = [node for tree in self.trees for node in flat(tree.body)]
        self.kinds = {node: self.first_look(node) for node in simple}
        for tree, source in zip(self.trees, cells, strict=True):
            if "show.start(" in source:
                self.kinds |= dict.fromkeys(flat(tree.body), "set up")
        makers = [
            node for node in simple if isinstance(node, ast.Assign) and set(called(node)) & FIGURE_MAKERS
        ]
        self.axes = set().union(*(names(node, ast.Store) for node in makers))  # figure, axes = plt.subplots()
        for node in simple:
            if self.kinds[node] == "teach" and names(node, ast.Load) & (self.axes | DRAWING):
                self.kinds[node] = "draw"
        self.for_drawing(simple)

    def first_look(self, node):
        if isinstance(node, ast.Assert):
            return "check"
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
            roots = {module.partition(".")[0] for module in modules}
            return "set up" if roots & {"show", "sys", "matplotlib"} else "teach"
        return "draw" if set(called(node)) & self.drawing else "teach"

    def for_drawing(self, simple):
        """What is assigned, and read nowhere but in a picture, is there for the picture."""
        readers = [(names(node, ast.Load), node) for node in simple]
        readers += [head for tree in self.trees for head in heads(tree.body)]
        changed = True
        while changed:
            changed = False
            for node in simple:
                assigns = isinstance(node, ast.Assign | ast.AugAssign)
                targets = names(node, ast.Store) if assigns and self.kinds[node] == "teach" else set()
                kinds = [self.kind(one) for read, one in readers if one is not node and read & targets]
                if kinds and set(kinds) == {"draw"}:
                    self.kinds[node], changed = "draw", True

    def kind(self, node):
        """A loop or a branch is what all inside it is."""
        if node in self.kinds:
            return self.kinds[node]
        kinds = {self.kinds[inner] for inner in flat([node])}
        return kinds.pop() if len(kinds) == 1 else "teach"

    def rows(self):
        """Each line of code with its kind."""
        for tree, lines in zip(self.trees, self.lines, strict=True):
            kinds = {}
            self.mark(tree.body, kinds)
            for number, line in enumerate(lines, 1):
                if line.strip() and not line.strip().startswith("#"):
                    yield kinds.get(number, "teach"), line

    def mark(self, nodes, kinds):
        for node in nodes:
            for number in range(node.lineno, node.end_lineno + 1):
                kinds[number] = self.kind(node)
            if node not in self.kinds:
                self.mark(inside(node), kinds)


def count(path, drawing):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code" and cell.get("id") != "fetch"]
    return list(Count(cells, drawing).rows())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stems", nargs="*", help="which notebooks (all)")
    parser.add_argument("--lines", action="store_true", help="print each line with its kind")
    arguments = parser.parse_args()
    drawing = functions_that_draw()
    print(f"{'notebook':32}{'lines':>6}" + "".join(f"{kind:>9}" for kind in KINDS))
    for row in lessons.NOTEBOOKS:
        if arguments.stems and row.stem not in arguments.stems:
            continue
        rows = count(row.path, drawing)
        shares = [sum(kind == found for found, _ in rows) / len(rows) for kind in KINDS]
        print(f"{row.stem:32}{len(rows):6}" + "".join(f"{share:9.0%}" for share in shares))
        if arguments.lines:
            print("\n".join(f"  {kind:7} {line}" for kind, line in rows))


if __name__ == "__main__":
    main()
