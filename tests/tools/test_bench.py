"""The bench measures what it says, and its page says what the bench measured."""

import json
import re
import statistics
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tools.bench import bench, report, rows, scaling, workers
from tools.lessons import ROOT

NAMED = report.named_file()


# ---- what is said is what was measured ----------------------------------------------------------


def test_the_page_and_the_picture_show_what_the_file_that_the_page_names_holds(tmp_path, monkeypatch):
    """They are what --readme writes from it, and nothing else on the page changes."""
    right, page = report.PAGE.read_text(), tmp_path / "README.md"
    page.write_text(right.replace(report.marks().search(right).group(2), "old"))
    monkeypatch.setattr(report, "PAGE", page)
    monkeypatch.setattr(report, "PICTURES", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", "--readme", str(NAMED)])
    bench.main()
    assert page.read_text() == right, f"make bench ARGUMENTS='--readme {NAMED}'"
    picture = (ROOT / "lessons/pictures/bench.svg").read_text()
    assert (tmp_path / "bench.svg").read_text() == picture and "<svg" in picture


def test_the_notes_belong_to_the_file_that_the_page_shows():
    """And each speed in them is on the page above them, or in the file."""
    generated, notes = report.PAGE.read_text().split("## Notes on this run")
    result = json.loads(NAMED.read_text())
    assert f"the file of {result['date']}" in notes
    medians = {f"{statistics.median(values):,.0f}" for values in leaves(result["rows"])}
    single = {f"{value:,.0f}" for values in leaves(result["rows"]) for value in values}
    for number in re.findall(r"\b\d+,\d{3}\b", notes):
        assert number in generated or number in medians | single, number


def leaves(found):
    for value in found.values():
        if isinstance(value, dict):
            yield from leaves(value)
        else:
            yield value


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
    ranks = [rows.start(words, tmp_path, RANK=str(rank), **environment) for rank in range(3)]
    for process in ranks:
        rows.finish(process)


def test_scaling_compares_a_job_with_as_many_that_do_not_talk(tmp_path, monkeypatch):
    started = []

    def lesson(stem, count, folder, *words):
        started.append((count, words))

    monkeypatch.setattr(rows, "lesson", lesson)
    monkeypatch.setattr(rows, "finish", lambda process: None)
    monkeypatch.setattr(rows, "speed", lambda folder, stem: 100.0)
    assert scaling.speed(tmp_path, 1, 4, 120, ("--epochs", 2)) == 100
    assert scaling.speed(tmp_path, 4, 1, 120, ("--epochs", 2)) == 400
    batch = ("--epochs", 2, "--batch-size")
    assert started == [(4, (*batch, 120)), *[(1, (*batch, 30))] * 4]


def test_the_file_says_by_which_commit_and_keeps_every_repeat():
    result = json.loads(NAMED.read_text())
    assert NAMED.stem == bench.name_of(result)
    assert result["repeats"] >= 5 and len(result["commit"]) == 8, "a commit without changes"
    assert result["stolen"] < 0.05 and result["load_before"] < 0.5 * result["machine"]["cores"]
    for values in leaves(result["rows"]):
        assert len(values) == result["repeats"] and min(values) >= 0


def test_a_missed_aim_is_called_so_and_what_was_not_measured_is_left_out():
    for rate, word in ((1.4, "missed"), (1.6, "met")):
        result = json.loads(NAMED.read_text())
        usual = result["rows"]["speed"]["usual loop"]
        result["rows"]["speed"]["lesson 01"] = [rate * value for value in usual]
        said = report.section(result, NAMED)
        assert f"Lesson 01 is {rate:.2f} times as fast (aim: at least 1.5; {word})" in said
    assert report.verdict(2.5, 2, at_most=True, unit="%") == "(aim: at most 2%; missed)"
    result["rows"] = {"overlap": result["rows"]["overlap"]}
    said = report.section(result, NAMED)
    assert "## How much communication backward hides" in said and said.count("## ") == 1


def test_ratios_follow_from_what_is_printed_and_an_outlier_has_a_star():
    assert report.ratio([1, 2, 30], [4, 4, 1]) == 0.5
    assert report.reach([1, 2, 3]) == "1 to 3" and report.reach([1, 2, 5]) == "1 to 5 *"


def test_your_machine_is_compared_with_the_one_of_the_page():
    ours, mine = json.loads(NAMED.read_text()), json.loads(NAMED.read_text())
    mine["load_before"] = 20.0
    mine["rows"]["speed"]["lesson 01"] = [2 * value for value in ours["rows"]["speed"]["lesson 01"]]
    said = report.beside_ours(mine)
    assert "2.00 times (lesson 01) as fast as ours" in said
    assert "Other programs were busy when you began (load 20.0)" in said
    assert "Other programs" not in report.beside_ours(ours) and "same factor" in report.beside_ours(ours)


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

    arguments = SimpleNamespace(repeats=3, out=tmp_path, results=tmp_path / "results")
    with pytest.raises(SystemExit, match=r"(?s)terminate called.*error: failed: bad; what was measured"):
        bench.run(arguments, {"good": good, "bad": bad})
    assert order == ["good", "bad", "good", "bad", "good"], "one that failed is not tried again"
    (kept,) = tmp_path.glob("*-incomplete.json")
    result = json.loads(kept.read_text())
    assert result["failed"] == {"bad": "error: terminate called"}
    assert result["rows"] == {"speed": {"good": [1, 3, 5], "bad": [0]}}
    assert not arguments.results.exists()


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


def test_what_loader_workers_can_do_follows_from_what_an_image_costs():
    prepare, train = workers.cost()
    assert 0 < prepare < train < 0.1, "on a CPU, lesson 08's step costs more than its augmentation"
    for cores, advised in ((1, (0, 1.0)), (3, (2, 2.5)), (8, (4, 5.0))):
        assert workers.advice(4, 1, cores) == advised
