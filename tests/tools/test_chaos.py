"""The kill matrix, small. `make chaos KILLS=300` is the large one."""

import chaos


def test_a_run_survives_every_way_to_be_killed(forks, tmp_path):
    rows = chaos.chaos(20, tmp_path, seed=None, forks=forks)
    chaos.show(rows)
    assert len(rows) == 20
    assert {row["kind"] for row in rows} == set(chaos.KINDS)
    assert {row["processes"] for row in rows} == {2, 4}
    assert max(row["seconds"] for row in rows if row["kind"] != "SIGSTOP") < 10
