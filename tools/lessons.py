"""The table of lessons, lessons.toml: what the ladder, the launcher, the pages and the tests know of each.

Nothing else looks at a lesson's number. `python -m tools.lessons` prints the table.
"""

import re
import tomllib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools/lessons.toml"
LAUNCHERS = ("python", "mp.spawn", "torchrun", "two agents")


@dataclass(frozen=True)
class Curve:
    """Whose losses a lesson must have, and how closely. lessons/README.md says why not "the same bytes"."""

    of: str = "01_single_gpu"
    early: float = 1e-5  # relative, in the first three epochs
    late: float = 1e-3
    accuracy: float = 0.002  # at the end

    def is_its_own(self) -> bool:
        return self.of == "itself"


@dataclass(frozen=True)
class Notebook:
    stem: str
    title: str
    question: str
    needs: str = ""

    @property
    def number(self) -> str:
        return number_of(self.stem)

    @property
    def path(self) -> Path:
        return ROOT / "notebooks" / f"{self.stem}.ipynb"

    def is_missing(self) -> bool:
        return is_missing(self.needs)


@dataclass(frozen=True)
class Lesson:
    stem: str
    title: str
    idea: str
    launcher: str
    notebooks: tuple[Notebook, ...]
    grown_from: str = ""
    restarts: bool = False
    ladder: bool = False
    curve: Curve = Curve()
    processes: int = 2
    most: int = 8
    items: str = "images"
    needs: str = ""
    small: str = "--train-size 240 --batch-size 24 --test-size 60"
    shortest: bool = False
    new: int = 60
    patient: bool = False
    saving: bool = False
    keeps_snapshot: bool = False
    leaves: tuple[str, ...] = ()
    # 1,055 images lack one to a full batch; 997 test images make uneven shards, and two batches.
    promise: str = "--train-size 1055 --batch-size 96 --test-size 997 --epochs 2 --seed 3"
    runs: tuple[str, ...] = ()
    learns: str = ""
    close: float = 0
    on_gpus: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        return number_of(self.stem)

    @property
    def path(self) -> Path:
        return ROOT / "lessons" / f"{self.stem}.py"

    @property
    def page(self) -> Path:
        return ROOT / "lessons/pages" / f"{self.number}.md"

    def is_one_process(self) -> bool:
        return self.launcher == "python"

    def is_missing(self) -> bool:
        return is_missing(self.needs)

    def processes_for(self, gpus: int) -> int:
        """How many processes a machine with this many GPUs starts."""
        if self.is_one_process():
            return 1
        if gpus == 0:
            return self.processes
        # A power of two: three processes cannot share four heads. Too few GPUs are shared.
        used = min(gpus, self.most)
        return max(self.processes, 2 ** (used.bit_length() - 1))


def is_missing(needs: str) -> bool:
    """Whether it needs a module that is not installed."""
    return bool(needs) and find_spec(needs.partition(":")[0]) is None


def number_of(stem: str) -> str:
    """03a of 03a_how_gradients_travel; nothing where there is no number."""
    found = re.match(r"(\d\d[a-z]?)_", stem)
    return found[1] if found else ""


def read(path: Path = TABLE) -> tuple[tuple[Lesson, ...], tuple[Notebook, ...]]:
    """The lessons, and the notebooks that belong to none."""
    table = tomllib.loads(path.read_text())
    rows = []
    for row in table["lesson"]:
        name = row.get("stem", "a lesson without a stem")
        if not isinstance(row.get("curve", {}), dict):
            raise SystemExit(f'error: {path.name}, {name}: curve is a table, such as {{ of = "itself" }}')
        try:
            notebooks = tuple(Notebook(**notebook) for notebook in row.pop("notebook", ()))
            for column in ("leaves", "runs", "on_gpus"):
                row[column] = tuple(row.get(column, ()))
            rows.append(Lesson(notebooks=notebooks, curve=Curve(**row.pop("curve", {})), **row))
        except TypeError as error:
            raise SystemExit(f"error: {path.name}, {name}: {str(error).partition(' ')[2]}") from None
        if rows[-1].launcher not in LAUNCHERS:
            raise SystemExit(f"error: {path.name}, {name}: launcher is one of {', '.join(LAUNCHERS)}")
        for needed in (rows[-1].path, rows[-1].page):
            if not needed.exists():
                raise SystemExit(f"error: {path.name}, {name}: {needed.relative_to(ROOT)} is missing")
    return tuple(rows), tuple(Notebook(**notebook) for notebook in table["notebook"])


def read_grown(path: Path = TABLE) -> dict[Path, Path]:
    """The scripts that are no lessons, each with the script that it grew from."""
    grown = {}
    for row in tomllib.loads(path.read_text())["grown"]:
        script, parent = ROOT / row["script"], ROOT / row["from"]
        for needed in (script, parent):
            if not needed.exists():
                raise SystemExit(f"error: {path.name}: {needed.relative_to(ROOT)} is missing")
        grown[script] = parent
    return grown


LESSONS, OTHER_NOTEBOOKS = read()
GROWN = read_grown()
ADDRESS = tomllib.loads(TABLE.read_text())["address"].rstrip("/")
STEMS = tuple(lesson.stem for lesson in LESSONS)
LADDER = tuple(lesson for lesson in LESSONS if lesson.ladder)
NOTEBOOKS = (*(notebook for lesson in LESSONS for notebook in lesson.notebooks), *OTHER_NOTEBOOKS)


def get(stem: str) -> Lesson:
    return next(lesson for lesson in LESSONS if lesson.stem == stem)


def chosen(names: str) -> list[Lesson]:
    """The lessons that a command line names: "01,05"; "all"; "ladder"."""
    if names in ("all", "ladder"):
        return list(LESSONS if names == "all" else LADDER)
    numbers = {lesson.number: lesson for lesson in LESSONS}
    for name in names.split(","):
        if name not in numbers:
            raise SystemExit(
                f"error: there is no lesson {name!r}: choose ladder, all, or some of {','.join(numbers)}"
            )
    return [numbers[name] for name in sorted(set(names.split(",")))]


def exercises(number: str) -> list[Path]:
    """The exercises that can be solved after the lesson or notebook of this number: theirs is the same."""
    return sorted((ROOT / "solutions").glob(f"{number}_*"))


if __name__ == "__main__":
    for lesson in LESSONS:
        print(f"{lesson.stem:20} {lesson.launcher:11} from {lesson.grown_from:20} {lesson.idea}")
