"""How processes end. Whether one has left a worker thread of gloo is looked at after every run that a test
starts: see conftest.py, and helpers/witness."""

import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

import exits
import launcher
import lessons

PROBE = launcher.ROOT / "tests" / "probes" / "leaves_its_group.py"


def test_a_process_that_leaves_its_group_is_noticed(start):
    words = [*launcher.command("04_ddp_torchrun", 1)[0][:-1], PROBE]
    with pytest.raises(AssertionError, match=r"ended with .*a worker thread of gloo"):
        start(None, words=words).finish()


def test_a_run_has_a_folder_for_temporary_files_of_its_own(forks, tmp_path):
    """torchrun leaves one there after each run: two thousand of them lay in /tmp once."""
    script, folder = tmp_path / "temporary.py", tmp_path / "run"
    script.write_text("import tempfile\nprint(tempfile.gettempdir())\n")
    assert forks.run(["python", str(script)], folder, {}, limit=60) == (0, [])
    assert (folder / ".out").read_text() == f"{folder}/.tmp\n"


@pytest.mark.long
def test_lesson_11_ends_well_ten_times(tmp_path, monkeypatch):
    """It was the one that aborted most often: one time in seven."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ThreadPoolExecutor(2) as pool:
        runs = pool.map(lambda _: exits.start(lessons.get("11_tensor_parallel"), 2), range(10))
    assert [run["status"] for run in runs] == [0] * 10
    assert not list(tmp_path.iterdir())
