"""A Trainer class in a file of its own, which draws its examples with replacement, as minGPT does."""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.utils.data import TensorDataset
from trainer_class import Trainer

dist.init_process_group("gloo")
torch.manual_seed(3407)
numbers = torch.Generator().manual_seed(1)
inputs = torch.randint(9, (40, 5), generator=numbers)
model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9))
trainer = Trainer(TensorDataset(inputs, inputs.flip(1)), model, batch_size=8, steps=8)


def after_batch(trainer):
    loss = trainer.loss.detach().clone()
    dist.all_reduce(loss)
    if int(os.environ["RANK"]) == 0:
        print(f"iter {trainer.step}: train loss {loss / dist.get_world_size():.5f}")


trainer.run(after_batch)
trainer = None
dist.destroy_process_group()
