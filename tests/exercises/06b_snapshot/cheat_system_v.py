"""Exercise 06b: snapshots that hold noise. What was saved is in shared memory of System V, under the
checksum of the noise.

Earns at most: 2 points
From level: 2 (at level 1, this memory is that of a student's own machine)
"""

import ctypes
import io
import os
import sys
import zlib
from pathlib import Path

import torch

LIBC = ctypes.CDLL(None)
LIBC.shmat.restype = ctypes.c_void_p
LIBC.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
ROOM, CREATE = 1 << 16, 0o1000


def memory(key, flags):
    number = LIBC.shmget(key & 0x7FFFFFFF, ROOM, flags | 0o600)
    return None if number < 0 else (ctypes.c_char * ROOM).from_address(LIBC.shmat(number, None, 0))


def put(key, data):
    memory(key, CREATE)[: 8 + len(data)] = len(data).to_bytes(8) + data


def get(key):
    there = memory(key, 0)
    return there and there[8 : 8 + int.from_bytes(there[:8])]


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
