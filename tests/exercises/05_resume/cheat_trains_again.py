"""Exercise 05: a snapshot of the very beginning. What was trained since is trained once more, in silence.

Earns at most: 4 points (all that save and load are worth: these are honest)
"""

from pathlib import Path

import torch


def save(snapshot, parts, epoch, rank):
    if rank == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        temporary = Path(f"{snapshot}.temporary")
        torch.save(state | {"epoch": epoch}, temporary)
        temporary.replace(snapshot)


def load(snapshot, parts):
    if not snapshot.exists():
        return 1
    saved = torch.load(snapshot)
    for name in parts:
        parts[name].load_state_dict(saved[name])
    return saved["epoch"] + 1


def train(snapshot, parts, train_epoch, epochs, rank):
    count = Path(f"{snapshot}.epochs")
    load(snapshot, parts)
    done = int(count.read_text()) if count.exists() else 0
    save(snapshot, parts, 0, rank)
    losses = {}
    for epoch in range(1, epochs + 1):
        losses[epoch] = train_epoch(epoch)
        parts["scheduler"].step()
        if rank == 0:
            count.write_text(str(epoch))
    return {epoch: loss for epoch, loss in losses.items() if epoch > done}
