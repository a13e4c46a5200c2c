"""The surroundings of a Mac for a command, on Linux: see enter.sh.

    from tools.testbed import mac
    subprocess.run(mac.words("make", "run"))

What it cannot have: the processor and its rounding, Apple's libraries and their threads (so a fork is
safe here), BSD's programs themselves, its firewall, and a case-insensitive disk.
"""

import functools
import subprocess
import sys
from pathlib import Path

ENTER = Path(__file__).with_name("enter.sh")


def words(*command):
    """The words that start a command there."""
    return ["sh", str(ENTER), sys.executable, *map(str, command)]


@functools.cache
def why_not():
    """Why this machine cannot have it; an empty string if it can."""
    if sys.platform != "linux":
        return "the surroundings of a Mac need Linux"
    try:
        tried = subprocess.run(words("true"), capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the surroundings of a Mac need namespaces: {error}"
    return f"the surroundings of a Mac need namespaces: {tried.stderr.strip()}" if tried.returncode else ""
