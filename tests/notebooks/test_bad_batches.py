"""What the prose of notebook 18 says about its tables, wherever it was executed."""

import math

import pytest

from tools import notebooks


@pytest.fixture(scope="module")
def tables():
    """Each table that the notebook shows, by its first two column heads, as a list of dicts."""
    notebook = notebooks.read(notebooks.FOLDER / "18_language_model.ipynb")
    found = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("data", {}).get("text/markdown", "")
            if text.startswith("| "):
                head, _, *rows = [
                    line.strip("| ").split(" | ") for line in text.replace("|  |", "| - |").splitlines()
                ]
                found[head[0], head[1]] = [dict(zip(head, row, strict=True)) for row in rows]
    return found


def test_all_ranks_have_the_same_norm_and_the_own_norms_name_the_rank(tables):
    rows = {row["step"]: row for row in tables["step", "loss 0"]}
    assert all(row["norm 0"] == row["norm 1"] for row in rows.values())
    for step in ("110", "120"):
        assert float(rows[step]["own norm 1"]) > 5 * float(rows[step]["own norm 0"])
        assert float(rows[step]["norm 0"]) > 4 * float(rows["109"]["norm 0"])
    assert rows["130"]["own norm 0"] != "nan" == rows["130"]["own norm 1"]
    assert set(list(rows["131"].values())[1:]) == {"nan"}


def test_the_zeros_are_hidden_in_the_loss(tables):
    """And the random tokens are not."""
    rows = {row["step"]: row for row in tables["step", "loss 0"]}
    losses = {step: (float(row["loss 0"]) + float(row["loss 1"])) / 2 for step, row in rows.items()}
    calm = [losses[step] for step in ("109", "111", "119", "121", "129")]
    assert losses["120"] < max(calm) + 0.1 and losses["110"] > max(calm) + 1
    assert math.isnan(losses["130"])


def test_only_skipping_and_rolling_back_end_with_the_same_weights(tables):
    rows = {row["-"]: row for row in tables["-", "held-out loss"]}
    weights = {name: row["weights"] for name, row in rows.items()}
    assert weights["skipped"] == weights["rolled back"]
    assert len(set(weights.values())) == len(weights) - 1
    held_out = {name: float(row["held-out loss"]) for name, row in rows.items()}
    assert held_out["no bad batches"] < held_out["skipped"] < held_out["clipped"] < held_out["no clipping"]
    assert float(rows["schedule waits"]["learning rate"]) > float(rows["skipped"]["learning rate"])


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
    jumps = [float(row["largest jump of the loss"]) for row in rows.values()]
    assert max(jumps) == jumps[2]
