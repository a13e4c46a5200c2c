"""The kill matrix, small. `make chaos KILLS=300` is the large one."""

import signal
import subprocess
import sys
import threading

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


def test_a_run_is_ended_even_if_its_agent_has_not_written_its_number_yet(tmp_path):
    """All tests share one fork server, so a run that goes on would disturb the next test."""
    run = object.__new__(chaos.Run)
    run.folder = tmp_path
    agent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    run.thread = threading.Thread(target=agent.wait)
    run.thread.start()
    number = threading.Timer(0.5, (tmp_path / ".pid").write_text, [str(agent.pid)])
    number.start()
    try:
        run.end()
        assert run.ended()
    finally:
        agent.kill()
        number.join()
        run.thread.join()
    assert agent.returncode == -signal.SIGKILL


@pytest.mark.night
def test_a_run_survives_twenty_kills(forks, tmp_path):
    rows = chaos.chaos(20, tmp_path, forks, limit=20)
    assert len(rows) == 20
    assert set(column(rows, "kind")) == set(chaos.KINDS)
    assert set(column(rows, "processes")) == {2, 4}
