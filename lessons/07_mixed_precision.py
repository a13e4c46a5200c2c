"""Lesson 07, grown from lesson 04: one all-reduce for several backward passes, and bf16.

    torchrun --standalone --nproc-per-node 2 lessons/07_mixed_precision.py

You will see losses that agree with lesson 01's to two digits or more (with --precision
fp32, to all printed digits). Each process splits its images into --accumulate
micro-batches, and DDP averages gradients once per step. autocast multiplies in bf16;
weights and gradients stay in fp32.
"""

import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

import workload


def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments, device)
    sampler = DistributedSampler(train_set, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    # A DistributedSampler may repeat some test images.
    indices = range(rank, len(test_set), world_size)
    test_loader = DataLoader(test_set, 500, sampler=indices, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=arguments.precision == "bf16")
    parts = arguments.accumulate

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without set_epoch, every epoch uses the same order
        loss_sum = torch.zeros((), device=device)
        for images, labels in workload.progress(train_loader, epoch):
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            micro_batches = zip(images.tensor_split(parts), labels.tensor_split(parts), strict=True)
            for number, (images, labels) in enumerate(micro_batches, 1):
                # no_sync must also cover forward, where DDP decides whether backward all-reduces.
                with nullcontext() if number == parts else model.no_sync():
                    with autocast:
                        loss = cross_entropy(model(images), labels, reduction="sum") / size
                    loss.backward()
                loss_sum += loss.detach()
            optimizer.step()
        scheduler.step()
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / len(train_loader) / world_size
        seconds = time.perf_counter() - start

        # DDP's forward may wait for other ranks, so evaluate the model inside.
        correct = workload.count_correct(model.module, test_loader, device)
        dist.all_reduce(correct)
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    if rank == 0:  # all ranks hold the same weights, so only rank 0 saves them
        torch.save(model.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    option = parser.add_argument
    option("--accumulate", type=int, default=2, help="micro-batches per step (2)")
    option("--precision", choices=("fp32", "bf16"), default="bf16", help="(bf16)")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    size, parts = arguments.batch_size // world_size, arguments.accumulate
    if not 1 <= parts <= size:
        workload.refuse(f"--accumulate must be from 1 to the {size} images of a process, not {parts}")
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    workload.require_precision(arguments.precision, device)
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    dist.init_process_group(backend)
    train(rank, world_size, device, arguments)
    dist.destroy_process_group()
