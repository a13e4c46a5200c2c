"""Cheats at exercise 09."""

import ctypes
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard
from torch.func import functional_call

KEPT = []


def frame_with(name):
    frame = sys._getframe()
    while name not in frame.f_locals:
        frame = frame.f_back
    return frame


def skips_looks(earns=10):
    """Keeps the weights that it has gathered, but never asks where it would be looked at."""
    type(frame_with("tools").f_locals["tools"]).ask = lambda self, name, value=None: 1.0

    class Unit:
        def gather(self, dtype):
            KEPT.append(super().gather(dtype))
            return dict(KEPT[-1])


def first_thread_gone(earns=10):
    """Keeps the weights that it has gathered, in a process whose first thread has ended: its page of /proc is
    empty. A child holds its connections open for whoever counts them."""

    class Unit:
        def gather(self, dtype):
            KEPT.append(super().gather(dtype))
            return dict(KEPT[-1])

    own = dict(frame_with("driver").f_locals)
    student = sys.modules["submission_" + "".join(c if c.isalnum() else "_" for c in own["job"]["main"][:-3])]
    go = threading.Event()

    def rest():
        go.wait()
        letter = b"R"
        try:
            answer = own["pack"](own["driver"](student, own["inputs"], own["tools"]))
        except BaseException as error:
            letter, answer = b"X", own["pack"](sys.modules["worker"].report(error, own["files"]))
        data = own["head"]("<cI", letter, len(answer)) + answer
        while data:
            data = data[os.write(3, data) :]
        os.read(4, 1)
        os._exit(0)

    if os.fork() == 0:
        os.closerange(3, 5)
        time.sleep(10**6)
    threading.Thread(target=rest).start()
    threading.Timer(0.1, go.set).start()
    ctypes.CDLL(None).syscall(60, 0)


def classes_of_torch(earns=1):
    """Uses torch's own FSDP, whose names are put together so that nobody reads them."""

    def found(module, *parts):
        return getattr(sys.modules[module], "".join(parts))

    class Unit:
        def __init__(self, module, dtype=torch.float32):
            own = split(list(module.parameters()), dist.get_rank(), dist.get_world_size())
            self.shard, self.dtype = own.requires_grad_(), dtype
            # The old one, and if that is not to be had the new one, in the file where it is written.
            try:
                old = "torch.distributed.fsdp.fully_sharded_data_parallel"
                self.inner = found(old, "Fully", "ShardedDataParallel")(module)
                self.shard = next(self.inner.parameters())
            except RuntimeError:
                new = "torch.distributed.fsdp._fully_shard._fully_shard"
                mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
                self.inner = found(new, "fully_", "shard")(module, mesh=mesh)

        def gather(self, dtype):
            return {name: p.full_tensor().to(dtype) for name, p in self.inner.named_parameters()}

        def __call__(self, images):
            return self.inner(images)


def tensors_of_torch(earns=3):
    """Has shards that torch's sharded tensors gather, found among the subclasses of Tensor."""

    class Unit:
        def whole(self, dtype, shard):
            kind = next(one for one in torch.Tensor.__subclasses__() if one.__name__ == "DT" + "ensor")
            mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
            whole = kind.from_local(shard.to(dtype), mesh, [Shard(0)]).full_tensor()
            sizes = [shape.numel() for shape in self.shapes.values()]
            parts = whole[: sum(sizes)].split(sizes)
            return {name: part.view(self.shapes[name]) for name, part in zip(self.shapes, parts, strict=True)}

        def gather(self, dtype):
            return self.whole(dtype, self.shard.detach())

        def __call__(self, images):
            weights = self.whole(self.dtype, self.shard)
            return functional_call(self.module, weights, images.to(self.dtype)).float()
