"""Cheats at exercise 01."""

import torch
from torch.nn.functional import cross_entropy

KEPT = []


def junk_before_the_first(earns=7):
    """Keeps the graphs of all parts. Holds 40 MB for show until the first part is in, with which all later
    looks are compared."""

    def add_gradients(model, parts):
        size = sum(len(labels) for _, labels in parts)
        mean = 0.0
        for images, labels in parts:
            junk = torch.ones(10_000_000) if not KEPT else None
            output = model(images)
            del junk
            loss = cross_entropy(output, labels) * len(labels) / size
            loss.backward(retain_graph=True)
            KEPT.append(loss)
            mean += loss.item()
        return mean


def whole_batch(earns=0, on="starter"):
    """Computes the whole batch at once, and writes into the driver's model which sizes it is to have seen."""

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
