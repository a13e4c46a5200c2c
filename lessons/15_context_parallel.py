"""Lesson 15, grown from lesson 13: long texts are sharded, and keys and values travel in a ring.

    torchrun --standalone --nproc-per-node 2 lessons/15_context_parallel.py

You will see how much attention work each process does for two orders of the positions,
and then the same losses as on one process. Each process holds some positions of every
text. Keys and values travel around a ring until every query has met all earlier keys.
"""

import os
import time
from datetime import timedelta
from functools import partial
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.flop_counter import FlopCounterMode

import workload
from parts import limericks
from parts.ring_attention import ORDERS, positions_of, ring_attention  # the other half
from parts.sharded_snapshot import Snapshots
from parts.transformer import Transformer

HEADS = 4


@workload.print_first_error
def train(rank, mesh, device, arguments):
    # Each process cuts its shards from its own weights, so all need the same seed.
    workload.set_seed(arguments.seed)
    characters, train_set, test_set = limericks.load(arguments, device)
    # With rank and world_size, processes that share a text would load different ones.
    data_rank, data_size = mesh["data"].get_local_rank(), mesh["data"].size()
    sampler = DistributedSampler(train_set, data_size, data_rank, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // data_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    # All ranks test on all texts: if one rank had an extra batch, FSDP's forward would hang.
    test_loader = DataLoader(test_set, 500, collate_fn=workload.collate)

    context_rank, context_size = mesh["context"].get_local_rank(), mesh["context"].size()
    positions = positions_of(context_rank, context_size, arguments.order, arguments.length).to(device)
    model = build_model(len(characters), arguments.length, arguments.width).to(device)
    # In one group with the ring, FSDP's collectives would wait for the ring's messages.
    ring = workload.make_mesh(device, data=data_size, context=context_size).get_group("context")
    shard(model, mesh, ring, arguments.order)
    compare_orders(rank, mesh, ring, device, arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, fused=True)
    steps = arguments.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, arguments.lr, steps, pct_start=0.2)
    snapshots = Snapshots(arguments, model, optimizer, scheduler)
    first, done, loss_sum = snapshots.load_newest(device)

    for epoch in range(first, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without set_epoch, every epoch uses the same order
        batches = workload.progress(train_loader, epoch)
        batches = islice(batches, done, None)  # skip the steps that the killed run has already taken
        for step, (texts, following) in enumerate(batches, done + 1):
            texts, following = texts.to(device), following.to(device)
            scores = model(texts[:, positions], positions)  # by default, the model counts positions from 0
            loss = cross_entropy(scores.flatten(0, 1), following[:, positions].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            loss_sum += loss.detach()
            if arguments.snapshot_every and step % arguments.snapshot_every == 0:
                average(loss_sum, mesh)  # so that any mesh can resume the epoch
                snapshots.save(epoch, step, loss_sum)
            workload.crash_once(epoch == arguments.crash_at and step == len(train_loader) // 2)
        average(loss_sum, mesh)
        mean_loss = loss_sum.item() / len(train_loader)
        seconds = time.perf_counter() - start

        correct = count_correct(model, test_loader, positions, device)
        dist.all_reduce(correct, group=mesh.get_group("context"))
        speed = (len(train_loader) - done) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / test_set.labels.numel(), speed)
        done, loss_sum = 0, torch.zeros_like(loss_sum)
        snapshots.save(epoch + 1, done, loss_sum)

    # Gathering is a collective: if only rank 0 called it, rank 0 would wait forever.
    weights = {name: gather(value) for name, value in model.named_parameters()}
    if rank == 0:
        torch.save(weights, arguments.out / f"{arguments.lesson}.pt")


def build_model(characters, length=limericks.LENGTH, hidden=64, heads=HEADS, layers=2):
    """A transformer that predicts the next character at each position of a text."""
    embedding = nn.Embedding(characters, hidden)  # each character by itself
    head = nn.Linear(hidden, characters, bias=False)  # with a bias, FSDP would warn about a view
    model = Transformer(embedding, head, length, hidden, heads, layers, causal=True)
    nn.init.normal_(model.position.weight, std=0.02)
    nn.init.normal_(embedding.weight, std=0.02)  # larger initial values slow learning
    return model


def shard(model, mesh, ring, order):
    """Shard the weights over "context" and replicate the shards over "data": HSDP."""
    # FSDP averages gradients over all processes, as if each had its own texts.
    for block in model.blocks:
        block.attention.attend = partial(ring_attention, group=ring, order=order)
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # this shards the layers outside the blocks


def average(loss_sum, mesh):
    """Average over all processes: each has different positions or different texts."""
    dist.all_reduce(loss_sum)
    loss_sum /= mesh.size()


def compare_orders(rank, mesh, ring, device, arguments):
    """For each order of positions, print each process's multiply-adds and the time until all are done."""
    context_size = mesh["context"].size()
    texts = arguments.batch_size // mesh["data"].size()
    shape = (texts, HEADS, arguments.length // context_size, arguments.width // HEADS)
    query, key, value = (torch.randn(shape, device=device, requires_grad=True) for _ in range(3))
    for order in ORDERS:
        with FlopCounterMode(display=False) as counter:
            ring_attention(query, key, value, ring, order).sum().backward()
        work = torch.zeros(mesh.size(), dtype=torch.int64, device=device)
        work[rank] = counter.get_total_flops() // 2  # a multiply-add is two FLOPs
        dist.all_reduce(work)
        dist.barrier()  # a GPU might still be running the previous pass
        start = time.perf_counter()
        ring_attention(query, key, value, ring, order).sum().backward()
        dist.barrier()  # wait for the process with the most work
        seconds = time.perf_counter() - start
        if rank == 0:
            millions = " ".join(f"{count / 1e6:.0f}" for count in work.tolist())
            print(f"{order:10} | {1000 * seconds:.0f} ms | multiply-adds: {millions} million", flush=True)


def gather(value):
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.detach().cpu()


@torch.no_grad()
def count_correct(model, test_loader, positions, device):
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for texts, following in test_loader:
        scores = model(texts.to(device)[:, positions], positions)
        correct += (scores.argmax(dim=2) == following.to(device)[:, positions]).sum()
    return correct


if __name__ == "__main__":
    workload.end_with_parent()
    parser = workload.parser(__file__, __doc__)
    limericks.options_of_training(parser)
    parser.set_defaults(train_size=96, test_size=12, epochs=6, batch_size=12)
    option = parser.add_argument
    option("--length", type=int, default=576, help="characters of a text (576)")
    option("--order", choices=ORDERS, default="zigzag", help="of positions (zigzag)")
    option("--context-parallel", type=int, help="processes that share a text (all)")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if arguments.context_parallel is None:
        arguments.context_parallel = world_size
    context_size = arguments.context_parallel
    if context_size < 1 or world_size % context_size:
        workload.refuse(f"--context-parallel {context_size} does not divide {world_size} processes: take 1")
    if arguments.length < 1 or arguments.length % (2 * context_size):
        fits = max(1, arguments.length // (2 * context_size)) * 2 * context_size
        workload.refuse(
            f"--length {arguments.length} does not divide into {2 * context_size} chunks, "
            f"two for each process: take {fits}"
        )
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    device_id = None if device.type == "cpu" else device  # given a device_id, NCCL starts immediately
    dist.init_process_group(backend, device_id=device_id, timeout=timedelta(minutes=2))
    mesh = workload.make_mesh(device, data=world_size // context_size, context=context_size)
    train(rank, mesh, device, arguments)
    dist.destroy_process_group()
