"""Inside each process that check.py starts: writes down its examples, losses, weights, collectives and files.

check.py loads this file when the script has imported torch, and not before, because the script may first set
environment variables. It writes rows into a file in check.py's temporary folder, and draws no random numbers.
"""

import atexit
import ctypes
import faulthandler
import hashlib
import json
import os
import random
import signal
import sys
import time
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torch.utils.data._utils.fetch import _MapDatasetFetcher

COLLECTIVES = """all_reduce broadcast reduce all_gather all_gather_into_tensor gather scatter reduce_scatter
reduce_scatter_tensor all_to_all all_to_all_single barrier monitored_barrier all_gather_object
broadcast_object_list gather_object scatter_object_list new_group"""
COMPARED_STEPS = 12  # the gradients of these first steps are written down
LARGEST_BATCH = 4096  # the examples of a larger batch are not looked at one by one


class Watch:
    """What this process has seen so far."""

    pid, rank, file = os.getpid(), int(os.environ["RANK"]), None
    models: dict = {}  # noqa: RUF012  id of a model: its name and a weak reference, so that DDP can end before its group
    steps, depth, weights = 0, 0, {}
    is_backward = has_optimizer = False
    is_due = False  # a backward pass has come after the last step
    fresh: set = set()  # noqa: RUF012  the models that were called after the last step
    expected = seen = None  # the model inside DDP whose call comes next, and the row of the outermost call


def write(kind, **values):
    if os.getpid() == Watch.pid:  # and not in a worker of a DataLoader, which is a fork
        os.write(Watch.file, (json.dumps({"kind": kind, **values}) + "\n").encode())


def begin(folder):
    if "PORT_EXACT" in os.environ:
        make_exact()
    if os.environ.setdefault("PORT_RANK", str(Watch.pid)) != str(Watch.pid):
        return  # a process that a rank has started, such as a spawned worker
    name = Path(folder, f"{Watch.rank}.{Watch.pid}")
    Watch.file = os.open(f"{name}.seen", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    write("start", rank=Watch.rank, time=time.time())
    atexit.register(look_at_end)
    faulthandler.register(signal.SIGURG, file=open(f"{name}.stack", "w"), all_threads=True)  # noqa: SIM115
    sys.addaudithook(look_at_file)
    register_optimizer_step_post_hook(look_at_step)
    replace(nn.Module, "__call__", look_at_call)
    replace(torch.autograd, "backward", look_at_backward)
    replace(torch, "save", look_at_save)
    replace(ReduceLROnPlateau, "step", look_at_plateau)
    replace(torch.optim.LBFGS, "step", look_at_closure)
    replace(DataLoader, "__iter__", look_at_loader)
    replace(DistributedSampler, "__iter__", look_at_sampler)
    for owner in (nn.Module, Optimizer):
        replace(owner, "zero_grad", look_at_zero)
    for name in COLLECTIVES.split():
        replace(dist, name, look_at_collective)


def replace(owner, name, wrapper):
    """Replace a function by `wrapper`, which gets the function as its first argument and calls it."""
    function = getattr(owner, name)

    def call(*args, **kwargs):
        return wrapper(function, *args, **kwargs)

    setattr(owner, name, call)


def tensors_of(values):
    """All tensors in nested tuples, lists and dictionaries."""
    if isinstance(values, torch.Tensor):
        return [values if values.layout == torch.strided else values.to_dense()]  # sparse: it has no bytes
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return []
    return [tensor for value in values for tensor in tensors_of(value)]


def hash_of(tensor):
    tensor = tensor.detach().cpu().contiguous()
    size = tensor.numel() * tensor.element_size()
    content = ctypes.string_at(tensor.data_ptr(), size) if size else b""
    return hashlib.blake2b(content + str(tensor.shape).encode(), digest_size=6).hexdigest()


def hashes_of_examples(batch):
    """Hashes of the rows and of the columns, of about four digits: the next ones may depend on the batch."""
    if batch.is_floating_point():
        batch = (batch.detach().float().view(torch.int32) + 512) >> 10
    sizes = [size if size <= LARGEST_BATCH else 0 for size in batch.shape[:2]]
    return [[hash_of(batch.select(dim, place)) for place in range(size)] for dim, size in enumerate(sizes)]


def numbers_of(tensor):
    """Three sums that change with any element, and the norm: enough to compare tensors of two runs."""
    flat = tensor.detach().flatten()[: 1 << 20].double()
    place = torch.arange(1, len(flat) + 1, dtype=torch.float64, device=flat.device)
    return [float(flat @ torch.cos(place * factor)) for factor in (1.0, 1.3, 1.7)] + [float(flat.norm())]


def random_state():
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])
    return "".join(map(hash_of, states))


def line_of_caller():
    frame = sys._getframe(3)
    while frame.f_back and f"{os.sep}torch{os.sep}" in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def weights():
    models = [(name, reference()) for name, reference in Watch.models.values()]
    return {
        f"{name}.{key}": tensor for name, model in models if model for key, tensor in model.named_parameters()
    }


def hashes(tensors):
    return {name: hash_of(tensor) for name, tensor in dict(tensors).items()}


def look_at_call(function, module, *args, **kwargs):
    """Look at the outermost call of a module with weights, which is the model."""
    if Watch.expected is module:  # DDP has broadcast the buffers of rank 0 by now
        Watch.expected, Watch.seen["buffers"] = None, hashes(module.named_buffers())
    inputs = tensors_of((args, kwargs)) if not Watch.depth and torch.is_grad_enabled() else []
    is_model = inputs and next(module.parameters(), None) is not None and os.getpid() == Watch.pid
    if not is_model or Watch.is_backward or any(tensor.requires_grad for tensor in inputs):
        return function(module, *args, **kwargs)
    look_for_change_by_hand()
    is_ddp = isinstance(module, nn.parallel.DistributedDataParallel)
    model = module.module if is_ddp else module
    new = f"{len(Watch.models)}.{type(model).__name__}", weakref.ref(model)
    name = Watch.models.setdefault(id(model), new)[0]
    if not Watch.steps and name not in Watch.fresh:
        Watch.weights = hashes(weights())
        write("weights", step=0, weights=Watch.weights)
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.training]
    Watch.seen = seen = {
        "model": name,
        "syncs": getattr(module, "require_backward_grad_sync", True),
        "batch": "".join(map(hash_of, inputs)),
        "examples": hashes_of_examples(inputs[0]),
        "shape": list(inputs[0].shape),
        "random": random_state(),
        "has_norm": any(type(norm) is not nn.SyncBatchNorm for norm in norms),
    }
    if model.training and name not in Watch.fresh:
        if is_ddp:
            Watch.expected = model
        else:
            seen["buffers"] = hashes(model.named_buffers())
    Watch.fresh.add(name)
    Watch.depth += 1
    try:
        outputs = function(module, *args, **kwargs)
    finally:
        Watch.depth -= 1

    def is_used(gradient):  # the backward pass has come back to this call: it was for training
        if "draws" not in seen:
            seen["draws"] = random_state() != seen["random"]
            write("forward", **seen)

    for tensor in tensors_of(outputs):
        if tensor.requires_grad:
            tensor.register_hook(is_used)
    return outputs


def look_at_backward(function, tensors, *args, **kwargs):
    Watch.is_backward = True
    try:
        function(tensors, *args, **kwargs)
    finally:
        Watch.is_backward = False
    Watch.is_due = True
    write("loss", loss=sum(float(loss.detach()) for loss in tensors_of(tensors) if loss.numel() == 1))


def look_for_change_by_hand():
    """A script without an optimizer changes its weights between a backward pass and what comes next."""
    if Watch.is_due and not Watch.has_optimizer and hashes(weights()) != Watch.weights:
        look_at_step(None)


def look_at_end():
    if os.getpid() == Watch.pid:
        look_for_change_by_hand()
    write("end")


def look_at_zero(function, owner, *args, **kwargs):
    look_for_change_by_hand()
    Watch.is_due = False
    write("zero")
    return function(owner, *args, **kwargs)


def look_at_step(optimizer, args=(), kwargs=None):
    Watch.has_optimizer, Watch.is_due = optimizer is not None, False
    Watch.steps += 1
    Watch.fresh.clear()
    tensors = weights()
    Watch.weights = hashes(tensors)
    seen = {"step": Watch.steps, "weights": Watch.weights}
    if optimizer:
        seen["rates"] = [float(group.get("lr", 0)) for group in optimizer.param_groups]
    if Watch.steps <= COMPARED_STEPS:
        seen["values"] = {name: numbers_of(tensor) for name, tensor in tensors.items()}
        gradients = {name: tensor.grad for name, tensor in tensors.items() if tensor.grad is not None}
        seen["gradients"] = {name: numbers_of(gradient) for name, gradient in gradients.items()}
    write("step", **seen)
    rank, step, mark = os.environ.get("PORT_KILL", "-1 0 -").split()
    if (int(rank), int(step)) == (Watch.rank, Watch.steps) and not os.path.exists(mark):
        Path(mark).touch()
        os.kill(Watch.pid, signal.SIGKILL)
    if Watch.steps == int(os.environ.get("PORT_STEPS", 0)):
        sys.stdout.flush()
        os._exit(0)


def look_at_file(event, values):
    if event == "open" and isinstance(values[0], str) and values[2] & (os.O_WRONLY | os.O_RDWR):
        write("file", path=os.path.abspath(values[0]))
    elif event == "os.rename":
        write("file", path=os.path.abspath(os.fsdecode(values[1])))


def look_at_save(function, content, f, *args, **kwargs):
    if isinstance(f, str | os.PathLike):  # torch opens it in C++, which audit hooks do not see
        write("file", path=os.path.abspath(f))
    return function(content, f, *args, **kwargs)


def look_at_closure(function, optimizer, closure):
    def noted_closure():
        loss = closure()
        write("closure", loss=float(loss))
        return loss

    return function(optimizer, noted_closure)


def look_at_plateau(function, scheduler, metrics, *args, **kwargs):
    write("plateau", metric=float(metrics), line=line_of_caller())
    return function(scheduler, metrics, *args, **kwargs)


def look_at_loader(function, loader):
    write("loader")
    return function(loader)


def look_at_sampler(function, sampler):
    write("sampler", shuffle=sampler.shuffle, epoch=sampler.epoch)
    return function(sampler)


def look_at_collective(function, *args, **kwargs):
    if dist.is_initialized():
        name, given = function.__name__, [*args, *kwargs.values()]
        group = next((value for value in given if isinstance(value, dist.ProcessGroup)), None)
        tensors = [] if "object" in name or "to_all" in name else tensors_of(given)
        what = f"{name} {list(tensors[0].shape)} {tensors[0].dtype}" if tensors else name
        what += "".join(f" {key}={kwargs[key]}" for key in ("src", "dst", "op") if key in kwargs)
        write("collective", what=what, ranks=dist.get_process_group_ranks(group), line=line_of_caller())
    return function(*args, **kwargs)


def make_exact():
    """float64, no dropout, and an augmentation that depends on nothing but the index of the example."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    random.seed(0)
    replace(nn.Module, "__call__", call_exactly)
    replace(_MapDatasetFetcher, "fetch", fetch_exactly)
    replace(torch.amp.autocast_mode.autocast, "__init__", never_cast)
    for name in dir(F):
        if "dropout" in name and name[0] != "_":
            setattr(F, name, lambda values, *args, **kwargs: values)


def wide(values):
    if isinstance(values, torch.Tensor):
        return values.double() if values.is_floating_point() else values
    if isinstance(values, dict):
        return type(values)((key, wide(value)) for key, value in values.items())
    return type(values)(map(wide, values)) if type(values) in (list, tuple) else values


def call_exactly(function, module, *args, **kwargs):
    if isinstance(getattr(module, "dropout", None), float):  # of an RNN, or of attention
        module.dropout = 0.0
    return function(module, *wide(args), **wide(kwargs))


def fetch_exactly(function, fetcher, index):
    if not isinstance(fetcher.dataset, Fixed):
        fetcher.dataset = Fixed(fetcher.dataset)
    return wide(function(fetcher, index))


def never_cast(function, context, *args, **kwargs):
    function(context, *args, **{**kwargs, "enabled": False})


class Fixed:
    """A data set that seeds the random numbers of each example."""

    def __init__(self, data):
        self.data = data

    def __getitem__(self, index):
        data, number = self.data, index
        while isinstance(data, Subset):
            data, number = data.dataset, data.indices[number]
        states, seed = (torch.get_rng_state(), random.getstate()), random.Random(str(number)).getrandbits(32)
        torch.manual_seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed)
        try:
            return self.data[index]
        finally:
            torch.set_rng_state(states[0])
            random.setstate(states[1])
