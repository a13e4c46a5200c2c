"""What a check comes to."""

from dataclasses import asdict, dataclass, field
from typing import Any


class Verdict(Exception):
    """A check that is not passed: what came, what was expected."""

    def __init__(self, status: str, came: str, expected: str = ""):
        super().__init__(came)
        self.status, self.came, self.expected = status, came, expected


@dataclass
class Result:
    """One check of one submission."""

    id: str
    title: str
    points: float
    score: float = 0
    status: str = "not reached"  # or passed, failed, error, timeout, infrastructure
    tried: str = ""
    came: str = ""
    expected: str = ""
    output: str = ""
    hints: list[str] = field(default_factory=list)
    visibility: str = "visible"
    seconds: float = 0
    left: int = 0
    about_file: bool = False  # the file is not there, or is no Python: nothing of it was run

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
