"""How a process ends: no worker thread of gloo is left when Python does, for one may abort the process.

Its other thread, gloo_tcp_loop, only moves bytes: it holds no tensors and never needs Python's lock.
"""

import os
import subprocess

import pytest

import exits
import launcher
import lessons

TOGETHER = [lesson for lesson in lessons.LESSONS if not lesson.is_one_process()]

# Python reads this file before the lesson, and runs `look` after the lesson and before it ends itself.
WITNESS = """
import atexit, os, sys
from pathlib import Path


def look():
    if "torch.distributed" in sys.modules and sys.modules["torch.distributed"].is_initialized():
        left = "a process group"
        return Path(os.environ["SEEN"], str(os.getpid())).write_text(left)
    threads = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
    left = " ".join(name for name in threads if name == "pt_gloo_runloop")
    Path(os.environ["SEEN"], str(os.getpid())).write_text(left)


if "TRAINS" in os.environ and ("RANK" in os.environ or "--multiprocessing-fork" in sys.orig_argv):
    atexit.register(look)
"""


@pytest.mark.quick("04", "11")
@pytest.mark.parametrize("lesson", TOGETHER, ids=lambda lesson: lesson.number)
def test_no_worker_thread_of_gloo_outlives_the_process_group(lesson, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITNESS)
    seen = tmp_path / "seen"
    seen.mkdir()
    small = ("--epochs", 1, *lesson.small.split(), "--out", tmp_path / "out")
    words, environment = launcher.command(lesson.stem, 2, *small)
    environment |= {"PYTHONPATH": str(tmp_path), "SEEN": str(seen), "TRAINS": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        words,
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        check=True,
        timeout=200,
    )
    assert [file.read_text() for file in seen.iterdir()] == ["", ""]


@pytest.mark.long
def test_lesson_11_ends_well_ten_times():
    assert [exits.start(lessons.get("11_tensor_parallel"), 2)["status"] for _ in range(10)] == [0] * 10
