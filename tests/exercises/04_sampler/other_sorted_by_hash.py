"""Exercise 04, with an order by hashes, and sums passed from rank to rank."""

import hashlib

import torch
import torch.distributed as dist


class ShareSampler:
    def __init__(self, size, rank, world_size, seed=0, drop_last=False):
        self.numbers, self.rank, self.world_size = range(size), rank, world_size
        self.seed, self.drop_last, self.epoch = seed, drop_last, 0

    def __len__(self):
        more = 0 if self.drop_last else self.world_size - 1
        return (len(self.numbers) + more) // self.world_size

    def __iter__(self):
        def place(number):
            return hashlib.sha256(f"{self.seed}/{self.epoch}/{number}".encode()).digest()

        order = sorted(self.numbers, key=place)
        while 0 < len(order) < len(self) * self.world_size:
            order += order
        return iter(order[self.rank :: self.world_size][: len(self)])

    def set_epoch(self, epoch):
        self.epoch = epoch


def evaluation_shard(size, rank, world_size):
    return [*range(size * rank // world_size, size * (rank + 1) // world_size)]


def exact_accuracy(right):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = torch.tensor([int(right.sum()), right.shape[0]])
    sums = torch.zeros(2, dtype=torch.int64)
    if rank > 0:
        dist.recv(sums, src=rank - 1)
    sums += mine
    if rank < world_size - 1:
        dist.send(sums, dst=rank + 1)
    dist.broadcast(sums, src=world_size - 1)
    return sums[0].item() / sums[1].item()
