"""The grader's end of the fork server (sandbox/fork_server.py): starts it behind its walls, and asks it."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from json_messages import Channel

from grader import walls
from grader.settings import SANDBOX

# All that the sandbox gets of the environment, beside its home.
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "USER": "student",
    "LOGNAME": "student",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Memory in large pages: a fork copies the table of pages, and takes a quarter of the time.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "PYTHONMALLOC": "malloc",
}
FIRST_USER = 61000  # of users that nobody else has on this machine
SECONDS_TO_START = 300  # on a machine that does nothing else, it takes 2
SECONDS_TO_ANSWER = 60  # the same: a thousandth; longest is the removal of files after a run


class Broken(RuntimeError):
    """The machine, and not the submission."""


class ForkServer:
    """It lives as long as it answers. One that did not is closed, and the next question starts another
    one."""

    def __init__(self):
        self.level = self.uid = self.process = self.owner = self.home = None
        self.counter = itertools.count(1)

    def begin(self):
        """Start it. That takes seconds, in which the grader may import torch itself."""
        if self.level is None:
            self.level = walls.machine()["level"]
        if self.level > 1 and walls.machine()["root"]:
            # The kernel limits the processes of a user. With one user for two sandboxes, a fork bomb in one
            # would stop the other. Graders that run at once have different process ids.
            self.uid = FIRST_USER + os.getpid() % 1000
        self.is_ready = False
        self.owner = os.getpid()
        self.home = walls.home()
        if self.level < 3:
            self.home = tempfile.mkdtemp(prefix="rungs-")
            os.chmod(self.home, 0o755)

        places = {"HOME": self.home, "TMPDIR": self.home, "TORCHINDUCTOR_CACHE_DIR": f"{self.home}/inductor"}
        environment = ENVIRONMENT | places
        if "RUNGS_SPAWN" in os.environ:
            environment["RUNGS_SPAWN"] = "1"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.channel = Channel(ours)
        about = json.dumps([theirs.fileno(), self.home, self.uid])
        words = [sys.executable, "-s", "-P", str(SANDBOX / "fork_server.py"), about]
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        with contextlib.ExitStack() as stack:
            given = [theirs.fileno()]
            if self.level == 3:
                given.append(stack.enter_context(walls.call_filter()).fileno())
                words = [*walls.bubblewrap(environment, given[-1]), *words]
                environment = {}
            pipes = {"stdin": subprocess.DEVNULL, "stdout": self.errors, "stderr": self.errors}
            more = {"env": environment, "cwd": "/", "start_new_session": True, "pass_fds": given}
            self.process = subprocess.Popen(words, **pipes, **more)
        theirs.close()

    def ask(self, do, descriptors=(), **order):
        """What the fork server says. Raises Broken, and closes it, if that is not the answer to this."""
        try:
            if self.process is None:
                self.begin()
            if not self.is_ready:
                self.hear("ready", SECONDS_TO_START)
                self.is_ready = True
            # No two questions have one number, of this process and of those that it has forked.
            number = f"{os.getpid()}/{next(self.counter)}"
            self.channel.send({"do": do, "number": number, **order}, descriptors)
            return self.hear(number, SECONDS_TO_ANSWER)
        except (OSError, EOFError, ValueError) as error:
            words = self.last_words() or error
            self.close()
            raise Broken(f"the sandbox does not answer: {words}") from None

    def hear(self, number, seconds):
        found, _ = self.channel.receive(seconds)
        if found["number"] != number:
            raise ValueError(f"it answers {found['number']} when it is asked {number}")
        return found.get("answer")

    def last_words(self):
        self.errors.seek(0)
        return self.errors.read()[-2000:].decode(errors="replace").strip()

    def is_lost(self):
        """Whether another one has to be started. In a process that was forked, also if it has started one of
        its own: then the one that it came with does not answer any more."""
        return self.process is None or self.owner != os.getpid() or self.process.poll() is not None

    def close(self):
        """End it, unless it belongs to the process from which this one was forked."""
        if self.process is None:
            return
        self.channel.close()
        if self.owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                # It ends the ranks, and what they have started. Who ends it before leaves them behind.
                self.process.wait(10 if self.is_ready else 0)
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            if self.level < 3:
                shutil.rmtree(self.home, ignore_errors=True)
        self.errors.close()
        self.process = None


SERVER = ForkServer()  # of this process
