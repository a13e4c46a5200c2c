"""Exercise 04a, bug 6: small batches in no_sync, gradients exchanged one by one afterwards."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

KIND = "exchange"


def train(model, images, labels, batch_size, accumulate, lr):
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    images, labels = images.split(batch_size), labels.split(batch_size)
    for number in range(len(images)):
        with model.no_sync():
            (cross_entropy(model(images[number]), labels[number]) / accumulate).backward()
        if (number + 1) % accumulate == 0:
            for parameter in model.parameters():
                flat = parameter.grad.flatten() / dist.get_world_size()
                dist.all_reduce(flat)
                parameter.grad = flat.view_as(parameter)
            optimizer.step()
            optimizer.zero_grad()
