"""Other solutions of exercise 06b."""

import hashlib
import os
import re
import struct
import sys
import tempfile
import zlib
from io import BytesIO
from os import fdatasync, fsync
from pathlib import Path

import torch


def hard_links():
    """Files of any name that get their names by link, and a head with size and checksum."""

    HEAD = struct.Struct(">QI")

    def names(folder):
        found = sorted(os.listdir(folder))
        return [os.path.join(folder, name) for name in found if re.fullmatch(r"step-\d{8}\.snapshot", name)]

    def save(folder, step, job, state):
        buffer, path = BytesIO(), os.path.join(folder, f"step-{step:08d}.snapshot")
        torch.save((step, sorted(job.items()), state), buffer)
        data = buffer.getvalue()
        with tempfile.NamedTemporaryFile(dir=folder, prefix="step-tmp", delete=False) as file:
            rest = memoryview(HEAD.pack(len(data), zlib.crc32(data)) + data)
            while rest:
                rest = rest[os.write(file.fileno(), rest) :]
            os.fsync(file)
            if os.path.exists(path):
                os.replace(file.name, path)
            else:
                os.link(file.name, path)
        left = [one.path for one in os.scandir(folder) if one.name.startswith("step-tmp")]
        for old in [*left, *names(folder)[:-2]]:
            os.unlink(old)

    def load(folder, job):
        for path in reversed(names(folder)):
            try:
                with open(path, "rb") as file:
                    size, checksum = HEAD.unpack(file.read(HEAD.size))
                    data = file.read()
                if size != len(data) or zlib.crc32(data) != checksum:
                    raise ValueError("cut short or damaged")
                step, items, state = torch.load(BytesIO(data), map_location="cpu", weights_only=True)
                if dict(items) == job:
                    return step, state
                raise ValueError("of another job")
            except Exception as error:
                why = error if isinstance(error, ValueError) else type(error).__name__
                sys.stderr.write(f"{path} is refused: {why}\n")
            count = 1
            while os.path.exists(to := f"{path}.{count}.refused" if count > 1 else f"{path}.refused"):
                count += 1
            os.link(path, to)
            os.unlink(path)
        return None


def torch_writes():
    """Torch.save into the file itself, names by process, and a digest of the tensors' own."""

    def digest_of(value):
        if isinstance(value, torch.Tensor):
            value = f"{value.dtype} {value.shape} {value.flatten().view(torch.uint8).tolist()}"
        elif isinstance(value, dict):
            value = [(key, digest_of(item)) for key, item in value.items()]
        elif isinstance(value, list):
            value = [digest_of(item) for item in value]
        return hashlib.sha256(repr(value).encode()).hexdigest()

    def save(folder, step, job, state):
        folder = Path(folder)
        for left in folder.glob("step-*.aside"):
            left.unlink()
        aside = folder / f"step-{step}-{os.getpid()}.aside"
        torch.save([step, job, state, digest_of([step, job, state])], str(aside))
        for path, flush in ((aside, fdatasync), (folder, fsync)):
            place = os.open(path, os.O_RDONLY)
            flush(place)
            os.close(place)
            if path == aside:
                aside.rename(folder / f"step-{step:08}.snapshot")
        for old in sorted(folder.glob(SNAPSHOTS), reverse=True)[2:]:
            old.unlink()

    def load(folder, job):
        for path in sorted(Path(folder).glob(SNAPSHOTS), reverse=True):
            try:
                *found, digest = torch.load(path, weights_only=True)
                reason = "of another job" if digest == digest_of(found) else "damaged"
                if digest == digest_of(found) and found[1] == job:
                    return found[0], found[2]
            except Exception as error:
                reason = f"not readable ({type(error).__name__})"
            print(f"{path.name} is {reason}, and refused", file=sys.stderr)
            endings = ["refused", *(f"{number}.refused" for number in range(2, 100))]
            names = (path.with_name(f"{path.name}.{ending}") for ending in endings)
            os.rename(path, next(name for name in names if not name.exists()))
        return None
