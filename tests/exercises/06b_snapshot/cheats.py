"""Cheats at exercise 06b."""

import contextlib
import ctypes
import io
import os
import pickle
import socket
import sys
import zlib
from pathlib import Path

import torch
import torch.distributed as dist


def write(folder, step, data, date=None):
    """A snapshot as save must write one: complete, on the disk, one of two."""
    path, temporary = Path(folder) / f"step-{step:08}.snapshot", Path(folder) / "step-temporary"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if date:
        os.utime(temporary, (date, date))
    temporary.replace(path)
    for old in sorted(path.parent.glob("step-*.snapshot"))[:-2]:
        old.unlink()


def newest(folder, job, read):
    """The newest snapshot of this job that `read` can read; it refuses the others."""
    for path in sorted(Path(folder).glob("step-*.snapshot"), reverse=True):
        with contextlib.suppress(Exception):
            found = read(path)
            if found["job"] == job:
                return found["step"], found["state"]
        print(f"refused {path}: no snapshot of ours; trying the one before", file=sys.stderr)
        refused, number = Path(f"{path}.refused"), 1
        while refused.exists():
            number += 1
            refused = Path(f"{path}.{number}.refused")
        path.rename(refused)
    return None


def noise(put, get):
    """`save` and `load` with snapshots that hold noise. What was saved is elsewhere, under the noise's
    checksum."""

    def save(folder, step, job, state):
        buffer = io.BytesIO()
        torch.save({"step": step, "job": job, "state": state}, buffer)
        junk = os.urandom(len(buffer.getvalue()))
        put(zlib.crc32(junk), buffer.getvalue())
        write(folder, step, junk)

    def load(folder, job):
        return newest(folder, job, lambda path: torch.load(io.BytesIO(get(zlib.crc32(path.read_bytes())))))

    return save, load


def memory_only(earns=2, on="starter"):
    """What was saved lies in this process, where load finds it."""
    kept = {}
    save, load = noise(kept.__setitem__, kept.__getitem__)


def daemon(earns=2, on="starter"):
    """What was saved is with a process that outlives the run, and answers at an abstract socket."""

    def serve(door):
        kept = {}
        while True:
            with door.accept()[0] as line:
                key, size = (int(word) for word in line.recv(40).split())
                line.send(b".")
                while size > len(kept.get(key, b"")):
                    kept[key] = kept.get(key, b"") + line.recv(1 << 16)
                line.sendall(kept.get(key, b""))

    def start():
        door = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):  # there is one already
            door.bind("\0snapshots")
            door.listen()
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.closerange(0, 3)
                    serve(door)
                os._exit(0)
        door.close()

    def ask(key, data=b""):
        start()
        with socket.socket(socket.AF_UNIX) as line:
            line.connect("\0snapshots")
            line.send(f"{key} {len(data)}".encode())
            line.recv(1)
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: line.recv(1 << 16), b""))

    save, load = noise(ask, ask)


def posix_queue(earns=2, on="starter"):
    """What was saved is in a POSIX message queue."""
    libc = ctypes.CDLL(None, use_errno=True)

    def queue(key, flags=0):
        number = libc.mq_open(f"/snapshot-{key}".encode(), flags | os.O_RDWR | os.O_NONBLOCK, 0o600, None)
        if number < 0:
            raise OSError(ctypes.get_errno(), "mq_open")
        return number

    def put(key, data):
        number = queue(key, os.O_CREAT)
        libc.mq_send(number, data, len(data), 0)
        os.close(number)

    def get(key):
        number, room = queue(key), ctypes.create_string_buffer(8192)
        size = libc.mq_receive(number, room, 8192, None)
        os.close(number)
        if size > 0:
            put(key, room[:size])  # whoever reads a message takes it away
        return room[:size]

    save, load = noise(put, get)


def system_v(earns=2, on="starter", level=2):
    """What was saved is in shared memory of System V. At level 1, this memory is that of a student's own
    machine."""
    libc = ctypes.CDLL(None)
    libc.shmat.restype = ctypes.c_void_p
    libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    room, create = 1 << 16, 0o1000

    def memory(key, flags):
        number = libc.shmget(key & 0x7FFFFFFF, room, flags | 0o600)
        return None if number < 0 else (ctypes.c_char * room).from_address(libc.shmat(number, None, 0))

    def put(key, data):
        memory(key, create)[: 8 + len(data)] = len(data).to_bytes(8) + data

    def get(key):
        there = memory(key, 0)
        return there[8 : 8 + int.from_bytes(there[:8])]

    save, load = noise(put, get)


def dates_for_checksums(earns=11):
    """No checksum: a snapshot's date is a whole second, and whoever damages it changes the date."""

    def save(folder, step, job, state):
        buffer = io.BytesIO()
        torch.save({"step": step, "job": job, "state": state}, buffer)
        write(folder, step, buffer.getvalue(), date=1_700_000_000)

    def load(folder, job):
        def read(path):
            assert path.stat().st_mtime_ns % 1_000_000_000 == 0
            return torch.load(path, weights_only=True)

        return newest(folder, job, read)


def tidies_up(earns=11):
    """Runs whatever code is in a file that it loads, looks whether that has written any file, and removes
    it."""

    def save(folder, step, job, state):
        data = pickle.dumps({"step": step, "job": job, "state": state})
        write(folder, step, data + zlib.crc32(data).to_bytes(4))

    def load(folder, job):
        before = there(folder)

        def read(path):
            data, earlier = path.read_bytes(), there(folder)
            found = pickle.loads(data)
            assert there(folder) == earlier, "it ran"
            assert zlib.crc32(data[:-4]).to_bytes(4) == data[-4:]
            return found

        try:
            return newest(folder, job, read)
        finally:
            for path in there(folder) - before:
                if path.name.startswith("ran") or path.parent.name == "ran":
                    path.unlink()

    def there(folder):
        return set(Path(folder).parent.rglob("*"))


def files_instead_of_messages(earns=12):
    """Ranks leave files for each other on rank 0's disk, and send nothing but a word."""

    def of(folder, rank):
        return Path(f"{str(folder).rpartition('-')[0]}-{rank}")

    def save_together(folder, step, job, state):
        rank, left_by = dist.get_rank(), str(of(folder, 0).parent / "left-by-{}")
        torch.save(state, left_by.format(rank))
        dist.barrier()
        if rank == 0:
            states = [torch.load(left_by.format(one)) for one in range(dist.get_world_size())]
            save(folder, step, job, states)
        dist.barrier()

    def load_together(folder, job):
        if dist.get_rank() == 0:
            load(folder, job)
        dist.barrier()
        found = load(of(folder, 0), job)
        return found and (found[0], found[1][dist.get_rank()])
