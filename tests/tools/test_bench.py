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

RESULTS = sorted(bench.RESULTS.glob("*.json"))
SECTIONS = {
    "bench": (bench, bench.RESULTS, "--readme"),
    "scaling": (scaling, scaling.RESULTS, "--pages"),
}
NAME, SAID = report.marks("bench").search(report.PAGE.read_text()).groups()
NAMED = bench.RESULTS / NAME


# ---- what is said is what was measured ----------------------------------------------------------


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_and_the_picture_show_what_the_file_that_the_page_names_holds(
    tmp_path, monkeypatch, section
):
    """They are what --readme and --pages write from it, and nothing else on the page changes."""
    (module, folder, option), right = SECTIONS[section], report.PAGE.read_text()
    name, said = report.marks(section).search(right).groups()
    picture, page = report.PICTURES / f"{section}.svg", tmp_path / "README.md"
    page.write_text(right.replace(said, "old"))
    monkeypatch.setattr(report, "PAGE", page)
    monkeypatch.setattr(report, "PICTURES", tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{section}.py", option, str(folder / name)])
    module.main()
    assert page.read_text() == right, f"make {section} ARGUMENTS='{option} {folder / name}'"
    assert (tmp_path / picture.name).read_text() == picture.read_text() and "<svg" in picture.read_text()


def test_the_page_names_what_measured_the_ring_and_its_times_are_those_of_the_file():
    """This program ran once and is gone: the page says when, where and by which commit."""
    section, times = "pieces", ("gloo, ms", "CPU ms: gloo", "measured")
    name, said = report.marks(section).search(report.PAGE.read_text()).groups()
    result = json.loads((bench.RESULTS / section / name).read_text())
    file = re.escape(f"([all repeats](results/{section}/{name}))")
    assert re.search(rf"by `tools/bench/{section}\.py` of commit [0-9a-f]{{7}} {file}", said)
    assert result["date"] in said and result["machine"]["cpu"] in said
    assert name == f"{bench.name_of(result)}.json"
    middles = [statistics.median(values) for _, values in leaves(result["rows"])]
    known = {f"{middle:,.{digits}f}" for middle in middles for digits in (0, 1, 2)}
    shown = []
    for table in re.findall(r"(?:^\|.*\n?)+", said, re.M):
        head, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
        shown += [line[at] for line in lines for at in range(1, len(head)) if head[at] in times]
    assert len(shown) == 25 and set(shown) <= known, set(shown) - known


def leaves(found, name=()):
    for key, value in found.items():
        if isinstance(value, dict):
            yield from leaves(value, (*name, key))
        else:
            yield (*name, key), value


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

    def lesson(stem, count, folder, *words, **more):
        started.append((count, words))

    monkeypatch.setattr(scaling.rows, "lesson", lesson)
    monkeypatch.setattr(scaling.rows, "finish", lambda process: None)
    monkeypatch.setattr(scaling.rows, "speed", lambda folder, stem: 100.0)
    assert scaling.speed(tmp_path, 1, 4, 120, ("--epochs", 2), 0) == 100
    assert scaling.speed(tmp_path, 4, 1, 120, ("--epochs", 2), 0) == 400
    batch = ("--epochs", 2, "--batch-size")
    assert started == [(4, (*batch, 120)), *[(1, (*batch, 30))] * 4]
    places = [scaling.visible(*each) for each in ((0, 2, 4), (2, 2, 4), (0, 4, 1), (0, 4, 0))]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in places] == ["0,1", "2,3", "0", ""]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_file_says_where_and_when_and_keeps_every_repeat(path):
    result = json.loads(path.read_text())
    assert path.stem == bench.name_of(result)
    assert result["repeats"] >= 3 and result["minutes"] <= 10
    found = dict(leaves(result["rows"]))
    assert len(found) > 100
    for name, values in found.items():
        assert len(values) == result["repeats"] and min(values) >= 0, name
    assert report.section(result, path)


def test_a_missed_aim_is_called_so():
    for rate, word in ((1.4, "missed"), (1.6, "met")):
        result = json.loads(NAMED.read_text())
        usual = result["rows"]["speed"]["usual loop"]
        result["rows"]["speed"]["lesson 01"] = [rate * value for value in usual]
        said = report.section(result, NAMED)
        assert f"Lesson 01 is {rate:.2f} times as fast (aim: at least 1.5; {word})" in said
    assert report.verdict(2.5, 2, at_most=True, unit="%") == "(aim: at most 2%; missed)"


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
        bench.run(arguments, {"good": good, "bad": bad}, lambda result, path: "")
    assert order == ["good", "bad", "good", "bad", "good"], "one that failed is not tried again"
    (kept,) = tmp_path.glob("*-incomplete.json")
    result = json.loads(kept.read_text())
    assert result["failed"] == {"bad": "error: terminate called"}
    assert result["rows"] == {"speed": {"good": [1, 3, 5], "bad": [0]}}
    assert not list(arguments.results.iterdir())


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


@pytest.mark.night
def test_start_up_is_told_by_what_it_is_spent_on(tmp_path):
    """Two agents, whose lines have the node before them."""
    found = rows.MEASURES["start of lesson 06, two nodes"](tmp_path)["start"]["lesson 06"]
    assert tuple(found) == rows.STAGES
    assert min(found.values()) > 0 and found["launcher"] > found["first step"]


@pytest.mark.night
@pytest.mark.parametrize(
    ("stem", "variant", "least", "most"),
    [
        ("09_fsdp", "wide,saving", 60e6, 70e6),  # written meanwhile: 8 million weights with their momentum
        ("06b_preemption", "saving", 200_000, 400_000),  # waited for: 32,000 weights with their momentum
    ],
    ids=["written meanwhile", "waited for"],
)
def test_a_snapshot_is_clocked(tmp_path, stem, variant, least, most):
    sizes = ("--epochs", 2, "--train-size", 240, "--test-size", 60)
    found = rows.job(stem, 2, sizes, variant, saving="it")(tmp_path)["saving"]["it"]
    assert least < found["bytes"] < most
    assert 0 < found["seconds"] < 60 and 0 < found["share"] < 1


@pytest.mark.long
def test_the_ways_of_the_all_reduce_are_right(tmp_path, monkeypatch):
    monkeypatch.setitem(rows.ENVIRONMENT, "PYTHONPATH", str(rows.HERE))
    script = tmp_path / "right.py"
    script.write_text(
        "import torch, ranks, reduce\n"
        "def work():\n"
        "    for name in ('gloo', 'ring', 'server'):\n"
        "        tensor = torch.arange(5.0) + ranks.rank\n"
        "        reduce.WAYS[name](tensor)\n"
        "        assert tensor.tolist() == [1.0, 3.0, 5.0, 7.0, 9.0], name\n"
        "    return reduce.SIZES\n"
        "ranks.together(work)\n"
    )
    sizes = rows.start_ranks(script, tmp_path)
    assert sizes[0] == 2**10 and sizes[-1] == 2**26


@pytest.mark.night
@pytest.mark.parametrize("words", [("overlap.py", 2, 2), ("reduce.py",)], ids=lambda words: words[0])
def test_overlap_and_all_reduce_come_from_two_processes(tmp_path, words):
    script, *arguments = words
    assert rows.start_ranks(script, tmp_path, *arguments)


def test_what_loader_workers_can_do_follows_from_what_an_image_costs():
    prepare, train = workers.cost()
    assert 0 < prepare < train < 0.1, "on a CPU, lesson 08's step costs more than its augmentation"
    assert workers.advice(1, 4, cores=1) == (0, 1.0)  # on one core there is nothing to win
    assert workers.advice(1, 4, cores=8) == (1, 1.25)  # more than one would wait
    assert workers.advice(4, 1, cores=8) == (4, 5.0)
    assert workers.advice(4, 1, cores=3) == (2, 2.5)
