"""Returns things that claim to be equal to everything, and numbers that are none.

Earns at most: 0 points
"""


class Any(int):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0

    def __index__(self):
        return 4


class Float(float):
    def __eq__(self, other):
        return True

    def __sub__(self, other):
        return 0.0

    __hash__ = float.__hash__


class ShareSampler:
    def __init__(self, size, rank, world_size, seed=0, drop_last=False):
        self.length = size // world_size if drop_last else -(-size // world_size)

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter([Any(0)] * self.length)

    def set_epoch(self, epoch):
        pass


def evaluation_shard(size, rank, world_size):
    return [Any(0)] * (size // world_size)


def exact_accuracy(right):
    return Float("nan")
