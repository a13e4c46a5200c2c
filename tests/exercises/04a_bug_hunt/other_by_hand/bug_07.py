"""Exercise 04a, bug 7: sums of gradients and a count, all exchanged, then divided."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

KIND = "mean of means"


def train(model, images, labels, steps, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for batch, targets in zip(images.tensor_split(steps), labels.tensor_split(steps), strict=True):
        optimizer.zero_grad()
        cross_entropy(model(batch), targets, reduction="sum").backward()
        count = torch.tensor([len(batch)])
        dist.all_reduce(count)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= count
        optimizer.step()
