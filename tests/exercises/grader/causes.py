"""Why a run gave no result: the earliest cause, and whether it is the student's or the machine's."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from grader.results import Verdict
from grader.settings import FILES_OF_ALL, LIMITS, LYING_OF_ALL, MEMORY_OF_ALL, SOCKETS_OF_ALL
from grader.who_waits import Ranks, standing, stood, stuck, unequal, waiting

HOLE = re.compile(r"\d\d[a-z]?\.\d+: ")
ABSENT = re.compile(r"module 'submission_\w+' has no attribute '(\w+)'")
GLOO = re.compile(r"SIGABRT|enforce fail|gloo/transport", re.I)
BYSTANDER = re.compile(
    r"closed by peer|Connection reset|Broken pipe|Timed out waiting|Connection refused|Application timeout"
    r"|another rank|Connection closed",
    re.I,
)
KILLED = (-9, -25)  # by SIGKILL, or by SIGXFSZ because a file grew too large
SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


class Near(IntEnum):
    """How near a cause is to the student's hand. The nearest is told, however late it was heard."""

    NOT_WRITTEN = 0
    OWN = 1
    BYSTANDER = 2  # fell because another rank did: its connection was closed


@dataclass(frozen=True, order=True)
class Cause:
    # The nearest comes first, of those the earliest.
    near: Near
    time: float
    rank: int
    status: str
    came: str


def ended_words(code: int) -> str:
    """What became of a process that ended with this code; a signal is negative."""
    if code == 0:
        return "ended its process before your function returned (by os._exit or something similar)"
    if code == -99:
        return "closed the pipe to the grader"
    if code == -24:
        return f"used up its {LIMITS['cpu_seconds']} s of CPU time: does a loop never end?"
    if code == -25:
        return f"wrote more than {LIMITS['file_bytes'] >> 20} MB: does your code write without end?"
    if code < 0:
        return f"was killed by {SIGNALS.get(-code, f'signal {-code}')}"
    return f"exited with status {code} before your function returned"


def raised(rank: int, error: dict[str, Any], who: str, alone: bool, file: str) -> Cause:
    """The cause that an exception is. All in `error` are the worker's own words."""
    words = str(error.get("words", ""))
    kind = str(error.get("kind", "an exception"))
    if kind == "NotImplementedError" and HOLE.match(words):
        return Cause(Near.NOT_WRITTEN, error["time"], rank, "failed", f"not written yet: {words}")
    absent = ABSENT.fullmatch(words)
    if absent:
        came = f"there is no {absent[1]} in {file}"
        return Cause(Near.NOT_WRITTEN, error["time"], rank, "error", came)
    place = f" at {error['place']}" if error.get("place") else ""
    place += f": {error['text']}" if error.get("text") else ""
    if kind == "SystemExit":
        came = f"{who} called sys.exit({words}){place}"
    elif kind == "BadFrame":
        came = f"{who} sent something that is not a valid result ({words})"
    elif words:
        came = f"{who} raised {kind}: {words}{place}"
    else:
        came = f"{who} raised {kind}{place}"
    near = Near.BYSTANDER if BYSTANDER.search(words) and not alone else Near.OWN
    return Cause(near, error["time"], rank, "error", came)


def ended(rank: int, one: dict[str, Any], who: str, files: dict[str, str]) -> Cause:
    when = one["time"]
    if one["ended"] != -24:
        return Cause(Near.OWN, when, rank, "error", f"{who} {ended_words(one['ended'])}")
    # The kernel's warning makes faulthandler print where the process is.
    at = standing({"stack": one["stack"].rpartition("(most recent call first)")[2]}, files)
    came = f"{who} was{at} when it had {ended_words(-24)}" if at else f"{who} {ended_words(-24)}"
    return Cause(Near.OWN, when, rank, "timeout", came)


def without_result(ranks: Ranks, dies: Iterable[int]) -> Ranks:
    """The ranks that have sent none, but for those that were to be killed."""
    found = {}
    for rank, one in ranks.items():
        was_to_die = rank in dies and one["ended"] in KILLED
        if one["value"] is None and not was_to_die:
            found[rank] = one
    return found


def explain(why: str, seconds: float, seen: list[dict], files: dict[str, str], dies: Iterable[int]) -> None:
    """Raise a Verdict that names the earliest cause, or return if every rank has sent a result."""
    ranks = dict(enumerate(seen))
    for rank, one in ranks.items():
        if one["broken"]:
            raise Verdict("infrastructure", f"rank {rank} did not start: {one['broken']}")
    missing = without_result(ranks, dies)
    if not missing:
        return
    alone = len(ranks) == 1
    causes = []
    for rank, one in missing.items():
        who = "your code" if alone else f"rank {rank}"
        if one["error"]:
            causes.append(raised(rank, one["error"], who, alone, next(iter(files), "")))
        elif one["ended"] is not None:
            causes.append(ended(rank, one, who, files))
    if causes:
        raise as_verdict(min(causes), ranks)
    if why == "busy":
        words = (
            f"this machine is too busy: a run has not ended, in which ranks ran for {seconds:.0f} s in all"
        )
        raise Verdict("infrastructure", words)
    too_much = used_too_much()
    if why in too_much:
        raise Verdict("error", f"your code {too_much[why]} across all its processes")

    # Of those that are in no call of torch.distributed, or else of all, whoever is in the student's code.
    outside = [rank for rank, one in missing.items() if not one["inside"]]
    busy = {}
    for rank in outside or missing:
        if standing(missing[rank], files):
            busy[rank] = missing[rank]
    if why == "stuck" or not busy:
        raise Verdict("timeout", stuck(ranks, missing, files))
    who = f"your code{stood(busy, files).removeprefix('rank 0')}" if alone else stood(busy, files)
    raise Verdict("timeout", f"{who} and had not returned after {seconds:.0f} s{waiting(ranks, busy)}")


def used_too_much() -> dict[str, str]:
    """Words for what all processes of a run have used too much of together."""
    return {
        "memory": f"used more than {MEMORY_OF_ALL >> 30} GB of memory",
        "cpu": "used up all CPU time that a run has",
        "files": f"made more than {FILES_OF_ALL} files and folders",
        "sockets": f"opened more than {SOCKETS_OF_ALL} connections",
        "lying": f"left more than {LYING_OF_ALL >> 20} MB of messages that nobody received",
    }


def as_verdict(cause: Cause, ranks: Ranks) -> Verdict:
    """A cause as the student reads it, with who was waiting for that rank."""
    came = cause.came
    # gloo ends a process that gets more or fewer numbers than it waits for, and says so in its own words.
    if GLOO.search(came):
        came = unequal(ranks) or came
    if not came.startswith("not written"):
        came += waiting(ranks, [cause.rank])
    return Verdict(cause.status, came)
