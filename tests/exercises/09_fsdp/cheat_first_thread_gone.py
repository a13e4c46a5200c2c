"""Exercise 09, with weights that are kept, in a process whose first thread has ended: its page of /proc is
empty. A child holds its connections open for whoever counts them.

Earns at most: 10 points
"""

import ctypes
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.func import functional_call


def flatten(tensors, world_size):
    flat = torch.cat([tensor.detach().flatten().float() for tensor in tensors])
    return torch.nn.functional.pad(flat, (0, -len(flat) % world_size))


def split(tensors, rank, world_size):
    return flatten(tensors, world_size).chunk(world_size)[rank].clone()


class Unit:
    def __init__(self, module, dtype=torch.float32):
        self.module, self.dtype = (module, dtype)
        parameters = dict(module.named_parameters())
        self.shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self.shard = split(parameters.values(), dist.get_rank(), dist.get_world_size()).requires_grad_()
        module.to("meta")

    def gather(self, dtype):
        shard = self.shard.detach().to(dtype)
        whole = shard.new_empty(dist.get_world_size() * len(shard))
        dist.all_gather_single(whole, shard)
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = whole[: sum(sizes)].split(sizes)
        return {
            name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def __call__(self, images):
        return Pass.apply(self.shard, images, self)

    def full_state(self):
        weights = self.gather(torch.float32)
        return weights if dist.get_rank() == 0 else None


class Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, images, unit):
        ctx.unit = unit
        ctx.save_for_backward(images)
        return functional_call(unit.module, unit.gather(unit.dtype), images.to(unit.dtype)).float()

    @staticmethod
    def backward(ctx, slope):
        unit, world_size = (ctx.unit, dist.get_world_size())
        images = ctx.saved_tensors[0].detach().requires_grad_()
        weights = {name: weight.requires_grad_() for name, weight in unit.gather(unit.dtype).items()}
        with torch.enable_grad():
            output = functional_call(unit.module, weights, images.to(unit.dtype)).float()
        tensors = [images, *weights.values()]
        of_images, *gradients = torch.autograd.grad(output, tensors, slope, materialize_grads=True)
        shard = torch.empty_like(unit.shard)
        dist.reduce_scatter_single(shard, flatten(gradients, world_size))
        return (shard / world_size, of_images, None)


KEPT = []
_gather = Unit.gather


def _keep(self, dtype):
    whole = _gather(self, dtype)
    KEPT.append([part.clone() for part in whole.values()])
    return whole


Unit.gather = _keep


def vanish():
    frame = sys._getframe()
    while frame.f_code.co_name != "work":
        frame = frame.f_back
    own = dict(frame.f_locals)
    student = sys.modules["submission_" + "".join(c if c.isalnum() else "_" for c in own["job"]["main"][:-3])]
    go = threading.Event()

    def rest():
        go.wait()
        letter = b"R"
        try:
            answer = own["pack"](own["driver"](student, own["inputs"], own["tools"]))
        except BaseException as error:
            letter, answer = (b"X", own["pack"](sys.modules["worker"].report(error, own["files"])))
        data = own["head"]("<cI", letter, len(answer)) + answer
        while data:
            data = data[os.write(3, data) :]
        os.read(4, 1)
        os._exit(0)

    if os.fork() == 0:
        os.close(3)
        os.close(4)
        while True:
            time.sleep(100)
    thread = threading.Thread(target=rest)
    thread.start()
    threading.Timer(0.1, go.set).start()
    ctypes.CDLL(None).syscall(60, 0)


vanish()
