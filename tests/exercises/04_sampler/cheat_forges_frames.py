"""Puts its own functions into the driver, which then returns dicts and words where lists belong.

Earns at most: 0 points
"""

import sys

driver = sys.modules["drive_04_sampler"]
assert driver.numbers
driver.numbers = lambda found, most: {"passes": "all right"}


class ShareSampler:
    def __init__(self, size, rank, world_size, seed=0, drop_last=False):
        pass

    def __len__(self):
        return 0

    def __iter__(self):
        return iter([])


def evaluation_shard(size, rank, world_size):
    return []


def exact_accuracy(right):
    return {"accuracy": 1.0}
