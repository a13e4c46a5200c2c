"""Where the time of a step goes: each cause of a slow run is named, and a run without one has none."""

import re

import pytest

from tools import launcher

TOOL = launcher.ROOT / "lessons/launch/step_times.py"
CAUSES = {
    "loader": "look at the loader: a step waits ",
    "straggler": "look at rank 1: it computes ",
    "large": "look at the communication: the size of the gradients, and the links",
    "small": "look at the communication: the number of messages",
}


@pytest.mark.long
@pytest.mark.alone  # it compares times
@pytest.mark.parametrize("cause", CAUSES)
def test_a_slow_run_names_its_cause(forked, cause):
    words, _ = launcher.command("04_ddp_torchrun", 2, "--cause", cause, script=TOOL)
    result = forked(words)
    assert result.code == 0, result.stderr
    assert CAUSES[cause] in result.stdout, result.stdout
    assert re.findall(r"(?m)^ +(\d)  \S", result.stdout) == ["0", "1"], "a line for each rank"


@pytest.mark.long
@pytest.mark.alone
def test_one_process_has_nothing_to_communicate(forked):
    words, _ = launcher.command("04_ddp_torchrun", 1, script=TOOL)
    result = forked(words)
    assert "not hide: 0.00 ms, 0% of a step" in result.stdout, result.stdout + result.stderr
    assert "look at rank" not in result.stdout
