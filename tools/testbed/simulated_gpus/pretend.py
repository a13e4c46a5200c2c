"""What torch's Python code asks of CUDA and NCCL, answered for the device of pretend.cpp: see README.md.

The sitecustomize of threads_at_exit imports this where PRETEND_GPUS is set. `import torch` then finds
these GPUs, and nothing of a command changes: torchrun, mp.spawn and the lessons start as they are.
"""

import atexit
import contextlib
import ctypes
import functools
import importlib.machinery
import json
import os
import sys
import time
from collections import Counter
from datetime import timedelta
from types import SimpleNamespace

waits = Counter()  # (place, what): how often the processor would wait for the GPU there
PROPERTIES = {
    "name": "NVIDIA pretended",
    "major": 9,
    "minor": 0,
    "total_memory": 2**36,
    "multi_processor_count": 1,
}


class Finder:
    """Finds torch, and changes how it is loaded."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader.exec_module = functools.partial(load, spec.loader.exec_module)
        return spec


def load(execute, torch):
    library = os.environ["PRETEND_LIBRARY"]
    ctypes.CDLL(library)  # before torch, which looks only once whether there is CUDA
    execute(torch)
    sys.path.append(os.path.dirname(library))
    import pretend_cuda as device

    install_cuda(torch, device)
    install_storage(torch, device)
    install_batch_norm(torch)
    install_nccl(torch, device)
    device.listen(note)
    atexit.register(report)


def note(what):
    """Count a wait at the line of the lessons that causes it."""
    frame, place = sys._getframe(1), "backward"
    while frame is not None:
        name = frame.f_code.co_filename
        if "/lessons/" in name and "/site-packages/" not in name:
            place = f"{name.rpartition('/lessons/')[2]}:{frame.f_lineno}"
            break
        frame = frame.f_back
    waits[place, what] += 1


def report():
    """Write what this process has seen where a test looks for it."""
    if folder := os.environ.get("PRETEND_REPORT"):
        import pretend_cuda

        gpus = pretend_cuda.gpus()
        seen = {"gpus": gpus, "waits": {" ".join(key): count for key, count in waits.items()}}
        seen["memory"] = [pretend_cuda.memory(index)[1] for index in range(gpus)]
        seen["operations"] = pretend_cuda.operations()
        with open(os.path.join(folder, f"rank{os.environ.get('RANK', 0)}.{os.getpid()}.json"), "w") as file:
            json.dump(seen, file)
    # A thread of autograd that frees a graph would ask for the lock of a Python that has ended.
    time.sleep(0.2)


def install_cuda(torch, device):
    cuda = torch.cuda

    def index_of(where=None):
        index = where if isinstance(where, int) or where is None else torch.device(where).index
        return device.current_device() if index is None else index

    class Event(torch.Event):
        def __new__(cls, enable_timing=False, blocking=False, interprocess=False):
            where = torch.device("cuda", device.current_device())
            return super().__new__(cls, where, enable_timing=enable_timing)

    class Stream(torch.Stream):
        def __new__(cls, device=None, priority=0, **_):
            return super().__new__(cls, torch.device("cuda", index_of(device)), priority=priority)

    class On:  # torch.cuda.device
        def __init__(self, where):
            self.index = self.idx = index_of(where)

        def __enter__(self):
            self.before = exchange(self.index)

        def __exit__(self, *_):
            exchange(self.before)

    def exchange(index):
        before = device.current_device()
        if index >= 0:
            device.set_device(index)
        return before

    def seed_all(seed):
        for index in range(device.gpus()):
            device.generator(index).manual_seed(seed)

    answers = {
        "_is_compiled": lambda: True,
        "is_available": lambda: device.gpus() > 0,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "device_count": device.gpus,
        "current_device": device.current_device,
        "set_device": lambda where: device.set_device(index_of(where)),
        "_exchange_device": exchange,
        "_maybe_exchange_device": lambda index: exchange(index),  # dynamo must tell it from the other
        "device": On,
        "synchronize": lambda where=None: device.wait("synchronize"),
        "Stream": Stream,
        "Event": Event,
        "current_stream": Stream,
        "default_stream": Stream,
        "set_stream": lambda stream: None,
        "stream": lambda stream: contextlib.nullcontext(),
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": lambda where="cuda": device.generator(index_of(where)).get_state(),
        "set_rng_state": lambda state, where="cuda": device.generator(index_of(where)).set_state(state),
        "manual_seed": lambda seed: device.generator(-1).manual_seed(seed),
        "manual_seed_all": seed_all,
        "initial_seed": lambda: device.generator(-1).initial_seed(),
        "mem_get_info": lambda where=None: (2**35, 2**36),
        "can_device_access_peer": lambda one, other: True,
        "get_device_name": lambda where=None: PROPERTIES["name"],
        "get_device_capability": lambda where=None: (9, 0),
        "get_arch_list": lambda: ["sm_90"],
        "get_device_properties": lambda where=None: SimpleNamespace(
            uuid=device.uuid(index_of(where)), **PROPERTIES
        ),
        "is_bf16_supported": lambda including_emulation=True: True,
        "empty_cache": lambda: None,
        "memory_allocated": lambda where=None: device.memory(index_of(where))[0],
        "max_memory_allocated": lambda where=None: device.memory(index_of(where))[1],
        "reset_peak_memory_stats": lambda where=None: device.reset_peak(index_of(where)),
        "default_generators": tuple(device.generator(index) for index in range(64)),
    }
    for name, answer in answers.items():
        setattr(cuda, name, answer)
    for name in ("range_push", "range_pop", "mark"):
        setattr(cuda.nvtx, name, lambda *words: None)

    def on(tensor, index):
        return tensor.to(torch.device("cuda", index))

    def scatter(tensor, devices, sizes, dim, streams):
        parts = tensor.split(sizes, dim) if sizes else tensor.chunk(len(devices), dim)
        return [on(part, index) for part, index in zip(parts, devices, strict=False)]

    def gather(tensors, dim, index):
        return torch.cat([on(each, index) for each in tensors], dim)

    def broadcast(tensors, devices, size):
        copies = [tensors]
        for index in devices[1:]:
            copies.append([on(each, index) for each in tensors])
        return copies

    cuda.nccl.is_available = lambda tensors: False  # DataParallel then adds gradients up without it
    torch._C._scatter, torch._C._gather, torch._C._broadcast_coalesced = scatter, gather, broadcast
    torch._C._cuda_getCurrentRawStream = lambda index: 0
    torch._C._cuda_getDeviceCount = device.gpus
    torch._C._nccl_version = lambda: 2 << 32 | 29 << 16 | 7
    torch._C._nccl_version_suffix = lambda: b""


def install_storage(torch, device):
    resize, clone = torch.UntypedStorage.resize_, torch.UntypedStorage.clone
    to = torch.storage._to

    def resize_(storage, size):  # FSDP empties and fills the storage of what it has gathered
        if storage.device.type != "cuda":
            return resize(storage, size)
        device.resize_storage(
            torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage), int(size)
        )
        return storage

    def to_device(storage, where, non_blocking=False):  # torch.load, of a file with a GPU's tensors
        if where.type != "cuda":
            return to(storage, where, non_blocking)
        made = torch.empty(storage.size(), dtype=torch.uint8, device=where).untyped_storage()
        return made.copy_(storage, non_blocking)

    def clone_(storage):  # copy.deepcopy, of a model on a GPU
        return to_device(storage, storage.device) if storage.device.type == "cuda" else clone(storage)

    torch.UntypedStorage.resize_, torch.UntypedStorage.clone = resize_, clone_
    torch.storage._to = to_device


def install_batch_norm(torch):
    """The operators of nn.SyncBatchNorm, for which the CPU has no kernels."""
    library = torch.library.Library("aten", "IMPL")
    install_batch_norm.library = library  # what it holds is forgotten when it is freed

    def by_channel(values, like):
        return values.view(1, -1, *[1] * (like.dim() - 2))

    def others(like):
        return [number for number in range(like.dim()) if number != 1]

    def stats(x, eps):
        return x.mean(others(x)), (x.var(others(x), correction=0) + eps).rsqrt()

    def elemt(x, weight, bias, mean, invstd, eps):
        return (x - by_channel(mean, x)) * by_channel(invstd * weight, x) + by_channel(bias, x)

    def gather(x, means, invstds, running_mean, running_var, momentum, eps, counts):
        counts = counts.view(-1, 1).to(means.dtype)
        variances, total = invstds.square().reciprocal() - eps, counts.sum()
        mean = (means * counts).sum(0) / total
        variance = ((variances + (means - mean).square()) * counts).sum(0) / total
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((variance * total / (total - 1)).to(running_var.dtype), momentum)
        return mean, (variance + eps).rsqrt()

    def backward_reduce(grad, x, mean, invstd, weight, input_g, weight_g, bias_g):
        sum_dy, sum_dy_xmu = grad.sum(others(x)), (grad * (x - by_channel(mean, x))).sum(others(x))
        return sum_dy, sum_dy_xmu, sum_dy_xmu * invstd, sum_dy.clone()

    def backward_elemt(grad, x, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
        total = count.sum()
        slope = by_channel(invstd.square() * sum_dy_xmu / total, x)
        centred = grad - by_channel(sum_dy / total, x) - (x - by_channel(mean, x)) * slope
        return centred * by_channel(invstd * weight, x)

    library.impl("batch_norm_stats", stats, "CUDA")
    library.impl("batch_norm_elemt", elemt, "CUDA")
    library.impl("batch_norm_gather_stats_with_counts", gather, "CUDA")
    library.impl("batch_norm_backward_reduce", backward_reduce, "CUDA")
    library.impl("batch_norm_backward_elemt", backward_elemt, "CUDA")


def install_nccl(torch, device):
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    class Type(type):
        def __instancecheck__(cls, thing):
            return isinstance(thing, device.ProcessGroupNCCL)

    class ProcessGroupNCCL(metaclass=Type):
        """Makes the C++ one around a group of gloo, and is its type for isinstance."""

        Options = device.ProcessGroupNCCL.Options

        def __new__(cls, store, rank, size, options):
            gloo = dist.ProcessGroupGloo(store, rank, size, timeout=options._timeout)
            return device.ProcessGroupNCCL(gloo, store, options)

    c10d._NCCL_AVAILABLE = True
    torch._C._distributed_c10d._hash_tensors = lambda tensors: 0  # for a line of the log, with DETAIL
    c10d.default_pg_nccl_timeout = timedelta(minutes=10)
    c10d.ProcessGroupNCCL = dist.ProcessGroupNCCL = ProcessGroupNCCL
    make = c10d._new_process_group_helper

    def make_and_check(*arguments, **options):
        group, store = make(*arguments, **options)
        cuda = torch.device("cuda")
        if cuda in getattr(group, "_device_types", ()) and isinstance(
            group._get_backend(cuda), dist.ProcessGroupGloo
        ):
            refusing = device.Refusing(group.rank(), group.size())  # this build's gloo would crash
            name = group.group_name
            group._register_backend(cuda, dist.ProcessGroup.BackendType.CUSTOM, refusing)
            group._set_group_name(name)  # of all its backends, this one included
        return group, store

    c10d._new_process_group_helper = make_and_check


sys.meta_path.insert(0, Finder())
