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


def passed(run):
    return set(re.findall(r"::test_(\S+) PASSED", run.stdout))


@pytest.mark.quick("long")
@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--tier", "quick"], {"without_a_mark", "cases[2]"}),
        (["--tier", "long"], {"without_a_mark", "cases[2]", "long", "cases[4]", "cases[5]"}),
        (["-m", "night"], {"cases[3]", "cases[6]"}),
        (["--tier", "quick", "-k", "cases"], {"cases[2]"}),
        (["--room", "ladder", "-k", "without or test_long"], {"without_a_mark", "long"}),
    ],
    ids=["quick", "long", "marks", "keywords", "room"],
)
def test_a_tier_has_the_tests_that_it_should(pytest_in, words, expected):
    assert passed(pytest_in(TESTS, *words)) == expected


@pytest.mark.quick("two workers")
@pytest.mark.long
@pytest.mark.parametrize("words", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_the_end_says_what_was_left_out(pytest_in, words):
    lines = pytest_in(TESTS, "--tier", "quick", "-k", "cases", *words).stdout.splitlines()
    assert "left out: 4 tests (ladder 4)" in lines


@pytest.mark.long
def test_a_run_that_leaves_out_nothing_does_not_speak_of_it(pytest_in):
    assert "left out" not in pytest_in(TESTS).stdout


@pytest.mark.quick("no case")
@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('"4", "5"', '"4", "7"', "test_cases has no case 7"),
        ('@pytest.mark.quick("2")', '@pytest.mark.quick("4")', r"test_cases\[4\] is marked long and quick"),
        ("@pytest.mark.night", "@pytest.mark.alone", "when do the cases run that `quick` does not name"),
        ("@pytest.mark.long\n", '@pytest.mark.long("x")\n', "test_long has no case x"),
    ],
    ids=["no case", "two marks", "no rest", "no cases"],
)
def test_a_mark_that_means_nothing_is_an_error(pytest_in, old, new, error):
    assert old in TESTS
    run = pytest_in(TESTS.replace(old, new), "--tier", "quick")
    assert run.returncode == pytest.ExitCode.USAGE_ERROR and re.search(error, run.stdout + run.stderr)


@pytest.mark.long
def test_a_room_that_there_is_none_of_is_refused(pytest_in):
    run = pytest_in(TESTS, "--room", "attic")
    assert run.returncode and "there is no room 'attic': there are ladder, later" in run.stderr


# ---- rooms ------------------------------------------------------------------------------------


def homeless(paths):
    """The files that no room has, and the test files that not exactly one has."""
    found = [path for path in paths if not rooms.of_file(path)]
    for path in paths:
        if re.fullmatch(r"tests/(\w+/)?test_\w+\.py", path):
            globs = [glob for room in rooms.ROOMS.values() for glob in room["tests"]]
            found += [path] * (sum(rooms.fits(path, glob) for glob in globs) != 1)
    return found


@pytest.fixture(scope="module")
def files():
    """What git knows, and what it will know."""
    return rooms.git("ls-files", "--cached", "--others", "--exclude-standard") or pytest.fail(
        "git knows no file"
    )


def test_each_file_is_in_a_room(files):
    there = [path for path in files if (ROOT / path).exists()]
    assert homeless(there) == [], "add it to a room in tests/rooms.toml"


def test_a_file_in_no_room_is_found():
    new = ["lessons/new/a.py", "tests/new/test_a.py"]
    assert homeless([*new, "README.md", "tools/chaos.py"]) == [*new, new[1]]


def test_each_glob_of_a_room_fits_a_file(files):
    for name, room in rooms.ROOMS.items():
        for glob in room["tests"] + room["files"]:
            assert any(rooms.fits(path, glob) for path in files), f"{name}: {glob}"


def test_what_fits_a_glob():
    for path, glob, fits in (
        ("lessons/05_snapshots.py", "lessons/0[1-6]*.py", True),
        ("lessons/07_mixed_precision.py", "lessons/0[1-6]*.py", False),
        ("solutions/a/b.py", "solutions/**", True),
        ("solutions/a/b.py", "solutions/*", False),
        ("tools/chaos_py", "tools/chaos.py", False),
    ):
        assert rooms.fits(path, glob) == fits, (path, glob)


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
    assert rooms.changed("base", tmp_path) == ["ladder", "judge"]
    (tmp_path / "tools/chaos.py").write_text("2")  # not committed yet
    git("checkout", "base")
    commit("tools/site/build.py", "2")  # what others do meanwhile
    git("checkout", "work")
    assert rooms.changed("base", tmp_path) == ["ladder", "judge"]


# ---- what CI adds -----------------------------------------------------------------------------


def test_the_cheapest_rooms_come_first_until_the_seconds_are_used_up():
    judge, ladder = "tests/test_judge.py::", "tests/lessons/test_curve.py::"
    new = "tests/tools/test_site.py::new"
    seconds = {judge + "a": 90, judge + "b": 10, ladder + "a": 30, ladder + "b": 40}
    known = {name: [cost, 9, "night"] for name, cost in seconds.items()}
    names = [*known, new]
    cheapest = [new, ladder + "a", ladder + "b", judge + "b", judge + "a"]
    left = 500 - sum(seconds.values()) - tiers.NEW
    assert tiers.affordable(names, known, 500) == (cheapest, left)
    assert tiers.affordable(names, known, 100) == ([new, ladder + "a", judge + "b"], 0)
    assert tiers.affordable(names, known, 4) == ([], 4)


def test_stale_notebooks_come_before_the_nights_tests_of_rooms(monkeypatch):
    selection = object.__new__(tiers.Selection)
    selection.changed, selection.stale = ["ladder", "notebooks"], [f"{tiers.AFRESH}[03_ddp_spawn]"]
    names = [f"{tiers.AFRESH}[{stem}]" for stem in ("03_ddp_spawn", "04_ddp_torchrun")]
    names += ["tests/lessons/test_curve.py::a", "tests/test_judge.py::a"]
    monkeypatch.setattr(rooms, "costs", lambda: {names[0]: [100, 50, "night"]})
    monkeypatch.setattr(tiers, "SECONDS", 103)
    assert selection.added(names) == ([names[0]], [names[2]])
    monkeypatch.setattr(tiers, "SECONDS", 200)
    assert selection.added(names) == ([names[0], names[2]], [])


def test_the_test_that_executes_notebooks_has_the_name_that_is_looked_for():
    path, name = tiers.AFRESH.split("::")
    assert f"def {name}(path):" in (ROOT / path).read_text()
