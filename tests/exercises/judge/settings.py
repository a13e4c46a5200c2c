"""Where everything lies, and how much a submission may use."""

from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
INSIDE = HERE / "inside"
STARTERS, SOLUTIONS = ROOT / "lessons" / "exercises", ROOT / "solutions"

LIMITS = {"cpu_seconds": 6, "file_bytes": 64 << 20, "memory_bytes": 3 << 30, "processes": 64}
RUN_SECONDS = 20  # on a machine that does nothing else, a run takes a tenth of a second
LARGEST_FILE = 200_000
