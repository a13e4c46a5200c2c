"""A VAE: a loss that is a sum, noise in the model, pictures, a test loss."""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
seed, batch_size = 3, 16
torch.manual_seed(seed)
noise = torch.Generator()


class Images(Dataset):
    def __init__(self, count):
        self.images = torch.rand(count, 12, generator=torch.Generator().manual_seed(count))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], index


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(12, 6), nn.Linear(3, 12)

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, dim=1)
        if self.training:
            z = torch.randn(len(x) * world_size, 3, generator=noise)[rank::world_size]
            mean = mean + z * torch.exp(0.5 * log_variance)
        return torch.sigmoid(self.decode(mean)), mean, log_variance


def loss_of(outputs, x):
    images, mean, log_variance = outputs
    divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
    return F.binary_cross_entropy(images, x, reduction="sum") + divergence


train_set, test_set = Images(48), Images(21)
sampler = DistributedSampler(train_set, seed=seed)
train_loader = DataLoader(train_set, batch_size // world_size, sampler=sampler)
test_loader = DataLoader(test_set, batch_size, sampler=range(rank, len(test_set), world_size))
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
ddp_model = DistributedDataParallel(model)

for epoch in range(1, 3):
    sampler.set_epoch(epoch)
    torch.manual_seed(10**9 * seed + 10**3 * epoch + rank)
    noise.manual_seed(epoch)
    model.train()
    loss_sum = torch.zeros(())
    for images, _ in train_loader:
        optimizer.zero_grad()
        loss = loss_of(ddp_model(images), images)
        (loss * world_size).backward()
        optimizer.step()
        loss_sum += loss.detach()
    dist.all_reduce(loss_sum)

    model.eval()
    test_loss = torch.zeros(())
    with torch.no_grad():
        for images, _ in test_loader:
            test_loss += loss_of(model(images), images)
    dist.all_reduce(test_loss)
    if rank == 0:
        print(f"epoch {epoch}: average loss {loss_sum / len(train_set):.4f}")
        print(f"test loss {test_loss / len(test_set):.4f}")
        torch.save(model.decode(torch.zeros(4, 3)).detach(), f"sample_{epoch}.pt")

ddp_model = loss = None
dist.destroy_process_group()
