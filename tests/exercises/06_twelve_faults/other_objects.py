"""Exercise 06, with object collectives, own indices and a temporary file."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler


def pick_device():
    return int(os.environ.get("LOCAL_RANK", "0"))


def prepare(path, download):
    data = [None]
    if dist.get_rank() == 0:
        download(f"{path}.temporary")
        os.replace(f"{path}.temporary", path)
        with open(path, "rb") as file:
            data = [file.read()]
    dist.broadcast_object_list(data, 0)
    return data[0]


def make_loader(train_set, batch_size, seed):
    world_size = dist.get_world_size()
    sampler = DistributedSampler(
        train_set, world_size, dist.get_rank(), shuffle=True, seed=seed + 5, drop_last=True
    )
    return DataLoader(train_set, batch_size=batch_size // world_size, sampler=sampler, drop_last=True)


def train(model, loader, epochs, lr):
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    losses = []
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        mine = []
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(parallel(images), labels)
            loss.backward()
            optimizer.step()
            mine.append(loss.item())
        scheduler.step()
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, sum(mine) / len(mine))
        losses.append(sum(found) / len(found))
    return parallel, losses


def save(model, epoch, path):
    if dist.get_rank() == 0:
        torch.save({"weights": model.module.state_dict(), "at": epoch}, f"{path}.temporary")
        os.replace(f"{path}.temporary", path)
    dist.barrier()


def load(model, path):
    content = torch.load(path, weights_only=True)
    model.load_state_dict(content["weights"], strict=True)
    return content["at"]


@torch.no_grad()
def accuracy(model, test_set):
    mine = list(range(len(test_set)))[dist.get_rank() :: dist.get_world_size()]
    right = sum(int(model(test_set[n][0][None]).argmax()) == int(test_set[n][1]) for n in mine)
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, right)
    return sum(found) / len(test_set)
