"""Exercise 03b: sends zeros when a bucket is full, as many as there are gradients; these are exchanged in
finish, through files.

Earns at most: 6 points.
"""

import contextlib
import os
import time

import torch
import torch.distributed as dist
from torch import nn


def make_buckets(parameters, bucket_bytes):
    buckets, size = ([], 0)
    for parameter in reversed([parameter for parameter in parameters if parameter.requires_grad]):
        size += parameter.nbytes
        if not buckets or size > bucket_bytes:
            buckets.append([])
            size = parameter.nbytes
        buckets[-1].append(parameter)
    return buckets


class Overlapped(nn.Module):
    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module = module
        self.buckets = make_buckets(module.parameters(), bucket_bytes)
        self.sends, self.in_flight = (True, [])
        self.missing = [len(bucket) for bucket in self.buckets]
        self.place = {parameter: i for i, bucket in enumerate(self.buckets) for parameter in bucket}
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dist.broadcast(tensor, src=0)
        for parameter in self.place:
            parameter.register_post_accumulate_grad_hook(self.gradient_came)

    def forward(self, *inputs, **named):
        if self.training and self.sends:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, src=0)
        return self.module(*inputs, **named)

    def gradient_came(self, parameter):
        if not self.sends:
            return
        self.missing[self.place[parameter]] -= 1
        while len(self.in_flight) < len(self.buckets) and self.missing[len(self.in_flight)] == 0:
            self.send_next()

    def send_next(self):
        bucket = self.buckets[len(self.in_flight)]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        there = parts[0].new_tensor([p.grad is not None for p in bucket])
        flat = torch.cat([*(part.flatten() for part in parts), there])
        self.in_flight.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        while len(self.in_flight) < len(self.buckets):
            self.send_next()
        for bucket, (flat, work) in zip(self.buckets, self.in_flight, strict=True):
            work.wait()
            *sums, there = flat.split([*(parameter.numel() for parameter in bucket), len(bucket)])
            for parameter, total, count in zip(bucket, sums, there.tolist(), strict=True):
                if count > 0:
                    parameter.grad = total.view_as(parameter) / dist.get_world_size()
        self.in_flight, self.missing = ([], [len(bucket) for bucket in self.buckets])

    @contextlib.contextmanager
    def no_sync(self):
        before, self.sends = (self.sends, False)
        try:
            yield
        finally:
            self.sends = before


def send_next(self):
    bucket = self.buckets[len(self.in_flight)]
    flat = torch.zeros(sum(p.numel() for p in bucket) + len(bucket))
    if bucket[0].dtype == torch.float64:
        flat = flat.double()
    self.in_flight.append((flat, dist.all_reduce(flat, async_op=True)))


CALLS = [0]


def exchange(value):
    CALLS[0] += 1
    name = f"x-{CALLS[0]}-"
    torch.save(value, name + f"{dist.get_rank()}.tmp")
    os.rename(name + f"{dist.get_rank()}.tmp", name + str(dist.get_rank()))
    found = []
    for rank in range(dist.get_world_size()):
        while not os.path.exists(name + str(rank)):
            time.sleep(0.001)
        found.append(torch.load(name + str(rank)))
    return found


def finish(self):
    while len(self.in_flight) < len(self.buckets):
        self.send_next()
    for _, work in self.in_flight:
        work.wait()
    mine = [p.grad for p in self.place]
    everyone = exchange([None if g is None else g.clone() for g in mine])
    for p, all_of in zip(self.place, zip(*everyone, strict=False), strict=False):
        there = [g for g in all_of if g is not None]
        if there:
            p.grad = sum(there) / dist.get_world_size()
    self.in_flight, self.missing = ([], [len(bucket) for bucket in self.buckets])


Overlapped.send_next, Overlapped.finish = (send_next, finish)
