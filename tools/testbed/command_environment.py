"""What a command is started with: a folder for temporary files, modules, and torchrun."""

import os
import sys
import tempfile
from pathlib import Path


def short_folder(prefix):
    """A new folder for temporary files. Workers of a DataLoader make sockets in it, whose paths may have 107
    characters; and TMPDIR may be a deep folder, of a cluster's job or of a test."""
    where = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix=prefix, dir=where if len(where) <= 40 else "/tmp"))


def python_path(*folders):
    """For PYTHONPATH. What the reader has in it comes last, and is kept: torch itself may be there, where a
    cluster's `module load` has put it."""
    paths = list(map(str, folders))
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    return os.pathsep.join(paths)


def own_torchrun(*words):
    """torchrun of this Python. A program torchrun that lies beside it, or comes first in PATH, may have been
    installed for another one."""
    return [sys.executable, "-m", "torch.distributed.run", *words]
