# ruff: noqa: F401 (what checks and programs call judge.x)
"""The process that decides. It never runs, imports or unpickles anything of a submission.

A check draws inputs, has a driver run the submission's code in workers (inside/), and compares what they send
with what it has worked out here. No word of a worker counts, only arrays that are right and what could be
seen from outside. A check that has not been proved is worth nothing.

The rooms, from the door inwards: `exercises` knows what there is; `grading` takes a submission through the
checks; `trial` is what a check has in hand, `comparing` how it compares; `connection` starts the nursery
behind `walls`; `causes` and `waits` say why a run gave no result; `wording` is what a student reads.
"""

import os
import sys
from pathlib import Path

# Before anything imports torch. What a check works out is small: of two threads, one would only spin while it
# waits for the other, and on a busy machine that took 27 s of processor time for a submission instead of 4.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What judge and workers have in common: wire, contain, by_path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "inside"))

from judge import hints, printed
from judge.causes import explain
from judge.comparing import so_many
from judge.connection import Gone, Nursery
from judge.exercises import CHECKS, check, check_function, exercise, manifest, points_of, wanted
from judge.grading import grade, grade_one, refuse_names, said_before
from judge.results import Result, Verdict
from judge.settings import (
    CHECK_SECONDS,
    HEADER,
    HERE,
    INSIDE,
    LARGEST_FILE,
    ONE_CALL,
    ROOT,
    SOLUTIONS,
    STARTERS,
    SUBMISSION_SECONDS,
)
from judge.trial import Trial, look
from judge.waits import call
from judge.walls import MEANING, containment, machine, within_reach
from judge.wording import detail, helpful, number, report
