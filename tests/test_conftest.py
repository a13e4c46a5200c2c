"""Each test runs when it should."""

import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from tools.lessons import ROOT

TESTS = """
    import pytest

    def test_without_a_mark(): pass

    @pytest.mark.long
    def test_long(): pass

    @pytest.mark.quick("2")
    @pytest.mark.long("4", "5")
    @pytest.mark.night
    @pytest.mark.parametrize("case", [2, 3, 4, 5, 6])
    def test_cases(case): pass
"""


@pytest.fixture
def pytest_in(tmp_path):
    """Run pytest with our conftest.py on a file of tests."""

    def run(text, *words, cases=()):
        path = tmp_path / "tests/test_it.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        # A copy: the processes of the run that this test belongs to hold a lock on the file itself.
        shutil.copy(ROOT / "tests/conftest.py", tmp_path)
        places = os.pathsep.join(map(str, [tmp_path, ROOT]))
        chosen = [f"{path}::test_{case}" for case in cases] or [path]
        options = ("-v", "-c", os.devnull, "--rootdir", tmp_path, "--confcutdir", tmp_path)
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, *words, *chosen],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": places},
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.parametrize(("allowed", "code"), [("needs a moon", 0), ("needs a sun", 1)])
def test_a_skip_is_listed_last_and_must_be_allowed(pytest_in, tmp_path, allowed, code):
    (tmp_path / "allowed.txt").write_text(f"# a comment\n{allowed}\n")
    body = "import pytest\ndef test_a(): pytest.skip('needs a moon')\ndef test_b(): pass\n"
    result = pytest_in(body, "--allowed-skips", tmp_path / "allowed.txt")
    assert result.returncode == code
    lines = result.stdout.splitlines()
    assert "   1  needs a moon" in lines[-3:]
    assert any("no test may be skipped because: needs a moon" in line for line in lines) == bool(code)


def test_a_test_that_is_marked_alone_runs_while_no_other_does(pytest_in, tmp_path):
    body = """
        import os, time, pytest
        def runs(name):
            begin = time.time()
            time.sleep(3 if name == "a" else 0.2)  # one is still at work when all others are over
            with open("times", "a") as file:
                print(name, begin, time.time(), os.getpid(), file=file)
        @pytest.mark.alone
        def test_alone(): runs("alone")
        @pytest.mark.parametrize("name", "abcdefgh")
        def test_beside(name): runs(name)
    """
    result = pytest_in(body, "-n", "4", "--dist", "worksteal")
    assert result.returncode == 0, result.stdout
    rows = [line.split() for line in (tmp_path / "times").read_text().splitlines()]
    times = {name: (float(begin), float(end)) for name, begin, end, _ in rows}
    begin, end = times.pop("alone")
    assert len(times) == 8 and len({pid for *_, pid in rows}) > 1
    assert all(ended < begin or end < began for began, ended in times.values())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-m", "quick or long"], {"without_a_mark", "cases[2]", "long", "cases[4]", "cases[5]"}),
        (["-m", "quick", "-k", "cases"], {"cases[2]"}),
    ],
)
def test_marks_choose_by_case(pytest_in, words, expected):
    said = pytest_in(TESTS, *words).stdout
    assert set(re.findall(r"::test_(\S+) PASSED", said)) == expected
    assert f'left out: what is not "{words[1]}"' in said


def test_whoever_asks_for_cases_gets_these(pytest_in):
    said = pytest_in(TESTS, "-n", "2", cases=["cases[3]", "cases[5]"]).stdout
    assert set(re.findall(r"PASSED \S*::test_(\S+)", said)) == {"cases[3]", "cases[5]"}, said


def test_what_has_passed_is_not_run_again(pytest_in, tmp_path):
    """CI runs the quick tests with requirements.txt alone, and all other tests after `make tools`."""
    body = """
        import pathlib, pytest
        def test_passes(): pass
        @pytest.mark.skipif(not pathlib.Path("tool").exists(), reason="needs a tool")
        def test_needs_a_tool(): pass
        @pytest.mark.long
        def test_long(): pass
    """
    few = ("-n", "2")
    assert "1 passed, 1 skipped" in pytest_in(body, "-m", "quick", *few).stdout
    (tmp_path / "tool").touch()
    for _ in range(2):
        said = pytest_in(body, "-m", "quick or long", "--not-again", *few).stdout
        assert set(re.findall(r"PASSED \S*::test_(\w+)", said)) == {"needs_a_tool", "long"}


def test_a_mark_that_names_no_case_is_an_error(pytest_in):
    run = pytest_in(TESTS.replace('"4", "5"', '"4", "7"'), "-m", "quick")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_cases has no case 7" in run.stdout + run.stderr
