"""What `make setup` says to a Python that requirements.txt is not for, and what a checkout has on Windows."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.lessons import ROOT

CURE = "Type: rm -rf .venv; {} -m venv .venv; source .venv/bin/activate\n"


def pretend(path, version, gil_disabled=0):
    """A program that answers as Python of this version would; its other answers are this Python's."""
    lines = [
        "import platform, sys, sysconfig",
        f"sys.version_info = tuple(map(int, {version!r}.split('.')))",
        f"platform.python_version = lambda: {version!r}",
        f"sysconfig.get_config_var = lambda name: {gil_disabled}",
    ]
    program = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(chr(10).join(lines))}"\n$2"\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(program)
    path.chmod(0o755)


@pytest.fixture
def make(tmp_path):
    """`make setup` in a copy that has nothing else, with these programs and the shell's, and no others."""
    for name in ("Makefile", "requirements.txt", "tools/python.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "awk", "sed", "uname"):
        (programs / name).symlink_to(shutil.which(name))

    def make():
        words = [shutil.which("make"), "setup"]
        return subprocess.run(
            words, cwd=tmp_path, env={"PATH": str(programs)}, capture_output=True, text=True, timeout=60
        )

    make.programs, make.folder = programs, tmp_path
    return make


@pytest.mark.parametrize("version", ["3.9.6", "3.15.0"])
@pytest.mark.parametrize("other", ["python3.14", None])
def test_another_python_is_refused_with_what_to_type(make, version, other):
    pretend(make.programs / "python3", version)
    if other:
        pretend(make.programs / other, "3.14.0")
    result = make()
    first, *_ = result.stderr.splitlines(keepends=True)
    assert result.returncode != 0
    assert first.startswith(f"error: python3 is Python {version}, and Python 3.11 to 3.14 is needed. ")
    assert first.endswith(CURE.format(other or "python3.13").replace("Type", "Type" if other else "type"))
    assert ("brew install python@3.13" in first) == (other is None)


def test_an_environment_of_a_wrong_python_is_not_used_for_ever(make):
    """As README's first command makes it where python3 is another one."""
    pretend(make.programs / "python3", "3.12.1")
    pretend(make.folder / ".venv/bin/python", "3.9.6")
    first, *_ = make().stderr.splitlines(keepends=True)
    assert first.startswith("error: .venv/bin/python is Python 3.9.6, ")
    assert first.endswith(CURE.format("python3"))
    (make.folder / ".venv/bin/python").unlink()
    (make.folder / ".venv/bin/python").symlink_to("/nowhere/python3.13")  # Homebrew has removed it
    assert make().stderr.startswith("error: there is no .venv/bin/python that starts. Type: rm -rf .venv; ")


def test_the_free_threaded_build_is_refused(make):
    pretend(make.programs / "python3", "3.14.0", gil_disabled=1)
    assert "is the free-threaded build of Python 3.14.0, for which grpcio has no wheel" in make().stderr


def test_a_machine_without_python_is_told_what_to_install(make):
    first, *_ = make().stderr.splitlines()
    assert first.startswith("error: there is no python3 that starts. Install Python 3.13 (macOS: brew ")


@pytest.mark.parametrize("version", ["3.11.0", "3.14.9"])
def test_the_pythons_of_the_readme_are_accepted(make, version):
    pretend(make.programs / "python3", version)
    assert "error: python3" not in make().stderr


@pytest.mark.parametrize(
    ("processor", "version", "fits"),
    [("arm64", "14.0", True), ("arm64", "26.1", True), ("arm64", "13.7.4", False), ("x86_64", "15.1", False)],
)
def test_a_mac_for_which_there_is_no_pytorch_is_told_so(make, processor, version, fits):
    pretend(make.programs / "python3", "3.13.1")
    (make.programs / "uname").unlink()
    said = f'[ "$1" = -m ] && echo {processor} || echo Darwin'
    for name, text in (("uname", said), ("sw_vers", f"echo {version}")):
        (make.programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (make.programs / name).chmod(0o755)
    refusal = f"error: PyTorch 2.13 needs Apple silicon and macOS 14 or newer, and this is macOS {version} on"
    assert make().stderr.startswith(refusal) != fits


def test_git_for_windows_checks_out_the_lines_that_bash_reads(tmp_path):
    options = ("-c", "core.autocrlf=true", "-c", "core.eol=crlf")
    files = [
        "lessons/launch/two_terminals.sh",
        "tools/install_for_tests.sh",
        "lessons/launch/slurm.sbatch",
        "Makefile",
    ]
    folder = tmp_path / "clone"
    words = ["git", *options, "clone", "--quiet", "--no-checkout", "--depth", "1", f"file://{ROOT}", folder]
    subprocess.run(words, check=True)
    shutil.copy(ROOT / ".gitattributes", folder)  # not committed yet, perhaps
    subprocess.run(["git", *options, "checkout", "HEAD", "--", *files], cwd=folder, check=True)
    for name in files:
        assert b"\r" not in Path(folder, name).read_bytes(), name
    assert os.access(folder / "tools/install_for_tests.sh", os.R_OK)
