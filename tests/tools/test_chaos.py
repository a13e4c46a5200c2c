"""The kill matrix, small. `make chaos KILLS=300` is the large one."""

import pytest

import chaos


@pytest.mark.quick("7")
@pytest.mark.parametrize("kills", [7, 20])
def test_a_run_survives_every_way_to_be_killed(forks, tmp_path, kills):
    """In small: each kind once, on two processes."""
    small = {"kinds": dict.fromkeys(chaos.KINDS, 1), "processes": (2,)} if kills == 7 else {}
    rows = chaos.chaos(kills, tmp_path, seed=None, forks=forks, **small)
    chaos.show(rows)
    assert len(rows) == kills
    assert {row["kind"] for row in rows} == set(chaos.KINDS)
    assert {row["processes"] for row in rows} == ({2} if small else {2, 4})
    assert max(row["seconds"] for row in rows if row["kind"] != "SIGSTOP") < 10
