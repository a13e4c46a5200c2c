"""Notebooks show what one came for: at least three quarters of their lines of code teach."""

import pytest

import lessons
import teaching

DRAWING = teaching.functions_that_draw()


@pytest.mark.parametrize("row", lessons.NOTEBOOKS, ids=lambda row: row.stem)
def test_most_lines_of_code_teach(row):
    kinds = [kind for kind, _ in teaching.count(row.path, DRAWING)]
    assert kinds.count("teach") >= teaching.SHARE * len(kinds), f"python tools/teaching.py {row.stem} --lines"


@pytest.mark.parametrize(
    ("cells", "kinds"),
    [
        (["import show\nout = show.start('x')\nK = 4"], ["set up"] * 3),
        (["import torch\nx = torch.ones(2)\nprint(x)"], ["teach"] * 3),
        (["import matplotlib.pyplot as plt"], ["set up"]),
        (["assert a == b", "if a:\n    assert b\n"], ["check"] * 3),
        (["figure, axes = plt.subplots()\naxes.plot(x)\nshow.picture('a')"], ["draw"] * 3),
        (["x = f()\nfor y in x:\n    z = g(y)\n    axes = plt.subplots()\n    axes.plot(z)"], ["draw"] * 5),
        (["x = f()", "print(x)\nshow.picture(x)"], ["teach", "teach", "draw"]),
        (["x = f()", "show.picture(x)"], ["draw", "draw"]),
        (["show.run(\n    'python x.py'\n)"], ["teach"] * 3),
        (["%%writefile x.py\n    y = 1\n"], ["teach"] * 2),
        (["# a comment\n\n!ls"], ["teach"]),
    ],
)
def test_a_line_is_of_one_kind(cells, kinds):
    assert [kind for kind, _ in teaching.Count(cells, DRAWING).rows()] == kinds


def test_a_function_of_show_that_ends_in_a_picture_draws():
    assert {"picture", "slider"} < DRAWING and "table" not in DRAWING and "run" not in DRAWING
    assert "one_step" in DRAWING, "it calls show.picture itself"
