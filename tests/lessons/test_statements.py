"""What the pages say that torch does, where no error message is the point: torch does it."""

import json
import re
import signal
import sys

import pytest

from tests.lessons.test_errors import ENTRIES, PROBE, TORCHRUN, says
from tools import launcher
from tools.lessons import ROOT

COMMAND = launcher.command("04_ddp_torchrun", 1)[0][0]  # torchrun, of this environment
RECIPES = (ROOT / "lessons/pages/recipes.md").read_text()

# ---- page 03, notebook 04


def test_a_collective_that_only_rank_0_calls_meets_the_next_one_of_the_others(forked):
    """Page 03. Rank 1 then ends without an error, one collective early: rank 0 gets a dead peer's message."""
    result = forked([*TORCHRUN, "only_rank_0_sums"])
    assert result.stdout == "correct: 80.25\n"
    assert says(result.stderr, ENTRIES["Connection closed by peer"][0]), result.stderr


def test_what_torchrun_tells_its_processes(forked):
    """Notebook 04: without --standalone, too, it chooses a free port."""
    result = forked(["torchrun", "--nproc-per-node", "2", PROBE, "environment"])
    one, other = map(json.loads, result.stdout.splitlines())
    assert one["MASTER_PORT"] != "29500"
    differing = {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
    assert differing == {"RANK", "LOCAL_RANK", "ROLE_RANK", "TORCHELASTIC_ERROR_FILE"}


# ---- errors.md


@pytest.mark.long("both")
@pytest.mark.night
@pytest.mark.parametrize("protection", ["nohup", "option", "both"])
def test_only_nohup_and_the_option_together_survive_the_end_of_a_connection(start, protection):
    (words,) = re.findall(r"`(nohup torchrun --\S+ \S+) \.\.\.`", ENTRIES["got signal: 1"][1])
    before, _, *options = words.split()
    words = {"nohup": [before, COMMAND], "option": [COMMAND, *options], "both": [before, COMMAND, *options]}
    job = ["--standalone", "--nproc-per-node", 1, PROBE, "launcher_hangs_up"]
    # Where pytest itself was started with nohup, all that it starts would ignore the signal.
    heed = "import os, signal as s, sys; s.signal(s.SIGHUP, s.SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"
    result = start("", words=[sys.executable, "-c", heed, *words[protection], *job]).finish()
    assert result.code == {"nohup": 1, "option": -signal.SIGHUP, "both": 0}[protection], result.stderr


# ---- recipes.md, older


def test_two_calls_untie_weights_and_only_a_call_for_the_parent_reports_it(forked):
    assert forked([*TORCHRUN, "not_the_parent"], folder="one").stdout.split() == ["True"] * 2
    (quoted,) = re.findall(r"`ValueError: (Parameter 'decode.weight' .*?)`", RECIPES)
    result = forked([*TORCHRUN, "also_shards_the_parent"], folder="two")
    assert quoted.replace("decode.weight", "1.weight") in result.stderr
