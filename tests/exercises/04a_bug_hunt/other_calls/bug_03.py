"""Exercise 04a, bug 3: reduce to process 0, called by all."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

KIND = "collective"


def train(model, images, labels, test_images, test_labels, epochs, lr):
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(epochs):
        optimizer.zero_grad()
        cross_entropy(parallel(images), labels).backward()
        optimizer.step()
    right = model(test_images).argmax(1).eq(test_labels)
    counts = torch.stack([right.sum(), torch.tensor(len(right))])
    dist.reduce(counts, dst=0)
    if dist.get_rank():
        return None
    return counts[0].item() / counts[1].item()
