"""Lesson 07, grown from lesson 04: products in 16 bits, one all-reduce for many backwards.

    torchrun --standalone --nproc-per-node 2 lessons/07_mixed_precision.py

You will see lesson 01's losses to two digits or more, and at the end what a step gave to
all_reduce. With --precision fp32 --clip-norm inf they are lesson 01's, however many
micro-batches --accumulate asks for. With --sync-always each micro-batch sends all
gradients: two micro-batches, twice the bytes, for the same result.
"""

import os
import time
from collections import Counter
from contextlib import nullcontext

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
    train_set, test_set = workload.load_images(arguments, device)
    sampler = DistributedSampler(train_set, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    indices = range(rank, len(test_set), world_size)  # a DistributedSampler would count some images twice
    test_loader = DataLoader(test_set, 500, sampler=indices, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    counts = Counter()
    model.register_comm_hook(counts, count_and_average)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    precision = pick_precision(arguments.precision, device)
    autocast = torch.autocast(device.type, DTYPES[precision], enabled=precision != "fp32")
    # Below 6e-8 fp16 has only 0. So the loss is multiplied, and gradients are divided later.
    scaler = torch.amp.GradScaler(device.type, arguments.first_scale, enabled=precision == "fp16")

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without it, every epoch has the order of the first
        loss_sum = torch.zeros((), device=device)
        for images, labels in workload.progress(train_loader, epoch):
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            image_parts = images.tensor_split(arguments.accumulate)
            label_parts = labels.tensor_split(arguments.accumulate)
            micro_batches = zip(image_parts, label_parts, strict=True)
            for number, (images, labels) in enumerate(micro_batches, 1):
                will_send = number == arguments.accumulate or arguments.sync_always
                # Around forward too: there DDP decides whether backward will send.
                with nullcontext() if will_send else model.no_sync():
                    with autocast:
                        scores = model(images)
                        # Means would count the images of a smaller part for more.
                        loss = cross_entropy(scores, labels, reduction="sum") / size
                    scaler.scale(loss).backward()
                loss_sum += loss.detach()
            scaler.unscale_(optimizer)  # or else clipping would find them too long
            norm = nn.utils.clip_grad_norm_(model.parameters(), arguments.clip_norm)
            scale = scaler.get_scale()
            scaler.step(optimizer)  # skips it if a gradient is inf, as it then is everywhere
            scaler.update()
            counts["steps"] += 1
            # Added as a tensor: an `if` would wait here for the GPU.
            counts["clipped"] += norm.isfinite() & (norm > arguments.clip_norm)
            if scaler.get_scale() < scale:
                counts["skipped"] += 1
        scheduler.step()
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / len(train_loader) / world_size
        seconds = time.perf_counter() - start

        correct = count_correct(model.module, test_loader, device)  # DDP's forward may wait for others
        dist.all_reduce(correct)
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    if rank == 0:  # all hold the same weights, and would write to the same file at once
        show(counts, precision)
        torch.save(model.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")


def pick_precision(wanted, device):
    """bf16 where the hardware has it: it has the range of fp32, and needs no scale."""
    if wanted != "auto":
        return wanted
    has_bf16 = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if has_bf16 else "fp16"


def count_and_average(counts, bucket):
    counts["reductions"] += 1
    counts["bytes"] += bucket.buffer().nbytes
    return allreduce_hook(None, bucket)  # what DDP does by itself when it has no hook


def show(counts, precision):
    steps = counts["steps"]
    reductions = counts["reductions"] / steps
    size = counts["bytes"] / steps
    print(
        f"{precision} | each step: all-reduces {reductions:g}, bytes {size:,.0f} | "
        f"steps {steps}, clipped {int(counts['clipped'])}, skipped {counts['skipped']}"
    )


@torch.no_grad()
def count_correct(model, test_loader, device):
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in test_loader:
        correct += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    return correct


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    option = parser.add_argument
    precisions = ["auto", *DTYPES]
    option("--precision", choices=precisions, default="auto", help="auto: bf16, or fp16")
    option("--accumulate", type=int, default=2, help="micro-batches in a step (2)")
    option("--sync-always", action="store_true", help="average after each micro-batch")
    option("--clip-norm", type=float, default=5.0, help="of a longer gradient (5; or inf)")
    option("--first-scale", type=float, default=2.0**16, help="of a loss in fp16 (65536)")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    size = arguments.batch_size // world_size
    parts, norm, scale = arguments.accumulate, arguments.clip_norm, arguments.first_scale
    if not 1 <= parts <= size:
        workload.refuse(f"--accumulate must be from 1 to the {size} images of a process, not {parts}")
    if not norm > 0:
        workload.refuse(f"--clip-norm must be above 0 (inf to clip nothing), not {norm}")
    if not 1 <= scale <= 2**32:
        workload.refuse(f"--first-scale must be from 1 to {2**32}, not {scale:g}")
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))  # RANK counts over all machines
    backend = dist.get_default_backend_for_device(device)  # NCCL for GPUs, gloo for CPUs
    dist.init_process_group(backend)
    train(rank, world_size, device, arguments)
    dist.destroy_process_group()
