"""Exercise 04: one's own DistributedSampler, and an evaluation that is exact. 12 points.

Each rank takes its share of the images. Nobody asks anybody: all shuffle alike, from a seed that they share,
and deal out like cards. In training, all shares must be equally long, or one rank waits for ever: so what is
left over is dropped, or the first images are dealt out once more to fill up (as often as that takes). In an
evaluation, each image must count once: shares may differ, and only sums travel.

    04.1 (6 points)  the share of a rank
    04.2 (2 points)  a new order in each epoch
    04.3 (4 points)  an accuracy that is that of one process
"""

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class ShareSampler(Sampler):
    """The numbers of the images that this rank sees in an epoch, as DistributedSampler gives them."""

    def __init__(self, size, rank, world_size, seed=0, drop_last=False):
        self.size, self.rank, self.world_size = size, rank, world_size
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0

    def __len__(self):
        """As many for each rank: what is left over is dropped, or filled up."""
        # cut 04.1: the share of a rank
        if self.drop_last:
            return self.size // self.world_size
        return -(-self.size // self.world_size)
        # end

    def __iter__(self):
        """Shuffle all numbers with a generator seeded with seed + epoch; the first is rank 0's, the second
        rank 1's, and so on."""
        # cut 04.1: the share of a rank
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.size, generator=generator).tolist()
        total = len(self) * self.world_size
        order = (order * (total // max(1, len(order)) + 1))[:total]
        return iter(order[self.rank :: self.world_size])
        # end

    def set_epoch(self, epoch):
        """From now on, the order of this epoch."""
        # cut 04.2: a new order in each epoch
        self.epoch = epoch
        # end


def exact_accuracy(right):
    """The part of right answers over all ranks, the same float on each.

    `right` is a tensor of bools, one for each image of this rank's share. Shares may differ, and be empty.
    """
    # cut 04.3: an accuracy that is that of one process
    counts = torch.tensor([right.sum().item(), len(right)], dtype=torch.float64)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
    # end
