"""Exercise 04a, bug 4 of 10. 3 points. Read first: notebook 03.

A user reports: "With one process, the model trains well. With two, the loss jumps up and down, and with eight
it is NaN after a few steps, although I have not changed the learning rate. A smaller learning rate helps, but
then the results differ from the results with one process."

What is wanted: every step is the step that a single process would make with the same settings, if its batch
contained the images of all processes. (All processes have the same number of images.)

    04a.4 (3 points)  fix the bug (2 points), and set KIND to its kind (1 point): see KINDS.md
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

KIND = ""


def exchange_gradients(model):
    """Called after backward. One all_reduce for all gradients is faster than one per gradient."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def train(model, images, labels, batch_size, lr, momentum, weight_decay):
    """Every process has its own images. Train the model in place."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum, weight_decay=weight_decay)
    for batch, targets in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        loss = cross_entropy(model(batch), targets)
        optimizer.zero_grad()
        loss.backward()
        exchange_gradients(model)
        optimizer.step()
