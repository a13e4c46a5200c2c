"""What the drivers of snapshots do with folders."""

import hashlib
import resource
import signal
from pathlib import Path


def look(_, inputs, tools):
    """What is in each folder: names, sizes, inodes, and a digest of the content."""
    found = {}
    for name in inputs["folders"]:
        files = {}
        for path in sorted(Path(tools.folder, name).glob("*")):
            facts, plain = path.lstat(), path.is_file() and not path.is_symlink()
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if plain else "no file"
            files[path.name] = {"size": facts.st_size, "inode": facts.st_ino, "digest": digest}
        found[name] = files
    return found


def end_in_the_next_save(inputs, tools):
    """At a file event, or by the kernel when a file becomes larger than it may."""
    if inputs.get("largest"):
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (inputs["largest"], most))
    else:
        tools.count_file_events(kill_at=inputs["at"])
