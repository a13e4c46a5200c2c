"""Inside each process that check.py starts: writes down its examples, losses, weights, collectives and files.

It writes rows into files in the folder PORT_SEEN, and draws no random numbers.
"""

import atexit
import ctypes
import faulthandler
import hashlib
import importlib.util
import json
import logging
import os
import random
import signal
import sys
import time
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

COLLECTIVES = """all_reduce broadcast reduce all_gather all_gather_into_tensor gather scatter reduce_scatter
reduce_scatter_tensor all_to_all all_to_all_single barrier monitored_barrier all_gather_object
broadcast_object_list gather_object scatter_object_list new_group"""
SAMPLERS = RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler
PLAIN_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
COMPARED_STEPS = 12  # the gradients of these first steps are written down
LARGEST_BATCH = 4096  # the examples of a larger batch are not looked at one by one


def begin():
    is_exact = "PORT_EXACT" in os.environ
    if is_exact:
        exact().begin()
    pid = os.environ.setdefault("PORT_PID", str(os.getpid()))
    watch = Watch(is_rank=pid == str(os.getpid()))
    if not is_exact:
        replace(_MapDatasetFetcher, "fetch", watch.look_at_fetch)
    if watch.is_rank:  # and not a process that a rank has started, such as a worker of a loader
        watch.begin()
    return watch


def exact():
    """The module exact.py, which lies beside this file and is not on the script's path."""
    if "port_exact" not in sys.modules:
        spec = importlib.util.spec_from_file_location("port_exact", Path(__file__).with_name("exact.py"))
        sys.modules["port_exact"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["port_exact"])
    return sys.modules["port_exact"]


def replace(owner, name, wrapper):
    """Replace a function by `wrapper`, which gets the function as its first argument and calls it."""
    function = getattr(owner, name)

    def call(*args, **kwargs):
        return wrapper(function, *args, **kwargs)

    setattr(owner, name, call)


class Watch:
    """What this process has seen so far, and the functions that PyTorch's functions are replaced by."""

    def __init__(self, is_rank):
        self.is_rank = is_rank
        self.pid = os.getpid()
        self.rank = int(os.environ.get("RANK", 0))
        self.files = {}  # by process, because a worker of a loader may be a fork
        self.models = {}  # id of a model: its name and a weak reference, so that DDP can end before its group
        self.trained = set()  # the names of those that a backward pass has come back to
        self.outputs = {}  # what each model has returned last
        self.steps = 0
        self.loaders = 0
        self.depth = 0  # of nested calls of modules
        self.last_weights = {}
        self.called = set()  # the models that were called after the last step
        self.is_backward = False
        self.is_due = False  # a backward pass has come after the last step
        self.has_optimizer = False

    def begin(self):
        self.write("start", rank=self.rank, time=time.time())
        atexit.register(self.look_at_end)
        stack = open(self.path("stack"), "w")  # noqa: SIM115
        crash = open(self.path("crash"), "w")  # noqa: SIM115
        faulthandler.register(signal.SIGURG, file=stack, all_threads=True)
        faulthandler.enable(file=crash)
        sys.addaudithook(self.look_at_file)
        register_optimizer_step_post_hook(self.look_at_step)
        replace(nn.Module, "__call__", self.look_at_call)
        replace(torch.autograd, "backward", self.look_at_backward)
        replace(torch, "save", self.look_at_save)
        replace(nn.utils, "clip_grad_norm_", self.look_at_clip)
        replace(ReduceLROnPlateau, "step", self.look_at_plateau)
        replace(torch.optim.LBFGS, "step", self.look_at_closure)
        replace(logging.StreamHandler, "emit", self.look_at_log)
        replace(DataLoader, "__iter__", self.look_at_loader)
        replace(_BaseDataLoaderIter, "__next__", self.look_at_batch)
        for sampler in SAMPLERS:
            replace(sampler, "__iter__", self.look_at_sampler)
        for owner in (nn.Module, Optimizer):
            replace(owner, "zero_grad", self.look_at_zero)
        for name in COLLECTIVES.split():
            replace(dist, name, self.look_at_collective)

    def path(self, ending):
        return Path(os.environ["PORT_SEEN"], f"{self.rank}.{os.getpid()}.{ending}")

    def write(self, kind, **values):
        if self.is_rank and os.getpid() == self.pid:
            self.write_line("seen", {"kind": kind, **values})

    def write_line(self, ending, row):
        key = ending, os.getpid()
        if key not in self.files:
            self.files[key] = os.open(self.path(ending), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self.files[key], (json.dumps(row) + "\n").encode())

    # ---- the model

    def trained_models(self):
        """Before the first step all models that were called, then those that are trained."""
        models = []
        for name, reference in self.models.values():
            if not self.steps or name in self.trained:
                models.append((name, reference()))
        return models

    def weights(self):
        return named(self.trained_models(), nn.Module.named_parameters)

    def buffers(self):
        return named(self.trained_models(), nn.Module.named_buffers)

    def look_at_call(self, function, module, *args, **kwargs):
        """Look at the outermost call of a module with weights, which is the model."""
        inputs = []
        if not self.depth and torch.is_grad_enabled():
            inputs = tensors_of((args, kwargs))
        if not self.is_call_of_model(module, inputs):
            return function(module, *args, **kwargs)

        self.look_for_change_by_hand()
        is_ddp = isinstance(module, DistributedDataParallel)
        model = module.module if is_ddp else module
        seen = self.describe(model, inputs)
        seen["is_ddp"] = is_ddp
        seen["syncs"] = getattr(module, "require_backward_grad_sync", True)
        self.write("call", model=seen["model"], training=model.training, is_ddp=is_ddp)
        self.depth += 1
        try:
            outputs = function(module, *args, **kwargs)
        finally:
            self.depth -= 1

        def is_used(gradient):  # the backward pass has come back to this call: it was for training
            self.trained.add(seen["model"])
            if "draws" not in seen:
                seen["draws"] = random_state() != seen["random"]
                self.write("forward", **seen)

        tensors = tensors_of(outputs)
        self.outputs[seen["model"]] = [tensor.detach() for tensor in tensors]
        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(is_used)
        return outputs

    def is_call_of_model(self, module, inputs):
        if not inputs or next(module.parameters(), None) is None:
            return False
        is_nested = self.is_backward or any(tensor.requires_grad for tensor in inputs)
        return not is_nested and os.getpid() == self.pid

    def name_of(self, model):
        """The class of a model and a number. A model is named when it is called for the first time."""
        if id(model) not in self.models:
            kind = type(model).__name__
            same = sum(name.startswith(f"{kind} ") for name, _ in self.models.values())
            self.models[id(model)] = f"{kind} {same + 1}", weakref.ref(model)
            if "PORT_NUDGE" in os.environ:
                exact().nudge(model)
        return self.models[id(model)][0]

    def describe(self, model, inputs):
        """What is known of a call of the model before it is made."""
        name = self.name_of(model)
        if not self.steps and name not in self.called:
            self.last_weights = hashes(self.weights())
            self.write("weights", step=0, weights=self.last_weights)
        self.called.add(name)

        batch = ""  # hashes of what the script gives to the model
        for tensor in inputs:
            if not self.is_output(tensor):
                batch += hash_of(tensor)
        return {
            "model": name,
            "trains": any(weight.requires_grad for weight in model.parameters()),
            "batch": batch,
            "examples": hashes_of_examples(inputs[0]),
            "shape": list(inputs[0].shape),
            "is_derived": self.is_output(inputs[0]),
            "carries": any(map(self.is_output, inputs[1:])),
            "random": random_state(),
            "has_norm": any(type(part) in PLAIN_NORMS and part.training for part in model.modules()),
        }

    def is_output(self, tensor):
        """Whether a model has returned this tensor: the fakes of a GAN, the hidden state of an RNN."""
        place = tensor.untyped_storage().data_ptr()
        places = []
        for outputs in self.outputs.values():
            places += [output.untyped_storage().data_ptr() for output in outputs]
        return place != 0 and place in places

    def look_at_backward(self, function, tensors, *args, **kwargs):
        self.is_backward = True
        try:
            function(tensors, *args, **kwargs)
        finally:
            self.is_backward = False
        self.is_due = True
        loss = 0
        for tensor in tensors_of(tensors):
            if tensor.numel() == 1:
                loss += float(tensor.detach())
        self.write("loss", loss=loss)

    def look_for_change_by_hand(self):
        """A script without an optimizer changes its weights between a backward pass and what comes next."""
        if self.is_due and not self.has_optimizer and hashes(self.weights()) != self.last_weights:
            self.look_at_step(None)

    def look_at_end(self):
        if os.getpid() == self.pid:
            self.look_for_change_by_hand()
        self.write("end")

    def look_at_zero(self, function, owner, *args, **kwargs):
        self.look_for_change_by_hand()
        self.is_due = False
        self.write("zero")
        return function(owner, *args, **kwargs)

    def look_at_clip(self, function, parameters, *args, **kwargs):
        norm = function(parameters, *args, **kwargs)
        self.write("clip", norm=float(norm), line=line_of_caller())
        return norm

    def look_at_step(self, optimizer, args=(), kwargs=None):
        self.has_optimizer = optimizer is not None
        self.is_due = False
        self.steps += 1
        self.called.clear()
        weights = self.weights()
        gradients = {}
        for name, weight in weights.items():
            if weight.grad is not None:
                gradients[name] = weight.grad
        self.last_weights = hashes(weights)
        seen = {"step": self.steps, "weights": self.last_weights, "buffers": hashes(self.buffers())}
        seen["gradient"] = "".join(map(hash_of, gradients.values()))
        if optimizer:
            seen["rates"] = [float(group.get("lr", 0)) for group in optimizer.param_groups]
            seen["settings"] = settings_of(optimizer)
        if self.steps <= COMPARED_STEPS:
            seen["values"] = {name: numbers_of(weight) for name, weight in weights.items()}
            seen["gradients"] = {name: numbers_of(gradient) for name, gradient in gradients.items()}
        self.write("step", **seen)
        self.end_if_asked()

    def end_if_asked(self):
        rank, step, mark = os.environ.get("PORT_KILL", "-1 0 -").split(" ", 2)
        if (int(rank), int(step)) == (self.rank, self.steps) and not os.path.exists(mark):
            Path(mark).touch()
            os.kill(self.pid, signal.SIGKILL)
        if self.steps == int(os.environ.get("PORT_STEPS", 0)):
            sys.stdout.flush()
            os._exit(0)

    def look_at_closure(self, function, optimizer, closure):
        def noted_closure():
            loss = closure()
            self.write("closure", loss=float(loss))
            return loss

        return function(optimizer, noted_closure)

    def look_at_plateau(self, function, scheduler, metrics, *args, **kwargs):
        self.write("plateau", metric=float(metrics), line=line_of_caller())
        return function(scheduler, metrics, *args, **kwargs)

    # ---- the data

    def look_at_loader(self, function, loader):
        self.loaders += 1
        self.write("loader", number=self.loaders)
        batches = function(loader)
        batches.port_number = self.loaders
        return batches

    def look_at_batch(self, function, batches):
        batch = function(batches)
        if tensors := tensors_of(batch):
            found = hashes_of_examples(tensors[0])
            rows = found[0] if found else []  # none if the tensor is a single number
            self.write("batch", number=getattr(batches, "port_number", 0), examples=rows)
        return batch

    def look_at_sampler(self, function, sampler):
        is_shuffled = getattr(sampler, "shuffle", type(sampler) is not SequentialSampler)
        self.write("sampler", shuffle=is_shuffled, epoch=getattr(sampler, "epoch", None))
        return function(sampler)

    def look_at_fetch(self, function, fetcher, index):
        """Where random numbers are drawn for examples, here or in a worker of a loader."""
        before = random_states()
        examples = function(fetcher, index)
        after = random_states()
        drawn = [state for state in before if state not in after]
        if drawn:
            self.write_line("fetch", {"index": hash_of_text(str(index)), "drawn": drawn})
        return examples

    # ---- what leaves the process

    def look_at_file(self, event, values):
        if event == "open" and isinstance(values[0], str) and values[2] & (os.O_WRONLY | os.O_RDWR):
            self.write("file", path=os.path.abspath(values[0]))
        elif event == "os.rename":
            self.write("file", path=os.path.abspath(os.fsdecode(values[1])))

    def look_at_save(self, function, content, f, *args, **kwargs):
        if isinstance(f, str | os.PathLike):  # torch opens it in C++, which audit hooks do not see
            self.write("file", path=os.path.abspath(f), has_prefix=has_prefix(content))
        return function(content, f, *args, **kwargs)

    def look_at_log(self, function, handler, record):
        if not isinstance(handler, logging.FileHandler):
            self.write("log", text=record.getMessage(), path=os.path.abspath(record.pathname))
        return function(handler, record)

    def look_at_collective(self, function, *args, **kwargs):
        if dist.is_initialized():
            given = [*args, *kwargs.values()]
            group = next((value for value in given if isinstance(value, dist.ProcessGroup)), None)
            what = name = function.__name__
            tensors = []
            if "object" not in name and "to_all" not in name:  # their shapes may differ from rank to rank
                tensors = tensors_of(given)
            if tensors:
                what = f"{name} {list(tensors[0].shape)} {tensors[0].dtype}"
            for key in ("src", "dst", "op"):
                if key in kwargs:
                    what += f" {key}={kwargs[key]}"
            ranks = dist.get_process_group_ranks(group)
            self.write("collective", what=what, ranks=ranks, line=line_of_caller())
        return function(*args, **kwargs)


def has_prefix(content):
    """Whether names in a file begin with "module.", because DDP's own names were saved."""
    if not isinstance(content, dict):
        return False
    return any(str(name).startswith("module.") or has_prefix(value) for name, value in content.items())


def named(models, parts_of):
    """The parameters, or the buffers, of the models that are still there."""
    found = {}
    for name, model in models:
        if model is not None:
            found |= {f"{name}.{key}": tensor for key, tensor in parts_of(model)}
    return found


def settings_of(optimizer):
    """The class of the optimizer and its numbers, such as the weight decay, without the learning rate."""
    settings = {"optimizer": type(optimizer).__name__}
    for key, value in optimizer.param_groups[0].items():
        if key not in ("lr", "params", "initial_lr") and isinstance(value, int | float | tuple):
            settings[key] = value
    return settings


def tensors_of(values):
    """All tensors in nested tuples, lists and dictionaries."""
    if isinstance(values, torch.Tensor):
        return [values if values.layout == torch.strided else values.to_dense()]  # sparse: it has no bytes
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return []
    found = []
    for value in values:
        found += tensors_of(value)
    return found


def hash_of_text(text):
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def hash_of(tensor):
    tensor = tensor.detach().cpu().contiguous()
    size = tensor.numel() * tensor.element_size()
    content = ctypes.string_at(tensor.data_ptr(), size) if size else b""
    return hashlib.blake2b(content + str(tensor.shape).encode(), digest_size=6).hexdigest()


def hashes(tensors):
    return {name: hash_of(tensor) for name, tensor in tensors.items()}


def hashes_of_examples(batch):
    """Hashes of the rows and of the columns, of about four digits: the next ones may depend on the batch."""
    if batch.is_floating_point():
        batch = (batch.detach().float().view(torch.int32) + 512) >> 10
    found = []
    for dim, size in enumerate(batch.shape[:2]):
        found.append([])
        if size <= LARGEST_BATCH:
            for place in range(size):
                found[dim].append(hash_of(batch.select(dim, place)))
    return found


def numbers_of(tensor):
    """Three sums that change with any element, and the norm: enough to compare tensors of two runs."""
    flat = tensor.detach().flatten()[: 1 << 20].double()
    place = torch.arange(1, len(flat) + 1, dtype=torch.float64, device=flat.device)
    numbers = []
    for factor in (1.0, 1.3, 1.7):
        numbers.append(float(flat @ torch.cos(place * factor)))
    numbers.append(float(flat.norm()))
    return numbers


def random_state():
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return "".join(map(hash_of, states))


def random_states():
    """Where the random numbers of PyTorch, Python and NumPy are."""
    states = [f"torch {random_state()}", f"random {hash_of_text(str(random.getstate()))}"]
    if "numpy" in sys.modules:
        _, keys, place, *_ = sys.modules["numpy"].random.get_state()
        states.append(f"numpy {hash_of_text(f'{keys.tobytes()} {place}')}")
    return states


def line_of_caller():
    """The line outside torch from which the function that was replaced is called."""
    frame = sys._getframe(3)
    while frame.f_back and f"{os.sep}torch{os.sep}" in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
