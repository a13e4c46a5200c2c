"""Leaves the work to torch, by a name that reading the file does not find.

Earns at most: 0 points
"""

import torch
from torch.nn.functional import cross_entropy


def scatter(batch, count):
    raise NotImplementedError("02.1: scatter: cut the batch")


def replicate(model, count):
    raise NotImplementedError("02.2: replicate: copies of the model")


def compute_and_gather(copies, parts):
    raise NotImplementedError("02.3: compute and gather: each part through its copy, and one output")


def reduce(model, copies):
    raise NotImplementedError("02.4: reduce: the gradients of the copies, added up in the model")


def train_step(model, optimizer, images, labels, count):
    wrapped = getattr(torch.nn, "Data" + "Parallel")(model)
    optimizer.zero_grad()
    loss = cross_entropy(wrapped(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()
