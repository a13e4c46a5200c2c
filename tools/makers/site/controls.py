"""Controls and bars of the widgets that answer. A browser has this file, too."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RECOMPUTE = {"none": "none", "selective": "attention only (selective)", "full": "all layers (full)"}
NETWORK = [[one * 1e9, f"{8 * one:g} Gb/s"] for one in (1.25, 12.5, 25, 50, 100)]  # bytes a second
PRICES = [[one, f"${one:g}"] for one in (1, 1.5, 2, 3, 4, 6)]


def control(name, label, values, start, kind="slider"):
    """Its values are pairs: what `answer` gets, and the words that a reader sees."""
    return {"name": name, "label": label, "kind": kind, "values": values, "start": start}


def choice(name, label, words, start):
    return control(name, label, [[*pair] for pair in words.items()], start, "choice")


def typed(name, label, suggestions, start):
    """A number of billions that a reader types, with some to choose from. Without a start it may be empty."""
    values = [[one and one * 1e9, f"{one or ''}"] for one in suggestions]
    return control(name, label, values, start, "typed")


def powers(*exponents):
    return [[2**one, f"{2**one:,}"] for one in exponents]


MEMORY = typed("memory", "memory per GPU, in GB", (24, 80, 141), 80e9)


def stacked(sizes, whole):
    """The parts of a bar, by name, one behind the other: where each begins and ends, in shares of `whole`."""
    start, found = 0.0, []
    for part, size in sizes.items():
        found.append({"part": part, "from": start / whole, "to": (start + size) / whole})
        start += size
    return found
