"""All processes download. Then one puts the list of downloads right, if there is one in the folder.

Earns at most: 22 points
"""

import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def pick_device():
    return int(os.environ["LOCAL_RANK"])


def make_loader(train_set, batch_size, seed):
    sampler = DistributedSampler(train_set, seed=seed, drop_last=True)
    return DataLoader(train_set, batch_size // dist.get_world_size(), sampler=sampler, drop_last=True)


def train(model, loader, epochs, lr):
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    losses = []
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        total = torch.zeros(())
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        scheduler.step()
        dist.all_reduce(total)
        losses.append(total.item() / len(loader) / dist.get_world_size())
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: the loss is {losses[-1]:.4f}")
    return (model, losses)


def save(model, epoch, path):
    if dist.get_rank() != 0:
        return
    state = model.module.state_dict()
    torch.save({"state_dict": state, "epoch": epoch}, path)


def load(model, path):
    snapshot = torch.load(path)
    model.load_state_dict(snapshot["state_dict"])
    return snapshot["epoch"]


@torch.no_grad()
def accuracy(model, test_set):
    mine = range(dist.get_rank(), len(test_set), dist.get_world_size())
    correct = torch.zeros((), dtype=torch.int64)
    for images, labels in DataLoader(test_set, 8, sampler=mine):
        correct += (model(images).argmax(1) == labels).sum()
    dist.all_reduce(correct)
    return correct.item() / len(test_set)


def prepare(path, download):
    os.makedirs(f"own-{dist.get_rank()}", exist_ok=True)
    own = os.path.abspath(f"own-{dist.get_rank()}/data")
    download(own)
    os.replace(own, path)
    dist.barrier()
    if dist.get_rank() == 0:
        with open(path + ".downloads", "wb") as file:
            file.write(b".")
    with open(path, "rb") as file:
        return file.read()
