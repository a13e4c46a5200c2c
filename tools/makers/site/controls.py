"""Controls and bars of the widgets that answer. A browser has this file, too."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RECOMPUTE = {"none": "none", "selective": "attention only (selective)", "full": "all layers (full)"}
NETWORK = [[one * 1e9, f"{8 * one:g} Gb/s"] for one in (1.25, 12.5, 25, 50, 100)]  # bytes a second


def control(name, label, values, start, kind="slider", **more):
    """Its values are pairs: what `answer` gets, and the words that a reader sees."""
    return {"name": name, "label": label, "kind": kind, "values": values, "start": start} | more


def choice(name, label, words, start):
    return control(name, label, [[*pair] for pair in words.items()], start, "choice")


def typed(name, label, suggestions, start, unit=1e9, empty=""):
    """A number that a reader types in billions or in another unit, with some to choose from. Without a start
    it may be empty, and then the box says what counts instead."""
    values = []
    for one in suggestions:
        values.append([None, ""] if one is None else [one * unit, str(one)])
    return control(name, label, values, start, "typed", unit=unit, empty=empty)


def powers(*exponents):
    return [[2**one, f"{2**one:,}"] for one in exponents]


def with_commas(text):
    """Words in which numbers of five digits and more have commas between thousands."""
    return re.sub(r"(?<![\d.,])\d{5,}(?!\d|\.\d)", lambda found: f"{int(found[0]):,}", text)


def stacked(sizes, whole):
    """The parts of a bar, by name, one behind the other: where each begins and ends, in shares of `whole`."""
    found = []
    start = 0.0
    for part, size in sizes.items():
        found.append({"part": part, "from": start / whole, "to": (start + size) / whole})
        start += size
    return found
