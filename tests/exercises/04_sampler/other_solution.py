"""Another solution of exercise 04."""

import numpy as np
import torch.distributed as dist


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
