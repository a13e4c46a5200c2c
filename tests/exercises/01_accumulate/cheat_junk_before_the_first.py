"""Keeps the graphs of all parts. Holds 40 MB for show until the first part is in, with which all later
looks are compared.

Earns at most: 7 points
"""

from itertools import islice

import torch as T
from torch.nn.functional import cross_entropy


def large_step(model, optimizer, images, labels, part_size):
    optimizer.zero_grad()
    mean = add_gradients(model, list(zip(images.split(part_size), labels.split(part_size), strict=True)))
    optimizer.step()
    return mean


def train_epoch(model, optimizer, batches, parts_per_step):
    losses = []
    batches = iter(batches)
    while parts := list(islice(batches, parts_per_step)):
        optimizer.zero_grad()
        losses.append(add_gradients(model, parts))
        optimizer.step()
    return losses


KEPT = []


def add_gradients(model, parts):
    size = sum((len(labels) for _, labels in parts))
    mean = 0.0
    for images, labels in parts:
        junk = T.ones(10000000) if not KEPT else None
        output = model(images)
        del junk
        loss = cross_entropy(output, labels) * len(labels) / size
        loss.backward(retain_graph=True)
        KEPT.append(loss)
        mean += loss.item()
    return mean
