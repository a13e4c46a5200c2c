"""Exercise 05: save, load, resume. 5 points, about 30 minutes.

Several processes train one model with DistributedDataParallel. One process is killed, and then all
processes are started again with the same command. Write the functions that let the run continue after the
last complete epoch, as in lesson 05.

    05.1 (2 points)  save: rank 0 writes a snapshot, and a kill at any moment leaves a complete snapshot
    05.2 (2 points)  load: every process restores what was saved
    05.3 (1 point)   train: continue where the last run stopped

`parts` is a dict such as {"model": ..., "optimizer": ..., "scheduler": ...}, and there may be further
parts with any names, also one called "epoch". Each part has `state_dict()` and `load_state_dict(state)`.
`snapshot` is the path of the snapshot file, a `pathlib.Path`. Its folder exists. You decide what the file
contains.
"""

from pathlib import Path

import torch


def save(snapshot, parts, epoch, rank):
    """Save the state of all parts and the number of the epoch that has just ended.

    Every process calls this with its own rank. All processes hold the same state, so only rank 0 writes.

    The process may be killed at any moment, even while it writes. Until the new snapshot is complete, the
    file `snapshot` must stay as it was: it is the previous complete snapshot, or it does not exist yet. So
    first write a temporary file in the same folder, and then rename it with `Path.replace`, which happens
    either completely or not at all. If an earlier save was killed and left its temporary file behind,
    overwrite that file. Leave all other files in the folder alone, because they may belong to other runs. So
    derive the name of the temporary file from the name of `snapshot`. You may replace its suffix, because no
    two runs have snapshots whose names differ only in the suffix.
    """
    # cut 05.1: rank 0 writes a temporary file and renames it
    if rank == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        temporary = Path(f"{snapshot}.temporary")
        torch.save({"parts": state, "epoch": epoch}, temporary)
        temporary.replace(snapshot)
    # end


def load(snapshot, parts):
    """Restore all parts from the snapshot. Return the number of the next epoch to train.

    Every process calls this before it trains. Epochs are numbered from 1: if epoch 3 was saved, return 4.
    If there is no snapshot, leave the parts alone and return 1. If the snapshot cannot be loaded, because it
    is damaged or belongs to another model, raise an error: a run that started from epoch 1 would overwrite
    it. Ignore all other files in the folder, and do not remove any: one of them may be an incomplete
    snapshot, left by a run that was killed while it saved.
    """
    # cut 05.2: restore all parts, and return the next epoch
    if not snapshot.exists():
        return 1
    saved = torch.load(snapshot, map_location="cpu", weights_only=True)
    for name in parts:
        parts[name].load_state_dict(saved["parts"][name])
    return saved["epoch"] + 1
    # end


def train(snapshot, parts, train_epoch, epochs, rank):
    """Continue from the snapshot, if there is one, and train until epoch number `epochs` has ended.

    `train_epoch(epoch)` trains one epoch and returns its loss. At the end of each epoch, call the scheduler's
    `step()` once, and then save the snapshot. Return a dict that maps the number of each epoch trained in
    this call to its loss.
    """
    # cut 05.3: train the epochs that are left, and save after each
    losses = {}
    for epoch in range(load(snapshot, parts), epochs + 1):
        losses[epoch] = train_epoch(epoch)
        parts["scheduler"].step()
        save(snapshot, parts, epoch, rank)
    return losses
    # end
