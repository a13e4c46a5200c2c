"""Other solutions of exercise 03b."""

import concurrent.futures
import itertools
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import nn


def nodes():
    """Hooks on the nodes of autograd that add up, and futures that divide."""

    class Overlapped(nn.Module):
        def __init__(self, module, bucket_bytes):
            super().__init__()
            self.module, self.silent = module, False
            self.buckets = make_buckets(module.parameters(), bucket_bytes)
            mine = [*module.parameters(), *module.buffers()]
            state = [mine if dist.get_rank() == 0 else None]
            dist.broadcast_object_list(state, src=0)
            with torch.no_grad():
                for tensor, first in zip(mine, state[0], strict=True):
                    tensor.copy_(first)
            self.nodes = []
            for number, bucket in enumerate(self.buckets):
                for parameter in bucket:
                    node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
                    node.register_hook(partial(self.came, number))
                    self.nodes.append(node)
            self.again()

        def again(self):
            self.full, self.futures = [0] * len(self.buckets), []

        def came(self, number, *gradients):
            if self.silent:
                return
            self.full[number] += 1
            while len(self.futures) < len(self.buckets):
                if self.full[len(self.futures)] < len(self.buckets[len(self.futures)]):
                    break
                self.begin()

        def begin(self):
            bucket = self.buckets[len(self.futures)]
            flat = torch.zeros(sum(p.numel() + 1 for p in bucket), dtype=bucket[0].dtype)
            place = 0
            for parameter in bucket:
                if parameter.grad is not None:
                    flat[place : place + parameter.numel()] = parameter.grad.flatten()
                    flat[place + parameter.numel()] = 1
                place += parameter.numel() + 1
            future = dist.all_reduce(flat, async_op=True).get_future()
            self.futures.append(future.then(lambda done: done.value()[0] / dist.get_world_size()))

        def finish(self):
            for _ in range(len(self.buckets) - len(self.futures)):
                self.begin()
            for bucket, future in zip(self.buckets, self.futures, strict=True):
                flat, place = future.wait(), 0
                for parameter in bucket:
                    if flat[place + parameter.numel()] > 0:
                        parameter.grad = flat[place : place + parameter.numel()].reshape(parameter.shape)
                    place += parameter.numel() + 1
            self.again()

        def forward(self, *inputs, **named):
            if self.training and not self.silent:
                for buffer in self.module.buffers():
                    dist.broadcast(buffer.data, src=0)
            return self.module(*inputs, **named)

        @contextmanager
        def no_sync(self):
            was, self.silent = self.silent, True
            try:
                yield
            finally:
                self.silent = was


def thread():
    """A thread of its own that makes blocking calls, one bucket after the other."""

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
            flat = torch.cat(
                [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in bucket]
            )

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
