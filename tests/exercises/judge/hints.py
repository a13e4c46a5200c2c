"""Which hint comes first: one that fits what came, and not only the check.

In the exercise, `when` names some. The kinds here are those of all exercises: a regular expression on what
came, and a hint, which may be empty where what came says it all. Of each kind, there is a mutant that shows
it (tests/test_judge.py).
"""

import re

from judge.exercises import Entry

# What says nothing about the subject of any check.
ALWAYS = {
    "not begun": (r"^not written yet", ""),
    "no keyboard": (r"cannot work here: no process of the judge has a keyboard", ""),
    "no files": (
        r"Permission denied|Read-only file system",
        "Ranks can write no file here but where the exercise is about files, and make no new group: they "
        "tell each other everything through the group that there is. For a look at something, print it.",
    ),
    "a tensor for a number": (r" is a tensor( or an array)?$", ""),
    "another dtype": (r" is (bfloat16|float16|float64|int64)$", ""),
}
# What goes for the plain case of a part only. A check that needs another one of its own part is about one
# thing more, and whoever has passed the plain case has most probably missed that: its own hint is better.
PLAIN = {
    # Not a KeyError, and not what torch refuses: these are mostly about what the exercise is about.
    "an error in Python": (r" raised (Name|UnboundLocal|Attribute|Type|Import|ModuleNotFound)Error\b", ""),
    "never ends": (r"had not returned after|^nothing moved any more", ""),
    "a sum": (
        r"every number is (\d+) times what it should be, and there are \1 processes",
        "all_reduce gives the sum over all processes. Is it a sum that is asked for, or a mean?",
    ),
    "a mean": (
        r"every number is 0\.\d+ times what it should be, and there are",
        "What is too small by the number of processes was divided by it: once too often?",
    ),
    "rounding": (
        r"nearly right",
        "Is something computed in a type of fewer digits? float32 has 7. Or is a sum taken in another order?",
    ),
    "no gradient": (
        r"\bgradient\b.* is None$",
        "A gradient is None where no backward() has come by. Was that parameter used, and on that rank?",
    ),
    "nothing": (r" is None$", "A function that ends without `return` gives None: on which way does yours?"),
    "one goes home": (
        r"returned before|do not make the same calls|tensors of different size|with different sizes",
        "All ranks must make the same calls, in one order, with the same sizes. On which way does one not?",
    ),
    "all wait": (
        r"none can go on",
        "Write down for each rank what it sends and receives, in order. Which of these calls waits for what?",
    ),
}


def kind(entry: Entry, came: str, expected: str = "") -> str:
    """What kind of failure this is, whatever is checked; no word if it is none of those above."""
    came += "; nearly right" * nearly(came, expected)
    part = entry["id"].rstrip("abcdefghijklmnopqrstuvwxyz")
    further = any(need.startswith(part) for need in entry.get("needs", []))
    kinds = ALWAYS if further else ALWAYS | PLAIN
    return next((name for name, (pattern, _) in kinds.items() if re.search(pattern, came)), "")


def nearly(came: str, expected: str) -> bool:
    """Whether these are words that end in a number, and one that it nearly is."""
    number = re.compile(r"-?\d+\.\d{6,}")
    got = number.findall(came)
    if not got or not number.fullmatch(expected) or not came.endswith(got[-1]):
        return False
    return 0 < abs(float(got[-1]) - float(expected)) <= 1e-5 * abs(float(expected))


def fitting(entry: Entry, came: str, expected: str = "") -> list[str]:
    """The hints of a check that was not passed, the one to show first in front; it may be empty, for none.

    A line of the check's own `when` goes before the general kinds, and they before the check's first hint."""
    for pattern, hint in entry.get("when", []):
        if re.search(pattern, came):
            return [hint, *entry["hints"]]
    found = kind(entry, came, expected)
    return [(ALWAYS | PLAIN)[found][1], *entry["hints"]] if found else entry["hints"]
