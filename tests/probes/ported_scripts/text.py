"""A small GPT's loop: batches drawn from one array, accumulation, clipping, a schedule, a checkpoint."""

import math
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
seed, batch_size, parts, length, iterations = 0, 8, 2, 6, 8
torch.manual_seed(seed)
data = torch.randint(13, (400,), generator=torch.Generator().manual_seed(1))


def get_batch(data, iteration, part):
    generator = torch.Generator().manual_seed(10**9 * seed + 10**3 * iteration + part)
    starts = torch.randint(len(data) - length, (batch_size,), generator=generator)
    starts = starts[rank::world_size]
    rows = torch.stack([data[start : start + length + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def loss_of(model, inputs, targets):
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


model = nn.Sequential(nn.Embedding(13, 8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 13))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.95))
first = 0
if os.path.exists("ckpt.pt"):
    checkpoint = torch.load("ckpt.pt")
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    first = checkpoint["iteration"]
ddp_model = DistributedDataParallel(model)

for iteration in range(first, iterations):
    lr = 0.01 * (1 + math.cos(math.pi * iteration / iterations)) / 2
    for group in optimizer.param_groups:
        group["lr"] = lr
    total = torch.zeros(())
    for part in range(parts):
        inputs, targets = get_batch(data, iteration, part)
        with nullcontext() if part == parts - 1 else ddp_model.no_sync():
            loss = loss_of(ddp_model, inputs, targets) / parts
            loss.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 0.2)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    dist.all_reduce(total)
    checkpoint = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "iteration": iteration + 1,
    }
    if rank == 0:
        print(f"iter {iteration}: loss {total / world_size:.4f}")
        torch.save(checkpoint, "ckpt.new")
        os.replace("ckpt.new", "ckpt.pt")

ddp_model = loss = None
dist.destroy_process_group()
