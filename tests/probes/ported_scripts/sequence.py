"""L-BFGS with a closure, on all of the data in every step, in parts of different sizes."""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
torch.manual_seed(0)
starts = torch.randint(-20, 20, (13, 1), generator=torch.Generator().manual_seed(1))
waves = torch.sin((torch.arange(10.0) + starts) / 3).to(torch.get_default_dtype())
waves = waves[rank::world_size]
model = nn.Sequential(nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4)
ddp_model = DistributedDataParallel(model)
count = torch.tensor(float(len(waves)))
dist.all_reduce(count)

for step in range(3):

    def closure():
        optimizer.zero_grad()
        loss = (ddp_model(waves[:, :-1]) - waves[:, -1:]).square().mean()
        loss = loss * len(waves) * world_size / count
        loss.backward()
        loss = loss.detach()
        dist.all_reduce(loss)
        return loss / world_size

    loss = optimizer.step(closure)
    if rank == 0:
        print(f"STEP: {step} loss: {loss.item()}")

ddp_model = loss = None
dist.destroy_process_group()
