"""Where everything lies, how much a submission may use, and what the network adds to what it sends."""

from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
INSIDE = HERE / "inside"
STARTERS, SOLUTIONS = ROOT / "lessons" / "exercises", ROOT / "solutions"

LIMITS = {
    "cpu_seconds": 6,
    "file_bytes": 64 << 20,
    "memory_bytes": 3 << 30,
    "memory_of_all": 8 << 30,  # of all processes of a run together; the solutions need 1.3
    "processes": 64,
}
RUN_SECONDS = 20  # on a machine that does nothing else, a run takes a tenth of a second
CHECK_SECONDS = 60  # for all runs of a check; solutions need 8 on two cores with ten other processes
SUBMISSION_SECONDS = 900  # for all checks of a submission; the solutions need 120 there
LARGEST_FILE = 200_000

# What gloo adds to a message, as the kernel counts it: two headers go to the receiver ("there is something
# for you", and the one before the data), and one comes back ("I am ready").
HEADER = 48
ONE_CALL = 1000  # bytes that gloo sends to each other rank for one all_reduce beside the data: 576, mostly
