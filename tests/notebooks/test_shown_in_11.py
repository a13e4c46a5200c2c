"""Where the picture of notebook 11 draws the collectives of a block."""

import matplotlib.pyplot as plt
import pytest

from show import s11_tensors as tensors


def counts_of(column_wise, row_wise):
    """As the notebook's script counts them: what runs at a column-wise and at a row-wise matrix."""
    attention = {"forward": {}, "backward": {}}
    for direction in ("forward", "backward"):
        attention[direction] = column_wise[direction] | row_wise[direction]
    return {
        "counts": {
            "blocks.0.attention": attention,
            "blocks.0.attention.query": {"backward": column_wise["backward"]},
            "blocks.0.attention.project": row_wise,
            "blocks.0.feed_forward.up": column_wise,
            "blocks.0.feed_forward.down": row_wise,
        }
    }


WAYS = {
    "tensor": counts_of(
        column_wise={"forward": {}, "backward": {"all_reduce": 1}},
        row_wise={"forward": {"all_reduce": 1}, "backward": {}},
    ),
    "sequence": counts_of(
        column_wise={
            "forward": {"all_gather_into_tensor": 1},
            "backward": {"reduce_scatter_tensor": 1},
        },
        row_wise={
            "forward": {"reduce_scatter_tensor": 1},
            "backward": {"all_gather_into_tensor": 1},
        },
    ),
}


def texts_downwards(left):
    """The texts of a column of the picture, without its title and the legend, from the top to the bottom."""
    texts = []
    for text in plt.gcf().axes[0].texts:
        across, up = text.get_position()
        if left <= across < left + 8 and 2 < up < 18:
            texts.append((-up, text.get_text()))
    return [text for _, text in sorted(texts)]


@pytest.mark.parametrize(
    ("left", "at_columns", "at_rows"),
    [
        (0, {"↑ all_reduce"}, {"↓ all_reduce"}),
        (8, {"↓ all_gather", "↑ reduce_scatter"}, {"↓ reduce_scatter", "↑ all_gather"}),
    ],
)
def test_11_each_collective_stands_at_the_side_where_it_runs(monkeypatch, left, at_columns, at_rows):
    """At a column-wise matrix, on the side of its input; at a row-wise one, on the side of its output."""
    monkeypatch.setattr(tensors, "picture", lambda alt: None)
    tensors.draw_block(WAYS.get)
    norm, above_query, query, attention, project, below_project, *rest = texts_downwards(left)
    second_norm, above_up, up, gelu, down, below_down = rest
    plt.close("all")
    assert [norm, query.split(",")[0], attention, project] == ["norm", "query", "attention", "project"]
    assert [second_norm, up, gelu, down] == ["norm", "up", "GELU", "down"]
    assert set(above_query.split("\n")) == set(above_up.split("\n")) == at_columns
    assert set(below_project.split("\n")) == set(below_down.split("\n")) == at_rows
