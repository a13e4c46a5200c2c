"""What the prose of notebook 06a says about its outputs, wherever it was executed."""

import re

import matplotlib.pyplot as plt
import pytest

from show import s06a_repeated
from tests.helpers.shown import alts, printed, table


def test_only_the_sum_of_the_losses_may_be_left_out():
    rows = table("06a_any_step", "left out")
    same_weights = [name for name, row in rows.items() if row[0] == "True"]
    same_loss = [name for name, row in rows.items() if row[2] == "True"]
    assert same_weights == ["nothing", "loss so far"] and same_loss == ["nothing", "scheduler"]
    distances = {name: float(row[1]) for name, row in rows.items() if name not in same_weights}
    assert min(distances, key=distances.get) == "settle" and distances["settle"] < 1e-5
    drift = next(alt for alt in alts("06a_any_step") if alt.startswith("How far the weights"))
    assert "without scheduler, from step 11 on" in drift


def test_the_resumed_run_goes_on_after_step_30_with_the_same_losses():
    text = printed("06a_any_step")
    assert text.count("resumed in epoch 2 after step 30") == 2
    for uninterrupted, resumed, on_one in table("06a_any_step", "epoch").values():
        assert resumed == uninterrupted
        assert float(on_one) == pytest.approx(float(uninterrupted), rel=1e-5)


def test_what_else_its_cells_show():
    seen = table("06a_any_step", "")
    assert seen["the lesson"] == ["0", "4800", "0"]
    text = printed("06a_any_step")
    assert re.search(r"float32: .* the same: False", text) and re.search(r"float64: .* the same: True", text)
    one, other = re.findall(r"\([ac] \+ [ab]\) \+ [bc] = (\S+)", text)
    assert one != other
    in_memory, photos = map(float, re.search(r"skipped: ([\d.]+) s in memory, ([\d.]+) s", text).groups())
    assert photos > 10 * in_memory, "the prose calls only the images in memory cheap"


def test_the_picture_of_a_crash_counts_as_the_run_does(monkeypatch):
    said = []
    monkeypatch.setattr(s06a_repeated, "picture", said.append)
    s06a_repeated.draw_repeated(steps=40, every=15, killed_after=80)
    plt.close("all")
    assert "lesson 05 has snapshots after steps 40. It has saved 40 steps and repeats 40" in said[0]
    assert "lesson 06a has snapshots after steps 15, 30, 55, 70. It has saved 70 steps and" in said[0]
    assert "repeats 10, after skipping the 30 finished" in said[0]


def test_a_single_process_begins_with_the_mean_of_the_saved_sums():
    on_one = next(alt for alt in alts("06a_any_step") if alt.startswith("What a single process"))
    sums = re.findall(r"rank \d: loss sum ([\d.]+\d)", printed("06a_any_step"))
    assert len(sums) == 2
    mean, *saved = re.findall(r"\d+\.\d\d", on_one)
    assert saved == sums
    assert float(mean) == pytest.approx(sum(map(float, sums)) / 2, abs=0.011)
