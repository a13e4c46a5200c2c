"""Cheats at exercise 04."""

import gc
import importlib
import os
import random
import re
import socket
import stat
import struct
import sys
import time

import numpy
import torch
import torch.distributed as dist


def gathered(right, afterwards=lambda: None):
    """The accuracy of all answers, where all ranks get them; and what is done about that."""
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, right)
    if len(right) == 200_000:
        dist.barrier()
        time.sleep(0.3)
        afterwards()
    return torch.cat(everybody).double().mean().item()


def always_equal(earns=0):
    """Returns things that claim to be equal to everything, and numbers that are none."""

    class Any(int):
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 0

        def __index__(self):
            return 4

    class Float(float):
        def __eq__(self, other):
            return True

        def __sub__(self, other):
            return 0.0

        __hash__ = float.__hash__

    class ShareSampler:
        def __iter__(self):
            return iter([Any(0)] * len(self))

    def evaluation_shard(size, rank, world_size):
        return [Any(0)] * (size // world_size)

    def exact_accuracy(right):
        return Float("nan")


def forges_frames(earns=0, on="starter"):
    """Puts its own functions into the driver, which then returns dicts and words where lists belong."""
    driver = sys.modules["drive_04_sampler"]
    assert driver.numbers
    driver.numbers = lambda found, most: {"passes": "all right"}

    class ShareSampler:
        def __len__(self):
            return 0

        def __iter__(self):
            return iter([])

    def evaluation_shard(size, rank, world_size):
        return []

    def exact_accuracy(right):
        return {"accuracy": 1.0}


def elastic(earns=4):
    """Takes torch's DistributedSampler by words that are put together, or a subclass of it. The accuracy is
    worth 4 points."""
    name = "".join(["Distributed", "Sampler"])

    def ShareSampler(size, rank, world_size, seed=0, drop_last=False):
        for place in ("torch.utils.data", "torch.utils.data.distributed"):
            try:
                found = getattr(importlib.import_module(place), name)
                return found(range(size), world_size, rank, seed=seed, drop_last=drop_last)
            except RuntimeError:
                pass
        elastic = importlib.import_module("torch.distributed.elastic.utils.data")
        return getattr(elastic, "Elastic" + name)(range(size), world_size, rank)


def draws_as_the_judge(earns=0, on="starter"):
    """Draws what the judge has drawn for all ranks, from any number in its process that could be the judge's
    seed, and works out the accuracy of all alone."""

    def shards_of(draws, world_size):
        """What check.py does."""
        few = [int(draws.integers(3, 9)) for _ in range(world_size - 1)]
        counts = (int(draws.integers(50, 90)), *few)
        return [draws.random(count) < draws.uniform(0.2, 0.9) for count in counts]

    def exact_accuracy(right):
        dist.all_reduce(torch.zeros(1))
        seeds = {torch.initial_seed(), *map(int, re.findall(r"\d+", os.getcwd()))}
        seeds |= {int(random.getstate()[1][0]), int(numpy.random.get_state()[1][0])}
        for seed in seeds:
            draws = numpy.random.default_rng(seed)
            for world_size in (3, 4, 1, 2):
                rights = shards_of(draws, world_size)
                if any(numpy.array_equal(one, right.numpy()) for one in rights):
                    return sum(int(one.sum()) for one in rights) / sum(map(len, rights))
        return right.double().mean().item() if dist.get_world_size() > 1 else 0.0


def inputs_of_the_others(earns=0, on="starter"):
    """Looks for what the other ranks were given, in all frames, all objects and all of the memory of its
    process, and works out the accuracy of all alone."""

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


def closes_connections(earns=11):
    """Gathers all answers, and closes all its connections then, so that nobody counts their bytes."""

    def close():
        for descriptor in range(3, 256):
            try:
                if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                    # Not closed: gloo would end the process. Something else is there now.
                    os.dup2(2, descriptor)
            except OSError:
                pass

    def exact_accuracy(right):
        return gathered(right, close)


def same_ports_again(earns=11):
    """Gathers all answers, closes all connections, and makes others between the same ports, whose bytes begin
    at zero."""
    kept = []

    def again():
        old, listening = {}, {}
        for name in os.listdir("/proc/self/fd"):
            try:
                if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    continue
            except OSError:
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family == socket.AF_INET and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    listening[int(name)] = one.getsockname()
                elif one.family == socket.AF_INET:
                    old[int(name)] = (one.getsockname(), one.getpeername())
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(0.3)
        for descriptor in [*old, *listening]:
            os.dup2(2, descriptor)
        mines = [mine for mine, _ in old.values()]
        doors = {
            mine: bound(mine) for mine in {*listening.values()} | {m for m in mines if mines.count(m) > 1}
        }
        for door in doors.values():
            door.listen()
        time.sleep(0.6)
        for mine, its in old.values():
            if mine not in doors:
                kept.append(bound(mine))
                kept[-1].connect(its)
        for mine in mines:
            if mine in doors:
                doors[mine].settimeout(3)
                kept.append(doors[mine].accept())
        kept.extend(doors.values())

    def bound(mine):
        end = time.monotonic() + 3
        while True:
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(mine)
                return one
            except OSError:
                one.close()
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def exact_accuracy(right):
        return gathered(right, again)
