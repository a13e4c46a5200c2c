"""Which walls stand around the workers on this machine, and how they are put up."""

import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import limits

from grader import seccomp
from grader.settings import HERE, ROOT, SANDBOX, SOLUTIONS

MEANING = {
    1: "own session, resource limits, and cleanup of whatever is left",
    2: "separate user id, resource limits, and cleanup of whatever is left",
    3: "bubblewrap: own file system, own processes, only the loopback network, no dangerous system calls",
}
TEMPORARY = 1 << 30  # bytes in the home of the sandbox at level 3, which are memory
SYSTEM = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"]
# malloc asks there whether it may use large pages.
LARGE_PAGES = "/sys/kernel/mm/transparent_hugepage"


def home() -> str:
    """The only folder of the sandbox that can be written at level 3, where everything is removed after each
    run: a folder of its own, in which nothing else lies, wherever this repository and Python are."""
    name = "/home-of-the-sandbox"
    while any(Path(place).is_relative_to(name) for place in (sys.prefix, sys.base_prefix, SANDBOX)):
        name += "_"
    return name


@functools.cache
def machine() -> dict[str, Any]:
    """What this machine offers: the best level of containment, and why not more."""
    why = {}
    for level, words in ((3, no_bubblewrap()), (2, no_other_user())):
        if words:
            why[level] = words
    level = 3
    while level in why:
        level -= 1
    return {"level": level, "why": why, "landlock": limits.landlock_version(), "root": os.getuid() == 0}


def no_bubblewrap() -> str:
    """Why there is no level 3 here; no words if there is."""
    if sys.platform != "linux":
        why = "this is not Linux"
    elif shutil.which("bwrap") is None:
        why = "bubblewrap is not installed"
    elif platform.machine() not in seccomp.MACHINES:
        why = f"grader/seccomp.py does not have the system call numbers of {platform.machine()}"
    else:
        why = failure_of_bubblewrap()
    return why


def failure_of_bubblewrap() -> str:
    """What it says if it cannot start anything here; no words if it can."""
    with call_filter() as file:
        words = [*bubblewrap({}, file.fileno()), "true"]
        tried = subprocess.run(words, capture_output=True, text=True, pass_fds=[file.fileno()])
    if tried.returncode == 0:
        return ""
    return f"bubblewrap does not work here: {tried.stderr.strip()[:120]}"


def links_to_python(shown: list[Path]) -> list[tuple[Path, Path]]:
    """Links on the way to Python that lie elsewhere, such as ~/.local/bin/python3, and where they lead."""
    found, link = [], Path(sys.executable)
    while link.is_symlink():
        target = Path(os.path.normpath(link.parent / link.readlink()))
        if not any(place in link.parents for place in shown):
            found.append((link, target))
        link = target
    return found


def no_other_user() -> str:
    """Why there is no level 2 here; no words if there is."""
    if sys.platform != "linux":
        return "this is not Linux"
    if os.getuid() != 0:
        return "only root can run processes as another user"
    return python_is_closed() or repository_is_open()


def python_is_closed() -> str:
    """Why another user could not run Python; no words if one could."""
    for place in (Path(sys.prefix), Path(sys.base_prefix)):
        for folder in (place, *place.parents):
            if not folder.stat().st_mode & 0o001:
                return f"another user could not run Python, because {folder} is closed to other users"
    return ""


def repository_is_open() -> str:
    """Why another user could read the solutions or the checks; no words if none could."""
    if limits.landlock_version():
        return ""
    for place in filter(Path.exists, (SOLUTIONS, HERE)):
        reached = all(folder.stat().st_mode & 0o001 for folder in place.parents)
        if reached and place.stat().st_mode & 0o005:
            return f"another user can read {place}, and there is no Landlock: run chmod -R go= {place}"
    return ""


def within_reach() -> str:
    """Why submissions can read this repository whatever contains them; no words if they cannot."""
    for place in sorted({Path(name).resolve() for name in limits.READABLE}):
        if ROOT.is_relative_to(place):
            return f"submissions can read everything below {place}, including {ROOT}: move the repository"
    return ""


def containment(level: int) -> str:
    if level == 3:
        files = "only Python and an empty folder are visible"
    elif machine()["landlock"]:
        files = "Landlock limits file access"
    else:
        files = "no Landlock, so file access is not limited"
    if level < 3:
        user = ""
    elif machine()["root"]:
        user = ", separate user id"
    else:
        user = ", own user namespace"
    return f"level {level} ({MEANING[level]}{user}; {files})"


def call_filter() -> IO[bytes]:
    """The filter of system calls as an open file, from which bubblewrap reads it."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 (for whoever calls to close)
    file.write(seccomp.program())
    file.seek(0)
    return file


def bubblewrap(environment: dict[str, str], call_filter: int) -> list[str]:
    """The command before the command: what the fork server and all below it can see and do. `call_filter` is
    the descriptor of the filter of system calls, which the command has to get."""
    words = ["bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]
    # As process 1, the fork server lives on where whatever a run has left is ended with kill -1.
    words += ["--as-pid-1", "--new-session", "--clearenv", "--hostname", "rungs"]
    words += ["--seccomp", str(call_filter)]
    if os.getuid() == 0:
        words += ["--cap-drop", "ALL"]
        for capability in ("SETUID", "SETGID", "KILL", "SYS_PTRACE", "CHOWN", "DAC_OVERRIDE", "FOWNER"):
            words += ["--cap-add", f"CAP_{capability}"]
    else:
        words += ["--unshare-user", "--disable-userns"]
    words += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    words += ["--size", str(TEMPORARY), "--perms", "0755", "--tmpfs", home()]
    shown = [Path(sys.prefix), Path(sys.base_prefix), SANDBOX]
    seen = [*shown, Path(LARGE_PAGES)]
    above = set()
    for place in seen:
        above.update(place.parents)
    for folder in sorted(above - {Path("/")}):
        words += ["--perms", "0755", "--dir", str(folder)]
    for place in (*SYSTEM, LARGE_PAGES):
        words += ["--ro-bind-try", place, place]
    for place in shown:
        words += ["--ro-bind", str(place), str(place)]
    for link, target in links_to_python([*shown, *map(Path, SYSTEM)]):
        for folder in sorted(set(link.parents) - {Path("/")}):
            words += ["--perms", "0755", "--dir", str(folder)]
        words += ["--symlink", str(target), str(link)]
    for name, value in environment.items():
        words += ["--setenv", name, value]
    return [*words, "--remount-ro", "/", "--chdir", home()]
