"""Exercise 04a, bug 1: no sampler; an order drawn from the number of the epoch, padded from its beginning."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

KIND = "order"


def train(model, images, labels, epochs, batch_size, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for epoch in range(epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(2024 + epoch))
        order = torch.cat([order, order[: -len(order) % world_size]])
        for batch in order[rank::world_size].split(batch_size):
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
