"""A DataParallel for CPU threads, written by hand, and a way to time the parts of one of its steps."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from show.pictures import BLUE, GREEN, GREY, ORANGE, PINK, SKY, picture, timeline

COLOURS = {
    "scatter": SKY,
    "replicate": ORANGE,
    "forward": BLUE,
    "gather, loss": GREEN,
    "backward": PINK,
    "update": GREY,
}


def scatter(images, devices):
    return images.chunk(len(devices))


def replicate(model, devices):
    copies = [copy_of(model, first=False) for _ in devices[1:]]
    return [copy_of(model, first=True), *copies]


def copy_of(module, first):
    """A replica. Its tensors are computed from the model's parameters, so backward() reaches the model. As in
    PyTorch, the first replica is no copy: it shares the model's memory."""
    replica = copy.copy(module)
    replica._parameters = {}
    replica._buffers = {}
    replica._modules = {}
    for name, tensor in module.named_parameters(recurse=False):
        setattr(replica, name, tensor.view_as(tensor) if first else tensor.clone())
    for name, tensor in module.named_buffers(recurse=False):
        replica._buffers[name] = tensor if first else tensor.clone()
    for name, child in module.named_children():
        replica._modules[name] = copy_of(child, first)
    return replica


def parallel_apply(replicas, parts, devices):
    gradients_wanted = torch.is_grad_enabled()

    def forward(replica, part):
        torch.set_grad_enabled(gradients_wanted)  # every thread has its own switch
        return replica(part)

    with ThreadPoolExecutor(len(replicas)) as threads:
        return list(threads.map(forward, replicas, parts))


def gather(outputs, device):
    return torch.cat(outputs).to(device)


class DataParallel(nn.Module):
    def __init__(self, module, devices):
        super().__init__()
        self.module = module
        self.devices = devices

    def forward(self, images):
        parts = scatter(images, self.devices)
        devices = self.devices[: len(parts)]
        replicas = replicate(self.module, devices)
        outputs = parallel_apply(replicas, parts, devices)
        return gather(outputs, self.devices[0])


# ---- the parts of a step, timed -----------------------------------------------------------------


def now(*devices):
    """The time at which these devices have finished their queues."""
    for device in devices:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
    return perf_counter()


def watch(model, replicas, bars, threads):
    """Record when each replica's forward pass begins and ends, and which thread runs its backward pass."""
    begun = {}

    def begin(replica, inputs):
        begun[replica] = now(inputs[0].device)

    def end(replica, inputs, outputs):
        number = replicas.index(replica)
        bars[f"replica {number}"].append((begun[replica], now(outputs.device), "forward"))
        weight = replica[1].weight
        weight.register_hook(lambda gradient: threads.update({number: threading.current_thread()}))

    return model.register_forward_pre_hook(begin), model.register_forward_hook(end)


def take_apart(parallel, devices, model, optimizer, images, labels):
    """One step with the functions of `parallel`: this module, or torch.nn.parallel. Returns the bars of the
    timeline, the replicas, and the thread that ran each replica's backward pass."""
    bars = {"main thread": []}
    for number in range(len(devices)):
        bars[f"replica {number}"] = []
    replicas = []
    threads = {}
    clock = now(*devices)
    hooks = watch(model, replicas, bars, threads)

    def done(part):
        nonlocal clock
        since = clock
        clock = now(*devices)
        bars["main thread"].append((since, clock, part))

    parts = parallel.scatter(images, devices)
    done("scatter")
    replicas += parallel.replicate(model, devices)
    done("replicate")
    outputs = parallel.parallel_apply(replicas, parts, devices=devices)
    done("forward")
    loss = cross_entropy(parallel.gather(outputs, devices[0]), labels.to(devices[0]))
    done("gather, loss")
    optimizer.zero_grad()
    loss.backward()
    done("backward")
    optimizer.step()
    done("update")
    for hook in hooks:
        hook.remove()
    return bars, replicas, threads


def length(bars):
    return bars["main thread"][-1][1] - bars["main thread"][0][0]


def draw_step(bars):
    """A row for each thread. The main thread only waits during forward, so its row leaves forward out."""
    start = bars["main thread"][0][0]
    rows = {}
    for name, found in bars.items():
        rows[name] = []
        for begin, end, part in found:
            if (name, part) != ("main thread", "forward"):
                rows[name].append((1000 * (begin - start), 1000 * (end - start), part))
    _, axes = plt.subplots(figsize=(4.4, 1.6 + 0.4 * len(rows)))
    timeline(axes, rows, COLOURS, "milliseconds since the step began")
    handles = axes.get_legend().legend_handles
    names = [text.get_text() for text in axes.get_legend().texts]
    axes.get_legend().remove()
    axes.legend(handles, names, loc="lower left", bbox_to_anchor=(-0.2, 1.0), ncols=3)
    said = []
    for begin, end, part in bars["main thread"]:
        said.append(f"{part} {1000 * (end - begin):.1f} ms")
    picture(
        f"One step of {1000 * length(bars):.1f} ms: {', '.join(said)}. "
        "Several threads have work only during forward."
    )
