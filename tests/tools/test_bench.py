"""The bench measures what it says, and its page says what the bench measured."""

import re
import statistics
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tools.lessons import ROOT
from tools.makers import machine, result_files
from tools.makers.bench import (
    bench,
    compare_machines,
    formatting,
    pictures,
    report,
    rows,
    scaling,
)

NAMED = report.named_file()


# ---- what is said is what was measured ----------------------------------------------------------


def test_the_page_and_the_picture_show_what_the_file_that_the_page_names_holds(tmp_path, monkeypatch):
    """They are what --readme writes from it, and nothing else on the page changes."""
    right, page = report.PAGE.read_text(), tmp_path / "README.md"
    page.write_text(right.replace(report.MARKS.search(right)[2], "old\n"))
    monkeypatch.setattr(report, "PAGE", page)
    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", "--readme", str(NAMED)])
    bench.main()
    assert page.read_text() == right, f"make bench ARGUMENTS='--readme {NAMED}'"
    for name in ("bench.svg", "scaling.svg"):
        picture = (ROOT / "lessons/pictures" / name).read_text()
        assert (tmp_path / name).read_text() == picture and "<svg" in picture


def test_the_notes_belong_to_the_file_that_the_page_shows():
    """And each speed in them is on the page above them, or in the file."""
    generated, notes = report.PAGE.read_text().split("## Notes on this run")
    about, measured = result_files.read(NAMED)
    assert f"the file of {about['date']}" in notes
    known = set()
    for row in measured:
        known.add(f"{statistics.median(row['repeats']):,.0f}")
        known.update(f"{value:,.0f}" for value in row["repeats"])
    for number in re.findall(r"\b\d+,\d{3}\b", notes):
        assert number in generated or number in known, number


SUMS = """
import torch, wires
from pieces import ring_in_pieces
import torch.distributed as dist
wires.meet()
groups, kept = [dist.new_group(), dist.new_group()], torch.empty(2, 4)
for length in (0, 1, 2, 12, 13, 100):  # empty chunks, and up to nine pieces of four numbers
    tensor = torch.arange(float(length)) * (wires.rank + 1)
    ring_in_pieces(tensor, groups, kept)
    ranks = wires.world_size * (wires.world_size + 1) // 2
    assert tensor.tolist() == [float(ranks * number) for number in range(length)], length
dist.barrier()
dist.destroy_process_group()
"""


def test_the_ring_in_pieces_is_right(tmp_path):
    environment = {"STORE": str(tmp_path / "store"), "WORLD_SIZE": "3"}
    environment["PYTHONPATH"] = str(ROOT / "notebooks/show/travel")
    words = [sys.executable, "-c", SUMS]
    ranks = [rows.begin(words, tmp_path, RANK=str(rank), **environment) for rank in range(3)]
    for process in ranks:
        rows.finish(process)


def test_scaling_compares_a_job_with_as_many_that_do_not_talk(tmp_path, monkeypatch):
    started = []

    def lesson(stem, count, folder, *words):
        started.append((count, words))

    monkeypatch.setattr(rows, "lesson", lesson)
    monkeypatch.setattr(rows, "finish", lambda process: None)
    monkeypatch.setattr(rows, "speed_of", lambda folder, stem: 100.0)
    assert scaling.speed(tmp_path, 1, 4, 120, ("--epochs", 2)) == 100
    assert scaling.speed(tmp_path, 4, 1, 120, ("--epochs", 2)) == 400
    batch = ("--epochs", 2, "--batch-size")
    assert started == [(4, (*batch, 120)), *[(1, (*batch, 30))] * 4]


def test_the_file_says_by_which_commit_and_keeps_every_repeat():
    about, measured = result_files.read(NAMED)
    assert NAMED.name == machine.file_name("bench", about)
    assert about["repeats"] >= 5 and len(about["commit"]) == 8, "a commit without changes"
    assert about["stolen"] < 0.05 and about["load_before"] < 0.5 * about["machine"]["cores"]
    for row in measured:
        assert len(row["repeats"]) == about["repeats"] and min(row["repeats"]) >= 0


def test_a_file_of_results_has_a_row_a_line_and_is_read_as_it_was_measured(tmp_path):
    found = {"speed": {"one": [1.5, 2], "two": [3, 4]}, "recovery": [5, 6]}
    result_files.write(tmp_path / "new" / "a.jsonl", {"date": "today"}, result_files.flat(found))
    assert len((tmp_path / "new" / "a.jsonl").read_text().splitlines()) == 4
    about, measured = result_files.read(tmp_path / "new" / "a.jsonl")
    assert about == {"date": "today"} and result_files.nested(measured) == found


def test_what_was_not_measured_is_left_out():
    about, found = report.read(NAMED)
    said = report.text(about, {"overlap": found["overlap"]}, NAMED)
    assert "## How much communication backward hides" in said and said.count("## ") == 1
    assert "bench.svg" not in said and "bench.svg" in report.text(about, found, NAMED)
    about["machine"]["bf16"] = False
    assert "in bf16 is" not in report.text(about, found, NAMED)


def test_ratios_follow_from_what_is_printed_and_an_outlier_has_a_star():
    assert formatting.ratio([1, 2, 30], [4, 4, 1]) == 0.5
    assert formatting.spread([1, 2, 3]) == "1 to 3" and formatting.spread([1, 2, 5]) == "1 to 5 *"
    about, found = report.read(NAMED)
    assert "One repeat of this row took" in report.text(about, found, NAMED)
    assert "One repeat of this row took" not in report.text(about, {"scaling": found["scaling"]}, NAMED)


def test_your_machine_is_compared_with_the_one_of_the_page():
    about, found = report.read(NAMED)
    said = compare_machines.beside_ours(about, found)
    assert "Other programs" not in said and "same factor" in said
    about["load_before"] = 20.0
    found["speed"]["lesson 01"] = [2 * value for value in found["speed"]["lesson 01"]]
    found["recovery"] = [2 * value for value in found["recovery"]]
    said = compare_machines.beside_ours(about, found)
    assert "Yours is 0.50 (training again after a kill) to 2.00 times (lesson 01) as fast as ours" in said
    assert "Other programs were busy when you began (load 20.0)" in said
    assert compare_machines.beside_ours(about, {}) == "Nothing that was measured is on the page."


def test_repeats_take_turns_and_when_a_row_fails_the_others_are_kept(tmp_path):
    """As overlap.py once failed, and threw away all that had been measured."""
    order = []

    def good(folder):
        assert list(folder.iterdir()) == []
        order.append("good")
        return {"speed": {"good": len(order)}}

    def bad(folder):
        order.append("bad")
        return {"speed": {"bad": 0}} if len(order) < 4 else sys.exit("error: terminate called")

    arguments = SimpleNamespace(repeats=3, out=tmp_path)
    with pytest.raises(SystemExit, match=r"(?s)terminate called.*error: failed: bad; what was measured"):
        bench.run(arguments, {"good": good, "bad": bad})
    assert order == ["good", "bad", "good", "bad", "good"], "one that failed is not tried again"
    (kept,) = (tmp_path / "results").iterdir()
    assert kept.name.startswith("bench-") and kept.name.endswith("-incomplete.jsonl")
    about, measured = result_files.read(kept)
    assert about["failed"] == {"bad": "error: terminate called"}
    assert result_files.nested(measured) == {"speed": {"good": [1, 3, 5], "bad": [0]}}


# ---- what is measured is what is meant ----------------------------------------------------------

# Each part of this loop sleeps for a time of its own: these are the lengths that the clock has to find. In a
# real second, a busy machine may do nothing for longer than a part takes, so here only a sleep takes time.
LOOP = """
import time
now = [0.0]
time.perf_counter = lambda: now[0]
def sleep(seconds): now[0] += seconds
time.sleep = sleep
import torch, steps
from torch.utils.data import DataLoader
steps.SKIPPED = 1
steps.clock()
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): time.sleep(0.02); return torch.ones(3)
class Forward(torch.autograd.Function):
    forward = staticmethod(lambda context, values: (time.sleep(0.06), values.clone())[1])
    backward = staticmethod(lambda context, gradient: (time.sleep(0.1), gradient)[1])
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for batch in DataLoader(Slow(), 1):
        loss = Forward.apply(model(batch)).sum()
        loss.backward()
        time.sleep(0.03)
        optimizer.step(lambda: time.sleep(0.14))
        time.sleep(0.15)
    for batch in DataLoader(Slow(), 1): time.sleep(0.01)  # an evaluation is no step
"""


def test_the_clock_of_a_step_tells_its_parts_apart():
    environment = rows.ENVIRONMENT | {"PYTHONPATH": f"{rows.HERE}:{ROOT / 'lessons'}"}
    words = [sys.executable, "-c", LOOP]
    run = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)
    spent = rows.said(run.stderr, "stepped")
    parts = {"batch": 0.02, "forward": 0.06, "backward": 0.1, "update": 0.14, "rest": 0.18}
    assert spent == pytest.approx(parts)
