"""The Trainer of trainer.py."""

from itertools import islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler


class PartOf:
    def __init__(self, sampler, generator):
        self.sampler, self.generator = sampler, generator

    def __iter__(self):
        self.generator.manual_seed(3407)
        behind = len(self) * dist.get_world_size()
        return islice(self.sampler, dist.get_rank(), behind, dist.get_world_size())

    def __len__(self):
        return len(self.sampler) // dist.get_world_size()


class Trainer:
    def __init__(self, data, model, batch_size, steps):
        generator = torch.Generator()
        sampler = RandomSampler(data, replacement=True, num_samples=10**10, generator=generator)
        size = batch_size // dist.get_world_size()
        self.loader = DataLoader(data, size, sampler=PartOf(sampler, generator))
        self.model, self.steps = model, steps
        self.ddp_model = DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def run(self, after_batch):
        self.model.train()
        for step, (inputs, targets) in enumerate(self.loader):
            if step == self.steps:
                break
            self.step = step
            outputs = self.ddp_model(inputs).flatten(0, 1)
            self.loss = nn.functional.cross_entropy(outputs, targets.flatten())
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            after_batch(self)
        self.ddp_model = self.loss = None
