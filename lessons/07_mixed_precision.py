"""Lesson 07, grown from lesson 04: products in 16 bits, and one all-reduce for several backward passes.

    torchrun --standalone --nproc-per-node 2 lessons/07_mixed_precision.py

You will see lesson 01's losses to two digits or more, and at the end what a step gave to all_reduce.
With --precision fp32 --clip-norm inf they are lesson 01's, whatever --accumulate cuts a batch into. With
--sync-always each micro-batch sends all gradients: two micro-batches, twice the bytes, for the same result.
"""

import os
import time
from collections import Counter
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import workload

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments)
    sampler = DistributedSampler(train_set, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    share = range(rank, len(test_set), world_size)  # a DistributedSampler would count some images twice
    test_loader = DataLoader(test_set, 500, sampler=share, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:]).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    counts = Counter()
    model.register_comm_hook(counts, count_and_average)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    precision = pick_precision(arguments.precision, device)
    autocast = torch.autocast(device.type, DTYPES[precision], enabled=precision != "fp32")
    # Below 6e-8 fp16 has only 0. So the loss is multiplied by a scale, and later the gradients divided by it.
    scaler = torch.amp.GradScaler(device.type, arguments.first_scale, enabled=precision == "fp16")

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without it, every epoch has the order of the first
        loss_sum = torch.zeros((), device=device)
        for images, labels in workload.progress(train_loader, epoch, quiet=rank > 0):
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            parts = [whole.tensor_split(arguments.accumulate) for whole in (images, labels)]
            for number, (images, labels) in enumerate(zip(*parts, strict=True), 1):
                is_last = number == arguments.accumulate
                # Around the forward pass too: it is there that DDP decides whether backward will send.
                with nullcontext() if is_last or arguments.sync_always else model.no_sync():
                    with autocast:  # a mean of each part would count the images of a smaller one for more
                        loss = cross_entropy(model(images), labels, reduction="sum") / size
                    scaler.scale(loss).backward()
                loss_sum += loss.detach()
            scaler.unscale_(optimizer)  # before clipping, which would find them too long by the scale
            norm = nn.utils.clip_grad_norm_(model.parameters(), arguments.clip_norm)
            scale = scaler.get_scale()
            scaler.step(optimizer)  # or skips it, if one is inf: averaged, they are the same on all ranks
            scaler.update()
            counts["steps"] += 1
            counts["clipped"] += (norm > arguments.clip_norm) & norm.isfinite()
            counts["skipped"] += scaler.get_scale() < scale
        scheduler.step()
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / len(train_loader) / world_size
        seconds = time.perf_counter() - start

        correct = count_correct(model.module, test_loader, device)  # DDP's forward may wait for others
        dist.all_reduce(correct)
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    if rank == 0:  # they all hold the same weights, and would write them into each other's file
        show(counts, precision)
        torch.save(model.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")


def pick_precision(wanted, device):
    """bf16 where the hardware has it: its range is that of fp32, and it needs no scale."""
    if wanted != "auto":
        return wanted
    has_bf16 = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if has_bf16 else "fp16"


def count_and_average(counts, bucket):
    counts["reductions"] += 1
    counts["bytes"] += bucket.buffer().nbytes
    return allreduce_hook(None, bucket)  # what DDP does by itself when it has no hook


def show(counts, precision):
    steps, clipped, skipped = (int(counts[name]) for name in ("steps", "clipped", "skipped"))
    a_step = f"all-reduces {counts['reductions'] / steps:g}, bytes {counts['bytes'] / steps:,.0f}"
    print(f"{precision} | each step: {a_step} | steps {steps}, clipped {clipped}, skipped {skipped}")


@torch.no_grad()
def count_correct(model, test_loader, device):
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in test_loader:
        correct += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    return correct


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    option = parser.add_argument
    option("--precision", choices=["auto", *DTYPES], default="auto", help="bf16, or fp16 without it (auto)")
    option("--accumulate", type=int, default=2, help="micro-batches in a step; its images stay the same (2)")
    option("--sync-always", action="store_true", help="average after each micro-batch: without no_sync")
    option("--clip-norm", type=float, default=5.0, help="clip a longer gradient to this; inf: never (5)")
    option("--first-scale", type=float, default=2.0**16, help="of the loss in fp16, falls at need (65536)")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    rank, arguments.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    workload.check(arguments)
    size = arguments.batch_size // arguments.world_size
    if not 1 <= arguments.accumulate <= size:
        workload.refuse(
            f"--accumulate must be from 1 to the {size} images of a process, not {arguments.accumulate}"
        )
    if not arguments.clip_norm > 0:
        workload.refuse(f"--clip-norm must be above 0 (inf to clip nothing), not {arguments.clip_norm}")
    if not 1 <= arguments.first_scale <= 2**32:
        workload.refuse(f"--first-scale must be from 1 to {2**32}, not {arguments.first_scale:g}")
    device = workload.pick_device(rank)
    dist.init_process_group(
        backend=dist.get_default_backend_for_device(device),
        device_id=None if device.type == "cpu" else device,
        timeout=timedelta(minutes=2),  # by default a process waits 30 minutes (NCCL: 10) for one that hangs
    )
    train(rank, arguments.world_size, device, arguments)
    workload.release_group()  # a thread of it that is left may abort the process at exit
    dist.destroy_process_group()
