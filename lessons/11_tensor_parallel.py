"""Lesson 11, grown from lesson 04: the batch stays whole, and the matrices are sharded.

    torchrun --standalone --nproc-per-node 2 lessons/11_tensor_parallel.py

You will see which collectives a step needs, and then losses that are the same on 1, 2
and 4 processes. The model is a small transformer that reads an image row by row. Each
process holds some of the heads and neurons of every block, and computes their outputs
for all images. Twice per block, the processes add up their results. With
--sequence-parallel, each process also keeps only its shard of the rows outside
attention and feed-forward.
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
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
from parts.transformer import ImageTransformer

HEADS = 4


def train(rank, world_size, device, arguments):
    # Unsharded layers start identical only because every rank uses the same seed.
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments, device)
    # All processes load the same batch: otherwise they would silently add up results for different images.
    sampler = DistributedSampler(train_set, num_replicas=1, rank=0, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    test_loader = DataLoader(test_set, 500, collate_fn=workload.collate)

    model = ImageTransformer(train_set.images.shape[1:], arguments.width, HEADS).to(device)
    mesh = workload.make_mesh(device, tensor=world_size)
    parallelize_module(model, mesh, make_plan(arguments.sequence_parallel))
    images, labels = train_set[:size]
    count_collectives(rank, model, images.to(device), labels.to(device))
    # Not foreach, PyTorch's default on a GPU: it cannot mix sharded and ordinary matrices.
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9, foreach=False)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without set_epoch, every epoch uses the same order
        loss_sum = torch.zeros((), device=device)
        for images, labels in workload.progress(train_loader, epoch):
            images, labels = images.to(device), labels.to(device)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        scheduler.step()
        mean_loss = loss_sum.item() / len(train_loader)  # of all images already
        seconds = time.perf_counter() - start

        correct = workload.count_correct(model, test_loader, device)
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    # Gathering is a collective: if only rank 0 called it, rank 0 would wait forever.
    weights = {name: gather(value) for name, value in model.named_parameters()}
    if rank == 0:
        torch.save(weights, arguments.out / f"{arguments.lesson}.pt")


def make_plan(sequence_parallel):
    """Shard one matrix by columns, the next by rows: nothing travels in between."""
    replicated = Replicate()  # every process has the whole tensor
    by_position = Shard(1)  # each process has some of the positions
    between = by_position if sequence_parallel else replicated  # activations have this layout between blocks
    plan = {
        # Prepare the input once: otherwise query, key and value would each all-reduce its gradient.
        "blocks.*.attention": PrepareModuleInput(input_layouts=between, desired_input_layouts=replicated),
        "blocks.*.attention.query": ColwiseParallel(),
        "blocks.*.attention.key": ColwiseParallel(),
        "blocks.*.attention.value": ColwiseParallel(),
        "blocks.*.attention.project": RowwiseParallel(output_layouts=between),
        "blocks.*.feed_forward.up": ColwiseParallel(input_layouts=between),
        "blocks.*.feed_forward.down": RowwiseParallel(output_layouts=between),
    }
    if sequence_parallel:
        # Each process normalizes its positions; optimizer.step() sums the gradients.
        plan["blocks.*.*_norm"] = SequenceParallel()
        plan["norm"] = SequenceParallel()
        plan["blocks.0"] = PrepareModuleInput(
            input_layouts=replicated, desired_input_layouts=by_position, use_local_output=True
        )
        plan["head"] = PrepareModuleInput(
            input_layouts=by_position, desired_input_layouts=replicated, use_local_output=True
        )
    return plan


def count_collectives(rank, model, images, labels):
    """Run a step with learning rate 0, and print the collectives of forward, backward and optimizer."""
    with torch.no_grad(), CommDebugMode() as forward:
        model(images)
    loss = cross_entropy(model(images), labels)
    with CommDebugMode() as backward:
        loss.backward()
    with CommDebugMode() as step:
        torch.optim.SGD(model.parameters(), lr=0, foreach=False).step()
    for name, mode in {"forward": forward, "backward": backward, "optimizer": step}.items():
        counts = mode.get_comm_counts()
        words = sorted(f"{count} {kind.__name__}" for kind, count in counts.items())
        if rank == 0:
            print(f"{name:9} | {', '.join(words) or 'no collective'}", flush=True)


def gather(value):
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.detach().cpu()


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    parser.set_defaults(epochs=7, lr=0.1, width=32)
    parser.add_argument("--sequence-parallel", action="store_true", help="also shard norms and residual sums")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments, replicas=1)  # the batch is not divided among processes
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if HEADS % world_size:
        workload.refuse(f"{world_size} processes cannot share {HEADS} heads evenly: take 1, 2 or 4")
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    device_id = None if device.type == "cpu" else device  # given a device_id, NCCL starts immediately
    dist.init_process_group(backend, device_id=device_id, timeout=timedelta(minutes=2))
    train(rank, world_size, device, arguments)
    dist.destroy_process_group()
