"""Each test runs when it should, and each file is in a room."""

import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

import rooms
import tiers
from lessons import ROOT

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
    """Run pytest with our conftest.py on a file of tests, as one of the room `ladder`."""

    def run(text, *words):
        path = tmp_path / "tests/lessons/test_curve.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        # A copy: the processes of the run that this test belongs to hold a lock on the file itself.
        shutil.copy(ROOT / "tests/conftest.py", tmp_path)
        places = os.pathsep.join([str(tmp_path), *(str(ROOT / name) for name in ("tests/helpers", "tools"))])
        options = ("-v", "-c", os.devnull, "--rootdir", tmp_path, "--confcutdir", tmp_path)
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, *words, path],
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


@pytest.mark.quick("long")
@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--tier", "long"], {"without_a_mark", "cases[2]", "long", "cases[4]", "cases[5]"}),
        (["--tier", "quick", "--room", "ladder", "-k", "cases"], {"cases[2]"}),
        (["--room", "grader"], set()),
    ],
    ids=["long", "quick", "room"],
)
def test_a_tier_has_the_tests_that_it_should(pytest_in, words, expected):
    said = pytest_in(TESTS, *words).stdout
    assert set(re.findall(r"::test_(\S+) PASSED", said)) == expected
    assert ("left out" in said) == ("--tier" in words)


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
    assert "1 passed, 1 skipped" in pytest_in(body, "--tier", "quick", *few).stdout
    (tmp_path / "tool").touch()
    for _ in range(2):
        said = pytest_in(body, "--tier", "long", "--not-again", *few).stdout
        assert set(re.findall(r"PASSED \S*::test_(\w+)", said)) == {"needs_a_tool", "long"}


def test_a_mark_that_names_no_case_is_an_error(pytest_in):
    run = pytest_in(TESTS.replace('"4", "5"', '"4", "7"'), "--tier", "quick")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_cases has no case 7" in run.stdout + run.stderr


# ---- rooms ------------------------------------------------------------------------------------


def homeless(paths):
    """The files that no room has, and the test files that not exactly one has."""
    found = [path for path in paths if not rooms.of_file(path)]
    for path in paths:
        if re.fullmatch(r"tests/(\w+/)?test_\w+\.py", path):
            globs = [glob for room in rooms.ROOMS.values() for glob in room["tests"]]
            found += [path] * (sum(rooms.fits(path, glob) for glob in globs) != 1)
    return found


def test_each_file_is_in_a_room():
    """What git knows, and what it will know."""
    files = rooms.git("ls-files", "--cached", "--others", "--exclude-standard")
    assert "README.md" in files and not rooms.fits("lessons/parts/mesh.py", "lessons/*.py")
    there = [path for path in files if (ROOT / path).exists()]
    assert homeless(there) == [], "add it to a room in tests/rooms.toml"
    new = ["lessons/new/a.py", "tests/new/test_a.py", "tools/chaos_py"]
    assert homeless([*new, "README.md", "tools/chaos.py"]) == [*new, new[1]]


def test_a_clone_that_has_left_its_base_knows_which_rooms_have_changed(tmp_path):
    def git(*words):
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.com")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    def commit(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        git("add", ".")
        git("commit", "--message", name)

    git("init", "--initial-branch", "base")
    commit("tools/chaos.py", "1")
    assert rooms.changed("base", tmp_path) == [], "it has not left its base"
    assert rooms.changed("nowhere", tmp_path) == []
    git("checkout", "-b", "work")
    commit("solutions/04a_bug_hunt/bug_01.py", "1")
    commit("lessons/05_snapshots.py", "1")
    git("checkout", "base")
    commit("tools/site/build.py", "2")  # what others do meanwhile
    git("checkout", "work")
    assert rooms.changed("base", tmp_path) == ["ladder", "grader"]


# ---- what CI adds -----------------------------------------------------------------------------


def test_ci_adds_stale_notebooks_and_then_the_cheapest_of_rooms_that_have_changed(monkeypatch):
    selection = object.__new__(tiers.Selection)
    selection.changed, selection.stale = ["ladder", "notebooks"], [f"{tiers.AFRESH}[03_ddp_spawn]"]
    stale, fresh = (f"{tiers.AFRESH}[{stem}]" for stem in ("03_ddp_spawn", "04_ddp_torchrun"))
    dear, cheap, new, other = (f"tests/lessons/test_curve.py::{name}" for name in "abcd")
    other = other.replace("lessons/test_curve", "test_grader")
    seconds = {stale: 100, dear: 90, cheap: 30, fresh: 1, other: 1}
    monkeypatch.setattr(rooms, "costs", lambda: {name: [cost, 9, "night"] for name, cost in seconds.items()})
    left = 0
    for cost, name in ((100, stale), (30, cheap), (tiers.NEW, new), (90, dear)):
        monkeypatch.setattr(tiers, "SECONDS", left + cost - 1)
        assert name not in selection.added([*seconds, new])
        left += cost
    monkeypatch.setattr(tiers, "SECONDS", left)
    assert selection.added([*seconds, new]) == [stale, cheap, new, dear]


def test_the_test_that_executes_notebooks_has_the_name_that_is_looked_for():
    path, name = tiers.AFRESH.split("::")
    assert f"def {name}(path):" in (ROOT / path).read_text()
