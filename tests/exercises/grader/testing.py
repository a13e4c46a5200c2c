"""What a test of an exercise uses: run(body, inputs) runs the student's code, the others compare what came.

from grader.testing import close, require, run, same
"""

import pytest
import torch
from fork_server import linux_proc

from grader import comparing, ranks
from grader.comparing import require, same
from grader.ranks import wipe
from grader.results import Verdict
from grader.wording import so_many

__all__ = [
    "Verdict",
    "close",
    "floats",
    "integers",
    "needs_memory",
    "require",
    "run",
    "same",
    "so_many",
    "tried",
    "wipe",
]


def run(body, inputs, **options):
    """What the body returns on each rank: see ranks.run."""
    return ranks.run(ranks.CURRENT.get(), body, inputs, **options)


def close(what, got, expected, relative=2e-5, scale=None, dtype=None):
    """Equal but for rounding: see comparing.close."""
    comparing.close(what, got, expected, relative, scale, ranks.CURRENT.get().given, dtype)


def tried(words):
    """Say what is being tried, before it is: the student reads it if this fails. Without it, the
    student reads the first paragraph of the test's docstring, and its parameters."""
    ranks.CURRENT.get().tried = words


def needs_memory():
    """Leave out a test that looks at the memory of processes where the system does not tell it: a check of 0
    against 0 would say nothing."""
    if not linux_proc.IS_HERE:
        pytest.skip("memory can be looked at on Linux only")


def floats(*shape):
    """Normal float32 numbers, others for every submission."""
    return torch.randn(*shape)


def integers(low, high, *shape):
    """Whole numbers from low on, less than high."""
    return torch.randint(low, high, shape)
