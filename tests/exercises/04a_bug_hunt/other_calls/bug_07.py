"""Exercise 04a, bug 7: all sizes gathered before the first step; means weighed by them."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

KIND = "mean of means"


def train(model, images, labels, steps, lr):
    images, labels = images.tensor_split(steps), labels.tensor_split(steps)
    sizes = torch.tensor([len(batch) for batch in images])
    everywhere = [torch.empty_like(sizes) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, sizes)
    weights = sizes / torch.stack(everywhere).double().mean(0)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for batch, targets, weight in zip(images, labels, weights, strict=True):
        optimizer.zero_grad()
        (weight * cross_entropy(model(batch), targets)).backward()
        optimizer.step()
