"""What a check has in hand: inputs that are drawn, runs of a driver, and comparisons."""

import hashlib
import sys
from typing import TYPE_CHECKING, Any

import numpy
import wire

from judge import comparing
from judge.causes import explain
from judge.exercises import Exercise
from judge.nursery import Nursery
from judge.results import Verdict
from judge.settings import LIMITS, RUN_SECONDS

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
        self.words, self.output, self.runs, self.left = [], "", 0, 0
        self.answer, self.folders = None, set()

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
    ) -> list[Any]:
        """Run a driver on as many ranks as there are inputs. Returns the list of what they send.

        `self.answer` keeps the rest: events, marks. Raises Verdict if a rank does not send a result, unless
        `kill` says that one is to die: its place in the list is None then.
        """
        files = self.files if files is None else files
        if folder:
            folder = f"kept-{self.seed}-{folder}"
            self.folders.add(folder)
        request = {
            "driver": f"{self.exercise['stem']}.{driver}",
            "inputs": [wire.pack(value) for value in inputs],
            "files": files,
            "main": main if main is None else main or self.exercise["files"][0],
            "forbidden": self.exercise.get("forbidden", []),
            "limits": LIMITS | self.exercise.get("limits", {}),
            "seed": self.seed,
            "group": group,
            "limit": limit or self.exercise.get("seconds", RUN_SECONDS),
            "kill": kill,
            "folder": folder,
            "keep": bool(folder),
        }
        self.nursery.ready()  # one that does not start has run nothing: no fault of a student
        self.runs += 1
        self.answer = answer = self.nursery.run(**request)
        self.left += answer["left"]
        for rank, one in enumerate(answer["ranks"]):
            if one["output"].strip():
                self.output = (self.output + f"[rank {rank}] {one['output'].strip()}\n")[-6000:]
        explain(answer, list(files), killed=kill["rank"] if kill else None)
        return [unpacked(rank, one["value"]) for rank, one in enumerate(answer["ranks"])]

    def events(self, rank: int, name: str | None = None) -> list[dict[str, Any]]:
        """What happened in a rank, in order, as dicts; it is the worker's own word."""
        events = self.answer["ranks"][rank]["events"]
        return [event for event in events if name is None or event.get("event") == name]

    def mark(self, rank: int, name: str) -> dict[str, Any]:
        """What was seen from outside when all ranks stood at a mark: sent, segments (TCP), memory (bytes)."""
        return self.answer["ranks"][rank]["marks"][name]

    # -- verdicts

    def require(self, condition: Any, came: str, expected: str = "") -> None:
        """Whatever a check has to say in its own words."""
        comparing.require(condition, came, expected)

    def same(self, what: str, got: Any, expected: Any) -> None:
        """Equal things: whole numbers, words, None, lists of them."""
        comparing.same(what, got, expected)

    def close(
        self, what: str, got: Any, expected: Any, relative: float = 2e-5, scale: float | None = None
    ) -> None:
        """Equal but for rounding."""
        comparing.close(what, got, expected, relative, scale)


def unpacked(rank: int, value: list[int] | None) -> Any:
    """What a rank has sent. It may have written any bytes itself."""
    try:
        return None if value is None else wire.unpack(bytes(value))
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
