"""Exercise 04a, bug 9: devices handed out by counting the ranks of the same machine."""

import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

KIND = "device"


def train(model, images, labels, batch_size, lr, devices):
    machines = [None] * dist.get_world_size()
    dist.all_gather_object(machines, os.environ["GROUP_RANK"])
    rank = dist.get_rank()
    device = devices[machines[:rank].count(machines[rank])]
    share = len(images) // dist.get_world_size()
    model = DistributedDataParallel(device.put(model))
    optimizer = torch.optim.SGD(model.parameters(), lr)
    images, labels = images[rank * share :][:share], labels[rank * share :][:share]
    for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        optimizer.zero_grad()
        cross_entropy(model(device.put(batch)), device.put(targets)).backward()
        optimizer.step()
