"""Lesson 17, grown from lesson 13: data, pipeline, context and tensor parallelism on one mesh.

    torchrun --standalone --nproc-per-node 8 lessons/17_one_mesh.py

You will see the sizes of the mesh, and then the same losses as on one process. Eight
processes form two stages, and each stage holds half of the blocks. A stage consists of
two pairs of processes: each pair has half of the positions, and each process holds half
of every matrix.
"""

import os
import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import workload
from parts import limericks, one_mesh  # the other half of this lesson is in one_mesh
from parts.ring_attention import positions_of, ring_attention
from parts.transformer import Transformer

HEADS, LAYERS = 4, 4


@workload.print_first_error
def train(rank, mesh, device, arguments):
    # Unsharded layers start identical only because every rank uses the same seed.
    workload.set_seed(arguments.seed)
    characters, train_set, test_set = limericks.load(arguments, device)
    # With rank and world_size, processes at the same position in "data" would read different texts.
    data_rank, data_size = mesh["data"].get_local_rank(), mesh["data"].size()
    sampler = DistributedSampler(train_set, data_size, data_rank, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // data_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    test_loader = DataLoader(test_set, len(test_set), collate_fn=workload.collate)

    context_rank, context_size = mesh["context"].get_local_rank(), mesh["context"].size()
    positions = positions_of(context_rank, context_size, "zigzag", arguments.length).to(device)
    model = build_model(len(characters), arguments.length, arguments.width).to(device)
    shard(model, mesh)
    schedule = make_schedule(model, mesh, device, arguments)
    one_mesh.show(mesh)
    # Neither foreach, PyTorch's default on a GPU, nor fused can mix sharded and ordinary parameters.
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, foreach=False)
    steps = arguments.epochs * len(train_loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, arguments.lr, steps, pct_start=0.2)

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without set_epoch, every epoch uses the same order
        loss_sum = torch.zeros((), device=device)
        for texts, following in workload.progress(train_loader, epoch):
            texts, following = texts.to(device)[:, positions], following.to(device)[:, positions]
            losses = []  # only the last stage adds losses, one per micro-batch
            optimizer.zero_grad()
            # Repeat the positions for each text, because a schedule splits every input into micro-batches.
            repeated = positions.expand_as(texts)
            schedule.step(texts, repeated, target=following, losses=losses, return_outputs=False)
            average_gradients(model, mesh)
            optimizer.step()
            scheduler.step()
            loss_sum += sum(loss.detach() for loss in losses) / arguments.microbatches
        # Leave out "tensor": processes that share matrices have the same loss.
        for name in ("data", "pipeline", "context"):
            dist.all_reduce(loss_sum, group=mesh.get_group(name))
        mean_loss = loss_sum.item() / len(train_loader) / data_size / context_size
        seconds = time.perf_counter() - start

        correct = count_correct(schedule, test_loader, positions, device)
        for name in ("pipeline", "context"):  # every "data" rank tests on all texts
            dist.all_reduce(correct, group=mesh.get_group(name))
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / test_set.labels.numel(), speed)

    # Gathering is a collective: if only rank 0 called it, rank 0 would wait forever.
    weights = {name: gather(value) for name, value in model.named_parameters()}
    weights = one_mesh.gather_stages(weights, mesh)
    if rank == 0:
        torch.save(weights, arguments.out / f"{arguments.lesson}.pt")


def build_model(characters, length=limericks.LENGTH, hidden=64, heads=HEADS, layers=LAYERS):
    """A transformer that predicts the next character at each position of a text."""
    embedding = nn.Embedding(characters, hidden)  # each character by itself
    head = nn.Linear(hidden, characters)
    model = Transformer(embedding, head, length, hidden, heads, layers, causal=True)
    nn.init.normal_(model.position.weight, std=0.02)
    nn.init.normal_(embedding.weight, std=0.02)  # larger initial values slow learning
    return model


def shard(model, mesh):
    """Shard matrices over "tensor", positions over "context", blocks over "pipeline"."""
    parallelize_module(model, mesh["tensor"], make_plan())
    for block in model.blocks:
        block.attention.attend = partial(ring_attention, group=mesh.get_group("context"), order="zigzag")
    one_mesh.keep_stage(model, mesh)  # drop blocks last, because the plan needs them all


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


def make_schedule(model, mesh, device, arguments):
    number, count = mesh["pipeline"].get_local_rank(), mesh["pipeline"].size()
    stage = PipelineStage(model, number, count, device, group=mesh.get_group("pipeline"))
    return Schedule1F1B(stage, arguments.microbatches, loss_of)


def loss_of(scores, following):
    return cross_entropy(scores.flatten(0, 1), following.flatten())


def average_gradients(model, mesh):
    """Average over "data", where texts differ, and over "context", where positions differ."""
    for parameter in model.parameters():
        # Average in place: the optimizer reads this shard, not a copy of it.
        gradient = parameter.grad.to_local() if isinstance(parameter, DTensor) else parameter.grad
        for name in ("data", "context"):
            dist.all_reduce(gradient, group=mesh.get_group(name))
            gradient /= mesh[name].size()


def gather(value):
    value = value.full_tensor() if isinstance(value, DTensor) else value
    return value.detach().cpu()


@torch.no_grad()
def count_correct(schedule, test_loader, positions, device):
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for texts, following in test_loader:
        texts, following = texts.to(device)[:, positions], following.to(device)[:, positions]
        scores = schedule.eval(texts, positions.expand_as(texts), target=following)
        if scores is not None:  # only the last stage has scores
            correct += (scores.argmax(dim=2) == following).sum()
    return correct


if __name__ == "__main__":
    workload.end_with_parent()
    parser = workload.parser(__file__, __doc__)
    limericks.sizes(parser)
    parser.set_defaults(train_size=96, test_size=12, epochs=4, width=32)
    one_mesh.options(parser)
    arguments = parser.parse_args()
    workload.require_torchrun(__file__, torch="2.13")  # before 2.13, a schedule accepts only one batch size
    workload.check(arguments, replicas=1)  # one_mesh.check does the rest
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    sizes = one_mesh.check(arguments, HEADS, LAYERS)
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    device_id = None if device.type == "cpu" else device  # given a device_id, NCCL starts immediately
    dist.init_process_group(backend, device_id=device_id, timeout=timedelta(minutes=2))
    mesh = workload.make_mesh(device, **sizes)
    train(rank, mesh, device, arguments)
    dist.destroy_process_group()
