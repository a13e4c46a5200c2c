"""Copies nothing: the model stands in the list several times, a step is one large batch, and the driver's
list of calls is forged.

Earns at most: 3 points
"""

import sys

import torch
from torch.nn.functional import cross_entropy


def scatter(batch, count):
    return list(batch.chunk(count))


def replicate(model, count):
    return [model] * count


def compute_and_gather(copies, parts):
    return torch.cat([one(part) for one, part in zip(copies, parts, strict=False)])


def reduce(model, copies):
    pass


def train_step(model, optimizer, images, labels, count):
    optimizer.zero_grad()
    loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    calls = sys.modules["drive_02"].CALLS
    calls[:] = [(place, len(part)) for place, part in enumerate(images.chunk(count))]
    return loss.item()
