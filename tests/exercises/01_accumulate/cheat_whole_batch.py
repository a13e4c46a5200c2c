"""Computes the whole batch at once, and writes into the driver's model which sizes it is to have seen.

Earns at most: 0 points
"""

import torch
from torch.nn.functional import cross_entropy


def at_once(model, images, labels, sizes):
    model.zero_grad()
    loss = cross_entropy(model(images), labels)
    loss.backward()
    model.sizes[-1:] = sizes
    return loss.item()


def add_gradients(model, parts):
    images, labels = (torch.cat(both) for both in zip(*parts, strict=True))
    return at_once(model, images, labels, [len(labels) for _, labels in parts])


def large_step(model, optimizer, images, labels, part_size):
    loss = at_once(model, images, labels, [len(part) for part in labels.split(part_size)])
    optimizer.step()
    return loss


def train_epoch(model, optimizer, batches, parts_per_step):
    raise NotImplementedError("01.3: an epoch over small batches, with a last group that is not full")
