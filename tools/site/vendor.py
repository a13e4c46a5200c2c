"""Fetch Pyodide, which runs the planner and others in the reader's browser: `make site` does it once.

    python tools/site/vendor.py .venv-site/pyodide

It comes from npm's registry, by npm, and is compared with the hash below. You will see its five files in the
folder, 13 MB.
"""

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NAME = "pyodide@314.0.7"
SHA512 = "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")


def unpack(archive: Path, folder: Path):
    """The files that a page needs, if the archive is the one that is meant."""
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != SHA512:
        sys.exit(f"error: {archive.name} has the SHA-512 {found}, not that of {NAME}: fetch it again")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as packed:
        for name in FILES:
            (folder / name).write_bytes(packed.extractfile(f"package/{name}").read())


def main():
    if len(sys.argv) != 2:
        sys.exit("error: name the folder that Pyodide is to be in: python tools/site/vendor.py FOLDER")
    if not shutil.which("npm"):
        sys.exit(f"error: there is no npm here, which fetches {NAME}: install Node.js")
    with tempfile.TemporaryDirectory() as temporary:
        words = ["npm", "pack", NAME, "--silent", "--pack-destination", temporary]
        if subprocess.run(words, stdout=subprocess.DEVNULL).returncode:
            sys.exit(f"error: npm could not fetch {NAME}: what is wrong is said above")
        (archive,) = Path(temporary).glob("*.tgz")
        unpack(archive, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
