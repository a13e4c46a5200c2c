"""Notebook 06 watches two torchrun launchers."""

import queue
import sys

import pytest

from launcher import ROOT

sys.path.insert(0, str(ROOT / "notebooks"))
from show.nodes import Watch, own_gpus


class Launcher:
    """Prints these lines, and notes that it was ended."""

    def __init__(self, *lines):
        self.news, self.ended = queue.Queue(), False
        for line in lines:
            self.news.put(line)

    def end(self):
        self.ended = True


def test_it_notes_what_is_worth_a_line(capsys):
    watch = Watch()
    lines = ("epoch  1 | loss 2\n", "[1] chatter\n", "resumed after epoch 2. And more\n", None)
    watch.launchers = {1: Launcher(*lines)}
    watch.until(lambda: watch.launchers[1].news.empty())
    noted = [(node, line) for _, node, line in watch.events]
    assert noted == [(1, "epoch  1 | loss 2"), (1, "resumed after epoch 2")]
    assert watch.first("resumed") == watch.events[1][0]
    assert "s  node 1 | resumed after epoch 2\n" in capsys.readouterr().out and not watch.launchers[1].ended


def test_it_ends_all_when_nothing_more_happens():
    watch = Watch()
    watch.launchers = {0: Launcher(), 1: Launcher()}
    with pytest.raises(AssertionError, match="nothing more happens"):
        watch.until(lambda: False, limit=0.1)
    assert all(launcher.ended for launcher in watch.launchers.values())


@pytest.mark.parametrize(
    ("count", "visible", "expected"),
    [
        (0, None, ["", ""]),
        (1, "5", ["", ""]),
        (2, None, ["0", "1"]),
        (8, None, ["0", "1"]),
        (2, "2,3", ["2", "3"]),
    ],
)
def test_launchers_get_gpus_that_the_reader_may_see(monkeypatch, count, visible, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert own_gpus(count) == expected
