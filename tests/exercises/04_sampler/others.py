"""Other solutions of exercise 04."""

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Sampler


def chunks():
    """Shards of neighbours in numpy's shuffle, a generator, and counts gathered as objects."""

    class ShareSampler:
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

    def evaluation_shard(size, rank, world_size):
        return (image for image in range(size) if image % world_size == rank)

    def exact_accuracy(right):
        counts = [None] * dist.get_world_size()
        dist.all_gather_object(counts, (int(right.sum()), len(right)))
        good, sizes = zip(*counts, strict=True)
        return sum(good) / sum(sizes)


def kept_state():
    """The global state borrowed and given back, the order made early, and weighted means."""

    class ShareSampler(Sampler):
        def __init__(self, size, rank, world_size, seed=0, drop_last=False):
            self.size, self.rank, self.world_size = size, rank, world_size
            self.seed, self.drop_last, self.epoch = seed, drop_last, 0
            self.set_epoch(0)

        def set_epoch(self, epoch):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed * 1_000_003 + epoch)
                order = torch.randperm(self.size)
            missing = -self.size % self.world_size
            if self.drop_last:
                order = order[: self.size - self.size % self.world_size]
            elif self.size:
                order = torch.cat([order, order.repeat(missing // self.size + 1)[:missing]])
            self.mine = order.view(-1, self.world_size)[:, self.rank].tolist()

        def __len__(self):
            return len(self.mine)

        def __iter__(self):
            yield from self.mine

    def exact_accuracy(right):
        images = torch.tensor(float(right.numel()), dtype=torch.float64)
        mean = right.double().mean().nan_to_num()
        total = images.clone()
        dist.all_reduce(total)
        part = mean * images / total
        dist.all_reduce(part)
        return float(part)
