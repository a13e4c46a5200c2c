"""Controls of the widgets that answer. It imports nothing, since a reader's browser has it too."""

RECOMPUTE = {"none": "none", "selective": "attention only (selective)", "full": "all layers (full)"}
NETWORK = [[one * 1e9, f"{8 * one:g} Gb/s"] for one in (1.25, 12.5, 25, 50, 100)]  # bytes a second
PRICES = [[one, f"${one:g}"] for one in (1, 1.5, 2, 3, 4, 6)]
MEMORY = {one * 1e9: f"{one} GB" for one in (24, 80, 141)}


def control(name, label, values, start, kind="slider"):
    """Its values are pairs: what `answer` gets, and the words that a reader sees."""
    return {"name": name, "label": label, "kind": kind, "values": values, "start": start}


def choice(name, label, words, start):
    return control(name, label, [[*pair] for pair in words.items()], start, "choice")


def powers(*exponents):
    return [[2**one, f"{2**one:,}"] for one in exponents]
