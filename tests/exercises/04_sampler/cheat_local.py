"""Every process decides alone: the sampler deals out nothing, the accuracy is that of the own shard.

Earns at most: 0 points
"""

from torch.utils.data import Sampler


class ShareSampler(Sampler):
    def __init__(self, size, rank, world_size, seed=0, drop_last=False):
        self.length = size // world_size if drop_last else -(-size // world_size)

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(range(self.length))

    def set_epoch(self, epoch):
        pass


def evaluation_shard(size, rank, world_size):
    return []


def exact_accuracy(right):
    return float(right.double().mean()) if len(right) else 0.0
