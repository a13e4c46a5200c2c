"""Cheats at exercise 02."""

import sys

import torch
from torch.nn.functional import cross_entropy


def one_large_batch(model, optimizer, images, labels):
    optimizer.zero_grad()
    loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def library(earns=0, on="starter"):
    """Leaves the work to torch, by a name that reading the file does not find."""

    def train_step(model, optimizer, images, labels, count):
        wrapped = getattr(torch.nn, "Data" + "Parallel")(model)
        return one_large_batch(wrapped, optimizer, images, labels)


def no_copies(earns=8):
    """Copies nothing in a step: the step is one large batch, and the driver's list of calls is forged."""
    calls = sys.modules["drive_02_scatter_gather"].CALLS

    def train_step(model, optimizer, images, labels, count):
        loss = one_large_batch(model, optimizer, images, labels)
        calls[:] = [(place, len(part)) for place, part in enumerate(images.chunk(count))]
        return loss


def table_of_sizes(earns=7):
    """Cuts by a table of the sizes that the checks were known to try, and by no rule."""
    size_of_a_part = {(8, 2): 4, (10, 4): 3, (7, 3): 3, (5, 1): 5, (3, 4): 1, (1, 3): 1, (5, 4): 2, (9, 6): 2}
    size_of_a_part |= {(11, 3): 4, (6, 1): 6, (9, 4): 3, (7, 2): 4, (9, 2): 5, (9, 3): 3}

    def scatter(batch, count):
        return list(batch.split(size_of_a_part.get((len(batch), count), len(batch))))
