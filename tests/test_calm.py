"""Lessons and their parts read calmly: lines that are not long, one idea at a time, nothing that is hidden.

What is counted here is what a reader feels. It reads the sources and runs none of them.
"""

import ast
import difflib

import pytest

import lessons
from lessons import ROOT

LESSONS = [lesson.path for lesson in lessons.LESSONS]
PARTS = sorted([*(ROOT / "lessons/parts").glob("*.py"), *(ROOT / "lessons/recipes").glob("*.py")])
WORKLOAD = sorted((ROOT / "lessons/workload").glob("*.py"))
SOURCES = {f"{path.parent.name}/{path.name}": path for path in (*LESSONS, *PARTS)}
# Here torch's own settings are made, once for all lessons.
SHARED = {f"{path.parent.name}/{path.name}": path for path in WORKLOAD}
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
    if isinstance(node, ast.Assign):
        return ast.unparse(node) == "option = parser.add_argument"
    call = node.value if isinstance(node, ast.Expr) else None
    function = call.func if isinstance(call, ast.Call) else None
    if isinstance(function, ast.Name):
        return function.id == "option"
    return isinstance(function, ast.Attribute) and function.attr in ("add_argument", "set_defaults")


def code(text):
    """The lines of code: without the docstring, imports, options, comments and empty lines."""
    tree = ast.parse(text)
    apart = [
        node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) or is_an_option(node)
    ]
    if ast.get_docstring(tree) is not None:
        apart.append(tree.body[0])
    left_out = lines_of(apart)
    lines = enumerate(text.splitlines(), 1)
    return [
        line
        for number, line in lines
        if number not in left_out and line.strip() and not line.strip().startswith("#")
    ]


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


def is_dict_view(node):
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr in ("values", "keys", "items")


def tricks(text):
    """What a reader stumbles over, in words."""
    tree = ast.parse(text)
    imported = names_of_imports(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            found.append(f"line {node.lineno}: import *")
        if isinstance(node, ast.Global):
            found.append(f"line {node.lineno}: global")
        if (
            isinstance(node, ast.Attribute)
            and not isinstance(node.ctx, ast.Load)
            and root_of(node) in imported
        ):
            found.append(f"line {node.lineno}: assigns {ast.unparse(node)}, which belongs to another module")
        is_setattr = isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr"
        if is_setattr and root_of(node.args[0]) in imported:
            found.append(f"line {node.lineno}: assigns to another module")
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and is_dict_view(node.value)
        ):
            found.append(f"line {node.lineno}: unpacks a dict by its order")
    return found


@pytest.mark.parametrize("name", SOURCES | SHARED)
def test_few_lines_are_long(name):
    text = (SOURCES | SHARED)[name].read_text()
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


@pytest.mark.parametrize("name", SOURCES)
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
    ],
)
def test_a_trick_is_found(text, words):
    (found,) = tricks(text)
    assert found.startswith(words)


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.environ['A'] = 'b'",
        "class A:\n    def f(self):\n        self.x = 1",
        "import torch\nmodel = torch.a\nmodel.x = 1",
        "for a, b in c.items():\n    pass",
    ],
)
def test_what_is_plain_is_no_trick(text):
    assert tricks(text) == []


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
