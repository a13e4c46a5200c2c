"""Lesson 12, grown from lesson 11: a small GPT, cut among four processes twice, writes limericks.

    torchrun --standalone --nproc-per-node 4 lessons/12_gpt.py

You will see what it writes before it has learned anything, the loss falling, and what it writes then. Each
process holds a quarter of every matrix: two share its heads and neurons (lesson 11), and two share what is
left of it (lesson 10). Kill the run and start it again: it goes on from its last snapshot, also on one or
two processes. It learns from Edward Lear's limericks of 1846 and 1872, which are in the public domain.
"""

import gc
import os
import shutil
import sys
import time
from datetime import timedelta
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint import state_dict
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
from transformer import Transformer

HEADS, LENGTH = 4, 160


@workload.let_the_first_speak
def train(rank, mesh, device, arguments):
    workload.set_seed(arguments.seed)  # the same for all: the layers that are not cut must begin alike
    characters, train_set, test_set = load_text(arguments)
    # A share for each part of the model's rows, not for each process: those that share heads need one batch.
    shares, share = mesh["data"].size(), mesh["data"].get_local_rank()
    sampler = DistributedSampler(train_set, shares, share, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // shares
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)

    model = shard(build_model(len(characters)).to(device), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    first, done, loss_sum = load_snapshot(arguments, model, optimizer, scheduler, device)
    if (first, done) == (1, 0):
        show(rank, "before", write(model, characters, device, arguments))

    for epoch in range(first, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without it, every epoch has the order of the first
        batches = islice(workload.progress(train_loader, epoch, quiet=rank > 0), done, None)
        for step, (inputs, targets) in enumerate(batches, done + 1):
            inputs, targets = inputs.to(device), targets.to(device)
            scores = model(inputs).full_tensor()  # each had those of its own characters
            loss = cross_entropy(scores.flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_now = loss.detach() / shares
            dist.all_reduce(loss_now, group=mesh.get_group("data"))  # over all, it would count each share twice
            loss_sum += loss_now
            if arguments.snapshot_every and step % arguments.snapshot_every == 0:
                save_snapshot(arguments, model, optimizer, scheduler, epoch, step, loss_sum)
            workload.crash_once((epoch, step) == (arguments.crash_at, len(train_loader) // 2))
        scheduler.step()
        mean_loss = loss_sum.item() / len(train_loader)
        seconds = time.perf_counter() - start

        correct = count_correct(model, *test_set[share::shares], device)
        dist.all_reduce(correct, group=mesh.get_group("data"))
        speed = (len(train_loader) - done) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / test_set.labels.numel(), speed)
        done, loss_sum = 0, torch.zeros_like(loss_sum)
        save_snapshot(arguments, model, optimizer, scheduler, epoch + 1, done, loss_sum)

    show(rank, "after", write(model, characters, device, arguments))
    options = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = state_dict.get_model_state_dict(model, options=options)  # by all: it waits
    if rank == 0:
        torch.save(whole, arguments.out / f"{arguments.lesson}.pt")


def load_text(arguments):
    """The characters, and pieces of the text as their numbers: to learn from, and of limericks held back."""
    text = (Path(__file__).parent / "limericks.txt").read_text()
    characters, limericks = sorted(set(text)), text.split("\n\n")

    def pieces(limericks, every, count):
        numbers = torch.tensor([characters.index(character) for character in "\n\n".join(limericks)])
        rows = numbers.unfold(0, LENGTH + 1, every)
        if count > len(rows):
            workload.refuse(f"the text has {len(rows)} pieces of this kind, not {count}")
        return workload.Images(rows[:count, :-1], rows[:count, 1:])  # what is right comes one place later

    held_back = limericks[::7]
    kept = [limerick for limerick in limericks if limerick not in held_back]
    return characters, pieces(kept, 8, arguments.train_size), pieces(held_back, LENGTH, arguments.test_size)


def build_model(characters, length=LENGTH, hidden=64, heads=HEADS, layers=2):
    """A transformer that answers, for each place of a text, which of the characters comes next."""
    embedding, head = nn.Embedding(characters, hidden), nn.Linear(hidden, characters)
    return Transformer(embedding, head, length, hidden, heads, layers, causal=True)


def shard(model, mesh):
    """Cut the model over mesh["tensor"], each matrix by heads, neurons or characters; then over mesh["data"]."""
    gathered = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    plan = {
        "embedding": ColwiseParallel(output_layouts=Replicate()),
        "position": ColwiseParallel(output_layouts=Replicate()),
        "blocks.*.attention": gathered,  # once for all three: each would send a gradient of its own back
        "blocks.*.attention.query": ColwiseParallel(),
        "blocks.*.attention.key": ColwiseParallel(),
        "blocks.*.attention.value": ColwiseParallel(),
        "blocks.*.attention.project": RowwiseParallel(),
        "blocks.*.feed_forward.up": ColwiseParallel(),
        "blocks.*.feed_forward.down": RowwiseParallel(),
        "head": ColwiseParallel(use_local_output=False),
    }
    parallelize_module(model, mesh["tensor"], plan)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])  # in this order: each cuts what the other has left
    return fully_shard(model, mesh=mesh["data"])


@torch.no_grad()
def write(model, characters, device, arguments, count=3, length=200):
    """Limericks by the model. All processes write the same: each has a part of the model only."""
    generator = torch.Generator().manual_seed(arguments.seed)  # the same, or they read different texts
    start = [characters.index(character) for character in "There was a"]
    text = torch.tensor([start] * count)
    while text.shape[1] < length:
        scores = model(text[:, -LENGTH:].to(device)).full_tensor()[:, -1].cpu()
        chances = (scores / arguments.temperature).softmax(dim=1)
        text = torch.cat([text, torch.multinomial(chances, 1, generator=generator)], dim=1)
    return ["".join(characters[number] for number in row).split("\n\n")[0] for row in text.tolist()]


def show(rank, when, limericks):
    if rank == 0:
        print(f"--- {when} ---", *limericks, "---", sep="\n\n", flush=True)


def save_snapshot(arguments, model, optimizer, scheduler, epoch, step, loss_sum):
    parts = dict(zip(("model", "optimizer"), state_dict.get_state_dict(model, optimizer), strict=True))
    state = parts | {"scheduler": scheduler, "epoch": epoch, "step": step, "loss_sum": loss_sum}
    path = arguments.out / f"{arguments.lesson}.epoch{epoch:04}-step{step:06}.snapshot"
    aside = path.with_suffix(".aside")
    checkpoint.save(state, checkpoint_id=aside)  # every process writes its own part
    if dist.get_rank() == 0:
        shutil.rmtree(path, ignore_errors=True)
        aside.rename(path)  # only now: a crash at any moment leaves a whole snapshot, or none
        for old in sorted(arguments.out.glob(f"{arguments.lesson}.epoch*.snapshot"))[:-2]:
            shutil.rmtree(old)


def load_snapshot(arguments, model, optimizer, scheduler, device):
    paths = sorted(arguments.out.glob(f"{arguments.lesson}.epoch*.snapshot"))
    loss_sum = torch.zeros((), device=device)
    if not paths:
        return 1, 0, loss_sum
    parts = dict(zip(("model", "optimizer"), state_dict.get_state_dict(model, optimizer), strict=True))
    state = parts | {"scheduler": scheduler, "epoch": 0, "step": 0, "loss_sum": loss_sum}
    checkpoint.load(state, checkpoint_id=paths[-1])  # every process reads its part, whatever the mesh was
    state_dict.set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    if dist.get_rank() == 0:
        print(f"resumed in epoch {state['epoch']} after step {state['step']}", flush=True)
    return state["epoch"], state["step"], loss_sum


@torch.no_grad()
def count_correct(model, inputs, targets, device):
    return (model(inputs.to(device)).full_tensor().argmax(dim=2) == targets.to(device)).sum()


if __name__ == "__main__":
    workload.end_with_parent()
    parser = workload.parser(__file__, __doc__)
    parser.set_defaults(epochs=8, batch_size=24, lr=0.006, train_size=3600, test_size=30)
    parser.add_argument("--tensor-parallel", type=int, help="processes that share heads (2, or 1 if odd)")
    parser.add_argument("--temperature", type=float, default=0.6, help="of the writing: 0.1 careful, 1 wild (0.6)")
    parser.add_argument("--snapshot-every", type=int, help="steps between snapshots (those of an epoch)")
    parser.add_argument("--crash-at", type=int, help="the epoch in which a process dies, once")
    parser.add_argument("--dry-run", type=int, metavar="RANKS", help="train nothing: see dry_run.py")
    arguments = parser.parse_args()
    if arguments.dry_run:
        import dry_run

        sys.exit(dry_run.main([str(arguments.dry_run)]))
    workload.require_torchrun(__file__)
    rank, arguments.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    workload.check(arguments)
    tensor = arguments.tensor_parallel or 2 - arguments.world_size % 2
    if arguments.world_size % tensor or HEADS % tensor:
        workload.refuse(f"--tensor-parallel {tensor} does not divide {HEADS} heads and all processes: take 1")
    device = workload.pick_device(rank)
    dist.init_process_group(
        backend=dist.get_default_backend_for_device(device),
        device_id=None if device.type == "cpu" else device,
        timeout=timedelta(minutes=2),  # by default a process waits 30 minutes (NCCL: 10) for one that hangs
    )
    sizes = arguments.world_size // tensor, tensor
    mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("data", "tensor"))
    train(rank, mesh, device, arguments)
    gc.collect()  # a DDP object that outlives its group aborts the process at exit, now and then
    dist.destroy_process_group()
