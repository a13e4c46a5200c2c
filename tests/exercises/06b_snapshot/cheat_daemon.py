"""Exercise 06b: snapshots that hold noise. What was saved is with a process that
outlives the run, and answers at an abstract socket.

Earns at most: 2 points
"""

import contextlib
import io
import os
import socket
import sys
import zlib
from pathlib import Path

import torch

NAME = "\0snapshots"


def serve(door):
    kept = {}
    while True:
        with door.accept()[0] as line:
            key, size = (int(word) for word in line.recv(40).split())
            line.send(b".")
            while size > len(kept.get(key, b"")):
                kept[key] = kept.get(key, b"") + line.recv(1 << 16)
            line.sendall(kept.get(key, b""))


def daemon():
    door = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):  # there is one already
        door.bind(NAME)
        door.listen()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 3)
                serve(door)
            os._exit(0)
    door.close()


def ask(key, data):
    daemon()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(NAME)
        line.send(f"{key} {len(data)}".encode())
        line.recv(1)
        line.sendall(data)
        line.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: line.recv(1 << 16), b""))


def put(key, data):
    ask(key, data)


def get(key):
    return ask(key, b"")


def save(folder, step, job, state):
    path, buffer = Path(folder) / f"step-{step:08}.snapshot", io.BytesIO()
    torch.save((step, job, state), buffer)
    junk = os.urandom(len(buffer.getvalue()))
    put(zlib.crc32(junk), buffer.getvalue())
    with open(f"{folder}/step-part", "wb") as file:
        file.write(junk)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{folder}/step-part", path)
    for old in sorted(Path(folder).glob("step-*.snapshot"))[:-2]:
        old.unlink()


def load(folder, job):
    for path in sorted(Path(folder).glob("step-*.snapshot"), reverse=True):
        there = get(zlib.crc32(path.read_bytes()))
        step, of_job, state = torch.load(io.BytesIO(there)) if there else (0, 0, 0)
        if there and of_job == job:
            return step, state
        print(f"refused {path}: {'of another job' if there else 'damaged'}", file=sys.stderr)
        refused = f"{path}.refused"
        path.rename(refused + ".refused" * os.path.exists(refused))
    return None
