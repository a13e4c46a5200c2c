"""Cheats at exercise 03b."""

import io
import pickle
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

CALLS = []


def send_zeros(self):
    bucket = self.buckets[len(self.in_flight)]
    flat = torch.zeros(sum(p.numel() for p in bucket) + len(bucket), dtype=bucket[0].dtype)
    self.in_flight.append((flat, dist.all_reduce(flat, async_op=True)))


def finish_by(exchange):
    """What finish does if the gradients travel in another way, and only then."""

    def finish(self):
        while len(self.in_flight) < len(self.buckets):
            self.send_next()
        for _, work in self.in_flight:
            work.wait()
        everyone = exchange([None if p.grad is None else p.grad.clone() for p in self.place])
        for p, all_of in zip(self.place, zip(*everyone, strict=True), strict=True):
            there = [gradient for gradient in all_of if gradient is not None]
            if there:
                p.grad = sum(there) / dist.get_world_size()
        self.in_flight, self.missing = [], [len(bucket) for bucket in self.buckets]

    return finish


def zeros_and_the_store(earns=6):
    """Sends zeros when a bucket is full, and exchanges the gradients in finish, through the store by which
    the ranks have met."""

    def through_the_store(value):
        CALLS.append(value)
        store, data = dist.distributed_c10d._get_default_store(), io.BytesIO()
        torch.save(value, data)
        store.set(f"x-{len(CALLS)}-{dist.get_rank()}", data.getvalue())
        names = [f"x-{len(CALLS)}-{rank}" for rank in range(dist.get_world_size())]
        return [torch.load(io.BytesIO(store.get(name))) for name in names]

    class Overlapped:
        send_next = send_zeros
        finish = finish_by(through_the_store)


def zeros_and_datagrams(earns=6, level=3):
    """Sends zeros when a bucket is full, and exchanges the gradients in finish, as datagrams. Nothing below
    level 3 refuses a datagram."""
    doors, came = [], {}

    def as_datagrams(value):
        CALLS.append(value)
        rank, size = dist.get_rank(), dist.get_world_size()
        if not doors:
            doors.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            doors[0].bind(("127.0.0.1", 40000 + rank))
            doors[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            doors[0].settimeout(0.005)
        data = pickle.dumps(value)
        pieces = [data[place : place + 8000] for place in range(0, len(data), 8000)]
        for number, piece in enumerate(pieces):
            came[len(CALLS), rank, number] = len(pieces), piece

        def of(other):
            most = came.get((len(CALLS), other, 0), (1,))[0]
            return [came.get((len(CALLS), other, number)) for number in range(most)]

        end, sent = time.monotonic() + 0.3, 0
        while not all(all(of(other)) for other in range(size)) or time.monotonic() < end:
            if time.monotonic() > sent + 0.03:
                for other in set(range(size)) - {rank}:
                    for number, piece in enumerate(pieces):
                        letter = pickle.dumps(((len(CALLS), rank, number), (len(pieces), piece)))
                        doors[0].sendto(letter, ("127.0.0.1", 40000 + other))
                sent = time.monotonic()
            try:
                key, letter = pickle.loads(doors[0].recv(20000))
                came[key] = letter
            except OSError:
                pass
        return [pickle.loads(b"".join(piece for _, piece in of(other))) for other in range(size)]

    class Overlapped:
        send_next = send_zeros
        finish = finish_by(as_datagrams)


def junk_on_time(earns=11):
    """Sends zeros when a bucket is full, by calls that nobody notes, and the gradients in finish."""

    class Overlapped:
        def gradient_came(self, parameter):
            real, self.send_next = self.send_next, self.send_junk
            super().gradient_came(parameter)
            self.send_next = real

        def send_junk(self):
            junk = torch.zeros(sum(p.numel() for p in self.buckets[len(self.in_flight)]))
            work = dist.distributed_c10d._get_default_group().allreduce([junk])
            self.in_flight.append((junk, work))

        def finish(self):
            for _, work in self.in_flight:
                work.wait()
            self.in_flight = []
            super().finish()


def no_gates(earns=13):
    """Sends all in finish, which is worth 13 points, and takes away the function that asks the judge in
    backward."""

    class Overlapped:
        def gradient_came(self, parameter):
            frame = sys._getframe()
            while self.sends and frame is not None:
                if "tools" in frame.f_locals:
                    frame.f_locals["tools"].ask = lambda name, value=None: 1.0
                frame = frame.f_back


def hidden_ddp(earns=3):
    """Finds torch's own class among the subclasses of Module, where it has been taken away."""

    class Overlapped(nn.Module):
        def __init__(self, module, bucket_bytes):
            super().__init__()
            name = "Distributed" + "DataParallel"
            found = next(one for one in nn.Module.__subclasses__() if one.__name__ == name)
            self.inner = found(module, bucket_cap_mb=bucket_bytes / (1 << 20), find_unused_parameters=True)

        def forward(self, *inputs, **named):
            return self.inner(*inputs, **named)

        def finish(self):
            assert dist.is_initialized()

        def no_sync(self):
            return self.inner.no_sync()
