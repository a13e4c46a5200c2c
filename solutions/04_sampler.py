"""Exercise 04: your own DistributedSampler, and an exact evaluation. 12 points, about 75 minutes.

First read what notebook 03 says about which process gets which image, and about the mean of four
accuracies.

In training, each rank gets a shard of the images. The ranks need no communication to agree on the shards: all
ranks shuffle the image numbers in the same way, from a shared seed, and deal the numbers out like cards.
Nothing else that is random may influence the order, because the global random state (`torch.manual_seed`,
`random`, numpy) differs between ranks.

All shards must have the same length. Otherwise a rank that has one more batch would wait forever for the
other ranks. So either the leftover images are dropped, or some images are dealt out again until all
ranks have the same number of images.

In an evaluation, counting an image twice, or not at all, makes the accuracy wrong. So each image is dealt
out exactly once, and the shards may differ in length. The mean of the ranks' accuracies is then not the
accuracy over all images. But whatever the length of its shard, every rank can tell the other ranks two
numbers: how many of its answers are right, and how many images it has.

    04.1 (6 points)  the shard of a rank
    04.2 (2 points)  a new order in each epoch
    04.3 (4 points)  the exact accuracy over the images of all ranks
"""

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class ShareSampler(Sampler):
    """The numbers (0 to size - 1) of the images that this rank sees in an epoch, in order.

    Each number is a Python int. A tensor is not allowed, because a set or a dict treats two tensors as
    different even if they contain the same number. The sampler needs no process group: `rank` and
    `world_size` are arguments. `size` may be smaller than `world_size`, and it may be 0. With `drop_last`, no
    image occurs twice in the shards of all ranks together. Without `drop_last`, every image occurs at least
    once, and the numbers of times that any two images occur differ by at most one. The shuffle decides which
    images are dropped or repeated.

    The order depends only on `size`, `seed` and the epoch. The order is the same in every process, for any
    number of ranks, with and without `drop_last`, and in every pass over the sampler, even after an
    unfinished pass. The global random state must neither influence the order nor change, not even between two
    numbers of a pass.
    """

    def __init__(self, size, rank, world_size, seed=0, drop_last=False):
        self.size, self.rank, self.world_size = size, rank, world_size
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0

    def __len__(self):
        """Return how many numbers this rank gets: as many as every other rank.

        The number is size / world_size, rounded down with `drop_last` and rounded up without it.
        """
        # cut 04.1: the shard of a rank
        if self.drop_last:
            return self.size // self.world_size
        return (self.size + self.world_size - 1) // self.world_size
        # end

    def __iter__(self):
        """Shuffle all numbers, then deal them out.

        Shuffle before dealing: a rank that always kept the same images would never see the other images.
        The order depends on `self.epoch` as well as `self.seed`. The shards of all ranks must meet the
        conditions in the docstring of the class.
        """
        # cut 04.1: the shard of a rank
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.size, generator=generator).tolist()
        total = len(self) * self.world_size
        # Beyond the last card, begin again with the first: as often as it takes if there are few images.
        return iter([order[place % self.size] for place in range(self.rank, total, self.world_size)])
        # end

    def set_epoch(self, epoch):
        """From now on, return the order of this epoch. Before the first call, the epoch is 0.

        The order of an epoch does not depend on earlier epochs: a run that resumes in epoch 7 gets the same
        order as a run without interruption.
        """
        # cut 04.2: a new order in each epoch
        self.epoch = epoch
        # end


def evaluation_shard(size, rank, world_size):
    """Return the numbers of the images that this rank evaluates: a list, a range or any other iterable.

    Over all ranks, each of the numbers 0 to size - 1 occurs exactly once. The lengths of two shards differ
    by at most one. The order does not matter. `size` may be smaller than `world_size`.
    """
    # cut 04.3: an accuracy that is that of one process
    return range(rank, size, world_size)
    # end


def exact_accuracy(right):
    """Return the share of right answers among the images of all ranks: the same Python float on every rank.

    `right` is a tensor of bools, one for each image of this rank's shard. Shards may differ in length. Some
    shards may be empty, but never all of them. A rank without images must still take part, or the other
    ranks wait forever.

    The result must be accurate to 1e-12, even for tens of millions of images. A float32 cannot count that
    far: above 16,777,216, it skips every other whole number. Only sums may travel through the process group:
    the amount of data must not grow with the number of images.
    """
    # cut 04.3: an accuracy that is that of one process
    counts = torch.tensor([right.sum().item(), len(right)])
    dist.all_reduce(counts)
    number_right, number = counts.tolist()
    return number_right / number
    # end
