"""Exercise 04a, bug 1: another sampler for each epoch, with another seed."""

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

KIND = "order"


def train(model, images, labels, epochs, batch_size, lr):
    train_set = TensorDataset(images, labels)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for epoch in range(epochs):
        sampler = DistributedSampler(train_set, seed=100 + epoch)
        for batch, targets in DataLoader(train_set, batch_size, sampler=sampler):
            optimizer.zero_grad()
            cross_entropy(model(batch), targets).backward()
            optimizer.step()
