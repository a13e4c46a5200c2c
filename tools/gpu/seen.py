"""What a GPU has shown already, from files of rows: for the order of `make gpu`, and for --only-new. Those in
tools/makers/results were put together by hand."""

import functools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.gpu import speed

STRUCK = "a rank that is stopped or told to end costs no byte either"
RESULTS = Path(__file__).resolve().parents[1] / "makers/results"
NOTEBOOKS = RESULTS.parents[2] / "notebooks"
NOTEBOOK = "it runs on a gpu["
# On the first day, rows had other names. These tests ask for what these rows have shown.
OTHER_NAMES = {
    "09_fsdp on 2, precision bf16, curve": "its options have it too[09 --precision bf16]",
    "09_fsdp on 2, checkpoint-activations, curve": "its options have it too[09 --checkpoint-activations]",
    "09_fsdp on 2, offload, curve": "its options have it too[09 --offload]",
    "09_fsdp on 2, no-reshard, curve": "its options have it too[09 --no-reshard]",
    "06b_preemption on 2, SIGSTOP": f"{STRUCK}[SIGSTOP]",
    "06b_preemption on 2, SIGTERM": f"{STRUCK}[SIGTERM]",
}


def parts(found: object) -> Iterator[tuple[str, dict | list]]:
    """Each table and each list in a file, with the name under which it stands."""
    for name, part in found.items() if isinstance(found, dict) else [("", each) for each in found]:
        if isinstance(part, dict | list):
            yield name, part
            yield from parts(part)


def rows(table: dict) -> Iterator[tuple[str, float]]:
    """The names of what was right, or was measured, with the seconds that it took, 0 if that is not known."""
    for name, part in parts({"": table}):
        if isinstance(part, dict) and part.get("verdict") in ("ok", "measured"):
            said = re.search(r"; (\d+) s$", part.get("value", ""))
            name = OTHER_NAMES.get(part["name"], part["name"])
            yield name, part.get("seconds") or (float(said[1]) if said else 0)
        elif name in ("ladder", "gpt") and isinstance(part, dict):
            for each in part.keys() & (speed.STEPS | speed.GPTS).keys():
                # A GPT of this name was once compiled in another way.
                if part[each].get("kinds", []) == speed.GPTS.get(each, {}).get("kinds", []):
                    yield speed.title(each), 0
        elif name.startswith("notebooks that ran to their end"):
            yield from ((NOTEBOOK + number, 0) for number in part)


def before(paths: Iterable[Path]) -> dict[str, float]:
    """The same of several files; but what a rehearsal shows is nothing that a GPU has shown."""
    found = {}
    for path in paths:
        table = json.loads(path.read_text())
        if not table.get("rehearsal"):
            for name, seconds in rows(table):
                if name != "the whole stage":
                    found[name] = max(seconds, found.get(name, 0))
    return found


def short(name: str) -> str:
    """A test's name, whatever the GPUs: [13-1], [13-4]. A notebook's has its number alone."""
    if name.startswith(NOTEBOOK):
        return name.partition("_")[0].rstrip("]")
    return re.sub(r"-\d(-for-4)?\]$", "]", name)


def place(name: str, known: dict[str, float], gpus: int = 1) -> tuple:
    """Where a test comes: first what has not been seen, then what uses all GPUs, then the longest, which
    would end alone if it began last; but the shortest notebooks, since there is no time for all."""
    if name.startswith(NOTEBOOK):
        return is_seen(name, known), False, stored(name.removeprefix(NOTEBOOK).rstrip("]"))
    of_others = (seconds for other, seconds in known.items() if short(other) == short(name))
    guess = next((seconds for words, seconds in GUESSED.items() if words in name), 25)
    seconds = known.get(name) or max(of_others, default=0) or guess
    shape = re.search(r"\[(\d)[-\]]|-(\d)(?:-for-4)?\]", name)  # make run[4], lora on [2-lora], 13 on [13-4]
    is_part = bool(shape) and int(shape[1] or shape[2]) < min(gpus, 4)
    return is_seen(name, known), is_part, -seconds


@functools.cache
def stored(stem: str) -> float:
    """The seconds that a notebook took when it was executed."""
    table = json.loads((NOTEBOOKS / f"{stem}.ipynb").read_text())
    return table["metadata"]["rungs"]["seconds"]


def is_seen(name: str, known: dict[str, float]) -> bool:
    return name in known or (name.startswith(NOTEBOOK) and short(name) in map(short, known))


# Seconds of tests that no file has, on an H100. A test with one run of two processes took about 25.
GUESSED = {"make run": 90, "is stopped or told": 75, "[17": 60, "a kill": 54, "-4]": 41, "recipe": 38}
