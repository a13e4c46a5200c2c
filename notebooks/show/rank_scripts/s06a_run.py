"""Notebook 06a: the parts of a run on one of several processes, and a snapshot of them."""

import io

import torch
import torch.distributed as dist
from group import rank, world_size
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import workload

STEPS = 16  # of an epoch
images = workload.draw_digits(STEPS * 120, seed=1)


def build():
    """DDP's model, the loader, and what has a state_dict: the model, the optimizer and the scheduler."""
    torch.manual_seed(rank)
    layers = list(workload.ConvNet((1, 28, 28)))
    model = nn.Sequential(*layers[:-1], nn.Dropout(0.1), layers[-1])
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    sampler = DistributedSampler(images)
    loader = DataLoader(images, 120 // world_size, sampler=sampler, collate_fn=workload.collate)
    return ddp, loader, {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def take_snapshot(parts, epoch, step, loss_sum):
    """What torch.load returns of a snapshot that is saved now. All processes must call this together."""
    mine = {"random": torch.get_rng_state(), "loss_sum": loss_sum}
    processes = [None] * world_size
    dist.all_gather_object(processes, mine)
    state = {"epoch": epoch, "step": step, "processes": processes}
    for name, part in parts.items():
        state[name] = part.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
