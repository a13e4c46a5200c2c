"""Hands the counts over in files of the common folder, and sends nothing through the process group.

Earns at most: 9 points
"""

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class ShareSampler(Sampler):
    def __init__(self, size, rank, world_size, seed=0, drop_last=False):
        self.size, self.rank, self.world_size = size, rank, world_size
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0

    def __len__(self):
        return (self.size + (0 if self.drop_last else self.world_size - 1)) // self.world_size

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.size, generator=generator).tolist()
        total = len(self) * self.world_size
        return iter([order[place % self.size] for place in range(self.rank, total, self.world_size)])

    def set_epoch(self, epoch):
        self.epoch = epoch


def evaluation_shard(size, rank, world_size):
    return range(rank, size, world_size)


def exact_accuracy(right):
    Path(f"new-{dist.get_rank()}").write_text(f"{int(right.sum())} {len(right)}")
    Path(f"new-{dist.get_rank()}").rename(f"counts-{dist.get_rank()}")
    counts = []
    for rank in range(dist.get_world_size()):
        while not Path(f"counts-{rank}").exists():
            time.sleep(0.001)
        counts.append([int(word) for word in Path(f"counts-{rank}").read_text().split()])
    return sum(one for one, _ in counts) / sum(number for _, number in counts)
