"""Ranks that are forked from one process have their objects at the same addresses; on two machines they would
not. A set is ordered by addresses: code that relies on its order must not seem right here."""

import random

import torch


def scatter(rank):
    """Parameters are made at other addresses than on other ranks from now on. The caller keeps what this
    returns as long as that is to be so."""
    objects = [torch.nn.Parameter(torch.empty(0)) for _ in range(200)]
    random.Random(rank).shuffle(objects)
    return objects[:100]  # the others leave holes, which are filled in the order in which they were shuffled
