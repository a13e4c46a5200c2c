"""One rank: gives up its rights, loads the student's file, runs a driver, sends what came out.

All that is known here may become known to the student's code, which runs in this process. So nothing here
knows what is right: inputs come in, arrays and events go out.
"""

import builtins
import contextlib
import datetime
import faulthandler
import functools
import importlib
import linecache
import os
import pdb
import random
import signal
import struct
import sys
import traceback
import types

import by_path
import contain
import numpy
import wire

COLLECTIVES = """
    all_reduce broadcast reduce all_gather all_gather_into_tensor all_gather_single gather scatter
    reduce_scatter reduce_scatter_tensor reduce_scatter_single all_to_all all_to_all_single barrier
    all_gather_object gather_object scatter_object_list broadcast_object_list send recv isend irecv
    batch_isend_irecv monitored_barrier
"""

# To ask a process that waits where it is; macOS has no such signal.
WHERE = getattr(signal, "SIGRTMIN", 0) + 5
MOST_CALLS = 3  # that are named above the line in which an exception was raised


class Pipe:
    """Packets to the nursery: a letter, a length, a frame."""

    def __init__(self, outgoing, incoming):
        self.outgoing, self.incoming = outgoing, incoming

    def send(self, letter, value):
        data = wire.pack(value)
        data = struct.pack("<cI", letter, len(data)) + data
        while data:
            data = data[os.write(self.outgoing, data) :]

    def given(self):
        """What the judge gives to this rank, and no other: a length and a frame."""
        (length,) = struct.unpack("<I", wire.exactly(self.incoming, 4))
        return wire.unpack(wire.exactly(self.incoming, length))


class Tools:
    """What a driver may use beside the student's code."""

    def __init__(self, pipe, rank, world_size, folder, files):
        self.rank, self.world_size, self.folder = rank, world_size, folder
        self.files = files
        self._pipe, self._file_events = pipe, 0

    def event(self, name, **more):
        self._pipe.send(b"E", {"event": name, **more})

    def ask(self, name, value=None):
        """Wait for a number that the judge keeps back until the nursery has seen from outside what the judge
        demands for it. What is right depends on it. `value` goes to the judge."""
        self._pipe.send(b"Q", {"gate": name, "with": value})
        return self._pipe.given()

    # The functions as they were before the student's code could put others in their place.
    def count_file_events(self, kill_at=None, kill=os.kill, add_hook=sys.addaudithook):
        """From now on, count what this process does to files (open, rename, remove, make a folder); at the
        one numbered `kill_at`, end it with SIGKILL, before it is done. Python cannot remove such a hook."""
        pid, number = os.getpid(), signal.SIGKILL

        def hook(event, arguments):
            if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate", "os.link"):
                self._file_events += 1
                if self._file_events == kill_at:
                    self.event("killed", before=file_event(event, arguments))
                    kill(pid, number)

        add_hook(hook)


def file_event(event, arguments):
    """What a process is about to do, in words: opens run.temporary for writing."""
    names = [os.path.basename(os.fsdecode(one)) for one in arguments[:2] if isinstance(one, str | bytes)]
    if event == "open":
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        return (
            f"opens {' '.join(names[:1])} for {'writing' if flags & (os.O_WRONLY | os.O_RDWR) else 'reading'}"
        )
    if event in ("os.rename", "os.link"):
        return f"{'renames' if event == 'os.rename' else 'links'} {' to '.join(names)}"
    return f"{'makes' if event == 'os.mkdir' else event.removeprefix('os.') + 's'} {' '.join(names[:1])}"


def salted(salt):
    """hash() as it is in a process with a start of its own: that of words differs from process to process.
    Ranks that were forked from one process would agree."""

    def own_hash(value):
        if isinstance(value, str | bytes):
            return hash((salt, value))
        if type(value) in (tuple, frozenset):
            return hash(type(value)(map(own_hash, value)))
        return hash(value)

    return own_hash


def load(name, text, own_hash):
    """The student's file as a module. It is not on any path, and neither is anything beside it."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module = types.ModuleType("submission_" + "".join(c if c.isalnum() else "_" for c in name[:-3]))
    module.__file__ = name
    module.hash = own_hash
    sys.modules[module.__name__] = module
    exec(compile(text, name, "exec", dont_inherit=True), vars(module))
    return module


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
        self._work, self._tell, self._kept, self._part = work, tell, kept, part

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


def size_of(value):
    if hasattr(value, "numel"):
        return value.numel()
    if isinstance(value, list | tuple):
        return sum(size_of(item) for item in value)
    return 0


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


def sends_of(name, words, named):
    """Which of the handles that this call returns are of a send."""
    if name != "batch_isend_irecv":
        return [0] if name == "isend" else []
    calls = next((value for value in (*words, *named.values()) if isinstance(value, list)), [])
    names = [getattr(getattr(one, "op", None), "__name__", "") for one in calls]
    return [place for place, name in enumerate(names) if name == "isend"]


def watch(pipe, files):
    """Tell the nursery when each collective begins and ends: if one never ends, it knows which."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    inside, number, nth, kept = [False], [0], {}, []

    def watched(name, call):
        @functools.wraps(call)
        def collective(*words, **named):
            if inside[0]:
                return call(*words, **named)
            inside[0], number[0] = True, number[0] + 1
            mine = number[0]
            sizes = [size_of(value) for value in (*words, *named.values())]
            where = line_of_student(files)

            nth[name] = nth.get(name, 0) + 1
            words_of = {"event": name, "number": mine, "nth": nth[name], "peer": peer_of(name, words, named)}

            def tell(phase, **more):
                pipe.send(b"E", {**words_of, "phase": phase, **more})

            sends = sends_of(name, words, named)
            more = {"sends": sends, "root": root_of(name, words, named), "where": where}
            tell("begin", size=max([0, *sizes]), asynchronous=bool(named.get("async_op")), **more)
            try:
                result = call(*words, **named)
            except BaseException:
                tell("raised")
                raise
            finally:
                inside[0] = False
            tell("end")
            works = result if name == "batch_isend_irecv" else [result]
            # An isend that nobody waits for: its end would hang in the process, far from its cause.
            # One that was waited for is let go: it holds the tensor, and so a student's graph.
            kept.extend(works[part] for part in sends if part < len(works))
            if name == "batch_isend_irecv":
                return [Waited(work, tell, kept, part) for part, work in enumerate(works)]
            return Waited(result, tell, kept) if isinstance(result, dist.Work) else result

        return collective

    for name in COLLECTIVES.split():
        call = getattr(dist, name, None)
        if call is not None:
            wrapped = watched(name, call)
            setattr(dist, name, wrapped)
            setattr(distributed_c10d, name, wrapped)


def take_away(names):
    """What an exercise forbids is not there: `torch.nn.parallel.DistributedDataParallel`, for one."""
    for path in names:
        holder, _, name = path.rpartition(".")
        parts = holder.split(".")
        try:
            place = importlib.import_module(parts[0])
            for number, part in enumerate(parts[1:], 2):
                if not hasattr(place, part):  # not imported yet: the submission would get it whole
                    importlib.import_module(".".join(parts[:number]))
                place = getattr(place, part)
            taken = getattr(place, name)
        except (ImportError, AttributeError):
            continue

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


def report(error, files):
    """An exception as words, without running anything of it that the student may have written."""
    kind = type(error)
    name = type.__getattribute__(kind, "__name__")
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    place, texts = "", []
    # Innermost first. It may be in a function that was given: then the mistake is in a line that calls it.
    for frame in lines[: -MOST_CALLS - 2 : -1]:
        where = f"line {frame.lineno}"
        where += "" if place and frame.filename == lines[-1].filename else f" of {frame.filename}"
        texts.append(f"called in {where}: `{frame.line}`" if place else f"`{frame.line}`")
        place = place or where
    if isinstance(error, SyntaxError) and BaseException.__getattribute__(error, "__dict__") == {}:
        place = f"line {error.lineno} of {error.filename}"
    try:
        words = str(error)[:2000]
    except BaseException:
        words = "(its message cannot be read)"
    bases = [type.__getattribute__(base, "__name__") for base in type.__getattribute__(kind, "__mro__")]
    return {"kind": str(name), "bases": bases, "words": words, "place": place, "text": ", ".join(texts)}


def work(job, rank, outgoing, incoming, stack=None):
    """The whole life of a rank. Never returns."""
    pipe = Pipe(outgoing, incoming)
    files = job["files"]
    try:
        # Before the files are out of reach.
        import torch
        import torch.distributed as dist

        inputs = pipe.given()
        stem, _, driver_name = job["driver"].partition(".")
        driver = getattr(by_path.driver(stem), driver_name)
        os.chdir(job["folder"])
        contain.give_up(job["limits"], job["uid"], job["folder"])
        torch.set_num_threads(1)
        own = random.Random(f"{job['seed']}/{rank}")
        torch.default_generator.manual_seed(own.getrandbits(48))
        random.seed(own.getrandbits(48))
        numpy.random.seed(own.getrandbits(32))
        take_away(job["forbidden"])
        # What was printed, and the line, are all that is left of a process whose time is up.
        sys.stdout.reconfigure(line_buffering=True)
        faulthandler.register(signal.SIGXCPU, all_threads=False, chain=True)
        if stack is not None:
            faulthandler.register(WHERE, file=stack, all_threads=False)
        tools = Tools(pipe, rank, job["world_size"], job["folder"], files)
        if job["group"]:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{job['folder']}/.meeting-{job['number']}",
                rank=rank,
                world_size=job["world_size"],
                timeout=datetime.timedelta(seconds=job["limit"] + 60),
            )
        watch(pipe, files)
        no_keyboard()
        if not job["keep"]:
            # What ranks tell each other goes where it is counted: not into files, and not through the store
            # by which they have met. Nor can a file hold what no memory is to hold.
            contain.landlock(contain.READABLE, writable={"/dev/null"})
        # Nothing of the student before all ranks are connected: a rank that leaves at once would look like
        # a fault of the machine to one that is still connecting.
        pipe.send(b"M", None)
        os.read(incoming, 1)
    except BaseException as error:
        pipe.send(b"I", {"kind": type(error).__name__, "words": str(error)[:2000]})
        os._exit(1)
    # Taken before the student's code can put others in their place.
    pack, head, write, read, leave = wire.pack, struct.pack, os.write, os.read, os._exit
    letter, answer = b"X", None
    try:
        student = load(job["main"], files[job["main"]], salted(own.random())) if job["main"] else None
        answer = pack(driver(student, inputs, tools))
        letter = b"R"
    except BaseException as error:
        answer = pack(report(error, files))
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    data = head("<cI", letter, len(answer)) + answer
    while data:
        data = data[write(outgoing, data) :]
    # The others may still wait for this rank. It stays until the nursery has seen who waits for whom.
    read(incoming, 1)
    leave(0)
