"""What a check comes to."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

LONGEST = 5000  # letters of what came


class Verdict(AssertionError):
    """A check that is not passed: what came, what was expected. What a student reads."""

    def __init__(self, status: str, came: str, expected: str = ""):
        super().__init__(came)
        # Much of it may be a submission's, and hints are looked for in it with regular expressions.
        self.status, self.came, self.expected = status, came[:LONGEST], expected[:LONGEST]


@dataclass
class Result:
    id: str
    title: str
    points: float
    score: float = 0
    status: str = "not reached"  # or passed, failed, error, timeout, skipped, infrastructure
    tried: str = ""
    came: str = ""
    expected: str = ""
    output: str = ""  # of what the student's code has printed in the last run, the first and last lines
    printed: str = ""  # all of it, in all runs
    hints: list[str] = field(default_factory=list)
    about_file: bool = False  # the file is not there, or is no Python: nothing of it was run
    corrected_from: float | None = None  # the points before a correction by hand

    def as_dict(self) -> dict[str, Any]:
        return asdict(replace(self, printed=""))
