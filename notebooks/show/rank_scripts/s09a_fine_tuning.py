"""Somebody else's weights on several processes: who reads the file, who holds what, and what trains.

Notebook 09a shows these functions and starts this script once for each rank.
"""

import gc
import hashlib
import json
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from sockets import count_bytes
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import workload

try:
    from safetensors import safe_open
    from safetensors.torch import load_file
except ModuleNotFoundError:
    workload.refuse("this notebook needs safetensors: pip install -r lessons/parts/fine_tuning.txt")

FEATURES = 64 * 3 * 3


class Classifier(nn.Module):
    """A body that turns an image into 576 numbers, and a head that gives each answer a score."""

    def __init__(self, answers):
        super().__init__()
        layers, channels = [workload.Normalize()], 1
        for width in (16, 32, 64):
            layers.append(nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False))
            layers += [nn.BatchNorm2d(width), nn.GELU(), nn.AvgPool2d(2)]
            channels = width
        self.body = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Linear(FEATURES, answers)

    def forward(self, images):
        return self.head(self.body(images))


# ---- the file


def read(path, answers=2):
    """All weights of our model, under our names: the body from the file, a new head."""
    torch.manual_seed(0)
    head = nn.Linear(FEATURES, answers).state_dict()
    weights = {f"head.{name}": value for name, value in head.items()}
    for name, value in load_file(path).items():
        if name.startswith("encoder."):  # not `classifier`, which has other answers
            weights[name.replace("encoder.", "body.", 1)] = value
    return weights


def load_with_ddp(path, freeze):
    """Rank 0 has a path, the other ranks have None."""
    torch.manual_seed(dist.get_rank())  # each process begins with different weights
    model = Classifier(answers=2)
    if path:
        model.load_state_dict(read(path))  # strict: a wrong name is an error
    freeze(model)
    return DistributedDataParallel(model)  # sends rank 0's weights to all


def load_with_fsdp(path, freeze):
    with torch.device("meta"):  # names and shapes, no memory
        model = Classifier(answers=2)
    freeze(model)
    shard(model)
    model.to_empty(device="cpu")  # memory for the shards only
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, read(path) if path else {}, options=options)
    return model


# ---- what trains


def freeze_nothing(model):
    """All layers train."""


def freeze_body(model):
    model.body.requires_grad_(False)


def train(model, sets, epochs, lr, eval_body, batch_size=24):
    """A row for each epoch with loss and accuracy, and the bytes that a step of the last epoch sent."""
    train_set, test_set = sets
    world_size, rank = dist.get_world_size(), dist.get_rank()
    sampler = DistributedSampler(train_set, seed=0, drop_last=True)
    size = batch_size // world_size
    loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr)
    rows = []
    for epoch in range(1, epochs + 1):
        sampler.set_epoch(epoch)
        model.train()
        if eval_body:
            inner.body.eval()  # else its batch norm would update the running statistics
        loss_sum, before = torch.zeros(()), count_bytes()
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach() / world_size
        sent = (count_bytes()[0] - before[0]) // len(loader) if before else None
        dist.all_reduce(loss_sum)
        model.eval()
        images, labels = test_set[list(range(rank, len(test_set), world_size))]
        with torch.no_grad():
            correct = (model(images).argmax(dim=1) == labels).sum()
        dist.all_reduce(correct)
        rows.append({"loss": loss_sum.item() / len(loader), "accuracy": correct.item() / len(test_set)})
    known = sum(parameter.numel() for parameter in trained)
    return {"rows": rows, "sent": sent, "optimizer": bytes_of_state(optimizer), "known": known}


def bytes_of_state(optimizer):
    """What this process holds of the optimizer's state, without the counts of steps."""
    size = 0
    for state_of_parameter in optimizer.state.values():
        for value in state_of_parameter.values():
            if value.dim() > 0:
                size += local(value).nbytes
    return size


def local(value):
    if hasattr(value, "to_local"):
        return value.to_local()
    return value


def full(model):
    """Every weight and buffer as a full tensor, under our names."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    found = inner.state_dict()
    for name, value in found.items():
        if hasattr(value, "full_tensor"):
            found[name] = value.full_tensor()
    return found


def fingerprints(model):
    """A hash of each weight and buffer: equal on two processes if the tensors are bit-identical."""
    return {name: fingerprint(value) for name, value in full(model).items()}


def fingerprint(value):
    return hashlib.sha256(value.detach().contiguous().numpy().tobytes()).hexdigest()[:16]


def run(path, sets, how, frozen=False, eval_body=False, epochs=12, lr=0.003):
    freeze = freeze_body if frozen else freeze_nothing
    model = LOADS[how](path, freeze)
    start = fingerprints(model)
    found = train(model, sets, epochs, lr, eval_body)
    return found | {"start": start, "end": fingerprints(model)}


def from_scratch(path, freeze):
    """Without the file. DDP sends the weights of rank 0 to all processes."""
    return load_with_ddp(None, freeze)


def frozen_too_late(path, sets):
    """The error if the body is frozen after DDP has noted which parameters have gradients."""
    model = load_with_ddp(path, freeze_nothing)
    freeze_body(model.module)
    images, labels = sets[0][list(range(dist.get_rank(), 24, dist.get_world_size()))]
    cross_entropy(model(images), labels).backward()
    found = {"gradient": fingerprint(model.module.head.weight.grad), "error": None}
    try:
        model(images)
    except RuntimeError as error:
        found["error"] = str(error).partition(". ")[0]
    return found


LOADS = {"ddp": load_with_ddp, "fsdp": load_with_fsdp, "scratch": from_scratch}


# ---- a model that is large enough to measure who holds it: 134 MB in eight matrices


def large_model():
    return nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(8)])


def shard(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def each_reads(path):
    model = large_model()
    model.load_state_dict(load_file(path))
    shard(model)
    return model


def empty_shards():
    with torch.device("meta"):
        model = large_model()
    shard(model)
    return model.to_empty(device="cpu")


def rank_0_reads(path):
    model = empty_shards()
    weights = load_file(path) if path else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=options)
    return model


@torch.no_grad()
def tensor_by_tensor(path):
    model = empty_shards()
    for name, parameter in model.named_parameters():
        value = torch.empty(parameter.shape)  # gives only the shape on the other ranks
        if path:
            # Opened for each tensor: until it is closed, what was read counts as memory.
            with safe_open(path, "pt") as file:
                value = file.get_tensor(name)
        mine = distribute_tensor(value, parameter.device_mesh, parameter.placements)
        parameter.copy_(mine)
    return model


WAYS = {"each reads": each_reads, "rank 0 reads": rank_0_reads, "tensor by tensor": tensor_by_tensor}


def measure(path, way):
    """The peak memory of a way to load, in bytes, beyond what the process has anyway."""
    warm_up = nn.Sequential(nn.Linear(2, 2))
    shard(warm_up)
    warm_up(torch.ones(1, 2)).sum().backward()
    gc.collect()  # the last model has reference cycles
    if os.path.exists("/proc/self/clear_refs"):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # resets the peak that Linux has counted
    before = resident("VmRSS")
    model = WAYS[way](path)
    peak = resident("VmHWM")
    return {"peak": peak and peak - before, "end": fingerprints(model)}


def resident(name):
    """VmRSS: the memory of this process now; VmHWM: its peak. None where there is no /proc."""
    if not os.path.exists("/proc/self/status"):
        return None
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith(name))
    return 1024 * int(line.split()[1])


# ----


def odd_or_even(size, seed):
    digits = workload.draw_digits(size, seed)
    return workload.Images(digits.images, digits.labels % 2)


def main():
    """Run what RUNS lists. Each rank has its own folder, as if it were a machine with its own disk."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store, limit = f"file://{os.environ['STORE']}", timedelta(seconds=100)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size, timeout=limit)
    sets = odd_or_even(96, seed=7), odd_or_even(600, seed=2)
    found = []
    for asked in json.loads(os.environ["RUNS"]):
        path = Path(asked.pop("disks")) / str(rank) / "weights.safetensors"
        path = path if path.exists() else None
        if "way" in asked:
            said = measure(path, **asked)
        elif asked["how"] == "late":
            said = frozen_too_late(path, sets)
        else:
            said = run(path, sets, **asked)
        found.append({"has the file": path is not None} | said)
    with open(os.environ["RESULT"], "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
