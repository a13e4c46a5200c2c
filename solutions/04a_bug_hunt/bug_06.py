"""Exercise 04a, bug 6 of 10. 3 points. Read first: notebook 07.

A user reports: "I accumulate gradients over 4 small batches. After an hour, the two processes give
different answers for the same image, and the snapshot of process 0 is worse than the snapshot from a single
GPU. Without accumulation, everything is fine."

What is wanted: every step is the step that a single process would make with the small batches of all
processes as one large batch. Each small batch must still have its own forward and backward pass, because the
large batch does not fit into memory. Exchanging gradients is slow, so it happens once per step.

    04a.6 (3 points)  fix the bug (2 points), and set KIND to its kind (1 point): see KINDS.md
"""

import contextlib

import torch
from torch import nn
from torch.nn.functional import cross_entropy

# cut 04a.6: the kind of the bug
KIND = "exchange"
# instead: KIND = ""
# end


def train(model, images, labels, batch_size, accumulate, lr):
    """Every process has its own images, `accumulate` batches for each step. Train the model in place."""
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    batches = zip(images.split(batch_size), labels.split(batch_size), strict=True)
    for number, (batch, targets) in enumerate(batches, start=1):
        # cut 04a.6: exchange the accumulated gradients in the last backward pass of each step
        apart = number % accumulate != 0
        # instead: apart = number % accumulate != 1
        # end
        with model.no_sync() if apart else contextlib.nullcontext():
            loss = cross_entropy(model(batch), targets) / accumulate
            loss.backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
