"""What check.py lets each rank of a script write down: its examples, losses, weights, collectives and files.

check.py puts a `sitecustomize` on PYTHONPATH that calls `begin` before the script's first line. `begin` imports no
torch, since a script may set environment variables before it does. It waits until the script has imported torch.
"""

import atexit
import ctypes
import faulthandler
import hashlib
import importlib.util
import json
import os
import random
import signal
import sys
import time
import weakref
from pathlib import Path

COLLECTIVES = """all_reduce broadcast reduce all_gather all_gather_into_tensor gather scatter reduce_scatter
reduce_scatter_tensor all_to_all all_to_all_single barrier monitored_barrier all_gather_object
broadcast_object_list gather_object scatter_object_list new_group""".split()
COMPARED_STEPS = 12  # gradients of so many steps are written down
FEW = 4096  # samples of a batch that are hashed one by one


class Watch:
    """What one rank has seen so far."""

    def __init__(self, folder):
        self.pid, self.rank = os.getpid(), int(os.environ["RANK"])
        name = f"{self.rank}.{self.pid}"
        self.file = os.open(Path(folder, f"{name}.seen"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.stack = open(Path(folder, f"{name}.stack"), "w")  # noqa: SIM115
        self.models = {}  # id of a model: its name and a weak reference, as DDP must die when the script drops it
        self.steps, self.depth, self.is_backward, self.has_optimizer = 0, 0, False, False
        self.is_due, self.weights = False, {}  # whether a backward pass has come since the last step
        self.fresh = set()  # models that have been called since the last step

    def write(self, kind, **values):
        if os.getpid() == self.pid:  # not in a DataLoader's worker, which is a fork of this process
            os.write(self.file, (json.dumps({"kind": kind, **values}) + "\n").encode())


def begin(folder):
    is_rank = "RANK" in os.environ and "PORT_CHECK_RANK" not in os.environ
    if "RANK" not in os.environ:
        return  # torchrun itself
    os.environ["PORT_CHECK_RANK"] = os.environ["RANK"]  # what this rank starts inherits it
    watch = Watch(folder) if is_rank else None
    if watch:
        watch.write("start", rank=watch.rank, pid=watch.pid, time=time.time())
        atexit.register(watch.write, "end")
        faulthandler.register(signal.SIGURG, file=watch.stack, all_threads=True)
        sys.addaudithook(lambda event, values: see_file(watch, event, values))
    if "torch" in sys.modules:
        install(watch)
    else:
        sys.meta_path.insert(0, AfterTorch(watch))


class AfterTorch:
    """Calls `install` at the end of the script's `import torch`."""

    def __init__(self, watch):
        self.watch = watch

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            install(self.watch)

        spec.loader.exec_module = exec_module
        return spec


def install(watch):
    if "PORT_EXACT" in os.environ:
        make_exact()
    if watch:
        watch_torch(watch)


def see_file(watch, event, values):
    if event == "open" and isinstance(values[0], str) and values[2] & (os.O_WRONLY | os.O_RDWR):
        watch.write("file", path=os.path.abspath(values[0]))
    elif event == "os.rename":
        watch.write("file", path=os.path.abspath(os.fsdecode(values[1])))


def tensors(values):
    """All tensors in nested tuples, lists and dictionaries."""
    import torch

    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return []
    return [tensor for value in values for tensor in tensors(value)]


def hash_of(tensor):
    tensor = tensor.detach().cpu().contiguous()
    raw = (
        ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()) if tensor.numel() else b""
    )
    return hashlib.blake2b(raw + str(tensor.shape).encode(), digest_size=6).hexdigest()


def projections(tensor):
    """Three numbers that change with any element, and the norm: enough to compare two tensors."""
    import torch

    flat = tensor.detach().flatten()[: 1 << 20].to(torch.float64)
    place = torch.arange(len(flat), dtype=torch.float64, device=flat.device) + 1
    return [float(flat @ torch.cos(place * factor)) for factor in (1.0, 1.3, 1.7)] + [float(flat.norm())]


def caller():
    """The line of the script, or of a library other than torch, that has called."""
    frame = sys._getframe(2)
    while frame and f"{os.sep}torch{os.sep}" in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "?"


def random_state():
    import torch

    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return "".join(hash_of(state) for state in states)


def watch_torch(watch):
    import torch
    import torch.distributed as dist
    from torch.optim.lr_scheduler import ReduceLROnPlateau
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.data import DataLoader, DistributedSampler

    module_call, backward, save = torch.nn.Module.__call__, torch.autograd.backward, torch.save
    loader_iter, sampler_iter = DataLoader.__iter__, DistributedSampler.__iter__

    def inner(module):
        is_ddp = isinstance(module, torch.nn.parallel.DistributedDataParallel)
        return (module.module if is_ddp else module), is_ddp

    def name_of(module):
        if id(module) not in watch.models:
            name = f"{len(watch.models)}.{type(module).__name__}"
            watch.models[id(module)] = name, weakref.ref(module)
        return watch.models[id(module)][0]

    def call(module, *args, **kwargs):
        """Stands for Module.__call__, and looks at the outermost call of a model that has weights."""
        outermost = watch.depth == 0 and not watch.is_backward and torch.is_grad_enabled()
        if (
            getattr(watch, "waiting", None) is module
        ):  # inside DDP's forward, after it has broadcast the buffers
            watch.waiting = None
            watch.seen["buffers"] = {name: hash_of(buffer) for name, buffer in module.named_buffers()}
        if not outermost or next(module.parameters(), None) is None or os.getpid() != watch.pid:
            return module_call(module, *args, **kwargs)
        changed_by_hand()
        model, is_ddp = inner(module)
        inputs = tensors((args, kwargs))
        if not inputs or any(tensor.requires_grad for tensor in inputs):  # what another model has made
            return module_call(module, *args, **kwargs)
        name = name_of(model)
        first = next((tensor for tensor in inputs if tensor.ndim), inputs[0])
        few = [size if size <= FEW else 0 for size in first.shape[:2]]
        samples = [[hash_of(first.select(dim, i)) for i in range(size)] for dim, size in enumerate(few)]
        norms = [m for m in model.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
        watch.seen = seen = {
            "model": name,
            "is_ddp": is_ddp,
            "syncs": getattr(module, "require_backward_grad_sync", True),
            "batch": "".join(hash_of(tensor) for tensor in inputs),
            "samples": samples,
            "shape": list(first.shape),
            "random": random_state(),
            "has_norm": any(m.training and type(m) is not torch.nn.SyncBatchNorm for m in norms),
        }
        if not watch.steps and name not in watch.fresh:
            watch.weights = weights()
            watch.write("weights", step=0, weights=watch.weights, values=values("weights"))
        watch.waiting = model if model.training and name not in watch.fresh else None
        watch.fresh.add(name)
        watch.depth += 1
        try:
            if watch.waiting is module:
                watch.waiting = None
                seen["buffers"] = {name: hash_of(buffer) for name, buffer in model.named_buffers()}
            outputs = module_call(module, *args, **kwargs)
        finally:
            watch.depth -= 1

        def is_used(gradient):  # the backward pass has come back to this call
            if not seen.get("is_written"):
                seen["is_written"] = True
                watch.write("forward", **seen, draws=random_state() != seen["random"])

        for tensor in tensors(outputs):
            if tensor.requires_grad:
                tensor.register_hook(is_used)
        return outputs

    def named_weights():
        for name, reference in watch.models.values():
            for weight, tensor in reference().named_parameters() if reference() else []:
                yield f"{name}.{weight}", tensor

    def weights():
        return {name: hash_of(tensor) for name, tensor in named_weights()}

    def values(what):
        found = {name: tensor if what == "weights" else tensor.grad for name, tensor in named_weights()}
        return {name: projections(tensor) for name, tensor in found.items() if tensor is not None}

    def changed_by_hand():
        """A script without an optimizer has changed its weights before its next forward pass or zero_grad."""
        if watch.is_due and not watch.has_optimizer and weights() != watch.weights:
            stepped(None)

    def zero(function):
        def call(owner, *args, **kwargs):
            changed_by_hand()
            watch.is_due = False
            watch.write("zero")
            return function(owner, *args, **kwargs)

        return call

    def stepped(optimizer, args=(), kwargs=None):
        if os.getpid() != watch.pid:
            return
        watch.has_optimizer = optimizer is not None
        watch.steps += 1
        watch.is_due = False
        watch.fresh.clear()
        watch.weights = weights()
        seen = {"step": watch.steps, "weights": watch.weights}
        if optimizer:
            seen["rates"] = [float(group.get("lr", 0)) for group in optimizer.param_groups]
        if watch.steps <= COMPARED_STEPS:
            seen |= {"values": values("weights"), "gradients": values("gradients")}
        watch.write("step", **seen)
        rank, step, mark = os.environ.get("PORT_KILL", "-1 0 -").split()
        if (int(rank), int(step)) == (watch.rank, watch.steps) and not os.path.exists(mark):
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if watch.steps == int(os.environ.get("PORT_STEPS", 0)):
            sys.stdout.flush()
            watch.write("end")
            os._exit(0)

    def backward_and_look(tensors_, *args, **kwargs):
        losses = [tensor.detach() for tensor in tensors(tensors_) if tensor.numel() == 1]
        watch.is_backward = True
        try:
            backward(tensors_, *args, **kwargs)
        finally:
            watch.is_backward = False
        watch.is_due = True
        watch.write("loss", loss=sum(float(loss) for loss in losses))

    def save_and_look(content, f, *args, **kwargs):
        if isinstance(f, str | os.PathLike):  # torch's own C++ writes it, which audit hooks do not see
            watch.write("file", path=os.path.abspath(f))
        return save(content, f, *args, **kwargs)

    def load(loader):
        watch.write("loader", length=len(loader.dataset) if hasattr(loader.dataset, "__len__") else 0)
        return loader_iter(loader)

    def sample(sampler):
        watch.write("sampler", shuffle=sampler.shuffle, epoch=sampler.epoch)
        return sampler_iter(sampler)

    def look_at_plateau(scheduler, metrics, *args, **kwargs):
        watch.write("plateau", metric=float(metrics), line=caller())
        return plateau_step(scheduler, metrics, *args, **kwargs)

    def collective(name, function):
        def call(*args, **kwargs):
            given = [*args, *kwargs.values()]
            found = [] if "object" in name or "to_all" in name else tensors(given)
            groups = [value for value in given if isinstance(value, dist.ProcessGroup)]
            if dist.is_initialized():
                ranks = (
                    dist.get_process_group_ranks(groups[0]) if groups else list(range(dist.get_world_size()))
                )
                what = f"{name} {list(found[0].shape)} {found[0].dtype}" if found else name
                what += "".join(f" {key} {kwargs[key]}" for key in ("src", "dst", "op") if key in kwargs)
                watch.write("collective", what=what, ranks=ranks, line=caller())
            return function(*args, **kwargs)

        return call

    plateau_step, ReduceLROnPlateau.step = ReduceLROnPlateau.step, look_at_plateau
    torch.nn.Module.__call__ = call
    torch.autograd.backward = backward_and_look
    torch.save = save_and_look
    for owner in (torch.nn.Module, torch.optim.Optimizer):
        owner.zero_grad = zero(owner.zero_grad)
    DataLoader.__iter__, DistributedSampler.__iter__ = load, sample
    register_optimizer_step_post_hook(stepped)
    for name in COLLECTIVES if dist.is_available() else ():
        setattr(dist, name, collective(name, getattr(dist, name)))


def make_exact():
    """float64, no dropout, and augmentation that depends on nothing but the number of the example."""
    import torch
    import torch.nn.functional as F
    from torch.utils.data import Subset
    from torch.utils.data._utils import fetch

    module_call, attention = torch.nn.Module.__call__, F.scaled_dot_product_attention
    map_fetch, autocast = fetch._MapDatasetFetcher.fetch, torch.amp.autocast_mode.autocast.__init__
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)

    def wide(value):
        if isinstance(value, torch.Tensor):
            return value.double() if value.is_floating_point() else value
        if isinstance(value, dict):
            return type(value)((key, wide(each)) for key, each in value.items())
        if type(value) in (list, tuple):
            return type(value)(wide(each) for each in value)
        return value

    def call(module, *args, **kwargs):
        for part in module.modules() if torch.is_grad_enabled() else ():
            if isinstance(getattr(part, "dropout", None), float):  # of an RNN, of attention
                part.dropout = 0.0
        return module_call(module, *wide(args), **wide(kwargs))

    class Fixed:
        """A data set whose random numbers are drawn anew, from a seed of its own, for each example."""

        def __init__(self, data):
            self.data = data

        def __getitem__(self, index):
            data, number = self.data, index
            while isinstance(data, Subset):
                data, number = data.dataset, data.indices[number]
            states = torch.get_rng_state(), random.getstate()
            seed = random.Random(str(number)).getrandbits(32)
            torch.manual_seed(seed)
            random.seed(seed)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(seed)
            try:
                return wide(self.data[index])
            finally:
                torch.set_rng_state(states[0])
                random.setstate(states[1])

    def fetch_fixed(fetcher, index):
        if not isinstance(fetcher.dataset, Fixed):
            fetcher.dataset = Fixed(fetcher.dataset)
        return wide(map_fetch(fetcher, index))

    def no_autocast(self, *args, **kwargs):
        autocast(self, *args, **kwargs | {"enabled": False})

    def no_dropout(values, *args, **kwargs):
        return values

    def attend(query, key, value, attn_mask=None, dropout_p=0.0, **kwargs):
        return attention(query, key, value, attn_mask, 0.0, **kwargs)

    torch.nn.Module.__call__ = call
    fetch._MapDatasetFetcher.fetch = fetch_fixed
    torch.amp.autocast_mode.autocast.__init__ = no_autocast
    F.scaled_dot_product_attention = attend
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"):
        setattr(F, name, no_dropout)
