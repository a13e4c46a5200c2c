"""The bench measures what it says, and its page says what the bench measured."""

import copy
import json
import re
import subprocess
import sys

import inside
import pieces
import predict
import pytest
import report
import rows
import scaling
import small

import bench
from lessons import ROOT
from processes import alive, wait_for

RESULTS = sorted(bench.RESULTS.glob("*.json"))
NAME, SAID = report.MARKS.search(report.PAGE.read_text()).groups()
NAMED = bench.RESULTS / NAME


def newest():
    return json.loads(NAMED.read_text())


# ---- what is said is what was measured ----------------------------------------------------------


def test_the_page_says_what_the_file_that_it_names_holds():
    assert report.section(newest(), NAMED) == SAID, f"make bench ARGUMENTS='--readme {NAMED}'"


def test_the_page_says_of_scaling_what_the_file_that_it_names_holds():
    page = report.PAGE.read_text()
    name = re.search(r"<!-- scaling (\S+) -->", page)[1]
    result = json.loads((scaling.RESULTS / name).read_text())
    assert page == pieces.replaced(page, scaling.section(result), name, scaling.ENDS)


def test_the_page_says_of_the_ring_what_the_file_that_it_names_holds():
    page = report.PAGE.read_text()
    name = re.search(r"<!-- pieces (\S+) -->", page)[1]
    result = json.loads((pieces.RESULTS / name).read_text())
    assert page == pieces.replaced(page, pieces.section(result), name)
    assert name == f"{bench.name_of(result)}.json"
    for way in ("gloo", "ring", "memory kept", "two connections", "in pieces"):
        other = copy.deepcopy(result)
        sizes = other["rows"]["2"][way]
        sizes[str(2**22)]["seconds"] = [3 * value for value in sizes[str(2**22)]["seconds"]]
        assert pieces.section(other) != pieces.section(result), way


def test_the_page_says_of_a_small_step_what_the_file_that_it_names_holds():
    page = report.PAGE.read_text()
    name = re.search(r"<!-- small (\S+) -->", page)[1]
    result = json.loads((small.RESULTS / name).read_text())
    assert page == pieces.replaced(page, small.section(result), name, small.ENDS)
    assert name == f"{bench.name_of(result)}.json"
    for bound in small.BOUND:
        for kind in small.KINDS:
            other = copy.deepcopy(result)
            times = other["rows"][bound][kind]
            times["seconds"] = [3 * value for value in times["seconds"]]
            assert small.section(other) != small.section(result), (bound, kind)


def test_the_page_says_of_the_inside_what_the_file_that_it_names_holds():
    page = report.PAGE.read_text()
    name = re.search(r"<!-- inside (\S+) -->", page)[1]
    result = json.loads((inside.RESULTS / name).read_text())
    assert page == pieces.replaced(page, inside.section(result), name, inside.ENDS)
    assert name == f"{bench.name_of(result)}.json"
    plain = result["rows"]["overlap"]["as it is"]
    assert inside.at_most(plain | {"cpu_seconds": plain["seconds"]}) == inside.faster(plain)
    for way in inside.WAYS:
        other = copy.deepcopy(result)
        times = other["rows"]["overlap"][way]["seconds"]
        times["overlap"] = [3 * value for value in times["overlap"]]
        assert inside.section(other) != inside.section(result), way


@pytest.mark.night
def test_the_small_steps_come_from_two_processes(tmp_path):
    """One round of ten: all of them take 20 s in quiet, and more than the bench allows beside others."""
    found = small.run(tmp_path, "bound", ROUNDS_OF_SMALL="1")
    assert list(found) == list(small.KINDS)
    assert all(0 < value < 10_000 for times in found.values() for value in times.values())


def test_four_processes_are_predicted_from_the_cpu_time_of_two():
    """1.5 times the bytes each, in twice as many processes, on the cores that there are."""
    two = {"gloo": {"1024": {"cpu_seconds": [2.0, 4.0], "seconds": [0, 0]}}}
    assert pieces.predicted(two, "1024", cores=2) == [6.0, 12.0]
    assert pieces.predicted(two, "1024", cores=4) == [3.0, 6.0]
    for measured, verdict in ((9.0, "1 KiB"), (7.6, "1 KiB"), (7.4, "none"), (11.3, "none")):
        four = {"gloo": {"1024": {"seconds": [measured]}}}
        result = {"rows": {"2": two, "4": four}, "machine": {"cores": 2}}
        assert f"Within 20% of the measurement (the aim): {verdict}. The" in pieces.prediction(result), (
            measured
        )


def test_what_a_link_and_the_cores_take_is_predicted():
    """1,514 bytes pass for 1,448 of the tensor; four hosts send 6/4 of it each, and share the cores."""
    size, rate = 1448e3, 1e6
    seconds = 8 * 1514e3 / rate
    burst = 8 * 2**18 / rate
    assert predict.on_the_link(size, 2, rate) == pytest.approx(seconds - burst)
    assert predict.on_the_link(size, 4, rate) == pytest.approx(1.5 * seconds - burst)
    assert predict.on_the_link(1448, 2, rate) == 0
    assert predict.on_the_cores(0.3, 4, cores=2) == pytest.approx(0.6)
    assert predict.predicted(size, 4, rate, used=0.3, cores=2) == pytest.approx(1.5 * seconds - burst + 0.6)
    link = seconds - burst
    for alone, overlap in ((3 * link, 3 * link), (0.3 * link, 1.1 * link)):
        found = predict.predicted_steps(size, rate, alone, used=0.4, cores=4)
        expected = {"after": alone + link + 0.2, "overlap": overlap + 0.2}
        assert found == pytest.approx(expected)


def test_the_page_says_of_predictions_what_the_file_that_it_names_holds():
    page = report.PAGE.read_text()
    name = re.search(r"<!-- predict (\S+) -->", page)[1]
    result = json.loads((predict.RESULTS / name).read_text())
    assert page == pieces.replaced(page, predict.section(result), name, predict.ENDS)
    assert name == f"{bench.name_of(result)}.json"
    for rate in predict.RATES:
        for count in predict.COUNTS:
            other = copy.deepcopy(result)
            times = other["rows"]["link"][rate][str(count)][str(predict.SIZES[0])]
            times["seconds"] = [3 * value for value in times["seconds"]]
            assert predict.section(other) != predict.section(result), (rate, count)


def test_predictions_that_are_more_than_20_percent_off_are_not_counted():
    def measured(factor):
        """As if one all-reduce took `factor` times its prediction, and each other one its own."""
        link = {
            rate: {
                str(count): {
                    str(size): {"seconds": [1000 * predict.on_the_link(size, count, bits)]}
                    for size in predict.SIZES
                }
                for count in predict.COUNTS
            }
            for rate, bits in predict.RATES.items()
        }
        link["1gbit"]["4"][str(2**22)]["seconds"][0] *= factor
        used = {str(size): {"cpu_seconds": [0.0]} for size in predict.SIZES}
        none = {str(count): used for count in predict.COUNTS}
        return {"rows": {"link": link, "none": none}, "machine": {"cores": 2}}

    for factor, near in ((0.82, 7), (0.84, 8), (1.24, 8), (1.26, 7)):
        words = f"8 of 8 at 200 Mbit/s, {near} of 8 at 1 Gbit/s, 8 of 8 at 10 Gbit/s."
        assert predict.verdict(measured(factor)) == f"Within 20% of the measurement (the aim): {words}", (
            factor
        )


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
    environment["PYTHONPATH"] = str(pieces.RACE.parent)
    words = [sys.executable, "-c", SUMS]
    ranks = [rows.start(words, tmp_path, RANK=str(rank), **environment) for rank in range(processes)]
    for process in ranks:
        rows.finish(process)


def test_scaling_writes_a_line_for_each_number_of_processes(tmp_path):
    result = json.loads(NAMED.read_text()) | {"rows": [], "repeats": 2}
    for model in scaling.NAMES:
        for count in scaling.COUNTS:
            for size in dict.fromkeys((scaling.BATCH, scaling.BATCH * count)):
                row = {"model": model, "processes": count, "batch": size}
                row |= {"together": [100.0 * count, 90.0 * count], "apart": [200.0 * count, 180.0 * count]}
                result["rows"].append(row)
    text = scaling.section(result)
    assert text.count("50%") == 2 * len(result["rows"]) - 8 and "| a wide model       |         4 |" in text
    for row in result["rows"]:
        other = copy.deepcopy(result)
        other["rows"][result["rows"].index(row)]["together"] = [3 * speed for speed in row["together"]]
        assert scaling.section(other) != text, "a row that no line shows"
    page = "a\n<!-- scaling x -->\nold\n<!-- end -->\nb\n"
    assert (
        pieces.replaced(page, "new\n", "y", scaling.ENDS) == "a\n<!-- scaling y -->\nnew\n<!-- end -->\nb\n"
    )
    scaling.draw(result, tmp_path / "scaling.svg")
    assert "<svg" in (tmp_path / "scaling.svg").read_text()


def test_scaling_compares_a_job_with_as_many_that_do_not_talk(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(
        scaling.rows, "lesson", lambda stem, count, folder, *words, **more: started.append((count, words))
    )
    monkeypatch.setattr(scaling.rows, "finish", lambda process: None)
    monkeypatch.setattr(scaling.rows, "speed", lambda folder, stem: 100.0)
    assert scaling.together(tmp_path, 4, 120, ("--epochs", 2), 0) == 100
    assert scaling.apart(tmp_path, 4, 120, ("--epochs", 2), 0) == 400
    batch = ("--epochs", 2, "--batch-size")
    assert started == [(4, (*batch, 120)), *[(1, (*batch, 30))] * 4]
    assert [scaling.visible(first, 2, 4)["CUDA_VISIBLE_DEVICES"] for first in (0, 2)] == ["0,1", "2,3"]
    assert (
        scaling.visible(0, 4, 1)["CUDA_VISIBLE_DEVICES"] == "0"
        and scaling.visible(0, 4, 0)["CUDA_VISIBLE_DEVICES"] == ""
    )


def test_the_picture_shows_the_same_numbers():
    source = f"<dc:source>{report.mark(newest())}</dc:source>"
    assert source in report.PICTURE.read_text(), f"make bench ARGUMENTS='--readme {NAMED}'"


def leaves(found, name=()):
    for key, value in found.items():
        if isinstance(value, dict):
            yield from leaves(value, (*name, key))
        else:
            yield (*name, key), value


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
    found, _, failed = bench.measure(measures, 3)
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
    _, _, failed = bench.measure(measures, 1)
    assert "ZeroDivisionError" in failed["bad"] and list(failed) == ["bad"]
    assert left == [] and rows.STARTED == []


def test_a_failed_run_of_scaling_leaves_the_others_their_rows(tmp_path, monkeypatch):
    """And what was measured is kept, where nobody takes it for a result."""
    runs = []

    def together(folder, count, size, words, gpus):
        runs.append(count)
        return 100.0 if len(runs) != 4 else sys.exit("error: it failed")

    def apart(folder, *run):
        return 100.0

    monkeypatch.setattr(scaling, "together", together)
    monkeypatch.setattr(scaling, "apart", apart)
    results = tmp_path / "results"
    words = ["scaling.py", "--repeats", "2", "--out", str(tmp_path), "--results", str(results)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match=r"(?s)batch 120: error: it failed.*error: 1 rows failed; what was"):
        scaling.main()
    (kept,) = tmp_path.glob("*-scaling-incomplete.json")
    numbers = [len(row["together"]) for row in json.loads(kept.read_text())["rows"]]
    assert sorted(numbers) == [0, *[2] * (len(numbers) - 1)] and not list(results.iterdir())


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


def test_the_page_is_written_from_a_file(tmp_path, monkeypatch):
    right = report.PAGE.read_text()
    page = tmp_path / "README.md"
    page.write_text(right.replace(report.MARKS.search(right)[2], "old"))
    monkeypatch.setattr(report, "PAGE", page)
    monkeypatch.setattr(report, "draw", lambda result, path: None)
    report.write_page(NAMED)
    assert page.read_text() == right


def test_the_picture_is_drawn(tmp_path):
    report.draw(newest(), tmp_path / "bench.svg")
    assert (tmp_path / "bench.svg").read_text() == report.PICTURE.read_text()


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
def test_a_snapshot_written_meanwhile_is_clocked_too(tmp_path):
    found = rows.saving(
        tmp_path, "09", "09_fsdp", "wide,saving", ("--epochs", 2, "--train-size", 240, "--test-size", 60)
    )["saving"]["09"]
    assert 60e6 < found["bytes"] < 70e6  # 8 million weights with their momentum, 4 bytes each
    assert 0 < found["seconds"] < 60 and 0 < found["share"] < 1


@pytest.mark.night
def test_a_snapshot_that_is_waited_for_is_clocked(tmp_path):
    sizes = ("--epochs", 2, "--train-size", 240, "--test-size", 60)
    found = rows.saving(tmp_path, "06b", "06b_preemption", "saving", sizes)["saving"]["06b"]
    assert 200_000 < found["bytes"] < 400_000  # 32,000 weights with their momentum
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
