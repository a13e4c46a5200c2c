"""Exercise 04a, bug 3: counts summed with all_reduce, by all processes, before anybody reports."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

KIND = "collective"


def train(model, images, labels, test_images, test_labels, epochs, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(epochs):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        for parameter in model.parameters():
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)
        optimizer.step()
    with torch.inference_mode():
        right = (model(test_images).argmax(1) == test_labels).double().sum()
    size = torch.tensor(float(len(test_labels)), dtype=torch.float64)
    dist.all_reduce(right)
    dist.all_reduce(size)
    return (right / size).item() if dist.get_rank() == 0 else None
