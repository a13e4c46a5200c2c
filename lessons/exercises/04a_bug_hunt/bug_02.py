"""Exercise 04a, bug 2 of 10. 3 points. Read first: notebook 03.

A user reports: "With 4 GPUs, the accuracy is a little worse than with one. I counted: in one epoch over my
60000 images, all processes together see only 41000 different images. In the next epoch, they see a different
set of images."

What is wanted: in each epoch, the processes train on all images, in a new random order that is split between
them. A different `seed` gives a different order. Each process has the same number of images, and no image is
used twice in an epoch. (A few images may be left over, fewer than there are processes.)

    04a.2 (3 points)  fix the bug (2 points), and set KIND to its kind (1 point): see KINDS.md
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

KIND = ""


def train(model, images, labels, epochs, batch_size, lr, seed):
    """Every process has all images. Train the model in place."""
    share = len(images) // dist.get_world_size()
    start = dist.get_rank() * share
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(seed + epoch + 1000 * dist.get_rank())
        order = torch.randperm(len(images), generator=generator)
        mine = order[start : start + share]
        for batch in mine.split(batch_size):
            loss = cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
