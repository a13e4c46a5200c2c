"""What a test of an exercise uses: run(body, inputs) runs the student's code, the others compare what came.

    from grader import close, require, run, same

The rooms: `ranks` runs bodies in the sandbox, behind `walls`; `causes` says in words why a run gave no
result; `comparing` compares; `plugin` makes points, hints and a report of what pytest has found.
"""

import os
import sys
from pathlib import Path

# Before anything imports torch. What a check works out is small: of two threads, one would only spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "sandbox"))

from grader import comparing, ranks
from grader.comparing import require, same, so_many
from grader.ranks import run, wipe
from grader.results import Verdict

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
    import torch

    return torch.randn(*shape)


def integers(low, high, *shape):
    """Whole numbers from low on, less than high."""
    import torch

    return torch.randint(low, high, shape)
