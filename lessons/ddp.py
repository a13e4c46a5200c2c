"""DDP on one screen. It needs no other file: page 03 explains it."""

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group, or gloo may abort the process at exit
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train():
    torch.manual_seed(0)  # all processes make the same data
    inputs = torch.randn(480, 20)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 24 // dist.get_world_size(), sampler=sampler)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(1, 6):
        sampler.set_epoch(epoch)
        loss_sum = torch.zeros(())
        for examples, targets in loader:
            loss = torch.nn.functional.mse_loss(model(examples), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach() * len(examples)
        dist.all_reduce(loss_sum)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} | loss {loss_sum.item() / len(data):.6f}", flush=True)


dist.init_process_group("gloo")
train()
dist.destroy_process_group()
