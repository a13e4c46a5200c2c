"""Lesson 16, grown from lesson 13: a GPT whose experts are spread over the processes.

    torchrun --standalone --nproc-per-node 2 lessons/16_experts.py

You will see output as in lesson 13 and, after each epoch, the share of the last step's tokens that
each expert received. The shares are about equal; with --balance 0, most tokens go to one or two
experts. Each process reads its own texts and runs its experts for the tokens of all processes.
"""

import os
import time
from datetime import timedelta
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import workload
from parts import experts, limericks  # experts is the other half of this lesson
from parts.sharded_snapshot import Snapshots
from parts.transformer import Transformer

HEADS = 4


@workload.print_first_error
def train(rank, mesh, device, arguments):
    # Unsharded layers start identical only because every rank uses the same seed.
    workload.set_seed(arguments.seed)
    characters, train_set, test_set = limericks.load(arguments, device)
    world_size = mesh.size()
    sampler = DistributedSampler(train_set, world_size, rank, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    # All ranks test on all texts: a rank with an extra batch would wait forever for other ranks' experts.
    test_loader = DataLoader(test_set, 500, collate_fn=workload.collate)

    model = build_model(len(characters), hidden=arguments.width).to(device)
    add_experts(model, mesh, arguments)
    if arguments.double:
        model.double()
    # foreach, PyTorch's default on a GPU, cannot mix sharded experts and ordinary matrices.
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, foreach=False)
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
            loss = cross_entropy(model(texts).flatten(0, 1), following.flatten())
            balance = sum(block.feed_forward.balance for block in model.blocks)
            optimizer.zero_grad()
            ((loss + balance) / world_size).backward()
            add_up_gradients(model)
            optimizer.step()
            scheduler.step()
            loss_sum += loss.detach()
            if arguments.snapshot_every and step % arguments.snapshot_every == 0:
                average(loss_sum, mesh)  # so that any mesh can resume the epoch
                snapshots.save(epoch, step, loss_sum)
            workload.crash_once(epoch == arguments.crash_at and step == len(train_loader) // 2)
        show_load(rank, model)
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


def add_experts(model, mesh, arguments):
    """Experts replace the feed-forward layers. Everything else is replicated, as in lesson 04."""
    for block in model.blocks:
        block.feed_forward = experts.Experts(arguments).to(mesh.device_type)
        block.feed_forward.shard(mesh)


def add_up_gradients(model):
    """Add up gradients over all processes, except experts' gradients, which already include all tokens."""
    for parameter in model.parameters():
        if not isinstance(parameter, DTensor):
            dist.all_reduce(parameter.grad)


def show_load(rank, model):
    for number, block in enumerate(model.blocks, 1):
        load = " ".join(f"{share:4.0%}" for share in block.feed_forward.load.tolist())
        if rank == 0:
            print(f"block {number}  | load of its experts {load}", flush=True)


def average(loss_sum, mesh):
    """Average over all processes: each has its own texts."""
    dist.all_reduce(loss_sum)
    loss_sum /= mesh.size()


def gather(value):
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.detach().cpu()


@torch.no_grad()
def count_correct(model, test_loader, device):
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for texts, following in test_loader:
        scores = model(texts.to(device))
        correct += (scores.argmax(dim=2) == following.to(device)).sum()
    return correct


if __name__ == "__main__":
    workload.end_with_parent()
    parser = workload.parser(__file__, __doc__)
    limericks.options(parser)
    parser.set_defaults(epochs=10)
    experts.options(parser)
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    experts.check(arguments)
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    device_id = None if device.type == "cpu" else device  # given a device_id, NCCL starts immediately
    dist.init_process_group(backend, device_id=device_id, timeout=timedelta(minutes=2))
    mesh = workload.make_mesh(device, expert=world_size)
    train(rank, mesh, device, arguments)
    dist.destroy_process_group()
