"""Exercise 04: one's own DistributedSampler, and an evaluation that is exact. 12 points.

Read first: notebook 03, on which process gets which image and on the mean of four accuracies.

In training, each rank takes a shard of the images. No rank asks another: all shuffle the numbers of the
images alike, from a seed that they share, and deal them out like cards. Everything else that is random must
stay out of it: the global random state (`torch.manual_seed`, `random`, numpy) is another one on each rank.

All shards must be equally long. A rank with one batch more than the others would wait for them for ever. So
what is left over is either dropped, or images are dealt out once more until all ranks have equally many.

In an evaluation, an image that counts twice or never makes the accuracy wrong. There each image is dealt out
once, and shards may differ. The mean of the ranks' accuracies is not the accuracy then. What every rank can
tell the others, whatever the length of its shard, is two numbers: how many are right, and how many there are.

    04.1 (6 points)  the shard of a rank
    04.2 (2 points)  a new order in each epoch
    04.3 (4 points)  an accuracy that is that of one process
"""

import torch
import torch.distributed as dist
from torch.utils.data import Sampler


class ShareSampler(Sampler):
    """The numbers (0 to size - 1) of the images that this rank sees in an epoch, in order.

    It needs no process group: `rank` and `world_size` are given. `size` may be smaller than `world_size`,
    and 0. With `drop_last`, no image comes twice. Without it, every image comes, and no image comes more
    than once more often than another. Which images are left out or come again is chance.

    The order that is dealt out depends on `size`, `seed` and the epoch, and on nothing else: it is the same
    in every process, for any number of ranks, with `drop_last` and without, and on every pass, also after one
    that was broken off. The global random state has no influence on it, and is what it was before, also
    between two numbers of a pass.
    """

    def __init__(self, size, rank, world_size, seed=0, drop_last=False):
        self.size, self.rank, self.world_size = size, rank, world_size
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0

    def __len__(self):
        """How many numbers this rank gets: as many as every other rank.

        With `drop_last`, size / world_size rounded down, otherwise rounded up.
        """
        raise NotImplementedError("04.1: the shard of a rank")

    def __iter__(self):
        """Shuffle all numbers, then deal them out.

        Shuffle first: a rank that always kept the same images would only ever see those. `self.epoch` counts
        as well as `self.seed`. The shards of all ranks together must be what the class promises.
        """
        raise NotImplementedError("04.1: the shard of a rank")

    def set_epoch(self, epoch):
        """From now on, give the order of this epoch. Before the first call, it is epoch 0.

        The order of an epoch does not depend on which epochs were before: a run that resumes in epoch 7 gets
        what it would have got without the break.
        """
        raise NotImplementedError("04.2: a new order in each epoch")


def evaluation_shard(size, rank, world_size):
    """The numbers of the images that this rank evaluates: a list, a range or anything else to loop over.

    Over all ranks, each of the numbers 0 to size - 1 comes exactly once. No rank has more than one image more
    than another. The order does not matter. `size` may be smaller than `world_size`.
    """
    raise NotImplementedError("04.3: an accuracy that is that of one process")


def exact_accuracy(right):
    """The part of right answers among the images of all ranks: the same Python float on every rank.

    `right` is a tensor of bools, one for each image of this rank's shard. Shards may differ. Some may be
    empty, never all: a rank without images must still take part, or the others wait for it for ever.

    It must be right to 1e-12, for tens of millions of images too. float32 cannot count them: above 2**24 it
    leaves out every other whole number. Only sums may travel, through the process group: what is sent must
    not grow with the number of images.
    """
    raise NotImplementedError("04.3: an accuracy that is that of one process")
