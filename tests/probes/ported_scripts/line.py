"""A regression to a polynomial that the script draws at random: no seed of its own for the batches."""

import os
from itertools import count

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch.nn.parallel import DistributedDataParallel

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
target, target_bias = torch.randn(4, 1) * 5, torch.randn(1) * 5
dist.broadcast(target, src=0)
dist.broadcast(target_bias, src=0)
size = 32


def batch_of(number):
    x = torch.randn(size, generator=torch.Generator().manual_seed(number))[rank::world_size]
    x = torch.stack([x**power for power in range(1, 5)], dim=1)
    return x, x @ target + target_bias


model = torch.nn.Linear(4, 1)
ddp_model = DistributedDataParallel(model)

for number in count():
    x, y = batch_of(number)
    model.zero_grad()
    loss = torch.nn.functional.smooth_l1_loss(ddp_model(x), y)
    loss.backward()
    for weight in model.parameters():
        weight.data.add_(-0.1 * weight.grad)
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    if number == 12:
        break

if rank == 0:
    print(f"Loss: {mean.item() / world_size:.6f} after {number} batches")
ddp_model = loss = None
dist.destroy_process_group()
