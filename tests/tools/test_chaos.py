"""The kill matrix, small. `make chaos KILLS=300` is the large one."""

import pytest

import chaos


@pytest.mark.quick("7")
@pytest.mark.parametrize("kills", [7, 20])
def test_a_run_survives_every_way_to_be_killed(forks, tmp_path, kills):
    kinds = chaos.KINDS if kills > len(chaos.KINDS) else dict.fromkeys(chaos.KINDS, 1)  # each kind once
    rows = chaos.chaos(kills, tmp_path, seed=None, kinds=kinds, forks=forks)
    chaos.show(rows)
    assert len(rows) == kills
    assert {row["kind"] for row in rows} == set(chaos.KINDS)
    assert {row["processes"] for row in rows} <= {2, 4}
    assert max(row["seconds"] for row in rows if row["kind"] != "SIGSTOP") < 10
