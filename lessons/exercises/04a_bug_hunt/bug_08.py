"""Exercise 04a, bug 8 of 10. 3 points. Read first: notebook 05.

A user reports: "Our cluster stops jobs and starts them again. A job that was stopped five times has a
better training loss and a worse test accuracy than a job that was never stopped. Both were supposed to
train 90 epochs."

What is wanted: a job that is stopped at any moment and started again ends with the same result as a job that
was never stopped. It repeats at most the epoch in which it was stopped. "Any moment" includes the time while
the snapshot is being written. The order of the images in epoch N depends only on N, not on how often the job
was stopped.

    04a.8 (3 points)  fix the bug (2 points), and set KIND to its kind (1 point): see KINDS.md
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

KIND = ""


def train(model, images, labels, epochs, batch_size, lr, momentum, path):
    """Every process has equally many images of its own. `path` is the file of the snapshot."""
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum)
    first = 0
    if os.path.exists(path):
        snapshot = torch.load(path, weights_only=True)
        model.load_state_dict(snapshot["model"])
        optimizer.load_state_dict(snapshot["optimizer"])
        first = snapshot["epoch"]
    parallel = nn.parallel.DistributedDataParallel(model)
    for epoch in range(first, epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(batch_size):
            loss = cross_entropy(parallel(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            snapshot = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(snapshot, f"{path}.new")
            os.replace(f"{path}.new", path)
        dist.barrier()
