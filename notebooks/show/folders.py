"""Where things lie."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ROOT / "lessons"
INSIDE = ROOT / "notebooks/show/inside"  # what scripts import that show.ranks starts
