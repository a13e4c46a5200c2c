"""Some lines of a lesson, where a whole function would be too long to read at once."""

from IPython.display import display

from show.paths import LESSONS
from show.text import Source


def excerpt(stem, first, last):
    """Show a lesson's lines from the one that begins with `first` to the next one that begins with `last`."""
    shown = []
    for line in (LESSONS / f"{stem}.py").read_text().splitlines():
        if shown or line.strip().startswith(first):
            shown.append(line)
        if shown and line.strip().startswith(last):
            display(Source("\n".join(shown)), metadata={"rungs": "source"})
            return
    raise ValueError(f"{stem}.py has no lines from one that begins with {first!r} to {last!r}")
