"""Other solutions of exercise 03b."""

import concurrent.futures
from functools import partial

import torch
import torch.distributed as dist
from torch import nn


def nodes():
    """Hooks on the nodes of autograd that add up, futures that divide, and rank 0's state as an object."""

    class Overlapped:
        def __init__(self, module, bucket_bytes):
            nn.Module.__init__(self)
            self.module, self.sends = module, True
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
            if self.sends:
                self.full[number] += 1
                while len(self.futures) < len(self.buckets):
                    if self.full[len(self.futures)] < len(self.buckets[len(self.futures)]):
                        break
                    self.begin()

        def begin(self):
            parts = []
            for parameter in self.buckets[len(self.futures)]:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parts += [
                    gradient.flatten(),
                    torch.full_like(gradient.sum(), parameter.grad is not None)[None],
                ]
            future = dist.all_reduce(torch.cat(parts), async_op=True).get_future()
            self.futures.append(future.then(lambda done: done.value()[0] / dist.get_world_size()))

        def finish(self):
            for _ in range(len(self.buckets) - len(self.futures)):
                self.begin()
            for bucket, future in zip(self.buckets, self.futures, strict=True):
                parts = iter(future.wait().split([size for p in bucket for size in (p.numel(), 1)]))
                for parameter, part, there in zip(bucket, parts, parts, strict=True):
                    if there > 0:
                        parameter.grad = part.reshape(parameter.shape)
            self.again()


def thread():
    """A thread of its own that makes blocking calls; one more call says which gradients are missing."""

    class Overlapped:
        def __init__(self, module, bucket_bytes):
            super().__init__(module, bucket_bytes)
            self.thread = concurrent.futures.ThreadPoolExecutor(1)

        def send_next(self):
            bucket = self.buckets[len(self.in_flight)]
            parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = torch.cat([part.reshape(-1) for part in parts])

            def send():
                dist.all_reduce(flat.div_(dist.get_world_size()))
                return flat

            self.in_flight.append(self.thread.submit(send))

        def finish(self):
            while len(self.in_flight) < len(self.buckets):
                self.send_next()
            flats = [future.result() for future in self.in_flight]
            parameters = [parameter for bucket in self.buckets for parameter in bucket]
            there = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
            dist.all_reduce(there, op=dist.ReduceOp.MAX)
            means = torch.cat(flats).split([parameter.numel() for parameter in parameters])
            for parameter, mean, one in zip(parameters, means, there, strict=True):
                if one:
                    parameter.grad = mean.view_as(parameter).clone()
            self.in_flight, self.missing = [], [len(bucket) for bucket in self.buckets]
