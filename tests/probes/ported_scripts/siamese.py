"""Pairs of images that a data set chooses with Python's random, and moves at random with PyTorch."""

import os
import random

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
seed, batch_size = 0, 8
torch.manual_seed(seed)


class Pairs(Dataset):
    def __init__(self):
        self.images = torch.randn(40, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        other = random.randrange(len(self.images))
        first = self.images[index].roll(int(torch.randint(3, ())))
        return first, self.images[other], torch.tensor([float(other % 2 == index % 2)])


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 6), nn.Linear(6, 1)

    def forward(self, first, second):
        return self.head((self.body(first) - self.body(second)).abs())


train_set = Pairs()
sampler = DistributedSampler(train_set, seed=seed)
loader = DataLoader(train_set, batch_size // world_size, sampler=sampler)
model = Siamese()
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
ddp_model = DistributedDataParallel(model)

for epoch in range(1, 3):
    sampler.set_epoch(epoch)
    torch.manual_seed(10**9 * seed + 10**3 * epoch + rank)
    random.seed(10**9 * seed + 10**3 * epoch + rank)
    loss_sum = torch.zeros(())
    for first, second, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(ddp_model(first, second), target)
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach() * len(target)
    dist.all_reduce(loss_sum)
    if rank == 0:
        print(f"Train Epoch: {epoch} Loss: {loss_sum / len(train_set):.6f}")
        torch.save(model.state_dict(), "siamese.pt")

ddp_model = loss = None
dist.destroy_process_group()
