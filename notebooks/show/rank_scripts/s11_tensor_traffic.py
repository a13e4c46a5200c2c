"""One step of lesson 11's model in several ways: its collectives, their bytes, and what it keeps."""

import importlib
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW
from torch.utils._python_dispatch import TorchDispatchMode

import workload
from parts.transformer import ImageTransformer

lesson = importlib.import_module("11_tensor_parallel")
warnings.filterwarnings("ignore", "Full backward hook")  # of CommDebugMode: the images have no gradient


class Sent(TorchDispatchMode):
    """Adds up the bytes that go into collectives."""

    bytes = 0

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        if DTensor in types:
            return NotImplemented  # it turns into operators on this process's shard, which come here again
        space, name = operator.name().split("::")
        if "c10d" in space and name.startswith(("all", "reduce_")):
            tensor = arguments[0]
            if isinstance(tensor, list):
                tensor = tensor[0]
            self.bytes += tensor.nbytes
        return operator(*arguments, **(options or {}))


def build(way, hidden):
    """`way` is "data", "tensor", "sequence", or "unprepared" (the plan without its first line)."""
    workload.set_seed(0)
    model = ImageTransformer((1, 28, 28), hidden)
    if way == "data":
        return model
    plan = lesson.make_plan(way == "sequence")
    if way == "unprepared":
        del plan["blocks.*.attention"]
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(model, mesh, plan)


def measure(way, hidden, batch):
    model = build(way, hidden)
    images, labels = workload.draw_digits(batch, seed=1)[:]
    with CommDebugMode() as counted, Sent() as sent:
        loss = cross_entropy(model(images), labels)
        loss.backward()
        if way == "data":
            for weight in model.parameters():
                dist.all_reduce(weight.grad)
    return {
        "way": way,
        "hidden": hidden,
        "batch": batch,
        "loss": loss.item(),
        "sent": sent.bytes,
        "kept": count_kept(model, images, labels),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "counts": by_module(counted) | by_optimizer(model),
    }


def by_module(counted):
    """How often each kind of collective ran in each module, in its forward and in its backward pass."""
    counts = {}
    for module, passes in counted.comm_module_counts.items():
        named = {}
        for which, kinds in passes.items():
            named[which] = {kind.__name__: number for kind, number in kinds.items()}
        counts[module.removeprefix("ImageTransformer.")] = named
    return counts


def by_optimizer(model):
    """The collectives of a step of each optimizer."""
    counts = {}
    for kind in (SGD, AdamW):
        with CommDebugMode() as counted:
            kind(model.parameters(), lr=0).step()
        counts[kind.__name__] = counted.get_total_counts()
    return counts


def count_kept(model, images, labels):
    """The bytes that a forward pass keeps for the backward pass, without the weights."""
    kept = {}

    def keep(tensor):
        own = local(tensor)
        kept[address(own)] = own  # not only its size: if it were freed, another tensor could get its address
        return tensor

    def give_back(tensor):
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, give_back):
        cross_entropy(model(images), labels)
    for weight in model.parameters():
        kept.pop(address(local(weight)), None)
    return sum(own.nbytes for own in kept.values())


def local(tensor):
    if isinstance(tensor, DTensor):
        return tensor.to_local()
    return tensor


def address(tensor):
    """Where its numbers are: a tensor and a view of it have the same address."""
    return tensor.untyped_storage().data_ptr()
