"""What a diff on a page makes of the text of a script."""

import re
import subprocess


def patched(text, diff, folder):
    """`git apply` reads the diff: a machine on which this was cloned has git, but maybe not `patch`."""
    copy = folder / "script.py"
    copy.write_text(text)
    diff = re.sub(r"(?m)^(---|\+\+\+) .*", rf"\1 {copy.name}", diff, count=2)
    subprocess.run(["git", "apply", "-p0", "-"], cwd=folder, input=diff, text=True, check=True)
    return copy.read_text()
