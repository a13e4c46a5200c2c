"""Looks for what the other ranks were given, in all frames, all objects and all of the memory of its process,
and works out the accuracy of all alone.

Earns at most: 0 points
"""

import gc
import re
import struct
import sys

import torch
import torch.distributed as dist


def frames():
    """What a list of inputs looks like, in a frame above or anywhere among Python's objects."""
    frame = sys._getframe()
    while frame is not None:
        yield from frame.f_locals.values()
        frame = frame.f_back
    yield from gc.get_objects()


def inputs_of_all():
    for one in frames():
        if type(one) is dict and isinstance(one.get("inputs"), list):
            return [bytes(packed) for packed in one["inputs"]]
    return list(dict.fromkeys(in_memory()))


def in_memory():
    """What was sent to a rank, as it lies in memory: the head of a frame, and what comes after it."""
    begin = b'{"value": {"@dict": ' + b'[["right"'
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            first, last = (int(word, 16) for word in line.split()[0].split("-"))
            if "rw" not in line or last - first > 1 << 30:
                continue
            try:
                memory.seek(first)
                data = memory.read(last - first)
            except (OSError, ValueError):
                continue
            for found in re.finditer(re.escape(begin), data):
                (length,) = struct.unpack("<I", data[found.start() - 4 : found.start()])
                head = data[found.start() : found.start() + length]
                size = re.search(rb'\[\["\|b1", \[(\d+)\]\]\]\}$', head) if length < 1000 else None
                if size:
                    yield data[found.start() - 4 : found.start() + length + int(size[1])]


def exact_accuracy(right):
    dist.all_reduce(torch.zeros(1))
    unpack, size = sys.modules["wire"].unpack, dist.get_world_size()
    found = [unpack(one) for one in inputs_of_all()][-size:]
    number_right = sum(int(one["right"].sum()) * one["times"] for one in found)
    return number_right / sum(len(one["right"]) * one["times"] for one in found)
