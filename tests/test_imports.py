"""What requirements.txt installs is enough to run the lessons and to start the tests."""

import ast
import re
import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from tools.lessons import ROOT

FILES = subprocess.check_output(["git", "ls-files", "*.py"], cwd=ROOT, text=True).splitlines()


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


def imported_first(path):
    """What a file imports, unconditionally, as soon as it is run or imported."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]


def test_what_requirements_txt_installs_is_enough_to_import_each_file():
    ours = {part.removesuffix(".py") for file in FILES for part in file.split("/")}
    known = installed_modules() | set(sys.stdlib_module_names) | ours
    assert "torch" in known and "yaml" in known and "safetensors" not in known
    found = {file: set(imported_first(ROOT / file)) - known for file in FILES}
    found = {file: modules for file, modules in found.items() if modules}
    found.pop("tools/site/theme/conf.py")  # the site has an environment of its own
    # Nobody can install what these two show.
    assert found.pop("lessons/older/horovod_ddp.py") == {"horovod"}
    assert found.pop("lessons/older/apex_amp.py") == {"apex"}
    assert found == {}


@pytest.mark.parametrize("file", ["lessons/frameworks/ray_ddp.py", "lessons/recipes/lora.py"])
def test_a_script_that_needs_more_says_what_to_install(file):
    program = "import runpy, sys; sys.modules.update(ray=None, safetensors=None); runpy.run_path(sys.argv[1])"
    result = subprocess.run([sys.executable, "-c", program, ROOT / file], capture_output=True, text=True)
    assert result.returncode == 1 and result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    needed = ROOT / re.search(r"pip install -r (\S+)", result.stderr)[1]
    assert ("ray" in file) == ("ray" in needed.read_text())
