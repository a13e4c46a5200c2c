"""What a run does before its first step so that it can be resumed, and what a finished run says."""

import time

import torch
import torch.distributed as dist

from workload.endings import refuse, say


def check_shared(folder, rank, device):
    """A machine that cannot see rank 0's snapshot would start over at epoch 1."""
    ticket = torch.tensor(time.time_ns(), device=device)
    file = folder / "ticket"
    if rank == 0:
        file.write_text(str(ticket.item()))
    dist.broadcast(ticket, src=0)
    if not file.exists() or file.read_text() != str(ticket.item()):
        refuse(f"--out {folder} is not on a shared disk; 06b has --own-disks")


def settle(model, images):
    """Run DDP's first backward pass now: later passes sum in a different order."""
    model.eval()  # evaluation mode changes neither batch norm nor the random state
    model(images).sum().backward()
    model.train()
    model.zero_grad()


def say_nothing_left(folder, lesson):
    """A finished run that is started again would otherwise end without a word."""
    files = folder / f"{lesson}.*"
    say(f"nothing is left to train: to start over, remove {files}")
