"""Each test runs when it should, and no test is skipped unnoticed."""

import os
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests import conftest
from tools.lessons import ROOT
from tools.testbed import pretending

TESTS = """
import pytest

def test_without_a_mark(): pass

@pytest.mark.quick("2")
@pytest.mark.long("4", "5")
@pytest.mark.night
@pytest.mark.parametrize("case", [2, 3, 4, 5, 6])
def test_cases(case): pass

@pytest.mark.long
def test_skipped(): pytest.skip("needs a moon")
"""


@pytest.mark.parametrize(("allowed", "code"), [("needs a moon", 0), ("needs a sun", 1)])
def test_marks_choose_by_case_and_a_skip_must_be_allowed(tmp_path, allowed, code):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "allowed.txt").write_text(f"# a comment\n{allowed}\n")
    # A copy: the processes of the run that this test belongs to hold a lock on the file itself.
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    options = ["-v", "-c", os.devnull, "--rootdir", tmp_path, "--confcutdir", tmp_path]
    options += ["-m", "quick or long", "--allowed-skips", "allowed.txt"]
    words = [sys.executable, "-m", "pytest", *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [tmp_path, ROOT]))}
    run = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    passed = set(re.findall(r"::test_(\S+) PASSED", run.stdout))
    assert passed == {"without_a_mark", "cases[2]", "cases[4]", "cases[5]"}, run.stdout + run.stderr
    assert run.returncode == code and "   1  needs a moon\n" in run.stdout
    assert ("no test may be skipped because: needs a moon" in run.stdout) == bool(code)


@pytest.mark.parametrize(("gigabytes", "workers"), [(24, 5), (3.4, 2), (0.5, 1)])
def test_a_machine_with_little_memory_runs_fewer_tests_at_once(monkeypatch, gigabytes, workers):
    memory = SimpleNamespace(available=gigabytes * 1e9)
    monkeypatch.setattr(conftest.psutil, "virtual_memory", lambda: memory)
    assert conftest.pytest_xdist_auto_num_workers(None) == workers


@pytest.mark.parametrize(("command", "reason"), [("sleep 60", "needs GPUs that can exchange"), ("true", "")])
def test_gpus_that_hang_are_found_out_once_and_not_by_every_test(monkeypatch, command, reason):
    """The command stands for the preflight, which hangs where P2P is broken."""
    monkeypatch.setattr(pretending, "own_torchrun", lambda *words: command.split())
    said = pretending.cannot_talk.__wrapped__(limit=1)
    assert said.startswith(reason) and bool(said) == bool(reason)
