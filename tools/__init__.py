"""What the Makefile calls. A tool is started in the repository's root: python -m tools.run_lessons

Tools import what the lessons share, and the pictures of the notebooks, under the names that lessons and
notebooks give them: `import workload`, `from planner import formulas`, `from show import rings`.
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("lessons", "notebooks")]
