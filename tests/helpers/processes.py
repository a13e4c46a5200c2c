"""Processes that a test has started, found again by a mark in their environment."""

from pathlib import Path


def alive(mark):
    """The processes that were started with this mark in their environment, and their children."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                words = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
                if words:  # a zombie has none: it only waits to be asked for its status
                    found.append((int(folder.name), words))
        except OSError:
            continue
    return found
