"""Lessons and their parts read calmly: lines that are not long, one idea at a time, nothing that is hidden.

What is counted here is what a reader feels. It reads the sources and runs none of them.
"""

import ast
import difflib

import pytest

from tools import lessons
from tools.lessons import ROOT

PARTS = sorted([*(ROOT / "lessons/parts").glob("*.py"), *(ROOT / "lessons/recipes").glob("*.py")])
# In the workload torch's own settings are made, once for all lessons.
WORKLOAD = sorted((ROOT / "lessons/workload").glob("*.py"))
PATHS = [*(lesson.path for lesson in lessons.LESSONS), *PARTS, *WORKLOAD]
SOURCES = {f"{path.parent.name}/{path.name}": path for path in PATHS}
LONG, SHARE = 90, 0.12


def root_of(node):
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def tricks(text):
    """Where a file declares a name global, or assigns to another module."""
    nodes = list(ast.walk(ast.parse(text)))
    imported = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                imported.add(alias.asname or alias.name.split(".")[0])
    found = []
    for node in nodes:
        is_assigned = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node, ast.Global) or (is_assigned and root_of(node) in imported):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_few_lines_are_long(name):
    lines = SOURCES[name].read_text().splitlines()
    long = [number for number, line in enumerate(lines, 1) if len(line) >= LONG]
    words = f"lines with {LONG} characters or more, of which at most {SHARE:.0%} are allowed: {long}"
    assert len(long) <= SHARE * len(lines), words


@pytest.mark.parametrize("stem", lessons.STEMS[1:])
def test_a_lesson_adds_little_to_the_one_it_grew_from(stem):
    before = lessons.get(lessons.get(stem).grown_from).path.read_text().splitlines()
    after = lessons.get(stem).path.read_text().splitlines()
    count = sum(line.startswith("+ ") for line in difflib.ndiff(before, after))
    # Those of the staircase (03 to 06b, 08) are to be written from memory.
    assert count <= lessons.get(stem).new, f"{count} new lines, docstring included"


@pytest.mark.parametrize("name", [name for name in SOURCES if not name.startswith("workload/")])
def test_nothing_is_hidden(name):
    assert tricks(SOURCES[name].read_text()) == []


def test_a_trick_is_found_and_what_is_plain_is_none():
    assert tricks("def f():\n    global x\n    x = 1") == ["line 2: global x"]
    assert tricks("from parts import snapshot\nsnapshot.a = 1") == ["line 2: snapshot.a"]
    assert tricks("import torch\nmodel = torch.a\nmodel.x = 1") == []
