"""Exercise 05 with momentum and learning rate taken out by hand, and a temporary file for each process."""

import contextlib
import os
import tempfile

import torch
from torch.nn.functional import cross_entropy


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


def train_epoch(model, optimizer, loader, epoch):
    loader.sampler.set_epoch(epoch)
    loss_sum = 0.0
    for images, labels in loader:
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.item()
    return loss_sum / len(loader)


def train(snapshot, model, optimizer, scheduler, loader, epochs, rank):
    parts = {"model": model.module, "optimizer": optimizer, "scheduler": scheduler}
    losses = {}
    for epoch in range(load(snapshot, parts), 1 + epochs):
        losses[epoch] = train_epoch(model, optimizer, loader, epoch)
        scheduler.step()
        save(snapshot, parts, epoch, rank)
    return losses
