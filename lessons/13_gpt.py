"""Lesson 13, grown from lesson 12: a small GPT on the mesh learns to write limericks.

    torchrun --standalone --nproc-per-node 4 lessons/13_gpt.py

You will see what the model writes before training, the falling loss, and what it writes after training.
The model reads characters and predicts the next one. Each process holds a quarter of every matrix. A
run that was killed resumes from its last snapshot, on 1, 2 or 4 processes.
"""

import os
import time
from datetime import timedelta
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import workload
from parts import limericks
from parts.sharded_snapshot import Snapshots  # this module is the other half of the lesson
from parts.transformer import Transformer

HEADS = 4


@workload.print_first_error
def train(rank, mesh, device, arguments):
    # Unsharded layers start identical only because every rank uses the same seed.
    workload.set_seed(arguments.seed)
    characters, train_set, test_set = limericks.load(arguments, device)
    # With rank and world_size, processes that share matrices would read different texts.
    data_rank, data_size = mesh["data"].get_local_rank(), mesh["data"].size()
    sampler = DistributedSampler(train_set, data_size, data_rank, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // data_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    # All ranks test on all texts: if one rank had an extra batch, FSDP's forward would hang.
    test_loader = DataLoader(test_set, 500, collate_fn=workload.collate)

    model = build_model(len(characters), hidden=arguments.width).to(device)
    shard(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, fused=True)
    steps = arguments.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, arguments.lr, steps, pct_start=0.2)
    snapshots = Snapshots(arguments, model, optimizer, scheduler)
    first, done, loss_sum = snapshots.load_newest(device)
    few = min(60, arguments.characters)
    limericks.write(f"before epoch {first}", few, model, characters, device, arguments)

    for epoch in range(first, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without set_epoch, every epoch uses the same order
        batches = workload.progress(train_loader, epoch)
        batches = islice(batches, done, None)  # skip the steps that the killed run has already taken
        for step, (texts, following) in enumerate(batches, done + 1):
            texts, following = texts.to(device), following.to(device)
            with loss_parallel():  # the scores stay sharded over the characters
                scores = model(texts)
                loss = cross_entropy(scores.flatten(0, 1), following.flatten())
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            scheduler.step()
            loss_sum += loss.detach().to_local()
            if arguments.snapshot_every and step % arguments.snapshot_every == 0:
                average(loss_sum, mesh)  # so that any mesh can resume the epoch
                snapshots.save(epoch, step, loss_sum)
            workload.crash_once(epoch == arguments.crash_at and step == len(train_loader) // 2)
        average(loss_sum, mesh)
        mean_loss = loss_sum.item() / len(train_loader)
        seconds = time.perf_counter() - start

        correct = count_correct(model, test_loader, device)
        speed = (len(train_loader) - done) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / test_set.labels.numel(), speed)
        done, loss_sum = 0, torch.zeros_like(loss_sum)
        snapshots.save(epoch + 1, done, loss_sum)

    limericks.write("after training", arguments.characters, model, characters, device, arguments)
    # Gathering is a collective: if only rank 0 called it, rank 0 would wait forever.
    for part in (*model.blocks, model):
        part.unshard()  # FSDP gathers over "data" only; over "tensor", the part stays sharded
    weights = {name: gather(value) for name, value in model.named_parameters()}
    if rank == 0:
        torch.save(weights, arguments.out / f"{arguments.lesson}.pt")


def build_model(characters, length=limericks.LENGTH, hidden=64, heads=HEADS, layers=2):
    """A transformer that predicts the next character at each position of a text."""
    embedding = limericks.Recent(characters, hidden)
    head = nn.Linear(hidden, characters)
    model = Transformer(embedding, head, length, hidden, heads, layers, causal=True)
    nn.init.normal_(model.position.weight, std=0.02)  # both kinds of embeddings start equally small
    return model


def shard(model, mesh, **options):  # fully_shard gets these options, for example a precision
    """Shard over "tensor" as in lesson 11, and then shard the result over "data"."""
    # Tensor parallelism comes first: it cannot shard what FSDP has already sharded.
    parallelize_module(model, mesh["tensor"], make_plan())
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"], **options)
    fully_shard(model, mesh=mesh["data"], **options)  # this shards the layers outside the blocks


def make_plan():
    """Shard one matrix by columns, the next by rows: nothing travels in between."""
    replicated = Replicate()  # every process has the whole tensor
    return {
        "embedding.table": ColwiseParallel(output_layouts=replicated),
        "position": ColwiseParallel(output_layouts=replicated),
        # Prepare the input once: otherwise query, key and value would each all-reduce its gradient.
        "blocks.*.attention": PrepareModuleInput(input_layouts=replicated, desired_input_layouts=replicated),
        "blocks.*.attention.query": ColwiseParallel(),
        "blocks.*.attention.key": ColwiseParallel(),
        "blocks.*.attention.value": ColwiseParallel(),
        "blocks.*.attention.project": RowwiseParallel(),
        "blocks.*.feed_forward.up": ColwiseParallel(),
        "blocks.*.feed_forward.down": RowwiseParallel(),
        "head": ColwiseParallel(use_local_output=False),
    }


def average(loss_sum, mesh):
    """Average only over "data": ranks that share matrices have the same loss."""
    dist.all_reduce(loss_sum, group=mesh.get_group("data"))
    loss_sum /= mesh["data"].size()


def gather(value):
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.detach().cpu()


@torch.no_grad()
def count_correct(model, test_loader, device):
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for texts, following in test_loader:
        likeliest = model(texts.to(device)).argmax(dim=2).full_tensor()
        correct += (likeliest == following.to(device)).sum()
    return correct


if __name__ == "__main__":
    workload.end_with_parent()
    parser = workload.parser(__file__, __doc__)
    limericks.options(parser)
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
