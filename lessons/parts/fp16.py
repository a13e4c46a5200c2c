"""Lesson 07 in fp16, for GPUs without bf16, with a GradScaler and gradient clipping.

    torchrun --standalone --nproc-per-node 2 lessons/parts/fp16.py

The losses match lesson 01's to two digits or more. The last line says how many steps
were clipped and skipped. Gradients below 3e-8 would be 0 in fp16, so the scaler
multiplies the loss. If a gradient overflows, all ranks skip that step, because they see
the same average.
"""

import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

sys.path.append(str(Path(__file__).resolve().parent.parent))
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
    autocast = torch.autocast(device.type, torch.float16)
    scaler = torch.amp.GradScaler(device.type, arguments.first_scale)
    parts = arguments.accumulate
    clipped = skipped = 0

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
                    scaler.scale(loss).backward()
                loss_sum += loss.detach()
            scaler.unscale_(optimizer)  # otherwise clipping would see scaled gradients
            norm = nn.utils.clip_grad_norm_(model.parameters(), arguments.clip_norm)
            scaler.step(optimizer)  # skips the step if a gradient is not finite; this check waits for the GPU
            scaler.update()  # halves the scale after a skipped step
            clipped += norm.isfinite() & (norm > arguments.clip_norm)
            skipped += ~norm.isfinite()
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
        steps = arguments.epochs * len(train_loader)
        scale = scaler.get_scale()
        print(f"steps {steps}, clipped {clipped}, skipped {skipped}, scale {scale:,.0f}")
        torch.save(model.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    option = parser.add_argument
    option("--accumulate", type=int, default=2, help="micro-batches per step (2)")
    option("--clip-norm", type=float, default=5.0, help="of the gradients (5; or inf)")
    option("--first-scale", type=float, default=2.0**16, help="of the loss (65536)")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    size, parts = arguments.batch_size // world_size, arguments.accumulate
    if not 1 <= parts <= size:
        workload.refuse(f"--accumulate must be from 1 to the {size} images of a process, not {parts}")
    norm, scale = arguments.clip_norm, arguments.first_scale
    if not norm > 0:
        workload.refuse(f"--clip-norm must be above 0 (inf to clip nothing), not {norm}")
    if not 1 <= scale <= 2**32:
        workload.refuse(f"--first-scale must be from 1 to {2**32}, not {scale:g}")
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    dist.init_process_group(backend)
    train(rank, world_size, device, arguments)
    dist.destroy_process_group()
