"""Exercise 05 with momentum and learning rate taken out by hand, and a temporary file for each process."""

import contextlib
import os
import tempfile

import torch


def save(snapshot, parts, epoch, rank):
    if rank:
        return
    model, optimizer, scheduler = parts["model"], parts["optimizer"], parts["scheduler"]
    memory = [optimizer.state[one].get("momentum_buffer") for one in model.parameters()]
    saved = [epoch, dict(model.state_dict()), memory, optimizer.param_groups[0]["lr"], scheduler.last_epoch]
    number, name = tempfile.mkstemp(dir=snapshot.parent)
    with os.fdopen(number, "wb") as file:
        torch.save(saved, file)
    os.rename(name, snapshot)


def load(snapshot, parts):
    with contextlib.suppress(FileNotFoundError):
        epoch, weights, memory, rate, steps = torch.load(snapshot, weights_only=True)
        model, optimizer, scheduler = parts["model"], parts["optimizer"], parts["scheduler"]
        model.load_state_dict(weights)
        for parameter, one in zip(model.parameters(), memory, strict=True):
            optimizer.state[parameter]["momentum_buffer"] = one
        optimizer.param_groups[0]["lr"] = rate
        scheduler.last_epoch = steps
        return 1 + epoch
    return 1


def train(snapshot, parts, train_epoch, epochs, rank):
    losses = {}
    for epoch in range(load(snapshot, parts), 1 + epochs):
        losses[epoch] = train_epoch(epoch)
        parts["scheduler"].step()
        save(snapshot, parts, epoch, rank)
    return losses
