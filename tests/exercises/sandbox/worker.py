"""One rank: gives up its rights, loads the student's file, runs a body of a test, sends what it returns.

All that is known here may become known to the student's code, which runs in this process. So nothing here
knows what is right: inputs come in, tensors and words go out.
"""

import builtins
import contextlib
import datetime
import faulthandler
import functools
import json
import linecache
import os
import pdb
import pkgutil
import random
import signal
import sys
import threading
import time
import traceback
import types
from pathlib import Path

import limits
import linux_proc
from fork_server import pack, unpack

COLLECTIVES = """
    all_reduce broadcast reduce all_gather all_gather_into_tensor all_gather_single gather scatter
    reduce_scatter reduce_scatter_tensor reduce_scatter_single all_to_all all_to_all_single barrier
    all_gather_object gather_object scatter_object_list broadcast_object_list send recv isend irecv
    batch_isend_irecv monitored_barrier
"""
WHERE = signal.SIGUSR2  # asks a rank where it is
MOST_CALLS = 3  # lines that are named above the one in which an exception was raised


class Me:
    """What a body may use beside the student's code."""

    def __init__(self, rank, world_size, folder, disk, tell, references):
        self.rank, self.world_size = rank, world_size
        self.folder = folder  # of this rank alone; nothing can be written there once all ranks are connected
        self.disk = disk  # of all ranks, kept between the runs of a test, if run() was given disk=True
        self.calls = []  # of torch.distributed, in order, and what note() has added
        self.delays = {}  # seconds by which calls of these names begin later
        self.tell, self.references = tell, references

    def note(self, name, **more):
        """Add something to the calls, for example that backward has reached a layer."""
        self.calls.append({"event": name, **more})

    # Only where grader.testing.needs_memory() has found that memory can be read.
    def memory(self):
        return linux_proc.memory_of("self")

    def restart_peak(self):
        os.write(self.references, b"5")

    def peak(self):
        return linux_proc.peak()

    def sent(self, since=0, to=None):
        """Bytes that this rank has sent, from this place in its calls on, if each call takes the shortest
        way; with `to`, those to this other rank. What all ranks must send together for a broadcast is shared
        out among them."""
        total, rest = 0, (self.world_size - 1) / self.world_size
        others = [rank for rank in range(self.world_size) if rank != self.rank and to in (None, rank)]
        share = len(others) / max(1, self.world_size - 1)  # of what goes to all other ranks alike
        for call in self.calls[since:]:
            name, phase = call["event"], call.get("phase")
            if name in ("recv", "irecv", "barrier", "monitored_barrier") or phase not in ("begin", "end"):
                continue
            if "send" in name or call.get("parts"):
                parts = [*call.get("operations", []), *call.get("parts", [])]
                if not parts and phase == "begin":  # a single message
                    parts = [["isend", call["peer"], call["bytes"]]]
                sizes = 0
                for kind, peer, size in parts:
                    if kind == "isend" and (peer in others or peer is to):
                        sizes += size
                total += sizes
                continue
            if phase == "begin":
                size = call["bytes"]
            elif "object" in name:
                size = call["inner"]
            else:
                size = 0
            total += size * share * (2 * rest if name == "all_reduce" else rest)
        return total


def load(name, text):
    """The student's file as a module. It is not on any path, and neither is anything beside it."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module = types.ModuleType("submission_" + "".join(c if c.isalnum() else "_" for c in name[:-3]))
    module.__file__ = name
    module.hash = salted(random.random())
    sys.modules[module.__name__] = module
    exec(compile(text, name, "exec", dont_inherit=True), vars(module))
    return module


def salted(salt):
    """hash() as it is in a process with a start of its own: that of words differs from process to process.
    Ranks that were forked from one process would agree."""

    def own_hash(value):
        if isinstance(value, str | bytes):
            value = (salt, value)
        elif type(value) in (tuple, frozenset):
            value = type(value)(map(own_hash, value))
        return hash(value)

    return own_hash


def line_of_student(files):
    """The innermost line of the student's files that is being run."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in files:
            return f"line {frame.f_lineno} of {frame.f_code.co_filename}"
        frame = frame.f_back
    return ""


class Waited:
    """The handle of an asynchronous call, which says when it is waited for."""

    def __init__(self, work, tell, kept=(), part=0):
        self._work = work
        self._tell = tell
        self._kept = kept
        self._part = part

    def wait(self, *words, **named):
        self._tell("wait", part=self._part)
        try:
            result = self._work.wait(*words, **named)
            if self._work in self._kept:
                self._kept.remove(self._work)
            return result
        finally:
            self._tell("waited", part=self._part)

    def __getattr__(self, name):
        return getattr(self._work, name)


def size_of(value, of="numel"):
    if hasattr(value, "numel"):
        return value.numel() if of == "numel" else value.nbytes
    if isinstance(value, list | tuple):
        return sum(size_of(item, of) for item in value)
    return 0


def largest(values, of="numel"):
    """The size of the largest tensor, or list of tensors, among these."""
    most = 0
    for value in values:
        most = max(most, size_of(value, of))
    return most


def peer_of(name, words, named):
    """To whom a message goes, or from whom it is to come; None where that is not said."""
    if name not in ("send", "recv", "isend", "irecv"):
        return None
    side = "dst" if "send" in name else "src"
    peer = words[1] if len(words) > 1 else named.get(side, named.get(f"group_{side}"))
    return peer if type(peer) is int else None


def root_of(name, words, named):
    """The `src` of a broadcast of all ranks, None where it is not said."""
    if name not in ("broadcast", "broadcast_object_list") or len(words) > 2 or named.get("group") is not None:
        return None
    root = words[1] if len(words) > 1 else named.get("src", named.get("group_src"))
    return root if type(root) is int else None


def operations_of(name, words, named):
    """The messages of batch_isend_irecv, or of a single one: name, peer and bytes of each."""
    if name != "batch_isend_irecv":
        return []
    calls = []
    for value in (*words, *named.values()):
        if isinstance(value, list):
            calls = value
            break
    found = []
    for one in calls:
        peer = getattr(one, "peer", None)
        kind = getattr(getattr(one, "op", None), "__name__", "")
        size = size_of(getattr(one, "tensor", None), "bytes")
        found.append([kind, peer if type(peer) is int else None, size])
    return found


def parts_of(name, words, named, rank_count):
    """What an all-to-all sends to each rank, as messages: name, peer and bytes."""
    names = {
        "all_to_all": ("output_tensor_list", "input_tensor_list"),
        "all_to_all_single": ("output", "input", "output_split_sizes", "input_split_sizes"),
    }
    given = {**dict(zip(names.get(name, ()), words, strict=False)), **named}
    sizes = []
    inputs = given.get("input_tensor_list")
    if isinstance(inputs, list | tuple):
        sizes = [size_of(one, "bytes") for one in inputs]
    if name == "all_to_all_single":
        size = size_of(given.get("input"), "bytes")
        splits = given.get("input_split_sizes")
        if not are_splits(splits):
            splits = [1] * rank_count
        sizes = [size * one // sum(splits) for one in splits]
    return [["isend", rank, size] for rank, size in enumerate(sizes)]


def are_splits(value):
    """Whether these can be the sizes of parts: whole numbers, not all of them zero."""
    if not isinstance(value, list | tuple):
        return False
    return all(type(one) is int for one in value) and any(value)


class Watcher:
    """Notes each call of torch.distributed, and tells the grader when it begins and ends."""

    def __init__(self, me, files, kind_of_handle):
        self.me = me
        self.files = files
        self.kind_of_handle = kind_of_handle
        self.own = threading.local()
        self.number = 0  # of the last call
        self.nth = {}  # how many calls there were of each name
        # gloo loses a message whose handle is dropped. A handle that was waited for is let go, because it
        # holds the tensor, and so a student's graph.
        self.kept = []

    def watched(self, name, call):
        @functools.wraps(call)
        def collective(*words, **named):
            if getattr(self.own, "is_inside", False):
                self.own.inner += largest((*words, *named.values()), "bytes")
                return call(*words, **named)
            return self.outermost(name, call, words, named)

        return collective

    def outermost(self, name, call, words, named):
        """A call that the student's code makes, and none of the functions that are watched."""
        self.own.is_inside = True
        self.own.inner = 0
        self.number += 1
        self.nth[name] = self.nth.get(name, 0) + 1
        of_all = {"event": name, "number": self.number, "nth": self.nth[name]}
        of_all["peer"] = peer_of(name, words, named)
        of_all["where"] = line_of_student(self.files)

        def tell(phase, **more):
            call_of = {**of_all, "phase": phase, **more}
            self.me.calls.append(call_of)
            self.me.tell(call_of)

        given = (*words, *named.values())
        operations = operations_of(name, words, named)
        more = {
            "root": root_of(name, words, named),
            "operations": operations,
            "parts": parts_of(name, words, named, self.me.world_size),
            "bytes": largest(given, "bytes"),
            "size": largest(given),
            "asynchronous": bool(named.get("async_op")),
        }
        time.sleep(self.me.delays.get(name, 0))
        tell("begin", **more)
        try:
            result = call(*words, **named)
        except BaseException:
            tell("raised")
            raise
        finally:
            self.own.is_inside = False
        tell("end", inner=self.own.inner)  # bytes of what it called itself: objects go as tensors

        if name == "batch_isend_irecv":
            return self.handles_of(operations, result, tell)
        if name == "isend":
            self.kept.append(result)
        return Waited(result, tell, self.kept) if isinstance(result, self.kind_of_handle) else result

    def handles_of(self, operations, works, tell):
        """Those of batch_isend_irecv, of which only the handles of messages that are sent are kept."""
        found = []
        for part, work in enumerate(works):
            if part < len(operations) and operations[part][0] == "isend":
                self.kept.append(work)
            found.append(Waited(work, tell, self.kept, part))
        return found


def watch(me, files):
    """Note each call of torch.distributed, and tell the grader when it begins and ends: if one never ends, it
    knows which. A student who looks for this can get around it."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    watcher = Watcher(me, files, dist.Work)
    for name in COLLECTIVES.split():
        call = getattr(dist, name, None)
        if call is not None:
            wrapped = watcher.watched(name, call)
            setattr(dist, name, wrapped)
            setattr(distributed_c10d, name, wrapped)


class NotAgain:
    """Refuses to import modules a second time, as importlib.reload does: they would have again what was taken
    away."""

    def __init__(self, modules):
        self.modules = modules

    def find_spec(self, name, path=None, target=None):
        if name in self.modules:
            raise ImportError(f"{name} cannot be imported again in this exercise")


def take_away(names):
    """What an exercise forbids is not there: `torch.nn.parallel.DistributedDataParallel`, for one."""
    modules = set()
    sys.meta_path.insert(0, NotAgain(modules))
    for path in names:
        holder, _, name = path.rpartition(".")
        try:
            place = pkgutil.resolve_name(holder)  # imports it, or the submission would get it whole
            taken = getattr(place, name)
        except (ImportError, AttributeError):
            continue

        modules.update((holder, getattr(taken, "__module__", holder)))

        def missing(*words, path=path, **named):
            raise RuntimeError(f"{path} must not be used in this exercise")

        with contextlib.suppress(AttributeError, TypeError):
            setattr(place, name, missing)
        # A class is found without its name, too: among the subclasses of its base.
        if isinstance(taken, type):
            with contextlib.suppress(AttributeError, TypeError):
                taken.__init__ = missing


def no_keyboard():
    """breakpoint() and input() would fail with words that explain nothing (BdbQuit, EOFError)."""

    def refused(name):
        def refuse(*words, **named):
            raise RuntimeError(f"{name} cannot work here: no process of the grader has a keyboard; use print")

        return refuse

    builtins.input, pdb.Pdb.set_trace = refused("input()"), refused("breakpoint()")


def scattered(rank):
    """Objects that leave holes of another order on each rank. Ranks that are forked from one process would
    have their objects at the same addresses, and code that relies on the order of a set would seem right."""
    import torch

    objects = [torch.nn.Parameter(torch.empty(0)) for _ in range(200)]
    random.Random(rank).shuffle(objects)
    return objects[:100]


def report(error, files):
    """An exception as words, without running anything of it that the student may have written."""
    kind = type(error)
    name = type.__getattribute__(kind, "__name__")
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    place = ""
    texts = []
    # Innermost first. It may be in a function that was given: then the mistake is in a line that calls it.
    for frame in lines[: -MOST_CALLS - 2 : -1]:
        where = f"line {frame.lineno}"
        if not place or frame.filename != lines[-1].filename:
            where += f" of {frame.filename}"
        if place:
            texts.append(f"called in {where}: `{frame.line}`")
        else:
            texts.append(f"`{frame.line}`")
            place = where
    if isinstance(error, SyntaxError) and BaseException.__getattribute__(error, "__dict__") == {}:
        place = f"line {error.lineno} of {error.filename}"
    try:
        words = str(error)[:2000]
    except BaseException:
        words = "(its message cannot be read)"
    return {"kind": str(name), "words": words, "place": place, "text": ", ".join(texts)}


def live(number, order, home, ends):
    """The whole life of a rank, of which `ends` are the pipes: given, answers, printed, stack. Never
    returns."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    given, answers, printed, stack = (os.dup2(end, 100 + place) for place, end in enumerate(ends))
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    os.closerange(3, 100)
    os.closerange(104, 4096)
    # Names of our own, because the student's code may put other functions in the places of these.
    write, dumps, leave = os.write, json.dumps, os._exit
    lock = threading.Lock()

    def tell(value):
        send(dumps(value).encode())

    def send(data):
        data += b"\n"
        with lock:
            while data:
                data = data[write(answers, data) :]

    world_size, folder, disk = order["ranks"], Path(home, "run", str(number)), Path(home, "disk")
    try:
        import torch
        import torch.distributed as dist

        from_grader = open(given, "rb")  # noqa: SIM115
        job = unpack(from_grader.readline())
        files = job["files"]
        os.chdir(folder)
        # Opened now, because Landlock will refuse it. Without this, only root could.
        limits.prctl(limits.DUMPABLE, 1)
        references = os.open(linux_proc.CLEAR, os.O_WRONLY) if linux_proc.IS_HERE else None
        limits.give_up(job["limits"], order["uid"], {f"{home}/run", f"{home}/disk", "/dev/null"})
        torch.set_num_threads(1)
        own = random.Random(os.urandom(8))  # from this, nobody can tell what the grader draws
        torch.default_generator.manual_seed(own.getrandbits(48))
        random.seed(own.getrandbits(48))
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(own.getrandbits(32))
        take_away(job["forbidden"])
        faulthandler.register(signal.SIGXCPU, file=stack, all_threads=False, chain=True)
        faulthandler.register(WHERE, file=stack, all_threads=False)
        # What was printed is all that is left of a process whose time is up.
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        if job["group"]:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{home}/run/meeting",
                rank=number,
                world_size=world_size,
                timeout=datetime.timedelta(seconds=job["seconds"] + 60),
            )
        me = Me(number, world_size, folder, disk if job["disk"] else None, tell, references)
        watch(me, files)
        no_keyboard()
        kept = scattered(number)
        # Ranks tell each other things through torch.distributed, and not through files.
        limits.landlock(limits.READABLE, writable={str(disk) if job["disk"] else "/dev/null", "/dev/null"})
        if job["disk"]:
            os.chdir(disk)
        # pickle looks for classes in modules
        check = sys.modules["the_check"] = types.ModuleType("the_check")
        exec(compile(job["source"], "<the check>", "exec"), vars(check))
        # Nothing of the student before all ranks are connected: a rank that leaves at once would look like a
        # fault of the machine to one that is still connecting.
        tell({"ready": True})
        from_grader.read(1)
    except BaseException as error:
        tell({"broken": f"{type(error).__name__}: {error}"[:2000]})
        leave(1)
    try:
        student = load(job["main"], files[job["main"]]) if job["main"] else None
        answer = pack({"value": getattr(check, job["body"])(student, me, job["inputs"])})
    except BaseException as error:
        answer = pack({"error": report(error, files)})
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    send(answer)
    del kept
    while True:  # the others may still use a connection to this rank
        signal.pause()


if __name__ == "__main__":
    live(*json.loads(sys.argv[1]))
