"""The kill matrix, small. `make chaos KILLS=300` is the large one."""

import re

import pytest

import chaos


@pytest.mark.alone
@pytest.mark.quick("7")
@pytest.mark.parametrize("kills", [7, 20])
def test_a_run_survives_every_way_to_be_killed(forks, tmp_path, kills):
    """In small: each kind once, on two processes. Alone: whom the machine lets wait for three
    seconds is taken for hung."""
    small = {"kinds": dict.fromkeys(chaos.KINDS, 1), "processes": (2,)} if kills == 7 else {}
    rows = chaos.chaos(kills, tmp_path, forks=forks, **small)
    chaos.show(rows)
    assert len(rows) == kills
    assert {row["kind"] for row in rows} == set(chaos.KINDS)
    assert {row["processes"] for row in rows} == ({2} if small else {2, 4})
    assert max(row["seconds"] for row in rows if row["kind"] != "SIGSTOP") < 10


def test_a_failure_names_its_seed_and_leaves_nothing_running(forks, tmp_path, monkeypatch, capsys):
    """All tests of a session share one server: the next one would read the answer of the run that failed."""
    runs = []

    def strike(run, kind, chance):
        chaos.wait_for(run, run.steps, "a step")
        runs.append(run)
        raise AssertionError("on purpose")

    monkeypatch.setattr(chaos, "strike", strike)
    with pytest.raises(AssertionError, match="on purpose"):
        chaos.chaos(1, tmp_path, processes=(1,), forks=forks)
    assert [run.ended() for run in runs] == [True]
    assert re.search(r"^1 kills, seed \d+$", capsys.readouterr().out, re.M)
    (tmp_path / "next.py").write_text("raise SystemExit(3)\n")
    assert forks.run(["python", str(tmp_path / "next.py")], tmp_path, {}, limit=20) == (3, [])
