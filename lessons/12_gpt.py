"""Lesson 12, grown from lesson 11: a small GPT, cut twice among four processes, writes limericks.

    torchrun --standalone --nproc-per-node 4 lessons/12_gpt.py

You will see what it writes untrained, the loss falling, and what it writes then. Each process has a quarter
of every matrix: two share its heads, and two what that leaves. If all four read different texts, those that
share heads would add up parts of different ones. A killed run goes on, on as many as divide the batch.
"""

import os
import time
from datetime import timedelta
from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import workload
from parts import limericks
from parts.pieces import load_snapshot, parts_of, save_snapshot, save_whole  # the other half of this lesson
from parts.transformer import Transformer

HEADS = 4


@workload.let_the_first_speak
def train(rank, mesh, device, arguments):
    workload.set_seed(arguments.seed)  # layers that are not cut must begin alike: nothing would make them so
    characters, train_set, test_set = limericks.load(arguments)
    share, shares = mesh["data"].get_local_rank(), mesh["data"].size()  # not rank and world size
    sampler = DistributedSampler(train_set, shares, share, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // shares
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)

    model = shard(build_model(len(characters)).to(device), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, fused=True)
    steps = arguments.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, arguments.lr, steps, pct_start=0.2)
    parts = parts_of(arguments, model, optimizer, scheduler)
    first, done, loss_sum = load_snapshot(arguments, parts, device)
    write(f"before epoch {first}", min(60, arguments.characters), model, characters, device, arguments)

    for epoch in range(first, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without it, every epoch has the order of the first
        batches = islice(workload.progress(train_loader, epoch, quiet=rank > 0), done, None)
        for step, (texts, following) in enumerate(batches, done + 1):
            texts, following = texts.to(device), following.to(device)
            scores = model(texts).full_tensor()  # each has computed those of its own characters
            loss = cross_entropy(scores.flatten(0, 1), following.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            mean = loss.detach() / shares
            dist.all_reduce(mean, group=mesh.get_group("data"))  # over all, each share would count twice
            loss_sum += mean
            if arguments.snapshot_every and step % arguments.snapshot_every == 0:
                save_snapshot(arguments, parts, epoch, step, loss_sum)
            workload.crash_once((epoch, step) == (arguments.crash_at, len(train_loader) // 2))
        mean_loss = loss_sum.item() / len(train_loader)
        seconds = time.perf_counter() - start

        correct = count_correct(model, *test_set[share::shares], device)
        dist.all_reduce(correct, group=mesh.get_group("data"))
        speed = (len(train_loader) - done) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / test_set.labels.numel(), speed)
        done, loss_sum = 0, torch.zeros_like(loss_sum)
        save_snapshot(arguments, parts, epoch + 1, done, loss_sum)

    write("after training", arguments.characters, model, characters, device, arguments)
    save_whole(arguments, model)


def build_model(characters, length=limericks.LENGTH, hidden=64, heads=HEADS, layers=2):
    """A transformer that answers, for each place of a text, which of the characters comes next."""
    embedding, head = limericks.Recent(characters, hidden), nn.Linear(hidden, characters)
    model = Transformer(embedding, head, length, hidden, heads, layers, causal=True)
    nn.init.normal_(model.position.weight, std=0.02)  # as small as what stands for the characters
    return model


def shard(model, mesh):
    """Cut the model over mesh["tensor"] as in lesson 11, and what that leaves over mesh["data"]."""
    whole = Replicate()
    plan = {
        "embedding.table": ColwiseParallel(output_layouts=whole),
        "position": ColwiseParallel(output_layouts=whole),
        # Once for the three that follow: else each would send a gradient of its own through an all_reduce.
        "blocks.*.attention": PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole),
        "blocks.*.attention.query": ColwiseParallel(),
        "blocks.*.attention.key": ColwiseParallel(),
        "blocks.*.attention.value": ColwiseParallel(),
        "blocks.*.attention.project": RowwiseParallel(),
        "blocks.*.feed_forward.up": ColwiseParallel(),
        "blocks.*.feed_forward.down": RowwiseParallel(),
        "head": ColwiseParallel(use_local_output=False),
    }
    parallelize_module(model, mesh["tensor"], plan)  # first: it cannot cut what FSDP has cut
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])


@torch.no_grad()
def write(when, length, model, characters, device, arguments):
    """Print four texts. All processes write them together: none can compute a character alone."""
    generator = torch.Generator().manual_seed(arguments.seed)  # of all: else they would read different texts
    texts = torch.tensor([[characters.index(character) for character in "There was a"]] * 4)
    while texts.shape[1] < length:
        scores = model(texts[:, -limericks.LENGTH :].to(device)).full_tensor()[:, -1].cpu()
        chances = (scores / arguments.temperature).softmax(dim=1)
        texts = torch.cat([texts, chances.multinomial(1, generator=generator)], dim=1)
    limericks.show(when, texts, characters)


@torch.no_grad()
def count_correct(model, texts, following, device):
    return (model(texts.to(device)).full_tensor().argmax(dim=2) == following.to(device)).sum()


if __name__ == "__main__":
    workload.end_with_parent()
    parser = workload.parser(__file__, __doc__)
    limericks.options(parser)
    parser.add_argument("--tensor-parallel", type=int, help="processes that share heads (2, or 1 if odd)")
    parser.add_argument("--dry-run", type=int, metavar="RANKS", help="how so many would train a large one")
    arguments = parser.parse_args()
    if arguments.dry_run:
        from planner import dry_run

        raise SystemExit(dry_run.main([str(arguments.dry_run), "--tensor-parallel", "8"]))
    workload.require_torchrun(__file__)
    rank, arguments.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    workload.check(arguments)
    tensor = arguments.tensor_parallel or 2 - arguments.world_size % 2
    if tensor < 1 or arguments.world_size % tensor or HEADS % tensor:
        workload.refuse(f"--tensor-parallel {tensor} must divide the {HEADS} heads and the processes: take 1")
    device = workload.pick_device(rank)
    dist.init_process_group(
        backend=dist.get_default_backend_for_device(device),
        device_id=None if device.type == "cpu" else device,
        timeout=timedelta(minutes=2),  # by default a process waits 30 minutes (NCCL: 10) for one that hangs
    )
    mesh = (arguments.world_size // tensor, tensor), ("data", "tensor")
    train(rank, init_device_mesh(device.type, mesh[0], mesh_dim_names=mesh[1]), device, arguments)
    workload.release_group()  # a thread of it that is left may abort the process at exit
    dist.destroy_process_group()
