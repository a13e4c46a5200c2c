"""The process in which nothing of a student ever runs, and from which all ranks are forked.

It has imported torch, which takes seconds, and has one thread. For each run it forks the ranks, watches them
from outside, ends what is left, and hands on what they sent. Judge and nursery talk over a pipe.

Where a process that has imported torch must not fork (macOS), each rank is started anew.
"""

import contextlib
import io
import os
import select
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import by_path
import contain
import wire
import worker

FORK = sys.platform == "linux" and "RUNGS_SPAWN" not in os.environ
MOST = {b"R": wire.LARGEST, b"X": 1 << 20, b"I": 1 << 16, b"M": 1 << 10, b"E": 1 << 12, b"Q": 1 << 20}
MOST_EVENT_BYTES = 4 << 20  # of all events of a rank
MOST_PRINTED = 1 << 20  # bytes that are kept of the beginning of what a rank prints, and of its end
# What the judge reads of a call, and what stands for it where a rank has not said it.
CALL = {"event": "", "phase": "", "number": 0, "nth": 0, "size": 0, "where": ""}
STILL = 0.4  # seconds without any sign of life until ranks that wait for each other count as stuck
STILL_UNSEEN = 3  # the same for ranks that wait where it is not seen for whom, inside DDP for one


class Rank:
    """A worker seen from outside."""

    def __init__(self, number):
        self.number, self.buffer = number, bytearray()
        self.pid = self.reads = self.writes = self.process = self.stack = None
        self.value = self.error = self.ended = self.broken = None
        self.event_bytes = 0
        self.done = False  # has sent a result or an error; waits for a word
        self.events, self.marks, self.ready = [], {}, False
        self.inside, self.connections = {}, set()
        self.gates, self.asked, self.asks = {}, {}, None
        self.sent = self.grown = 0  # since the gate from which on a demand counts

    def told(self, letter, data, now):
        # A result is for the judge: here it would only cost time and memory.
        value = None if letter == b"R" else wire.unpack(data, wire.LONGEST, wire.MOST_VALUES)
        if letter == b"E":
            # Arrays in it could not be compared, here or in the judge; lists of lists are a lot of memory.
            parts = [part for one in value.values() for part in (one if isinstance(one, list) else [one])]
            if any(not isinstance(part, str | float | int | None) for part in parts):
                raise wire.BadFrame("an event that has more than words and numbers")
            self.event_bytes += len(data)
            if self.event_bytes > MOST_EVENT_BYTES:
                raise wire.BadFrame("too many events")
            if "phase" in value:
                value = CALL | value
                if any(type(value[name]) is not type(usual) for name, usual in CALL.items()):
                    raise wire.BadFrame("a call with something else than words and numbers")
            self.events.append(value)
            key = (value.get("event"), value.get("number"))
            if value.get("phase") in ("begin", "wait"):
                self.inside[key] = value
            else:
                self.inside.pop(key, None)
        elif letter == b"M":
            if self.ready:
                raise wire.BadFrame("ready to begin a second time")
            self.ready = True
        elif letter == b"Q":
            name = str(value.get("gate"))
            if self.asks or name in self.asked or name not in self.gates:
                raise wire.BadFrame(f"a question that has no answer: {name[:80]}")
            self.asks, self.asked[name] = name, {"with": value.get("with"), "time": now}
        elif self.done:
            raise wire.BadFrame("a second result")
        elif letter == b"R":
            if self.asks:
                raise wire.BadFrame(f"a result while it waits for a number: {self.asks}")
            self.value, self.done = data, True
        elif letter == b"X":
            self.error, self.done = {name: str(one)[:2000] for name, one in value.items()}, True
            self.error["time"] = now
        elif "@start" in self.marks:
            raise wire.BadFrame("a fault of the machine, after the student's code began")
        else:
            self.broken, self.done = value, True

    def where(self):
        """Its stack, as it has been asked to write it down; nobody can say what its words are worth."""
        return os.pread(self.stack, 8000, 0).decode(errors="replace") if self.stack is not None else ""

    def life(self, seen):
        """Processor time so far, None while a thread runs: if it is the same later, nothing has moved.

        gloo's own thread wakes a hundred times a second. Within STILL_UNSEEN, that would look like life."""
        used, idle = 0, True
        try:
            for task in os.listdir(f"/proc/{self.pid}/task"):
                name, _, rest = read(f"/proc/{self.pid}/task/{task}/stat").rpartition(")")
                rest, wakes = rest.split(), name.endswith("(gloo_tcp_loop") and not seen
                used += (int(rest[11]) + int(rest[12])) // (10 if wakes else 1)
                idle = idle and (wakes or rest[0] in "SZX")
        except OSError:
            return None
        return used if idle else None


def read(path):
    """A page of /proc. It is read a hundred times in each run, and pathlib would take most of that time."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        data = os.read(descriptor, 1 << 16)
        while more := os.read(descriptor, 1 << 16):
            data += more
        return data.decode(errors="replace")
    finally:
        os.close(descriptor)


def sockets():
    """TCP bytes sent, bytes on their way and both ports, by inode, as the kernel knows them; by ports for a
    connection that nobody has accepted."""
    found = {}
    if sys.platform != "linux":
        return found
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as kernel:
            for family in (socket.AF_INET, socket.AF_INET6):
                # Without those that belong to no process any more: there may be 60,000 of them for a minute.
                states = 0xFFF & ~(1 << 6 | 1 << 3)
                ask = struct.pack("<BBBBI", family, socket.IPPROTO_TCP, 1 << 1, 0, states) + bytes(48)
                kernel.send(struct.pack("<IHHII", 16 + len(ask), 20, 0x301, 1, 0) + ask)
                more = True
                while more:
                    data = kernel.recv(1 << 17)
                    while data and more:
                        length, kind = struct.unpack_from("<IH", data)
                        more = kind == 20
                        if more:
                            inode, facts = one_socket(data[16:length])
                            found[inode or facts[-1]] = facts
                        data = data[(length + 3) & ~3 :]
    except OSError:
        return {}
    return found


def one_socket(message):
    unread, unsent, _, inode = struct.unpack_from("<IIII", message, 56)
    place, sent = 72, 0
    ports = struct.unpack_from(">HH", message, 4)
    while place + 4 <= len(message):
        length, kind = struct.unpack_from("<HH", message, place)
        if kind == 2 and length >= 220:
            first, again = struct.unpack_from("<QQ", message, place + 4 + 200)
            sent = first - again
        place += (max(length, 4) + 3) & ~3
    return inode, (sent, unread + unsent, ports)


def below(pid):
    """The children of a process, and theirs."""
    found = set()
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):  # a thread that ends meanwhile must not hide the others
                found |= {int(child) for child in read(f"/proc/{pid}/task/{task}/children").split()}
    return found.union(*map(below, found))


def of_any_thread(pid, look_at):
    """What `look_at` finds under /proc for a process. Once its first thread has ended, the process's own page
    is empty, though others go on: then it is asked of them."""
    found = look_at(f"/proc/{pid}")
    if not found:
        with contextlib.suppress(OSError):
            tasks = [f"/proc/{pid}/task/{task}" for task in os.listdir(f"/proc/{pid}/task")]
            found = next(filter(None, map(look_at, tasks)), found)
    return found


def memory_of(pid):
    """Bytes of a process: its own, shared ones, all with files that it has mapped, and the most ever."""
    return of_any_thread(pid, memory_in)


def memory_in(place):
    found = {}
    with contextlib.suppress(OSError):
        for line in read(f"{place}/status").splitlines():
            name, _, size = line.partition(":")
            if name in ("RssAnon", "RssShmem", "VmRSS", "VmHWM"):
                found[name] = int(size.split()[0]) << 10
    return found


def held(memory):
    """What counts. Shared memory too, or data could be put there so as not to count."""
    return memory.get("RssAnon", 0) + memory.get("RssShmem", 0)


def open_sockets(place):
    found = []
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"{place}/fd"):
            with contextlib.suppress(OSError, ValueError):
                name = os.readlink(f"{place}/fd/{descriptor}")
                found += [int(name[8:-1])] if name.startswith("socket:[") else []
    return found


def seen_from_outside(rank, pids, counters):
    """What the kernel knows of these processes, whatever they say of themselves."""
    memory, inodes = [memory_of(pid) for pid in pids], set()
    facts = {"sent": 0, "by_ports": {}, "memory": sum(map(held, memory))}
    for name, kernels in (("resident", "VmRSS"), ("peak", "VmHWM")):
        facts[name] = sum(one.get(kernels, 0) for one in memory)
    for pid in pids:
        inodes.update(of_any_thread(pid, open_sockets))
    there = inodes & counters.keys()
    for inode in there:
        sent, waiting, ports = counters[inode]
        # Or a rank could keep on its way what it is not to hold. Whoever connects counts for both ends.
        facts["memory"] += waiting + counters.get(ports[::-1], (0, 0))[1]
        facts["sent"] += sent
        facts["by_ports"][ports] = sent
    facts["sockets"] = len(facts["by_ports"])
    # What was sent over a connection that is closed is no longer counted by anybody. One between the same
    # ports, made in its place, begins with zero.
    facts["closed"] = len(rank.connections - there)
    rank.connections |= there
    return facts


def start(job, rank):
    """Fork one rank, or start it anew."""
    reads, their_writes = os.pipe()
    their_reads, writes = os.pipe()
    rank.reads, rank.writes = reads, writes
    os.set_blocking(reads, False)
    # Not in the folder of the run: there, a student could put a link to another file in its place.
    output = os.open(output_file(job, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    if not FORK:
        number, ends = str(rank.number), (their_writes, their_reads)
        words = [sys.executable, "-I", __file__, "--rank", number, *map(str, ends)]
        pipes = {"stdin": subprocess.PIPE, "stdout": output, "stderr": output, "pass_fds": ends}
        rank.process = subprocess.Popen(words, start_new_session=True, **pipes)
        rank.pid = rank.process.pid
        data = wire.pack(job)
        rank.process.stdin.write(struct.pack("<I", len(data)) + data)
        rank.process.stdin.close()
    else:
        with tempfile.TemporaryFile(dir=output_file(job, rank).parent) as file:
            rank.stack = os.dup(file.fileno())
        rank.pid = os.fork()
        if rank.pid == 0:
            try:
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.dup2(their_writes, 3)
                os.dup2(their_reads, 4)
                os.dup2(rank.stack, 5)
                os.closerange(6, 4096)
                worker.work(job, rank.number, 3, 4, stack=5)
            finally:
                os._exit(70)
    for end in (their_writes, their_reads, output):
        os.close(end)


def give(incoming, target):
    """Move what one rank is given from the judge's pipe to that rank's, or nowhere. With splice it never is
    in the memory of this process: each rank has a copy of that, and would find what others are given."""
    head = wire.exactly(incoming, 4)
    left = struct.unpack("<I", head)[0] if len(head) == 4 else 0
    try:
        if target is not None:
            os.write(target, head)
        while left and target is not None:
            if FORK:
                moved = os.splice(incoming, target, left)
            else:
                moved = os.write(target, os.read(incoming, min(left, 1 << 16)))
            if not moved:
                return
            left -= moved
    except BrokenPipeError:  # that rank has ended
        pass
    while left:
        left -= len(os.read(incoming, min(left, 1 << 16))) or left


def run(request, incoming):
    """One run of all ranks of a job. The judge says nothing in the meantime: if `incoming` can be read, it is
    gone (Ctrl-C, for one), and all that it has had started is to end."""
    for path in request["remove"]:  # or what one submission has saved would be there for the next
        remove(path)
    folder = Path(request["folder"])
    fresh = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if request["uid"] is not None and fresh:
        os.chown(folder, request["uid"], request["uid"])
    ranks = [Rank(number) for number in range(request["world_size"])]
    to_give, all_given = list(ranks), False
    began = time.monotonic()
    choose, why = selectors.DefaultSelector(), "done"
    try:
        for rank in ranks:
            start(request, rank)
            choose.register(rank.reads, selectors.EVENT_READ, rank)
        while to_give:
            give(incoming, to_give.pop(0).writes)
        # Read only now: what the gates keep back was never in the memory from which a rank was forked.
        all_given = True
        for rank, gates in zip(ranks, next_frame(incoming) or [], strict=False):
            rank.gates = gates
        for rank in ranks:  # whoever asks and never reads must not hold up the nursery
            os.set_blocking(rank.writes, False)
        choose.register(incoming, selectors.EVENT_READ, None)
        why = watch(request, ranks, choose, began)
        if why in ("stuck", "timeout"):
            ask_where([rank for rank in ranks if not rank.done and "@start" in rank.marks])
        # Whoever has sent a result waits for a word: this look is not in the hands of any code in a rank.
        if all(rank.value is not None for rank in ranks):
            look(ranks, "@end")
    except OSError as error:
        why = f"infrastructure: {error}"
    finally:
        for _ in to_give:
            give(incoming, None)
        if not all_given:
            next_frame(incoming)
        left = sweep(request["alone"], {rank.pid for rank in ranks if rank.ended is None and rank.pid})
        forget(request["uid"], request["alone"])
        stacks = [rank.where() for rank in ranks]
        for rank in ranks:
            for end in (rank.reads, rank.writes, rank.stack):
                if end is not None:
                    with contextlib.suppress(OSError):
                        os.close(end)
        choose.close()
    names = ("value", "error", "broken", "ended", "events", "marks", "asked")
    answer = [{name: getattr(rank, name) for name in names} for rank in ranks]
    for rank, stack, one in zip(ranks, stacks, answer, strict=True):
        one["gate"] = rank.asks and {"name": rank.asks, "sent": rank.sent, "grown": rank.grown}
        one |= {"inside": list(rank.inside.values()), "stack": stack, "output": output_of(request, rank)}
    if not request["keep"]:
        left += remove(folder)
    return {"why": why, "seconds": time.monotonic() - began, "ranks": answer, "left": left}


def remove(folder):
    """Says whether something is left of it. A submission may have made folders in folders until Python cannot
    follow, or one in which nobody may write."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        for words in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            subprocess.run([*words, str(folder)], stderr=subprocess.DEVNULL)
    return os.path.lexists(folder)


def wipe(request):
    """Nothing of one submission may be there for the next: no process, no file."""
    left = sweep(request["alone"], set())
    for path in Path(request["wipe"]).iterdir():
        if path.is_dir() and not path.is_symlink():
            left += remove(path)
        else:
            path.unlink(missing_ok=True)
    return {"left": left}


def remove_files(folder, uid):
    """Those of the user that only workers have."""
    for path in Path(folder).iterdir() if uid is not None else ():
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == uid:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def forget(uid, alone):
    """What a run has left in memory: files in /dev/shm, and shared memory, queues and semaphores of System V.
    The next run of a check is to find what is in its folder, and nothing else. `alone`: nobody but workers
    has any here. Otherwise, what belongs to their user goes, and on a student's own laptop nothing."""
    if sys.platform != "linux" or not (alone or uid is not None):
        return
    remove_files("/dev/shm", os.getuid() if uid is None else uid)
    kept = []
    for kind in ("shm", "msg", "sem"):
        with contextlib.suppress(FileNotFoundError):  # a kernel without them
            lines = Path("/proc/sysvipc", kind).read_text().splitlines()[1:]
            kept += [(kind, int(line.split()[1])) for line in lines]
    if kept:
        remove = {"shm": (0, None), "msg": (0, None), "sem": (0, 0)}  # IPC_RMID is 0
        as_user(uid, lambda: [getattr(contain.LIBC, f"{kind}ctl")(one, *remove[kind]) for kind, one in kept])


def output_file(request, rank):
    folder = Path(request["folder"]).parent / "printed"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{request['number']}-{rank.number}"


def output_of(request, rank):
    """The beginning and the end of what it printed, and how many lines are left out between."""
    path = output_file(request, rank)
    try:
        with path.open("rb") as file:
            data, size, ends = file.read(MOST_PRINTED), os.fstat(file.fileno()).st_size, 0
            while (left := size - MOST_PRINTED - file.tell()) > 0:
                middle = file.read(min(left, MOST_PRINTED))
                ends += middle.count(b"\n")
                if not middle:  # the rank has cut the file short meanwhile
                    break
            if size > 2 * MOST_PRINTED:
                data += f"\n... {ends - 1} lines left out\n".encode() if ends > 1 else b" ... "
            data += file.read(MOST_PRINTED)
        path.unlink()
    except OSError:
        return ""
    return data.decode(errors="replace").replace("\0", "")


def watch(request, ranks, choose, began):
    """Take what the ranks send until all have ended. Says why it stopped."""
    deadline = began + request["limit"]
    still_since, lives, looked = None, None, began
    kill = request["kill"]
    while True:
        now = time.monotonic()
        if kill and "after" in kill and now - began >= kill["after"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(ranks[kill["rank"]].pid, signal.SIGKILL)
            kill = None
        # Between two ranks at a closed gate there are milliseconds: a step has as many gates as layers.
        ready = choose.select(0.05 if all(rank.asks is None for rank in ranks) else 0.002)
        for key, _ in ready:
            if key.data is None:
                return "the judge is gone"
            if take(key.data, time.monotonic() - began) is False:
                choose.unregister(key.fd)
        running = [rank for rank in ranks if rank.ended is None and not rank.done]
        if not running:
            return "done"
        begin(ranks)
        open_gates(ranks)
        if time.monotonic() > deadline:
            return "timeout"
        # What one process may have is the kernel's to limit; a submission can have many.
        if now - looked > 0.05:
            looked = now
            if sum(held(memory_of(pid)) for pid in below(os.getpid())) > request["limits"]["memory_of_all"]:
                return "memory"
        if ready:
            lives = None
            continue
        # Stuck: whoever still runs is inside a call that waits for others, and no thread of any has moved.
        seen = all(rank.inside or rank.asks for rank in running)
        now_lives = [rank.life(seen) for rank in running]
        if None in now_lives or now_lives != lives:
            still_since, lives = time.monotonic(), now_lives
        elif time.monotonic() - still_since > (STILL if seen else STILL_UNSEEN):
            return "stuck"


def ask_where(ranks):
    """Have each rank write down where it is, and give it some time for that."""
    asked = [rank for rank in ranks if rank.stack is not None and rank.ended is None]
    for rank in asked:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rank.pid, worker.WHERE)
    end = time.monotonic() + 0.3
    while time.monotonic() < end and not all(rank.where().endswith("\n") for rank in asked):
        time.sleep(0.01)


def take(rank, now):
    """Read what a rank has sent. False if it has ended."""
    try:
        data = os.read(rank.reads, 1 << 20)
    except BlockingIOError:
        return True
    if not data:
        with contextlib.suppress(ChildProcessError):
            end = time.monotonic() + 1
            # A process may close its pipe and go on.
            while rank.ended is None and time.monotonic() < end:
                pid, status = os.waitpid(rank.pid, os.WNOHANG)
                if pid:
                    rank.ended = os.waitstatus_to_exitcode(status)
                else:
                    time.sleep(0.002)
        if rank.ended is None:
            rank.ended = -99
        if rank.error is None and rank.value is None:
            rank.marks["@ended"] = {"time": now}
        return False
    rank.buffer += data
    try:
        while len(rank.buffer) >= 5:
            letter, length = struct.unpack_from("<cI", rank.buffer)
            if length > MOST.get(letter, -1):
                raise wire.BadFrame("a packet of an unknown kind or size")
            if len(rank.buffer) < 5 + length:
                break
            packet = bytes(rank.buffer[5 : 5 + length])
            del rank.buffer[: 5 + length]
            rank.told(letter, packet, now)
    except (wire.BadFrame, AttributeError, TypeError) as error:
        rank.value, rank.error, rank.done = None, {"kind": "BadFrame", "words": str(error), "time": now}, True
        return False
    return True


def begin(ranks):
    """When all ranks are ready: look at each from outside, then let them load the student's file."""
    if "@start" in ranks[0].marks or not all(rank.ready for rank in ranks):
        return
    look(ranks, "@start")
    for rank in ranks:
        with contextlib.suppress(OSError):
            os.write(rank.writes, b".")


def open_gates(ranks):
    """Answer each rank that asks for a number, if what the judge demands for it is seen from outside."""
    # To look at all ranks takes milliseconds. Who waits for another rank's question is not looked at yet.
    waiting = [
        rank
        for rank in ranks
        if rank.asks and all(name in ranks[one].asked for one, name in rank.gates[rank.asks].get("asked", []))
    ]
    seen = looked(ranks) if waiting else []
    for rank in waiting:
        gate, facts = rank.gates[rank.asks], seen[rank.number]
        # What was seen of it when the gate opened from which on this counts, or else at the beginning.
        rank.sent, rank.grown = (
            facts[name] - (rank.asked.get(gate.get(f"{name} since")) or rank.marks["@start"]).get(name, 0)
            for name in ("sent", "memory")
        )
        if rank.sent >= gate.get("sent", 0) and rank.grown <= gate.get("memory", rank.grown):
            del facts["by_ports"]
            rank.asked[rank.asks] |= facts
            rank.asks = None
            data = wire.pack(gate["value"])
            with contextlib.suppress(OSError):
                os.write(rank.writes, struct.pack("<I", len(data)) + data)


def look(ranks, name):
    for rank, facts in zip(ranks, looked(ranks), strict=True):
        del facts["by_ports"]
        rank.marks[name] = facts


def looked(ranks):
    """See each rank from outside, with all processes below it. Those that have left it count for all."""
    counters, families = sockets(), [{rank.pid} | below(rank.pid) for rank in ranks]
    lost = below(os.getpid()).difference(*families)
    both = zip(ranks, families, strict=True)
    seen = [seen_from_outside(rank, family | lost, counters) for rank, family in both]
    for facts in seen:
        # Bytes sent to each rank: the two ends of a connection name the same ports, the other way round.
        facts["to"] = {
            other: sum(sent for ports, sent in facts["by_ports"].items() if ports[::-1] in its["by_ports"])
            for other, its in enumerate(seen)
        }
    return seen


def sweep(alone, mine):
    """End the ranks and everything that they have left. Says how many processes were left beside them."""
    for pid in mine:
        with contextlib.suppress(OSError):
            (os.kill if sys.platform == "linux" else os.killpg)(pid, signal.SIGKILL)
    for pid in mine:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    left = set()
    for _ in range(500 if sys.platform == "linux" else 0):
        reap()
        found = descendants()
        if not found:
            break
        left |= found
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if alone:
            # All that this process can see, at once: one that forks all the time cannot get away.
            with contextlib.suppress(OSError):
                os.kill(-1, signal.SIGKILL)
        time.sleep(0.002)
    return len(left)


def descendants():
    """Living processes below this one, which adopts orphans."""
    parents = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            state, parent, *_ = read(f"/proc/{name}/stat").rpartition(")")[2].split()
            if state not in "ZX":
                parents[int(name)] = int(parent)
    found, more = set(), {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in more} - found:
        found |= more
    return found


def as_user(uid, do):
    """Something that nobody but this user may do, in a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            if uid is not None:
                os.setgid(uid)
                os.setuid(uid)
            do()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def reap():
    """Take leave of whatever has ended, orphans among them."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def serve(incoming, outgoing):
    contain.prctl(contain.SUBREAPER, 1)
    contain.prctl(contain.DUMPABLE, 0)
    if FORK:
        import gc

        import torch
        import torch._dynamo
        import torch.distributed
        import torch.nn.utils.parametrize
        import torch.utils.data.distributed
        import torch.utils.serialization.config

        for file in by_path.drivers():
            by_path.driver(file.parent.name)
        torch.set_num_threads(1)
        warm(torch)
        gc.collect()
        gc.freeze()
    say(outgoing, {"ready": True, "landlock": contain.landlock_version(), "uid": os.getuid()})
    while answer_one(incoming, outgoing) if not FORK else answer_in_a_copy(incoming, outgoing):
        pass


def warm(torch):
    """What torch does when it is used for the first time, done here once and not in each rank again. No
    backward pass: a process that has done one must not fork."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    outputs = model(torch.randn(4, 8))
    torch.nn.functional.cross_entropy(outputs, torch.zeros(4, dtype=torch.long)).item()
    outputs.softmax(1).argmax(1).eq(torch.zeros(4)).sum().item()
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        optimizer = kind(model.parameters(), 0.1)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    list(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4, 2)), 2, shuffle=True))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    torch.load(file)
    # init_process_group empties these tables. They are spread over so much memory that to do it in a rank,
    # which has it in common with this process, costs a tenth of the rank's time.
    torch._dynamo.trace_rules.clear_lru_cache()


def answer_one(incoming, outgoing):
    """Do what the judge asks for. False if it is gone."""
    request = next_frame(incoming)
    if request is not None:
        say(outgoing, wipe(request) if "wipe" in request else run(request, incoming))
    return request is not None


def answer_in_a_copy(incoming, outgoing):
    """The same in a process that ends with it. What ranks send and print is never in the memory of this one:
    ranks of a later run have a copy of it, and could find there what is to come from a folder."""
    select.select([incoming], [], [])
    pid = os.fork()
    if pid == 0:
        more = False
        try:
            contain.prctl(contain.SUBREAPER, 1)
            more = answer_one(incoming, outgoing)
        except BaseException:
            traceback.print_exc()  # the judge shows it: these are the last words
        finally:
            os._exit(0 if more else 1)
    status = os.waitpid(pid, 0)[1]
    reap()
    return status == 0


def next_frame(incoming):
    """What the judge says next; None if it is gone."""
    head = wire.exactly(incoming, 4)
    return wire.unpack(wire.exactly(incoming, struct.unpack("<I", head)[0])) if len(head) == 4 else None


def say(descriptor, value):
    data = wire.pack(value)
    data = struct.pack("<I", len(data)) + data
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        (length,) = struct.unpack("<I", wire.exactly(0, 4))
        worker.work(wire.unpack(wire.exactly(0, length)), *map(int, sys.argv[2:5]))
    # Numbers that no worker can use by chance: descriptors 0 and 1 belong to whatever it prints.
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    serve(incoming, outgoing)
