"""run(attempt, body, inputs): what a body returns on each rank, or a Verdict that says what the ranks did
instead.

The body, and whatever it mentions from the top of its file, goes to the sandbox as text. Nothing else of a
test file does. This process never runs, imports or unpickles anything of a submission.
"""

import ast
import contextlib
import dis
import inspect
import os
import selectors
import time
import types
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

import fork_server

from grader.causes import explain
from grader.results import Verdict
from grader.server import SERVER, Broken
from grader.settings import (
    FILES_OF_ALL,
    LIMITS,
    LYING_OF_ALL,
    MEMORY_OF_ALL,
    RUN_SECONDS,
    SOCKETS_OF_ALL,
    TOO_BUSY,
)
from grader.who_waits import different_roots

STILL = 0.4  # seconds without any sign of life until ranks that wait for each other count as stuck
STILL_UNSEEN = 3  # the same for ranks that wait where it is not seen for whom, inside DDP for one
MOST_ANSWERS = 64 << 20  # bytes of all that a rank sends
MOST_VALUES = 200_000  # of one answer: as Python's objects, 60 MB of empty lists would take gigabytes
MOST_PRINTED = 1 << 20  # bytes that are kept of the beginning of what a rank prints, and of its end
# What is read of a call, and what stands for it where a rank has not said it.
CALL = {"event": "", "phase": "", "number": 0, "nth": 0, "size": 0, "where": ""}


@dataclass
class Attempt:
    """One test with the files of one submission: what its ranks may use, and what has come of its runs."""

    files: dict[str, str]
    forbidden: list[str] = field(default_factory=list)
    seconds: float = RUN_SECONDS  # for a run
    limits: dict[str, int] = field(default_factory=lambda: LIMITS)  # of a process

    tried: str = ""  # what the test says that it tries
    given: list = field(default_factory=list)  # the inputs of the last run
    runs: int = 0
    printed: list = field(default_factory=list)  # for each run how many ranks, and what each has printed
    roots: str = ""  # words for broadcasts of the last run for which the ranks have named different sources
    used: float = 0.0  # seconds of all runs, without those in which ranks have waited for a core


# The attempt that is under way, for grader/testing.py: a test calls run(body, inputs), and knows of no
# attempt.
CURRENT: ContextVar[Attempt] = ContextVar("attempt")


def source_of(body):
    """The text of a function, and of all from the top of its file that it mentions."""
    tree = ast.parse(Path(inspect.getsourcefile(body)).read_text())
    known = {}  # which statements make each name
    for node in tree.body:
        for name in names_made_by(node):
            known.setdefault(name, []).append(node)
    wanted = set()
    todo = [body.__name__]
    while todo:
        for node in known.get(todo.pop(), []):
            if node not in wanted:
                wanted.add(node)
                todo += mentioned(compile(ast.Module([node], []), "body", "exec"))
    statements = [node for node in tree.body if node in wanted]
    return ast.unparse(ast.Module(statements, []))


def names_made_by(node):
    """What a statement at the top of a file gives a name: a function, a class, what is imported or stored."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.split(".")[0] for alias in node.names]
    if hasattr(node, "name"):
        return [node.name]
    names = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            names.append(inner.id)
    return names


def mentioned(code):
    found = []
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"):
            found.append(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += mentioned(constant)
    return found


class Rank:
    """One rank, seen from outside."""

    def __init__(self, number):
        self.number = number
        # What it has said: its answers, of which a part may still be missing, and how many bytes they had.
        self.buffer = bytearray()
        self.read = 0
        self.is_ready = False
        self.has_answer = False
        self.value = None
        self.error = None
        self.broken = None
        self.events = []
        self.inside = {}  # the calls that have begun and not ended
        # What it has printed, and where it was when it was asked.
        self.first = bytearray()
        self.last = bytearray()
        self.lines_between = 0
        self.stack = b""
        # How and when its process has ended.
        self.ended = None
        self.time = 0.0

        reads, self.given = os.pipe()
        self.theirs = [reads]  # the ends that its process gets, in the order in which worker.live takes them
        self.pipes = {}
        for name in ("answers", "printed", "stack"):
            reads, writes = os.pipe()
            os.set_blocking(reads, False)
            self.pipes[name] = reads
            self.theirs.append(writes)

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
            found = fork_server.unpack(line)
            if self.has_answer:
                raise ValueError("a second result: does it start processes of its own?")
            if "value" in found:
                self.value, self.has_answer = (found["value"],), True
            elif "error" in found:
                error = {"time": now}
                for name in ("kind", "words", "place", "text"):
                    error[name] = str(found["error"].get(name, ""))[:2000]
                self.error, self.has_answer = error, True
            elif "broken" in found and not self.is_ready:
                self.broken, self.has_answer = str(found["broken"]), True
            elif "ready" in found:
                self.is_ready = True
            else:
                self.hear_call(CALL | found)
        except Exception as error:
            self.hear_nonsense(f"{type(error).__name__}: {error}")

    def hear_call(self, call):
        for name, usual in CALL.items():
            if type(call[name]) is not type(usual):
                raise ValueError("a call that is none")
        if len(self.events) > 20_000:
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

    def seen(self):
        """For causes.py and who_waits.py."""
        return {
            "value": self.value,
            "error": self.error,
            "broken": self.broken,
            "ended": self.ended,
            "events": self.events,
            "time": self.time,
            "inside": list(self.inside.values()),
            "stack": self.stack.decode(errors="replace"),
        }

    def close(self):
        for descriptor in (self.given, *self.pipes.values()):
            os.close(descriptor)


def run(attempt, body, inputs, *, group=True, student=True, main=None, files=None, disk=False, dies=()):
    """`body(student, me, input)` on as many ranks as there are inputs; sandbox/worker.py says what `me` has.

    Returns the results: numbers, words, tensors, and lists and dicts of them (with words for keys). `dies`:
    the ranks that may be killed, whose result is None then. `group=False` makes no process group.
    `student=False` loads no file of a student, for a look at files with a process that has not seen any.
    `main`: the file to load, by default the first. `disk`: files in me.disk are kept until the test ends.
    """
    ranks = [Rank(number) for number in range(len(inputs))]
    files = attempt.files if files is None else files
    attempt.runs += 1
    attempt.given = inputs
    job = {
        "source": source_of(body),
        "body": body.__name__,
        "files": files,
        "main": (main or next(iter(files))) if student else None,
        "group": group,
        "disk": disk,
        "limits": attempt.limits,
        "forbidden": attempt.forbidden,
        "seconds": TOO_BUSY * attempt.seconds,
    }
    clock = Clock()
    try:
        why = under_way(ranks, job, inputs, attempt, clock)
        found = SERVER.ask("look")
        clock.look(sums_of(found["lives"], "delay"))
        for rank, code in zip(ranks, found["codes"], strict=True):
            if rank.ended is None:
                rank.ended = code
    finally:
        attempt.used += clock.used
        for rank in ranks:
            rank.close()
        # If it cannot remove what the run has left, the next run gets another sandbox.
        with contextlib.suppress(Broken):
            SERVER.ask("end")

    printed = {}
    for rank in ranks:
        text = rank.printed()
        if text.strip():
            printed[rank.number] = text.strip("\n")
    attempt.printed.append((len(ranks), printed))
    seen = [rank.seen() for rank in ranks]
    attempt.roots = different_roots(dict(enumerate(seen)))
    try:
        explain(why, clock.used, seen, files, dies)
    except Verdict as verdict:
        verdict.events = [rank.events for rank in ranks]  # what each rank has told until then
        raise
    values = []
    for rank in ranks:
        values.append(rank.value[0] if rank.value else None)
    return values


class Clock:
    """Seconds of a run. Those in which a rank has had to wait for a core do not count: on a machine that is
    busy, a right answer takes long."""

    def __init__(self):
        self.begin()

    def begin(self):
        self.began = self.looked = time.monotonic()
        self.used = 0.0
        self.delays = []

    def restart(self):
        """The student's code begins. Where ranks are started anew, they have imported torch until now."""
        if not fork_server.FORK:
            self.looked, self.used = time.monotonic(), 0.0

    def passed(self):
        return time.monotonic() - self.began

    def look(self, delays):
        """`delays`: for how long each rank has waited for a core until now."""
        now = time.monotonic()
        waited = 0.0
        for rank, delay in enumerate(delays):
            before = self.delays[rank] if self.delays else 0.0
            waited = max(waited, delay - before)
        self.used += max(0.0, now - self.looked - waited) / busyness()
        self.looked, self.delays = now, delays


class Stillness:
    """Since when nothing has moved: whoever still runs waits, and no thread of any has used a core.

    gloo's own thread wakes a hundred times a second. Where it is not seen for whom a rank waits, that would
    look like life for as long as it takes until a run counts as stuck."""

    def __init__(self):
        self.since, self.ticks = None, None

    def ends(self):
        self.since = None

    def look(self, lives, seen):
        """For how many seconds nothing has moved. `lives`: for each rank that still runs, what it and its
        children do; `seen`: whether all of them are in a call that waits for others."""
        ticks = 0.0
        for life in lives:
            for one in life:
                if one["sleeps"] or not one["waits"] or (seen and not one["gloo_waits"]):
                    self.since = None
                    return 0.0
                ticks += one["ticks"] + (one["gloo_ticks"] if seen else one["gloo_ticks"] // 10)
        now = time.monotonic()
        # Linux counts in hundredths of a second; elsewhere, a thread that only wakes is seen, too.
        allowed = 0.0
        if self.since is not None and not fork_server.linux_proc.IS_HERE:
            allowed = 3 * (now - self.since) / busyness()
        if self.since is None or not 0 <= ticks - self.ticks <= allowed:
            self.since, self.ticks = now, ticks
        return now - self.since


def under_way(ranks, job, inputs, attempt, clock):
    """Start the ranks, and wait until all have answered or ended. Says why it stopped."""
    ends = []
    for rank in ranks:
        ends += rank.theirs
    # Where something is forbidden must be imported to take it away: torch.distributed.fsdp, half a second a
    # rank.
    imports = {name.rpartition(".")[0] for name in job["forbidden"]}
    try:
        SERVER.ask("start", ends, ranks=len(ranks), imports=sorted(imports))
    finally:
        for end in ends:
            os.close(end)
    clock.begin()  # not before: the first run may have had to wait until the fork server has imported torch
    for rank, mine in zip(ranks, inputs, strict=True):
        with contextlib.suppress(BrokenPipeError):
            data = fork_server.pack(job | {"inputs": mine}) + b"\n"
            while data:
                data = data[os.write(rank.given, data) :]
    why = Watch(ranks, attempt, clock).until_it_ends()
    if why in ("stuck", "timeout"):
        silent = [rank for rank in ranks if not rank.has_answer and rank.is_ready]
        ask_where(silent)
    return why


class Watch:
    """Takes what the ranks send until all have answered or ended, and looks at their processes now and
    then."""

    def __init__(self, ranks, attempt, clock):
        self.ranks = ranks
        self.attempt = attempt
        self.clock = clock
        self.stillness = Stillness()
        self.has_begun = False  # the student's code
        self.looked = clock.began
        self.pause = 0.05  # seconds between two looks

    def until_it_ends(self):
        """Says why it stopped."""
        why = ""
        with selectors.DefaultSelector() as choose:
            for rank in self.ranks:
                for name, descriptor in rank.pipes.items():
                    choose.register(descriptor, selectors.EVENT_READ, (rank, name))
            while not why:
                has_heard = self.listen(choose)
                if not self.running():
                    return "done"
                if not self.has_begun and all(rank.is_ready for rank in self.ranks):
                    self.let_begin()
                if has_heard:
                    self.stillness.ends()
                if time.monotonic() - self.looked >= self.pause:
                    why = self.look(has_heard)
        return why

    def running(self):
        return [rank for rank in self.ranks if not rank.has_answer and rank.ended is None]

    def listen(self, choose):
        """Whether any rank has sent something, or has closed a pipe."""
        ready = choose.select(0.05)
        for key, _ in ready:
            rank, name = key.data
            if not rank.take(name, self.clock.passed()):
                choose.unregister(key.fd)
                if name == "answers" and not rank.has_answer:
                    has_ended(self.ranks, rank, self.clock.passed())
        return bool(ready)

    def let_begin(self):
        """All ranks are connected: now each may load the student's file."""
        self.has_begun = True
        self.clock.restart()
        for rank in self.ranks:
            with contextlib.suppress(BrokenPipeError):
                os.write(rank.given, b".")

    def look(self, has_heard):
        """What the processes do. Says why the run must end; no words if it may go on."""
        began = time.monotonic()
        found = SERVER.ask("look")
        self.looked = time.monotonic()
        # Where there are many processes, a look takes long.
        self.pause = max(0.05, 5 * (self.looked - began))
        self.clock.look(sums_of(found["lives"], "delay"))

        # Where ranks are started anew, each of them imports torch, which takes seconds.
        is_starting = not self.has_begun and not fork_server.FORK
        why = too_much(found, self.attempt.limits["cpu_seconds"])
        if why:
            return why
        if self.clock.used > self.attempt.seconds and not is_starting:
            why = "timeout"
        elif self.clock.passed() > TOO_BUSY * self.attempt.seconds:
            why = "busy"
        elif not has_heard and not is_starting and self.is_stuck(found["lives"]):
            why = "stuck"
        return why

    def is_stuck(self, lives):
        """Whether all that still run have been waiting for others for too long."""
        running = self.running()
        of_running = [lives[rank.number] for rank in running]
        if not all(of_running):
            return False
        seen = all(rank.inside for rank in running)
        longest = STILL if seen else STILL_UNSEEN
        return self.stillness.look(of_running, seen) > busyness() * longest


def busyness():
    """How many processes want each core. Only Linux says for how long a rank has waited for a core, so
    elsewhere a run gets so many times as long."""
    return 1.0 if fork_server.linux_proc.IS_HERE else max(1.0, os.getloadavg()[0] / os.cpu_count())


def sums_of(lives, name):
    """For each rank, the sum of one number over its process and its children: `delay`, the seconds for which
    they have waited for a core, or `ticks`, the hundredths of a second for which they had one."""
    sums = []
    for life in lives:
        sums.append(sum(one[name] for one in life))
    return sums


def too_much(found, cpu_seconds):
    """What all processes of a run have used too much of together; no word if nothing."""
    seconds = sum(sums_of(found["lives"], "ticks")) / 100
    is_too_much = {
        "memory": found["memory"] > MEMORY_OF_ALL,
        "cpu": seconds > cpu_seconds * (len(found["lives"]) + 2),
    }
    if SERVER.level == 3:  # below it, files and network are those of the whole machine
        is_too_much["files"] = found["files"] > FILES_OF_ALL
        is_too_much["sockets"] = found["sockets"] > SOCKETS_OF_ALL
        is_too_much["lying"] = found["lying"] > LYING_OF_ALL
    for what, is_so in is_too_much.items():
        if is_so:
            return what
    return ""


def has_ended(ranks, rank, when):
    """A pipe was closed: has its process ended, and how?"""
    rank.time = when
    end = time.monotonic() + 1
    while rank.ended is None and time.monotonic() < end:
        rank.ended = SERVER.ask("look")["codes"][ranks.index(rank)]
        if rank.ended is None:
            time.sleep(0.002)
    if rank.ended is None:  # a process may close its pipe and go on
        rank.ended = -99


def ask_where(ranks):
    """Have each rank write down where it is, and give it some time for that."""
    for rank in ranks:
        if rank.ended is None:  # what one wrote when its time was up stays
            rank.stack = b""
    SERVER.ask("where", ranks=[rank.number for rank in ranks])
    end = time.monotonic() + 0.3
    while time.monotonic() < end and not all(rank.stack.endswith(b"\n") for rank in ranks):
        time.sleep(0.01)
        for rank in ranks:
            rank.take("stack", 0)


def wipe():
    """Remove what runs have left in me.disk."""
    SERVER.ask("wipe")
