"""What the prose of notebook 18 says about its tables, wherever it was executed."""

import math
import re

import pytest

from tools import notebooks


@pytest.fixture(scope="module")
def notebook():
    return notebooks.read(notebooks.FOLDER / "18_language_model.ipynb")


@pytest.fixture(scope="module")
def printed(notebook):
    """What the cells print."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(output["text"] for output in outputs if output["output_type"] == "stream")


@pytest.fixture(scope="module")
def tables(notebook):
    """The rows of the tables that the notebook shows, as dicts, by their first two column heads."""
    found = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("data", {}).get("text/markdown", "")
            if text.startswith("| "):
                head, _, *rows = [
                    line.strip("| ").split(" | ") for line in text.replace("|  |", "| - |").splitlines()
                ]
                more = [dict(zip(head, row, strict=True)) for row in rows]
                old = found.setdefault((head[0], head[1]), [])
                old += [row for row in more if row not in old]  # one table is shown in two parts
    return found


def test_all_ranks_have_the_same_norm_and_the_own_norms_name_the_rank(tables):
    rows = tables["damage", "step"]
    assert [row["step"] for row in rows] == ["109", "110", "111", "110", "111", "110", "111"]
    assert all(row["norm 0"] == row["norm 1"] for row in rows)
    calm, *bad = rows[0], *rows[1::2]
    for row in bad[:2]:
        assert row["loss 0"] == bad[2]["loss 0"], "the three runs differ before the damage"
        assert float(row["own norm 1"]) > 5 * float(row["own norm 0"])
        assert float(row["norm 0"]) > 3 * float(calm["norm 0"])
    assert bad[2]["own norm 0"] != "nan" == bad[2]["own norm 1"]
    assert set(list(rows[6].values())[2:]) == {"nan"}


def test_the_norm_shows_zeros_more_clearly_than_the_loss(tables):
    """And random tokens, too. Both are compared with the same step before."""
    random, zeros, nan = tables["step 110", "mean loss"]
    for row in (random, zeros):
        loss, norm = float(row["times step 109's"]), float(row["times the usual norm"])
        assert loss > 1.1 and norm > 4 and norm > 2 * loss
    assert float(zeros["times the usual norm"]) > 5 * float(random["times the usual norm"])
    assert math.isnan(float(nan["mean loss"])) and math.isnan(float(nan["norm"]))


def test_with_64_ranks_the_guard_sees_only_nan(tables, printed):
    limit = float(re.search(r"the guard's limit: ([\d.]+)", printed)[1])
    for row in tables["rank 1's batch", "its own norm"]:
        few, many = float(row["its part with 2 ranks"]), float(row["with 64 ranks"])
        if row["rank 1's batch"] == "NaN":
            assert math.isnan(few) and math.isnan(many)
        else:
            assert many < limit / 2 < limit < few


def test_step_61_has_one_guilty_window_and_step_88_two(printed):
    found = re.findall(r"step (\d+), rank (\d): norm +([\d.]+), positions +([\d.]+)", printed)
    assert len(found) == 16
    guilty = [(step, rank) for step, rank, norm, _ in found if float(norm) > 5]
    assert guilty == [("61", "1"), ("88", "0"), ("88", "1")]
    for step, _, norm, positions in found:
        if step == "88":  # the positions are alike, and only in the guilty windows nothing cancels
            assert 13 <= float(positions) < 21
            assert (float(norm) > 0.75 * float(positions)) == (float(norm) > 5)


def test_nothing_cancels_in_a_window_of_zeros(printed):
    for kind, nothing_cancels in (("random tokens", False), ("zeros", True)):
        norm, positions = re.search(
            rf"a window of {kind}: norm +([\d.]+), positions +([\d.]+)", printed
        ).groups()
        assert (float(norm) > 0.99 * float(positions)) == nothing_cancels


def test_only_skipping_and_rolling_back_end_with_the_same_weights(tables):
    rows = {row["held-out loss"]: row for row in tables["held-out loss", "order 1"]}
    weights = {name: row["weights"] for name, row in rows.items()}
    assert len(rows) == 7 and weights["skipped"] == weights["rolled back"]
    assert len(set(weights.values())) == len(weights) - 1
    assert float(rows["schedule waits"]["learning rate"]) > float(rows["skipped"]["learning rate"])


def test_in_each_order_clipping_helps_and_skipping_helps_more(tables):
    rows = {row["held-out loss"]: row for row in tables["held-out loss", "order 1"]}
    for order in ("order 1", "order 2", "order 3"):
        ways = ("no bad batches", "skipped", "clipped", "no clipping")
        losses = [float(rows[way][order]) for way in ways]
        assert losses == sorted(set(losses))
        assert rows["skipped"][order] == rows["rolled back"][order]


def test_the_mistakes_differ_from_skipping_by_less_than_the_orders_differ(tables):
    rows = {row["held-out loss"]: row for row in tables["held-out loss", "order 1"]}
    orders = ("order 1", "order 2", "order 3")
    skipped = [float(rows["skipped"][order]) for order in orders]
    for mistake in ("schedule waits", "zeros as gradients"):
        for order, other in zip(orders, skipped, strict=True):
            assert 0 < other - float(rows[mistake][order]) < max(skipped) - min(skipped)


def test_only_with_its_own_loss_a_rank_skips_alone_and_drifts_away(tables):
    rows = [tuple(row[name] for name in ("guard", "taken")) for row in tables["guard", "rank"]]
    assert rows == [("norm", "True"), ("norm", "True"), ("own loss", "True"), ("own loss", "False")]
    far = [float(row["difference"]) for row in tables["guard", "rank"]]
    assert far[:3] == [0, 0, 0] and far[3] > 0.001


def test_the_learning_rate_makes_no_spike(tables):
    rows = {row["steps 51 to 150"]: row for row in tables["steps 51 to 150", "median norm"]}
    usual, fast, ordered = rows.values()
    assert float(fast["largest norm"]) < float(usual["largest norm"])
    for other in (fast, ordered):
        assert float(other["held-out loss"]) > float(usual["held-out loss"])
    jumps = [float(row["largest jump"]) for row in rows.values()]
    assert max(jumps) == jumps[2]
    assert usual["in step"] == usual["at step"] == fast["at step"] == "88"
