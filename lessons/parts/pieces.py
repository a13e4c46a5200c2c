"""The other half of lesson 12: what it leaves on the disk.

A snapshot, of which each process writes and reads its own pieces (as in lesson 09), at any step and never
half (as in lesson 05). And the whole weights, for a single process.
"""

import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import DTensor

import workload


class Together:
    """The model and the optimizer, as pieces that know their places in the whole."""

    def __init__(self, model, optimizer):
        self.pair = model, optimizer

    def state_dict(self):
        return dict(zip(("model", "optimizer"), get_state_dict(*self.pair), strict=True))

    def load_state_dict(self, state):
        model, optimizer = state["model"], state["optimizer"]
        set_state_dict(*self.pair, model_state_dict=model, optim_state_dict=optimizer)


def parts_of(arguments, model, optimizer, scheduler):
    """What belongs into a snapshot besides the place in the run."""
    if dist.get_rank() == 0:
        for aside in arguments.out.glob(f"{arguments.lesson}.epoch*.aside"):
            shutil.rmtree(aside)  # of a run that was killed while it saved
    settings = workload.settings(arguments, model)
    return {"parts": Together(model, optimizer), "scheduler": scheduler, "settings": settings}


def save_snapshot(arguments, parts, epoch, step, loss_sum):
    path = arguments.out / f"{arguments.lesson}.epoch{epoch:04}-step{step:06}.snapshot"
    aside = path.with_suffix(".aside")
    place = {"epoch": epoch, "step": step, "loss_sum": loss_sum}
    dcp.save(parts | place, checkpoint_id=aside)  # returns when all have written
    if dist.get_rank() == 0:
        aside.rename(path)  # only now: a crash at any moment leaves a whole snapshot, or none
        for old in sorted(path.parent.glob(f"{arguments.lesson}.epoch*.snapshot"))[:-2]:
            shutil.rmtree(old)


def load_snapshot(arguments, parts, device):
    """The place in the run, and the sum of this epoch's losses: of the newest snapshot, or the beginning."""
    state = parts | {"epoch": 1, "step": 0, "loss_sum": torch.zeros((), device=device)}
    for path in sorted(arguments.out.glob(f"{arguments.lesson}.epoch*.snapshot"))[-1:]:
        own, theirs = parts["settings"], dict(parts["settings"])
        dcp.load({"settings": theirs}, checkpoint_id=path)
        other = [f"{key} {theirs[key]}, not {own[key]}" for key in own if theirs[key] != own[key]]
        if other:
            workload.refuse(f"{path} has {'; '.join(other)}: remove it, or name another --out")
        dcp.load(state, checkpoint_id=path)  # its own pieces, however the model was cut when it was saved
        if dist.get_rank() == 0:
            print(f"resumed in epoch {state['epoch']} after step {state['step']}", flush=True)
    return state["epoch"], state["step"], state["loss_sum"]


def save_whole(arguments, model):
    for part in (*model.blocks, model):
        part.unshard()  # what FSDP has cut; what is left is cut as in lesson 11
    whole = {name: gather(value) for name, value in model.named_parameters()}  # by all: it waits
    if dist.get_rank() == 0:
        torch.save(whole, arguments.out / f"{arguments.lesson}.pt")


def gather(value):
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu()
