"""Controls of the widgets that answer. It imports nothing, since a reader's browser has it too."""

RECOMPUTE = {"none": "nothing", "selective": "attention (selective)", "full": "all layers (full)"}


def control(name, label, values, start, kind="slider"):
    """Its values are pairs: what `answer` gets, and the words that a reader sees."""
    return {"name": name, "label": label, "kind": kind, "values": values, "start": start}


def choice(name, label, words, start):
    return control(name, label, [[*pair] for pair in words.items()], start, "choice")


def powers(*exponents):
    return [[2**one, f"{2**one:,}"] for one in exponents]
