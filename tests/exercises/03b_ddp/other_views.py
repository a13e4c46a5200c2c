"""Exercise 03b, with flat tensors that are kept, copies in and out, and hooks taken off in no_sync."""

import contextlib

import torch
import torch.distributed as dist
from torch import nn


class Bucket:
    def __init__(self):
        self.parameters, self.size, self.came, self.work = [], 0, 0, None

    def add(self, parameter):
        self.parameters.append(parameter)
        self.size += parameter.nbytes

    def prepare(self):
        self.flat = torch.zeros(sum(p.numel() for p in self.parameters), dtype=self.parameters[0].dtype)
        pieces = self.flat.split([p.numel() for p in self.parameters])
        self.views = [piece.view(p.shape) for piece, p in zip(pieces, self.parameters, strict=True)]

    def start(self):
        for view, parameter in zip(self.views, self.parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
        self.work = dist.all_reduce(self.flat, op=dist.ReduceOp.SUM, async_op=True)


def fill(parameters, bucket_bytes):
    buckets = []
    for parameter in list(parameters)[::-1]:
        if parameter.requires_grad:
            if not buckets or buckets[-1].size + parameter.nbytes > bucket_bytes:
                buckets.append(Bucket())
            buckets[-1].add(parameter)
    return buckets


def make_buckets(parameters, bucket_bytes):
    return [bucket.parameters for bucket in fill(parameters, bucket_bytes)]


class Overlapped(nn.Module):
    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module, self.handles, self.blocks = module, [], 0
        self.buckets = fill(module.parameters(), bucket_bytes)
        self.all = [p for bucket in self.buckets for p in bucket.parameters]
        self.there = torch.zeros(len(self.all), dtype=torch.int32)
        works = [
            dist.broadcast(t.data, src=0, async_op=True) for t in [*module.parameters(), *module.buffers()]
        ]
        for bucket in self.buckets:
            bucket.prepare()
        self.install()
        for work in works:
            work.wait()

    def install(self):
        for bucket in self.buckets:
            for parameter in bucket.parameters:

                def hook(_, bucket=bucket):
                    bucket.came += 1
                    self.go_on(lambda first: first.came == len(first.parameters))

                self.handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def go_on(self, may):
        for bucket in self.buckets:
            if bucket.work is None:
                if not may(bucket):
                    return
                bucket.start()

    def forward(self, *inputs, **named):
        if self.training and self.handles:
            works = [dist.broadcast(buffer, src=0, async_op=True) for buffer in self.module.buffers()]
            for work in works:
                work.wait()
        return self.module(*inputs, **named)

    @torch.no_grad()
    def finish(self):
        for place, parameter in enumerate(self.all):
            self.there[place] = parameter.grad is not None
        self.go_on(lambda first: True)
        counts = dist.all_reduce(self.there, async_op=True)
        counts.wait()
        there = dict(zip(self.all, self.there.tolist(), strict=True))
        for bucket in self.buckets:
            bucket.work.wait()
            bucket.flat /= dist.get_world_size()
            for view, parameter in zip(bucket.views, bucket.parameters, strict=True):
                if there[parameter] and parameter.grad is None:
                    parameter.grad = torch.empty_like(parameter)
                if there[parameter]:
                    parameter.grad.copy_(view)
            bucket.came, bucket.work = 0, None

    @contextlib.contextmanager
    def no_sync(self):
        for handle in self.handles:
            handle.remove()
        self.handles, self.blocks = [], self.blocks + 1
        try:
            yield self
        finally:
            self.blocks -= 1
            if not self.blocks:
                self.install()
