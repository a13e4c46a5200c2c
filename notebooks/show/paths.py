"""Where things lie, and where a notebook finds modules."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ROOT / "lessons"
RANK_SCRIPTS = ROOT / "notebooks/show/rank_scripts"  # what scripts import that show.ranks starts

# A kernel starts in `notebooks`. Without these folders, a notebook would not find workload, or what its
# processes import, and show itself would not find tools.testbed.
sys.path[:0] = [str(LESSONS), str(RANK_SCRIPTS), str(ROOT)]
