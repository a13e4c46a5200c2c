"""Runs the first part only, calls that the mean, and fills in the rest of the driver's list of sizes.

Earns at most: 0 points
"""

from torch.nn.functional import cross_entropy


def add_gradients(model, parts):
    images, labels = parts[0]
    loss = cross_entropy(model(images), labels)
    loss.backward()
    model.sizes += [len(labels) for _, labels in parts[1:]]
    return loss.item()


def large_step(model, optimizer, images, labels, part_size):
    optimizer.zero_grad()
    loss = add_gradients(model, list(zip(images.split(part_size), labels.split(part_size), strict=True)))
    optimizer.step()
    return loss


def train_epoch(model, optimizer, batches, parts_per_step):
    return [large_step(model, optimizer, *pair, len(pair[1])) for pair in batches]
