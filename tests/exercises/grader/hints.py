"""Which hint comes first: one that fits what came, and not only the check.

In the exercise, `when` names some. The kinds here are those of all exercises: a regular expression on what
came, and a hint, which may be empty where what came says it all. Of each kind, there is a mutant that shows
it (tests/test_grader.py).
"""

import re

from grader.exercises import Entry

# What says nothing about the subject of any check.
ALWAYS = {
    "not begun": (r"^not written yet", ""),
    "no keyboard": (r"cannot work here: no process of the grader has a keyboard", ""),
    "no files": (
        r"Permission denied|Read-only file system",
        "Ranks cannot write files (except in exercises about files) or create new process groups: they "
        "communicate only through the default group. To look at a value, print it.",
    ),
    "a tensor for a number": (r" is a tensor( or an array)?$", ""),
    "another dtype": (r" is (bfloat16|float16|float64|int64)$", ""),
}
# What goes for the plain case of a part only. A check that needs another one of its own part is about one
# thing more, and whoever has passed the plain case has most probably missed that: its own hint is better.
PLAIN = {
    # Not a KeyError, and not what torch refuses: these are mostly about what the exercise is about.
    "an error in Python": (r" raised (Name|UnboundLocal|Attribute|Type|Import|ModuleNotFound)Error\b", ""),
    "never ends": (r"had not returned after|^the run was stuck|used up its \d+ s of CPU time", ""),
    "a sum": (
        r"every number is (\d+) times what it should be, and there are \1 processes",
        "all_reduce returns the sum over all processes. Does the exercise ask for a sum or for a mean?",
    ),
    "a mean": (
        r"every number is 0\.\d+ times what it should be, and there are",
        "Each number is too small. Did you divide by the number of processes once too often?",
    ),
    "rounding": (
        r"nearly right",
        "Do you compute something in a type with fewer digits (float32 has 7), or add up in another order?",
    ),
    "no gradient": (
        r"\bgradient\b.* is None$",
        "A gradient is None if no backward() has reached its parameter. Was it used on that rank?",
    ),
    "nothing": (
        r" is None$",
        "A function that ends without `return` returns None. On which path does yours?",
    ),
    "one goes home": (
        r"returned before|do not make the same calls|tensors of different size",
        "All ranks must make the same calls, in the same order and with the same sizes. Where does one not?",
    ),
    "all wait": (
        r"none can go on",
        "Write down what each rank sends and receives, in order. Which of these calls waits for which other?",
    ),
}


def kind(entry: Entry, came: str) -> str:
    """What kind of failure this is, whatever is checked; no word if it is none of those above."""
    part = entry["id"].rstrip("abcdefghijklmnopqrstuvwxyz")
    is_plain = not any(need.startswith(part) for need in entry.get("needs", []))
    kinds = ALWAYS | PLAIN if is_plain else ALWAYS
    for name, (pattern, _) in kinds.items():
        if re.search(pattern, came):
            return name
    return ""


def fitting(entry: Entry, came: str) -> list[str]:
    """The hints of a check that was not passed, the one to show first in front; it may be empty, for none.

    A line of the check's own `when` goes before the general kinds, and they before the check's first hint. A
    line with three hints is about another fault: the check's own hints do not follow."""
    for pattern, *hints in entry.get("when", []):
        if re.search(pattern, came):
            return hints if len(hints) > 1 else [*hints, *entry["hints"]]
    found = kind(entry, came)
    return [(ALWAYS | PLAIN)[found][1], *entry["hints"]] if found else entry["hints"]
