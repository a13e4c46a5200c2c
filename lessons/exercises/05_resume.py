"""Exercise 05: save, load, resume. 5 points.

Several processes train one model with DistributedDataParallel. One of them is killed, and all are started again
with the same command. Write what lets them continue after the last epoch that was complete, as in lesson 05.

    05.1 (2 points)  save: rank 0 writes a snapshot, and a kill at any moment leaves a complete one
    05.2 (2 points)  load: every process restores what was saved
    05.3 (1 point)   train: continue where the last run stopped

`parts` is a dict such as {"model": ..., "optimizer": ..., "scheduler": ...}. Each part has `state_dict()` and
`load_state_dict(state)`. `snapshot` is the path of the snapshot file, a `pathlib.Path`. Its folder exists. What
you write into the file is up to you.
"""

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy


def save(snapshot, parts, epoch, rank):
    """Save the state of all parts and the number of the epoch that has just ended.

    Every process calls this with its rank. All of them hold the same state, so only rank 0 writes.

    The process may be killed at any moment, also while it writes. Until the new snapshot is complete, the file
    `snapshot` must remain what it was: the previous complete snapshot, or no file. So write a temporary file in
    the same folder first, and then rename it, which happens at once or not at all (`Path.replace`). A save that
    was killed earlier may have left its temporary file behind: overwrite it.
    """
    raise NotImplementedError("05.1: rank 0 writes a temporary file and renames it")


def load(snapshot, parts):
    """Restore all parts from the snapshot. Return the first epoch that is left to train.

    Every process calls this before it trains. Epochs count from 1: if epoch 3 was saved, return 4. Without a
    snapshot, leave the parts alone and return 1. All other files in the folder are none of your business: one
    of them may be half a snapshot, left by a run that was killed while it saved.
    """
    raise NotImplementedError("05.2: restore all parts, and return the next epoch")


def train_epoch(model, optimizer, loader, epoch):
    """Train one epoch, and return the mean loss of this process's batches. This is ready."""
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
    """Train until epoch number `epochs` has ended. Return the loss of each epoch trained here, by its number.

    `model` is wrapped in DistributedDataParallel. The scheduler takes one step at the end of each epoch. Save
    after every epoch, when all that belongs to the epoch has happened. If there is a snapshot, continue from it.
    """
    parts = {"model": model.module, "optimizer": optimizer, "scheduler": scheduler}
    losses = {}
    raise NotImplementedError("05.3: train the epochs that are left, and save after each")
    return losses
