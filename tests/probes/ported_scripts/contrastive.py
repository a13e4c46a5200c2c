"""A contrastive loss, which compares the examples of the whole batch, and two views with NumPy's numbers."""

import logging
import os

import numpy
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
seed, batch_size = 7, 8
torch.manual_seed(seed)
logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING)


class Views(Dataset):
    def __init__(self):
        self.images = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        scales = numpy.random.uniform(0.8, 1.2, 2).tolist()
        return torch.stack([self.images[index] * scale for scale in scales])


def loss_of(features):
    features = torch.cat(dist.nn.all_gather(features))  # with a backward pass, as the loss needs it
    first, second = nn.functional.normalize(features, dim=-1).unbind(1)
    similarity = first @ second.t() / 0.5
    return nn.functional.cross_entropy(similarity, torch.arange(len(first)))


sampler = DistributedSampler(Views(), seed=seed)
loader = DataLoader(Views(), batch_size // world_size, sampler=sampler, drop_last=True)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader))
ddp_model = DistributedDataParallel(model)

for epoch in range(1, 3):
    sampler.set_epoch(epoch)
    torch.manual_seed(10**9 * seed + 10**3 * epoch + rank)
    numpy.random.seed((10**9 * seed + 10**3 * epoch + rank) % 2**32)
    for views in loader:
        loss = loss_of(ddp_model(views))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step()
    if rank == 0:
        logging.info(f"Epoch: {epoch}\tLoss: {loss.item():.5f}")
        torch.save(model.state_dict(), "contrastive.pt")

ddp_model = loss = None
dist.destroy_process_group()
