"""Exercise 05: save, load, resume. 5 points.

Several processes train one model with DistributedDataParallel. One of them is killed, and all are started
again with the same command. Write what lets them continue after the last complete epoch, as in lesson 05.

    05.1 (2 points)  save: rank 0 writes a snapshot, and a kill at any moment leaves a complete one
    05.2 (2 points)  load: every process restores what was saved
    05.3 (1 point)   train: continue where the last run stopped

`parts` is a dict such as {"model": ..., "optimizer": ..., "scheduler": ...}. Each part has `state_dict()` and
`load_state_dict(state)`. `snapshot` is the path of the snapshot file, a `pathlib.Path`. Its folder exists.
What you write into the file is up to you.
"""

from pathlib import Path

import torch


def save(snapshot, parts, epoch, rank):
    """Save the state of all parts and the number of the epoch that has just ended.

    Every process calls this with its rank. All of them hold the same state, so only rank 0 writes.

    The process may be killed at any moment, also while it writes. Until the new snapshot is complete, the
    file `snapshot` must remain what it was: the previous complete snapshot, or no file. So write a temporary
    file in the same folder first, and then rename it, which happens at once or not at all (`Path.replace`).
    If a save that was killed has left its temporary file behind, overwrite it.
    """
    raise NotImplementedError("05.1: rank 0 writes a temporary file and renames it")


def load(snapshot, parts):
    """Restore all parts from the snapshot. Return the number of the first epoch that is left to train.

    Every process calls this before it trains. Epochs count from 1: if epoch 3 was saved, return 4. Without a
    snapshot, leave the parts alone and return 1. Ignore all other files in the folder: one of them may be
    half a snapshot, left by a run that was killed while it saved.
    """
    raise NotImplementedError("05.2: restore all parts, and return the next epoch")


def train(snapshot, parts, train_epoch, epochs, rank):
    """Continue from the snapshot, if there is one, and train until epoch number `epochs` has ended.

    `train_epoch(epoch)` trains one epoch and returns its loss. At the end of each epoch, call the `step()` of
    the scheduler once, and save. Return a dict with the loss of each epoch that was trained here, by its
    number.
    """
    raise NotImplementedError("05.3: train the epochs that are left, and save after each")
