"""Exercise 04a, bug 2: a DistributedSampler that drops the tail."""

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

KIND = "seed"


def train(model, images, labels, epochs, batch_size, lr, seed):
    train_set = TensorDataset(images, labels)
    sampler = DistributedSampler(train_set, seed=seed, drop_last=True)
    loader = DataLoader(train_set, batch_size, sampler=sampler)
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch, targets in loader:
            optimizer.zero_grad()
            cross_entropy(model(batch), targets).backward()
            optimizer.step()
