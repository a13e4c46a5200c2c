"""Lesson 13's snapshots: each process writes and reads its own shards.

These snapshots extend lesson 09's checkpoints: a run can save after any step,
and a crash never leaves half a snapshot, as in lesson 05.
"""

import shutil

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import workload


class Snapshots:
    """The snapshots of one run. Each snapshot is a folder into which all processes write."""

    def __init__(self, arguments, model, optimizer, scheduler):
        self.folder = arguments.out
        self.lesson = arguments.lesson
        self.settings = workload.settings(arguments, model)
        self.weights = Weights(model, optimizer)
        self.scheduler = scheduler
        if dist.get_rank() == 0:
            for unfinished in self.folder.glob(f"{self.lesson}.epoch*.temporary"):
                shutil.rmtree(unfinished)  # a run that was killed while saving left this folder

    def save(self, epoch, step, loss_sum):
        path = self.folder / f"{self.lesson}.epoch{epoch:04}-step{step:06}.snapshot"
        temporary = path.with_suffix(".temporary")
        state = {"settings": self.settings, "weights": self.weights, "scheduler": self.scheduler}
        state |= {"epoch": epoch, "step": step, "loss_sum": loss_sum}
        dcp.save(state, checkpoint_id=temporary)  # dcp.save returns when all processes have written
        if dist.get_rank() == 0:
            temporary.rename(path)  # rename last: a crash leaves a complete snapshot or none
            for old in self.find()[:-2]:
                shutil.rmtree(old)

    def find(self):
        """The folders of all snapshots, newest last: their names sort by age."""
        return sorted(self.folder.glob(f"{self.lesson}.epoch*.snapshot"))

    def load_newest(self, device):
        """The epoch and the step to resume from, and the sum of this epoch's losses so far."""
        loss_sum = torch.zeros((), device=device)
        if not self.find():
            return 1, 0, loss_sum
        path = self.find()[-1]
        self.refuse_other_settings(path)
        state = {"weights": self.weights, "scheduler": self.scheduler}
        state |= {"epoch": 1, "step": 0, "loss_sum": loss_sum}
        dcp.load(state, checkpoint_id=path)  # reads only this rank's shards, however the snapshot was sharded
        if dist.get_rank() == 0:
            print(f"resumed in epoch {state['epoch']} after step {state['step']}", flush=True)
            if state["epoch"] > self.settings["epochs"]:
                workload.say_nothing_left(self.folder, self.lesson)
        return state["epoch"], state["step"], state["loss_sum"]

    def refuse_other_settings(self, path):
        theirs = dict(self.settings)
        dcp.load({"settings": theirs}, checkpoint_id=path)
        if problem := workload.problem_with(path, theirs, self.settings):
            workload.refuse(problem)


class Weights:
    """The model and the optimizer, as shards that know their position in the full tensor."""

    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
