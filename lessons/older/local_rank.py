"""A script of 2020, older than lesson 04: its launcher passes the local rank as an argument.

    python -m torch.distributed.launch --nproc_per_node 2 lessons/older/local_rank.py

You will see an error. Three old lines of the script are errors today; README.md fixes them one by one. The
fixed script prints lesson 01's losses.
"""

import os
import sys
import time
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
    train_loader = DataLoader(
        train_set, size, shuffle=True, sampler=sampler, drop_last=True, collate_fn=workload.collate
    )
    # A DistributedSampler may repeat some test images.
    indices = range(rank, len(test_set), world_size)
    test_loader = DataLoader(test_set, 500, sampler=indices, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width).to(device)
    model = nn.parallel.DistributedDataParallel(
        model, device_ids=[arguments.local_rank], output_device=arguments.local_rank
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without set_epoch, every epoch uses the same order
        loss_sum = torch.zeros((), device=device)
        for images, labels in workload.progress(train_loader, epoch):
            images, labels = images.to(device), labels.to(device)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
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
    parser.add_argument("--local_rank", type=int, default=0, help="set by the launcher")
    arguments = parser.parse_args()
    workload.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    print(f"rank {rank} takes device {arguments.local_rank}", flush=True)
    device = workload.pick_device(arguments.local_rank)
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    dist.init_process_group(backend)
    train(rank, world_size, device, arguments)
    dist.destroy_process_group()
