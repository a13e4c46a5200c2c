"""What the prose of notebook 18 says about its tables, wherever it was executed."""

import math
import re

import pytest

from tests.helpers.lines import column
from tools import notebooks


@pytest.fixture(scope="module")
def notebook():
    return notebooks.read(notebooks.FOLDER / "18_language_model.ipynb")


@pytest.fixture(scope="module")
def printed(notebook):
    """What the cells print."""
    texts = []
    for output in outputs_of(notebook):
        if output["output_type"] == "stream":
            texts.append(output["text"])
    return "\n".join(texts)


def outputs_of(notebook):
    for cell in notebook.cells:
        yield from cell.get("outputs", [])


@pytest.fixture(scope="module")
def tables(notebook):
    """The rows of the tables that the notebook shows, as dicts, by their first two column heads."""
    found = {}
    for output in outputs_of(notebook):
        text = output.get("data", {}).get("text/markdown", "")
        if not text.startswith("| "):
            continue
        lines = text.replace("|  |", "| - |").splitlines()
        head = cells_of(lines[0])
        rows = found.setdefault((head[0], head[1]), [])
        for line in lines[2:]:
            row = dict(zip(head, cells_of(line), strict=True))
            if row not in rows:  # one table is shown in two parts
                rows.append(row)
    return found


def cells_of(line):
    return line.strip("| ").split(" | ")


def test_all_ranks_have_the_same_norm_and_the_own_norms_name_the_rank(tables):
    rows = tables["damage", "step"]
    assert column(rows, "step") == ["109", "110", "111", "110", "111", "110", "111"]
    assert column(rows, "norm 0") == column(rows, "norm 1")
    calm, *bad = rows[0], *rows[1::2]
    for row in bad[:2]:
        assert row["loss 0"] == bad[2]["loss 0"], "the three runs differ before the damage"
        assert float(row["own norm 1"]) > 5 * float(row["own norm 0"])
        assert float(row["norm 0"]) > 3 * float(calm["norm 0"])
    assert bad[2]["own norm 0"] != "nan" == bad[2]["own norm 1"]
    assert set(list(rows[6].values())[2:]) == {"nan"}


def test_the_norm_shows_zeros_most_clearly_and_the_loss_shows_random_tokens(tables):
    """Both are compared with ordinary steps."""
    random, zeros, nan = tables["step 110", "mean loss"]
    for row in (random, zeros):
        assert float(row["times step 109's"]) > 1.1 and float(row["times the usual norm"]) > 4
    assert float(zeros["times the usual norm"]) > 5 * float(random["times the usual norm"])
    assert float(random["mean loss"]) > float(zeros["mean loss"])
    spiky, *_ = tables["steps 51 to 150", "median norm"]
    assert float(spiky["largest norm"]) > float(random["norm"]), (
        "harmless text has a larger norm than random tokens"
    )
    assert math.isnan(float(nan["mean loss"])) and math.isnan(float(nan["norm"]))


def test_the_more_ranks_there_are_the_less_the_guard_sees(tables):
    """With 64, the zeros are no more than the guard's limit, but more than the usual norm."""
    two, eight, many = tables["ranks", "usual norm"]
    assert column((two, eight, many), "ranks") == ["2", "8", "64"]
    for few, more in ((two, eight), (eight, many)):
        assert float(few["usual norm"]) > float(more["usual norm"])
    for row in (two, eight):
        assert float(row["with zeros"]) > float(row["limit"])
    assert float(eight["with random tokens"]) < float(eight["limit"]) / 2
    assert 2 * float(many["usual norm"]) < float(many["with zeros"]) < float(many["limit"])


def test_one_bad_batch_does_harm_and_clipping_makes_it_less(tables):
    rows = tables["step 110", "clipped"]
    losses = {}
    for row in rows:
        losses[row["step 110"], row["clipped"]] = float(row["held-out loss"])
    for kind in ("random tokens", "zeros"):
        assert losses["no damage", "yes"] < losses[kind, "yes"] < losses[kind, "no"]


def test_step_61_has_one_strange_window_and_step_88_two(tables):
    rows = tables["step, window", "norm"]
    strange, others = rows[:3], rows[3:]
    assert column(strange, "step, window") == ["61, rank 1", "88, rank 1", "88, rank 0"]
    assert column(others, "step, window") == ["61, 7 others", "88, 6 others"]
    for row in strange[1:]:  # the positions are alike, and nothing cancels
        assert float(row["norm"]) > 0.75 * float(row["positions: mean"])
    for row in others:
        assert float(row["norm"].split(" to ")[1]) < float(row["positions: mean"].split(" to ")[0]) / 2


def test_the_zeros_of_one_number_are_the_cause_and_those_of_the_other_are_not(printed):
    def number_after(words):
        return float(re.search(rf"{words}: ([\d.]+)", printed)[1])

    whole = number_after("norm of the window")
    first = number_after("digits in 0x1000000")
    second = number_after("digits in 5000000")
    assert first < whole / 3 and 0.9 * whole < second < 1.1 * whole


def test_with_a_larger_batch_no_step_is_skipped(printed):
    assert re.search(r"32 windows in a batch, 93 steps: skipped \[\],\nlargest norm [\d.]+ times", printed)


def test_nothing_cancels_in_a_window_of_zeros(printed):
    for kind, nothing_cancels in (("random tokens", False), ("zeros", True)):
        norm, positions = re.search(
            rf"a window of {kind}: norm ([\d.]+), positions ([\d.]+)", printed
        ).groups()
        assert (float(norm) > 0.99 * float(positions)) == nothing_cancels


def by_way(tables):
    """The rows of the table of losses, by the way in which bad batches are treated."""
    return {row["held-out loss"]: row for row in tables["held-out loss", "order 1"]}


def test_only_skipping_and_rolling_back_end_with_the_same_weights(tables):
    rows = by_way(tables)
    assert len(rows) == 7 and rows["skipped"]["weights"] == rows["rolled back"]["weights"]
    assert len(set(column(rows.values(), "weights"))) == len(rows) - 1
    assert float(rows["schedule waits"]["learning rate"]) > float(rows["skipped"]["learning rate"])


def test_in_each_order_clipping_helps_and_skipping_helps_more(tables):
    rows = by_way(tables)
    for order in ("order 1", "order 2", "order 3"):
        best = float(rows["no bad batches"][order])
        skipped = float(rows["skipped"][order])
        clipped = float(rows["clipped"][order])
        assert best < skipped < clipped < float(rows["no clipping"][order])
        assert rows["skipped"][order] == rows["rolled back"][order]


def test_the_mistakes_end_a_little_lower_in_every_order(tables):
    rows = by_way(tables)
    for order in ("order 1", "order 2", "order 3"):
        for mistake in ("schedule waits", "zeros as gradients"):
            assert 0 < float(rows["skipped"][order]) - float(rows[mistake][order]) < 0.03


def test_only_with_its_own_loss_a_rank_skips_alone_and_drifts_away(tables):
    rows = tables["guard", "rank"]
    assert column(rows, "guard") == ["norm", "norm", "own loss", "own loss"]
    assert column(rows, "taken") == ["True", "True", "True", "False"]
    *near, far = map(float, column(rows, "difference"))
    assert near == [0, 0, 0] and far > 0.001


def test_a_higher_learning_rate_does_not_show_as_a_larger_spike(tables):
    """It does in no run that we have seen. How much smaller the spike is depends on the processor."""
    rows = tables["steps 51 to 150", "median norm"]
    usual, fast, ordered = rows
    assert len(set(column(rows, "steps 51 to 150"))) == 3
    assert float(fast["largest norm"]) < float(usual["largest norm"]) / 2
    assert 3 < float(usual["times"]) < 5
    assert 2 < float(fast["times"]) <= float(usual["times"])
    for other in (fast, ordered):
        assert float(other["held-out loss"]) > float(usual["held-out loss"])
    jumps = list(map(float, column(rows, "largest jump")))
    assert max(jumps) == jumps[2]
    assert usual["in step"] == usual["at step"] == fast["at step"] == "88"
