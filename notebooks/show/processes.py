"""A way to start scripts, and to show what they write while they run."""

import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil

from show.paths import LESSONS, RANK_SCRIPTS, ROOT
from tools.testbed.command_environment import python_path


class Running:
    """A command that runs in processes of its own, while the notebook goes on."""

    def __init__(self, words, environment=None, prefix="", where=None, stdin=subprocess.DEVNULL):
        self.began = time.monotonic()
        self.seconds = None
        self.prefix = prefix
        self.text = ""
        self.where = where
        self.news = queue.Queue()
        # Jupyter asks for colours, and for pictures in the page: a script has neither.
        jupyters = ("MPLBACKEND", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PAGER", "GIT_PAGER")
        complete = {name: value for name, value in os.environ.items() if name not in jupyters}
        complete["PYTHONUNBUFFERED"] = "1"
        complete["PYTHONPATH"] = python_path(LESSONS)
        complete["SHARE_GPU"] = "1"  # where there are fewer GPUs than processes, they share: see README
        complete.update(environment or {})
        self.process = subprocess.Popen(
            words,
            env=complete,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            line = plain(line)
            if line is not None:
                self.text += line
                self.news.put(line)
        self.process.stdout.close()
        self.process.wait()
        self.seconds = time.monotonic() - self.began
        self.news.put(None)

    @property
    def code(self):
        return self.process.poll()

    @property
    def result(self):
        """What the script left in the file that RESULT names; None if it left nothing."""
        return json.loads(self.where.read_text()) if self.where and self.where.exists() else None

    def tree(self):
        """The living processes of this command, itself first."""
        if self.code is not None:
            return []  # by now its number may be another process's
        try:
            first = psutil.Process(self.process.pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def until(self, words, limit=180):
        """Print what it writes until a line holds these words."""
        deadline = time.monotonic() + limit
        while (line := self.next(deadline)) is not None:
            print(folded(self.prefix + line), end="", flush=True)
            if words in line:
                return line
        raise RuntimeError(f"it ended, or {limit} seconds passed, before it wrote {words!r}")

    def next(self, deadline):
        try:
            return self.news.get(timeout=max(0, deadline - time.monotonic()))
        except queue.Empty:
            return None

    def follow(self, limit=180):
        """Print what it writes until it ends. After `limit` seconds, end it."""
        deadline = time.monotonic() + limit
        try:
            while (line := self.next(deadline)) is not None:
                print(folded(self.prefix + line), end="", flush=True)
        except KeyboardInterrupt:
            self.end()
            raise
        if self.seconds is None:
            self.end()
            print(f"(still running after {limit} seconds: ended by the notebook)", flush=True)
        return self

    def end(self):
        for process in reversed(self.tree()):
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        self.reader.join(5)


def launch(command, environment=None, quiet=False):
    """Start a command as a reader would type it at the repository's root, and do not wait for it."""
    words, environment = shlex.split(command), dict(environment or {})
    if not quiet:
        print(folded(f"$ {command}", " \\"), flush=True)
    while "=" in words[0]:
        name, value = words.pop(0).split("=", 1)
        environment[name] = value
    # The kernel's own Python: PATH may lead to another one, which has another torch or none.
    own = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run"]}
    words[:1] = own.get(words[0], words[:1])
    beside = Path(sys.executable).parent
    environment["PATH"] = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"
    return Running(words, environment)


def run(command, limit=180, code=0, environment=None):
    """Start a command as a reader would type it, and show what it writes while it runs. `code` is the
    status that it must end with; None for any."""
    running = launch(command, environment).follow(limit)
    if code is not None and running.code != code:
        raise RuntimeError(f"it ended with status {running.code}, not {code}")
    return running


def ranks(script, world_size, limit=60, environment=None, quiet=False):
    """Start a script once for each rank, and show what they write. Each finds in its environment RANK,
    WORLD_SIZE, STORE (a new file to meet at) and RESULT (a file for what it has to say to the notebook)."""
    folder = Path(script).resolve().parent / f"{Path(script).stem}-{time.time_ns()}"
    folder.mkdir()
    deadline = time.monotonic() + limit
    running = []
    for rank in range(world_size):
        variables = {
            "RANK": rank,
            "WORLD_SIZE": world_size,
            "LOCAL_RANK": rank,
            "STORE": folder / "store",
            "RESULT": folder / f"{rank}.json",
            "OMP_NUM_THREADS": 1,
            "PYTHONPATH": python_path(LESSONS, RANK_SCRIPTS),
        }
        variables.update(environment or {})
        as_text = {name: str(value) for name, value in variables.items()}
        words = [sys.executable, str(script)]
        running.append(Running(words, as_text, f"rank {rank} | ", folder / f"{rank}.json"))

    try:
        while still_running(running) and time.monotonic() < deadline:
            time.sleep(0.02)
            print_news(running, quiet)
    finally:
        late = still_running(running)
        for one in running:
            one.end()
    if late:
        print(f"(rank {', '.join(late)}: still there after {limit} seconds, ended by the notebook)")
    print_news(running, quiet)
    for rank, one in enumerate(running):
        if one.code == -signal.SIGABRT:
            raise RuntimeError(f"rank {rank} aborted")  # its work may have been done: nobody would notice
    return running


def still_running(running):
    """The ranks that have not ended, as words."""
    return [str(rank) for rank, one in enumerate(running) if one.seconds is None]


def print_news(running, quiet):
    """Print what the ranks have written since the last time; when quiet, drop it."""
    for one in running:
        while not one.news.empty():
            line = one.news.get()
            if line is not None and not quiet:
                print(folded(one.prefix + line), end="", flush=True)


WRAP = textwrap.TextWrapper(86, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def folded(text, sign=""):
    """No line longer than a page shows. `sign` ends those that go on: in a shell's command a backslash."""
    lines = []
    for line in text.splitlines(keepends=True):
        lines.append(f"{sign}\n".join(WRAP.wrap(line)))
        if line.endswith("\n"):
            lines.append("\n")
    return "".join(lines)


LOG = re.compile(
    r"^(?:\[rank\d+\]:)?\[?([IWEC])\d{4} [\d:.]+ +(?:\d+ )?(?:[\w/.-]*site-packages/)?([\w/.-]+):\d+\] ?"
)


def plain(line):
    """A line without what is true on this machine only: folders, process ids, times. None: nothing to say."""
    found = LOG.match(line)
    if found:
        if found[1] in "IW":  # torchrun tells of every signal it sends
            return None
        line = line[found.end() :]
    line = re.sub(r"^\[rank\d+\]: ", "", line)
    line = re.sub(r"[^\s\"'(]*/site-packages/", "", line)
    line = re.sub(r"[^\s\"'(]*/lib/python3\.\d+/", "", line)
    line = re.sub(rf"{re.escape(sys.prefix)}/bin/(python)[\d.]*", r"\1", line)
    line = line.replace(f"{ROOT}/", "").replace(str(Path.home()), "~")
    line = re.sub(r"/tmp/[^\s\"',)]*", "(a temporary file)", line)
    line = re.sub(r"(?i)\b(pid|process)([ :=]+)\d+", r"\1\2(its number)", line)
    return re.sub(r"\[(?:127\.0\.0\.1|::1|localhost|::ffff:[\d.]+)\]:\d+", "[this machine]:(a port)", line)
