"""Lesson 12, grown from lesson 11: the processes of a mesh shard the matrices and the batch.

    torchrun --standalone --nproc-per-node 4 lessons/12_mesh.py

You will see which collectives a step needs, and then lesson 11's losses. The four
processes form a 2 x 2 mesh. Along its "tensor" dimension, two processes split heads and
neurons as in lesson 11, and read the same images. Along its "data" dimension, two
processes read different images, and FSDP shards the weights of their heads and neurons
as in lesson 09. Collectives whose names begin with an underscore are FSDP's and run
over "data". The other collectives are lesson 11's and run over "tensor".
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import workload
from parts.transformer import ImageTransformer

HEADS = 4


def train(rank, mesh, device, arguments):
    # Unsharded layers start identical only because every rank uses the same seed.
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments, device)
    # With rank and world_size, processes that share matrices would read different images.
    data_rank, data_size = mesh["data"].get_local_rank(), mesh["data"].size()
    sampler = DistributedSampler(train_set, data_size, data_rank, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // data_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    # All ranks test on all images: if one rank had an extra batch, FSDP's forward would hang.
    test_loader = DataLoader(test_set, 500, collate_fn=workload.collate)

    model = ImageTransformer(train_set.images.shape[1:], arguments.width, HEADS).to(device)
    shard(model, mesh)
    images, labels = train_set[:size]
    count_collectives(rank, model, images.to(device), labels.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
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
        # Add up over "data" only: ranks that share matrices have the same loss, which would count twice.
        dist.all_reduce(loss_sum, group=mesh.get_group("data"))
        mean_loss = loss_sum.item() / len(train_loader) / data_size
        seconds = time.perf_counter() - start

        correct = workload.count_correct(model, test_loader, device)
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    # Gathering is a collective: if only rank 0 called it, rank 0 would wait forever.
    for part in (*model.blocks, model):
        part.unshard()  # FSDP gathers over "data" only; over "tensor", the weights stay sharded
    weights = {name: gather(value) for name, value in model.named_parameters()}
    if rank == 0:
        torch.save(weights, arguments.out / f"{arguments.lesson}.pt")


def shard(model, mesh):
    """Shard over "tensor" as in lesson 11, and then shard the result over "data"."""
    # Tensor parallelism comes first: it cannot shard what FSDP has already sharded.
    parallelize_module(model, mesh["tensor"], make_plan())
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])  # this shards the layers outside the blocks


def make_plan():
    """Shard one matrix by columns, the next by rows: nothing travels in between."""
    replicated = Replicate()  # every process has the whole tensor
    return {
        # Prepare the input once: otherwise query, key and value would each all-reduce its gradient.
        "blocks.*.attention": PrepareModuleInput(input_layouts=replicated, desired_input_layouts=replicated),
        "blocks.*.attention.query": ColwiseParallel(),
        "blocks.*.attention.key": ColwiseParallel(),
        "blocks.*.attention.value": ColwiseParallel(),
        "blocks.*.attention.project": RowwiseParallel(),
        "blocks.*.feed_forward.up": ColwiseParallel(),
        "blocks.*.feed_forward.down": RowwiseParallel(),
    }


def count_collectives(rank, model, images, labels):
    """Run a step with learning rate 0, and print the collectives of forward, backward and optimizer."""
    with torch.no_grad(), CommDebugMode() as forward:
        model(images)
    loss = cross_entropy(model(images), labels)
    with CommDebugMode() as backward:
        loss.backward()
    with CommDebugMode() as step:
        torch.optim.SGD(model.parameters(), lr=0).step()
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
    parser.add_argument("--tensor-parallel", type=int, help="processes that share heads (2, or 1 if odd)")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if arguments.tensor_parallel is None:
        arguments.tensor_parallel = 1 if world_size % 2 else 2
    tensor_size = arguments.tensor_parallel
    if tensor_size < 1 or world_size % tensor_size or HEADS % tensor_size:
        workload.refuse(
            f"--tensor-parallel {tensor_size} does not divide {HEADS} heads and "
            f"{world_size} processes: take 1"
        )
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    device_id = None if device.type == "cpu" else device  # given a device_id, NCCL starts immediately
    dist.init_process_group(backend, device_id=device_id, timeout=timedelta(minutes=2))
    mesh = workload.make_mesh(device, data=world_size // tensor_size, tensor=tensor_size)
    train(rank, mesh, device, arguments)
    dist.destroy_process_group()
