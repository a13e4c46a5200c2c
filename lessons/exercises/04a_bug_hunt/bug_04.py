"""Exercise 04a, bug 4 of 10. 3 points. Read first: notebook 03.

A user reports: "With one process it trains well. With two the loss jumps up and down, and with eight it is
NaN after a few steps, although I have not touched the learning rate. A smaller one helps, but then the
results differ."

What is wanted: every step is the one that a single process would make, with the same settings and the
images of all processes in its batch. (All processes have equally many.)

    04a.4 (3 points)  mend it (2), and put its kind into KIND (1): KINDS.md lists them
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

KIND = ""


def exchange_gradients(model):
    """After backward: one all_reduce for all gradients together is faster than one for each."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def train(model, images, labels, batch_size, lr, momentum, weight_decay):
    """Every process has images of its own. The model is trained in place."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum, weight_decay=weight_decay)
    for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        loss = cross_entropy(model(batch), targets)
        optimizer.zero_grad()
        loss.backward()
        exchange_gradients(model)
        optimizer.step()
