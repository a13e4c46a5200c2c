"""Exercise 04a, bug 6: two loops, and the last small batch outside no_sync."""

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

KIND = "exchange"


def train(model, images, labels, batch_size, accumulate, lr):
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    images, labels = images.split(batch_size), labels.split(batch_size)
    for first in range(0, len(images), accumulate):
        optimizer.zero_grad()
        last = first + accumulate - 1
        with model.no_sync():
            for number in range(first, last):
                (cross_entropy(model(images[number]), labels[number]) / accumulate).backward()
        (cross_entropy(model(images[last]), labels[last]) / accumulate).backward()
        optimizer.step()
