"""Exercise 04, with shards of neighbours in numpy's shuffle, and sums that rank 0 collects and gives back."""

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class ShareSampler(Sampler):
    def __init__(self, size, rank, world_size, seed=0, drop_last=False):
        self.size, self.rank, self.seed, self.epoch = size, rank, seed, 0
        self.shard = size // world_size if drop_last else -(-size // world_size)
        self.total = self.shard * world_size

    def __len__(self):
        return self.shard

    def __iter__(self):
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.size)
        order = np.resize(order, self.total)
        return iter(order[self.rank * self.shard : (self.rank + 1) * self.shard])

    def set_epoch(self, epoch):
        self.epoch = epoch


def evaluation_shard(size, rank, world_size):
    return torch.arange(size).tensor_split(world_size)[rank]


def exact_accuracy(right):
    counts = torch.tensor([torch.count_nonzero(right), right.numel()], dtype=torch.float64)
    dist.reduce(counts, dst=0)
    dist.broadcast(counts, src=0)
    return (counts[0] / counts[1]).item()
