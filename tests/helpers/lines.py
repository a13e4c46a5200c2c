"""What a run prints, the line of a refusal and a line for each epoch; and its curve."""

import re

from tools import launcher


def refusal(result):
    """The one line of a run that refused to start."""
    assert result.code != 0
    assert result.stdout.strip() == ""
    nodes = set(re.findall(r"^node \d \| ", result.stderr, re.M)) or {""}
    for node in nodes:  # each says it, since the reason may be its own disk or its own GPUs
        assert len(re.findall(rf"^{re.escape(node)}error: ", result.stderr, re.M)) == 1, result.stderr
    lines = re.sub(r"(?m)^node \d \| ", "", result.stderr).splitlines()
    errors = {line for line in lines if line.startswith("error: ")}
    assert len(errors) == 1, result.stderr
    # Beside it stands only what torchrun says of processes that ended. A script says nothing else.
    assert "torch/distributed/" in result.stderr or len(lines) == 1, result.stderr
    assert not re.search(r'File ".*/lessons/', result.stderr), "a stack trace through the lesson"
    return errors.pop()


def is_like(said, expected):
    """One line, which is what is expected, or begins so where "..." stands for its end."""
    (line,) = said.splitlines()
    beginning, dots, _ = expected.partition(" ...")
    return line.startswith(beginning) if dots else line == expected


def check_what_it_printed(stdout, curve):
    lines = re.findall(r"(?m)^(?:node \d \| )?(epoch.*)", stdout)
    for line, row in zip(lines, curve, strict=True):
        assert list(row) == ["epoch", "loss", "accuracy", "images_per_second", "world_size"]
        assert len(str(row["loss"])) > 8, "not in full precision"
        assert line == (
            f"epoch {row['epoch']:2} | loss {row['loss']:.4f} | accuracy {100 * row['accuracy']:4.1f}% "
            f"| {row['images_per_second']:,.0f} images/s"
        )


def column(rows, name):
    """What stands in one column of a curve or another table, from top to bottom."""
    return [row[name] for row in rows]


def check_curve(out, stem, expected, processes=None, limits=launcher.THE_SAME):
    """It has the curve that is expected, and each epoch was trained by so many processes. Returns it."""
    curve = launcher.read_curve(out, stem)
    assert launcher.difference(curve, expected, limits) == ""
    assert processes is None or set(column(curve, "world_size")) == {processes}
    return curve
