"""Where things lie."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ROOT / "lessons"
RANK_SCRIPTS = ROOT / "notebooks/show/rank_scripts"  # what scripts import that show.ranks starts


def python_path(*folders):
    """For the environment of a process: it looks for modules in these folders, then where this one does."""
    places = list(map(str, folders))
    if os.environ.get("PYTHONPATH"):
        places.append(os.environ["PYTHONPATH"])
    return os.pathsep.join(places)
