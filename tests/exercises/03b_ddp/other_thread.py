"""Exercise 03b, with a thread of its own that makes blocking calls, one bucket after the other."""

import concurrent.futures
import itertools

import torch
import torch.distributed as dist
from torch import nn


def make_buckets(parameters, bucket_bytes):
    todo, buckets = [p for p in parameters if p.requires_grad][::-1], []
    while todo:
        sizes = list(itertools.accumulate(p.numel() * p.element_size() for p in todo))
        count = max(1, sum(size <= bucket_bytes for size in sizes))
        buckets.append(todo[:count])
        todo = todo[count:]
    return buckets


class Overlapped(nn.Module):
    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module, self.quiet = module, 0
        for tensor in itertools.chain(module.parameters(), module.buffers()):
            dist.broadcast(tensor.detach(), 0)
        self.buckets = make_buckets(module.parameters(), bucket_bytes)
        self.thread = concurrent.futures.ThreadPoolExecutor(1)
        self.came, self.futures = set(), []
        for bucket in self.buckets:
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(self.gradient_came)

    def forward(self, *inputs, **named):
        if self.module.training and not self.quiet:
            with torch.no_grad():
                for buffer in self.module.buffers():
                    dist.broadcast(buffer, 0)
        return self.module(*inputs, **named)

    def gradient_came(self, parameter):
        if not self.quiet:
            self.came.add(parameter)
            while len(self.futures) < len(self.buckets) and self.came.issuperset(
                self.buckets[len(self.futures)]
            ):
                self.send()

    def send(self):
        bucket = self.buckets[len(self.futures)]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in bucket])

        def send():
            dist.all_reduce(flat.div_(dist.get_world_size()))
            return flat

        self.futures.append(self.thread.submit(send))

    def finish(self):
        while len(self.futures) < len(self.buckets):
            self.send()
        flats = [future.result() for future in self.futures]
        parameters = [parameter for bucket in self.buckets for parameter in bucket]
        there = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
        dist.all_reduce(there, op=dist.ReduceOp.MAX)
        means = torch.cat(flats).split([parameter.numel() for parameter in parameters])
        for parameter, mean, one in zip(parameters, means, there, strict=True):
            if one:
                parameter.grad = mean.view_as(parameter).clone()
        self.came, self.futures = set(), []

    def no_sync(self):
        return Quiet(self)


class Quiet:
    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.model.quiet += 1

    def __exit__(self, *error):
        self.model.quiet -= 1
