"""requirements.txt is enough to run the lessons and to start the tests; and which folder imports which."""

import ast
import functools
import json
import re
import subprocess
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tools.lessons import ROOT

FILES = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).splitlines()
NOTEBOOKS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "notebooks").glob("*.ipynb"))
# The path as pyproject.toml has it, and what graders and the processes of notebooks add.
SCRIPTS = "notebooks/show/rank_scripts"
ROOTS = ("", "lessons", "notebooks", "tests/exercises", "tests/exercises/sandbox", SCRIPTS)


def installed_modules():
    """The modules of the packages in requirements.txt, and of the packages that those need."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    waiting = [Requirement(line) for line in lines if not line.startswith("#")]
    packages = set()
    while waiting:
        requirement = waiting.pop()
        name = re.sub("[-_.]+", "-", requirement.name).lower()
        if name in packages:
            continue
        packages.add(name)
        try:
            needs = [Requirement(need) for need in metadata.requires(name) or []]
        except metadata.PackageNotFoundError:
            continue  # for another system or Python
        extras = requirement.extras or {""}
        waiting += [
            need
            for need in needs
            if not need.marker or any(need.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    found = metadata.packages_distributions().items()
    return {
        module
        for module, names in found
        if packages & {re.sub("[-_.]+", "-", name).lower() for name in names}
    }


@functools.cache
def code_of(name):
    """The tree of a script, or of a notebook's cells."""
    text = (ROOT / name).read_text()
    if name.endswith(".ipynb"):
        cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        lines = [line for cell in cells if not cell[0].startswith("%%") for line in [*cell, "\n"]]
        text = "".join(line for line in lines if not line.startswith(("%", "!")))
    return ast.parse(text)


def imported(nodes):
    """All modules that these statements import, with the names that they take out of a module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def place_of(module, file):
    """The file or folder of a module, if it is one of ours: in a root of the path, or beside a script."""
    is_in_a_package = re.match(r"tools/(?!bench/)|tests/(?!exercises/|probes/)", file)
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


def test_what_requirements_txt_installs_is_enough_to_import_each_file():
    known = installed_modules() | set(sys.stdlib_module_names)
    assert "torch" in known and "yaml" in known and "safetensors" not in known
    found = {}
    for file in FILES:
        for module in imported(code_of(file).body):  # unconditionally, as soon as it is run or imported
            if module.partition(".")[0] not in known and not place_of(module, file):
                found.setdefault(file, set()).add(module.partition(".")[0])
    found.pop("tools/site/theme/conf.py")  # the site has an environment of its own
    # What their notebook or their test puts beside them.
    assert found.pop("notebooks/show/travel/count.py") == {"ring", "server"}
    assert found.pop("tests/probes/own_script.py") == {"snapshot"}
    # Nobody can install what these two show.
    assert found.pop("lessons/older/horovod_ddp.py") == {"horovod"}
    assert found.pop("lessons/older/apex_amp.py") == {"apex"}
    assert found == {}


# What the files of a folder may import, as CONTRIBUTING.md says. The longest folder that fits a file counts.
MAY = {
    "lessons": ("lessons",),
    "lessons/workload": ("lessons/workload",),
    "lessons/parts": ("lessons/workload", "lessons/parts"),
    "solutions": (),
    "notebooks": ("lessons", "notebooks", "tools/testbed"),
    "tools": ("lessons", "tools"),
    "tests": ("lessons", "notebooks", "tools", "tests"),
    "tests/exercises": ("tests/exercises",),  # Gradescope gets this folder alone
}
EXCEPTIONS = {
    ("notebooks/show/s07a_fewer_bytes.py", "tools/bench/slow_links.py"),  # 07a shows what it has measured
    ("tools/diffs.py", "notebooks/show/sentences.py"),  # it writes diffs into notebooks: their sentences
    ("tools/diffs.py", "notebooks/show/text.py"),  # and their form
    ("tools/pictures.py", "notebooks/show/pictures.py"),  # the README shows the ring of notebook 03a:
    ("tools/pictures.py", "notebooks/show/s03a_rings.py"),  # the two pictures are one
}


def test_arrows_run_from_tests_to_tools_to_lessons():
    """And nothing imports tests, or takes functions out of their files."""
    found = set()
    for file in [*FILES, *NOTEBOOKS]:
        tree = code_of(file)
        may = MAY[max((name for name in MAY if file.startswith(f"{name}/")), key=len)]
        for module in imported(ast.walk(tree)):
            place = place_of(module, file)
            if place and not any(f"{place}/".startswith((f"{name}/", f"{name}.")) for name in may):
                found.add((file, place))
        words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        paths = {word for word in words if isinstance(word, str) and re.fullmatch(r"tests/\S+\.py", word)}
        found |= {(file, path) for path in paths if not file.startswith("tests/")}
    assert found == EXCEPTIONS


def test_no_two_modules_have_one_name():
    paths = [path for root in ROOTS for path in (ROOT / root).iterdir() if path.stem.isidentifier()]
    names = Counter(path.stem for path in paths if path.suffix == ".py" or any(path.glob("*.py")))
    # Two folders of scripts, which nothing imports.
    assert [name for name, count in names.items() if count > 1] == ["recipes"]


# Who edits sys.path, and for what. Scripts in folders of lessons do it to find what all lessons share.
EDITS = {
    "notebooks/show/__init__.py": "lessons, for the cells of notebooks",
    "notebooks/show/s07a_fewer_bytes.py": "tools: see EXCEPTIONS",
    "notebooks/10_pipeline.ipynb": "a file that a cell has written",
    "notebooks/10a_stale_weights.ipynb": "a file that a cell has written",
    "tests/exercises/grader/__init__.py": "the sandbox, which a submission's process imports",
    "tests/exercises/sandbox/zygote.py": "the same, in that process",
    "tests/probes/port_page_lines.py": "what lies beside the script of a page whose lines it runs",
    "tools/__init__.py": "lessons, and notebooks for EXCEPTIONS",
    "tools/bench/variant.py": "what lies beside the lesson in whose stead it runs",
    "tools/testbed/forks.py": "what lies beside the script that a fork runs",
    "tools/testbed/simulated_gpus/pretend.py": "the folder into which the device is compiled",
    "tools/testbed/threads_at_exit/sitecustomize.py": "pretend.py, in processes that know nothing of tools",
    "tools/testbed/victim.py": "what lies beside the lesson in whose stead it runs",
}


def test_few_edit_the_path_and_none_outside_of_tests_puts_tests_on_it():
    edit = r"sys\.path(\.(append|insert|extend)\(|\[.*?\] = | \+?= )"
    found = []
    for file in [*FILES, *NOTEBOOKS]:
        kinds = ast.Expr | ast.Assign | ast.AugAssign
        lines = [ast.unparse(node) for node in ast.walk(code_of(file)) if isinstance(node, kinds)]
        edits = [line for line in lines if re.match(edit, line)]
        found += [file] * (0 if file.startswith("lessons/") else len(edits))
        assert file.startswith("tests/") or not re.search(r"\btests\b", " ".join(edits)), file
    assert sorted(found) == sorted(EDITS)


@pytest.mark.parametrize("file", ["lessons/frameworks/ray_ddp.py", "lessons/recipes/lora.py"])
def test_a_script_that_needs_more_says_what_to_install(file):
    program = "import runpy, sys; sys.modules.update(ray=None, safetensors=None); runpy.run_path(sys.argv[1])"
    result = subprocess.run([sys.executable, "-c", program, ROOT / file], capture_output=True, text=True)
    assert result.returncode == 1 and result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    needed = ROOT / re.search(r"pip install -r (\S+)", result.stderr)[1]
    assert ("ray" in file) == ("ray" in needed.read_text())
