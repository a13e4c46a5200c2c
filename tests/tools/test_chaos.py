"""The kill matrix, small. `make chaos KILLS=300` is the large one."""

import re

import pytest

import chaos

SOON = [kind for kind in chaos.KINDS if kind != "SIGSTOP"]


@pytest.mark.long
@pytest.mark.alone
def test_a_run_survives_every_way_to_be_killed_and_goes_on_soon(forks, tmp_path):
    """Each kind but SIGSTOP, once, on two processes. Alone: the seconds to the next step are measured."""
    rows = chaos.chaos(len(SOON), tmp_path, processes=(2,), kinds=dict.fromkeys(SOON, 1), forks=forks)
    chaos.show(rows)
    assert sorted(row["kind"] for row in rows) == sorted(SOON)
    assert {row["processes"] for row in rows} == {2}
    assert max(row["seconds"] for row in rows) < 10


@pytest.mark.long
def test_a_run_survives_a_process_that_is_stopped(forks, tmp_path):
    """It is noticed after the time limit, and torchrun waits 30 seconds more for its end."""
    only = {"SIGSTOP": 1}
    (row,) = chaos.chaos(1, tmp_path, processes=(2,), kinds=only, forks=forks, limit=20)
    assert row["seconds"] > 20


@pytest.mark.night
def test_a_run_survives_twenty_kills(forks, tmp_path):
    rows = chaos.chaos(20, tmp_path, forks=forks, limit=20)
    chaos.show(rows)
    assert len(rows) == 20
    assert {row["kind"] for row in rows} == set(chaos.KINDS)
    assert {row["processes"] for row in rows} == {2, 4}


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
