"""Lesson 07, grown from lesson 04: half the bits for each number, and one all-reduce for several backwards.

    torchrun --standalone --nproc-per-node 2 lessons/07_mixed_precision.py

You will see lesson 01's losses to two or three digits, and at the end what a step has sent. The products
are computed in 16 bits, the weights and their gradients stay in 32. With --precision fp32 --clip-norm inf
the losses are lesson 01's. With --sync-always, each micro-batch sends all gradients, for the same result.
"""

import gc
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
    # fp16 ends at 6e-8: smaller gradients would be 0. So the loss is multiplied, and the gradients divided.
    scaler = torch.amp.GradScaler(device.type, arguments.first_scale, enabled=precision == "fp16")

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without it, every epoch has the order of the first
        loss_sum = torch.zeros((), device=device)
        for images, labels in workload.progress(train_loader, epoch, quiet=rank > 0):
            images, labels = images.to(device), labels.to(device)
            parts = zip(images.tensor_split(arguments.accumulate), labels.tensor_split(arguments.accumulate))
            optimizer.zero_grad()
            for number, (images, labels) in enumerate(parts, 1):
                is_last = number == arguments.accumulate
                # Around the forward pass too: it is there that DDP decides whether backward will send.
                with nullcontext() if is_last or arguments.sync_always else model.no_sync():
                    with autocast:
                        loss = cross_entropy(model(images), labels, reduction="sum") / size
                    scaler.scale(loss).backward()
                loss_sum += loss.detach()
            scaler.unscale_(optimizer)  # or else the norm below is that of gradients 65,536 times as large
            norm = nn.utils.clip_grad_norm_(model.parameters(), arguments.clip_norm)
            scale = scaler.get_scale()
            scaler.step(optimizer)  # not if a gradient is infinite. All have the same ones: all skip the step
            scaler.update()
            counts["steps"] += 1
            counts["skipped"] += scaler.get_scale() < scale
            counts["clipped"] += (norm > arguments.clip_norm) & norm.isfinite()
        scheduler.step()
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / len(train_loader) / world_size
        seconds = time.perf_counter() - start

        correct = count_correct(model.module, test_loader, device)  # DDP's forward may wait for others
        dist.all_reduce(correct)
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    if rank == 0:
        print(f"{precision}: each step {counts['reductions'] / counts['steps']:g} all-reduces, {counts['bytes'] / counts['steps']:,.0f} bytes; of {counts['steps']} steps {counts['clipped']} clipped, {counts['skipped']} skipped")
    if rank == 0:  # they all hold the same weights, and would write them into each other's file
        torch.save(model.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")


def pick_precision(wanted, device):
    """bf16 where the hardware has it: it has the range of fp32. fp16 has more digits, but needs the scaler."""
    if wanted != "auto":
        return wanted
    has_bf16 = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if has_bf16 else "fp16"


def count_and_average(counts, bucket):
    counts.update(reductions=1, bytes=bucket.buffer().nbytes)
    return allreduce_hook(None, bucket)  # what DDP does when it has no hook


@torch.no_grad()
def count_correct(model, test_loader, device):
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in test_loader:
        correct += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
    return correct


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    option = parser.add_argument
    option("--precision", choices=["auto", *DTYPES], default="auto", help="of the products (auto)")
    option("--accumulate", type=int, default=2, help="micro-batches a step; the batch stays as it is (2)")
    option("--clip-norm", type=float, default=1.0, help="of the gradients, at most; inf for never (1.0)")
    option("--first-scale", type=float, default=2.0**16, help="of fp16's loss; falls when it must (65536)")
    option("--sync-always", action="store_true", help="average after each micro-batch: without no_sync")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    rank, arguments.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    workload.check(arguments)
    device = workload.pick_device(rank)
    dist.init_process_group(
        backend=dist.get_default_backend_for_device(device),
        device_id=None if device.type == "cpu" else device,
        timeout=timedelta(minutes=2),  # by default a process waits 30 minutes (NCCL: 10) for one that hangs
    )
    train(rank, arguments.world_size, device, arguments)
    gc.collect()  # a DDP object that outlives its group aborts the process at exit, now and then
    dist.destroy_process_group()
