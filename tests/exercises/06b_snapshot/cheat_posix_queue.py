"""Exercise 06b: snapshots that hold noise. What was saved is in a POSIX message queue, under the checksum of
the noise.

Earns at most: 2 points
"""

import ctypes
import io
import os
import sys
import zlib
from pathlib import Path

import torch

LIBC = ctypes.CDLL(None, use_errno=True)
CREATE, MOST = os.O_CREAT | os.O_RDWR | os.O_NONBLOCK, 8192


def queue(key, flags):
    return LIBC.mq_open(f"/snapshot-{key}".encode(), flags, 0o600, None)


def put(key, data):
    number = queue(key, CREATE)
    if number < 0:
        raise OSError(ctypes.get_errno(), "mq_open")
    LIBC.mq_send(number, data, len(data), 0)
    os.close(number)


def get(key):
    number, room = queue(key, os.O_RDWR | os.O_NONBLOCK), ctypes.create_string_buffer(MOST)
    if number < 0:
        return None
    size = LIBC.mq_receive(number, room, MOST, None)
    os.close(number)
    if size > 0:
        put(key, room[:size])  # whoever reads a message takes it away
    return room[:size]


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
