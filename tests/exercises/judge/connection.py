"""The nursery, seen from the judge. What it does inside the walls is in inside/nursery.py."""

import contextlib
import os
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any

import wire

from judge import walls
from judge.settings import INSIDE
from judge.walls import bubblewrap, call_filter, claim_user, machine

# All that the nursery and its workers get of the environment.
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "USER": "student",
    "LOGNAME": "student",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Memory in large pages: a fork copies the table of pages, and takes a quarter of the time.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "PYTHONMALLOC": "malloc",
}


class Gone(Exception):
    """The nursery has ended in the middle of a run."""


class Nursery:
    def __init__(self, level: int | None = None):
        self.level = machine()["level"] if level is None else level
        self.uid = self.claim = None
        self.number, self.process, self.errors = 0, None, None
        self.base, self.over, self.greeted = None, [], False

    def start(self) -> None:
        """Begin to start it. It takes seconds: what the judge has to import, it may import meanwhile."""
        if self.level > 1 and machine()["root"]:
            claimed = claim_user()
            if claimed is None:
                raise Gone(f"no user id is free between {walls.USERS.start} and {walls.USERS.stop}")
            self.uid, self.claim = claimed
        self.greeted, self.base = False, "/tmp"
        if self.level < 3:
            self.base = tempfile.mkdtemp(prefix="rungs-")
            os.chmod(self.base, 0o755)
        environment = ENVIRONMENT | {"TORCHINDUCTOR_CACHE_DIR": f"{self.base}/inductor"}
        if "RUNGS_SPAWN" in os.environ:
            environment["RUNGS_SPAWN"] = "1"
        words = [sys.executable, "-s", "-P", str(INSIDE / "nursery.py")]
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        with contextlib.ExitStack() as stack:
            given = []
            if self.level == 3:
                given = [stack.enter_context(call_filter()).fileno()]
                words, environment = [*bubblewrap(environment, *given), *words], {}
            more = {"env": environment, "cwd": "/", "start_new_session": True, "pass_fds": given}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
            self.process = subprocess.Popen(words, **pipes, **more)

    def ready(self) -> None:
        """Wait until it has said that it is there."""
        if self.process is None:
            self.start()
        if not self.greeted:
            self.receive()
            self.greeted = True

    def receive(self, limit: float = 120) -> dict[str, Any]:
        """What the nursery says. If it says nothing, somebody has stopped it: it has limits of its own."""
        deadline = time.monotonic() + limit
        (length,) = struct.unpack("<I", self.exactly(4, deadline))
        try:
            return wire.unpack(self.exactly(length, deadline))
        except wire.BadFrame as error:
            raise Gone(str(error)) from None

    def exactly(self, size: int, deadline: float) -> bytes:
        data, descriptor = bytearray(), self.process.stdout.fileno()
        while len(data) < size:
            ready, _, _ = select.select([descriptor], [], [], max(0, deadline - time.monotonic()))
            more = os.read(descriptor, min(size - len(data), 1 << 20)) if ready else b""
            if not more:
                raise Gone(self.last_words() if ready else "the nursery was silent for too long")
            data += more
        return bytes(data)

    def last_words(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-2000:].decode(errors="replace").strip()

    def run(self, **request: Any) -> dict[str, Any]:
        """One run of all ranks: what each sent, what was seen of it from outside, and why the run ended."""
        self.ready()
        self.number += 1
        folder = request.pop("folder") or f"run-{self.number}"
        request |= {"number": self.number, "uid": self.uid, "folder": f"{self.base}/{folder}"}
        request["remove"], self.over = [f"{self.base}/{name}" for name in self.over], []
        inputs, gates = request.pop("inputs"), request.pop("gates")
        request["world_size"] = len(inputs)
        request["alone"] = self.level == 3  # with a process namespace of its own
        return self.ask(request, request["limit"] + 40, [*inputs, wire.pack(gates)])

    def forget(self, folders: Iterable[str]) -> None:
        """These folders of a check are no longer needed: the next run removes them."""
        self.over += folders

    def ask(self, request: dict[str, Any], limit: float = 60, after: list[bytes] = ()) -> dict[str, Any]:
        """`after` is what the nursery reads once all ranks are forked, so that none has more than its own."""
        try:
            for data in (wire.pack(request), *after):
                self.process.stdin.write(struct.pack("<I", len(data)) + data)
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Gone(self.last_words()) from None
        return self.receive(limit)

    def wipe(self) -> None:
        """Make it as good as new for another submission: no process and no file of the last is left."""
        if self.process is not None:
            try:
                self.ask({"wipe": self.base, "alone": self.level == 3})
            except Gone:
                self.close()

    def close(self) -> None:
        """End it, and give back its user and its folder. It can be started again."""
        if self.process is None:
            return
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5 if self.greeted else 0)  # while it imports, it has nothing to clear away
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        self.process.stdout.close()
        self.errors.close()
        if self.claim:
            self.claim.close()
        if self.base != "/tmp":
            shutil.rmtree(self.base, ignore_errors=True)
        self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
