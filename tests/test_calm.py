"""Lessons and their parts read calmly: lines that are not long, one idea at a time, nothing that is hidden.

What is counted here is what a reader feels. It reads the sources and runs none of them.
"""

import ast
import difflib

import pytest

import lessons
from lessons import ROOT

PARTS = sorted([*(ROOT / "lessons/parts").glob("*.py"), *(ROOT / "lessons/recipes").glob("*.py")])
# In the workload torch's own settings are made, once for all lessons.
WORKLOAD = sorted((ROOT / "lessons/workload").glob("*.py"))
PATHS = [*(lesson.path for lesson in lessons.LESSONS), *PARTS, *WORKLOAD]
SOURCES = {f"{path.parent.name}/{path.name}": path for path in PATHS}
LONG, SHARE = 90, 0.12


# What a step of the staircase may change, docstring and all: its new lines are to be written from memory.
# (Not those of 08: there, what does not concern the other processes is to stay in lessons/parts.)
CHANGED = {
    "03_ddp_spawn": 32,
    "04_ddp_torchrun": 16,
    "05_snapshots": 22,
    "06_multinode": 20,
    "06a_any_step": 35,
    "06b_preemption": 40,
    "08_real_training": 45,
}


def lines_of(nodes):
    return {line for node in nodes for line in range(node.lineno, node.end_lineno + 1)}


def is_an_option(node):
    """parser.add_argument(...), parser.set_defaults(...); option = parser.add_argument, option(...)"""
    match node:
        case ast.Assign():
            return ast.unparse(node) == "option = parser.add_argument"
        case ast.Expr(ast.Call(ast.Name("option") | ast.Attribute(attr="add_argument" | "set_defaults"))):
            return True
    return False


def code(text):
    """The lines of code: without the docstring, imports, options, comments and empty lines."""
    tree = ast.parse(text)
    imports = ast.Import | ast.ImportFrom
    apart = [node for node in ast.walk(tree) if isinstance(node, imports) or is_an_option(node)]
    if ast.get_docstring(tree) is not None:
        apart.append(tree.body[0])
    lines = [line.strip() for line in text.splitlines()]
    left_out = lines_of(apart) | {at for at, line in enumerate(lines, 1) if not line or line.startswith("#")}
    return [line for number, line in enumerate(text.splitlines(), 1) if number not in left_out]


def added(before, after):
    return sum(line.startswith("+ ") for line in difflib.ndiff(code(before), code(after)))


def share_of_long_lines(text):
    lines = text.splitlines()
    return sum(len(line) >= LONG for line in lines) / len(lines)


def names_of_imports(tree):
    """The names under which a file knows other modules, and what it takes from them."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return names


def root_of(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def tricks(text):
    """What a reader stumbles over, in words."""
    tree = ast.parse(text)
    imported = names_of_imports(tree)
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom() if any(alias.name == "*" for alias in node.names):
                words = "import *"
            case ast.Global():
                words = "global"
            case ast.Attribute(ctx=ast.Store() | ast.Del()) if root_of(node) in imported:
                words = f"assigns {ast.unparse(node)}, which belongs to another module"
            case ast.Call(ast.Name("setattr"), [first, *_]) if root_of(first) in imported:
                words = "assigns to another module"
            case ast.Assign([ast.Tuple(), *_], ast.Call(ast.Attribute(attr="values" | "keys" | "items"))):
                words = "unpacks a dict by its order"
            case _:
                continue
        found.append(f"line {node.lineno}: {words}")
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_few_lines_are_long(name):
    text = SOURCES[name].read_text()
    long = [number for number, line in enumerate(text.splitlines(), 1) if len(line) >= LONG]
    share = share_of_long_lines(text)
    assert share <= SHARE, f"{share:.1%} of the lines have {LONG} characters or more: {long}"


@pytest.mark.parametrize("stem", lessons.STEMS[1:])
def test_a_lesson_adds_little_to_the_one_it_grew_from(stem):
    path = ROOT / f"lessons/{stem}.py"
    before = lessons.get(lessons.get(stem).grown_from).path
    count = added(before.read_text(), path.read_text())
    assert count <= 60, f"{count} lines of code more than {before.name}"


@pytest.mark.parametrize("stem", CHANGED)
def test_a_step_of_the_staircase_has_few_new_lines(stem):
    before = lessons.get(lessons.get(stem).grown_from).path.read_text().splitlines()
    after = (ROOT / f"lessons/{stem}.py").read_text().splitlines()
    count = sum(line.startswith("+ ") for line in difflib.ndiff(before, after))
    assert count <= CHANGED[stem], f"{count} new lines, docstring included"


@pytest.mark.parametrize("name", [name for name in SOURCES if not name.startswith("workload/")])
def test_nothing_is_hidden(name):
    assert tricks(SOURCES[name].read_text()) == []


# ---- do these tests see what they are for? ----


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("from os import *", "line 1: import *"),
        ("def f():\n    global x\n    x = 1", "line 2: global"),
        ("import tempfile\nwith f() as tempfile.tempdir:\n    pass", "line 2: assigns tempfile.tempdir"),
        ("from parts import snapshot\nsnapshot.settings |= {}", "line 2: assigns snapshot.settings"),
        ("import torch\ntorch.a.b, c = 1, 2", "line 2: assigns torch.a.b"),
        ("import torch\nsetattr(torch, 'a', 1)", "line 2: assigns to another module"),
        ("a, b = c.values()", "line 1: unpacks a dict by its order"),
        ("import os\nos.environ['A'] = 'b'", None),
        ("class A:\n    def f(self):\n        self.x = 1", None),
        ("import torch\nmodel = torch.a\nmodel.x = 1", None),
        ("for a, b in c.items():\n    pass", None),
    ],
)
def test_a_trick_is_found_and_what_is_plain_is_none(text, words):
    found = tricks(text)
    assert len(found) == bool(words) and all(line.startswith(words) for line in found)


def test_what_counts_as_added():
    before = '"""One."""\nimport os\n\na = 1\n'
    after = (
        '"""Two,\nlonger."""\nimport os\nimport sys\nfrom x import (\n    y,\n)\n\n# why\na = 1\nb = 2\n'
        'parser.add_argument(\n    "--x",\n)\nc = f(\n    1,\n)\n'
    )
    assert added(before, after) == 4
    assert added(after, before) == 0


def test_what_counts_as_long():
    assert share_of_long_lines("x" * 90 + "\n" + "x" * 89 + "\n") == 0.5
