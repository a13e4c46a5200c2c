"""Lesson 11, grown from lesson 04: the images stay whole, and every weight matrix is cut.

    torchrun --standalone --nproc-per-node 2 lessons/11_tensor_parallel.py

You will see which collectives one step needs, and then the losses of one process. The model is a small
transformer that reads an image row by row. Each process has some of its heads and neurons, so all of them
need the same images, and a part of every layer's sum. With --sequence-parallel each also keeps only its
share of the rows between the matrices.
"""

import gc
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import workload
from transformer import Transformer

HEADS = 4


def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)  # the same for all: the layers that are not cut must begin alike
    train_set, test_set = workload.load_images(arguments)
    # One share: whoever got other images than the rest would add its part to sums of another image.
    sampler = DistributedSampler(train_set, num_replicas=1, rank=0, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    test_loader = DataLoader(test_set, 500, collate_fn=workload.collate)

    model = build_model(train_set.images.shape[1:]).to(device)
    model = cut(model, init_device_mesh(device.type, (world_size,)), arguments.sequence_parallel)
    count_collectives(model, *train_set.__getitems__(range(size)), device, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without it, every epoch has the order of the first
        loss_sum = torch.zeros((), device=device)
        for images, labels in workload.progress(train_loader, epoch, quiet=rank > 0):
            images, labels = images.to(device), labels.to(device)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        scheduler.step()
        mean_loss = loss_sum.item() / len(train_loader)  # all have the same: adding them up counts it twice
        seconds = time.perf_counter() - start

        correct = count_correct(model, test_loader, device)
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    whole = {name: gather(value).cpu() for name, value in model.state_dict().items()}  # by all: it waits
    if rank == 0:
        torch.save(whole, arguments.out / f"{arguments.lesson}.pt")


class MeanOverPlaces(nn.Module):
    def forward(self, x):
        return x.mean(dim=1)


def build_model(shape, hidden=32):
    """A transformer for images: each row of each channel is one place of a sequence."""
    channels, height, width = shape
    embedding = nn.Sequential(workload.Normalize(), nn.Flatten(1, 2), nn.Linear(width, hidden))
    head = nn.Sequential(MeanOverPlaces(), nn.Linear(hidden, 10))
    return Transformer(embedding, head, channels * height, hidden, HEADS, layers=2)


def cut(model, mesh, sequence_parallel):
    # What travels between the layers: on every process all places (dimension 1), or its own share of them.
    between = Shard(1) if sequence_parallel else Replicate()
    gathered = PrepareModuleInput(input_layouts=between, desired_input_layouts=Replicate())
    plan = {
        "blocks.*.attention": gathered,  # once for all three: each would send a gradient of its own back
        "blocks.*.attention.query": ColwiseParallel(),
        "blocks.*.attention.key": ColwiseParallel(),
        "blocks.*.attention.value": ColwiseParallel(),
        "blocks.*.attention.project": RowwiseParallel(output_layouts=between),
        "blocks.*.feed_forward.up": ColwiseParallel(input_layouts=between),
        "blocks.*.feed_forward.down": RowwiseParallel(output_layouts=between),
    }
    if sequence_parallel:
        split = {"input_layouts": Replicate(), "desired_input_layouts": between}
        joined = {"input_layouts": between, "desired_input_layouts": Replicate()}
        plan |= {
            "blocks.0": PrepareModuleInput(**split, use_local_output=True),
            "blocks.*.*_norm": SequenceParallel(),
            "norm": SequenceParallel(),
            "head": PrepareModuleInput(**joined, use_local_output=True),
        }
    return parallelize_module(model, mesh, plan)


def count_collectives(model, images, labels, device, rank):
    """Take a step of length 0, and print what the processes said to each other in each of its parts."""
    images, labels = images.to(device), labels.to(device)
    with CommDebugMode() as forward:
        model(images)
    loss = cross_entropy(model(images), labels)
    with CommDebugMode() as backward:
        loss.backward()
    with CommDebugMode() as step:
        torch.optim.SGD(model.parameters(), lr=0).step()
    model.zero_grad()
    for part, mode in {"forward": forward, "backward": backward, "optimizer": step}.items():
        counts = [f"{count} {kind.__name__}" for kind, count in mode.get_comm_counts().items()]
        if rank == 0:
            print(f"{part:9} | {', '.join(sorted(counts)) or 'no collective'}", flush=True)


def gather(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


@torch.no_grad()
def count_correct(model, test_loader, device):
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in test_loader:
        correct += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    return correct


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    parser.set_defaults(lr=0.15)
    parser.add_argument("--sequence-parallel", action="store_true", help="cut what is between the layers too")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)  # for one process: nobody has to divide a batch by their number
    rank, arguments.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if HEADS % arguments.world_size:
        workload.refuse(f"the {HEADS} heads do not divide by {arguments.world_size} processes: take 1, 2 or 4")
    device = workload.pick_device(rank)
    dist.init_process_group(
        backend=dist.get_default_backend_for_device(device),
        device_id=None if device.type == "cpu" else device,
        timeout=timedelta(minutes=2),  # by default a process waits 30 minutes (NCCL: 10) for one that hangs
    )
    train(rank, arguments.world_size, device, arguments)
    gc.collect()  # a DDP object that outlives its group aborts the process at exit, now and then
    dist.destroy_process_group()
