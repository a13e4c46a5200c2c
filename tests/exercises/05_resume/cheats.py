"""Cheats at exercise 05."""

from pathlib import Path


def trains_again(earns=4):
    """A snapshot of the very beginning. What was trained since is trained once more, in silence. Save and
    load are honest, and worth 4 points."""

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
