"""Exercise 04a, bug 1 of 10. 3 points. Read first: notebook 03.

A user reports: "Two GPUs, 30 epochs. The loss curve looks like a comb: it has the same teeth at the same
steps in every epoch. The model ends up worse than on a single GPU, where the curve was only noisy."

What is wanted: in each epoch, the processes train on all images, in a new random order that is split between
them anew. (If the images cannot be divided evenly, a few of them are used twice, so that each process has the
same number of images.)

    04a.1 (3 points)  fix the bug (2 points), and set KIND to its kind (1 point): see KINDS.md
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

KIND = ""


def train(model, images, labels, epochs, batch_size, lr):
    """Every process has all images. Train the model in place."""
    train_set = TensorDataset(images, labels)
    dealer = DistributedSampler(train_set, shuffle=True)
    loader = DataLoader(train_set, batch_size, sampler=dealer)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for epoch in range(epochs):
        for batch, targets in loader:
            loss = cross_entropy(model(batch), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: the last loss of process 0 is {loss.item():.4f}")
