"""Where everything lies, and how much a submission may use."""

from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
SANDBOX = HERE / "sandbox"
STARTERS, SOLUTIONS = ROOT / "lessons" / "exercises", ROOT / "solutions"

LIMITS = {  # of each process
    "cpu_seconds": 6,
    "file_bytes": 64 << 20,
    "memory_bytes": 3 << 30,
    "processes": 64,
}
MEMORY_OF_ALL = 8 << 30  # of all processes of a run together; the solutions need 1.3
RUN_SECONDS = 20  # on a machine that does nothing else, a run takes a tenth of a second
SUBMISSION_SECONDS = 900  # for all checks of a submission; the solutions need 120 there
LARGEST_FILE = 200_000
