"""One step of lesson 11's model in several ways: its collectives, their bytes, and what it keeps."""

import importlib
from collections import Counter

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


class Diary(TorchDispatchMode):
    """Notes the tensors of a step in their order, and by itself those that go into a collective."""

    def __init__(self):
        super().__init__()
        self.entries = []
        self.direction = "forward"

    def note(self, name, tensor, is_collective=False):
        entry = {"direction": self.direction, "name": name, "is_collective": is_collective}
        own = local(tensor)
        entry["shape"] = list(own.shape)
        entry["bytes"] = own.nbytes
        self.entries.append(entry)

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        if DTensor in types:
            return NotImplemented  # it turns into operators on this process's shard, which come here again
        space, name = operator.name().split("::")
        if "c10d" in space and name.startswith(("all", "reduce_")):
            tensor = arguments[0]
            if isinstance(tensor, list):
                tensor = tensor[0]
            self.note(name, tensor, is_collective=True)
        return operator(*arguments, **(options or {}))

    def collectives(self, direction):
        """In words: how many of each kind ran."""
        counts = Counter()
        for entry in self.entries:
            if entry["is_collective"] and entry["direction"] == direction:
                counts[entry["name"]] += 1
        words = [f"{count} {name}" for name, count in sorted(counts.items())]
        return ", ".join(words)

    def bytes_sent(self):
        return sum(entry["bytes"] for entry in self.entries if entry["is_collective"])


def watch(layer, name, diary):
    """Note the layer's input in the forward pass, and the gradient of its output in the backward pass."""

    def before_forward(layer, inputs):
        diary.note(name, inputs[0])

    def before_backward(gradient):
        diary.note(name, gradient)

    def after_forward(layer, inputs, output):
        output.register_hook(before_backward)  # runs when the output's gradient has been computed

    layer.register_forward_pre_hook(before_forward)
    layer.register_forward_hook(after_forward)


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


def take_step(way, model, images, labels):
    """Take a step of the model without the optimizer, and return the diary of it."""
    diary = Diary()
    for name, layer in model.blocks[0].named_modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.LayerNorm):
            watch(layer, name, diary)
    with diary:
        loss = cross_entropy(model(images), labels)
        diary.direction = "backward"
        loss.backward()
        if way == "data":
            for weight in model.parameters():
                dist.all_reduce(weight.grad)
    diary.loss = loss.item()
    return diary


def measure(way, hidden, batch):
    model = build(way, hidden)
    images, labels = workload.draw_digits(batch, seed=1)[:]
    diary = take_step(way, model, images, labels)
    return {
        "way": way,
        "hidden": hidden,
        "batch": batch,
        "loss": diary.loss,
        "diary": diary.entries,
        "forward": diary.collectives("forward"),
        "backward": diary.collectives("backward"),
        "sent": diary.bytes_sent(),
        "kept": count_kept(build(way, hidden), images, labels),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "optimizers": by_optimizer(model),
    }


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
