"""What a check has in hand: inputs that are drawn, runs of a driver, and comparisons."""

import hashlib
import sys
from typing import TYPE_CHECKING, Any

import numpy
import wire

from judge import comparing
from judge.causes import explain
from judge.connection import Nursery
from judge.exercises import Exercise
from judge.results import Verdict
from judge.settings import CHECK_SECONDS, LIMITS, RUN_SECONDS

if TYPE_CHECKING:
    import torch  # the judge can wait for it: whoever draws nothing need not import it


class Trial:
    """One check of one submission. `answer` is what the nursery said of the last run."""

    def __init__(
        self, nursery: Nursery | None, one: Exercise, identity: str, files: dict[str, str], seed: Any
    ):
        self.nursery, self.exercise, self.files = nursery, one, files
        digest = hashlib.sha256(f"{seed}/{identity}".encode()).digest()
        self.seed = int.from_bytes(digest[:6], "big")
        self.random = numpy.random.default_rng(self.seed)
        # All that a rank may know: from this, nobody can draw what the judge draws.
        self.name = digest[6:].hex()
        self.words, self.printed, self.runs, self.left, self.seconds = [], [], 0, 0, 0
        self.answer, self.folders, self.given = None, set(), []
        # For numbers behind gates. They decide nothing, and nobody can work them out from any seed.
        self.unknown = numpy.random.default_rng()

    # Whether bytes and memory can be seen from outside: only Linux tells. Elsewhere those checks count less.
    counted = sys.platform == "linux"

    # -- inputs

    def floats(self, *shape: int) -> "torch.Tensor":
        """Normal float32 numbers as a tensor, others for every submission."""
        import torch

        return torch.from_numpy(self.random.standard_normal(shape).astype("float32"))

    def integers(self, low: int, high: int, *shape: int) -> "torch.Tensor":
        """Whole numbers from low on, less than high."""
        import torch

        return torch.from_numpy(self.random.integers(low, high, shape))

    def tried(self, words: str) -> None:
        """Say what is being tried, before it is: the student reads it if this fails."""
        self.words = [words]

    # -- runs

    def run(
        self,
        driver: str,
        inputs: list[dict[str, Any]],
        group: bool = True,
        limit: float | None = None,
        kill: dict[str, float] | None = None,
        folder: str | None = None,
        main: str | None = "",
        files: dict[str, str] | None = None,
        gates: list[dict[str, dict[str, Any]]] | None = None,
    ) -> list[Any]:
        """Run a driver on as many ranks as there are inputs. Returns the list of what they send.

        `self.answer` keeps the rest: events, marks. Raises Verdict if a rank does not send a result, unless
        `kill` says that one is to die: its place in the list is None then.

        `gates` has for each rank the numbers that its driver asks for (`tools.ask`), by name: {"value": the
        number, "sent": bytes that the rank must have sent, "memory": by how many it may have grown, "sent
        since" and "memory since": the gate from which on (or else the beginning), "asked": the [rank, gate]
        that must have been asked before, "words" and "expected": what a student reads if it stays closed}.
        """
        self.given = inputs
        files = self.files if files is None else files
        if folder:
            folder = f"kept-{self.name[:12]}-{folder}"
            self.folders.add(folder)
        request = {
            "driver": f"{self.exercise['stem']}.{driver}",
            "inputs": [wire.pack(value) for value in inputs],
            "files": files,
            "main": main if main is None else main or self.exercise["files"][0],
            "forbidden": self.exercise.get("forbidden", []),
            "limits": LIMITS | self.exercise.get("limits", {}),
            "seed": f"{self.name}/{self.runs}",
            "group": group,
            "limit": min(limit or self.exercise.get("seconds", RUN_SECONDS), CHECK_SECONDS - self.seconds),
            "kill": kill,
            "folder": folder,
            "keep": bool(folder),
            "gates": gates or [],
        }
        if self.seconds >= CHECK_SECONDS:
            raise Verdict("timeout", f"the time limit of {CHECK_SECONDS} s for a check was reached")
        self.nursery.ready()  # one that does not start has run nothing: no fault of a student
        self.runs += 1
        self.answer = answer = self.nursery.run(**request)
        self.left += answer["left"]
        self.seconds += answer["seconds"]
        printed = {}
        for rank, one in enumerate(answer["ranks"]):
            if one["output"].strip():
                printed[rank] = one["output"].strip("\n")
        self.printed.append((" ".join(self.words), len(answer["ranks"]), printed))
        explain(answer, files, killed=kill["rank"] if kill else None, gates=gates)
        return [unpacked(rank, one["value"]) for rank, one in enumerate(answer["ranks"])]

    def events(self, rank: int, name: str | None = None) -> list[dict[str, Any]]:
        """What happened in a rank, in order, as dicts; it is the worker's own word."""
        events = self.answer["ranks"][rank]["events"]
        return [event for event in events if name is None or event.get("event") == name]

    def mark(self, rank: int, name: str) -> dict[str, Any]:
        """What was seen of a rank from outside: sent, memory (bytes). `@start` is before the
        first line of the student's code, `@end` after all ranks have sent a result: no code of theirs can
        choose these moments."""
        return self.open_still(rank, self.answer["ranks"][rank]["marks"][name])

    def open_still(self, rank: int, seen: dict[str, Any]) -> dict[str, Any]:
        """What was seen, if no connection of this rank is gone: nobody knows what went over it."""
        closed = seen["closed"]
        self.require(not closed, f"rank {rank} has closed {closed} of its connections", "all stay open")
        return seen

    def secret(self) -> float:
        """A number for a gate, near 1, that no code of a student can know before it has passed the gate."""
        return float(numpy.float32(self.unknown.uniform(0.6, 1.6)))

    def secrets(self, count: int) -> list[float]:
        """A secret for each rank, any two of them at least 1/(2 count) apart. Exercise 08 tells by them which
        rank updated a parameter: from two secrets that nearly agree, it named the wrong rank."""
        places = self.unknown.permutation(count) + self.unknown.uniform(0, 0.5, count)
        return (0.6 + places / count).astype("float32").tolist()

    def asked(self, rank: int, name: str) -> dict[str, Any]:
        """What a rank gave to the judge when it asked at a gate ("with"), and what was seen from outside when
        the gate opened: sent, memory (bytes)."""
        asked = self.answer["ranks"][rank]["asked"]
        self.require(name in asked, f"rank {rank} never reached {name!r}, where it must ask the grader")
        return self.open_still(rank, asked[name])

    def sent(self, rank: int, to: int | None = None) -> int | None:
        """Bytes that a rank has sent in all, to all or to one other; None where they are not counted."""
        before, after = self.mark(rank, "@start"), self.mark(rank, "@end")
        if not before["sockets"]:
            if self.counted and len(self.answer["ranks"]) > 1:
                raise Verdict("infrastructure", "the kernel does not report how many bytes a process sent")
            return None
        if to is None:
            return after["sent"] - before["sent"]
        return after["to"].get(to, 0) - before["to"].get(to, 0)

    # -- verdicts

    # What a check has to say in its own words; and equal things: whole numbers, words, None, lists of them.
    require, same = staticmethod(comparing.require), staticmethod(comparing.same)

    def close(
        self, what: str, got: Any, expected: Any, relative: float = 2e-5, scale: float | None = None
    ) -> None:
        """Equal but for rounding."""
        comparing.close(what, got, expected, relative, scale, self.given)


def unpacked(rank: int, value: list[int] | None) -> Any:
    """What a rank has sent. It may have written any bytes itself."""
    try:
        return None if value is None else wire.unpack(bytes(value), wire.LONGEST, wire.MOST_VALUES)
    except wire.BadFrame as error:
        raise Verdict("error", f"rank {rank} sent no valid result: {error}") from None


def look(value: Any, *path: Any) -> Any:
    """A part of what came, or None: it may be anything."""
    for key in path:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return None
    return value
