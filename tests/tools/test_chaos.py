"""The kill matrix, small. `make chaos KILLS=300` is the large one."""

import pytest

from tests.helpers.lines import column
from tools.makers import chaos

SOON = [kind for kind in chaos.KINDS if kind != "SIGSTOP"]


@pytest.mark.long
@pytest.mark.alone
def test_a_run_survives_every_way_to_be_killed_and_goes_on_soon(forks, tmp_path):
    """Each kind but SIGSTOP, once, on two processes. Alone: the seconds to the next step are measured."""
    rows = chaos.chaos(len(SOON), tmp_path, forks, processes=(2,), kinds=dict.fromkeys(SOON, 1))
    assert sorted(column(rows, "kind")) == sorted(SOON)
    assert set(column(rows, "processes")) == {2}
    assert max(row["seconds"] for row in rows) < 10


@pytest.mark.night
def test_a_run_survives_twenty_kills(forks, tmp_path):
    rows = chaos.chaos(20, tmp_path, forks, limit=20)
    assert len(rows) == 20
    assert set(column(rows, "kind")) == set(chaos.KINDS)
    assert set(column(rows, "processes")) == {2, 4}
