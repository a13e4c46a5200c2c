"""The bench measures what it says, and its page says what the bench measured."""

import copy
import json
import re
import statistics
import subprocess
import sys

import pytest
import report
import rows
import scaling

import bench
from lessons import ROOT
from processes import alive, wait_for

RESULTS = sorted(bench.RESULTS.glob("*.json"))
SECTIONS = {
    "bench": (bench, bench.RESULTS, "--readme"),
    "scaling": (scaling, scaling.RESULTS, "--pages"),
}
NAME, SAID = report.marks("bench").search(report.PAGE.read_text()).groups()
NAMED = bench.RESULTS / NAME


def newest():
    return json.loads(NAMED.read_text())


def triple(values):
    return [3 * value for value in values]


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


TIMES = ("gloo, ms", "CPU ms: gloo", "measured", "free", "bound", "nothing sent", "sent after backward")
TIMES += ("as DDP does it", "CPU: nothing sent", "CPU: DDP")


@pytest.mark.parametrize(
    ("section", "count"), [("pieces", 25), ("predict", 28), ("small", 14), ("inside", 30)]
)
def test_the_page_names_what_measured_a_section_and_its_times_are_those_of_the_file(section, count):
    """These programs ran once and are gone: the page says when, where and by which commit."""
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
        shown += [line[at] for line in lines for at in range(1, len(head)) if head[at] in TIMES]
    assert len(shown) == count and set(shown) <= known, set(shown) - known


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


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.long)])
def test_the_ring_in_pieces_is_right(tmp_path, processes):
    environment = {"STORE": str(tmp_path / "store"), "WORLD_SIZE": str(processes)}
    environment["PYTHONPATH"] = str(ROOT / "notebooks/show/travel")
    words = [sys.executable, "-c", SUMS]
    ranks = [rows.start(words, tmp_path, RANK=str(rank), **environment) for rank in range(processes)]
    for process in ranks:
        rows.finish(process)


def test_scaling_writes_a_line_for_each_number_of_processes():
    found = {
        scaling.named(*row): {"together": [100 * row[1], 90 * row[1]], "apart": [200 * row[1], 180 * row[1]]}
        for row in scaling.ROWS
    }
    result = newest() | {"rows": scaling.in_rows(found), "repeats": 2}
    text = scaling.section(result, NAMED)
    assert text.count("50%") == 2 * len(result["rows"]) - 8 and "| a wide model       |         4 |" in text
    for number, row in enumerate(result["rows"]):
        other = copy.deepcopy(result)
        other["rows"][number]["together"] = triple(row["together"])
        assert scaling.section(other, NAMED) != text, "a row that no line shows"
    measured = scaling.in_rows(dict(list(found.items())[1:]))
    assert measured == [result["rows"][0] | {"together": [], "apart": []}, *result["rows"][1:]], "one failed"


def test_scaling_compares_a_job_with_as_many_that_do_not_talk(tmp_path, monkeypatch):
    started = []

    def lesson(stem, count, folder, *words, **more):
        started.append((count, words))

    monkeypatch.setattr(scaling.rows, "lesson", lesson)
    monkeypatch.setattr(scaling.rows, "finish", lambda process: None)
    monkeypatch.setattr(scaling.rows, "speed", lambda folder, stem: 100.0)
    assert scaling.together(tmp_path, 4, 120, ("--epochs", 2), 0) == 100
    assert scaling.apart(tmp_path, 4, 120, ("--epochs", 2), 0) == 400
    batch = ("--epochs", 2, "--batch-size")
    assert started == [(4, (*batch, 120)), *[(1, (*batch, 30))] * 4]
    places = [scaling.visible(*each) for each in ((0, 2, 4), (2, 2, 4), (0, 4, 1), (0, 4, 0))]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in places] == ["0,1", "2,3", "0", ""]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_file_says_where_and_when_and_keeps_every_repeat(path):
    result = json.loads(path.read_text())
    assert path.stem == bench.name_of(result)
    assert {"cpu", "cores", "memory_gib", "bf16", "gpus", "virtual", "system"} == set(result["machine"])
    assert {"python", "torch", "torchvision"} <= set(result["versions"])
    assert result["repeats"] >= 3 and result["minutes"] <= 10
    found = dict(leaves(result["rows"]))
    assert len(found) > 100
    for name, values in found.items():
        assert len(values) == result["repeats"] and min(values) >= 0, name
    assert report.section(result, path)


def test_every_number_in_a_table_comes_from_the_file():
    """Change any measured number, in all repeats, and the section changes, or else the picture shows it."""
    result, silent = newest(), []
    for name, _ in leaves(result["rows"]):
        other = copy.deepcopy(result)
        place = other["rows"]
        for key in name[:-1]:
            place = place[key]
        place[name[-1]] = [3 * value + 1 for value in place[name[-1]]]
        if report.section(other, NAMED) == SAID:
            silent.append(name)
    shown = [name for name in silent if name[0] in ("all-reduce", "overlap", "step")]
    # The runs that save 64 MB have too few steps for a speed, or for a share, that would mean something.
    assert all(name[1].endswith(", wide") and name[-1] != "seconds" for name in set(silent) - set(shown))
    assert len(silent) < 60


def test_a_missed_aim_is_called_so():
    for rate, word in ((1.4, "missed"), (1.6, "met")):
        result = newest()
        usual = result["rows"]["speed"]["usual loop"]
        result["rows"]["speed"]["lesson 01"] = [rate * value for value in usual]
        said = report.section(result, NAMED)
        assert f"Lesson 01 is {rate:.2f} times as fast (aim: at least 1.5; {word})" in said
    assert report.verdict(2.5, 2, at_most=True, unit="%") == "(aim: at most 2%; missed)"
    assert report.verdict(2, 2, at_most=True) == "(aim: at most 2; met)"


def test_ratios_are_of_what_was_measured_together():
    """A machine that is twice as slow in the second repeat is so for both."""
    assert report.ratio([10, 5, 12], [5, 2.5, 6]) == 2
    halves = {f"{name}, seconds": [value] for name, value in (("alone", 2), ("after", 6), ("overlap", 3))}
    assert report.hidden(halves) == 0.75


def test_repeats_take_turns_and_all_are_kept():
    order = []

    def one(folder, name):
        order.append(name)
        assert list(folder.iterdir()) == []
        return {"speed": {name: len(order)}}

    measures = {"a": lambda folder: one(folder, "a"), "b": lambda folder: one(folder, "b"), "c": lambda _: {}}
    found, failed = bench.measure(measures, 3)
    assert not failed
    assert "".join(order) == "ababab"
    assert found == {"speed": {"a": [1, 3, 5], "b": [2, 4, 6]}}


def test_nothing_of_a_row_that_failed_runs_beside_the_next():
    """Of two processes the first fails: the second, which is never waited for, and what it has started in a
    session of its own, as torchrun does with its ranks."""
    child = "import subprocess, sys; subprocess.run(['sleep', '1000'], start_new_session=True)"

    def bad(folder):
        both = [rows.start([sys.executable, "-c", words], folder) for words in ("1 / 0", child)]
        wait_for(lambda: any("sleep 1000" in words for _, words in alive(rows.MARK)), 30)
        for process in both:
            rows.finish(process)

    left = []
    measures = {"bad": bad, "next": lambda folder: left.extend(alive(rows.MARK)) or {}}
    _, failed = bench.measure(measures, 1)
    assert "ZeroDivisionError" in failed["bad"] and list(failed) == ["bad"]
    assert left == [] and rows.STARTED == []


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        (1, "A measurement that the section on overlap needs is missing."),
        (3, "**How much communication backward hides.**"),
    ],
)
def test_a_row_that_fails_is_named_and_the_others_are_kept(tmp_path, monkeypatch, capsys, fails, words):
    """As overlap.py once failed, in the last of three repeats, and threw away all that had been measured."""
    whole, tries = newest()["rows"], []

    def one(found):  # one repeat of it
        return {key: one(value) if isinstance(value, dict) else value[0] for key, value in found.items()}

    def good(folder):
        return {name: value for name, value in one(whole).items() if name != "overlap"}

    def bad(folder):
        tries.append(folder)
        if len(tries) == fails:
            sys.exit("error: overlap.py failed: terminate called")
        return {"overlap": one(whole["overlap"])}

    results = tmp_path / "results"
    monkeypatch.setattr(rows, "MEASURES", {"all others": good, "overlap": bad})
    monkeypatch.setattr(report, "plain", lambda text: text)
    monkeypatch.setattr(sys, "argv", ["bench.py", "--out", str(tmp_path), "--results", str(results)])
    with pytest.raises(SystemExit, match=r"(?s)terminate called.*error: failed: overlap; what was measured"):
        bench.main()
    (kept,) = tmp_path.glob("*-incomplete.json")
    assert json.loads(kept.read_text())["failed"] == {"overlap": "error: overlap.py failed: terminate called"}
    said = capsys.readouterr().out
    assert words in said and "Lesson 01 is 1.51 times" in said
    assert len(tries) == fails and not list(results.iterdir())


# ---- what is measured is what is meant ----------------------------------------------------------

# Each part of this loop sleeps for a time of its own: these are the lengths that the clock has to find.
LOOP = """
import time, torch, steps
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
        optimizer.step(lambda: time.sleep(0.14))
        time.sleep(0.18)
    for batch in DataLoader(Slow(), 1): time.sleep(0.01)  # an evaluation is no step
"""


def environment():
    return rows.ENVIRONMENT | {"PYTHONPATH": f"{rows.HERE}:{ROOT / 'lessons'}"}


def test_the_clock_of_a_step_tells_its_parts_apart():
    run = subprocess.run(
        [sys.executable, "-c", LOOP], env=environment(), capture_output=True, text=True, timeout=120
    )
    spent = rows.said(run.stderr, "stepped")
    least = {"batch": 0.02, "forward": 0.06, "backward": 0.1, "update": 0.14, "rest": 0.18}
    assert all(seconds <= spent[name] for name, seconds in least.items()), spent
    assert sorted(spent, key=spent.get) == list(least), spent  # what is told twice is more than the next one


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
def test_overlap_and_all_reduce_come_from_two_processes(tmp_path):
    found = rows.flat(rows.start_ranks("overlap.py", tmp_path, 2, 2))
    assert len(found) == 8 and min(found.values()) > 0
    assert found["alone, seconds"] < found["after, seconds"]


@pytest.mark.long
def test_the_ways_of_the_all_reduce_are_right(tmp_path):
    script = tmp_path / "right.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(rows.HERE)!r})\n"
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


def test_bad_input_gets_one_line():
    run = subprocess.run(
        [sys.executable, rows.HERE / "bench.py", "--repeats", "0"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 2 and "--repeats must be at least 1, not 0" in run.stderr
