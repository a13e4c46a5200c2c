"""Exercise 04, with Python's own random numbers, generator functions, and counts gathered as objects."""

import itertools
import random

import torch.distributed as dist
from torch.utils.data import Sampler


class ShareSampler(Sampler):
    def __init__(self, size, rank, world_size, seed=0, drop_last=False):
        self.size, self.rank, self.world_size = size, rank, world_size
        self.seed, self.drop_last = seed, drop_last
        self.set_epoch(0)

    def __len__(self):
        whole, rest = divmod(self.size, self.world_size)
        return whole + (1 if rest and not self.drop_last else 0)

    def __iter__(self):
        order = list(range(self.size))
        random.Random(f"{self.seed}, epoch {self.epoch}").shuffle(order)
        round_and_round = itertools.cycle(order)
        for _ in range(len(self)):
            hand = list(itertools.islice(round_and_round, self.world_size))
            yield hand[self.rank]

    def set_epoch(self, epoch):
        self.epoch = epoch


def evaluation_shard(size, rank, world_size):
    return (image for image in range(size) if image % world_size == rank)


def exact_accuracy(right):
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, {"right": int(right.sum()), "wrong": int((~right).sum())})
    good = sum(count["right"] for count in counts)
    return good / (good + sum(count["wrong"] for count in counts))
