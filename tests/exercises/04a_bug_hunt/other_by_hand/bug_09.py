"""Exercise 04a, bug 9: the local number as torch.distributed gives it, the rank from the group."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

KIND = "device"


def train(model, images, labels, batch_size, lr, devices):
    device = devices[dist.get_node_local_rank()]
    share, rank = len(images) // dist.get_world_size(), dist.get_rank()
    images = device.put(images[rank * share : (rank + 1) * share])
    labels = device.put(labels[rank * share : (rank + 1) * share])
    model = DistributedDataParallel(device.put(model))
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        optimizer.zero_grad()
        cross_entropy(model(batch), targets).backward()
        optimizer.step()
