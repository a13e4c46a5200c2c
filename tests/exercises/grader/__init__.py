"""The process that decides. It never runs, imports or unpickles anything of a submission.

A test draws inputs, has a body run with the submission's code in ranks (sandbox/), and compares what they
send with what it has worked out here. `exercises` knows what there is; `plugin` makes points, hints and a
report of what pytest finds; `testing` is what tests use. `ranks` runs bodies in the sandbox, behind `walls`;
`comparing` compares; `causes` and `waits` say why a run gave no result; `wording` is what a student reads;
`batch` grades several submissions.
"""

import os
import sys
from pathlib import Path

# Before anything imports torch. What a check works out is small: of two threads, one would only spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "sandbox"))
