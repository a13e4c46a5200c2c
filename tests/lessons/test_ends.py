"""How processes end. Whether one has left a worker thread of gloo is looked at after every run that a test
starts: see conftest.py, and tools/witness."""

import json
import os
import runpy
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import rows

import launcher
import lessons
import pretending
from weights import lesson_with_a_bug

sys.path.insert(0, str(launcher.ROOT / "notebooks"))
from show import processes

PROBE = launcher.ROOT / "tests" / "probes" / "leaves_its_group.py"
INSIDE = launcher.ROOT / "notebooks/show/inside"


def test_a_process_that_leaves_its_group_is_noticed(start):
    words, _ = launcher.command("04_ddp_torchrun", 1, script=PROBE)
    with pytest.raises(AssertionError, match=r"ended with .*a worker thread of gloo"):
        start(None, words=words).finish()


def test_the_witness_looks_on_while_threads_end(tmp_path, monkeypatch):
    monkeypatch.setenv("SEEN", str(tmp_path))
    look = runpy.run_path(str(pretending.WITNESS / "sitecustomize.py"))["look"]
    deadline = time.monotonic() + 1

    def come_and_go():
        while time.monotonic() < deadline:
            threads = [threading.Thread(target=time.sleep, args=(0.0005,)) for _ in range(5)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(come_and_go)
        while not coming.done():
            look()
    assert (tmp_path / str(os.getpid())).read_text() == ""


def test_temporary_files_of_a_run_are_removed_after_it(forks, tmp_path):
    """torchrun leaves a folder there after each run: two thousand of them lay in /tmp once."""
    script = tmp_path / "temporary.py"
    script.write_text("import pathlib, tempfile\npathlib.Path('kept').write_text(tempfile.mkdtemp())\n")
    assert forks.run(["python", str(script)], tmp_path / "run", {}, limit=60) == (0, [])
    kept = Path((tmp_path / "run/kept").read_text())
    assert kept.is_absolute() and not kept.exists()


TOGETHER = [lesson for lesson in lessons.LESSONS if not lesson.is_one_process()]


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
    said = [path.read_text() for path in run.seen.iterdir()]  # two for each attempt: 06 is started again
    assert len(said) % 2 == 0 and set(said) == {""}


@pytest.mark.long("04", "06b", "09", "12")
@pytest.mark.night
@pytest.mark.parametrize("lesson", TOGETHER, ids=lambda lesson: lesson.number)
def test_no_lesson_leaves_a_thread(start, lesson):
    check_ends([start(lesson.stem, lesson.processes, "--epochs", 1, *lesson.small.split())], lesson)


def check_ends(runs, lesson):
    """Each process has looked at what it ended with, and found nothing."""
    for run in runs:
        result = run.finish()
        assert result.code == 0, result.stderr
        assert [path.read_text() for path in run.seen.iterdir()] == [""] * lesson.processes


@pytest.fixture
def witnessed(tmp_path):
    """What makes a process say what it ended with, and those words."""
    seen = tmp_path / "seen"
    seen.mkdir()
    folders = (pretending.WITNESS, launcher.ROOT / "lessons", INSIDE, INSIDE.parent / "travel")
    path = os.pathsep.join(map(str, folders))
    return {"PYTHONPATH": path, "SEEN": str(seen)}, lambda: [file.read_text() for file in seen.iterdir()]


@pytest.mark.night
@pytest.mark.parametrize("words", [("overlap.py", 2, 2), ("reduce.py",)], ids=lambda words: words[0])
def test_no_script_of_the_bench_leaves_a_thread(tmp_path, monkeypatch, witnessed, words):
    environment, said = witnessed
    monkeypatch.setattr(rows, "ENVIRONMENT", rows.ENVIRONMENT | environment)
    script, *arguments = words
    rows.start_ranks(script, tmp_path, *arguments)
    assert said() == ["", ""]


@pytest.mark.night
@pytest.mark.parametrize("name", ["inside/three_ways", "inside/few_bytes", "travel/count"])
def test_no_script_of_a_notebook_leaves_a_thread(tmp_path, witnessed, name):
    environment, said = witnessed
    runs = [{"way": "ddp", "epochs": 1, "look_every": 5}]
    environment |= {"RUNS": json.dumps(runs), "SIZES": "[240, 100]"}
    script = shutil.copy(INSIDE.parent / f"{name}.py", tmp_path)
    found = processes.ranks(script, 2, limit=100, environment=environment, quiet=True)
    assert [one.code for one in found] == [0, 0]
    assert said() == ["", ""]


@pytest.mark.night
def test_lesson_11_ends_well_again_and_again(start):
    """It was the one that aborted most often: one time in seven. What it aborted by is looked for too."""
    lesson = lessons.get("11_tensor_parallel")
    words = ("--epochs", 1, *lesson.small.split())
    for both in ("ab", "cd"):
        check_ends([start(lesson.stem, 2, *words, folder=folder) for folder in both], lesson)
