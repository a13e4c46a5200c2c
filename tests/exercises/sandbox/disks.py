"""What bodies of exercises 05 and 06b look at: folders, and what a process does to files."""

import os
import resource
import signal
import sys

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "os.link")


def read_folders(student, me, names):
    """What is in each folder: names, sizes, inodes, contents. What is no plain file has none."""
    found = {}
    for name in names:
        files = {}
        for path in sorted((me.disk / name).glob("*")):
            facts = path.lstat()
            plain = path.is_file() and not path.is_symlink()
            content = path.read_bytes() if plain else None
            files[path.name] = {"size": facts.st_size, "inode": facts.st_ino, "bytes": content}
        found[name] = files
    return found


# os.kill and sys.addaudithook as they are before the student's code can put others in their place.
def file_events(kill_at=None, largest=None, kill=os.kill, add_hook=sys.addaudithook):
    """A list that fills with what this process does to files from now on. Before number `kill_at` (from 1),
    it is ended with SIGKILL; with `largest`, the kernel ends it when a file grows beyond so many bytes."""
    found = []
    pid = os.getpid()
    number = signal.SIGKILL
    if largest is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    def hook(event, arguments):
        if event in EVENTS:
            found.append(in_words(event, arguments))
            if len(found) == kill_at:
                kill(pid, number)

    add_hook(hook)
    return found


def in_words(event, arguments):
    """opens run.temporary for writing"""
    names = [os.path.basename(os.fsdecode(one)) for one in arguments[:2] if isinstance(one, str | bytes)]
    if event == "open":
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        way = "writing" if flags & (os.O_WRONLY | os.O_RDWR) else "reading"
        return f"opens {' '.join(names[:1])} for {way}"
    if event in ("os.rename", "os.link"):
        return f"{'renames' if event == 'os.rename' else 'links'} {' to '.join(names)}"
    return f"{'makes' if event == 'os.mkdir' else event.removeprefix('os.') + 's'} {' '.join(names[:1])}"
