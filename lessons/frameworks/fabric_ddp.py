"""Lesson 04 with Lightning Fabric: the loop stays yours, and Fabric handles devices and wrapping.

    fabric run --devices 2 lessons/frameworks/fabric_ddp.py

You will see lesson 01's losses again. `fabric run` is torchrun with Fabric's options: --accelerator and
--precision need no line in the script; --strategy is refused, because the script sets its own, with a time
limit. On a Mac, add --accelerator cpu. The rendezvous uses port 29400; --main-port changes it.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

try:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}: pip install -r lessons/frameworks/requirements.txt")
sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload


def train(fabric, arguments):
    rank, world_size = fabric.global_rank, fabric.world_size
    workload.set_seed(arguments.seed)
    train_set, test_set = workload.load_images(arguments)
    # + 1, because Fabric calls set_epoch itself and counts from 0, even in a resumed run.
    sampler = DistributedSampler(train_set, seed=arguments.seed + 1, drop_last=True)
    size = arguments.batch_size // world_size
    train_loader = DataLoader(train_set, size, sampler=sampler, drop_last=True, collate_fn=workload.collate)
    # A DistributedSampler may repeat some test images.
    indices = range(rank, len(test_set), world_size)
    test_loader = DataLoader(test_set, 500, sampler=indices, collate_fn=workload.collate)

    model = workload.ConvNet(train_set.images.shape[1:], arguments.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)
    model, optimizer = fabric.setup(model, optimizer)
    train_loader, test_loader = fabric.setup_dataloaders(
        train_loader, test_loader, use_distributed_sampler=False
    )

    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        loss_sum = torch.zeros((), device=fabric.device)
        for images, labels in workload.progress(train_loader, epoch):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            loss_sum += loss.detach()
        scheduler.step()
        mean_loss = fabric.all_reduce(loss_sum, reduce_op="mean").item() / len(train_loader)
        seconds = time.perf_counter() - start

        correct = count_correct(model.module, test_loader, fabric.device)
        correct = fabric.all_reduce(correct, reduce_op="sum")
        speed = len(train_loader) * arguments.batch_size / seconds
        if rank == 0:
            workload.report(arguments, epoch, mean_loss, correct.item() / len(test_set), speed)

    if rank == 0:  # all ranks hold the same weights, so only rank 0 saves them
        torch.save(model.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")


@torch.no_grad()
def count_correct(model, test_loader, device):
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for images, labels in test_loader:
        correct += (model(images).argmax(dim=1) == labels).sum()
    return correct


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    arguments = parser.parse_args()
    if "LT_CLI_USED" not in os.environ:
        workload.refuse(f"this lesson is started by fabric run --devices 2 {os.path.relpath(__file__)}")
    arguments.world_size = int(os.environ["WORLD_SIZE"])
    workload.check(arguments, can_share=False)
    fabric = Fabric(
        accelerator="cpu" if workload.gpu_count() == 0 else "auto",  # a Mac's GPU has no collectives
        strategy=DDPStrategy(timeout=timedelta(minutes=2)),
    )
    train(fabric, arguments)
    dist.destroy_process_group()
