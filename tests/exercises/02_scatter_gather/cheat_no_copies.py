"""Copies nothing in a step: the step is one large batch, and the driver's list of calls is forged.

Earns at most: 8 points
"""

import copy
import sys

import torch
from torch.nn.functional import cross_entropy

CALLS = sys.modules["drive_02_scatter_gather"].CALLS


def scatter(batch, count):
    return list(batch.chunk(count))


def replicate(model, count):
    return [copy.deepcopy(model) for _ in range(count)]


def compute_and_gather(copies, parts):
    return torch.cat([one(part) for one, part in zip(copies, parts, strict=False)])


def reduce(model, copies):
    for one in copies:
        for parameter, copied in zip(model.parameters(), one.parameters(), strict=True):
            if copied.grad is None:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad += copied.grad
    for buffer, copied in zip(model.buffers(), copies[0].buffers(), strict=True):
        buffer.copy_(copied)


def train_step(model, optimizer, images, labels, count):
    optimizer.zero_grad()
    loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    CALLS[:] = [(place, len(part)) for place, part in enumerate(images.chunk(count))]
    return loss.item()
