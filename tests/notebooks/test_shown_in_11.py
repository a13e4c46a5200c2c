"""What the pictures of notebook 11 show of a block, and what its first cells print."""

import re

import matplotlib.pyplot as plt
import pytest

from show import s11_tensors as tensors
from show.pictures import GREY, RANKS, tile
from tests.helpers.shown import outputs, printed


def layer(name, *shape):
    return {"name": name, "shape": list(shape), "is_collective": False}


def collective(name, *shape):
    return {"name": name, "shape": list(shape), "is_collective": True}


FORWARD = {
    "tensor": [
        layer("attention_norm", 8, 28, 32),
        layer("attention.query", 8, 28, 32),
        layer("attention.key", 8, 28, 32),
        layer("attention.value", 8, 28, 32),
        layer("attention.project", 8, 28, 16),
        collective("all_reduce", 8, 28, 32),
        layer("feed_forward_norm", 8, 28, 32),
        layer("feed_forward.up", 8, 28, 32),
        layer("feed_forward.down", 8, 28, 64),
        collective("all_reduce", 8, 28, 32),
        collective("of the next block", 8, 28, 32),
    ],
    "sequence": [
        collective("before the block", 8, 28, 32),
        layer("attention_norm", 8, 14, 32),
        layer("feed_forward_norm", 8, 14, 32),
        collective("all_gather_into_tensor", 8, 14, 32),
        layer("feed_forward.up", 8, 28, 32),
        layer("feed_forward.down", 8, 28, 64),
        collective("reduce_scatter_tensor", 16, 14, 32),
    ],
}
BACKWARD = {
    "tensor": [
        collective("of the next block", 8, 28, 32),
        layer("feed_forward.down", 8, 28, 32),
        layer("feed_forward.up", 8, 28, 64),
        collective("all_reduce", 8, 28, 32),
        layer("feed_forward_norm", 8, 28, 32),
        layer("attention.project", 8, 28, 32),
        layer("attention.value", 8, 28, 16),
        layer("attention.key", 8, 28, 16),
        layer("attention.query", 8, 28, 16),
        collective("all_reduce", 8, 28, 32),
        layer("attention_norm", 8, 28, 32),
    ]
}


@pytest.fixture
def draw(monkeypatch):
    """Draw the block of one way of working, and return the axes."""
    monkeypatch.setattr(tensors, "picture", lambda alt: None)

    def draw_block(way, direction, **options):
        entries = {"forward": FORWARD, "backward": BACKWARD}[direction][way]
        diary = [entry | {"direction": direction} for entry in entries]
        tensors.draw_block({"way": way, "batch": 8, "diary": diary}, direction, **options)
        return plt.gcf().axes[0]

    yield draw_block
    plt.close("all")


def steps_downwards(axes):
    """The names at the left, from the top to the bottom."""
    names = []
    for text in axes.texts:
        across, up = text.get_position()
        if across < 1:
            names.append((-up, text.get_text().replace("\n", " ").replace("- ", "-")))
    return [name for _, name in sorted(names)]


def test_11_forward_the_all_reduces_follow_the_row_wise_matrices(draw):
    half = ["norm", "query, key, value", "attention", "project", "all-reduce"]
    other_half = ["norm", "up", "GELU", "down", "all-reduce"]
    assert steps_downwards(draw("tensor", "forward")) == half + other_half


def test_11_backward_the_all_reduces_follow_the_column_wise_matrices(draw):
    half = ["down", "GELU", "up", "all-reduce", "norm"]
    other_half = ["project", "attention", "query, key, value", "all-reduce", "norm"]
    assert steps_downwards(draw("tensor", "backward")) == half + other_half


def test_11_sequence_parallel_gathers_before_up_and_scatters_after_down(draw):
    axes = draw("sequence", "forward", first="feed_forward_norm")
    assert steps_downwards(axes) == ["norm", "all-gather", "up", "GELU", "down", "reduce-scatter"]
    sizes = [text.get_text() for text in axes.texts]
    assert "16 x 14 x 32" not in sizes, "the shards of two ranks one after the other"


@pytest.mark.parametrize(
    ("part", "rank", "area"),
    [
        ("columns", 0, (0, 0, 2, 6)),
        ("columns", 1, (2, 0, 2, 6)),
        ("rows", 0, (0, 3, 4, 3)),
        ("rows", 1, (0, 0, 4, 3)),
        ("term", 1, (0, 0, 4, 6)),
    ],
)
def test_11_rank_0_has_the_left_columns_or_the_upper_rows(part, rank, area):
    axes = tensors.canvas()
    tensors.draw_part(axes, (0, 0), (4, 6), rank, part)
    held, frame = axes.patches
    assert (*held.get_xy(), held.get_width(), held.get_height()) == area
    assert (*frame.get_xy(), frame.get_width(), frame.get_height()) == (0, 0, 4, 6)
    strength = 0.5 if part == "term" else 0.7
    assert held.get_facecolor()[:3] == pytest.approx(tile(RANKS[rank], strength))
    plt.close("all")


def test_11_terms_add_up_and_one_process_has_the_losses_of_two():
    text = printed("11_tensor_parallel")
    of_terms = re.findall(r"^the sum of the terms differs .* by at most (\S+)$", text, re.M)
    assert len(of_terms) == 2 and max(map(float, of_terms)) < 1e-5
    assert float(re.search(r"largest relative difference of the losses: (\S+)", text)[1]) < 1e-5


def test_11_placements_are_those_of_the_sentences():
    text = printed("11_tensor_parallel")
    found = dict(re.findall(r"^(attention\S*) +(S\(0\)|S\(1\)|R|no DTensor)$", text, re.M))
    assert found == {
        "attention.query.weight": "S(0)",
        "attention.query.bias": "S(0)",
        "attention.project.weight": "S(1)",
        "attention.project.bias": "R",
        "attention_norm.weight": "no DTensor",
    }


def test_11_the_losses_are_equal_although_the_final_weights_differ():
    text = printed("11_tensor_parallel")
    assert re.search(r"^largest relative difference of the losses: 0$", text, re.M)
    assert 0 < float(re.search(r"^largest difference of the final weights: (\S+)$", text, re.M)[1]) < 1e-5


def test_11_the_notebook_shows_the_line_that_counts_the_heads_of_the_rank():
    shown = [
        output["data"]["text/markdown"]
        for output in outputs("11_tensor_parallel")
        if "data" in output and "text/markdown" in output["data"]
    ]
    assert any("unflatten(-1, (-1, self.head_size))" in text for text in shown)


def test_11_a_copy_on_each_rank_is_grey_and_a_shard_has_the_colour_of_its_rank(monkeypatch):
    """Each rank draws four sharded matrices with their biases and two matrices with a copied bias."""
    drawn = []
    monkeypatch.setattr(tensors, "picture", lambda alt: None)
    monkeypatch.setattr(tensors, "draw_dots", lambda axes, numbers, corner, colour: drawn.append(colour))
    held = {"attention_norm.weight": {"placement": "no DTensor", "numbers": [1.0, 1.0]}}
    for name in ("attention.query", "attention.key", "attention.value", "feed_forward.up"):
        held[f"{name}.weight"] = {"placement": "S(0)", "numbers": [[1.0, 2.0]]}
        held[f"{name}.bias"] = {"placement": "S(0)", "numbers": [1.0]}
    for name in ("attention.project", "feed_forward.down"):
        held[f"{name}.weight"] = {"placement": "S(1)", "numbers": [[1.0], [2.0]]}
        held[f"{name}.bias"] = {"placement": "R", "numbers": [1.0, 1.0]}
    tensors.draw_held([held, held])
    plt.close("all")
    assert drawn.count(GREY) == 2 * (1 + 2), "the norm's weights and two biases"
    assert drawn.count(RANKS[0]) == drawn.count(RANKS[1]) == 4 * 2 + 2


def test_11_backward_the_gradient_passes_gelu_before_it_reaches_up(monkeypatch):
    monkeypatch.setattr(tensors, "picture", lambda alt: None)
    tensors.draw_products()
    texts = [text.get_text() for text in plt.gcf().axes[0].texts]
    plt.close("all")
    assert texts.count("GELU") == texts.count("GELU'") == 2, "on each rank"
    backward = texts[texts.index("backward") :]
    assert backward[1:7] == [
        "gradient\nof output",
        "down.T",
        "gradient\nof x @ up",
        "up.T",
        "terms",
        "gradient\nof x",
    ]
