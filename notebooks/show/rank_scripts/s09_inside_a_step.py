"""Build lesson 09's sharded model with any options, and look into a step of it."""

import importlib
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

import workload

NAMES = {1: "conv 1", 3: "conv 2", 7: "linear 1", 9: "linear 2"}
DEFAULTS = {"precision": "fp32", "checkpoint_activations": False, "offload": False, "no_reshard": False}


def build(options):
    """The lesson's model, sharded with these options of the lesson. With None, only the root is sharded."""
    model = workload.ConvNet((1, 28, 28))
    if options is None:
        return fully_shard(model)
    options = SimpleNamespace(**DEFAULTS | options, world_size=dist.get_world_size())
    lesson = importlib.import_module("09_fsdp")  # an import statement cannot name a file that begins with 09
    lesson.shard(model, options, torch.device("cpu"))
    return model


def count(model, step, images):
    """The collectives of a step, and the bytes kept for backward in tensors with a row per image."""
    kept = []

    def keep(tensor):
        if tensor.dim() > 0 and len(tensor) == images:
            kept.append(tensor.nbytes)
        return tensor

    def give_back(tensor):
        return tensor

    with CommDebugMode() as mode, torch.autograd.graph.saved_tensors_hooks(keep, give_back):
        step(model)

    found = {"all-gathers": 0, "reduce-scatters": 0, "kept": sum(kept)}
    for name, number in mode.get_comm_counts().items():
        if "allgather" in str(name):
            found["all-gathers"] += number
        if "reduce_scatter" in str(name):
            found["reduce-scatters"] += number
    return found


def watch(model, step):
    """At every place of a step, the bytes of weights that are whole on this process."""
    places = []

    def note(place):
        places.append((place, bytes_of_whole(model)))

    for number, name in NAMES.items():
        watch_layer(model[number], name, note)
    note("before")
    step(model)
    note("after")
    return places


def bytes_of_whole(model):
    """Between its gathering and its resharding, a parameter is an ordinary tensor, not a DTensor."""
    size = 0
    for weight in model.parameters():
        if not isinstance(weight, DTensor):
            size += weight.nbytes
    return size


def watch_layer(layer, name, note):
    """Call `note` when the layer begins its forward pass and when it begins its backward pass."""

    def before_forward(layer, inputs):
        note(f"forward {name}")

    def before_backward(gradient):
        note(f"backward {name}")

    def after_forward(layer, inputs, output):
        output.register_hook(before_backward)  # runs when the output's gradient has been computed

    layer.register_forward_pre_hook(before_forward)
    layer.register_forward_hook(after_forward)
