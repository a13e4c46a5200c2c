"""A GAN with batch norm: two models, two optimizers, noise as an input, sample pictures."""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import batch_norm

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
seed, batch_size = 0, 8
torch.manual_seed(seed)
noise = torch.Generator()
real_images = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
sampler = DistributedSampler(TensorDataset(real_images), seed=seed)
loader = DataLoader(TensorDataset(real_images), batch_size // world_size, sampler=sampler)
generator = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))
discriminator = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.LeakyReLU(), nn.Linear(8, 1))
generator = batch_norm.convert(generator, "cpu")
discriminator = batch_norm.convert(discriminator, "cpu")
g_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
ddp_generator = DistributedDataParallel(generator)
ddp_discriminator = DistributedDataParallel(discriminator)


def judge(scores, label):
    return binary_cross_entropy_with_logits(scores, torch.full_like(scores, label))


for epoch in range(1, 3):
    sampler.set_epoch(epoch)
    noise.manual_seed(epoch)
    d_sum = torch.zeros(())
    for (images,) in loader:
        d_optimizer.zero_grad()
        with ddp_discriminator.no_sync():
            d_real = judge(ddp_discriminator(images), 1.0)
            d_real.backward()
        inputs = torch.randn(len(images) * world_size, 4, generator=noise)[rank::world_size]
        fake = ddp_generator(inputs)
        d_fake = judge(ddp_discriminator(fake.detach()), 0.0)
        d_fake.backward()
        d_optimizer.step()
        g_optimizer.zero_grad()
        discriminator.requires_grad_(False)
        judge(discriminator(fake), 1.0).backward()
        g_optimizer.step()
        discriminator.requires_grad_(True)
        d_sum += d_real.detach() + d_fake.detach()
    dist.all_reduce(d_sum)
    if rank == 0:
        print(f"epoch {epoch} Loss_D {d_sum / len(loader) / world_size:.4f}")
        generator.eval()
        torch.save(generator(torch.ones(2, 4)).detach(), f"fake_{epoch}.pt")
        generator.train()

ddp_generator = ddp_discriminator = d_real = d_fake = fake = None
dist.destroy_process_group()
