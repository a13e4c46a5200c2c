"""Another solution of exercise 06b."""

import os
import re
import struct
import sys
import tempfile
import zlib
from io import BytesIO

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
