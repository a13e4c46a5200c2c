"""What the checks of several exercises need."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import numpy

from judge.causes import explain
from judge.results import Verdict
from judge.trial import Trial

# How much a process may have grown until something large is made, since the look before the submission is
# loaded: -1.2 to 0.4 MB were seen. If something is held there that is let go of later, too little is seen.
WARM = 4 << 20
KILLED, TOO_LARGE = -9, -25  # signals: SIGKILL, SIGXFSZ


def megabytes(value: float) -> str:
    return f"{value / 1e6:.1f} MB"


def as_dict(value: Any) -> dict[Any, Any]:
    """What a driver hands back may be forged, and be anything."""
    return value if isinstance(value, dict) else {}


def pairs_of(world_size: int) -> Iterator[tuple[int, int]]:
    """Each rank with each other rank."""
    return itertools.permutations(range(world_size), 2)


def same_bits(got: Any, expected: Any) -> bool:
    return isinstance(got, numpy.ndarray) and numpy.array_equal(got, expected)


def run(trial: Trial, driver: str, inputs: list[Any], aborted: str, **more: Any) -> list[Any]:
    """Trial.run, with words for what gloo says by ending the process: it does this when ..."""
    try:
        return trial.run(driver, inputs, **more)
    except Verdict as verdict:
        if "SIGABRT" in verdict.came:
            verdict.came += f"; gloo does this when {aborted}"
        raise


def as_if(verdict: Verdict, known: list[str]) -> None:
    """Say in a verdict which mistake gives what came, if one is known."""
    verdict.came += f"; as if {', or '.join(known)}" if known else ""


@contextlib.contextmanager
def right_without(words: str) -> Iterator[None]:
    """For a case that comes after one without `words`: a verdict says that the other was right."""
    try:
        yield
    except Verdict as verdict:
        verdict.came += f"; without {words}, all of this is right"
        raise


def gates_of(trial: Trial, world_size: int, *names: str) -> list[dict[str, dict[str, Any]]]:
    """For each rank the gates of these names, each with a number that nobody knows before."""
    numbers = {name: trial.secrets(world_size) for name in names}
    return [{name: {"value": numbers[name][rank]} for name in names} for rank in range(world_size)]


def pass_gates(
    trial: Trial,
    whole: float,
    room: float,
    about: str,
    sent: list[tuple[int, str]],
    first: str,
    made: str = "",
) -> tuple[list[dict[str, dict[str, Any]]], float]:
    """The gates of a forward and a backward pass through layers of `whole` bytes that the ranks share out: a
    rank goes on when it holds no more than its part (after backward twice that) and `room`, and when it has
    sent what is due. `sent` has these bytes for each rank, and words. Returns the gates, and the number that
    all get between forward and backward. `first` and `made` are words for looks before and after the layers
    are made, `about` for the whole."""
    gates, back = gates_of(trial, len(sent), "before", "made", "forward", "backward"), trial.secret()
    looks = [("forward", "after forward", 1, "made"), ("backward", "after backward", 2, "forward")]
    looks += [("made", made, 1, "")] * bool(made)
    for one, (due, words) in zip(gates, sent, strict=True):
        one["forward"]["value"] = back
        if not trial.counted:
            continue
        one["before"] |= {"memory": WARM, "words": first}
        for name, when, times, since in looks:
            share = times * whole / len(sent)
            memory = f"about {megabytes(share)} of memory, at most {megabytes(share + room)}"
            one[name] |= {"memory": int(share + room), "memory since": "before", "words": when}
            one[name] |= {"expected": f"{memory} ({about} {megabytes(whole)}){words}"}
            one[name] |= {"sent": due, "sent since": since} if since else {}
    return gates, back


def listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"


def ours(trial: Trial, driver: str, folder: str, /, **inputs: Any) -> Any:
    """A run of one process without the student's code."""
    return trial.run(driver, [inputs], group=False, folder=folder, main=None)[0]


def look_into(trial: Trial, folder: str, *names: str) -> Any:
    return ours(trial, "look", folder, folders=list(names))


def ended(trial: Trial, value: Any) -> int | None:
    """How a run ended that may be killed, of which `value` came: a signal (negative), or None at its end."""
    ended = trial.answer["ranks"][0]["ended"]
    if value is None and ended not in (KILLED, TOO_LARGE):
        explain(trial.answer, trial.files)
    return ended if value is None else None


def file_event(trial: Trial) -> str:
    """Before which file event rank 0 was killed, by its own word."""
    events = trial.events(0, "killed")
    return str(events[-1].get("before"))[:200] if events else "opens, renames or removes a file"


def calls_of(
    trial: Trial, rank: int, since: str | None = None, until: str | None = None
) -> list[dict[str, Any]]:
    """The calls of torch.distributed of a rank, from one event to another, by its own word: from the
    beginning or to the end where these are not given."""
    events = trial.events(rank)
    places = {}
    for place, event in enumerate(events):
        places.setdefault(event.get("event"), place)
    events = events[places.get(since, 0) : places.get(until, 0) if until else None]
    return [event for event in events if event.get("phase") == "begin"]


def in_words(call: dict[str, Any]) -> str:
    return f"{call.get('event')} of {call.get('size')} numbers"
