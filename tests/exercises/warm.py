"""What `python WORDS` does, by a process that has imported torch already. `make check` calls this.

    python tests/exercises/warm.py -m pytest tests/exercises --only 03

The first command leaves a server behind, which has imported torch, pytest and the judge, and has started a
nursery. For each command it forks a copy of itself that has this nursery for its own: nothing of a run is
there for the next one. A command hands over its words, environment, folder and files, and passes signals on.
The server ends after some idle minutes, or when a command comes and anything that it is made of has changed.
Whenever there is no server to be had, a command does by itself what it is to do.

This is for one who works on an exercise. grade.py does not know of it.
"""

import contextlib
import functools
import hashlib
import json
import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FIRST, *PACKAGES = sys.path
IDLE = 15 * 60  # seconds
PYTHON = [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv)]]
# What of the environment is another one in each terminal. For any other difference there is a new server:
# what was imported has seen it (OMP_NUM_THREADS, PYTHONPATH). Each run has the environment of its command.
OF_A_TERMINAL = {"_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLORTERM", "COLUMNS", "LINES", "WINDOWID"}
OF_A_TERMINAL |= {"TERM_SESSION_ID", "XDG_SESSION_ID", "MAKE_TERMOUT", "MAKE_TERMERR"}
OF_A_TERMINAL |= {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def made_of():
    """All that a server is made of, as a short text: files, Python, environment, and what limits it."""
    files = [*HERE.rglob("*.py"), *HERE.rglob("*.toml"), *(HERE.parent / "helpers").glob("*.py")]
    files += [*(ROOT / "tools").glob("*.py"), HERE.parent / "conftest.py", ROOT / "pyproject.toml"]
    files += map(Path, PACKAGES)
    seen = [(str(file), file.stat()) for file in sorted(files) if file.exists()]
    facts = [(name, stat.st_ino, stat.st_ctime_ns) for name, stat in seen]
    facts += sorted(item for item in os.environ.items() if item[0] not in OF_A_TERMINAL)
    facts += [PYTHON, Path("/proc/self/limits").read_text(), os.sched_getaffinity(0), os.nice(0)]
    facts += [os.readlink(space) for space in sorted(Path("/proc/self/ns").iterdir())]
    return hashlib.sha256(repr(facts).encode(errors="surrogatepass")).hexdigest()


def folder():
    """Where the server of this user and this clone is to be found. Nobody else can enter it."""
    clone = hashlib.sha256(os.fsencode(ROOT)).hexdigest()[:12]
    place = Path(os.environ.get("TMPDIR") or "/tmp", f"rungs-check-{os.getuid()}-{clone}")
    place.mkdir(mode=0o700, exist_ok=True)
    stat = place.lstat()
    if stat.st_uid != os.getuid() or stat.st_mode & 0o170077 != 0o040000:
        raise OSError(f"{place} must be a folder that only this user can enter")
    return place


# ---- the command ------------------------------------------------------------------------------


def main():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until there is a run, nothing is to be said
    words, connection = sys.argv[1:], None
    if sys.platform == "linux" and "CI" not in os.environ:
        connection = asked(words) or (left_behind() and asked(words))
    if connection:
        follow(connection)
    os.execv(PYTHON[0], [*PYTHON, *words])


def asked(words):
    """A connection to the server, if there is one and it has begun what it was asked for."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(folder() / "socket"))
        request = {"words": words, "made_of": made_of(), "environment": dict(os.environ)}
        data = json.dumps(request).encode()
        here = os.open(".", os.O_RDONLY)
        socket.send_fds(connection, [struct.pack("<I", len(data))], [0, 1, 2, here])
        connection.sendall(data)
        return connection if connection.recv(1) else None
    except OSError:
        return None


def left_behind():
    """Leave a copy of this process behind as a server. True as soon as it can be asked."""
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for place, file in enumerate((nothing, nothing, nothing, os.dup(writes))):
            os.dup2(file, place)
        os.closerange(4, 4096)  # pipes of whoever called would never be at their end
        try:
            run = serve(ready=3)
        except BaseException:
            os._exit(1)
        if run is None:
            os._exit(0)
        become(*run)
    os.close(writes)
    return os.read(reads, 1) == b"."


def follow(connection):
    """Pass signals on until the run has ended, and end as it did."""

    def passed_on(number, frame):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            connection.send(bytes([number]))

    for number in SIGNALS:
        signal.signal(number, passed_on)
    status = connection.recv(4)
    if len(status) < 4:
        sys.exit("error: the background process of `make check` was killed: run the command again")
    (code,) = struct.unpack("<i", status)
    if code < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no other action
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


# ---- the server -------------------------------------------------------------------------------


def serve(ready):
    """Fork for each command. Returns in the copy, with what that one has to do; None when the server ends."""
    import fcntl

    made, place, me = made_of(), folder(), os.getpid()
    os.chdir("/")
    lock = os.open(place, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # two that start at once: one of them ends here
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    import judge

    nursery = judge.Nursery()
    try:
        nursery.start()
        imported()
        (place / "socket").unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(place / "socket"))
        listener.listen()
        os.write(ready, b".")
        os.close(ready)
        while select.select([listener], [], [], IDLE)[0]:
            connection, _ = listener.accept()
            request, files = received(connection)
            if request is None:
                connection.close()
                continue
            if request["made_of"] != made:
                break
            say(connection, b".")
            ended = os.pidfd_open(nursery.process.pid)
            run = os.fork()
            if run == 0:
                lend(judge, nursery, ended)
                for file in (lock, listener, connection):
                    os.close(file if file is lock else file.detach())
                return request, files
            for file in (*files, ended):
                os.close(file)
            let_go(nursery)
            say(connection, struct.pack("<i", wait(run, connection, listener)))
            connection.close()
            nursery = judge.Nursery()
            nursery.start()
    finally:
        if os.getpid() == me:
            with contextlib.suppress(OSError):
                (place / "socket").unlink(missing_ok=True)
                place.rmdir()
            os.close(lock)
            nursery.close()
    return None


def imported():
    import gc
    import importlib

    import torch  # noqa: F401
    from _pytest.config import default_plugins

    for name in default_plugins:
        importlib.import_module(f"_pytest.{name}")
    gc.freeze()  # pytest looks for garbage when it ends, and it would look at all of torch


def received(connection):
    """What a command asks for, and its files; None if it comes from inside of a run. At level 1 a submission
    is of the same user, and must not have anything done outside of its walls."""
    connection.settimeout(5)
    files = []
    try:
        pid, uid, _ = struct.unpack("<iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.getuid() or os.getpid() in above(pid):
            return None, []
        data, files, _, _ = socket.recv_fds(connection, 4, 4)
        (length,) = struct.unpack("<I", data)
        data = b""
        while len(data) < length:
            data += connection.recv(length - len(data)) or b"\0" * length
        connection.settimeout(None)
        return json.loads(data), files
    except (OSError, ValueError, struct.error):
        for file in files:
            os.close(file)
        return None, []


def above(pid):
    """A process and those that have started it; the server itself where that cannot be seen."""
    found = set()
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return {os.getpid()}
    return found or {os.getpid()}


def say(connection, data):
    with contextlib.suppress(OSError):  # a command that was killed hears nothing
        connection.send(data)


def let_go(nursery):
    """The copy has it now: as soon as that one has ended, the nursery is to see that nobody is there."""
    nursery.process.stdin.close()
    nursery.process.stdout.close()
    nursery.errors.close()
    if nursery.claim:
        nursery.claim.close()


def wait(run, connection, listener):
    """Pass on the signals that come for a run, and say how it has ended. Without its command it ends, too."""
    ended, watched = os.pidfd_open(run), [connection, listener]
    while ended not in (ready := select.select([ended, *watched], [], [])[0]):
        if listener in ready:
            listener.accept()[0].close()  # one at a time: that command does it by itself
        if connection in ready:
            number = b""
            with contextlib.suppress(OSError):
                number = connection.recv(1)
            with contextlib.suppress(ProcessLookupError):
                os.kill(run, number[0] if number else signal.SIGTERM)
            if not number:
                watched.remove(connection)
    os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(run, 0)[1])


# ---- the copy ---------------------------------------------------------------------------------


def lend(judge, nursery, ended):
    """Whoever makes a nursery gets this one. It is the server's child, so this process cannot wait for it as
    for one of its own."""
    import subprocess

    def wait(timeout=None):
        if not select.select([ended], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("the nursery", timeout)
        nursery.process.returncode = 0

    def start():
        if nursery.process is None:
            judge.connection.Nursery.start(nursery)

    nursery.process.wait, nursery.start = wait, start
    judge.Nursery = functools.partial(lambda lent, level=None: lent, nursery)


def become(request, files):
    """Do what Python would do with these words, environment, folder and files."""
    import runpy

    os.fchdir(files[3])
    for place in range(3):
        os.dup2(files[place], place)
    for file in files:
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # as Python does when it starts
    words = request["words"]
    sys.path.remove(FIRST)
    sys.orig_argv, sys.argv = [*PYTHON, *words], words
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    main()
