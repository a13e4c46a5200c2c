"""How processes end. Whether one has left a worker thread of gloo is looked at after every run that a test
starts: see conftest.py, and tools/testbed/threads_at_exit."""

import json
import os
import shutil
from pathlib import Path

import pytest

from show import processes
from tests.helpers.changed_lessons import lesson_with_a_bug
from tools import launcher, lessons
from tools.testbed import pretending

PROBE = launcher.ROOT / "tests" / "probes" / "leaves_a_group_behind.py"
RANK_SCRIPTS = launcher.ROOT / "notebooks/show/rank_scripts"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux says what threads are called")
def test_a_process_that_leaves_its_group_is_noticed(start):
    words, _ = launcher.command("04_ddp_torchrun", 1, script=PROBE)
    with pytest.raises(AssertionError, match=r"ended with .*a worker thread of gloo"):
        start(None, words=words).finish()


@pytest.mark.quick("04_ddp_torchrun-01")
@pytest.mark.long
@pytest.mark.parametrize(
    ("stem", "ranks"), [("03_ddp_spawn", "01"), ("04_ddp_torchrun", "01"), ("06_multinode", "1")]
)
def test_after_an_exception_no_thread_is_left_either(start, tmp_path, stem, ranks):
    """The lesson does not come to its last line, where it ends the group."""
    lesson_with_a_bug(tmp_path, stem, f"str(rank) in {ranks!r}", "raise ValueError('a bug')")
    sizes = (*lessons.get(stem).small.split(), "--epochs", 2)
    words, environment = launcher.command(stem, 2, *sizes)
    words = [word.replace(str(launcher.ROOT / "lessons"), str(tmp_path)) for word in words]
    run = start(stem, words=words, environment=environment)
    result = run.finish()
    assert result.code != 0 and "ValueError: a bug" in result.stderr
    if stem == "06_multinode":  # what @record is for
        report = result.stderr.partition("Root Cause (first observed failure):")[2]
        assert "ValueError: a bug" in report
    said = [path.read_text() for path in run.seen.iterdir()]  # two for each attempt: 06 is started again
    assert len(said) % 2 == 0 and set(said) == {""}


@pytest.mark.night
@pytest.mark.parametrize("name", ["s15_measure", "s07a_five_ways"])
def test_no_script_of_a_notebook_leaves_a_thread(tmp_path, name):
    folders = (pretending.AT_EXIT, launcher.ROOT / "lessons", RANK_SCRIPTS)
    environment = {"PYTHONPATH": os.pathsep.join(map(str, folders)), "SEEN": str(tmp_path / "seen")}
    (tmp_path / "seen").mkdir()
    runs = [{"way": "ddp", "epochs": 1, "look_every": 5}]
    environment |= {"RUNS": json.dumps(runs), "SIZES": "[240, 100]"}
    script = shutil.copy(RANK_SCRIPTS / f"{name}.py", tmp_path)
    found = processes.ranks(script, 2, limit=100, environment=environment, quiet=True)
    first, second = found
    assert first.code == second.code == 0
    threads = [file.read_text() for file in (tmp_path / "seen").iterdir()]
    assert threads == ["", ""]
