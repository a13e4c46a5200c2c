"""What the prose of notebook 05 says about its outputs, wherever it was executed."""

import difflib
import re

import matplotlib.pyplot as plt

from show import crashes
from tests.helpers.shown import alts, printed, table
from tools import notebooks
from tools.lessons import ROOT


def test_a_snapshot_that_lacks_a_part_leads_to_another_run():
    rows = table("05_snapshots", "left out")
    assert [same for same, *_ in rows.values()] == ["True"] + ["False"] * 5
    assert float(rows["optimizer, scheduler, epoch"][-1]) < float(rows["nothing"][-1])
    drift = next(alt for alt in alts("05_snapshots") if alt.startswith("How far the weights"))
    assert "without scheduler, from step 17 on" in drift and drift.count("from step 1 on") == 3


def test_the_killed_run_resumes_and_a_finished_one_has_nothing_to_do():
    text = printed("05_snapshots")
    assert text.count("resumed after epoch 1\n") == 3 and "exitcode: -9) local_rank: 1" in text
    assert text.count("resumed after epoch 3\nnothing is left to train") == 1
    assert re.search(r"\n0 of \d+ losses differ", text)
    written = dict(re.findall(r"(in_place|renamed): (\d+) of 12 files are incomplete", text))
    assert int(written["in_place"]) > 0 and written["renamed"] == "0"


def test_the_script_with_a_diary_is_the_lesson_and_a_diary():
    lesson = (ROOT / "lessons/05_snapshots.py").read_text().splitlines()
    diary = (ROOT / "notebooks/show/with_diary/05_snapshots.py").read_text().splitlines()
    lesson, diary = (lines[lines.index("import os") :] for lines in (lesson, diary))
    changed = [line for line in difflib.ndiff(lesson, diary) if line[0] in "+-"]
    assert [line[0] for line in changed] == ["-", "+", "+", "+", "+"]
    assert "in workload.progress" in changed[0] and "enumerate(workload.progress" in changed[1]
    prose = notebooks.sources(notebooks.read(notebooks.FOLDER / "05_snapshots.ipynb"), "markdown")
    assert "\n".join(line[2:] for line in changed[2:]) in prose


def test_the_picture_of_a_snapshot_adds_up_to_the_file():
    sizes = {}
    for key, (_, size) in table("05_snapshots", "key").items():
        sizes[key.strip("`")] = int(size.replace(",", ""))
    (drawn,) = [alt for alt in alts("05_snapshots") if "bytes of the snapshot, to scale" in alt]
    whole, model, optimizer, rest, small = (
        int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", drawn)
    )
    assert (model, optimizer) == (sizes["model"], sizes["optimizer"])
    assert small == sizes["scheduler"] + sizes["epoch"]
    assert model + optimizer + rest == whole
    assert f"the file: {whole:,} bytes" in printed("05_snapshots")


def test_the_picture_of_the_losses_marks_the_snapshot_and_the_kill(monkeypatch):
    said = []
    monkeypatch.setattr(crashes, "picture", said.append)
    whole = [(step, 0.0, 2.5 - step / 10) for step in range(1, 13)]
    crashes.draw_loss(whole, before=whole[:9], after=whole[6:], same_bytes=True)
    axes = plt.gca()
    texts = [text.get_text() for text in axes.texts]
    marked = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]
    plt.close("all")
    assert marked == [6, 9]
    assert "killed after step 9" in texts and "resumed from\nthe snapshot\nof step 6" in texts
    assert "after step 9 and resumes from the snapshot of step 6, so it takes 3 steps twice" in said[0]


def test_the_picture_of_the_learning_rates_shows_what_the_text_says():
    (drawn,) = [alt for alt in alts("05_snapshots") if alt.startswith("The learning rates of the epochs")]
    rates = {}
    for title, numbers in re.findall(r"(?:: |; )([a-z ]+?) ([\d., ]+\d)", drawn):
        rates[title] = [float(number) for number in numbers.split(", ")]
    right = rates["nothing left out"]
    assert rates["without scheduler"][0] == right[0] and rates["without scheduler"][1] > right[1]
    assert rates["without epoch"][:2] == right and len(rates["without epoch"]) == 3
    assert rates["only the model"][0] == 0.04 and len(rates["only the model"]) == 3
