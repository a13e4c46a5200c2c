"""The process that decides. It never runs, imports or unpickles anything of a submission.

A check draws inputs, has a driver run the submission's code in workers (inside/), and compares what they send
with what it has worked out here. No word of a worker counts, only arrays that are right and what could be
seen from outside. A check that has not been proved is worth nothing.
"""

import ast
import contextlib
import fcntl
import functools
import hashlib
import importlib
import os
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import tomllib
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
INSIDE = HERE / "inside"
sys.path[:0] = [str(HERE), str(INSIDE)]
import wire  # noqa: E402

STARTERS, SOLUTIONS = ROOT / "lessons" / "exercises", ROOT / "solutions"
LIMITS = {"cpu_seconds": 6, "file_bytes": 64 << 20, "memory_bytes": 3 << 30, "processes": 64}
RUN_SECONDS = 20  # on a machine that does nothing else, a run takes a tenth of a second
LARGEST_FILE = 200_000
STATUSES = ("passed", "failed", "error", "timeout", "not reached", "infrastructure")

# ---- the manifest -----------------------------------------------------------------------------


@functools.cache
def manifest():
    """All exercises, in order. What is worth how much stands there and nowhere else."""
    return tomllib.loads((HERE / "manifest.toml").read_text())["exercise"]


def exercise(identity):
    """The exercise of this number. Its number may come without the zero: 3, 3a."""
    for one in manifest():
        if one["id"] == identity or one["id"] == f"0{identity}":
            return one
    lines = [f"  {one['id']:4} {one['title']}" for one in manifest()]
    raise SystemExit("\n".join([f"error: there is no exercise {identity}. There are:", *lines]))


def wanted(words):
    """The checks that are meant by `03`, `3a`, `03.2` or `03.2a`, or several of these with commas between.
    Not by how a name begins: 03 is not 03a, and 04a.1 is not 04a.10."""
    found = []
    for word in words.split(","):
        identity, _, part = word.strip().partition(".")
        one = exercise(identity)
        name = f"{one['id']}.{part}"
        checks = [entry for entry in one["check"] if not part or re.fullmatch(f"{name}[a-z]?", entry["id"])]
        if not checks:
            every = ", ".join(entry["id"] for entry in one["check"])
            raise SystemExit(f"error: there is no check {name}. Exercise {one['id']} has {every}")
        found += checks
    return {entry["id"] for entry in found}


def points_of(one):
    return sum(check["points"] for check in one["check"])


CHECKS = {}


def check(identity):
    """Mark a function as the check that has this name in the manifest."""

    def mark(function):
        CHECKS[identity] = function
        return function

    return mark


def check_function(identity):
    if identity not in CHECKS:
        importlib.import_module(f"check_{identity.partition('.')[0]}")
    return CHECKS[identity]


# ---- containment ------------------------------------------------------------------------------

MEANING = {
    1: "own session, limits, and a sweep of what is left",
    2: "another user id, limits, and a sweep of what is left",
    3: "bubblewrap: own file system, own processes, no network but loopback",
}


@functools.cache
def machine():
    """What this machine offers: the best level of containment, and why not more."""
    import contain

    root, linux = os.getuid() == 0, sys.platform == "linux"
    bubble, why = shutil.which("bwrap"), {}
    if not linux:
        why[2] = why[3] = "this is not Linux"
    else:
        if bubble is None:
            why[3] = "bubblewrap is not installed"
        else:
            words = [bubble, *(() if root else ("--unshare-user",)), "--unshare-pid", "--unshare-net"]
            words += ["--ro-bind", "/", "/", "--proc", "/proc", "true"]
            tried = subprocess.run(words, capture_output=True, text=True)
            if tried.returncode:
                why[3] = f"bubblewrap does not work here: {tried.stderr.strip()[:120]}"
        if not root:
            why[2] = "only root can run things as another user"
        else:
            for place in (sys.prefix, sys.base_prefix):
                for folder in (Path(place), *Path(place).parents):
                    if not folder.stat().st_mode & 0o001:
                        why[2] = f"another user could not run Python: {folder} is closed to others"
    if 2 not in why and not contain.landlock_version():
        for place in filter(Path.exists, (SOLUTIONS, HERE)):
            if place.stat().st_mode & 0o005 and all(
                folder.stat().st_mode & 0o001 for folder in place.parents
            ):
                why[2] = f"another user can read {place}, and there is no Landlock: chmod -R go= {place}"
    level = 3 if 3 not in why else 2 if 2 not in why else 1
    return {"level": level, "why": why, "landlock": contain.landlock_version(), "root": root}


def containment(level):
    files = "files limited by Landlock" if machine()["landlock"] else "files not limited (no Landlock here)"
    user = "" if level < 3 else ", another user id" if machine()["root"] else ", own user namespace"
    if level == 3:
        files = "only Python and an empty folder to be seen"
    return f"level {level} ({MEANING[level]}{user}; {files})"


def claim_user():
    """A user id for this nursery alone, and the lock that keeps it so. After a run, all that this user has is
    ended: two nurseries with one would end each other's workers."""
    folder = Path("/run/lock" if Path("/run/lock").is_dir() else tempfile.gettempdir()) / "rungs"
    folder.mkdir(mode=0o700, exist_ok=True)
    for uid in range(61000, 62000):
        lock = (folder / str(uid)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return uid, lock
        except OSError:
            lock.close()
    raise Gone("no user id is free between 61000 and 62000")


class Gone(Exception):
    """The nursery has ended in the middle of a run."""


class Nursery:
    """The nursery, seen from the judge: started once, asked for many runs."""

    def __init__(self, level=None):
        self.level = machine()["level"] if level is None else level
        self.uid = self.claim = None
        self.number, self.process = 0, None
        self.base, self.over, self.greeted = None, [], False

    def start(self):
        """Begin to start it. It takes seconds: what the judge has to import, it may import meanwhile."""
        if self.level > 1 and machine()["root"]:
            self.uid, self.claim = claim_user()
        self.greeted, self.base = False, "/tmp"
        if self.level < 3:
            self.base = tempfile.mkdtemp(prefix="rungs-")
            os.chmod(self.base, 0o755)
        environment = {
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
            "TORCHINDUCTOR_CACHE_DIR": f"{self.base}/inductor",
        }
        if "RUNGS_SPAWN" in os.environ:
            environment["RUNGS_SPAWN"] = "1"
        words = [sys.executable, "-s", "-P", str(INSIDE / "nursery.py")]
        if self.level == 3:
            words = [*bubblewrap(environment), *words]
            environment = {}
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=environment,
            cwd="/",
            start_new_session=True,
        )

    def ready(self):
        if self.process is None:
            self.start()
        if not self.greeted:
            self.receive()
            self.greeted = True

    def receive(self, limit=120):
        """What the nursery says. If it says nothing, somebody has stopped it: it has limits of its own."""
        deadline = time.monotonic() + limit
        (length,) = struct.unpack("<I", self.exactly(4, deadline))
        try:
            return wire.unpack(self.exactly(length, deadline))
        except wire.BadFrame as error:
            raise Gone(str(error)) from None

    def exactly(self, size, deadline):
        data, descriptor = bytearray(), self.process.stdout.fileno()
        while len(data) < size:
            ready, _, _ = select.select([descriptor], [], [], max(0, deadline - time.monotonic()))
            more = os.read(descriptor, min(size - len(data), 1 << 20)) if ready else b""
            if not more:
                raise Gone(self.last_words() if ready else "the nursery was silent for too long")
            data += more
        return bytes(data)

    def last_words(self):
        self.errors.seek(0)
        return self.errors.read()[-2000:].decode(errors="replace").strip()

    def run(self, **request):
        self.ready()
        self.number += 1
        folder = request.pop("folder") or f"run-{self.number}"
        request |= {"number": self.number, "uid": self.uid, "folder": f"{self.base}/{folder}"}
        request["remove"], self.over = [f"{self.base}/{name}" for name in self.over], []
        return self.ask(request, request["limit"] + 40)

    def ask(self, request, limit=60):
        data = wire.pack(request)
        try:
            self.process.stdin.write(struct.pack("<I", len(data)) + data)
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Gone(self.last_words()) from None
        return self.receive(limit)

    def wipe(self):
        """Make it as good as new for another submission: no process and no file of the last is left."""
        if self.process is not None:
            try:
                self.ask({"wipe": self.base, "uid": self.uid})
            except Gone:
                self.close()

    def close(self):
        if self.process is None:
            return
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
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


# malloc asks there whether it may use large pages.
LARGE_PAGES = "/sys/kernel/mm/transparent_hugepage"


def bubblewrap(environment):
    """The command before the command: what the nursery and all below it can see and do."""
    words = ["bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]
    words += ["--new-session", "--clearenv", "--hostname", "rungs"]
    if machine()["root"]:
        words += ["--cap-drop", "ALL"]
        for capability in ("SETUID", "SETGID", "KILL", "SYS_PTRACE", "CHOWN", "DAC_OVERRIDE", "FOWNER"):
            words += ["--cap-add", f"CAP_{capability}"]
    else:
        words += ["--unshare-user"]
    words += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp"]
    shown = [Path(sys.prefix), Path(sys.base_prefix), INSIDE]
    seen = [*shown, Path(LARGE_PAGES)]
    for folder in sorted({above for place in seen for above in place.parents} - {Path("/"), Path("/tmp")}):
        words += ["--perms", "0755", "--dir", str(folder)]
    for place in (
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/etc/ld.so.cache",
        "/etc/alternatives",
        "/etc/localtime",
        LARGE_PAGES,
    ):
        words += ["--ro-bind-try", place, place]
    for place in shown:
        words += ["--ro-bind", str(place), str(place)]
    for name, value in environment.items():
        words += ["--setenv", name, value]
    return [*words, "--chdir", "/tmp"]


# ---- a check ----------------------------------------------------------------------------------


class Verdict(Exception):
    """A check that is not passed: what came, what was expected."""

    def __init__(self, status, came, expected=""):
        super().__init__(came)
        self.status, self.came, self.expected = status, came, expected


@dataclass
class Result:
    id: str
    title: str
    points: float
    score: float = 0
    status: str = "not reached"
    tried: str = ""
    came: str = ""
    expected: str = ""
    output: str = ""
    hints: list = field(default_factory=list)
    visibility: str = "visible"
    seconds: float = 0
    left: int = 0
    about_file: bool = False  # the file is not there, or is no Python: nothing of it was run

    def as_dict(self):
        return asdict(self)


class Trial:
    """What a check has in hand."""

    def __init__(self, nursery, one, identity, files, seed):
        self.nursery, self.exercise, self.files = nursery, one, files
        digest = hashlib.sha256(f"{seed}/{identity}".encode()).digest()
        self.seed = int.from_bytes(digest[:6], "big")
        self.random = numpy.random.default_rng(self.seed)
        self.words, self.output, self.runs, self.left = [], "", 0, 0
        self.answer, self.folders = None, set()

    # Whether bytes and memory can be seen from outside: only Linux tells. Elsewhere those checks count less.
    counted = sys.platform == "linux"

    # -- inputs

    def floats(self, *shape):
        """Normal float32 numbers as a tensor, others for every submission."""
        import torch

        return torch.from_numpy(self.random.standard_normal(shape).astype("float32"))

    def integers(self, low, high, *shape):
        import torch

        return torch.from_numpy(self.random.integers(low, high, shape))

    def tried(self, words):
        """Say what is being tried, before it is: the student reads it if this fails."""
        self.words = [words]

    # -- runs

    def run(self, driver, inputs, group=True, limit=None, kill=None, folder=None, main="", files=None):
        """Run a driver on as many ranks as there are inputs. Returns the list of what they send.

        `self.answer` keeps the rest: events, marks. Raises Verdict if a rank does not send a result, unless
        `kill` says that one is to die: its place in the list is None then.
        """
        files = self.files if files is None else files
        if folder:
            folder = f"kept-{self.seed}-{folder}"
            self.folders.add(folder)
        request = {
            "driver": f"drive_{self.exercise['id']}.{driver}",
            "inputs": [wire.pack(value) for value in inputs],
            "files": files,
            "main": main if main is None else main or self.exercise["files"][0],
            "forbidden": self.exercise.get("forbidden", []),
            "limits": LIMITS | self.exercise.get("limits", {}),
            "seed": self.seed,
            "group": group,
            "limit": limit or self.exercise.get("seconds", RUN_SECONDS),
            "kill": kill,
            "folder": folder,
            "keep": bool(folder),
        }
        self.runs += 1
        self.answer = answer = self.nursery.run(**request)
        self.left += answer["left"]
        for rank, one in enumerate(answer["ranks"]):
            if one["output"].strip():
                self.output = (self.output + f"[rank {rank}] {one['output'].strip()}\n")[-6000:]
        explain(answer, list(files), killed=kill["rank"] if kill else None)
        values = []
        for rank, one in enumerate(answer["ranks"]):
            try:
                values.append(None if one["value"] is None else wire.unpack(bytes(one["value"])))
            except wire.BadFrame as error:
                raise Verdict("error", f"rank {rank} sent no valid result: {error}") from None
        return values

    def events(self, rank, name=None):
        """What happened in a rank, in order, as dicts with "time"; it is the worker's own word."""
        events = [{"time": when, **event} for when, event in self.answer["ranks"][rank]["events"]]
        return [event for event in events if name is None or event.get("event") == name]

    def mark(self, rank, name):
        """What was seen from outside when all ranks stood at a mark: sent, segments (TCP), memory (bytes)."""
        return self.answer["ranks"][rank]["marks"][name]

    # -- verdicts

    def require(self, condition, came, expected=""):
        if not condition:
            raise Verdict("failed", came, expected)

    def same(self, what, got, expected):
        """Equal things: whole numbers, words, None, lists of them."""
        got, expected = plain(got), plain(expected)
        same = type(got) is type(expected) and got == expected
        self.require(same, f"{what} is {short(got)}", short(expected))

    def close(self, what, got, expected, relative=2e-5, scale=None):
        """Equal but for rounding: the tolerance grows with the largest number expected (or with `scale`). A
        number that is small by chance, 1.0002 - 1, keeps the rounding of what it came from: hence the floor.
        NaN is never close to a number."""
        self.require(got is not None, f"{what} is None", "numbers")
        self.require(
            isinstance(got, numpy.ndarray | float | int) and not isinstance(got, bool),
            f"{what} is {short(got)}",
            "numbers",
        )
        expected = numpy.asarray(expected, dtype="float64")
        got = numpy.asarray(got, dtype="float64")
        self.require(got.shape == expected.shape, f"{what} has the shape {shape(got)}", shape(expected))
        if not expected.size:
            return
        if not numpy.isfinite(expected).all():
            raise RuntimeError(f"the judge's own {what} is not finite")
        allowed = relative * max(float(numpy.abs(expected).max()), scale or 0.05)
        with numpy.errstate(all="ignore"):
            wrong = ~(numpy.abs(got - expected) <= allowed)
        if wrong.any():
            place = tuple(int(index) for index in numpy.argwhere(wrong)[0])
            where = f" at {list(place)}" if place else ""
            more = f" ({int(wrong.sum())} of {wrong.size} numbers are wrong)" if wrong.size > 1 else ""
            came = f"{what}: {got[place]:.6g}{where}{more}{factor(got, expected, allowed)}"
            raise Verdict("failed", came, f"{expected[place]:.6g}")


def plain(value):
    if isinstance(value, numpy.ndarray):
        return value.tolist()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def shape(array):
    return " x ".join(map(str, array.shape)) or "one number"


def short(value):
    text = repr(value)
    return text if len(text) < 160 else text[:150] + " ..."


def factor(got, expected, allowed):
    """If all numbers are wrong by one factor, say so: it names the mistake."""
    with numpy.errstate(all="ignore"):
        ratio = got[numpy.abs(expected) > 100 * allowed] / expected[numpy.abs(expected) > 100 * allowed]
    if ratio.size < 3 or not numpy.isfinite(ratio).all() or numpy.ptp(ratio) > 1e-3 * abs(ratio.mean()):
        return ""
    if abs(ratio.mean() - 1) < 0.01:
        return "; all numbers are nearly right: is this more than rounding?"
    return f"; every number is {ratio.mean():.4g} times what it should be"


# ---- why a run gave no result -----------------------------------------------------------------

GLOO = re.compile(r"SIGABRT|enforce fail|gloo/transport", re.I)
BYSTANDER = re.compile(
    r"closed by peer|Connection reset|Broken pipe|Timed out waiting|Connection refused|Application timeout"
    r"|another rank|Connection closed",
    re.I,
)
SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


POINT = ("send", "recv", "isend", "irecv")


def names(ranks):
    ranks = [str(rank) for rank in ranks]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks[:-1])} and {ranks[-1]}"


def call(event):
    """`all_reduce number 3 (line 31 of 03_average_gradients.py)`, `recv number 1 from rank 2 (line ...)`"""
    where = f" ({event['where']})" if event.get("where") else ""
    way = "to" if "send" in event["event"] else "from"
    peer = f" {way} rank {event['peer']}" if type(event.get("peer")) is int else ""
    return f"{event['event']} number {event.get('nth', event['number'])}{peer}{where}"


def not_received(ranks):
    """Messages that were begun and that nobody has asked for yet, in words. Empty where it is not known who
    talks to whom."""
    counts = {}
    for rank, one in ranks.items():
        for _, event in one["events"]:
            name, peer = event.get("event"), event.get("peer")
            if event.get("phase") != "begin" or name not in (*POINT, "batch_isend_irecv"):
                continue
            if type(peer) is not int:
                return ""
            way = (rank, peer) if "send" in name else (peer, rank)
            counts[way] = counts.get(way, 0) + (1 if "send" in name else -1)
    left = [(*way, count) for way, count in sorted(counts.items()) if count > 0]
    lines = [f"{count} from rank {source} to rank {target}" for source, target, count in left]
    return f"; messages that nobody has received: {', '.join(lines)}" if lines else ""


def waiting(ranks, but):
    """Words about who waits for whom, beside the ranks that are the cause."""
    inside = {rank: one["inside"][0] for rank, one in ranks.items() if one["inside"] and rank not in but}
    if not inside:
        return ""
    first = next(iter(inside))
    verb = "was" if len(inside) == 1 else "were"
    return f"; {names(inside)} {verb} waiting for it in {call(with_place(ranks[first], inside[first]))}"


def with_place(one, event):
    """An event "wait" knows no line; the beginning of the same call does."""
    for _, other in one["events"]:
        if other.get("number") == event.get("number") and other.get("phase") == "begin":
            return event | {"where": other.get("where", "")}
    return event


def ended_words(code):
    if code == 0:
        return "left the process before it had returned (os._exit, or something like it)"
    if code == -99:
        return "closed the pipe to the judge"
    if code == -24:
        return f"had used up {LIMITS['cpu_seconds']} s of processor time: is there a loop that never ends?"
    if code == -25:
        return f"wrote more than {LIMITS['file_bytes'] >> 20} MB: is there an output that never ends?"
    if code < 0:
        return f"was ended by {SIGNALS.get(-code, f'signal {-code}')}"
    return f"left the process with status {code} before it had returned"


def explain(answer, files, killed=None):
    """Raise a Verdict that names the earliest cause, or return if every rank has sent a result."""
    if answer["why"].startswith("infrastructure"):
        raise Verdict("infrastructure", answer["why"])
    ranks = dict(enumerate(answer["ranks"]))
    for one in ranks.values():
        if one["broken"]:
            raise Verdict("infrastructure", f"{one['broken'].get('kind')}: {one['broken'].get('words')}")
    missing = {rank: one for rank, one in ranks.items() if one["value"] is None and rank != killed}
    if not missing:
        return
    alone = len(ranks) == 1
    causes = []
    for rank, one in missing.items():
        who = "your code" if alone else f"rank {rank}"
        if one["error"]:
            error = one["error"]
            words, kind = str(error.get("words", "")), str(error.get("kind", "an exception"))
            place = f" at {error['place']}" if error.get("place") else ""
            text = f": `{error['text']}`" if error.get("text") else ""
            hole = kind == "NotImplementedError" and re.match(r"\d\d[a-z]?\.\d+: ", words)
            if hole:
                causes.append((0, error["time"], [rank], "failed", f"not written yet: {words}"))
                continue
            absent = re.fullmatch(r"module 'submission_\w+' has no attribute '(\w+)'", words)
            if absent:
                causes.append((0, error["time"], [rank], "error", f"there is no {absent[1]} in {files[0]}"))
                continue
            if kind == "SystemExit":
                came = f"{who} called sys.exit({words}){place}{text}"
            elif kind == "BadFrame":
                came = f"{who} sent something that is no result ({words})"
            else:
                came = (
                    f"{who} raised {kind}: {words}{place}{text}"
                    if words
                    else f"{who} raised {kind}{place}{text}"
                )
            bystander = BYSTANDER.search(words) is not None and not alone
            causes.append((1 + bystander, error["time"], [rank], "error", came))
        elif one["ended"] is not None:
            came = f"{who} {ended_words(one['ended'])}"
            when = one["marks"].get("@ended", {}).get("time", 0)
            status = "timeout" if one["ended"] == -24 else "error"
            causes.append((1, when, [rank], status, came))
    if causes:
        _, _, who, status, came = min(causes)
        # gloo ends a process that gets more or fewer numbers than it waits for, and says so in its own words.
        if GLOO.search(came):
            came = unequal(ranks) or came
        raise Verdict(status, came + ("" if came.startswith("not written") else waiting(ranks, who)))
    if answer["why"] == "stuck":
        raise Verdict("timeout", stuck(ranks, missing))
    busy = [rank for rank, one in missing.items() if not one["inside"]] or list(missing)
    last = with_last(ranks[busy[0]])
    raise Verdict(
        "timeout",
        f"{'your code' if alone else names(busy)} had not returned after {answer['seconds']:.0f} s{last}"
        + waiting(ranks, busy),
    )


def with_last(one):
    for _, event in reversed(one["events"]):
        if event.get("phase"):
            return f"; the last call was {call(with_place(one, event))}"
    return ""


def unequal(ranks):
    """The first collective in which the ranks did not do the same, in words, or nothing."""
    calls = {}
    for rank, one in ranks.items():
        for _, event in one["events"]:
            if event.get("phase") == "begin" and event["event"] not in POINT:
                calls.setdefault(event["number"], {})[rank] = event
    for number in sorted(calls):
        same = calls[number]
        first, *others = same.values()
        if any(event["event"] != first["event"] for event in others):
            lines = ", ".join(f"rank {rank} called {call(event)}" for rank, event in same.items())
            return f"the ranks do not make the same calls: {lines}"
        if first["event"] in ("all_reduce", "broadcast", "reduce") and any(
            event["size"] != first["size"] for event in others
        ):
            lines = ", ".join(f"rank {rank} with {event['size']}" for rank, event in same.items())
            return f"the ranks give {call(first)} tensors of different size: {lines} numbers"
    return ""


def stuck(ranks, missing):
    """All that still run wait for others, and nothing moves."""
    inside = {
        rank: with_place(one, one["inside"][0]) if one["inside"] else None for rank, one in missing.items()
    }
    wait = {rank: event for rank, event in inside.items() if event}
    if not wait:
        others = [rank for rank in ranks if rank not in missing]
        those = f"{names(others)} returned, and " if others else ""
        return f"{those}{names(missing)} waited for ever, in a call of DDP or one outside torch.distributed"
    # Whoever stands at a mark has come back from the student's function.
    returned = [rank for rank in ranks if rank not in missing or (ranks[rank]["at"] and rank not in wait)]
    number = min(event["number"] for event in wait.values())
    first = min(wait, key=lambda rank: (wait[rank]["number"], rank))
    kinds = {rank: event["event"] for rank, event in wait.items() if event["number"] == number}
    if returned:
        verb = "was" if len(wait) == 1 else "were"
        it = "it" if len(returned) == 1 else "them"
        before = f"{names(returned)} returned before {call(wait[first])}"
        return f"{before}; {names(wait)} {verb} waiting for {it}{not_received(ranks)}"
    if set(kinds.values()) <= set(POINT):
        lines = "; ".join(f"rank {rank} in {call(event)}" for rank, event in wait.items())
        return f"all ranks wait and none can go on: {lines}{not_received(ranks)}"
    if len(set(kinds.values())) > 1:
        lines = ", ".join(f"rank {rank} called {call(wait[rank])}" for rank in kinds)
        return f"the ranks do not make the same calls: {lines}"
    begins = {}
    for rank, one in ranks.items():
        for _, event in one["events"]:
            if event.get("phase") == "begin" and event.get("number") == number:
                begins[rank] = event
    if len({event["size"] for event in begins.values()}) > 1:
        lines = ", ".join(f"rank {rank} with {event['size']} numbers" for rank, event in begins.items())
        return f"the ranks call {kinds[first]} number {number} with different sizes: {lines}"
    others = [rank for rank in ranks if rank not in wait or wait[rank]["number"] != number]
    ahead = {rank: wait[rank] for rank in others if rank in wait}
    if ahead:
        lines = ", ".join(f"rank {rank} in {call(event)}" for rank, event in ahead.items())
        return f"{names(kinds)} waited in {call(wait[first])}, and {lines}"
    return f"{names(wait)} waited for ever in {call(wait[first])}"


# ---- grading ----------------------------------------------------------------------------------


def read_files(one, folder):
    """The declared files of a submission as text, and nothing else. Raises Verdict."""
    files = {}
    for name in one["files"]:
        path = Path(folder) / name
        try:
            if not path.is_file():
                raise Verdict("error", f"{name} is not there")
            if path.stat().st_size > LARGEST_FILE:
                raise Verdict("error", f"{name} is larger than {LARGEST_FILE // 1000} kB")
            files[name] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Verdict("error", f"{name} cannot be read: {error}") from None
        refuse_names(one, name, files[name])
    return files


def refuse_names(one, name, text):
    """What an exercise does without, found by reading. Reading is not enough: workers take it away, too."""
    words = {path.rpartition(".")[2] for path in one.get("forbidden", [])}
    try:
        with warnings.catch_warnings():  # a "\\d" is a warning, and pytest makes errors of them
            warnings.simplefilter("ignore")
            tree = ast.parse(text, name)
    except SyntaxError as error:
        raise Verdict("error", f"{name} has a syntax error in line {error.lineno}: {error.msg}") from None
    except (RecursionError, MemoryError, ValueError):
        raise Verdict("error", f"{name} cannot be read as Python") from None
    for node in ast.walk(tree):
        found = {getattr(node, "id", None), getattr(node, "attr", None)}
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.name.rpartition(".")[2] for alias in node.names}
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 80:
            found.add(node.value)
        for word in sorted(words & found):
            raise Verdict(
                "failed", f"line {node.lineno} of {name} uses {word}", "this exercise is to be done without"
            )


def grade(one, folder, nursery, seed=0, told=None):
    """All checks of one exercise, in order. `told` is called with each Result as soon as it is there."""
    results, passed = [], set()
    for entry in one["check"]:
        results.append(grade_one(one, entry, folder, nursery, seed, passed))
        said_before(results)
        if results[-1].status == "passed":
            passed.add(entry["id"])
        if told:
            told(results[-1])
    return results


def said_before(results):
    """A file that is not there, or is no Python, is said once."""
    last = results[-1]
    for result in results[:-1]:
        if last.about_file and result.about_file and result.came == last.came:
            last.status, last.came, last.expected = "not reached", f"see {result.id}", ""
            return


def grade_one(one, entry, folder, nursery, seed, passed):
    """One check. `passed` holds the names of those that have been passed before."""
    result = Result(
        entry["id"],
        entry["title"],
        entry["points"],
        hints=entry["hints"],
        visibility=entry.get("visibility", "visible"),
    )
    missing = [need for need in entry.get("needs", []) if need not in passed]
    if missing:
        result.came = f"comes after {' and '.join(missing)}"
        return result
    try:
        # A check of one script of several has nothing to do with the others.
        files = read_files(one | {"files": entry.get("files", one["files"])}, folder)
    except Verdict as verdict:
        result.status, result.came, result.expected = verdict.status, verdict.came, verdict.expected
        result.about_file = True
        return result
    one_check(one, entry, files, nursery, seed, result)
    return result


def one_check(one, entry, files, nursery, seed, result):
    began = time.monotonic()
    for attempt in (1, 2):
        trial = Trial(nursery, one, entry["id"], files, seed)
        try:
            check_function(entry["id"])(trial)
            result.status, result.score = "passed", entry["points"]
            if not trial.runs:
                raise RuntimeError(f"check {entry['id']} has run nothing")
        except Verdict as verdict:
            result.status, result.came, result.expected = verdict.status, verdict.came, verdict.expected
        except Gone as gone:
            nursery.close()
            # Nothing of a student runs in the nursery. If it ends twice in the same check, it was ended.
            result.status = "infrastructure" if not trial.runs else "error"
            result.came = "the process around your code was ended while your code ran"
            result.output = str(gone)
            if attempt == 1:
                continue
        except Exception as error:
            # A fault of a check must never become a student's zero.
            import traceback

            result.status = "infrastructure"
            result.came = f"the check itself failed: {type(error).__name__}: {error}"
            result.output = traceback.format_exc()[-3000:]
        finally:
            nursery.over += trial.folders
        break
    if result.status != "passed":
        result.score = 0
    result.came, result.expected = visible(result.came), visible(result.expected)
    result.tried = " ".join(trial.words)
    result.output = visible(result.output or trial.output)
    result.left = trial.left
    result.seconds = round(time.monotonic() - began, 3)


# ---- words for the student --------------------------------------------------------------------


def number(value):
    return f"{value:g}"


def report(one, results, hints=1):
    """What a student reads: what fails, the first of it at the top, and all checks in order at the end."""
    earned, total = sum(result.score for result in results), points_of(one)
    if len(results) < len(one["check"]):
        total = sum(result.points for result in results)
    some = "" if len(results) == len(one["check"]) else f" of {len(results)} checks"
    lines = [f"{one['id']} {one['title']}: {number(earned)} of {number(total)} points{some}", ""]
    for result in results:
        if result.status not in ("passed", "not reached"):
            lines += [*detail(result, hints), ""]
    for result in results:
        mark = {"passed": "ok  ", "not reached": "  - "}.get(result.status, "NOT ")
        lines.append(
            f"  {mark} {result.id:6} {number(result.score):>4} of {number(result.points):<3} {result.title}"
            + (f" ({result.status})" if result.status not in ("passed", "failed") else "")
        )
    return "\n".join(lines)


def helpful(result, hints):
    """As many hints as fit: none where the code was not looked at, or not written yet, unless asked for."""
    if result.status == "infrastructure" or result.about_file:
        return []
    return [] if hints == 1 and result.came.startswith("not written yet") else result.hints[:hints]


def detail(result, hints):
    lines = [f"{result.id} {result.title}: {result.status}, 0 of {number(result.points)} points"]
    if result.tried:
        lines.append(f"  tried:    {result.tried}")
    if result.came:
        lines.append(f"  came:     {result.came}")
    if result.expected:
        lines.append(f"  expected: {result.expected}")
    for place, hint in enumerate(helpful(result, hints)):
        lines.append(f"  hint:     {hint}" if place == 0 else f"  hint {place + 1}:   {hint}")
    if result.output.strip():
        lines.append("  printed:")
        lines += [f"    {line[:160]}" for line in result.output.strip().splitlines()[-8:]]
    return lines


def visible(text):
    """Without what would move the cursor or change the colours of whoever reads it."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
