"""What the notebook on fewer bytes stands on: the ways to say less, and what was measured on slow links."""

import copy
import json
import shutil
import sys

import matplotlib
import slow_links

import hosts

matplotlib.use("agg")
import pytest

import launcher
import notebooks

sys.path.insert(0, str(launcher.ROOT / "notebooks"))
from show.processes import ranks
from show.text import Table

STEM = "07a_fewer_bytes"


@pytest.mark.long
def test_what_should_be_the_same_is_the_same(tmp_path):
    """Weights averaged after each step are DDP's, since SGD is linear in the gradients; and DiLoCo with an
    outer rate of 1 and no momentum is local SGD."""
    ways = ["ddp", "local_sgd 1", "local_sgd 5", "diloco 5 1 1e-9"]
    runs = [{"way": way, "epochs": 1, "look_every": 5} for way in ways]
    script = shutil.copy(slow_links.SCRIPT, tmp_path)
    asked = {"RUNS": json.dumps(runs), "SIZES": "[2400, 100]"}
    found = ranks(script, 2, limit=100, environment=asked, quiet=True)[0].result
    ddp, each_step, local, diloco = ([row["loss"] for row in rows] for rows in found)
    assert each_step == pytest.approx(ddp, rel=1e-5) and diloco == pytest.approx(local, rel=1e-5)
    assert local != pytest.approx(ddp, rel=3e-5)


def test_the_notebook_shows_what_the_newest_file_holds():
    result = slow_links.newest()
    cells = notebooks.read(notebooks.FOLDER / f"{STEM}.ipynb").cells
    said = [text for cell in cells for text in notebooks.texts(cell)]
    shown = Table(slow_links.head(result), slow_links.table(result))
    assert shown._repr_markdown_() in said, f"make notebooks ARGUMENTS={STEM}"
    for number, row in enumerate(result["rows"]):
        assert row["ends"] and {"seconds", "sent", "step", "accuracy"} <= set(row["ends"][0])
        other = copy.deepcopy(result)
        other["rows"][number]["ends"] = [end | {"seconds": 1e6, "accuracy": 0.98} for end in row["ends"]]
        assert slow_links.table(other) != slow_links.table(result), "a row that no line shows"


def test_seconds_are_the_middle_of_those_who_got_there():
    ends = [{"seconds": seconds, "accuracy": 0.97} for seconds in (1.0, 9.0, 2.0)]
    assert slow_links.seconds({"ends": ends}) == 2
    assert slow_links.seconds({"ends": [*ends, {"seconds": 1.0, "accuracy": 0.96}]}) == float("inf")


@pytest.mark.night
def test_a_slow_link_is_as_slow_as_it_says(tmp_path):
    """20 steps of DDP send 20 x 129 KB from each of two hosts; local SGD sends that once."""
    if hosts.why_not():
        pytest.skip(hosts.NEEDED)
    runs = [{"way": way, "epochs": 1, "look_every": 20} for way in ("ddp", "local_sgd")]
    ddp, local = (rows[0] for rows in slow_links.on_two_hosts(tmp_path, "10mbit", runs, (2400, 100)))
    assert 20 * 129_128 < ddp["sent"] < 1.05 * 20 * 129_128 and 19 < ddp["sent"] / local["sent"] < 21
    assert ddp["seconds"] > 0.9 * 8 * ddp["sent"] / 10e6
