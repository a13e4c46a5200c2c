"""Lesson 04 with Horovod, as it was written from 2017 on.

    horovodrun -np 2 python lessons/older/horovod_ddp.py

You will see that there is no module named horovod: its last release, 0.28.1, is from June 2023.
"""

import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload


def train(rank, world_size, device, arguments):
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments, device)
    sampler = DistributedSampler(train_set, world_size, rank, seed=arguments.seed, drop_last=True)
    size = arguments.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    # A DistributedSampler may repeat some test images.
    indices = range(rank, len(test_set), world_size)
    test_loader = DataLoader(test_set, 500, sampler=indices, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
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
        loss_sum = hvd.allreduce(loss_sum, op=hvd.Sum)
        mean_loss = loss_sum.item() / len(train_loader) / world_size
        seconds = time.perf_counter() - start

        correct = hvd.allreduce(workload.count_correct(model, test_loader, device), op=hvd.Sum)
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    if rank == 0:  # all ranks hold the same weights, so only rank 0 saves them
        torch.save(model.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    arguments = parser.parse_args()
    hvd.init()
    rank, arguments.world_size = hvd.rank(), hvd.size()
    workload.check(arguments)
    device = workload.pick_device(hvd.local_rank())
    train(rank, arguments.world_size, device, arguments)
