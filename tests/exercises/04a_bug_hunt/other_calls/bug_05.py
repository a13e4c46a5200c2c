"""Exercise 04a, bug 5: clipped by hand after unscale_."""

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

KIND = "clipping"


def train(model, images, labels, batch_size, lr, momentum, max_norm, scaler):
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum)
    for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        optimizer.zero_grad()
        scaler.scale(cross_entropy(model(batch), targets)).backward()
        scaler.unscale_(optimizer)
        gradients = [parameter.grad for parameter in model.parameters()]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        if norm > max_norm:
            for gradient in gradients:
                gradient *= max_norm / norm
        scaler.step(optimizer)
        scaler.update()
