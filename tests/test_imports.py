"""Which folder imports which, as CONTRIBUTING.md says."""

import ast
import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.lessons import ROOT
from tools.makers import house

FILES = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).splitlines()
NOTEBOOKS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "notebooks").glob("*.ipynb"))
# The path as pyproject.toml has it, and what graders and the processes of notebooks add.
SCRIPTS = "notebooks/show/rank_scripts"
ROOTS = ("", "lessons", "notebooks", "tests/exercises", "tests/exercises/sandbox", SCRIPTS)


@functools.cache
def code_of(name):
    """The tree of a script, or of a notebook's cells."""
    text = (ROOT / name).read_text()
    if name.endswith(".ipynb"):
        text = "".join(python_lines(json.loads(text)["cells"]))
    return ast.parse(text)


def python_lines(cells):
    """The lines of a notebook that are Python, and no commands of IPython or of a shell."""
    for cell in cells:
        if cell["cell_type"] == "code" and not cell["source"][0].startswith("%%"):
            for line in cell["source"]:
                if not line.startswith(("%", "!")):
                    yield line
            yield "\n"


def imported(nodes):
    """All modules that these statements import, with the names that they take out of a module."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"


def place_of(module, file):
    """The file or folder of a module, if it is one of ours: in a root of the path, or beside a script."""
    is_in_a_package = re.match(r"tools/(?!makers/bench/)|tests/(?!exercises/|probes/)", file)
    for folder in (*ROOTS, *([] if is_in_a_package else [Path(file).parent])):
        path = None
        for word in module.split("."):
            below = (path or ROOT / folder) / word
            if below.with_suffix(".py").is_file():
                return str(below.with_suffix(".py").relative_to(ROOT))
            if not any(below.glob("*.py")):
                break
            path = below
        if path:
            return str(path.relative_to(ROOT))
    return None


# What the files of a folder may import, as CONTRIBUTING.md says. The longest folder that fits a file counts.
MAY = {
    "lessons": ("lessons",),
    "lessons/workload": ("lessons/workload",),
    "lessons/parts": ("lessons/workload", "lessons/parts"),
    "solutions": (),
    "notebooks": ("lessons", "notebooks", "tools/testbed"),
    "tools": ("lessons", "tools"),
    "tools/makers": ("lessons", "notebooks", "tools"),
    "tests": ("lessons", "notebooks", "tools", "tests"),
    "tests/exercises": ("tests/exercises",),  # Gradescope gets this folder alone
}


@pytest.mark.parametrize("name", house.ROOMS)
def test_the_picture_of_the_house_is_what_folders_may_import(name):
    """Beside what stands below it, a folder may import itself, and notebooks may import tools/testbed."""
    may = set(MAY[name]) & set(house.ROOMS) - {name}
    if name == "tests":
        may.add("tools/makers")  # a part of tools, which nothing else imports
    assert set(house.below(name)) == may


EXCEPTIONS = {
    ("tools/diffs.py", "notebooks/show/sentences.py"),  # it writes diffs into notebooks: their sentences
    ("tools/diffs.py", "notebooks/show/text.py"),  # and their form
    ("tools/makers/gpu/run_tests.py", "tests/lessons/test_on_gpus.py"),  # `make gpu` runs these tests
    ("tools/makers/calm.py", "tests/exercises/*/test_*.py"),  # it counts their lines
}


def test_arrows_run_from_tests_to_tools_to_lessons():
    """And nothing imports tests, or takes functions out of their files."""
    found = set()
    for file in [*FILES, *NOTEBOOKS]:
        tree = code_of(file)
        may = MAY[max((name for name in MAY if file.startswith(f"{name}/")), key=len)]
        for module in imported(ast.walk(tree)):
            place = place_of(module, file)
            if not place:
                continue
            is_allowed = any(f"{place}/".startswith((f"{name}/", f"{name}.")) for name in may)
            # What learners and authors call must not need what only the makers use.
            is_up = place.startswith("tools/makers/") and not file.startswith(("tools/makers/", "tests/"))
            if is_up or not is_allowed:
                found.add((file, place))
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and re.fullmatch(r"tests/\S+\.py", node.value) and not file.startswith("tests/"):
                found.add((file, node.value))
    assert found == EXCEPTIONS


@pytest.mark.parametrize("file", ["lessons/frameworks/ray_ddp.py", "lessons/recipes/lora.py"])
def test_a_script_that_needs_more_says_what_to_install(file):
    program = "import runpy, sys; sys.modules.update(ray=None, safetensors=None); runpy.run_path(sys.argv[1])"
    result = subprocess.run([sys.executable, "-c", program, ROOT / file], capture_output=True, text=True)
    assert result.returncode == 1 and result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    needed = ROOT / re.search(r"pip install -r (\S+)", result.stderr)[1]
    assert ("ray" in file) == ("ray" in needed.read_text())
