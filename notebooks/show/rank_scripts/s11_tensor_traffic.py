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
        if any(kind is DTensor for kind in types):
            return NotImplemented  # it turns into operators on this process's shard, which come here again
        space, name = operator.name().split("::")
        if "c10d" in space and name.startswith(("all", "reduce_")):
            tensor = arguments[0][0] if isinstance(arguments[0], list) else arguments[0]
            self.bytes += tensor.nbytes
        return operator(*arguments, **(options or {}))


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def count_kept(model, compute):
    """Return the bytes that `compute` keeps for the backward pass, without the weights."""
    weights = {local(value).untyped_storage().data_ptr() for value in model.parameters()}
    kept = {}

    def keep(tensor):
        own = local(tensor)
        kept[own.untyped_storage().data_ptr()] = own
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute()
    return sum(own.nbytes for place, own in kept.items() if place not in weights)


def measure(way, hidden, batch):
    """`way` is "data", "tensor", "sequence", or "unprepared" (the plan without its first line)."""
    workload.set_seed(0)
    model = ImageTransformer((1, 28, 28), hidden)
    images, labels = workload.draw_digits(batch, seed=1)[:]
    if way != "data":
        plan = lesson.make_plan(way == "sequence")
        if way == "unprepared":
            del plan["blocks.*.attention"]
        model = parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    with CommDebugMode() as mode, Sent() as sent:
        loss = cross_entropy(model(images), labels)
        loss.backward()
        if way == "data":
            for value in model.parameters():
                dist.all_reduce(value.grad)
    kept = count_kept(model, lambda: cross_entropy(model(images), labels))
    parameters, counts = sum(value.numel() for value in model.parameters()), {}
    for kind in (SGD, AdamW):
        with CommDebugMode() as step:
            kind(model.parameters(), lr=0).step()
        counts[kind.__name__] = step.get_total_counts()
    for module, parts in mode.comm_module_counts.items():
        named = {part: {kind.__name__: kinds[kind] for kind in kinds} for part, kinds in parts.items()}
        counts[module.removeprefix("ImageTransformer.")] = named
    found = {"loss": loss.item(), "sent": sent.bytes, "kept": kept, "parameters": parameters}
    return found | {"way": way, "hidden": hidden, "batch": batch, "counts": counts}
