"""run(body, inputs): what a body returns on each rank, or a Verdict that says what the ranks did instead.

The body, and whatever it mentions from the top of its file, goes to the sandbox as text. Nothing else of a
test file does. This process never runs, imports or unpickles anything of a submission.
"""

import ast
import contextlib
import dis
import inspect
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

import worker
import zygote

from grader import walls
from grader.causes import explain
from grader.results import Verdict
from grader.settings import LIMITS, MEMORY_OF_ALL, RUN_SECONDS, SANDBOX
from grader.waits import different_roots

# All that the sandbox gets of the environment.
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
FIRST_USER = 61000  # of users that nobody else has on this machine
STILL = 0.4  # seconds without any sign of life until ranks that wait for each other count as stuck
STILL_UNSEEN = 3  # the same for ranks that wait where it is not seen for whom, inside DDP for one
MOST_ANSWERS = 64 << 20  # bytes of all that a rank sends
MOST_VALUES = 200_000  # of one answer: as Python's objects, 60 MB of empty lists would take gigabytes
MOST_PRINTED = 1 << 20  # bytes that are kept of the beginning of what a rank prints, and of its end
# What is read of a call, and what stands for it where a rank has not said it.
CALL = {"event": "", "phase": "", "number": 0, "nth": 0, "size": 0, "where": ""}


class Broken(RuntimeError):
    """The machine, and not the submission."""


class Submission:
    """What the plug-in (conftest.py) says about the check that is running."""

    files: dict[str, str] = {}  # noqa: RUF012  names and texts
    forbidden: list[str] = []  # noqa: RUF012
    seconds, limits = RUN_SECONDS, LIMITS
    printed: list = []  # noqa: RUF012  for each run what each rank has printed
    given: list = []  # noqa: RUF012  the inputs of the last run
    tried, runs = "", 0
    roots = ""  # words for broadcasts of the last run for which the ranks have named different sources


class Sandbox:
    """The process from which ranks are forked. It lives as long as it answers."""

    def __init__(self):
        self.level = self.uid = self.process = self.owner = None

    def begin(self):
        """Start it. That takes seconds, in which the grader may import torch itself."""
        self.level = walls.machine()["level"] if self.level is None else self.level
        if self.level > 1 and walls.machine()["root"]:
            # The kernel limits the processes of a user. With one user for two sandboxes, a fork bomb in one
            # would stop the other. Graders that run at once have different process ids.
            self.uid = FIRST_USER + os.getpid() % 1000
        self.home, self.is_ready, self.owner = "/tmp", False, os.getpid()
        if self.level < 3:
            self.home = tempfile.mkdtemp(prefix="rungs-")
            os.chmod(self.home, 0o755)
        environment = ENVIRONMENT | {"TORCHINDUCTOR_CACHE_DIR": f"{self.home}/inductor"}
        environment |= {"RUNGS_SPAWN": "1"} if "RUNGS_SPAWN" in os.environ else {}
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        about = json.dumps([theirs.fileno(), self.home, self.uid])
        words = [sys.executable, "-s", "-P", str(SANDBOX / "zygote.py"), about]
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        with contextlib.ExitStack() as stack:
            given = [theirs.fileno()]
            if self.level == 3:
                given.append(stack.enter_context(walls.call_filter()).fileno())
                words, environment = [*walls.bubblewrap(environment, given[-1]), *words], {}
            pipes = {"stdin": subprocess.DEVNULL, "stdout": self.errors, "stderr": self.errors}
            more = {"env": environment, "cwd": "/", "start_new_session": True, "pass_fds": given}
            self.process = subprocess.Popen(words, **pipes, **more)
        theirs.close()

    def ask(self, seconds=20, ends=(), **order):
        try:
            if self.process is None:
                self.begin()
            if not self.is_ready:
                self.hear(120)
                self.is_ready = True
            socket.send_fds(self.channel, [json.dumps(order).encode()], ends)
            return self.hear(seconds)
        except OSError as error:
            raise Broken(f"the sandbox does not answer: {self.last_words() or error}") from None

    def hear(self, seconds):
        self.channel.settimeout(seconds)
        found = self.channel.recv(1 << 16)
        if not found:
            raise OSError("it has ended")
        return json.loads(found)

    def last_words(self):
        self.errors.seek(0)
        return self.errors.read()[-2000:].decode(errors="replace").strip()

    def close(self):
        if self.process is None or self.owner != os.getpid():
            return
        self.channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2 if self.is_ready else 0)
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.errors.close()
        if self.home != "/tmp":
            shutil.rmtree(self.home, ignore_errors=True)
        self.process = None


BOX = Sandbox()  # of this process


def source_of(body):
    """The text of a function, and of all from the top of its file that it mentions."""
    tree = ast.parse(Path(inspect.getsourcefile(body)).read_text())
    known, todo, wanted = {}, [body.__name__], set()
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.asname or alias.name.split(".")[0] for alias in node.names]
        elif hasattr(node, "name"):
            names = [node.name]
        else:
            stored = [one for one in ast.walk(node) if isinstance(getattr(one, "ctx", None), ast.Store)]
            names = [one.id for one in stored if isinstance(one, ast.Name)]
        for name in names:
            known.setdefault(name, []).append(node)
    while todo:
        for node in known.get(todo.pop(), []):
            if node not in wanted:
                wanted.add(node)
                todo += mentioned(compile(ast.Module([node], []), "body", "exec"))
    return ast.unparse(ast.Module([node for node in tree.body if node in wanted], []))


def mentioned(code):
    names = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS")
    found = [step.argval for step in dis.get_instructions(code) if step.opname in names]
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return found + [name for one in inner for name in mentioned(one)]


class Rank:
    """One rank, seen from outside."""

    def __init__(self, number):
        self.number, self.pid = number, None
        self.buffer, self.read, self.stack = bytearray(), 0, b""
        self.first, self.last, self.lines_between = bytearray(), bytearray(), 0
        self.value = self.error = self.broken = self.ended = None
        self.is_ready = self.has_answer = False
        self.events, self.inside, self.time = [], {}, 0.0
        pipes = [os.pipe() for _ in range(4)]
        self.theirs = [pipes[0][0], *(writes for _, writes in pipes[1:])]
        self.given = pipes[0][1]
        reads = [reads for reads, _ in pipes[1:]]
        self.pipes = dict(zip(("answers", "printed", "stack"), reads, strict=True))
        for descriptor in self.pipes.values():
            os.set_blocking(descriptor, False)

    def take(self, name, now):
        """Read what has come through a pipe. False if the pipe has been closed."""
        try:
            data = os.read(self.pipes[name], 1 << 20)
        except BlockingIOError:
            return True
        if name == "stack":
            self.stack = (self.stack + data)[-16_000:]
        elif name == "printed":
            room = MOST_PRINTED - len(self.first)
            self.first += data[:room]
            self.last += data[room:] if room > 0 else data
            self.lines_between += self.last[:-MOST_PRINTED].count(b"\n")
            del self.last[:-MOST_PRINTED]
        else:
            self.read += len(data)
            self.buffer += data
            if self.read > MOST_ANSWERS:
                self.hear_nonsense("it is too long")
            *lines, rest = self.buffer.split(b"\n")
            self.buffer = rest
            for line in lines:
                self.hear(bytes(line), now)
        return bool(data)

    def hear(self, line, now):
        try:
            if line.count(b",") > MOST_VALUES:
                raise ValueError("too many values")
            found = zygote.unpack(line)
            if self.has_answer:
                raise ValueError("something after the result")
            if "value" in found:
                self.value, self.has_answer = (found["value"],), True
            elif "error" in found:
                about = ("kind", "words", "place", "text")
                self.error = {name: str(found["error"].get(name, ""))[:2000] for name in about}
                self.error["time"], self.has_answer = now, True
            elif "broken" in found and not self.is_ready:
                self.broken, self.has_answer = str(found["broken"]), True
            elif "ready" in found:
                self.is_ready = True
            else:
                self.hear_call(CALL | found)
        except Exception as error:
            self.hear_nonsense(f"{type(error).__name__}: {error}")

    def hear_call(self, call):
        is_right = all(type(call[name]) is type(usual) for name, usual in CALL.items())
        if not is_right or len(self.events) > 20_000:
            raise ValueError("a call that is none")
        self.events.append(call)
        key = call["event"], call["number"]
        if call["phase"] in ("begin", "wait"):
            self.inside[key] = call
        else:
            self.inside.pop(key, None)

    def hear_nonsense(self, words):
        self.value, self.has_answer = None, True
        self.error = {"kind": "BadFrame", "words": words, "place": "", "text": "", "time": time.monotonic()}

    def printed(self):
        """The beginning and the end of what it printed, and how many lines are left out between."""
        first, last = bytes(self.first), bytes(self.last)
        if self.lines_between:  # whole lines alone: of two, there is a part only
            first, last = first[: first.rfind(b"\n") + 1], last[last.find(b"\n") + 1 :]
            first += f"... {self.lines_between + 1} lines left out\n".encode()
        return (first + last).decode(errors="replace").replace("\0", "")

    def life(self, seen):
        """Processor time so far, None while a thread runs: if it is the same later, nothing has moved.

        gloo's own thread wakes a hundred times a second. Within STILL_UNSEEN, that would look like life."""
        used, idle = 0, True
        try:
            if read(f"/proc/{self.pid}/syscall").startswith("230 "):  # clock_nanosleep: it will go on
                return None
            for task in os.listdir(f"/proc/{self.pid}/task"):
                name, _, rest = read(f"/proc/{self.pid}/task/{task}/stat").rpartition(")")
                rest, wakes = rest.split(), name.endswith("(gloo_tcp_loop") and not seen
                used += (int(rest[11]) + int(rest[12])) // (10 if wakes else 1)
                idle = idle and (wakes or rest[0] in "SZX")
        except (OSError, IndexError):
            return None
        return used if idle else None

    def seen(self):
        """For causes.py and waits.py."""
        names = ("value", "error", "broken", "ended", "events", "time")
        stack = self.stack.decode(errors="replace")
        return {name: getattr(self, name) for name in names} | {
            "inside": list(self.inside.values()),
            "stack": stack,
            "output": self.printed(),
        }


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def run(body, inputs, *, group=True, student=True, main=None, files=None, disk=False, dies=()):
    """`body(student, me, input)` on as many ranks as there are inputs; sandbox/worker.py says what `me` has.

    Returns the results: numbers, words, tensors, and lists and dicts of them (with words for keys). `dies`:
    the ranks that may be killed, whose result is None then. `group=False` makes no process group.
    `student=False` loads no file of a student, for a look at files with a process that has not seen any.
    `main`: the file to load, by default the first. `disk`: files in me.disk are kept until the test ends.
    """
    box, ranks = BOX, [Rank(number) for number in range(len(inputs))]
    files = Submission.files if files is None else files
    Submission.runs += 1
    Submission.given = inputs
    job = {"source": source_of(body), "body": body.__name__, "files": files, "group": group, "disk": disk}
    job |= {"main": (main or next(iter(files))) if student else None, "limits": Submission.limits}
    job |= {"forbidden": Submission.forbidden, "seconds": Submission.seconds}
    try:
        why, seconds = under_way(box, ranks, job, inputs)
        codes = box.ask(do="codes")
        for rank, code in zip(ranks, codes, strict=True):
            rank.ended = code if rank.ended is None else rank.ended
    finally:
        for rank in ranks:
            for descriptor in (rank.given, *rank.pipes.values()):
                os.close(descriptor)
        with contextlib.suppress(Broken):
            box.ask(do="end")
    printed = {rank.number: rank.printed().strip("\n") for rank in ranks if rank.printed().strip()}
    Submission.printed.append((len(ranks), printed))
    seen = [rank.seen() for rank in ranks]
    Submission.roots = different_roots(dict(enumerate(seen)))
    try:
        explain(why, seconds, seen, files, dies)
    except Verdict as verdict:
        verdict.events = [rank.events for rank in ranks]  # what each rank has told until then
        raise
    return [rank.value[0] if rank.value else None for rank in ranks]


def under_way(box, ranks, job, inputs):
    ends = [end for rank in ranks for end in rank.theirs]
    # Where something is forbidden must be imported to take it away: torch.distributed.fsdp, half a second a
    # rank.
    imports = sorted({name.rpartition(".")[0] for name in job["forbidden"]})
    pids = box.ask(do="start", ranks=len(ranks), imports=imports, ends=ends)
    for end in ends:
        os.close(end)
    # In a sandbox, processes have other numbers than here.
    numbers = {}
    for pid in zygote.children(box.process.pid):
        inner = read(f"/proc/{pid}/status").partition("NSpid:")[2].split("\n")[0].split()
        numbers |= {int(inner[-1]): pid} if inner else {}
    for rank, mine, pid in zip(ranks, inputs, pids, strict=True):
        rank.pid = numbers.get(pid, pid)
        with contextlib.suppress(BrokenPipeError):
            data = zygote.pack(job | {"inputs": mine}) + b"\n"
            while data:
                data = data[os.write(rank.given, data) :]
    began = time.monotonic()
    why = watch(box, ranks, began + job["seconds"])
    if why in ("stuck", "timeout"):
        ask_where([rank for rank in ranks if not rank.has_answer and rank.is_ready])
    return why, time.monotonic() - began


def watch(box, ranks, deadline):
    """Take what the ranks send until all have answered or ended. Says why it stopped."""
    began, has_begun, still_since, lives, looked = time.monotonic(), False, None, None, 0
    with selectors.DefaultSelector() as choose:
        for rank in ranks:
            for name, descriptor in rank.pipes.items():
                choose.register(descriptor, selectors.EVENT_READ, (rank, name))
        while True:
            ready = choose.select(0.05)
            now = time.monotonic()
            for key, _ in ready:
                rank, name = key.data
                if not rank.take(name, now - began):
                    choose.unregister(key.fd)
                    if name == "answers" and not rank.has_answer:
                        has_ended(box, ranks, rank, now - began)
            running = [rank for rank in ranks if not rank.has_answer and rank.ended is None]
            if not running:
                return "done"
            if not has_begun and all(rank.is_ready for rank in ranks):
                has_begun = True
                for rank in ranks:
                    with contextlib.suppress(BrokenPipeError):
                        os.write(rank.given, b".")
            if now > deadline:
                return "timeout"
            if now - looked > 0.05:
                looked, pids = now, zygote.children(box.process.pid)
                if sum(map(worker.memory_of, pids)) > MEMORY_OF_ALL:
                    return "memory"
            if ready:
                lives = None
                continue
            # Stuck: whoever still runs is inside a call that waits for others, and no thread of any has
            # moved.
            seen = all(rank.inside for rank in running)
            now_lives = [rank.life(seen) for rank in running]
            if None in now_lives or now_lives != lives:
                still_since, lives = now, now_lives
            elif now - still_since > (STILL if seen else STILL_UNSEEN):
                return "stuck"


def has_ended(box, ranks, rank, when):
    """A pipe was closed: has its process ended, and how?"""
    rank.time, end = when, time.monotonic() + 1
    while rank.ended is None and time.monotonic() < end:
        rank.ended = box.ask(do="codes")[ranks.index(rank)]
        time.sleep(0 if rank.ended is not None else 0.002)
    rank.ended = -99 if rank.ended is None else rank.ended  # a process may close its pipe and go on


def ask_where(ranks):
    """Have each rank write down where it is, and give it some time for that."""
    for rank in ranks:
        rank.stack = b""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(rank.pid, worker.WHERE)
    end = time.monotonic() + 0.3
    while time.monotonic() < end and not all(rank.stack.endswith(b"\n") for rank in ranks):
        time.sleep(0.01)
        for rank in ranks:
            rank.take("stack", 0)


def wipe():
    """Remove what runs have left in me.disk."""
    BOX.ask(do="wipe")
