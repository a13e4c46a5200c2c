"""Many batch norms over few examples, as in a ShuffleNet: rounding grows a thousandfold in each step."""

import os
import time

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import batch_norm

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
seed, batch_size = 0, 8
torch.manual_seed(seed)
numbers = torch.Generator().manual_seed(1)
train_set = TensorDataset(torch.randn(48, 6, generator=numbers), torch.randint(3, (48,), generator=numbers))
sampler = DistributedSampler(train_set, seed=seed)
loader = DataLoader(train_set, batch_size // world_size, sampler=sampler)
blocks = [nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()) for _ in range(24)]
model = batch_norm.convert(nn.Sequential(*blocks, nn.Linear(6, 3)), "cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
ddp_model = DistributedDataParallel(model)

for epoch in range(1, 3):
    sampler.set_epoch(epoch)
    begin = time.time()
    for step, (images, labels) in enumerate(loader):
        outputs = ddp_model(images)
        loss = nn.functional.cross_entropy(outputs, labels)
        numbers = torch.stack([loss.detach(), (outputs.argmax(dim=1) == labels).to(loss.dtype).mean()])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(numbers)
        mean, accuracy = (numbers / world_size).tolist()
        if rank == 0 and step % 3 == 0:
            spent = time.time() - begin
            print(
                f"Epoch: [{epoch}][{step}/{len(loader)}] Time {spent:6.3f} Loss {mean:.2e} Acc {accuracy:.3f}"
            )

ddp_model = loss = outputs = None
dist.destroy_process_group()
