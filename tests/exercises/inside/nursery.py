"""The process in which nothing of a student ever runs, and from which all ranks are forked.

It has imported torch, which takes seconds, and has one thread. For each run it forks the ranks, watches them
from outside, ends what is left, and hands on what they sent. Judge and nursery talk over a pipe.

Where a process that has imported torch must not fork (macOS), each rank is started anew.
"""

import contextlib
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import by_path
import contain
import wire

FORK = sys.platform == "linux" and "RUNGS_SPAWN" not in os.environ
MOST = {b"R": 256 << 20, b"X": 1 << 20, b"I": 1 << 16, b"M": 1 << 10, b"E": 1 << 12}
MOST_EVENTS = 50_000
STILL = 0.4  # seconds without any sign of life until ranks that wait for each other count as stuck
STILL_UNSEEN = 3  # the same for ranks that wait where it is not seen for whom, inside DDP for one


class Rank:
    """A worker seen from outside."""

    def __init__(self, number):
        self.number, self.buffer = number, b""
        self.pid = self.reads = self.writes = self.process = None
        self.value = self.error = self.ended = self.broken = None
        self.done = False  # has sent a result or an error; waits for a word
        self.events, self.marks, self.waits_at = [], {}, None
        self.inside = {}

    def told(self, letter, data, now):
        value = wire.unpack(data)
        if letter == b"E":
            # Arrays in it could not be compared, here or in the judge.
            if any(not isinstance(one, str | float | int | list | None) for one in value.values()):
                raise wire.BadFrame("an event that has more than words and numbers")
            self.events.append(value)
            if len(self.events) > MOST_EVENTS:
                raise wire.BadFrame("too many events")
            key = (value.get("event"), value.get("number"))
            if value.get("phase") in ("begin", "wait"):
                self.inside[key] = value
            else:
                self.inside.pop(key, None)
        elif letter == b"M":
            self.waits_at = str(value)
        elif self.done:
            raise wire.BadFrame("a second result")
        elif letter == b"R":
            self.value, self.done = data, True
        elif letter == b"X":
            self.error, self.done = {**value, "time": now}, True
        elif "@start" in self.marks:
            raise wire.BadFrame("a fault of the machine, after the student's code began")
        else:
            self.broken, self.done = value, True

    def life(self):
        """Processor time so far, None while a thread runs: if it is the same later, nothing has moved."""
        used, idle = 0, True
        try:
            for task in Path(f"/proc/{self.pid}/task").iterdir():
                rest = (task / "stat").read_text().rpartition(")")[2].split()
                used += int(rest[11]) + int(rest[12])
                idle = idle and rest[0] in "SZX"
        except OSError:
            return None
        return used if idle else None


def sockets():
    """TCP bytes and segments sent, and both ports, by inode, as the kernel knows them."""
    found = {}
    if sys.platform != "linux":
        return found
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as kernel:
            for family in (socket.AF_INET, socket.AF_INET6):
                ask = struct.pack("<BBBBI", family, socket.IPPROTO_TCP, 1 << 1, 0, 0xFFF) + bytes(48)
                kernel.send(struct.pack("<IHHII", 16 + len(ask), 20, 0x301, 1, 0) + ask)
                more = True
                while more:
                    data = kernel.recv(1 << 17)
                    while data and more:
                        length, kind = struct.unpack_from("<IH", data)
                        more = kind == 20
                        if more:
                            inode, facts = one_socket(data[16:length])
                            found[inode] = facts
                        data = data[(length + 3) & ~3 :]
    except OSError:
        return {}
    return found


def one_socket(message):
    inode, place, facts = struct.unpack_from("<I", message, 68)[0], 72, (0, 0)
    ports = struct.unpack_from(">HH", message, 4)
    while place + 4 <= len(message):
        length, kind = struct.unpack_from("<HH", message, place)
        if kind == 2 and length >= 220:
            segments = struct.unpack_from("<I", message, place + 4 + 156)[0]
            sent, again = struct.unpack_from("<QQ", message, place + 4 + 200)
            facts = (sent - again, segments)
        place += (max(length, 4) + 3) & ~3
    return inode, (*facts, ports)


def seen_from_outside(rank, counters):
    """What the kernel knows of this process, whatever the process says of itself."""
    facts = {"sent": 0, "segments": 0, "memory": 0, "sockets": 0, "by_ports": {}}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{rank.pid}/status").read_text().splitlines():
            # Shared memory too, or data could be put there so as not to count.
            if line.startswith(("RssAnon", "RssShmem")):
                facts["memory"] += int(line.split()[1]) << 10
    try:
        descriptors = os.listdir(f"/proc/{rank.pid}/fd")
    except OSError:
        return facts
    for descriptor in descriptors:
        with contextlib.suppress(OSError, ValueError):
            name = os.readlink(f"/proc/{rank.pid}/fd/{descriptor}")
            if name.startswith("socket:["):
                sent, segments, ports = counters.get(int(name[8:-1]), (None, None, None))
                if sent is not None:
                    facts["sent"] += sent
                    facts["segments"] += segments
                    facts["sockets"] += 1
                    facts["by_ports"][ports] = sent
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
        words = [
            sys.executable,
            "-I",
            __file__,
            "--rank",
            str(rank.number),
            str(their_writes),
            str(their_reads),
        ]
        rank.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(their_writes, their_reads),
            start_new_session=True,
        )
        rank.pid = rank.process.pid
        data = wire.pack(job)
        rank.process.stdin.write(struct.pack("<I", len(data)) + data)
        rank.process.stdin.close()
    else:
        rank.pid = os.fork()
        if rank.pid == 0:
            try:
                os.setsid()
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(output, 1)
                os.dup2(output, 2)
                os.dup2(their_writes, 3)
                os.dup2(their_reads, 4)
                os.closerange(5, 4096)
                import worker

                worker.work(job, rank.number, 3, 4)
            finally:
                os._exit(70)
    for end in (their_writes, their_reads, output):
        os.close(end)


def run(request):
    """One run of all ranks of a job."""
    for path in request["remove"]:  # or what one submission has saved would be there for the next
        shutil.rmtree(path, ignore_errors=True)
    folder = Path(request["folder"])
    fresh = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if request["uid"] is not None and fresh:
        os.chown(folder, request["uid"], request["uid"])
    ranks = [Rank(number) for number in range(len(request["inputs"]))]
    began = time.monotonic()
    choose, why = selectors.DefaultSelector(), "done"
    try:
        for rank in ranks:
            start(request, rank)
            choose.register(rank.reads, selectors.EVENT_READ, rank)
        why = watch(request, ranks, choose, began)
    except OSError as error:
        why = f"infrastructure: {error}"
    finally:
        left = sweep(request["uid"], {rank.pid for rank in ranks if rank.ended is None and rank.pid})
        for rank in ranks:
            for end in (rank.reads, rank.writes):
                if end is not None:
                    with contextlib.suppress(OSError):
                        os.close(end)
        choose.close()
    answer = []
    for rank in ranks:
        answer.append(
            {
                "value": rank.value,
                "error": rank.error,
                "broken": rank.broken,
                "ended": rank.ended,
                "events": rank.events,
                "marks": rank.marks,
                "at": rank.waits_at,
                "inside": list(rank.inside.values()),
                "output": output_of(request, rank),
            }
        )
    if not request["keep"]:
        shutil.rmtree(folder, ignore_errors=True)
    return {"why": why, "seconds": time.monotonic() - began, "ranks": answer, "left": left}


def wipe(request):
    """Nothing of one submission may be there for the next: no process, no file."""
    left = sweep(request["uid"], set())
    for path in Path(request["wipe"]).iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    for folder in ("/dev/shm", "/tmp") if request["uid"] is not None else ():
        for path in Path(folder).iterdir():
            with contextlib.suppress(OSError):
                if path.lstat().st_uid == request["uid"]:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    return {"left": left}


def output_file(request, rank):
    folder = Path(request["folder"]).parent / "printed"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{request['number']}-{rank.number}"


def output_of(request, rank):
    """The beginning and the end of what it printed."""
    path = output_file(request, rank)
    try:
        with path.open("rb") as file:
            data, size = file.read(8000), os.fstat(file.fileno()).st_size
            if size > 12000:
                data += f"\n... {size - 12000} bytes left out ...\n".encode()
            if size > 8000:
                file.seek(max(8000, size - 4000))
                data += file.read(4000)
        path.unlink()
    except OSError:
        return ""
    return data.decode(errors="replace").replace("\0", "")


def watch(request, ranks, choose, began):
    """Take what the ranks send until all have ended. Says why it stopped."""
    deadline = began + request["limit"]
    still_since, lives = None, None
    kill = request["kill"]
    while True:
        now = time.monotonic()
        if kill and "after" in kill and now - began >= kill["after"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(ranks[kill["rank"]].pid, signal.SIGKILL)
            kill = None
        ready = choose.select(0.05)
        for key, _ in ready:
            if take(key.data, time.monotonic() - began) is False:
                choose.unregister(key.fd)
        running = [rank for rank in ranks if rank.ended is None and not rank.done]
        if not running:
            return "done"
        meet(ranks)
        if time.monotonic() > deadline:
            return "timeout"
        if ready:
            lives = None
            continue
        # Stuck: whoever still runs is inside a call that waits for others, and no thread of any has moved.
        seen = all(rank.inside or rank.waits_at for rank in running)
        now_lives = [rank.life() for rank in running]
        if None in now_lives or now_lives != lives:
            still_since, lives = time.monotonic(), now_lives
        elif time.monotonic() - still_since > (STILL if seen else STILL_UNSEEN):
            return "stuck"


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
            packet, rank.buffer = rank.buffer[5 : 5 + length], rank.buffer[5 + length :]
            rank.told(letter, packet, now)
    except (wire.BadFrame, AttributeError, TypeError) as error:
        rank.value, rank.error, rank.done = None, {"kind": "BadFrame", "words": str(error), "time": now}, True
        return False
    return True


def meet(ranks):
    """When all ranks stand at the same mark: look at each from outside, then let them go on."""
    names = {rank.waits_at for rank in ranks}
    if len(names) != 1 or None in names:
        return
    counters = sockets()
    seen = [seen_from_outside(rank, counters) for rank in ranks]
    for facts in seen:
        # Bytes sent to each rank: the two ends of a connection name the same ports, the other way round.
        facts["to"] = {
            other: sum(sent for ports, sent in facts["by_ports"].items() if ports[::-1] in its["by_ports"])
            for other, its in enumerate(seen)
        }
    for rank, facts in zip(ranks, seen, strict=True):
        del facts["by_ports"]
        rank.marks[rank.waits_at] = facts
    for rank in ranks:
        rank.waits_at = None
        with contextlib.suppress(OSError):
            os.write(rank.writes, b".")


def sweep(uid, mine):
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
        found = descendants(uid)
        if not found:
            break
        left |= found
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if uid is not None:
            end_all_of(uid)
        time.sleep(0.002)
    return len(left)


def descendants(uid):
    """Living processes below this one (which adopts orphans), or of the user that only workers have."""
    parents, theirs = {}, set()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{name}/stat", "rb") as file:
                rest = file.read().rpartition(b")")[2].split()
            if rest[0] not in (b"Z", b"X"):
                parents[int(name)] = int(rest[1])
                if uid is not None and os.stat(f"/proc/{name}").st_uid == uid:
                    theirs.add(int(name))
    found, me = set(), os.getpid()
    for pid in parents:
        above, seen = parents.get(pid), set()
        while above and above not in seen:
            if above == me:
                found.add(pid)
                break
            seen.add(above)
            above = parents.get(above)
    return found | theirs


def end_all_of(uid):
    """kill -1 as that user: at once, so that a process that forks all the time cannot get away."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgid(uid)
            os.setuid(uid)
            os.kill(-1, signal.SIGKILL)
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
        import worker  # noqa: F401

        for file in by_path.drivers():
            by_path.driver(file.parent.name)
        torch.set_num_threads(1)
        gc.collect()
        gc.freeze()
    say(outgoing, {"ready": True, "landlock": contain.landlock_version(), "uid": os.getuid()})
    while True:
        head = exactly(incoming, 4)
        if len(head) < 4:
            return
        request = wire.unpack(exactly(incoming, struct.unpack("<I", head)[0]))
        say(outgoing, wipe(request) if "wipe" in request else run(request))


def exactly(descriptor, size):
    data = b""
    while len(data) < size:
        more = os.read(descriptor, min(size - len(data), 1 << 20))
        if not more:
            break
        data += more
    return data


def say(descriptor, value):
    data = wire.pack(value)
    data = struct.pack("<I", len(data)) + data
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        import worker

        (length,) = struct.unpack("<I", exactly(0, 4))
        worker.work(wire.unpack(exactly(0, length)), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    # Numbers that no worker can use by chance: descriptors 0 and 1 belong to whatever it prints.
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    serve(incoming, outgoing)
