"""Exercise 04a, bug 6 of 10. 3 points. Read first: notebook 07.

A user reports: "I accumulate gradients over 4 small batches. After an hour the two processes give different
answers for the same image, and the snapshot of process 0 is worse than the one from a single GPU. Without
accumulation all is well."

What is wanted: every step is the one that a single process would make with the small batches of all
processes as one large batch. The small batches stay small, each with a forward and a backward pass of its
own: the large one does not fit into memory. Exchanging gradients is slow: it happens once for each step.

    04a.6 (3 points)  mend it (2), and put its kind into KIND (1): KINDS.md lists them
"""

import contextlib

import torch
from torch import nn
from torch.nn.functional import cross_entropy

KIND = ""


def train(model, images, labels, batch_size, accumulate, lr):
    """Every process has images of its own, enough for whole steps. The model is trained in place."""
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    batches = zip(images.split(batch_size), labels.split(batch_size), strict=True)
    for number, (batch, targets) in enumerate(batches, start=1):
        apart = number % accumulate != 1
        with model.no_sync() if apart else contextlib.nullcontext():
            loss = cross_entropy(model(batch), targets) / accumulate
            loss.backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
