"""How processes end. Whether one has left a worker thread of gloo is looked at after every run that a test
starts: see conftest.py, and helpers/witness."""

import os
import runpy
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import exits
import launcher
import lessons

PROBE = launcher.ROOT / "tests" / "probes" / "leaves_its_group.py"
WITNESS = launcher.ROOT / "tests" / "helpers" / "witness"


def test_a_process_that_leaves_its_group_is_noticed(start):
    words = [*launcher.command("04_ddp_torchrun", 1)[0][:-1], PROBE]
    with pytest.raises(AssertionError, match=r"ended with .*a worker thread of gloo"):
        start(None, words=words).finish()


def test_the_witness_looks_on_while_threads_end(tmp_path, monkeypatch):
    monkeypatch.setenv("SEEN", str(tmp_path))
    look = runpy.run_path(str(WITNESS / "sitecustomize.py"))["look"]
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


@pytest.mark.night
def test_lesson_11_ends_well_again_and_again(tmp_path, monkeypatch):
    """It was the one that aborted most often: one time in seven. What it aborted by is looked for too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda _: exits.start(lessons.get("11_tensor_parallel"), 2), range(4)))
    assert [run["status"] for run in runs] == [0] * 4
    assert [run["ended_with"] for run in runs] == [["", ""]] * 4
    assert not list(tmp_path.iterdir())
