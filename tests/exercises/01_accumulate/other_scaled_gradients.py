"""Exercise 01, with old gradients put aside, whole sums from backward(), scaled in place, and a closure."""

import torch
from torch.nn.functional import cross_entropy


def add_gradients(model, parts):
    aside = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    total = torch.tensor(0.0)
    for images, labels in parts:
        loss = cross_entropy(model(images), labels, reduction="none").sum()
        loss.backward()
        total += loss.detach()
    count = sum(labels.numel() for _, labels in parts)
    for parameter, old in zip(model.parameters(), aside, strict=True):
        parameter.grad.div_(count)
        if old is not None:
            parameter.grad.add_(old)
    return (total / count).item()


def large_step(model, optimizer, images, labels, part_size):
    def closure():
        for parameter in model.parameters():
            parameter.grad = None
        cuts = list(range(part_size, len(labels), part_size))
        return add_gradients(model, [*zip(images.tensor_split(cuts), labels.tensor_split(cuts), strict=True)])

    return optimizer.step(closure)


def train_epoch(model, optimizer, batches, parts_per_step):
    source, losses, ended = iter(batches), [], False
    while not ended:
        parts = []
        while len(parts) < parts_per_step and not ended:
            try:
                parts.append(next(source))
            except StopIteration:
                ended = True
        if parts:
            losses.append(
                optimizer.step(lambda parts=parts: (model.zero_grad(), add_gradients(model, parts))[1])
            )
    return losses
