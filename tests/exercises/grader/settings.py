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
FILES_OF_ALL = 20_000  # a folder takes 3 kB of the kernel's memory
SOCKETS_OF_ALL = 400  # 8 ranks need 130
LYING_OF_ALL = 256 << 20  # bytes that have been sent and not been received
# Seconds in which a rank waits for a core do not count.
RUN_SECONDS = 20  # on a machine that does nothing else, a run takes a tenth of a second
SUBMISSION_SECONDS = 900  # for all checks of a submission; the solutions need 60
TOO_BUSY = 20  # so many times as long a run may take in all
LARGEST_FILE = 200_000
