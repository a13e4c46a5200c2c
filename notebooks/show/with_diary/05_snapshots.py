"""Notebook 05: lesson 05, in which each process also writes a diary of its steps.

    torchrun --standalone --nproc-per-node 2 notebooks/show/with_diary/05_snapshots.py

grown from lesson 05: the loop counts its steps, and writes a line for each.
"""

import os
import time

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
    parts = {"model": model.module, "optimizer": optimizer, "scheduler": scheduler}
    snapshot = arguments.out / f"{arguments.lesson}.snapshot"
    temporary = snapshot.with_suffix(".temporary")
    first = 1
    if snapshot.exists():
        state = torch.load(snapshot, map_location="cpu", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(state[name])
        first = state["epoch"] + 1
        if rank == 0:
            print(f"resumed after epoch {state['epoch']}", flush=True)
            if first > arguments.epochs:
                workload.say_nothing_left(arguments.out, arguments.lesson)

    for epoch in range(first, arguments.epochs + 1):
        start = time.perf_counter()
        sampler.set_epoch(epoch)  # without set_epoch, every epoch uses the same order
        loss_sum = torch.zeros((), device=device)
        for step, (images, labels) in enumerate(workload.progress(train_loader, epoch), 1):
            images, labels = images.to(device), labels.to(device)
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
            with open(arguments.out / f"diary-{rank}", "a") as diary:
                number = (epoch - 1) * len(train_loader) + step
                print(number, time.time(), loss.item(), file=diary)
        workload.crash_once(epoch == arguments.crash_at)
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
            state = {name: part.state_dict() for name, part in parts.items()} | {"epoch": epoch}
            torch.save(state, temporary)
            temporary.replace(snapshot)  # a crash while saving leaves the previous snapshot intact

    if rank == 0:  # all ranks hold the same weights, so only rank 0 saves them
        torch.save(model.module.cpu().state_dict(), arguments.out / f"{arguments.lesson}.pt")


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    parser.add_argument("--crash-at", type=int, help="epoch in which a process is killed")
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    dist.init_process_group(backend)
    train(rank, world_size, device, arguments)
    dist.destroy_process_group()
