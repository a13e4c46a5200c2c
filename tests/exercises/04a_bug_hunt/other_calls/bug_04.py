"""Exercise 04a, bug 4: DDP, which takes the mean."""

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

KIND = "sum"


def train(model, images, labels, batch_size, lr, momentum, weight_decay):
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum, weight_decay=weight_decay)
    for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        optimizer.zero_grad()
        cross_entropy(model(batch), targets).backward()
        optimizer.step()
