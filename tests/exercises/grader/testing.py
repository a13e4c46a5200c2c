"""What a test of an exercise uses: run(body, inputs) runs the student's code, the others compare what came.

from grader.testing import close, require, run, same
"""

import torch

from grader import comparing, ranks
from grader.comparing import require, same
from grader.ranks import run, wipe
from grader.results import Verdict
from grader.wording import so_many

__all__ = ["Verdict", "close", "floats", "integers", "require", "run", "same", "so_many", "tried", "wipe"]


def close(what, got, expected, relative=2e-5, scale=None, dtype=None):
    """Equal but for rounding: see comparing.close."""
    comparing.close(what, got, expected, relative, scale, ranks.Submission.given, dtype)


def tried(words):
    """Say what is being tried, before it is: the student reads it if this fails. Without it, the
    student reads the first paragraph of the test's docstring, and its parameters."""
    ranks.Submission.tried = words


def floats(*shape):
    """Normal float32 numbers, others for every submission."""
    return torch.randn(*shape)


def integers(low, high, *shape):
    """Whole numbers from low on, less than high."""
    return torch.randint(low, high, shape)
