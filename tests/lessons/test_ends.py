"""How processes end. Whether one has left a worker thread of gloo is looked at after every run that a test
starts: see conftest.py, and helpers/witness."""

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


@pytest.mark.long
def test_lesson_11_ends_well_ten_times():
    """It was the one that aborted most often: one time in seven."""
    with ThreadPoolExecutor(2) as pool:
        runs = pool.map(lambda _: exits.start(lessons.get("11_tensor_parallel"), 2), range(10))
    assert [run["status"] for run in runs] == [0] * 10
